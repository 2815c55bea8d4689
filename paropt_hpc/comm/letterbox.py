"""Bytes to and from any rank, where nobody knows beforehand who sends what and when.

A manager that hands out work, or islands that do not wait for one another: post and go on, look
whether something has come.
"""

import os
import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.comm.communicator import Communicator
from paropt_hpc.comm.mailbox import Mailbox, wait_until
from paropt_hpc.errors import CollectiveTimeout

__all__ = ["Letter", "Letterbox"]

_TAGS = 8192, 16384  # the first one, and how many: those below are for mailboxes
_SPIN = 2e-4  # seconds of eager polling; then the core is given to others


class Letter(NamedTuple):
    """One message that has come."""

    source: int
    payload: NDArray[np.uint8]


class _Opened:
    """How many letterboxes a communicator has had: each has a tag of its own."""

    count = 0


class Letterbox:
    """Post bytes to any rank, and take what has come, in any order of ranks.

    Making it is collective, all else is local. Letters from one rank come in the order in which
    they were posted.

    Parameters
    ----------
    comm : Communicator
        Its time limit is that of :meth:`wait` and :meth:`flush`.
    """

    def __init__(self, comm: Communicator) -> None:
        self.rank, self.size = comm.rank, comm.size
        self._mailbox = Mailbox(comm) if comm.size > 1 else None
        opened = comm._transport.keep(_Opened)
        self._tag = _TAGS[0] + opened.count % _TAGS[1]
        opened.count += 1
        self._own: list[Letter] = []

    def post(self, rank: int, payload: NDArray[np.uint8]) -> None:
        """Send a letter; returns at once. The payload must not change afterwards."""
        if rank == self.rank or self._mailbox is None:
            self._own.append(Letter(self.rank, payload))
            return
        self._mailbox.unsent()  # forgets what has been sent
        self._mailbox.send(rank, self._tag, payload)

    def take(self, seconds: float = 0.0) -> Letter | None:
        """Return the next letter; None if none comes within some seconds."""
        found = self._next()
        start = time.perf_counter()
        while found is None and (waited := time.perf_counter() - start) < seconds:
            if waited < _SPIN:
                os.sched_yield()
            else:
                time.sleep(min(2e-3, max(5e-5, waited / 50)))
            found = self._next()
        return found

    def wait(self, reason: str) -> Letter:
        """Return the next letter, however long it takes, up to the communicator's limit."""
        timeout = self._mailbox.timeout if self._mailbox is not None else 0.0
        found = self.take(timeout or float("inf"))
        if found is None:
            raise CollectiveTimeout(
                f"rank {self.rank} got no message within {timeout:g} s ({reason}); raise "
                "PAROPT_TIMEOUT if it only takes long, 0 waits for ever"
            )
        return found

    @property
    def unsent(self) -> int:
        """How many letters of this rank are still on their way."""
        return self._mailbox.unsent() if self._mailbox is not None else 0

    def flush(self) -> None:
        """Wait until all letters of this rank have been taken over by MPI or their receivers."""
        if self._mailbox is not None:
            fault = f"letters of rank {self.rank} were not taken"
            wait_until(lambda: not self.unsent, self._mailbox.timeout, fault)

    def _next(self) -> Letter | None:
        if self._own:
            return self._own.pop(0)
        if self._mailbox is None:
            return None
        source = self._mailbox.sender(self._tag)
        if source is None:  # the first look may only have fetched what the second one finds
            source = self._mailbox.sender(self._tag)
        if source is None:
            return None
        return Letter(source, self._mailbox.receive_bytes(source, self._tag).copy())
