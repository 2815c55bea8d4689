"""The dense all-reduces of a communicator: checked, carried out by an algorithm, and counted."""

from __future__ import annotations

import time
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.comm.buffers import as_numbers, grown, pair_on_gpu
from paropt_hpc.comm.choice import Choice
from paropt_hpc.comm.gpu_allreduce import STAGE_BYTES, Gpu
from paropt_hpc.comm.lanes import Progress
from paropt_hpc.comm.request import Request
from paropt_hpc.comm.ring_allreduce import check_op, ring_volume, run_twin
from paropt_hpc.comm.transport import Transport
from paropt_hpc.kernels import device
from paropt_hpc.kernels.checks import FLOATS

__all__ = ["AllReduce"]

_COUNTED = ("recursive_doubling", "hierarchical")  # these count what they have sent
_WIDENED = 32 * 1024  # 16-bit floats that the library is given as float32 at a time


class _Reduction(NamedTuple):
    """One reduction that all ranks have begun."""

    began: float  # as of `Transport.begin`
    source: Any  # vectors, or what arrays on a GPU say of themselves; the target may be the source
    target: Any
    op: str
    algorithm: str


class AllReduce:
    """Reduces the buffers of one communicator, in the foreground or in the background.

    The arguments of `run` and `start` are those of :meth:`Communicator.allreduce`.
    """

    def __init__(self, transport: Transport, choice: Choice) -> None:
        self._transport = transport
        self._choice = choice
        self._progress: Progress | None = None
        self._wide = np.empty(0, dtype=np.uint8)

    def run(
        self, buffer: NDArray[Any], op: str, algorithm: str, out: NDArray[Any] | None = None
    ) -> None:
        """Reduce a buffer, in place or into `out`."""
        if device.is_device(buffer):
            self._run_on_gpu(buffer, op, algorithm, out)
            return
        reduction = self._begin("allreduce", buffer, op, algorithm, out)
        sent = self._reduce(reduction)
        self._transport.finish("allreduce", reduction.began, *self._volume(reduction, sent))

    def start(
        self, buffer: NDArray[Any], op: str, algorithm: str, out: NDArray[Any] | None = None
    ) -> Request:
        """Begin to reduce a buffer; see :meth:`Communicator.start`."""
        if device.is_device(buffer):
            self._run_on_gpu(buffer, op, algorithm, out)
            return Request()
        transport = self._transport
        reduction = self._begin("start", buffer, op, algorithm, out)
        if not self._runs_in_background(reduction.algorithm):
            sent = self._reduce(reduction)
            transport.finish("start", reduction.began, *self._volume(reduction, sent))
            return Request()
        job = self._background().start(reduction.algorithm, reduction.source, reduction.target, op)
        transport.leave()
        seconds = time.perf_counter() - reduction.began
        transport.traffic.record("start", 0, 0, seconds, begun=reduction.began)

        def wait() -> None:
            began = time.perf_counter()
            sent = transport.natively(job.wait)
            waited = time.perf_counter() - began
            volume = self._volume(reduction, sent)
            transport.traffic.record("start", *volume, waited, waited, calls=0)

        return Request(job.done, wait)

    @property
    def memory_bytes(self) -> int:
        """Bytes of segments of the thread, and of what the library is given in their place."""
        in_background = 0 if self._progress is None else self._progress.lane.memory()
        return in_background + self._wide.size

    def free(self) -> None:
        """Finish what was started, then give everything back; collective.

        After a collective that has failed it is local, and what was started ends in an error.
        """
        if self._progress is None:
            return
        if self._transport.failed:
            self._progress.cancel()
        else:
            self._progress.free()
        self._progress = None

    def _begin(
        self,
        operation: str,
        buffer: NDArray[Any],
        op: str,
        algorithm: str,
        out: NDArray[Any] | None,
    ) -> _Reduction:
        """Check the arguments, choose the algorithm, and agree on all that with the other ranks."""
        began = self._transport.begin()
        source, target = _reducible(buffer, out, op)
        chosen = self._choice.choose(algorithm, source.nbytes)
        self._transport.agree(operation, f"{op} of {source.size} {source.dtype}, {algorithm}")
        return _Reduction(began, source, target, op, chosen)

    def _reduce(self, reduction: _Reduction) -> int:
        """Reduce in the foreground; return the bytes sent in messages of ours."""
        transport = self._transport
        _, source, target, op, algorithm = reduction
        if transport.size > 1 and algorithm != "mpi" and transport.lane is not None:
            reduce = transport.lane.native.allreduce
            return int(transport.natively(reduce, algorithm, source, target, op))
        if source is not target:
            target[:] = source
        if transport.size == 1:
            return 0
        if algorithm == "mpi":
            self._library(target, op)
            return 0
        options, wait = transport.options, partial(transport.wait, "allreduce")
        return run_twin(transport.mpi, target, op, options.segment_bytes, options.max_count, wait)

    def _run_on_gpu(self, buffer: Any, op: str, algorithm: str, out: Any) -> None:
        """Reduce an array on a GPU; see :mod:`paropt_hpc.comm.gpu_allreduce`."""
        transport = self._transport
        began = transport.begin()
        source, target = pair_on_gpu(buffer, out)
        check_op(op, source.dtype)
        nbytes = min(STAGE_BYTES, source.size * source.dtype.itemsize)
        chosen = algorithm
        if algorithm != "nccl":
            chosen = self._choice.choose(algorithm, nbytes)
        transport.agree("allreduce", f"{op} of {source.size} {source.dtype} on a GPU, {algorithm}")
        gpu, sent = transport.keep(Gpu), 0
        reduce = self._way(gpu, source, op, algorithm)
        if reduce is None:

            def reduce_segment(segment: NDArray[Any]) -> None:
                nonlocal sent
                sent += self._reduce(_Reduction(began, segment, segment, op, chosen))

            gpu.staging.run(source, target, reduce_segment)
        else:
            if source.size and target.pointer != source.pointer:
                device.copy(source, target)
            chosen, sent = reduce(transport, buffer if out is None else out, op)
        done = _Reduction(began, source, target, op, chosen)
        transport.finish("allreduce", began, *self._volume(done, sent))

    def _way(self, gpu: Gpu, source: device.View, op: str, algorithm: str) -> Any:
        """Return what reduces where the array lies; None if it has to pass the host."""
        dtype = source.dtype
        if self._transport.size == 1 or source.size == 0:
            return lambda transport, array, op: (algorithm, 0)
        if algorithm == "nccl":
            return gpu.nccl
        # Ours gives the same bits on all ranks, but there are kernels for sums of these only.
        ours = algorithm in ("auto", "ring") and op in ("sum", "mean") and dtype in FLOATS
        if ours and gpu.direct(self._transport):
            return gpu.ring
        if algorithm == "mpi" and dtype.itemsize >= 4 and gpu.direct(self._transport):
            return gpu.library
        return None

    def _library(self, flat: NDArray[Any], op: str) -> None:
        """Let the MPI library reduce, in place."""
        from mpi4py import MPI

        transport = self._transport
        mpi_op = {"min": MPI.MIN, "max": MPI.MAX}.get(op, MPI.SUM)
        # MPI knows no 16-bit floats, and a sum in them could overflow.
        narrow = flat.itemsize == 2
        step = min(transport.options.max_count, _WIDENED if narrow else flat.size)
        for begin in range(0, flat.size, max(1, step)):
            piece = flat[begin : begin + step]
            wide = self._widened(piece) if narrow else piece
            request = transport.mpi.Iallreduce(MPI.IN_PLACE, wide, op=mpi_op)
            transport.complete([request], "allreduce")
            with np.errstate(all="ignore"):
                if op == "mean":
                    wide /= wide.dtype.type(transport.size)
                if narrow:
                    piece[:] = wide

    def _widened(self, piece: NDArray[Any]) -> NDArray[np.float32]:
        """Return a copy that the next call overwrites."""
        nbytes = 4 * piece.size
        self._wide = grown(self._wide, nbytes)
        wide = self._wide[:nbytes].view(np.float32)
        wide[:] = piece
        return wide

    def _volume(self, reduction: _Reduction, sent: int) -> tuple[int, int]:
        """Return the bytes sent and received, by the rule of :mod:`paropt_hpc.comm.traffic`."""
        transport, source = self._transport, reduction.source
        volume = ring_volume(source.size, source.dtype.itemsize, transport.rank, transport.size)
        if transport.size > 1 and reduction.algorithm in _COUNTED:
            return sent, sent
        if transport.size > 1 and reduction.algorithm == "ring":
            return sent, volume[1] * sent // max(1, volume[0])
        return volume

    def _runs_in_background(self, algorithm: str) -> bool:
        if self._transport.size == 1 or self._transport.module is None or algorithm == "mpi":
            return False
        from mpi4py import MPI

        return algorithm == "shared" or MPI.Query_thread() == MPI.THREAD_MULTIPLE

    def _background(self) -> Progress:
        """Return the thread that carries out what was started; collective the first time."""
        if self._progress is None:
            transport = self._transport
            assert transport.module is not None
            transport.meet("start")
            self._progress = Progress(transport.module, transport.mpi.Dup(), transport.options)
        return self._progress


def _reducible(
    buffer: NDArray[Any], out: NDArray[Any] | None, op: str
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
