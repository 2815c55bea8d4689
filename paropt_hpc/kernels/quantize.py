"""Values in fewer bits, for a sparse message or a dense vector, with the rounding error at hand.

The bytes are described in ``docs/wire-format.md``.
"""

import enum
import operator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.errors import MessageError
from paropt_hpc.kernels.checks import MAX_ENTRIES
from paropt_hpc.kernels.memory import memory_of

__all__ = ["Quantized", "ValueType", "decode", "encode", "encoded_bytes"]

_FLOAT32, _UINT8 = np.dtype(np.float32), np.dtype(np.uint8)
_GROUP = 256
_BITS = (0, 32, 64, 16, 16, 8, 4, 1)


class ValueType(enum.IntEnum):
    """What a value is sent as; the numbers stand in the wire format."""

    FLOAT32 = 1
    FLOAT64 = 2
    #: to nearest; a finite value beyond the range becomes the largest finite number
    FLOAT16 = 3
    #: the same
    BFLOAT16 = 4
    #: to nearest of 255 steps; 256 values share a scale
    INT8 = 5
    #: to one of 15 steps at random, right on average; 256 values share a scale
    QSGD4 = 6
    #: the sign alone; 256 values share a magnitude, which is their mean
    SIGN = 7


_BY_NAME = {kind.name.lower(): kind for kind in ValueType}


class Quantized(NamedTuple):
    """Encoded values."""

    #: the bytes, uint8
    data: NDArray[np.uint8]
    #: how they are encoded
    type: ValueType
    #: number of values
    size: int
    #: how many finite values were beyond the range of float16 or bfloat16
    saturated: int
    #: how many values were infinite or NaN
    nonfinite: int


def resolve(value_type: ValueType | str) -> ValueType:
    """Return the value type of a name in lower case."""
    if isinstance(value_type, ValueType):
        return value_type
    found = _BY_NAME.get(value_type) if isinstance(value_type, str) else None
    if found is None:
        raise ValueError(f"value_type must be one of {', '.join(_BY_NAME)}, got {value_type!r}")
    return found


def encoded_bytes(value_type: ValueType | str, count: int) -> int:
    """Return the number of bytes of `count` values."""
    found, count = resolve(value_type), operator.index(count)
    if not 0 <= count <= MAX_ENTRIES:
        raise ValueError(f"count must be in [0, 2**40], got {count}")
    scales = -(-count // _GROUP) * 4 if found >= ValueType.INT8 else 0
    return scales + -(-count * _BITS[found] // 8)


def encode(
    values: NDArray[np.float32],
    value_type: ValueType | str,
    residual: NDArray[np.float32] | None = None,
    *,
    seed: int = 0,
    out: NDArray[np.uint8] | None = None,
) -> Quantized:
    """Encode values, or residual + values with error feedback.

    Parameters
    ----------
    values : ndarray, shape (count,), float32
        Never modified.
    value_type : ValueType or str
        Any but the two plain ones.
    residual : ndarray, shape (count,), float32, optional
        Overwritten by (residual + values) - decoded, in float32 arithmetic. Both 16-bit types make
        the subtraction exact unless a value saturates; elsewhere it is rounded once. For the values
        of a sparse message pass zeros: what comes back belongs into the residual at their indices.
    seed : int
        Of the random rounding of ``qsgd4``, taken modulo 2**64; to be another one in every step and
        on every rank. The mean of a value over seeds is right to 2**-13 of a step.
    out : ndarray, uint8, optional
        At least ``encoded_bytes(value_type, count)`` bytes.

    Returns
    -------
    Quantized
        The bytes (a view of `out` when that is given), and how many values saturated or are not
        finite.

    Raises
    ------
    TypeError, ValueError
        If an array has the wrong dtype, shape or layout. Nothing has been written then.

    Notes
    -----
    Infinite and NaN values stay non-finite as float16 and bfloat16; elsewhere they make all 256
    values that share their scale NaN, so that a receiver cannot overlook them. The residual keeps
    the finite ones of these as they are, and 0 in place of the others.

    References
    ----------
    .. [1] D. Alistarh et al., "QSGD: communication-efficient SGD via gradient quantization and
       encoding", NeurIPS 2017 (``qsgd4``, with the largest magnitude as the norm).
    .. [2] S. P. Karimireddy et al., "Error feedback fixes SignSGD and other gradient compression
       schemes", ICML 2019 (``sign``).
    """
    found = resolve(value_type)
    if found <= ValueType.FLOAT64:
        raise ValueError(
            f"value_type must be a quantised one, got {found.name.lower()}; send plain values as "
            "they are"
        )
    memory = memory_of(values)
    count = memory.check_array("values", values, (_FLOAT32,)).size
    if residual is not None:
        memory.check_array("residual", residual, (_FLOAT32,), writable=True, length=count)
        memory.check_separate("residual", residual, "values", values)
    size = encoded_bytes(found, count)
    if out is None:
        out = memory.empty(size, np.uint8)
    room = memory.check_array("out", out, (_UINT8,), writable=True).size
    if room < size:
        raise ValueError(f"out must have at least {size} bytes, got {room}")
    memory.check_separate("out", out, "values", values)
    if residual is not None:
        memory.check_separate("out", out, "residual", residual)
    data, seed = out[:size], operator.index(seed) % 2**64
    counts = memory.kernels().quantize(values, residual, int(found), seed, data)
    return Quantized(data, found, count, *counts)


def decode(
    data: Any,
    value_type: ValueType | str,
    count: int,
    out: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    """Decode `count` values from exactly the bytes of `encode`.

    Parameters
    ----------
    data : bytes-like or ndarray of uint8
        Not trusted.
    value_type : ValueType or str
        As it was for `encode`.
    count : int
        Number of values.
    out : ndarray, shape (count,), float32, optional
        Written to.

    Raises
    ------
    MessageError
        If the number of bytes is another one, or spare bits are set.
    """
    found = resolve(value_type)
    if found is ValueType.FLOAT64:
        raise ValueError("value_type must be one that decodes to float32, got float64")
    memory = memory_of(data if out is None else out)
    data = memory.to_bytes("data", data)
    got, size = memory.check_array("data", data, (_UINT8,)).size, encoded_bytes(found, count)
    if got != size:  # before memory is taken for a number that may be a lie
        raise MessageError(f"{count} values must take {size} bytes, got {got}")
    if out is None:
        out = memory.empty(count, np.float32)
    memory.check_array("out", out, (_FLOAT32,), writable=True, length=count)
    memory.check_separate("out", out, "data", data)
    memory.kernels().dequantize(data, int(found), out)
    return out
