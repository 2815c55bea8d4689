"""Ascending positions as bytes: Rice near the entropy, Elias-Fano for speed, bitmap, raw, full.

The bytes are described in ``docs/wire-format.md``.
"""

import enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.errors import MessageError
from paropt_hpc.kernels.backend import implementation
from paropt_hpc.kernels.checks import check_counts
from paropt_hpc.kernels.memory import memory_of

__all__ = [
    "Codec",
    "choose",
    "decode",
    "encode",
    "index_dtype",
    "max_encoded_bytes",
    "resolve",
    "validate",
]

_UINT32, _UINT64, _UINT8 = np.dtype(np.uint32), np.dtype(np.uint64), np.dtype(np.uint8)


class Codec(enum.IntEnum):
    """How indices are encoded; the numbers stand in the wire format."""

    #: fewest bytes: within a percent of the entropy for an even spread of a percent
    RICE = 1
    #: one bit per entry of the vector: for dense ones
    BITMAP = 2
    #: faster than RICE both ways, for about half a bit more per index
    ELIAS_FANO = 3
    #: 4 bytes per index, 8 for n above 2**32
    RAW = 4
    #: nothing, as all n entries are there
    FULL = 5


_BY_NAME = {codec.name.lower(): codec for codec in Codec}


def index_dtype(n: int) -> np.dtype[Any]:
    """Return the dtype of positions in a vector of n entries: uint32 while it suffices."""
    return _UINT32 if n <= 2**32 else _UINT64


def choose(indices: NDArray[Any], n: int) -> Codec:
    """Return the codec of the fewest bytes for these positions, however they cluster.

    Elias-Fano is never chosen: it is for those who want speed.
    """
    n, _ = check_counts(n)
    memory = memory_of(indices)
    check_counts(n, memory.check_array("indices", indices, (index_dtype(n),)).size)
    return Codec(memory.kernels().choose_codec(indices, n))


def resolve(codec: Codec | str) -> Codec | None:
    """Return the codec of a name, None for ``auto``."""
    if isinstance(codec, Codec):
        return codec
    if codec == "auto":
        return None
    found = _BY_NAME.get(codec) if isinstance(codec, str) else None
    if found is None:
        raise ValueError(f"codec must be auto, {', '.join(_BY_NAME)}, got {codec!r}")
    return found


def max_encoded_bytes(n: int, k: int, codec: Codec | str = Codec.RICE) -> int:
    """Return the size in bytes of a buffer that holds any k encoded positions below n."""
    n, k = check_counts(n, k)
    found = resolve(codec)
    if found is None:
        return int(implementation().max_chosen_bytes(n, k))
    return int(implementation().max_encoded_bytes(n, k, int(found)))


def encode(
    indices: NDArray[Any],
    n: int,
    codec: Codec | str = Codec.RICE,
    out: NDArray[np.uint8] | None = None,
) -> NDArray[np.uint8]:
    """Encode strictly ascending positions in a vector of n entries.

    Parameters
    ----------
    indices : ndarray, shape (k,), dtype ``index_dtype(n)``
        Strictly ascending, each below n.
    n : int
        Length of the vector, at most 2**40.
    codec : Codec or str
        One of `Codec` or its name in lower case. With ``auto``, `choose` decides, and the receiver
        has to be told what; a message of `paropt_hpc.kernels.message` tells it.
    out : ndarray, uint8, optional
        At least ``max_encoded_bytes(n, k, codec)`` bytes.

    Returns
    -------
    ndarray, uint8
        The encoded bytes, a view of `out` when that is given.

    Raises
    ------
    TypeError
        If an array has another dtype than it must.
    ValueError
        If the indices are not strictly ascending or not below n, or an array is strided,
        misaligned, read-only or too short.

    Notes
    -----
    Rice codes are optimal prefix codes for geometric gaps: S. W. Golomb, "Run-length encodings",
    IEEE Trans. Inf. Theory 12(3), 1966; R. F. Rice, JPL Publication 79-22, 1979.
    """
    n, _ = check_counts(n)
    memory = memory_of(indices)
    _, k = check_counts(n, memory.check_array("indices", indices, (index_dtype(n),)).size)
    size = max_encoded_bytes(n, k, codec)
    codec = resolve(codec) or choose(indices, n)
    if out is None:
        out = memory.empty(size, np.uint8)
    room = memory.check_array("out", out, (_UINT8,), writable=True).size
    if room < size:
        raise ValueError(f"out must have at least {size} bytes, got {room}")
    memory.check_separate("out", out, "indices", indices)
    return out[: memory.kernels().encode_indices(indices, n, int(codec), out)]


def decode(
    data: Any,
    n: int,
    k: int,
    codec: Codec | str = Codec.RICE,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Decode k positions in a vector of n entries from exactly the bytes of `encode`.

    Parameters
    ----------
    data : bytes-like or ndarray of uint8
        Not trusted.
    n, k : int
        As they were for `encode`.
    codec : Codec or str
        As it was for `encode`, but not ``auto``.
    out : ndarray, shape (k,), dtype ``index_dtype(n)``, optional
        Written to; undefined after an error.

    Returns
    -------
    ndarray, shape (k,), dtype ``index_dtype(n)``
        `out` when that is given.

    Raises
    ------
    MessageError
        If the bytes do not encode exactly k ascending positions below n.
    """
    n, k = check_counts(n, k)
    memory = memory_of(data if out is None else out)
    data = memory.to_bytes("data", data)
    codec = _named(codec)
    if out is None:
        if codec is not Codec.FULL:
            _check_plausible(memory.check_array("data", data, (_UINT8,)).size, k)
        out = memory.empty(k, index_dtype(n))
    memory.check_array("out", out, (index_dtype(n),), writable=True, length=k)
    memory.check_separate("out", out, "data", data)
    memory.kernels().decode_indices(data, n, int(codec), out)
    return out


def validate(data: Any, n: int, k: int, codec: Codec | str = Codec.RICE) -> None:
    """Raise MessageError unless `decode` would succeed; arguments as there."""
    n, k = check_counts(n, k)
    memory = memory_of(data)
    memory.kernels().validate_indices(memory.to_bytes("data", data), n, k, int(_named(codec)))


def _named(codec: Codec | str) -> Codec:
    found = resolve(codec)
    if found is None:
        raise ValueError("codec must be named to decode, got 'auto'; pass the sender's choice")
    return found


def _check_plausible(size: int, k: int) -> None:
    # Every other codec spends a bit per index, so that a lie about k cannot make us allocate much.
    if k > 8 * size:
        raise MessageError(f"index stream is truncated: {size} bytes cannot hold {k} indices")
