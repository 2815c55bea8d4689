"""What every collective of a communicator stands on: a private duplicate, a deadline, counters.

A collective begins with :meth:`Transport.begin`, checks its arguments, says with
:meth:`Transport.agree` what it is, waits with :meth:`Transport.complete` for what it has asked of
MPI, and ends with :meth:`Transport.finish`. Nothing here knows what the bytes mean.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.comm import agreement
from paropt_hpc.comm.buffers import grown
from paropt_hpc.comm.lanes import OPERATIONS, Lane, LaneOptions
from paropt_hpc.comm.layout import lay_out
from paropt_hpc.comm.traffic import Traffic
from paropt_hpc.comm.tuning import Shape
from paropt_hpc.errors import CollectiveMismatch, CollectiveTimeout, on_every_rank

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Transport"]

_CALL_BYTES = 96  # of the text that ranks compare in checking mode
_EAGER_POLLS = 100  # before the clock is looked at
_AWAKE = 0.01  # seconds of polling before it sleeps in between
_PAUSE = 5e-5  # seconds of such a sleep

_Kept = TypeVar("_Kept")


class _Testable(Protocol):
    """What can be asked whether it is done: a request of MPI's, or a probe for a message."""

    def Test(self) -> bool:
        """Say whether it is done."""
        ...


class _Watched(NamedTuple):
    """A request that leaves its status behind."""

    request: MPI.Request
    status: MPI.Status | None

    def Test(self) -> bool:
        return self.request.Test(self.status)


# Requests of collectives that have failed, with their buffers: MPI may still read and write these,
# whatever has become of the communicator.
_abandoned: list[_Testable] = []


class Transport:
    """A communicator as its collectives see it.

    Parameters
    ----------
    options : LaneOptions
    mpi_comm : mpi4py.MPI.Intracomm, optional
        Is duplicated, which is collective. None: one rank, without MPI.
    module : module, optional
        ``paropt_hpc._mpi``; None without it.
    check : bool
        Compare before each collective what the ranks are about to do.

    Attributes
    ----------
    rank, size, node_rank, node_size, shape
        See :class:`paropt_hpc.comm.Communicator`.
    options : LaneOptions
    module : module or None
    lane : Lane or None
        Serves the caller's thread; None without the native module.
    checks : bool
    failed : bool
        A collective has not ended: what it used is not given back, and no other may begin.
    waited : float
        Seconds, in the library's collectives and in messages between neighbours.
    """

    def __init__(
        self,
        options: LaneOptions,
        mpi_comm: MPI.Intracomm | None = None,
        module: ModuleType | None = None,
        *,
        check: bool = False,
    ) -> None:
        self.options = options
        self.module = module
        self.lane: Lane | None = None
        self.rank, self.size, self.node_rank, self.node_size = 0, 1, 0, 1
        self.shape = Shape(1, 1, 1, 1, shares_memory=False)
        self.failed = False
        self.waited = 0.0
        self._freed = False
        self._comm: MPI.Intracomm | None = None
        self._traffic = Traffic()
        self._waited_before = 0.0
        self._calls = 0
        self._received = np.empty(0, dtype=np.uint8)
        self._kept: dict[type[Any], Any] = {}
        if mpi_comm is not None:
            self._connect(mpi_comm)
        self.checks = check and self.size > 1

    def _connect(self, mpi_comm: MPI.Intracomm) -> None:
        from mpi4py import MPI

        comm = self._comm = mpi_comm.Dup()
        comm.Set_errhandler(MPI.ERRORS_RETURN)  # which mpi4py turns into exceptions
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        if self.module is None:
            layout = lay_out(comm, self.options.node_size, self.options.leaders)
            layout.free()
        else:
            self.lane = Lane(self.module, comm, self.options, background=False)
            layout = self.lane.layout
        self.node_rank, self.node_size = layout.rank, layout.size
        shares = self.group is not None
        self.shape = Shape(self.size, layout.nodes, layout.largest, layout.leaders, shares)

    @property
    def mpi(self) -> MPI.Intracomm:
        """The private duplicate; not where there is one rank without MPI."""
        assert self._comm is not None
        return self._comm

    @property
    def has_mpi(self) -> bool:
        """Whether there is such a duplicate."""
        return self._comm is not None

    @property
    def group(self) -> Any:
        """What the ranks of a node share; None where they share nothing."""
        return None if self.lane is None else self.lane.group

    @property
    def traffic(self) -> Traffic:
        """What this rank has sent, received and waited for, by operation."""
        if self.lane is not None and self.lane.group is not None:
            calls, sent, received, seconds, waited = self.lane.native.take_traffic()
            if calls:
                self._traffic.record("allreduce", sent, received, seconds, waited, calls)
        return self._traffic

    @property
    def memory_bytes(self) -> int:
        """Bytes of segments taken so far."""
        return self._received.size + (0 if self.lane is None else self.lane.memory())

    def keep(self, kind: type[_Kept]) -> _Kept:
        """Return what a collective keeps here from call to call; made by the first."""
        kept = self._kept.get(kind)
        if kept is None:
            kept = self._kept[kind] = kind()
        return kept

    def part(self) -> None:
        """Meet before everything is given back; nothing where that has been, or one has failed."""
        if self._comm is not None and not self.failed:
            self.agree("free")
            self.meet("free")

    def free(self) -> None:
        """Give all back; collective. A second call does nothing.

        After a collective that has failed it is local: a rank that is gone is not waited for, and
        what the ranks shared stays until the process ends.
        """
        if self._freed:
            return
        self._traffic = self.traffic  # before the lane that has counted it is gone
        self._freed = True
        if self._comm is not None and not self.failed:
            if self.lane is not None:
                self.lane.free()
                self.lane = None
            self._comm.Free()
            self._comm = None

    def begin(self) -> float:
        """Begin a collective; return the time for :meth:`finish`."""
        if self._freed:
            raise ValueError("the communicator is freed; make a new one")
        if self.failed:
            raise RuntimeError("a collective of this communicator has failed; make a new one")
        self._waited_before = self._waiting()
        return time.perf_counter()

    def agree(self, operation: str, detail: str = "") -> None:
        """Put the call on the node's board; in checking mode compare it with the other ranks'.

        Raises
        ------
        CollectiveMismatch
            On every rank, with the ranks that differ and how.
        """
        self._calls += 1
        if self.group is not None:
            code = OPERATIONS.index(operation) if operation in OPERATIONS else len(OPERATIONS) - 1
            self.group.enter(code)
        if not self.checks:
            return
        text = f"call {self._calls}, {operation}{detail and f' ({detail})'}"
        own = np.zeros(_CALL_BYTES, dtype=np.uint8)
        encoded = np.frombuffer(text.encode()[:_CALL_BYTES], dtype=np.uint8)
        own[: encoded.size] = encoded
        rows = self.gather_rows(own, operation)
        calls = [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in rows]
        found = agreement.differences(calls)
        if found is not None:
            self.leave()
            raise on_every_rank(CollectiveMismatch(found))

    def leave(self) -> None:
        """Take the call off the node's board."""
        if self.group is not None:
            self.group.leave()

    def meet(self, operation: str) -> None:
        """Wait for all ranks, but not for ever: what only the library can do knows no deadline."""
        if self.size > 1:
            self.complete([self.mpi.Ibarrier()], operation)

    def finish(self, operation: str, start: float, sent: int, received: int) -> None:
        """End a collective, and count it."""
        self.leave()
        seconds = time.perf_counter() - start
        waiting = min(seconds, self._waiting() - self._waited_before)
        self._traffic.record(operation, sent, received, seconds, waiting, begun=start)

    def complete(
        self, requests: Sequence[_Testable], operation: str, others: Sequence[_Testable] = ()
    ) -> None:
        """Wait for some of the library's requests, one after the other, but not for ever.

        `others` are not waited for, but under way as well: they are lost with these.
        """
        for number, request in enumerate(requests):
            try:
                self._complete(request, operation)
            except CollectiveTimeout:
                self.fail()
                _abandoned.extend([*requests[number:], *others])
                raise

    def wait(
        self,
        operation: str,
        request: MPI.Request,
        status: MPI.Status | None = None,
        others: Sequence[MPI.Request] = (),
    ) -> None:
        """Do so for one whose status is wanted."""
        self.complete([_Watched(request, status)], operation, others)

    def _complete(self, request: _Testable, operation: str) -> None:
        if request.Test():
            return
        start = time.perf_counter()
        waited, polls, timeout = 0.0, 0, self.options.timeout
        while not request.Test():
            polls += 1
            if polls < _EAGER_POLLS:
                continue
            waited = time.perf_counter() - start
            if timeout and waited > timeout:
                raise CollectiveTimeout(self.explain(f"{operation} did not end"))
            if waited < _AWAKE:
                os.sched_yield()
            else:
                time.sleep(_PAUSE)
        self.waited += time.perf_counter() - start

    def explain(self, reason: str) -> str:
        """Say who is missing in a collective that does not end, as far as that is known."""
        if self.lane is not None:
            return str(self.lane.native.explain(reason))
        return (
            f"{reason} within {self.options.timeout} s; which rank is missing is not known "
            "without the native module; raise PAROPT_TIMEOUT if one is only slow"
        )

    def gather_rows(self, own: NDArray[Any], operation: str) -> NDArray[Any]:
        """Return the vectors of all ranks, of one length and dtype, as rows of a new array."""
        if self.size == 1:
            return own[None]
        rows = np.empty((self.size, own.size), dtype=own.dtype)
        self.complete([self.mpi.Iallgather(own, rows)], operation)
        return rows

    def gather_messages(
        self, own: NDArray[np.uint8], lengths: NDArray[np.int64], operation: str
    ) -> list[NDArray[np.uint8]]:
        """Gather the messages of all ranks, whose lengths every rank knows already.

        Returns views of a buffer that the next call overwrites.
        """
        from mpi4py import MPI

        ends = np.cumsum(lengths)
        total = int(ends[-1])
        self._received = grown(self._received, total)
        views = [self._received[end - n : end] for end, n in zip(ends, lengths, strict=True)]
        if total <= self.options.max_count:
            counts = [view.size for view in views]
            request = self.mpi.Iallgatherv(own, [self._received, counts, MPI.BYTE])
            self.complete([request], operation)
            return views
        # The places within the result no longer fit MPI's int: one sender after the other.
        views[self.rank][:] = own
        for root, view in enumerate(views):
            self.broadcast(view, root, operation)
        return views

    def share_rows(self, own: NDArray[Any], operation: str) -> NDArray[Any]:
        """As :meth:`gather_rows`, through memory where all ranks share it.

        For ranks that keep step: a wait for memory is not ended by Ctrl-C.
        """
        if self.lane is None or not self._in_memory:
            return self.gather_rows(own, operation)
        rows = np.empty((self.size, own.size), dtype=own.dtype)
        self.natively(self.lane.native.gather, own, rows)
        return rows

    def share_messages(
        self, own: NDArray[np.uint8], lengths: NDArray[np.int64], operation: str
    ) -> list[NDArray[np.uint8]]:
        """As :meth:`gather_messages`; where all ranks share memory, none is sent.

        What is returned can be read until the next call or :meth:`free`.
        """
        if self.lane is None or not self._in_memory:
            return self.gather_messages(own, lengths, operation)
        return self.natively(self.lane.native.share, own)

    @property
    def _in_memory(self) -> bool:
        return self.shape.shares_memory and self.shape.nodes == 1

    def natively(self, call: Callable[..., _Kept], *arguments: Any) -> _Kept:
        """Call what waits for other ranks; nothing works any more if one does not come."""
        try:
            return call(*arguments)
        except CollectiveTimeout:
            self.fail()
            raise

    def fail(self) -> None:
        """Let no other collective begin, the short way included."""
        self.failed = True
        if self.group is not None:
            self.group.fail()

    def broadcast(self, flat: NDArray[np.uint8], root: int, operation: str) -> None:
        """Overwrite bytes on every rank with those of `root`."""
        step = self.options.max_count
        for begin in range(0, flat.size, step):
            self.complete([self.mpi.Ibcast(flat[begin : begin + step], root)], operation)

    def _waiting(self) -> float:
        return self.waited + (0.0 if self.lane is None else self.lane.native.waited())
