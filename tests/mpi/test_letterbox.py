"""Letters between any ranks: none is lost, those of one sender keep their order."""

import numpy as np
import pytest

from paropt_hpc.comm import Communicator
from paropt_hpc.comm.letterbox import Letterbox
from paropt_hpc.errors import CollectiveTimeout


def test_everybody_writes_to_everybody(world, everywhere):
    with Communicator(world) as comm:
        letters, others = Letterbox(comm), Letterbox(comm)
        for number in range(20):
            for rank in range(comm.size):
                payload = np.full(number * 7, comm.rank, np.uint8)  # the first one is empty
                letters.post(rank, payload)
        others.post((comm.rank + 1) % comm.size, np.zeros(3, np.uint8))
        lengths = {rank: [] for rank in range(comm.size)}
        faults = []
        for _ in range(20 * comm.size):
            letter = letters.wait("the test")
            lengths[letter.source].append(letter.payload.size)
            if not (letter.payload == letter.source).all():
                faults.append(f"{letter}")
        faults += [f"{n}" for n in lengths.values() if n != [7 * i for i in range(20)]]
        # The other box has its own letters.
        if others.wait("the test").payload.size != 3 or letters.take() is not None:
            faults.append("letters in the wrong box")
        letters.flush()
        others.flush()
        if letters.unsent:
            faults.append("unsent")
        everywhere(faults)


def test_nobody_waits_for_ever(world):
    with Communicator(world) as comm:
        letters = Letterbox(comm)
        assert letters.take(0.01) is None
        if comm.size > 1:
            letters._mailbox.timeout = 0.2  # of the letters alone: ranks may leave at any time
            with pytest.raises(CollectiveTimeout, match=r"no message within 0.2 s \(a reply\)"):
                letters.wait("a reply")
