"""What every collective asks of an array before the first byte is sent.

Nothing here copies: an array that a collective cannot use as it is gets refused, because
a result written into a silent copy would never reach the caller.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["as_bytes", "as_floats", "grown"]


def as_floats(buffer: object) -> NDArray[Any]:
    """View a float32 or float64 buffer as a vector that can be written in place.

    Parameters
    ----------
    buffer : ndarray, any shape, float32 or float64, contiguous, writable

    Returns
    -------
    ndarray, shape (n,)
        A view, never a copy.

    Raises
    ------
    TypeError
        Not an array, or of another dtype.
    ValueError
        Strided, misaligned or read-only.
    """
    array = _as_array(buffer, "buffer")
    # Compared as dtypes, so that big-endian floats are refused too.
    if array.dtype != np.float32 and array.dtype != np.float64:
        raise TypeError(
            f"buffer must be float32 or float64, got {array.dtype}; convert it with astype"
        )
    _check_writable(array)
    return array.reshape(-1)


def as_bytes(buffer: object, name: str = "buffer", *, writable: bool = True) -> NDArray[np.uint8]:
    """View a contiguous array of plain numbers as bytes; `name` is for the error texts."""
    array = _as_array(buffer, name)
    if array.dtype.hasobject:
        raise TypeError(f"{name} must hold plain numbers, got dtype {array.dtype}")
    if writable:
        _check_writable(array)
    return array.reshape(-1).view(np.uint8)


def grown(scratch: NDArray[np.uint8], nbytes: int) -> NDArray[np.uint8]:
    """Return `scratch` if it holds `nbytes`, else a new one with room to spare."""
    if scratch.size >= nbytes:
        return scratch
    return np.empty(max(nbytes, scratch.size + scratch.size // 2), dtype=np.uint8)


def _as_array(buffer: object, name: str) -> NDArray[Any]:
    if not isinstance(buffer, np.ndarray):
        raise TypeError(f"{name} must be a numpy.ndarray, got {type(buffer).__name__}")
    if not buffer.flags.c_contiguous:
        raise ValueError(
            f"{name} must be contiguous, got strides {buffer.strides} for shape {buffer.shape}; "
            "pass numpy.ascontiguousarray(...) and keep that array"
        )
    if not buffer.flags.aligned:
        raise ValueError(f"{name} must be aligned to its {buffer.itemsize}-byte elements; copy it")
    return buffer


def _check_writable(array: NDArray[Any]) -> None:
    if not array.flags.writeable:
        raise ValueError("buffer must be writable, got a read-only array; pass a copy")
