"""What every kernel demands of its arguments, so that nothing is ever copied silently."""

import operator
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ALL_FLOATS",
    "FLOATS",
    "MAX_ENTRIES",
    "check_array",
    "check_counts",
    "check_separate",
    "to_bytes",
]

FLOATS = (np.dtype(np.float32), np.dtype(np.float64))
ALL_FLOATS = (*FLOATS, np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))
MAX_ENTRIES = 2**40


def check_array(
    name: str,
    array: NDArray[Any],
    dtypes: tuple[np.dtype[Any], ...],
    *,
    writable: bool = False,
    length: int | None = None,
) -> None:
    """Raise unless `array` is 1-d, of one of `dtypes`, contiguous and aligned.

    Raises
    ------
    TypeError
        If it is no array, or its dtype is another one.
    ValueError
        If its shape, layout or writability is wrong.
    """
    if type(array) is np.ndarray and array.dtype in dtypes and array.ndim == 1:
        # The flags at once: contiguous, aligned, writable. Small kernels feel every lookup.
        needed = 0x501 if writable else 0x101
        if array.flags.num & needed == needed and (length is None or array.size == length):
            return
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name} must be a numpy array, got {type(array).__name__}")
    if isinstance(array, np.ma.MaskedArray):
        raise TypeError(f"{name} must not be a masked array, whose mask would do nothing; fill it")
    if array.dtype not in dtypes:
        wanted = " or ".join(str(dtype) for dtype in dtypes)
        raise TypeError(f"{name} must be {wanted}, got {array.dtype}; convert it with astype")
    if array.ndim != 1:
        raise ValueError(
            f"{name} must have one dimension, got shape {array.shape}; pass {name}.reshape(-1)"
        )
    flags = array.flags
    if not flags.c_contiguous:
        raise ValueError(
            f"{name} must be contiguous, got a stride of {array.strides[0]} bytes; pass a copy"
        )
    if not flags.aligned:
        raise ValueError(f"{name} must be aligned to {array.dtype.alignment} bytes; pass a copy")
    if writable and not flags.writeable:
        raise ValueError(f"{name} must be writable, got a read-only array; pass a copy")
    if length is not None and array.size != length:
        raise ValueError(f"{name} must have {length} entries, got {array.size}")


def check_counts(n: int, k: int = 0) -> tuple[int, int]:
    """Return n and k as plain integers with 0 <= k <= n <= 2**40, or raise."""
    try:
        n, k = operator.index(n), operator.index(k)
    except TypeError:
        raise TypeError(f"n and k must be integers, got n = {n!r} and k = {k!r}") from None
    if not 0 <= n <= MAX_ENTRIES:
        raise ValueError(f"n must be in [0, 2**40], got {n}")
    if not 0 <= k <= n:
        raise ValueError(f"k must be in [0, {n}], got {k}")
    return n, k


def check_separate(name: str, array: NDArray[Any], other: str, array2: NDArray[Any]) -> None:
    """Raise ValueError if two contiguous arrays share memory."""
    if np.may_share_memory(array, array2):  # exact for contiguous arrays
        raise ValueError(f"{name} and {other} must not overlap; pass a copy")


def to_bytes(name: str, data: Any) -> NDArray[np.uint8]:
    """Return a bytes-like object or uint8 array as a uint8 array, without a copy."""
    if not isinstance(data, np.ndarray):
        try:
            data = np.frombuffer(data, np.uint8)
        except (TypeError, ValueError, BufferError, AttributeError):
            raise TypeError(
                f"{name} must be bytes or a uint8 array, got {type(data).__name__}"
            ) from None
    check_array(name, data, (np.dtype(np.uint8),))
    return data  # type: ignore[no-any-return]
