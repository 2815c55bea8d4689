"""Messages: one vector, sparse or whole, as bytes, with a header that lets a receiver check them.

The bytes are described in ``docs/wire-format.md``. A receiver trusts nothing: whatever the bytes
are, the functions here return what a sender encoded or raise MessageError.
"""

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.kernels import index_codec, quantize
from paropt_hpc.kernels.backend import implementation
from paropt_hpc.kernels.checks import FLOATS, check_array, check_counts, check_separate
from paropt_hpc.kernels.index_codec import Codec, index_dtype
from paropt_hpc.kernels.memory import Memory, memory_of
from paropt_hpc.kernels.quantize import Quantized, ValueType

__all__ = [
    "HEADER_BYTES",
    "Decoded",
    "Header",
    "decode",
    "decode_add",
    "decode_merge",
    "decode_sum",
    "encode",
    "header",
    "max_bytes",
    "max_bytes_up_to",
]

HEADER_BYTES = 40
_PLAIN = {np.dtype(np.float32): ValueType.FLOAT32, np.dtype(np.float64): ValueType.FLOAT64}
_UINT8 = np.dtype(np.uint8)


class Header(NamedTuple):
    """The header of a message."""

    #: version of the wire format
    version: int
    #: how the indices are encoded
    codec: Codec
    #: how the values are encoded
    value_type: ValueType
    #: length of the vector
    n: int
    #: number of entries in the message
    k: int
    #: size of the encoded indices in bytes
    index_bytes: int
    #: CRC-32 of the message with zeros in its own place
    checksum: int

    @property
    def dtype(self) -> np.dtype[Any]:
        """Of the values once they are decoded."""
        return np.dtype(np.float64 if self.value_type is ValueType.FLOAT64 else np.float32)


class Decoded(NamedTuple):
    """A decoded message."""

    #: positions, shape (k,), strictly ascending, dtype ``index_dtype(n)``
    indices: NDArray[Any]
    #: entries, shape (k,), float32 or float64
    values: NDArray[Any]
    #: length of the vector
    n: int


def max_bytes(n: int, k: int, values: ValueType | Any, codec: Codec | str = "auto") -> int:
    """Return the size of a buffer that holds any message of k of n values of a type.

    `values` is a `ValueType`, or float32 or float64 as a dtype.
    """
    value_type = values if isinstance(values, ValueType) else _plain(np.dtype(values))
    index_bytes = index_codec.max_encoded_bytes(n, k, codec)
    return HEADER_BYTES + -(-index_bytes // 8) * 8 + quantize.encoded_bytes(value_type, k)


def max_bytes_up_to(n: int, most: int, values: ValueType | Any) -> int:
    """Return the size of a buffer that holds any message of at most `most` of n values.

    Arguments as for `max_bytes`, which does not always grow with k: all n entries need no indices,
    and where n/k falls below a power of two a bound becomes tighter.
    """
    n, most = check_counts(n, most)
    below = n >> (n // max(most, 1)).bit_length()
    fewer = min(most, max(n - 1, 0))
    return max(max_bytes(n, k, values) for k in {most, fewer, below})


def _plain(dtype: np.dtype[Any]) -> ValueType:
    if dtype not in _PLAIN:
        raise TypeError(
            f"dtype must be float32 or float64, got {dtype}; quantise values to send fewer bits"
        )
    return _PLAIN[dtype]


def encode(
    indices: NDArray[Any] | None,
    values: NDArray[Any] | Quantized,
    n: int,
    out: NDArray[np.uint8] | None = None,
    codec: Codec | str = "auto",
) -> NDArray[np.uint8]:
    """Encode k entries of a vector of length n.

    Parameters
    ----------
    indices : ndarray, shape (k,), dtype ``index_dtype(n)``, or None
        Strictly ascending, each below n. None stands for all of them, which take no bytes.
    values : ndarray, shape (k,), float32 or float64, or Quantized
        Plain values, of which any bits, NaN included, are kept; or what `quantize.encode` made of
        k values.
    n : int
        Length of the vector, at most 2**40.
    out : ndarray, uint8, optional
        At least ``max_bytes(n, k, values, codec)`` bytes, with the type of the values. Without
        indices, the values may be there already, from byte `HEADER_BYTES` on.
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
    k, found = n, index_codec.resolve(codec)
    memory = memory_of(values.data if isinstance(values, Quantized) else values)
    if indices is not None:
        _, k = check_counts(n, memory.check_array("indices", indices, (index_dtype(n),)).size)
    elif found not in (None, Codec.FULL):
        raise ValueError(f"codec must be auto or full without indices, got {codec!r}")
    value_type, data = _encoded_values(memory, values, k)
    size = max_bytes(n, k, value_type, Codec.FULL if indices is None else codec)
    if out is None:
        out = memory.empty(size, np.uint8)
    room = memory.check_array("out", out, (_UINT8,), writable=True).size
    if room < size:
        raise ValueError(f"out must have at least {size} bytes, got {room}")
    kernels = memory.kernels()
    if indices is None:
        if memory.address(data) != memory.address(out) + HEADER_BYTES:
            memory.check_separate("out", out, "values", data)
        return out[: kernels.encode_full_message(data, n, int(value_type), out)]
    memory.check_separate("out", out, "values", data)
    memory.check_separate("out", out, "indices", indices)
    number = int(found or index_codec.choose(indices, n))
    return out[: kernels.encode_message(indices, data, n, number, int(value_type), out)]


def _encoded_values(
    memory: Memory, values: NDArray[Any] | Quantized, k: int
) -> tuple[ValueType, NDArray[np.uint8]]:
    if isinstance(values, Quantized):
        if values.size != k:
            raise ValueError(f"values must have {k} entries, got {values.size}")
        size = quantize.encoded_bytes(values.type, k)
        memory.check_array("values.data", values.data, (_UINT8,), length=size)
        return values.type, values.data
    dtype = memory.check_array("values", values, FLOATS, length=k).dtype
    return _PLAIN[dtype], memory.bytes_of(values)


def header(data: Any) -> Header:
    """Read and check the header of a message (bytes-like or ndarray of uint8).

    The header must fit the number of bytes; the checksum and the payload are not looked at.

    Raises
    ------
    MessageError
        If the bytes are no message of this version, or their number is not what it says.
    """
    memory = memory_of(data)
    version, codec, value_type, *rest = memory.kernels().read_header(memory.to_bytes("data", data))
    return Header(version, Codec(codec), ValueType(value_type), *rest)


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
    memory = memory_of(data if out is None else out[0])
    data = memory.to_bytes("data", data)
    head = header(data)
    if out is None:
        out = memory.empty(head.k, index_dtype(head.n)), memory.empty(head.k, head.dtype)
    else:
        _check_out(memory, out, head, data)
    indices, values = (array[: head.k] for array in out)
    memory.kernels().decode_message(data, indices, values)
    return Decoded(indices, values, head.n)


def decode_add(data: Any, dense: NDArray[Any], scale: float = 1) -> None:
    """Add the entries of a message, times `scale`, to a dense vector in place.

    Parameters
    ----------
    data : bytes-like or ndarray of uint8
        The message; not trusted.
    dense : ndarray, shape (n,), float32 or float64
        Of the message's length, and of the dtype that its values decode to.
    scale : float
        Taken in the dtype of `dense`; the product is rounded before the sum.

    Raises
    ------
    MessageError
        If the bytes are not exactly one valid message, or it is for another length than that of
        `dense`, or its values decode to another dtype. All is checked before the first write:
        `dense` is then unchanged.
    TypeError, ValueError
        If `dense` has another dtype than it must, or is strided, misaligned or read-only.
    """
    memory = memory_of(dense)
    data = memory.to_bytes("data", data)
    memory.check_array("dense", dense, FLOATS, writable=True)
    memory.check_separate("dense", dense, "data", data)
    memory.kernels().decode_add_message(data, dense, float(scale))


def decode_sum(
    messages: Sequence[NDArray[np.uint8]],
    dense: NDArray[Any],
    scale: float = 1,
    workspace: tuple[NDArray[Any], NDArray[Any]] | None = None,
) -> None:
    """Overwrite a dense vector with the sum of the vectors of some messages, times `scale`.

    What `decode_add` of one after the other makes of zeros, bit for bit, but `dense` is written
    only once: block by block, and past the caches where it is long.

    Parameters
    ----------
    messages : sequence of ndarray of uint8
        Not trusted.
    dense : ndarray, shape (n,), float32 or float64
        Of the messages' length, and of the dtype that their values decode to.
    scale : float
        Taken in the dtype of `dense`; the product is rounded before the sum.
    workspace : (indices, values), optional
        Arrays with room for the entries of all messages, dtypes ``index_dtype(n)`` and that of
        `dense`; what was in them is lost. Default: new ones.

    Raises
    ------
    MessageError
        As `decode_add`; `dense` is then unchanged.
    TypeError, ValueError
        If an array has another dtype than it must, is strided, misaligned, read-only or too
        short, or overlaps another.
    """
    check_array("dense", dense, FLOATS, writable=True)
    if workspace is None:
        room = sum(header(data).k for data in messages)
        workspace = np.empty(room, index_dtype(dense.size)), np.empty(room, dense.dtype)
    arrays = {"dense": dense, "indices": workspace[0], "values": workspace[1]}
    _check_places(messages, arrays, index_dtype(dense.size), dense.dtype)
    implementation().decode_sum_messages(list(messages), dense, float(scale), *workspace)


def decode_merge(
    messages: Sequence[NDArray[np.uint8]],
    n: int,
    out: tuple[NDArray[Any], NDArray[Any]],
    workspace: tuple[NDArray[Any], NDArray[Any]],
) -> Decoded:
    """Sum the vectors of some messages, without a dense one.

    Parameters
    ----------
    messages : sequence of ndarray of uint8
        Not trusted.
    n : int
        Length of the vectors.
    out : (indices, values)
        Arrays to write to, with room for the entries of all messages. The dtypes are
        ``index_dtype(n)`` and the one that the values of the messages decode to.
    workspace : (indices, values)
        As `out`; what was in them is lost.

    Returns
    -------
    Decoded
        The entries of what `decode_sum` would write that are not zero: views of `out`.

    Raises
    ------
    MessageError
        As `decode_add`.
    TypeError, ValueError
        As `decode_sum`.
    """
    check_counts(n)
    check_array("values", workspace[1], FLOATS, writable=True)
    names = ("out indices", "out values", "indices", "values")
    arrays = dict(zip(names, (*out, *workspace), strict=True))
    _check_places(messages, arrays, index_dtype(n), workspace[1].dtype)
    for name, array in zip(names[:2], out, strict=True):
        if array.size < workspace[0].size:
            raise ValueError(
                f"{name} must have at least {workspace[0].size} entries as indices has, "
                f"got {array.size}"
            )
    found = implementation().decode_merge_messages(list(messages), n, *workspace, *out)
    return Decoded(out[0][:found], out[1][:found], n)


def _check_places(
    messages: Sequence[NDArray[np.uint8]],
    arrays: dict[str, NDArray[Any]],
    index: np.dtype[Any],
    dtype: np.dtype[Any],
) -> None:
    """Check what a sum of messages reads and writes; names that end in "indices" hold these."""
    for name, array in arrays.items():
        check_array(name, array, (index if name.endswith("indices") else dtype,), writable=True)
    indices, values = arrays["indices"], arrays["values"]
    check_array("values", values, (dtype,), length=indices.size)
    for (name, array), (other, array2) in itertools.combinations(arrays.items(), 2):
        check_separate(name, array, other, array2)
    for data in messages:
        check_array("messages", data, (_UINT8,))
        for name, array in arrays.items():
            check_separate(name, array, "messages", data)


def _check_out(
    memory: Memory, out: tuple[NDArray[Any], NDArray[Any]], head: Header, data: Any
) -> None:
    dtypes = (index_dtype(head.n), head.dtype)
    for name, array, dtype in zip(("out indices", "out values"), out, dtypes, strict=True):
        size = memory.check_array(name, array, (dtype,), writable=True).size
        if size < head.k:
            raise ValueError(f"{name} must have at least {head.k} entries, got {size}")
        memory.check_separate(name, array, "data", data)
    memory.check_separate("out indices", out[0], "out values", out[1])
