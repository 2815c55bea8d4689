"""One object per communicator: the collectives of a training loop, with their counters.

It owns what they need (a private duplicate of the communicator, buffers that only grow), so
that a step allocates nothing, and our messages never meet the user's. It never knows what the
bytes mean.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, Self, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.comm import agreement, native, tuning
from paropt_hpc.comm.buffers import DTYPES, as_bytes, as_numbers, grown
from paropt_hpc.comm.lanes import OPERATIONS, Lane, LaneOptions, Progress
from paropt_hpc.comm.layout import lay_out
from paropt_hpc.comm.request import Request
from paropt_hpc.comm.ring_allreduce import (
    DEFAULT_SEGMENT_BYTES,
    MAX_COUNT,
    check_communicator,
    check_op,
    ring_volume,
    run_twin,
    segment_length,
)
from paropt_hpc.comm.traffic import Traffic
from paropt_hpc.comm.tuning import ALGORITHMS, CostModel, Link, Shape, Table
from paropt_hpc.errors import (
    CollectiveMismatch,
    CollectiveTimeout,
    ConfigError,
    on_every_rank,
)

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Communicator", "SerialCommunicator"]

_DEFAULT_TIMEOUT = 1800.0  # seconds; longer than a checkpoint takes, shorter than a night
_CALL_BYTES = 96  # of the text that ranks compare in checking mode

_Kept = TypeVar("_Kept")


class _Testable(Protocol):
    """What can be asked whether it is done: a request of MPI's, or a probe for a message."""

    def Test(self) -> bool:
        """Say whether it is done."""
        ...


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
    node_size : int, optional
        Treat every so many ranks of a machine as a node of its own (tests, NUMA domains).
    leaders : int
        Ranks of each node that talk to other nodes in a hierarchical all-reduce, each for a part
        of the buffer; no more than the emptiest node has.
    timeout : float, optional
        Seconds that a collective may wait for a rank; 0 waits for ever. Default: the
        environment variable ``PAROPT_TIMEOUT``, else 1800.
    check : bool, optional
        Compare before each collective what the ranks are about to do, which costs a message of
        96 bytes to every rank. Default: whether ``PAROPT_CHECK`` is set and not 0.

    Attributes
    ----------
    rank, size : int
        This process among all, and how many there are.
    node_rank, node_size : int
        The same among those that share this node's memory.
    shape : paropt_hpc.comm.tuning.Shape
        What the choice of an algorithm depends on.

    Raises
    ------
    MPIMismatchError
        The native module was built against another MPI than mpi4py has loaded.
    ConfigError
        PAROPT_TIMEOUT or the measured table cannot be used.
    """

    rank: int
    size: int
    node_rank: int
    node_size: int
    shape: Shape
    _comm: MPI.Intracomm | None
    _native: ModuleType | None
    _table: Table | None
    _model: CostModel
    _progress: Progress | None
    _lane: Any
    _short: Any

    def __init__(
        self,
        mpi_comm: MPI.Intracomm,
        *,
        backend: str | None = None,
        segment_bytes: int = DEFAULT_SEGMENT_BYTES,
        max_count: int = MAX_COUNT,
        node_size: int | None = None,
        leaders: int = 1,
        timeout: float | None = None,
        check: bool | None = None,
    ) -> None:
        from mpi4py import MPI

        check_communicator(mpi_comm)
        segment_length(1, segment_bytes, max_count)
        timeout = _timeout() if timeout is None else timeout
        if check is None:
            check = os.environ.get("PAROPT_CHECK", "0") not in ("", "0")
        # One rank sends nothing, so it can do without the native module, or with a wrong one.
        module = native.select(backend) if mpi_comm.Get_size() > 1 else None
        comm = mpi_comm.Dup()
        comm.Set_errhandler(MPI.ERRORS_RETURN)  # which mpi4py turns into exceptions
        self._set_up(LaneOptions(segment_bytes, max_count, timeout, node_size, leaders))
        self._comm = comm
        self._native = module
        self._checks = check and comm.Get_size() > 1
        self.rank, self.size = comm.Get_rank(), comm.Get_size()
        self._table = self._read_table()
        self._place(comm, module)
        measured = None if self._table is None else self._table.link(self.shape)
        if measured is not None:
            self._model = self._model.measured(measured, self.shape)
        if module is not None and self._lane.group is not None and not self._checks:
            self._short = self._shortcut() if self.shape.nodes == 1 else None

    def _set_up(self, options: LaneOptions) -> None:
        self._comm = None
        self._native = None
        self.rank, self.size, self.node_rank, self.node_size = 0, 1, 0, 1
        self.shape = Shape(1, 1, 1, 1, shares_memory=False)
        self._options = options
        self._segment_bytes = options.segment_bytes
        self._max_count = options.max_count
        self._traffic = Traffic()
        self._freed = False
        self._failed = False
        self._checks = False
        self._calls = 0
        self._waited = 0.0  # seconds, in the library's collectives
        self._waited_before = 0.0
        self._lane = None
        self._progress = None
        self._short = None
        self._table = None
        self._model = CostModel()
        self._received = np.empty(0, dtype=np.uint8)
        self._kept: dict[type[Any], Any] = {}
        self._abandoned: list[Any] = []  # requests of a collective that has failed

    def _place(self, comm: MPI.Intracomm, module: ModuleType | None) -> None:
        options = self._options
        if module is None:
            layout = lay_out(comm, options.node_size, options.leaders)
            layout.free()
        else:
            self._lane = Lane(module, comm, options, background=False)
            layout = self._lane.layout
        self.node_rank, self.node_size = layout.rank, layout.size
        shares = self._lane is not None and self._lane.group is not None
        self.shape = Shape(self.size, layout.nodes, layout.largest, layout.leaders, shares)

    def _read_table(self) -> Table | None:
        """Let rank 0 read the measured table, so that all ranks choose alike."""
        path = tuning.table_path()
        table: Table | None = None
        with self.together():
            if self.rank == 0 and path.exists():
                table = Table.load(path)
        self._traffic.reset()
        self._calls = 0
        agreed: Table | None = self._mpi.bcast(table)
        return agreed

    def _shortcut(self) -> Any:
        """Return what reduces in place through shared memory, where that needs no choice."""
        reach = None if self._table is None else self._table.reach("shared", self.shape)
        lane = self._lane.native
        lane.short_bytes = sys.maxsize if reach is None else reach
        return lane.short_allreduce

    @property
    def traffic(self) -> Traffic:
        """What this rank has sent, received and waited for, by operation."""
        if self._short is not None:
            calls, sent, received, seconds, waited = self._lane.group.take_traffic()
            if calls:
                self._traffic.record("allreduce", sent, received, seconds, waited, calls)
        return self._traffic

    def allreduce(
        self,
        buffer: NDArray[Any],
        op: str = "mean",
        algorithm: str = "auto",
        out: NDArray[Any] | None = None,
    ) -> None:
        """Reduce a buffer over all ranks, in place or into `out`.

        All ranks end with the same bits, the same in every run on the same ranks, with every
        algorithm but ``"mpi"``. float16 and bfloat16 are summed as float32 and rounded once;
        integers wrap around.

        Parameters
        ----------
        buffer : ndarray, any shape, contiguous, aligned, writable unless `out` is given
            float32, float64, float16, bfloat16, int32 or int64; the same size and dtype on all
            ranks. Overwritten with the result unless `out` is given.
        op : {"mean", "sum", "min", "max"}
            A mean needs floats. A NaN on any rank gives NaN in every one of them.
        algorithm : str
            ``"auto"``: what ``paropt tune-comm`` has measured to be the fastest for this size,
            else what :class:`paropt_hpc.comm.tuning.CostModel` predicts.
            ``"ring"``, ``"recursive_doubling"``: messages between all ranks; the ring's are of
            the buffer's own type, those of 16-bit floats otherwise of float32.
            ``"shared"``: through memory, if all ranks are on one node.
            ``"hierarchical"``: through memory inside each node, messages between their leaders.
            ``"mpi"``: the MPI library's own choice, which promises neither the same bits on all
            ranks nor what min and max make of a NaN.
        out : ndarray, optional
            As `buffer`, of its size and dtype, writable; the same memory or none of it.

        Raises
        ------
        TypeError, ValueError
            An argument is not as above; nothing has been sent then.
        ConfigError
            The algorithm needs the native module, or memory that the ranks share.
        CollectiveMismatch
            The ranks passed different sizes, dtypes or operations (found by ``"shared"`` and
            ``"hierarchical"`` inside a node, by all in checking mode).
        CollectiveTimeout
            A rank did not arrive; make a new communicator, if that makes sense.
        RuntimeError
            MPI failed, or a neighbour passed another size; the result is then undefined.
        """
        if self._short is not None and out is None and algorithm == "auto":
            try:
                if self._short(buffer, op):
                    return
            except CollectiveTimeout:
                self._failed = True
                raise
        start = self._start()
        flat, result = self._reducible(buffer, out, op)
        chosen = self._choose(algorithm, flat.nbytes)
        self._agree("allreduce", f"{op} of {flat.size} {flat.dtype}, {algorithm}")
        sent = self._reduce(chosen, flat, result, op) if self.size > 1 else _copy(flat, result)
        volume = ring_volume(flat.size, flat.itemsize, self.rank, self.size)
        if chosen in ("ring", "recursive_doubling", "hierarchical") and self.size > 1:
            volume = (sent, sent if chosen != "ring" else volume[1] * sent // max(1, volume[0]))
        self._finish("allreduce", start, *volume)

    def start(
        self,
        buffer: NDArray[Any],
        op: str = "mean",
        algorithm: str = "auto",
        out: NDArray[Any] | None = None,
    ) -> Request:
        """Begin what :meth:`allreduce` does and return; a thread carries it out meanwhile.

        Reductions go on one after the other in the order in which they were started, which is
        the same on all ranks. Until its :meth:`Request.wait` a buffer is neither read nor
        written. The thread needs a core from time to time, and ``MPI_THREAD_MULTIPLE`` unless
        all ranks are on one node; below that level (and for ``"mpi"``, and without the native
        module) the reduction is over when this method returns. The first call is collective and
        waits for all ranks.

        Parameters
        ----------
        buffer, op, algorithm, out
            See :meth:`allreduce`.

        Returns
        -------
        Request

        Raises
        ------
        TypeError, ValueError, ConfigError, CollectiveMismatch
            As :meth:`allreduce`; what happens later is raised by ``wait``.
        """
        start = self._start()
        flat, result = self._reducible(buffer, out, op)
        chosen = self._choose(algorithm, flat.nbytes)
        self._agree("start", f"{op} of {flat.size} {flat.dtype}, {algorithm}")
        job = None
        if self.size == 1:
            _copy(flat, result)
        elif self._runs_in_background(chosen):
            if self._progress is None:
                self._progress = Progress(self._native_module, self._mpi.Dup(), self._options)
            job = self._progress.start(chosen, flat, result, op)
        else:
            self._reduce(chosen, flat, result, op)
        self._leave()
        seconds = time.perf_counter() - start
        volume = ring_volume(flat.size, flat.itemsize, self.rank, self.size)

        def finish(waited: float) -> None:
            # Names the arrays, so that they live as long as the thread may use them.
            assert flat.size == result.size
            self._traffic.record("start", *volume, seconds + waited, waited)

        return Request(job, finish)

    def empty(self, n: int, dtype: Any = np.float32) -> NDArray[Any]:
        """Make a vector whose reduction inside the node needs no copy.

        Its values are zero. Where the ranks of a node cannot share memory it is an ordinary one.
        The memory lasts until :meth:`free`, and longer where an array in it is still in use.

        Parameters
        ----------
        n : int
            Elements, the same on all ranks.
        dtype : dtype
            One that :meth:`allreduce` takes.

        Returns
        -------
        ndarray, shape (n,)
        """
        self._start()
        kind = np.dtype(dtype)
        if kind not in DTYPES or n < 0:
            raise ValueError(f"n must be at least 0 and dtype reducible, got {n} and {kind}")
        self._agree("empty", f"{n} {kind}")
        shared = self.size > 1 and self.shape.shares_memory and n > 0
        array = self._lane.empty(n, kind) if shared else np.zeros(n, kind)
        self._leave()
        return array

    @property
    def memory_bytes(self) -> int:
        """Bytes of segments that the collectives of this rank have taken so far.

        Shared and private ones, without the arrays of :meth:`empty`. Local.
        """
        lanes = [lane for lane in (self._lane, self._progress and self._progress.lane) if lane]
        return self._received.size + sum(lane.memory() for lane in lanes)

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
        self._agree("allgather_bytes")
        views = self._gather_messages(own, self._allgather_words(np.array([own.size]))[:, 0])
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
        return self.gather_vectors([value])[:, 0]

    def gather_vectors(self, values: Sequence[float]) -> NDArray[np.float64]:
        """Give every rank some numbers of every rank, equally many of each, in one message.

        Returns
        -------
        ndarray, shape (size, len(values)), float64
            New, in the order of the ranks.
        """
        start = self._start()
        self._agree("gather_scalars", f"of {len(values)}")
        rows = self._allgather_words(np.array(values, dtype=np.float64))
        self._finish("gather_scalars", start, *2 * (rows[0].nbytes * (self.size - 1),))
        return rows

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
        self._agree("broadcast", f"{flat.size} bytes from {root}")
        if self.size > 1:
            self._broadcast_bytes(flat, root)
        sent, received = (flat.size * (self.size - 1), 0) if self.rank == root else (0, flat.size)
        self._finish("broadcast", start, sent, received)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        start = self._start()
        self._agree("barrier")
        if self.size > 1:
            self._complete(self._mpi.Ibarrier(), "barrier")
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
        self._agree("together")
        codes = self._allgather_words(np.array([agreement.fingerprint(error)]))[:, 0]
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
        self._agree("split")
        key = self.rank if key is None else key
        part = cast("MPI.Intracomm", self._comm.Split(color, key))
        self._leave()
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
        """Give all back; collective. A second call does nothing, any other one is an error.

        After a :class:`CollectiveTimeout` it is local: a rank that is gone is not waited for, and
        what the ranks shared stays until the process ends.
        """
        if self._freed:
            return
        counted = self.traffic  # before the lane that has counted it is gone
        self._freed = True
        self._short = None
        if self._comm is not None and not self._failed:
            if self._progress is not None:
                self._progress.free()
            if self._lane is not None:
                self._lane.free()
            self._comm.Free()
            self._comm = None
        self._traffic = counted

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
            timeout=self._options.timeout,
            check=self._checks,
        )

    @property
    def _native_module(self) -> ModuleType:
        assert self._native is not None
        return self._native

    def _start(self) -> float:
        if self._freed:
            raise ValueError("the communicator is freed; make a new one")
        if self._failed:
            raise RuntimeError("a collective of this communicator has failed; make a new one")
        self._waited_before = self._waiting()
        return time.perf_counter()

    def _finish(self, operation: str, start: float, sent: int, received: int) -> None:
        self._leave()
        seconds = time.perf_counter() - start
        waiting = min(seconds, self._waiting() - self._waited_before)
        self._traffic.record(operation, sent, received, seconds, waiting)

    def _waiting(self) -> float:
        return self._waited + (self._lane.native.waited() if self._lane is not None else 0.0)

    def _keep(self, kind: type[_Kept]) -> _Kept:
        """Return what a collective outside this class keeps here from call to call."""
        kept = self._kept.get(kind)
        if kept is None:
            kept = self._kept[kind] = kind()
        return kept

    def _agree(self, operation: str, detail: str = "") -> None:
        """Put the call on the node's board; in checking mode compare it with the other ranks'."""
        self._calls += 1
        if self._lane is not None and self._lane.group is not None:
            code = OPERATIONS.index(operation) if operation in OPERATIONS else len(OPERATIONS) - 1
            self._lane.group.enter(code)
        if not self._checks:
            return
        text = f"call {self._calls}, {operation}{detail and f' ({detail})'}"
        own = np.zeros(_CALL_BYTES, dtype=np.uint8)
        encoded = np.frombuffer(text.encode()[:_CALL_BYTES], dtype=np.uint8)
        own[: encoded.size] = encoded
        texts = np.empty((self.size, _CALL_BYTES), dtype=np.uint8)
        self._complete(self._mpi.Iallgather(own, texts), operation)
        calls = [row.tobytes().rstrip(b"\0").decode(errors="replace") for row in texts]
        found = agreement.differences(calls)
        if found is not None:
            self._leave()
            raise on_every_rank(CollectiveMismatch(found))

    def _leave(self) -> None:
        if self._lane is not None and self._lane.group is not None:
            self._lane.group.leave()

    def _complete(self, request: _Testable, operation: str) -> None:
        """Wait for one of the library's requests, but not for ever."""
        if request.Test():
            return
        start = time.perf_counter()
        waited, polls, timeout = 0.0, 0, self._options.timeout
        while not request.Test():
            polls += 1
            if polls < 100:
                continue
            waited = time.perf_counter() - start
            if timeout and waited > timeout:
                self._failed = True
                self._abandoned.append(request)  # with its buffers, which MPI may still write
                raise CollectiveTimeout(self._explain(f"{operation} did not end"))
            if waited < 0.01:
                os.sched_yield()
            else:
                time.sleep(5e-5)
        self._waited += time.perf_counter() - start

    def _explain(self, reason: str) -> str:
        if self._lane is not None:
            return str(self._lane.native.explain(reason))
        return (
            f"{reason} within {self._options.timeout} s; which rank is missing is not known "
            "without the native module; raise PAROPT_TIMEOUT if one is only slow"
        )

    def _reducible(
        self, buffer: NDArray[Any], out: NDArray[Any] | None, op: str
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        """Check the arguments of a reduction; return what it reads and what it writes."""
        flat = as_numbers(buffer, writable=out is None)
        check_op(op, flat.dtype)
        if out is None:
            return flat, flat
        result = as_numbers(out, "out")
        if result.dtype != flat.dtype or out.shape != buffer.shape:
            raise ValueError(
                f"out must be as buffer, {buffer.shape} {buffer.dtype}, got {out.shape} {out.dtype}"
            )
        if np.may_share_memory(flat, result) and flat.ctypes.data != result.ctypes.data:
            raise ValueError("out must be the same memory as buffer or none of it; they overlap")
        return flat, result

    def _choose(self, algorithm: str, nbytes: int) -> str:
        if algorithm not in ("auto", *ALGORITHMS):
            raise ValueError(
                f"algorithm must be one of auto, {', '.join(ALGORITHMS)}, got {algorithm!r}"
            )
        if self.size == 1:
            return algorithm
        if algorithm == "auto":
            if self._native is None:
                return "ring"
            measured = self._table.choose(nbytes, self.shape) if self._table else None
            return measured or self._model.choose(nbytes, self.shape)
        if algorithm in ("mpi", "ring"):
            return algorithm
        if self._native is None:
            raise ConfigError(f"algorithm {algorithm!r} needs the native module; use 'ring'")
        if algorithm != "recursive_doubling" and not self.shape.shares_memory:
            raise ConfigError(f"algorithm {algorithm!r} needs shared memory; use 'ring'")
        if algorithm == "shared" and self.shape.nodes > 1:
            raise ConfigError("algorithm 'shared' works inside one node; use 'hierarchical'")
        return algorithm

    def _ours(self, nbytes: int) -> str:
        """Choose among our algorithms, which give the same bits on all ranks."""
        chosen = self._choose("auto", nbytes)
        return self._model.choose(nbytes, self.shape) if chosen == "mpi" else chosen

    def _predicted(self, nbytes: int) -> tuple[Link, float]:
        """Return what messages meet here, and the seconds of a dense all-reduce of ours."""
        model, shape = self._model, self.shape
        name = "ring" if self._native is None else model.choose(nbytes, shape)
        return model.link(shape), model.seconds(name, nbytes, shape)

    def _runs_in_background(self, algorithm: str) -> bool:
        from mpi4py import MPI

        if self._native is None or algorithm == "mpi":
            return False
        return algorithm == "shared" or MPI.Query_thread() == MPI.THREAD_MULTIPLE

    def _reduce(self, algorithm: str, flat: NDArray[Any], result: NDArray[Any], op: str) -> int:
        """Reduce over more than one rank; return the bytes sent in messages of ours."""
        if algorithm != "mpi" and self._native is not None:
            try:
                return int(self._lane.native.allreduce(algorithm, flat, result, op))
            except CollectiveTimeout:
                self._failed = True
                raise
        _copy(flat, result)
        if algorithm == "mpi":
            return self._library(result, op)
        return run_twin(self._mpi, result, op, self._segment_bytes, self._max_count)

    def _library(self, flat: NDArray[Any], op: str) -> int:
        from mpi4py import MPI

        # MPI knows no 16-bit floats, and a sum in them could overflow.
        wide = flat.astype(np.float32) if flat.itemsize == 2 else flat
        mpi_op = {"min": MPI.MIN, "max": MPI.MAX}.get(op, MPI.SUM)
        for begin in range(0, wide.size, self._max_count):
            piece = wide[begin : begin + self._max_count]
            self._complete(self._mpi.Iallreduce(MPI.IN_PLACE, piece, op=mpi_op), "allreduce")
        with np.errstate(all="ignore"):
            if op == "mean":
                wide /= wide.dtype.type(self.size)
            if wide is not flat:
                flat[:] = wide
        return 0

    def _allgather_words(self, own: NDArray[Any]) -> NDArray[Any]:
        """Return the vectors of all ranks as rows."""
        if self.size == 1:
            return own[None]
        rows = np.empty((self.size, own.size), dtype=own.dtype)
        self._complete(self._mpi.Iallgather(own, rows), "gather")
        return rows

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
            request = self._mpi.Iallgatherv(own, [self._received, counts, MPI.BYTE])
            self._complete(request, "allgather_bytes")
            return
        # The places within the result no longer fit MPI's int: one sender after the other.
        views[self.rank][:] = own
        for root, view in enumerate(views):
            self._broadcast_bytes(view, root)

    def _broadcast_bytes(self, flat: NDArray[np.uint8], root: int) -> None:
        for begin in range(0, flat.size, self._max_count):
            piece = flat[begin : begin + self._max_count]
            self._complete(self._mpi.Ibcast(piece, root), "broadcast")

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
        self._set_up(LaneOptions(DEFAULT_SEGMENT_BYTES, MAX_COUNT, 0.0, None, 1))

    def abort(self, message: str, status: int = 1) -> NoReturn:
        """End the process with a message and an exit status."""
        self._complain(message)
        raise SystemExit(status)


def _copy(flat: NDArray[Any], result: NDArray[Any]) -> int:
    if flat is not result:
        result[:] = flat
    return 0


def _timeout() -> float:
    text = os.environ.get("PAROPT_TIMEOUT", "")
    if not text:
        return _DEFAULT_TIMEOUT
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise ConfigError(f"PAROPT_TIMEOUT must be seconds, 0 for no limit, got {text!r}")
    return seconds
