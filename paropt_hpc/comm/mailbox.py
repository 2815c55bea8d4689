"""Messages between two ranks, for algorithms in which ranks do not keep step.

Waiting gives the core away: after the first millisecond a rank sleeps between two looks at the
network, longer and longer up to a millisecond, so that a server that has nothing to do costs
nothing. It also has a deadline.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.comm.buffers import as_bytes, grown
from paropt_hpc.comm.communicator import Communicator
from paropt_hpc.errors import CollectiveTimeout

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Mailbox", "Pulse", "wait_until"]

_SHORTEST, _LONGEST = 2e-5, 1e-3  # seconds of sleep between two looks
_AWAKE = 1e-3  # seconds without sleep: a long message moves while both sides look


class Mailbox:
    """Send to and receive from single ranks of a communicator. Local; no method is collective.

    Messages are told apart by sender and tag, and arrive in the order in which they were sent.
    Tags are the caller's; collectives of the same communicator do not mix with them, but two
    mailboxes in use at once need different ones. The caller counts what goes through them.

    Parameters
    ----------
    comm : Communicator
        Of more than one rank.

    Attributes
    ----------
    timeout : float
        Seconds that a wait may take, 0 for no limit: the communicator's.
    """

    def __init__(self, comm: Communicator) -> None:
        self._mpi = comm._transport.mpi
        self.timeout = comm._transport.options.timeout
        self._sending: list[tuple[MPI.Request, NDArray[Any]]] = []
        self._bytes = np.empty(0, np.uint8)

    def send(self, target: int, tag: int, buffer: NDArray[Any]) -> None:
        """Begin to send a contiguous buffer, which must not change before `flush`."""
        self._sending.append((self.post(target, tag, buffer), buffer))

    def post(self, target: int, tag: int, buffer: NDArray[Any]) -> MPI.Request:
        """Begin to send a contiguous buffer, which the caller keeps until that is done."""
        return self._mpi.Isend(as_bytes(buffer, writable=False), target, tag)

    def barrier(self) -> MPI.Request:
        """Say that this rank has arrived; the request is done when all have. Collective."""
        return self._mpi.Ibarrier()

    def flush(self) -> None:
        """Wait until the buffers of all `send` so far may be used again."""
        if self._sending:
            self.wait([request for request, _ in self._sending], "what was sent was not received")
            self._sending.clear()

    def unsent(self) -> int:
        """Return how many messages are still on their way; the buffers of others are free."""
        self._sending = [sent for sent in self._sending if not sent[0].Test()]
        return len(self._sending)

    def expect(self, source: int, tag: int, out: NDArray[Any]) -> MPI.Request:
        """Begin to receive into a contiguous buffer; see `wait`."""
        return self._mpi.Irecv(as_bytes(out, "out"), source, tag)

    def receive(self, source: int, tag: int, out: NDArray[Any]) -> None:
        """Receive a message of the size of `out`."""
        self.wait([self.expect(source, tag, out)], f"rank {source} did not send")

    def receive_bytes(self, source: int, tag: int) -> NDArray[np.uint8]:
        """Receive a message of any length: a view that the next call overwrites."""
        from mpi4py import MPI

        status = MPI.Status()
        wait_until(
            lambda: self._mpi.Iprobe(source, tag, status),
            self.timeout,
            f"rank {source} did not send",
        )
        count = status.Get_count(MPI.BYTE)
        self._bytes = grown(self._bytes, count)
        view = self._bytes[:count]
        self._mpi.Recv(view, source, tag)
        return view

    def sender(self, tag: int) -> int | None:
        """Return a rank from which a message waits to be received, or None."""
        from mpi4py import MPI

        status = MPI.Status()
        found = self._mpi.Iprobe(MPI.ANY_SOURCE, tag, status)
        return status.Get_source() if found else None

    def wait(self, requests: Sequence[MPI.Request], fault: str) -> None:
        """Wait until all requests are done.

        Raises
        ------
        CollectiveTimeout
            Saying `fault`, when that takes longer than the communicator's deadline.
        """
        from mpi4py import MPI

        pending = list(requests)
        wait_until(lambda: MPI.Request.Testall(pending), self.timeout, fault)


class Pulse:
    """What all ranks tell one another in each step, without keeping step; collective.

    Every rank calls `send` equally often, and takes the results in order, as they come.

    Parameters
    ----------
    comm : Communicator
    width : int
        Numbers that a rank tells.

    Attributes
    ----------
    taken : int
        Results taken so far.
    """

    def __init__(self, comm: Communicator, width: int) -> None:
        self._comm = comm
        self._width = width
        self._pending: deque[tuple[MPI.Request | None, NDArray[Any], NDArray[Any]]] = deque()
        self.taken = 0

    @property
    def pending(self) -> int:
        """Results that have not been taken yet."""
        return len(self._pending)

    def send(self, numbers: Sequence[float]) -> None:
        """Tell the others this step's numbers."""
        own = np.array(numbers, np.float64)
        rows = np.empty((self._comm.size, self._width))
        request = None
        if self._comm.size > 1:
            request = self._comm._transport.mpi.Iallgather(own, rows)
        else:
            rows[0] = own
        self._pending.append((request, own, rows))

    def arrived(self) -> bool:
        """Say whether the oldest result is there."""
        request = self._pending[0][0]
        return request is None or bool(request.Test())

    def take(self) -> NDArray[np.float64]:
        """Return the oldest result, once it has arrived: a row for every rank."""
        self.taken += 1
        return self._pending.popleft()[2]


def wait_until(done: Callable[[], Any], timeout: float, fault: str) -> None:
    """Ask `done` until it says yes; soon sleep between two questions, longer each time.

    Parameters
    ----------
    done : callable
        Without arguments.
    timeout : float
        Seconds; 0 waits for ever.
    fault : str
        What to say when the time is up.

    Raises
    ------
    CollectiveTimeout
    """
    if done():
        return
    begun, pause = time.perf_counter(), _SHORTEST
    while not done():
        waited = time.perf_counter() - begun
        if waited < _AWAKE:
            os.sched_yield()
            continue
        if timeout and waited > timeout:
            raise CollectiveTimeout(
                f"{fault} within {timeout:g} s; raise PAROPT_TIMEOUT if it is only slow"
            )
        time.sleep(pause)
        pause = min(_LONGEST, 1.5 * pause)
