"""Wires: each turns the gradients of all ranks into their mean, by way of some bytes.

A dense wire takes a gradient in buckets, from the last to the first, as the backward pass of a
model finishes them, and moves them while the pass goes on. The others need all of it.
"""

import os
from abc import ABC, abstractmethod
from itertools import pairwise
from typing import Any

import ml_dtypes
import numpy as np

from paropt_hpc import CORES
from paropt_hpc.comm import Communicator, remember_ranges, remembered_ranges, sparse_allreduce
from paropt_hpc.comm.request import Request
from paropt_hpc.compress import Compressor, RandomK
from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels import device, quantize
from paropt_hpc.train.arrays import (
    Array,
    Scratch,
    all_finite,
    blocks,
    namespace,
    norm,
    to_host,
)
from paropt_hpc.train.loss_scale import LossScale

__all__ = [
    "BUCKET_BYTES",
    "AlignedWire",
    "DenseWire",
    "HalfWire",
    "MessageWire",
    "Wire",
    "clip",
    "has_spare_core",
]

BUCKET_BYTES = 4 << 20
"""Of a bucket: long enough for full bandwidth, short enough that much of the rest overlaps."""

HALVES = {"float16": np.dtype(np.float16), "bfloat16": np.dtype(ml_dtypes.bfloat16)}
_INFINITY = {kind: int(np.array(np.inf, dtype).view(np.uint16)) for kind, dtype in HALVES.items()}


class Wire(ABC):
    """What `AllReduce` asks of the way a gradient takes.

    Attributes
    ----------
    buckets : tuple of slice
        Parts in which a gradient may be sent, the last one first.
    """

    def __init__(self, comm: Communicator) -> None:
        self.comm = comm
        self.buckets: tuple[slice, ...] = ()

    def start(self, n: int, dtype: np.dtype[Any], xp: Any = np) -> None:
        """Make the buffers for gradients of `n` entries, arrays of `xp`; collective."""
        del dtype, xp
        self.buckets = (slice(0, n),)

    @abstractmethod
    def send(self, gradient: Array, bucket: slice) -> None:
        """Take over a bucket, in the order of `buckets`, which is then not to be touched."""

    @abstractmethod
    def finish(self, gradient: Array, *, check: bool) -> bool:
        """Wait until all buckets sent are the mean over all ranks; collective.

        With `check`, return False on all ranks, and leave what error feedback keeps as it was,
        if there was a NaN or an infinity on any. What is in `gradient` is then undefined.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank, no copy; local."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027  (some have none)
        """Take over a saved state of this rank; local."""


class DenseWire(Wire):
    """All entries, in the type they have.

    Parameters
    ----------
    comm : Communicator
    algorithm : str
        See `Communicator.allreduce`.
    bucket_bytes : int
        Of a bucket, when there are several.
    overlap : bool, optional
        Whether to cut gradients into buckets, which a thread moves in the background. Default:
        whether there are two cores for every rank.
    """

    def __init__(
        self,
        comm: Communicator,
        algorithm: str = "auto",
        bucket_bytes: int = BUCKET_BYTES,
        overlap: bool | None = None,
    ) -> None:
        super().__init__(comm)
        if bucket_bytes < 1:
            raise ConfigError(f"bucket_bytes must be at least 1, got {bucket_bytes}")
        self.algorithm = algorithm
        self.bucket_bytes = bucket_bytes
        self.overlap = overlap
        self._requests: list[tuple[slice, Request]] = []

    def start(self, n: int, dtype: np.dtype[Any], xp: Any = np) -> None:
        """Cut gradients into buckets of about equal size; collective."""
        wanted = has_spare_core(self.comm) if self.overlap is None else self.overlap
        wanted = wanted and xp is np  # what comes from a GPU is not moved in the background
        most = max(1, self.bucket_bytes // dtype.itemsize)
        count = max(1, -(-n // most)) if wanted and self.comm.size > 1 else 1
        cuts = [n * i // count for i in range(count + 1)]
        self.buckets = tuple(slice(*ends) for ends in pairwise(cuts))[::-1]

    def send(self, gradient: Array, bucket: slice) -> None:
        """Take over a bucket; collective."""
        self._reduce(gradient[bucket], bucket)

    def _reduce(self, entries: Array, bucket: slice) -> None:
        if len(self.buckets) == 1:
            self.comm.allreduce(entries, "mean", algorithm=self.algorithm)
        else:
            request = self.comm.start(entries, "mean", algorithm=self.algorithm)
            self._requests.append((bucket, request))

    def finish(self, gradient: Array, *, check: bool) -> bool:
        """Wait until all buckets are the mean over all ranks; collective."""
        for _, request in self._requests:
            request.wait()
        self._requests.clear()
        # Any NaN or infinity has reached the mean on all ranks.
        return not check or all_finite(gradient)


class HalfWire(DenseWire):
    """All entries in 16 bits, which halves the bytes; each mean is rounded once.

    Parameters
    ----------
    comm, algorithm, bucket_bytes, overlap
        As of `DenseWire`.
    kind : {"float16", "bfloat16"}
        Of the entries on their way.
    scaler : LossScale, optional
        For float16: gradients are multiplied by it before they are rounded, and divided again.
    """

    def __init__(
        self,
        comm: Communicator,
        kind: str,
        scaler: LossScale | None = None,
        algorithm: str = "auto",
        bucket_bytes: int = BUCKET_BYTES,
        overlap: bool | None = None,
    ) -> None:
        super().__init__(comm, algorithm, bucket_bytes, overlap)
        if kind not in HALVES:
            raise ConfigError(f"wire must be full, float16 or bfloat16, got {kind!r}")
        self.kind = kind
        self.scaler = scaler
        self._narrow, self._wide = Scratch(), Scratch()

    def send(self, gradient: Array, bucket: slice) -> None:
        """Take over a bucket, rounded; collective."""
        entries = gradient[bucket]
        if self.scaler is not None:
            with np.errstate(over="ignore", invalid="ignore"):
                entries *= self.scaler.scale
        halves = _halves(entries)
        for part in blocks(entries):  # upwards: what is overwritten has been read
            values = self._wide.take(entries[part].size, np.float32, namespace(entries))
            with np.errstate(over="ignore"):
                values[:] = entries[part]
            encoded = quantize.encode(values, self.kind, out=halves[part].view(np.uint8))
            if encoded.saturated:  # and so finite: the other ranks must hear of it
                halves[part.start] = _INFINITY[self.kind]
        on_host = isinstance(halves, np.ndarray)  # elsewhere no library need know bfloat16
        typed = halves if on_host else device.vector(halves)
        self._reduce(typed.view(HALVES[self.kind]), bucket)

    def finish(self, gradient: Array, *, check: bool) -> bool:
        """Wait for the means, and widen them in place; collective."""
        super().finish(gradient, check=False)
        for bucket in self.buckets:
            self._widen(gradient[bucket])
        finite = not check or all_finite(gradient)
        if self.scaler is not None:
            with np.errstate(invalid="ignore", over="ignore"):
                gradient *= 1 / self.scaler.scale
            self.scaler.update(finite)
        return finite

    def _widen(self, entries: Array) -> None:
        halves = _halves(entries)
        for part in reversed(blocks(entries)):  # downwards, for the same reason
            narrow = self._narrow.take(halves[part].size, np.uint16, namespace(entries))
            narrow[:] = halves[part]
            wide = self._wide.take(narrow.size, np.float32, namespace(entries))
            entries[part] = quantize.decode(narrow.view(np.uint8), self.kind, wide.size, out=wide)

    def state_dict(self) -> dict[str, Any]:
        """Return the loss scale; equal on all ranks."""
        return {} if self.scaler is None else {"loss_scale": self.scaler.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved loss scale."""
        if self.scaler is not None:
            self.scaler.load_state_dict(state["loss_scale"])


def _halves(entries: Array) -> Array:
    """Return the place of a bucket's 16-bit values, as bits: at the start of its own memory."""
    return entries.view(np.uint16)[: entries.size]


class _CompressedWire(Wire):
    """What a compressor picks; it looks at all of a gradient.

    Parameters
    ----------
    comm : Communicator
    compressor : Compressor
    clip_norm : float, optional
        Longest gradient of this rank.
    """

    compressor: Compressor

    def __init__(self, comm: Communicator, clip_norm: float | None = None) -> None:
        super().__init__(comm)
        self.clip_norm = clip_norm

    def start(self, n: int, dtype: np.dtype[Any], xp: Any = np) -> None:
        """Make the buffers of the compressor."""
        super().start(n, dtype, xp)
        self.compressor.start(n, dtype, xp)

    def send(self, gradient: Array, bucket: slice) -> None:
        """Leave it for `finish`."""

    def finish(self, gradient: Array, *, check: bool) -> bool:
        """Compress, exchange, add up; collective."""
        # Before the residual takes the gradient in: it could not give it back unrounded.
        if check and not self.comm.gather_scalars(all_finite(gradient)).all():
            return False
        if self.clip_norm is not None:
            clip(gradient, self.clip_norm)
        self._exchange(gradient)
        return True

    @abstractmethod
    def _exchange(self, gradient: Array) -> None:
        """Replace each rank's gradient by the mean of what the ranks send."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the compressor."""
        return {"compressor": self.compressor.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state of the compressor."""
        self.compressor.load_state_dict(state["compressor"])


class MessageWire(_CompressedWire):
    """Messages that differ from rank to rank.

    Parameters
    ----------
    comm : Communicator
    compressor : Compressor
    scheme : str
        See `paropt_hpc.comm.sparse_allreduce`.
    clip_norm : float, optional
        Longest gradient of this rank.
    """

    def __init__(
        self,
        comm: Communicator,
        compressor: Compressor,
        scheme: str = "auto",
        clip_norm: float | None = None,
    ) -> None:
        super().__init__(comm, clip_norm)
        self.compressor = compressor
        self.scheme = scheme

    def start(self, n: int, dtype: np.dtype[Any], xp: Any = np) -> None:
        """Make the buffers of the compressor; forget how vectors of this length were cut."""
        super().start(n, dtype, xp)
        remember_ranges(self.comm, n, None)

    def _exchange(self, gradient: Array) -> None:
        message = self.compressor.compress(gradient)
        result = sparse_allreduce(self.comm, message, gradient, self.scheme)
        self.compressor.keep_back(result.dropped_indices, result.dropped_values)
        # After the sum, so that its bits do not depend on the scheme that was chosen.
        if self.comm.size > 1:
            gradient *= 1 / self.comm.size

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the compressor and, where it decides what is kept, of the sum."""
        bounds = remembered_ranges(self.comm, self.compressor.residual.size)
        kept = self.scheme == "reselect" and bounds is not None
        return super().state_dict() | ({"ranges": bounds} if kept else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state."""
        super().load_state_dict(state)
        bounds = to_host(state["ranges"]) if "ranges" in state else None
        remember_ranges(self.comm, self.compressor.residual.size, bounds)


class AlignedWire(_CompressedWire):
    """Values at positions that all ranks agree on, summed like a short dense vector.

    Parameters
    ----------
    comm : Communicator
    compressor : RandomK
    algorithm : str
        See `Communicator.allreduce`.
    clip_norm : float, optional
        Longest gradient of this rank.
    """

    def __init__(
        self,
        comm: Communicator,
        compressor: RandomK,
        algorithm: str = "auto",
        clip_norm: float | None = None,
    ) -> None:
        super().__init__(comm, clip_norm)
        self.compressor: RandomK = compressor
        self.algorithm = algorithm

    def _exchange(self, gradient: Array) -> None:
        values = self.compressor.take(gradient)
        self.comm.allreduce(values, "mean", algorithm=self.algorithm)
        self.compressor.put(values, gradient)


def clip(gradient: Array, longest: float) -> None:
    """Scale a gradient down to this Euclidean norm if it is longer, in place."""
    length = norm(gradient)
    if length > longest:
        gradient *= longest / length


def has_spare_core(comm: Communicator) -> bool:
    """Say whether every rank has a second core, for a thread in the background; collective."""
    cores = os.cpu_count() or 1
    bound = len(CORES)
    # Ranks that are not bound to cores share those of their node.
    own = bound if bound < cores else cores // comm.node_size
    return bool((comm.gather_scalars(own) >= 2).all())
