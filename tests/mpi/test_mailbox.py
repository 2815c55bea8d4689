"""Messages between two ranks: order, lengths, deadlines; and numbers from all a few steps late."""

import time

import numpy as np
import pytest

from paropt_hpc.comm.mailbox import Mailbox, Pulse, wait_until
from paropt_hpc.errors import CollectiveTimeout

pytestmark = pytest.mark.mpi

TAG = 42


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("n", [0, 1, 1000, 300_000])
def test_messages_arrive_whole_and_in_order(comm, n):
    mail = Mailbox(comm)
    behind, before = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    sent = [np.full(n, comm.rank + offset, np.float32) for offset in (0, 100)]
    for buffer in sent:
        mail.send(behind, TAG, buffer)
    first = np.empty(n, np.float32)
    mail.receive(before, TAG, first)
    second = mail.receive_bytes(before, TAG).view(np.float32)
    mail.flush()
    assert np.array_equal(first, np.full(n, before))
    assert np.array_equal(second, np.full(n, before + 100))
    assert mail.sender(TAG) is None
    comm.barrier()


@pytest.mark.mpi(min_size=2)
def test_the_sender_is_found(comm):
    mail, word = Mailbox(comm), np.array([comm.rank])
    if comm.rank > 0:
        mail.send(0, TAG, word)
        mail.flush()
    else:
        found = set()
        while len(found) < comm.size - 1:
            sender = mail.sender(TAG)
            if sender is not None:
                mail.receive(sender, TAG, word)
                assert word[0] == sender
                found.add(sender)
    comm.barrier()


def test_numbers_of_all_ranks_come_in_order_though_ranks_do_not_keep_step(comm):
    pulse, taken = Pulse(comm, 2), []
    for step in range(20):
        pulse.send([comm.rank, step])
        time.sleep(1e-4 * comm.rank)
        while pulse.pending and (pulse.pending >= 5 or pulse.arrived()):
            wait_until(pulse.arrived, 30, "late")
            taken.append(pulse.take())
    while pulse.pending:
        wait_until(pulse.arrived, 30, "late")
        taken.append(pulse.take())
    for step, rows in enumerate(taken):
        assert rows.tolist() == [[rank, step] for rank in range(comm.size)]
    assert pulse.taken == 20


def test_waiting_has_a_deadline():
    with pytest.raises(CollectiveTimeout, match=r"nothing came within 0\.01 s; raise PAROPT_T"):
        wait_until(lambda: False, 0.01, "nothing came")
    asked = []
    wait_until(lambda: asked.append(1) or len(asked) > 300, 30, "")
    assert len(asked) == 301
