"""Messages: one sparse vector as bytes, with a header that lets a receiver check them.

The bytes are described in ``docs/wire-format.md``. A receiver trusts nothing: whatever the bytes
are, the functions here return what a sender encoded or raise MessageError.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.kernels import index_codec
from paropt_hpc.kernels.backend import implementation
from paropt_hpc.kernels.checks import (
    FLOATS,
    check_array,
    check_counts,
    check_separate,
    to_bytes,
)
from paropt_hpc.kernels.index_codec import Codec, index_dtype

__all__ = [
    "HEADER_BYTES",
    "Decoded",
    "Header",
    "decode",
    "decode_add",
    "encode",
    "header",
    "max_bytes",
]

HEADER_BYTES = 40
_VALUE_TYPES: dict[int, np.dtype[Any]] = {1: np.dtype(np.float32), 2: np.dtype(np.float64)}
_UINT8 = np.dtype(np.uint8)


class Header(NamedTuple):
    """The header of a message."""

    #: version of the wire format
    version: int
    #: how the indices are encoded
    codec: Codec
    #: dtype of the values
    dtype: np.dtype[Any]
    #: length of the vector
    n: int
    #: number of entries in the message
    k: int
    #: size of the encoded indices in bytes
    index_bytes: int
    #: CRC-32 of the message with zeros in its own place
    checksum: int


class Decoded(NamedTuple):
    """A decoded message."""

    #: positions, shape (k,), strictly ascending, dtype ``index_dtype(n)``
    indices: NDArray[Any]
    #: entries, shape (k,), float32 or float64
    values: NDArray[Any]
    #: length of the vector
    n: int


def max_bytes(n: int, k: int, dtype: Any, codec: Codec | str = "auto") -> int:
    """Return the size in bytes of a buffer that holds any message of k of n values of `dtype`."""
    dtype = np.dtype(dtype)
    if dtype not in FLOATS:
        raise TypeError(f"dtype must be float32 or float64, got {dtype}")
    index_bytes = index_codec.max_encoded_bytes(n, k, codec)
    return HEADER_BYTES + -(-index_bytes // 8) * 8 + k * int(dtype.itemsize)


def encode(
    indices: NDArray[Any],
    values: NDArray[Any],
    n: int,
    out: NDArray[np.uint8] | None = None,
    codec: Codec | str = "auto",
) -> NDArray[np.uint8]:
    """Encode k entries of a vector of length n.

    Parameters
    ----------
    indices : ndarray, shape (k,), dtype ``index_dtype(n)``
        Strictly ascending, each below n.
    values : ndarray, shape (k,), float32 or float64
        Any bits, NaN included, are kept.
    n : int
        Length of the vector, at most 2**40.
    out : ndarray, uint8, optional
        At least ``max_bytes(n, k, values.dtype, codec)`` bytes.
    codec : Codec or str
        One of `index_codec.Codec` or its name, or ``auto`` for the fewest bytes.

    Returns
    -------
    ndarray, uint8
        The message, a view of `out` when that is given.

    Raises
    ------
    TypeError
        If an array has another dtype than it must.
    ValueError
        If the indices are not strictly ascending or not below n, or an array is strided,
        misaligned, read-only or too short.
    """
    n, _ = check_counts(n)
    check_array("indices", indices, (index_dtype(n),))
    check_array("values", values, FLOATS, length=indices.size)
    _, k = check_counts(n, indices.size)
    size = max_bytes(n, k, values.dtype, codec)
    codec = index_codec.resolve(codec) or index_codec.choose(indices, n)
    if out is None:
        out = np.empty(size, np.uint8)
    check_array("out", out, (_UINT8,), writable=True)
    if out.size < size:
        raise ValueError(f"out must have at least {size} bytes, got {out.size}")
    check_separate("out", out, "indices", indices)
    check_separate("out", out, "values", values)
    return out[: implementation().encode_message(indices, values, n, int(codec), out)]


def header(data: Any) -> Header:
    """Read and check the header of a message (bytes-like or ndarray of uint8).

    The header must fit the number of bytes; the checksum and the payload are not looked at.

    Raises
    ------
    MessageError
        If the bytes are no message of this version, or their number is not what it says.
    """
    version, codec, value_type, *rest = implementation().read_header(to_bytes("data", data))
    return Header(version, Codec(codec), _VALUE_TYPES[value_type], *rest)


def decode(data: Any, out: tuple[NDArray[Any], NDArray[Any]] | None = None) -> Decoded:
    """Decode a message.

    Parameters
    ----------
    data : bytes-like or ndarray of uint8
        Not trusted.
    out : (indices, values), optional
        Arrays to write to, of at least k entries and the dtypes of the result, which then holds
        views of their first k; undefined after an error. Default: new ones.

    Raises
    ------
    MessageError
        If the bytes are not exactly one valid message.
    TypeError, ValueError
        If `out` does not fit, overlaps `data`, or is strided, misaligned or read-only.
    """
    data = to_bytes("data", data)
    head = header(data)
    if out is None:
        out = np.empty(head.k, index_dtype(head.n)), np.empty(head.k, head.dtype)
    else:
        _check_out(out, head, data)
    indices, values = (array[: head.k] for array in out)
    implementation().decode_message(data, indices, values)
    return Decoded(indices, values, head.n)


def decode_add(data: Any, dense: NDArray[Any], scale: float = 1) -> None:
    """Add the entries of a message, times `scale`, to a dense vector in place.

    Parameters
    ----------
    data : bytes-like or ndarray of uint8
        The message; not trusted.
    dense : ndarray, shape (n,), float32 or float64
        Of the message's length and dtype.
    scale : float
        Taken in the dtype of `dense`; the product is rounded before the sum.

    Raises
    ------
    MessageError
        If the bytes are not exactly one valid message, or it is for another length or dtype than
        that of `dense`. All is checked before the first write: `dense` is then unchanged.
    TypeError, ValueError
        If `dense` has another dtype than it must, or is strided, misaligned or read-only.
    """
    data = to_bytes("data", data)
    check_array("dense", dense, FLOATS, writable=True)
    check_separate("dense", dense, "data", data)
    implementation().decode_add_message(data, dense, float(scale))


def _check_out(
    out: tuple[NDArray[Any], NDArray[Any]], head: Header, data: NDArray[np.uint8]
) -> None:
    dtypes = (index_dtype(head.n), head.dtype)
    for name, array, dtype in zip(("out indices", "out values"), out, dtypes, strict=True):
        check_array(name, array, (dtype,), writable=True)
        if array.size < head.k:
            raise ValueError(f"{name} must have at least {head.k} entries, got {array.size}")
        check_separate(name, array, "data", data)
    check_separate("out indices", out[0], "out values", out[1])
