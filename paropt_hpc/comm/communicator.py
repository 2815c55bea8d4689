"""One object per communicator: the collectives of a training loop, with their counters.

It owns what they need (a private duplicate of the communicator, buffers that only grow), so
that a step allocates nothing, and our messages never meet the user's. It never knows what the
bytes mean. Here is what a caller sees; :mod:`paropt_hpc.comm.transport` is what all collectives
stand on, :mod:`paropt_hpc.comm.allreduce` carries out the dense all-reduces.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, Self, cast

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.comm import agreement, native
from paropt_hpc.comm.allreduce import AllReduce
from paropt_hpc.comm.buffers import DTYPES, as_bytes, numbers_on_gpu
from paropt_hpc.comm.choice import Choice, agreed_table
from paropt_hpc.comm.gpu_allreduce import Gpu
from paropt_hpc.comm.lanes import LaneOptions
from paropt_hpc.comm.request import Request
from paropt_hpc.comm.ring_allreduce import (
    DEFAULT_SEGMENT_BYTES,
    MAX_COUNT,
    check_communicator,
    segment_length,
)
from paropt_hpc.comm.traffic import Traffic
from paropt_hpc.comm.transport import Transport
from paropt_hpc.comm.tuning import Shape
from paropt_hpc.errors import CollectiveTimeout, ConfigError, on_every_rank
from paropt_hpc.kernels import device

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["LAST_WORDS", "Communicator", "SerialCommunicator"]

_DEFAULT_TIMEOUT = 1800.0  # seconds; longer than a checkpoint takes, shorter than a night
# A launcher may end the ranks before it has read what they said: seconds to read it in.
LAST_WORDS = 0.2


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
        check_communicator(mpi_comm)
        segment_length(1, segment_bytes, max_count)
        timeout = _timeout() if timeout is None else timeout
        if check is None:
            check = os.environ.get("PAROPT_CHECK", "0") not in ("", "0")
        # One rank sends nothing, so it can do without the native module, or with a wrong one.
        module = native.select(backend) if mpi_comm.Get_size() > 1 else None
        table = agreed_table(mpi_comm)
        options = LaneOptions(segment_bytes, max_count, timeout, node_size, leaders)
        transport = Transport(options, mpi_comm, module, check=check)
        self._set_up(transport, Choice(transport.shape, table, native=module is not None))

    def _set_up(self, transport: Transport, choice: Choice) -> None:
        self.rank, self.size = transport.rank, transport.size
        self.node_rank, self.node_size = transport.node_rank, transport.node_size
        self.shape = transport.shape
        self._transport = transport
        self._choice = choice
        self._dense = AllReduce(transport, choice)
        self._short: Any = None
        if transport.group is not None and not transport.checks and self.shape.nodes == 1:
            self._short = self._shortcut()

    def _shortcut(self) -> Any:
        """Return what reduces in place through shared memory, where that needs no choice."""
        assert self._transport.lane is not None
        lane = self._transport.lane.native
        lane.short_bytes = self._choice.shared_reach()
        return lane.short_allreduce

    @property
    def traffic(self) -> Traffic:
        """What this rank has sent, received and waited for, by operation."""
        return self._transport.traffic

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
            ranks. Overwritten with the result unless `out` is given. Or an array on a GPU, then on
            all ranks: it goes by an MPI that takes such arrays, else in segments through pinned
            memory of the host; see :mod:`paropt_hpc.comm.gpu_mpi`.
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
            ``"nccl"``: NCCL through CuPy, for arrays on GPUs of which every rank has its own; it
            promises no more than ``"mpi"``, and knows no deadline.
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
        # A call of a few bytes costs little more than its way to the native module.
        if self._short is not None and out is None and algorithm == "auto":
            try:
                if self._short(buffer, op):
                    return
            except CollectiveTimeout:
                self._transport.fail()
                raise
        self._dense.run(buffer, op, algorithm, out)

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
        waits for all ranks. An array on a GPU is reduced when it returns.

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
        return self._dense.start(buffer, op, algorithm, out)

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
        transport = self._transport
        transport.begin()
        kind = np.dtype(dtype)
        if kind not in DTYPES or n < 0:
            raise ValueError(f"n must be at least 0 and dtype reducible, got {n} and {kind}")
        transport.agree("empty", f"{n} {kind}")
        lane = transport.lane if transport.group is not None and n > 0 else None
        if lane is None:
            array = np.zeros(n, kind)
        else:
            transport.meet("empty")
            array = lane.empty(n, kind)
        transport.leave()
        return array

    @property
    def memory_bytes(self) -> int:
        """Bytes of segments that the collectives of this rank have taken so far.

        Shared, private and pinned ones, without the arrays of :meth:`empty`. Local.
        """
        pinned = self._transport.keep(Gpu).staging.memory_bytes
        return self._transport.memory_bytes + self._dense.memory_bytes + pinned

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
        transport = self._transport
        start = transport.begin()
        own = as_bytes(payload, "payload", writable=False)
        if payload.dtype != np.uint8 or payload.ndim != 1:
            raise TypeError(
                f"payload must be a vector of uint8, got {payload.ndim}-d {payload.dtype}"
            )
        if self.size == 1:
            transport.finish("allgather_bytes", start, 0, 0)
            return [own]
        transport.agree("allgather_bytes")
        lengths = transport.gather_rows(np.array([own.size]), "allgather_bytes")[:, 0]
        views = transport.gather_messages(own, lengths, "allgather_bytes")
        others = self.size - 1
        received = sum(view.size for view in views) - own.size
        transport.finish("allgather_bytes", start, others * (8 + own.size), 8 * others + received)
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
        transport = self._transport
        start = transport.begin()
        transport.agree("gather_scalars", f"of {len(values)}")
        rows = transport.gather_rows(np.array(values, dtype=np.float64), "gather_scalars")
        transport.finish("gather_scalars", start, *2 * (rows[0].nbytes * (self.size - 1),))
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
        transport = self._transport
        start = transport.begin()
        view = numbers_on_gpu(buffer) if device.is_device(buffer) else None
        flat = as_bytes(buffer) if view is None else device.vector(buffer).view(np.uint8)
        if not 0 <= root < self.size:
            raise ValueError(f"root must be in [0, {self.size}), got {root}")
        transport.agree("broadcast", f"{flat.size} bytes from {root}")
        if self.size > 1 and view is not None:
            transport.keep(Gpu).staging.run(
                view if self.rank == root else None,
                None if self.rank == root else view,
                lambda segment: transport.broadcast(segment.view(np.uint8), root, "broadcast"),
            )
        elif self.size > 1:
            transport.broadcast(cast("NDArray[np.uint8]", flat), root, "broadcast")
        sent, received = (flat.size * (self.size - 1), 0) if self.rank == root else (0, flat.size)
        transport.finish("broadcast", start, sent, received)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        transport = self._transport
        start = transport.begin()
        transport.agree("barrier")
        transport.meet("barrier")
        transport.finish("barrier", start, 0, 0)

    def together(self) -> AbstractContextManager[None]:
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
        return self._together()

    @contextmanager
    def _together(self, *, counted: bool = True) -> Iterator[None]:
        """Do so; inside another collective, which counts it, not `counted` by itself."""
        transport = self._transport
        if counted:
            transport.begin()
        error: Exception | None = None
        try:
            yield
        except Exception as caught:
            error = caught
        start = transport.begin() if counted else 0.0
        transport.agree("together")
        codes = transport.gather_rows(np.array([agreement.fingerprint(error)]), "together")[:, 0]
        if counted:
            transport.finish("together", start, *2 * (8 * (self.size - 1),))
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
        transport = self._transport
        transport.begin()
        if color < 0:
            raise ValueError(f"color must be at least 0, got {color}")
        if not transport.has_mpi:
            return SerialCommunicator()
        transport.agree("split")
        transport.meet("split")
        key = self.rank if key is None else key
        part = cast("MPI.Intracomm", transport.mpi.Split(color, key))
        transport.leave()
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
        time.sleep(LAST_WORDS)
        MPI.COMM_WORLD.Abort(status)
        raise SystemExit(status)  # not reached: Abort does not return

    def free(self) -> None:
        """Give all back; collective. A second call does nothing, any other one is an error.

        After a :class:`CollectiveTimeout` it is local: a rank that is gone is not waited for, and
        what the ranks shared stays until the process ends.
        """
        self._short = None
        self._transport.part()
        self._dense.free()
        self._transport.free()

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

    def _like(self, mpi_comm: MPI.Intracomm) -> Communicator:
        """Make one of other ranks with the same settings."""
        transport = self._transport
        return Communicator(
            mpi_comm,
            backend="reference" if transport.module is None and self.size > 1 else None,
            segment_bytes=transport.options.segment_bytes,
            max_count=transport.options.max_count,
            node_size=transport.options.node_size,
            leaders=transport.options.leaders,
            timeout=transport.options.timeout,
            check=transport.checks,
        )

    def _raise_together(self, error: Exception | None, codes: NDArray[Any]) -> NoReturn:
        if error is not None and (codes == codes[0]).all():
            raise on_every_rank(error)
        lowest = int(np.flatnonzero(codes)[0])
        described = None
        if error is not None and self.rank == lowest:
            described = agreement.describe(error, lowest)
        kind, text = self._transport.mpi.bcast(described, root=lowest)
        raise on_every_rank(agreement.rebuild(kind, text)) from error

    def _complain(self, message: str) -> None:
        prefix = f"rank {self.rank}: " if self.size > 1 else ""
        print(f"{prefix}{message}", file=sys.stderr, flush=True)


class SerialCommunicator(Communicator):
    """One rank where there is no MPI: the same interface, nothing to send."""

    def __init__(self) -> None:
        transport = Transport(LaneOptions(DEFAULT_SEGMENT_BYTES, MAX_COUNT, 0.0, None, 1))
        self._set_up(transport, Choice(transport.shape, native=False))

    def abort(self, message: str, status: int = 1) -> NoReturn:
        """End the process with a message and an exit status."""
        self._complain(message)
        raise SystemExit(status)


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
