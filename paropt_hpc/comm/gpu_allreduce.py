"""How arrays in the memory of a GPU get to other ranks: three ways.

staged
    Segment by segment through pinned memory of the host, where any collective works on them. While
    one segment is reduced, the next one comes down and the one before goes up again.
MPI
    The library is given addresses on the GPU, where it takes these or the user says so; see
    :mod:`paropt_hpc.comm.gpu_mpi`.
NCCL
    Through CuPy, for ranks that have a GPU each.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.comm.gpu_mpi import through_mpi
from paropt_hpc.comm.ring_allreduce import ring_sum, segment_length
from paropt_hpc.errors import ConfigError, on_every_rank
from paropt_hpc.kernels import device

if TYPE_CHECKING:
    from paropt_hpc.comm.transport import Transport

__all__ = ["STAGE_BYTES", "Gpu", "Staging"]

STAGE_BYTES = 4 << 20
"""Of a segment: long enough for the bandwidth of the bus, short enough that copies overlap."""

_SLOTS = 3  # one comes down, one is reduced, one goes up
_OPS = {"sum": "NCCL_SUM", "mean": "NCCL_SUM", "min": "NCCL_MIN", "max": "NCCL_MAX"}
_TYPES = {"float32": "NCCL_FLOAT32", "float64": "NCCL_FLOAT64"}
_TYPES |= {"int32": "NCCL_INT32", "int64": "NCCL_INT64"}


class _Slot(NamedTuple):
    """Room for a segment; all copies of it are in order on a stream of its own."""

    memory: NDArray[np.uint8]
    stream: device.Stream


class Staging:
    """Pinned memory of one communicator, made when it is first needed."""

    def __init__(self) -> None:
        self._slots: list[_Slot] = []
        self._number = -1  # of the GPU

    @property
    def memory_bytes(self) -> int:
        """Bytes of pinned memory."""
        return sum(slot.memory.size for slot in self._slots)

    def run(
        self,
        source: device.View | None,
        target: device.View | None,
        work: Callable[[NDArray[Any]], None],
    ) -> None:
        """Let `work` read `source`, or write `target`, or both, segment by segment.

        Returns when `target` is written; what computes `source` is waited for first.
        """
        near = source or target
        assert near is not None
        cuts = _cut(near.size, near.dtype.itemsize)
        slots = self._taken(near, len(cuts))
        device.required().synchronize(near.stream)

        def part(number: int) -> NDArray[Any]:
            cut = cuts[number]
            size = (cut.stop - cut.start) * near.dtype.itemsize
            return slots[number % _SLOTS].memory[:size].view(near.dtype)

        def fetch(number: int) -> None:
            if source is not None and number < len(cuts):
                to = part(number)
                address = source.pointer + cuts[number].start * to.itemsize
                slots[number % _SLOTS].stream.copy(to.ctypes.data, address, to.nbytes)

        try:
            fetch(0)
            for number, cut in enumerate(cuts):
                stream, segment = slots[number % _SLOTS].stream, part(number)
                stream.wait()
                fetch(number + 1)
                work(segment)
                if target is not None:
                    address = target.pointer + cut.start * segment.itemsize
                    stream.copy(address, segment.ctypes.data, segment.nbytes)
        finally:
            for slot in slots:
                slot.stream.wait()

    def _taken(self, near: device.View, count: int) -> list[_Slot]:
        """Return slots for that many segments of an array, on its GPU."""
        if not count:
            return []
        number = device.required().device_of(near.pointer)
        size = min(STAGE_BYTES, near.size * near.dtype.itemsize)
        kept = self._slots
        if self._number != number or (kept and kept[0].memory.size < size):
            kept = []
        while len(kept) < min(count, _SLOTS):
            kept.append(_Slot(device.pinned(size, np.uint8), device.Stream(number)))
        self._slots, self._number = kept, number
        return kept


def _cut(n: int, itemsize: int) -> list[slice]:
    length = max(1, STAGE_BYTES // itemsize)
    return [slice(first, min(first + length, n)) for first in range(0, n, length)]


class Gpu:
    """What a communicator keeps for arrays on a GPU."""

    def __init__(self) -> None:
        self.staging = Staging()
        self._below = np.empty(0, np.uint8)  # pinned
        self._above: dict[int, device.DeviceArray] = {}
        self._direct: bool | None = None
        self._nccl: Any = None

    def bring_down(self, message: Any) -> NDArray[np.uint8]:
        """Return the bytes of a message on a GPU; overwritten by the next one."""
        size = device.view(message).size
        if self._below.size < size:
            self._below = device.pinned(size + size // 2, np.uint8)
        return device.as_host(message, self._below[:size])

    def bring_up(
        self, message: NDArray[np.uint8], near: device.View, slot: int = 0
    ) -> device.DeviceArray:
        """Return a message on the GPU where `near` is; overwritten by the slot's next one."""
        cuda = device.required()
        number = cuda.device_of(near.pointer) if near.pointer else cuda.current_device()
        kept = self._above.get(slot)
        if kept is None or kept.size < message.size or kept.number != number:
            kept = device.DeviceArray(message.size + message.size // 2, np.uint8, number)
            self._above[slot] = kept
        cuda.copy_to_device(device.view(kept).pointer, message, near.stream)
        return kept[: message.size]

    def direct(self, transport: Transport) -> bool:
        """Say whether MPI is given addresses on the GPU, by all ranks; collective at first."""
        if self._direct is None:
            try:
                own: bool | str = through_mpi()
            except ConfigError as error:
                own = str(error)
            transport.meet("allreduce")
            told = transport.mpi.allgather(own)
            fault = next((answer for answer in told if isinstance(answer, str)), None)
            if fault is not None:
                raise on_every_rank(ConfigError(fault))
            self._direct = all(told)
        return self._direct

    # Each returns what it has done, and the bytes sent in messages of ours.

    def ring(self, transport: Transport, array: Any, op: str) -> tuple[str, int]:
        """Sum or average floats by an MPI that takes addresses on a GPU, in place."""
        v = device.view(array)
        device.required().synchronize(v.stream)
        segment = segment_length(v.dtype.itemsize, STAGE_BYTES, transport.options.max_count)
        wait = partial(transport.wait, "allreduce")
        sent = ring_sum(transport.mpi, device.vector(array), segment, wait)
        if op == "mean":
            device.divide(array, transport.size)
        return "ring", sent

    def library(self, transport: Transport, array: Any, op: str) -> tuple[str, int]:
        """Let an MPI library that takes addresses on a GPU reduce, in place."""
        from mpi4py import MPI

        v, flat = device.view(array), device.vector(array)
        device.required().synchronize(v.stream)
        mpi_op = {"min": MPI.MIN, "max": MPI.MAX}.get(op, MPI.SUM)
        step = transport.options.max_count
        for begin in range(0, flat.size, step):
            piece = flat[begin : begin + step]
            request = transport.mpi.Iallreduce(MPI.IN_PLACE, piece, op=mpi_op)
            transport.complete([request], "allreduce")
        if op == "mean":
            device.divide(array, transport.size)
        return "mpi", 0

    def nccl(self, transport: Transport, array: Any, op: str) -> tuple[str, int]:
        """Reduce by NCCL, in place; every rank must have a GPU of its own."""
        v = device.view(array)
        if v.dtype.name not in _TYPES:
            raise TypeError(
                f"algorithm 'nccl' takes {', '.join(_TYPES)}, got {v.dtype}; use 'auto'"
            )
        nccl = device.nccl()
        with device.cupy().cuda.Device(device.required().device_of(v.pointer)):
            if self._nccl is None:
                self._nccl = _join(transport, nccl, device.required().current_device())
            kind, reduction = getattr(nccl, _TYPES[v.dtype.name]), getattr(nccl, _OPS[op])
            self._nccl.allReduce(v.pointer, v.pointer, v.size, kind, reduction, v.stream)
        device.required().synchronize(v.stream)
        if op == "mean":
            device.divide(array, transport.size)
        return "nccl", 0


def _join(transport: Transport, nccl: Any, number: int) -> Any:
    """Make NCCL's communicator of all ranks; collective."""
    own = f"{platform.node()} {device.devices()[number].uuid} {int(bool(nccl.available))}"
    transport.meet("allreduce")
    told = transport.mpi.allgather(own)
    if not all(text.endswith("1") for text in told):
        raise on_every_rank(
            ConfigError("algorithm 'nccl' needs NCCL; pip install nvidia-nccl-cu13, or use 'auto'")
        )
    shared = next((text for text in told if told.count(text) > 1), None)
    if shared is not None:
        ranks = [rank for rank, text in enumerate(told) if text == shared]
        raise on_every_rank(
            ConfigError(
                f"algorithm 'nccl' needs a GPU for every rank, but ranks {ranks[0]} and {ranks[1]} "
                f"share one on {shared.split()[0]}; start as many ranks as GPUs, or use 'auto'"
            )
        )
    name = transport.mpi.bcast(nccl.get_unique_id() if transport.rank == 0 else None)
    return nccl.NcclCommunicator(transport.size, name, transport.rank)
