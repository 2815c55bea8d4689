"""One object per communicator: the collectives of a training loop, with their counters.

It owns what they need (a private duplicate of the communicator, buffers that only grow), so
that a step allocates nothing, and our messages never meet the user's. It never knows what the
bytes mean.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.comm import agreement, native
from paropt_hpc.comm.buffers import as_bytes, as_floats, grown
from paropt_hpc.comm.ring_allreduce import (
    DEFAULT_SEGMENT_BYTES,
    MAX_COUNT,
    check_communicator,
    check_op,
    ring_volume,
    run_ring,
    segment_length,
    workspace_length,
)
from paropt_hpc.comm.traffic import Traffic
from paropt_hpc.errors import on_every_rank

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Communicator", "SerialCommunicator"]

_ALGORITHMS = ("ring", "mpi")

_Kept = TypeVar("_Kept")


class Communicator:
    """The ranks that work together, and what moves between them.

    Collective: every rank makes it from the same communicator, which is duplicated. All
    methods but :meth:`abort` are collective too: every rank calls them in the same order with
    matching arguments. With one rank they return at once. Not for use by two threads at once.

    Parameters
    ----------
    mpi_comm : mpi4py.MPI.Intracomm
        Stays the caller's; later messages on it do not mix with ours.
    backend : {"auto", "native", "reference"}, optional
        See :func:`paropt_hpc.comm.native.select`; looked up once, here.
    segment_bytes, max_count : int
        See :func:`paropt_hpc.comm.ring_allreduce`.

    Attributes
    ----------
    rank, size : int
        This process among all, and how many there are.
    node_rank, node_size : int
        The same among those that share this machine's memory.
    traffic : Traffic
        What this rank has sent, received and waited for, by operation.

    Raises
    ------
    MPIMismatchError
        The native module was built against another MPI than mpi4py has loaded.
    """

    rank: int
    size: int
    node_rank: int
    node_size: int
    traffic: Traffic

    def __init__(
        self,
        mpi_comm: MPI.Intracomm,
        *,
        backend: str | None = None,
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        max_count: int = MAX_COUNT,
    ) -> None:
        from mpi4py import MPI

        check_communicator(mpi_comm)
        segment_length(1, segment_bytes, max_count)
        # One rank sends nothing, so it can do without the native module, or with a wrong one.
        module = native.select(backend) if mpi_comm.Get_size() > 1 else None
        comm = mpi_comm.Dup()
        comm.Set_errhandler(MPI.ERRORS_RETURN)  # which mpi4py turns into exceptions
        node = comm.Split_type(MPI.COMM_TYPE_SHARED)
        places = (comm.Get_rank(), comm.Get_size(), node.Get_rank(), node.Get_size())
        node.Free()
        self._set_up(comm, module, places, segment_bytes, max_count)

    def _set_up(
        self,
        comm: MPI.Intracomm | None,
        module: ModuleType | None,
        places: tuple[int, int, int, int],
        segment_bytes: int,
        max_count: int,
    ) -> None:
        self._comm = comm
        self._native = module
        self.rank, self.size, self.node_rank, self.node_size = places
        self._segment_bytes = segment_bytes
        self._max_count = max_count
        self.traffic = Traffic()
        self._freed = False
        self._workspace = np.empty(0, dtype=np.uint8)
        self._received = np.empty(0, dtype=np.uint8)
        self._kept: dict[type[Any], Any] = {}

    def allreduce(self, buffer: NDArray[Any], op: str = "mean", algorithm: str = "ring") -> None:
        """Reduce a buffer over all ranks, in place.

        Parameters
        ----------
        buffer : ndarray, any shape, float32 or float64, contiguous, aligned, writable
            Overwritten with the result; the same size and dtype on all ranks.
        op : {"mean", "sum", "min", "max"}
        algorithm : {"ring", "mpi"}
            ``"ring"`` gives the same bits on all ranks; ``"mpi"`` is the MPI library's own
            choice, which promises neither that nor what min and max make of a NaN.

        Raises
        ------
        TypeError, ValueError
            An argument is not as above; nothing has been sent then.
        RuntimeError
            MPI failed, or the ranks passed different sizes; `buffer` is then undefined.
        """
        start = self._start()
        flat = as_floats(buffer)
        check_op(op)
        if algorithm not in _ALGORITHMS:
            raise ValueError(
                f"algorithm must be one of {', '.join(_ALGORITHMS)}, got {algorithm!r}"
            )
        if self.size > 1:
            (self._ring if algorithm == "ring" else self._library)(flat, op)
        volume = ring_volume(flat.size, flat.itemsize, self.rank, self.size)
        self._finish("allreduce", start, *volume)

    def allgather_bytes(self, payload: NDArray[np.uint8]) -> list[NDArray[np.uint8]]:
        """Give every rank the messages of all ranks, which may differ in length.

        Parameters
        ----------
        payload : ndarray, shape (n,), uint8, contiguous
            This rank's message; n may be 0 and differ between ranks.

        Returns
        -------
        list of ndarray, uint8
            The messages in the order of the ranks: views of a buffer that the next call
            overwrites. With one rank, `payload` itself.

        Raises
        ------
        TypeError, ValueError
            `payload` is not as above; nothing has been sent then.
        """
        start = self._start()
        own = as_bytes(payload, "payload", writable=False)
        if payload.dtype != np.uint8 or payload.ndim != 1:
            raise TypeError(
                f"payload must be a vector of uint8, got {payload.ndim}-d {payload.dtype}"
            )
        if self.size == 1:
            self._finish("allgather_bytes", start, 0, 0)
            return [own]
        views = self._gather_messages(own, self._allgather_word(own.size, np.int64))
        others = self.size - 1
        received = sum(view.size for view in views) - own.size
        self._finish("allgather_bytes", start, others * (8 + own.size), 8 * others + received)
        return views

    def gather_scalars(self, value: float) -> NDArray[np.float64]:
        """Give every rank one number of every rank.

        Returns
        -------
        ndarray, shape (size,), float64
            New, in the order of the ranks.
        """
        start = self._start()
        values = self._allgather_word(value, np.float64)
        self._finish("gather_scalars", start, *2 * (8 * (self.size - 1),))
        return values

    def gather_texts(self, text: str) -> list[str]:
        """Give every rank one text of every rank, in the order of the ranks."""
        messages = self.allgather_bytes(np.frombuffer(text.encode(), np.uint8))
        return [message.tobytes().decode() for message in messages]

    def broadcast(self, buffer: NDArray[Any], root: int = 0) -> None:
        """Overwrite a buffer on every rank with that of `root`, in place.

        Parameters
        ----------
        buffer : ndarray, any shape and numeric dtype, contiguous, aligned, writable
            The same size and dtype on all ranks.
        root : int
            A rank in [0, size).

        Raises
        ------
        TypeError, ValueError
            An argument is not as above; nothing has been sent then.
        """
        start = self._start()
        flat = as_bytes(buffer)
        if not 0 <= root < self.size:
            raise ValueError(f"root must be in [0, {self.size}), got {root}")
        if self.size > 1:
            self._broadcast_bytes(flat, root)
        sent, received = (flat.size * (self.size - 1), 0) if self.rank == root else (0, flat.size)
        self._finish("broadcast", start, sent, received)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        start = self._start()
        if self.size > 1:
            self._mpi.Barrier()
        self._finish("barrier", start, 0, 0)

    @contextmanager
    def together(self) -> Iterator[None]:
        """Run a block on every rank; if it fails on one, raise on all at its end.

        The block must not contain another collective: a rank that fails before it would leave
        the others waiting there. It costs one message of 8 bytes to every rank.

        Raises
        ------
        Exception
            If all ranks failed alike, the rank's own exception. Else that of the lowest rank
            that failed, its text led by ``rank 3:``, its type kept if it is one of this
            package's or a builtin, and otherwise the nearest base class that is. What is not
            an ``Exception`` (Ctrl-C, exit) passes at once and does not reach the others.
        """
        self._start()
        error: Exception | None = None
        try:
            yield
        except Exception as caught:
            error = caught
        start = self._start()
        codes = self._allgather_word(agreement.fingerprint(error), np.int64)
        self._finish("together", start, *2 * (8 * (self.size - 1),))
        if codes.any():
            self._raise_together(error, codes)

    def split(self, color: int, key: int | None = None) -> Communicator:
        """Return a new communicator of the ranks that pass the same `color`, with our settings.

        Parameters
        ----------
        color : int
            At least 0.
        key : int, optional
            Orders the ranks of a color; default: as they stand here.
        """
        self._start()
        if color < 0:
            raise ValueError(f"color must be at least 0, got {color}")
        if self._comm is None:
            return SerialCommunicator()
        key = self.rank if key is None else key
        part = cast("MPI.Intracomm", self._comm.Split(color, key))
        try:
            return self._like(part)
        finally:
            part.Free()

    def abort(self, message: str, status: int = 1) -> NoReturn:
        """End all ranks at once with a message from this one. Local: the others need not call.

        Parameters
        ----------
        message : str
            One line for standard error.
        status : int
            Exit status of the launcher, in [1, 255].
        """
        from mpi4py import MPI

        self._complain(message)
        MPI.COMM_WORLD.Abort(status)
        raise SystemExit(status)  # not reached: Abort does not return

    def free(self) -> None:
        """Give the duplicate back. A second call does nothing; any other one is an error."""
        if self._freed:
            return
        self._freed = True
        if self._comm is not None:
            self._comm.Free()
            self._comm = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Freeing is collective. After an exception the others may never come to it.
        if error is None:
            self.free()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} rank {self.rank} of {self.size}>"

    @property
    def _mpi(self) -> MPI.Intracomm:
        assert self._comm is not None
        return self._comm

    def _like(self, mpi_comm: MPI.Intracomm) -> Communicator:
        """Make one of other ranks with the same settings."""
        backend = "reference" if self._native is None and self.size > 1 else None
        return Communicator(
            mpi_comm,
            backend=backend,
            segment_bytes=self._segment_bytes,
            max_count=self._max_count,
        )

    def _start(self) -> float:
        if self._freed:
            raise ValueError("the communicator is freed; make a new one")
        return time.perf_counter()

    def _finish(self, operation: str, start: float, sent: int, received: int) -> None:
        self.traffic.record(operation, sent, received, time.perf_counter() - start)

    def _keep(self, kind: type[_Kept]) -> _Kept:
        """Return what a collective outside this class keeps here from call to call."""
        kept = self._kept.get(kind)
        if kept is None:
            kept = self._kept[kind] = kind()
        return kept

    def _ring(self, flat: NDArray[Any], op: str) -> None:
        segment = segment_length(flat.itemsize, self._segment_bytes, self._max_count)
        nbytes = workspace_length(flat.size, self.size, segment) * flat.itemsize
        self._workspace = grown(self._workspace, nbytes)
        workspace = self._workspace[:nbytes].view(flat.dtype)
        run_ring(self._native, self._mpi, flat, op, self._segment_bytes, self._max_count, workspace)

    def _library(self, flat: NDArray[Any], op: str) -> None:
        from mpi4py import MPI

        mpi_op = {"min": MPI.MIN, "max": MPI.MAX}.get(op, MPI.SUM)
        for begin in range(0, flat.size, self._max_count):
            piece = flat[begin : begin + self._max_count]
            self._mpi.Allreduce(MPI.IN_PLACE, piece, op=mpi_op)
        if op == "mean":
            flat /= flat.dtype.type(self.size)

    def _allgather_word(self, value: float, dtype: type[Any]) -> NDArray[Any]:
        own = np.array([value], dtype=dtype)
        if self.size == 1:
            return own
        words = np.empty(self.size, dtype=dtype)
        self._mpi.Allgather(own, words)
        return words

    def _gather_messages(
        self, own: NDArray[np.uint8], lengths: NDArray[np.int64]
    ) -> list[NDArray[np.uint8]]:
        """Gather the messages of all ranks, whose lengths every rank knows already."""
        ends = np.cumsum(lengths)
        total = int(ends[-1])
        self._received = grown(self._received, total)
        views = [self._received[end - n : end] for end, n in zip(ends, lengths, strict=True)]
        self._allgather_views(own, views, total)
        return views

    def _allgather_views(
        self, own: NDArray[np.uint8], views: list[NDArray[np.uint8]], total: int
    ) -> None:
        """Fill `views`, which lie one behind the other at the start of the receive buffer."""
        from mpi4py import MPI

        if total <= self._max_count:
            counts = [view.size for view in views]
            self._mpi.Allgatherv(own, [self._received, counts, MPI.BYTE])
            return
        # The places within the result no longer fit MPI's int: one sender after the other.
        views[self.rank][:] = own
        for root, view in enumerate(views):
            self._broadcast_bytes(view, root)

    def _broadcast_bytes(self, flat: NDArray[np.uint8], root: int) -> None:
        for begin in range(0, flat.size, self._max_count):
            self._mpi.Bcast(flat[begin : begin + self._max_count], root)

    def _raise_together(self, error: Exception | None, codes: NDArray[Any]) -> NoReturn:
        if error is not None and (codes == codes[0]).all():
            raise on_every_rank(error)
        lowest = int(np.flatnonzero(codes)[0])
        described = None
        if error is not None and self.rank == lowest:
            described = agreement.describe(error, lowest)
        kind, text = self._mpi.bcast(described, root=lowest)
        raise on_every_rank(agreement.rebuild(kind, text)) from error

    def _complain(self, message: str) -> None:
        prefix = f"rank {self.rank}: " if self.size > 1 else ""
        print(f"{prefix}{message}", file=sys.stderr, flush=True)


class SerialCommunicator(Communicator):
    """One rank where there is no MPI: the same interface, nothing to send."""

    def __init__(self) -> None:
        self._set_up(None, None, (0, 1, 0, 1), DEFAULT_SEGMENT_BYTES, MAX_COUNT)

    def abort(self, message: str, status: int = 1) -> NoReturn:
        """End the process with a message and an exit status."""
        self._complain(message)
        raise SystemExit(status)
