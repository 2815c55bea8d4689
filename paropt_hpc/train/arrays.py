"""What strategies and optimizers do to whole vectors, in place and without a second vector.

A vector is worked on in blocks that stay in the cache: that is faster for long ones, and a
scratch of one block is all the memory it takes.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.kernels import device
from paropt_hpc.kernels.device import array_module as namespace

__all__ = [
    "BLOCK",
    "Array",
    "Scratch",
    "add_scaled",
    "all_finite",
    "blocks",
    "lift",
    "like",
    "lower",
    "namespace",
    "norm",
    "placed",
    "room_for",
    "to_host",
]

# NumPy and CuPy arrays share the operations used here, but no common type.
Array = Any

BLOCK = 65536
"""Entries of a block: with two or three operands still within a second-level cache."""


def to_host(array: Array, room: NDArray[Any] | None = None) -> NDArray[Any]:
    """Return an array of NumPy's with the same values: a copy of one on a GPU, in `room` or new."""
    if isinstance(array, np.ndarray):
        return array
    host: NDArray[Any] = array.get() if room is None else device.as_host(array, room)
    return host


def room_for(vector: Array) -> NDArray[Any] | None:
    """Return pinned memory for a vector on a GPU to come down to; None for one of the host."""
    if isinstance(vector, np.ndarray):
        return None
    return device.pinned(vector.size, vector.dtype)


def lower(vector: Array, host: NDArray[Any]) -> None:
    """Overwrite a vector of the host with another one, which may be the same or on a GPU."""
    if not isinstance(vector, np.ndarray):
        device.as_host(vector, host)
    elif vector is not host:
        host[:] = vector


def lift(host: NDArray[Any], vector: Array) -> None:
    """Overwrite a vector, which may be on a GPU, with one of the host, which may be the same."""
    if not isinstance(vector, np.ndarray):
        device.put(host, vector)
    elif vector is not host:
        vector[:] = host


def like(host: NDArray[Any], array: Array) -> Array:
    """Return an array of the host where `array` is: itself, or a copy on the GPU."""
    return host if isinstance(array, np.ndarray) else namespace(array).asarray(host)


def placed(state: dict[str, Any], place: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a saved state whose vectors are put elsewhere; numbers stay as they are."""
    return {
        name: placed(value, place)
        if isinstance(value, dict)
        else place(value)
        if getattr(value, "ndim", 0) > 0
        else value
        for name, value in state.items()
    }


def blocks(array: Array) -> tuple[slice, ...]:
    """Return slices that cover a vector; one for a GPU, whose cost is that of each call."""
    on_host = type(array).__module__.partition(".")[0] == "numpy"
    return _cut(array.size, BLOCK if on_host else max(1, array.size))


@functools.lru_cache(maxsize=64)
def _cut(n: int, block: int) -> tuple[slice, ...]:
    return tuple(slice(first, min(first + block, n)) for first in range(0, n, block))


class Scratch:
    """Work space of one block, made when it is first needed."""

    def __init__(self) -> None:
        self._kept: Array | None = None

    def like(self, part: Array) -> Array:
        """Return a vector of the size and type of `part`; what was in it is lost."""
        return self.take(part.size, part.dtype, namespace(part))

    def take(self, n: int, dtype: Any, xp: Any = np) -> Array:
        """Return a vector of `n` entries of a type; what was in it is lost."""
        kept = self._kept
        if kept is None or kept.size < n or kept.dtype != dtype:
            kept = self._kept = xp.empty(n, dtype)
        return kept[:n]


def add_scaled(out: Array, vector: Array, factor: float, scratch: Scratch) -> None:
    """Add ``factor * vector`` to `out` in place; the product is rounded before the sum."""
    multiply = namespace(out).multiply
    for part in blocks(out):
        target = out[part]
        product = scratch.like(target)
        multiply(vector[part], factor, out=product)
        target += product


def norm(vector: Array) -> float:
    """Return the Euclidean norm.

    Squares are summed in the vector's type within a block and in float64 over the blocks, so
    that the error does not grow with the length. Where they overflow, all is done in float64.
    """
    xp = namespace(vector)
    with np.errstate(over="ignore", invalid="ignore"):
        squares = math.fsum(float(xp.dot(vector[part], vector[part])) for part in blocks(vector))
    if math.isfinite(squares) or not all_finite(vector):
        return math.sqrt(squares)
    largest = float(abs(vector).max())
    return largest * float(xp.linalg.norm(vector.astype("float64") / largest))


def all_finite(vector: Array) -> bool:
    """Say whether there is neither NaN nor infinity in a vector."""
    xp = namespace(vector)
    with np.errstate(over="ignore", invalid="ignore"):
        for part in blocks(vector):
            entries = vector[part]
            # A square that overflows is no proof; one that does not leaves no doubt.
            squares = float(xp.dot(entries, entries))
            if not math.isfinite(squares) and not xp.isfinite(entries).all():
                return False
    return True
