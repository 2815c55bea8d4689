"""The dense all-reduces of a communicator: checked, carried out by an algorithm, and counted."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.comm.buffers import as_numbers, pair_on_gpu
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


class AllReduce:
    """Reduces the buffers of one communicator, in the foreground or in the background.

    The arguments of `run` and `start` are those of :meth:`Communicator.allreduce`.
    """

    def __init__(self, transport: Transport, choice: Choice) -> None:
        self._transport = transport
        self._choice = choice
        self._progress: Progress | None = None

    def run(
        self, buffer: NDArray[Any], op: str, algorithm: str, out: NDArray[Any] | None = None
    ) -> None:
        """Reduce a buffer, in place or into `out`."""
        if device.is_device(buffer):
            self._run_on_gpu(buffer, op, algorithm, out)
            return
        transport = self._transport
        start = transport.begin()
        flat, result = _reducible(buffer, out, op)
        chosen = self._choice.choose(algorithm, flat.nbytes)
        transport.agree("allreduce", f"{op} of {flat.size} {flat.dtype}, {algorithm}")
        sent = self._reduce(chosen, flat, result, op)
        transport.finish("allreduce", start, *self._volume(flat, chosen, sent))

    def start(
        self, buffer: NDArray[Any], op: str, algorithm: str, out: NDArray[Any] | None = None
    ) -> Request:
        """Begin to reduce a buffer; see :meth:`Communicator.start`."""
        if device.is_device(buffer):
            self._run_on_gpu(buffer, op, algorithm, out)
            return Request(None, lambda waited: None)
        transport = self._transport
        start = transport.begin()
        flat, result = _reducible(buffer, out, op)
        chosen = self._choice.choose(algorithm, flat.nbytes)
        transport.agree("start", f"{op} of {flat.size} {flat.dtype}, {algorithm}")
        job = None
        if self._runs_in_background(chosen):
            job = self._background().start(chosen, flat, result, op)
        else:
            self._reduce(chosen, flat, result, op)
        transport.leave()
        volume = ring_volume(flat.size, flat.itemsize, transport.rank, transport.size)
        transport.traffic.record("start", *volume, time.perf_counter() - start)

        def finish(waited: float) -> None:
            # Names the arrays, so that they live as long as the thread may use them.
            assert flat.size == result.size
            transport.traffic.record("start", 0, 0, waited, waited, calls=0)

        return Request(job, finish)

    @property
    def memory_bytes(self) -> int:
        """Bytes of segments of the thread."""
        return 0 if self._progress is None else self._progress.lane.memory()

    def free(self) -> None:
        """Finish what was started, then give everything back; collective."""
        if self._progress is not None:
            self._progress.free()
            self._progress = None

    def _reduce(self, algorithm: str, flat: NDArray[Any], result: NDArray[Any], op: str) -> int:
        """Reduce in the foreground; return the bytes sent in messages of ours."""
        transport = self._transport
        if transport.size > 1 and algorithm != "mpi" and transport.lane is not None:
            reduce = transport.lane.native.allreduce
            return int(transport.natively(reduce, algorithm, flat, result, op))
        if flat is not result:
            result[:] = flat
        if transport.size == 1:
            return 0
        if algorithm == "mpi":
            self._library(result, op)
            return 0
        options = transport.options
        return run_twin(transport.mpi, result, op, options.segment_bytes, options.max_count)

    def _run_on_gpu(self, buffer: Any, op: str, algorithm: str, out: Any) -> None:
        """Reduce an array on a GPU; see :mod:`paropt_hpc.comm.gpu_allreduce`."""
        transport = self._transport
        start = transport.begin()
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
                sent += self._reduce(chosen, segment, segment, op)

            gpu.staging.run(source, target, reduce_segment)
        else:
            if source.size and target.pointer != source.pointer:
                device.copy(source, target)
            chosen, sent = reduce(transport, buffer if out is None else out, op)
        transport.finish("allreduce", start, *self._volume(source, chosen, sent))

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
        # MPI knows no 16-bit floats, and a sum in them could overflow.
        wide = flat.astype(np.float32) if flat.itemsize == 2 else flat
        mpi_op = {"min": MPI.MIN, "max": MPI.MAX}.get(op, MPI.SUM)
        step = transport.options.max_count
        for begin in range(0, wide.size, step):
            piece = wide[begin : begin + step]
            transport.complete(
                transport.mpi.Iallreduce(MPI.IN_PLACE, piece, op=mpi_op), "allreduce"
            )
        with np.errstate(all="ignore"):
            if op == "mean":
                wide /= wide.dtype.type(transport.size)
            if wide is not flat:
                flat[:] = wide

    def _volume(
        self, flat: NDArray[Any] | device.View, algorithm: str, sent: int
    ) -> tuple[int, int]:
        """Return the bytes sent and received, by the rule of :mod:`paropt_hpc.comm.traffic`."""
        transport = self._transport
        volume = ring_volume(flat.size, flat.dtype.itemsize, transport.rank, transport.size)
        if transport.size > 1 and algorithm in _COUNTED:
            return sent, sent
        if transport.size > 1 and algorithm == "ring":
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
