"""What every collective asks of an array before the first byte is sent.

Nothing here copies: an array that a collective cannot use as it is gets refused, because
a result written into a silent copy would never reach the caller.
"""

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from paropt_hpc.kernels import device

__all__ = [
    "DTYPES",
    "FLOATS",
    "as_bytes",
    "as_floats",
    "as_numbers",
    "grown",
    "numbers_on_gpu",
    "pair_on_gpu",
]

DTYPES = tuple(
    np.dtype(dtype)
    for dtype in (np.float32, np.float64, np.float16, ml_dtypes.bfloat16, np.int32, np.int64)
)
"""What can be reduced. The 16-bit floats are summed as float32 and rounded once."""

FLOATS = DTYPES[:2]
"""What can be mixed with weights."""


def as_floats(buffer: object) -> NDArray[Any]:
    """View a float32 or float64 buffer as a vector that can be written in place.

    As :func:`as_numbers`, for what works on these two types only.
    """
    return _as_vector(buffer, "buffer", FLOATS, True)


def as_numbers(buffer: object, name: str = "buffer", *, writable: bool = True) -> NDArray[Any]:
    """View a buffer that can be reduced as a vector.

    Parameters
    ----------
    buffer : ndarray, any shape, contiguous, aligned
        float32, float64, float16, bfloat16 (of ml_dtypes), int32 or int64.
    name : str
        For the error texts.
    writable : bool
        Whether it must be writable.

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
    return _as_vector(buffer, name, DTYPES, writable)


def numbers_on_gpu(
    array: object,
    name: str = "buffer",
    *,
    writable: bool = True,
    dtypes: tuple[np.dtype[Any], ...] = DTYPES,
) -> device.View:
    """Return what an array on a GPU, of one of `dtypes`, says of itself; raise as `as_numbers`."""
    if not device.is_device(array):
        raise TypeError(f"{name} must be on the GPU as buffer is, got {type(array).__name__}")
    view = device.view(array)
    _check_dtype(view.dtype, name, dtypes)
    if not view.contiguous:
        raise ValueError(f"{name} must be contiguous, got strides; pass a copy, and keep it")
    if writable and not view.writable:
        raise ValueError(f"{name} must be writable, got a read-only array; pass a copy")
    return view


def pair_on_gpu(
    buffer: object, out: object | None, dtypes: tuple[np.dtype[Any], ...] = DTYPES
) -> tuple[device.View, device.View]:
    """Return what a collective reads and what it writes: `buffer` too where there is no `out`."""
    source = numbers_on_gpu(buffer, writable=out is None, dtypes=dtypes)
    if out is None:
        return source, source
    target = numbers_on_gpu(out, "out", dtypes=dtypes)
    if (target.dtype, target.shape) != (source.dtype, source.shape):
        raise ValueError(
            f"out must be as buffer, {source.shape} {source.dtype}, "
            f"got {target.shape} {target.dtype}"
        )
    distance = abs(target.pointer - source.pointer)
    if 0 < distance < source.size * source.dtype.itemsize:
        raise ValueError("out must be the same memory as buffer or none of it; they overlap")
    return source, target


def as_bytes(buffer: object, name: str = "buffer", *, writable: bool = True) -> NDArray[np.uint8]:
    """View a contiguous array of plain numbers as bytes; `name` is for the error texts."""
    array = _as_array(buffer, name)
    if array.dtype.hasobject:
        raise TypeError(f"{name} must hold plain numbers, got dtype {array.dtype}")
    if writable:
        _check_writable(array, name)
    return array.reshape(-1).view(np.uint8)


def grown(scratch: NDArray[np.uint8], nbytes: int) -> NDArray[np.uint8]:
    """Return `scratch` if it holds `nbytes`, else a new one with room to spare."""
    if scratch.size >= nbytes:
        return scratch
    return np.empty(max(nbytes, scratch.size + scratch.size // 2), dtype=np.uint8)


def _as_vector(
    buffer: object, name: str, dtypes: tuple[np.dtype[Any], ...], writable: bool
) -> NDArray[Any]:
    array = _as_array(buffer, name)
    _check_dtype(array.dtype, name, dtypes)
    if writable:
        _check_writable(array, name)
    return array.reshape(-1)


def _check_dtype(dtype: np.dtype[Any], name: str, dtypes: tuple[np.dtype[Any], ...]) -> None:
    # Compared as dtypes, so that big-endian numbers are refused too.
    if dtype not in dtypes:
        *others, last = map(str, dtypes)
        known = f"{', '.join(others)} or {last}" if others else last
        raise TypeError(f"{name} must be {known}, got {dtype}; convert it with astype")


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


def _check_writable(array: NDArray[Any], name: str) -> None:
    if not array.flags.writeable:
        raise ValueError(f"{name} must be writable, got a read-only array; pass a copy")
