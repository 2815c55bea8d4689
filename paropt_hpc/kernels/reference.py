"""The NumPy twin of every native kernel: simple, the oracle of the tests and the fallback.

The functions mirror those of ``paropt_hpc._native``: the same arguments, results, bytes and error
texts. They expect arguments that the modules of this package have checked.
"""

import struct
import zlib
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from paropt_hpc.errors import MessageError
from paropt_hpc.kernels.reference_libsvm import count_libsvm, parse_libsvm
from paropt_hpc.kernels.reference_population import (
    de_run,
    de_trials,
    evaluate,
    ga_children,
    ga_parents,
    ga_run,
    ga_survive,
    generation_key,
    normals,
    swarm_move,
    swarm_run,
    take_better,
)
from paropt_hpc.kernels.reference_tour import ant_tours, improve_tours

__all__ = [
    "add",
    "ant_tours",
    "choose_codec",
    "count_libsvm",
    "crc32",
    "de_run",
    "de_trials",
    "decode_add_message",
    "decode_indices",
    "decode_merge_messages",
    "decode_message",
    "decode_sum_messages",
    "dequantize",
    "encode_full_message",
    "encode_indices",
    "encode_message",
    "evaluate",
    "ga_children",
    "ga_parents",
    "ga_run",
    "ga_survive",
    "generation_key",
    "improve_tours",
    "keys",
    "max_chosen_bytes",
    "max_encoded_bytes",
    "normals",
    "parse_libsvm",
    "quantize",
    "reach",
    "read_header",
    "scatter_add",
    "swarm_move",
    "swarm_run",
    "take_better",
    "topk",
    "validate_indices",
    "value_bytes",
]

_Array = NDArray[Any]
_Bytes = NDArray[np.uint8]

_RICE, _BITMAP, _ELIAS_FANO, _RAW, _FULL = 1, 2, 3, 4, 5
_BLOCK = 1024  # indices with one parameter
_MOST_LOW_BITS = 40
_HEADER = struct.Struct("<4sBBBBQQQII")
_CHECKSUM_AT = 32
_MAGIC, _VERSION = b"PRPT", 1
_FLOAT32, _FLOAT64, _FLOAT16, _BFLOAT16, _INT8, _QSGD4, _SIGN = range(1, 8)
_CODE_BITS = (0, 32, 64, 16, 16, 8, 4, 1)
_GROUP = 256  # values with one scale


def topk(
    gradient: _Array,
    residual: _Array | None,
    k: int,
    indices: _Array,
    values: _Array,
    hint: _Array | None = None,
) -> int:
    """Select by a stable sort of the keys; see `paropt_hpc.kernels.topk.select`.

    A sort has no use for a hint, which stays as it is.
    """
    acc = _accumulated(gradient, residual)
    winners = np.sort(np.argsort(~keys(acc), kind="stable")[:k])
    indices[:k] = winners
    values[:k] = acc[winners]
    if residual is not None:
        residual[:] = acc
        residual[winners] = 0
    return _nonfinite(acc)


def reach(gradient: _Array, residual: _Array | None, key: int) -> tuple[_Array, _Array, int]:
    """Return the entries whose key reaches `key`, and how many of all are not finite."""
    acc = _accumulated(gradient, residual)
    nonfinite = _nonfinite(acc)
    indices = np.flatnonzero(keys(acc) >= key)
    values = acc[indices]
    if residual is not None:
        residual[:] = acc
        residual[indices] = 0
    return indices.astype(_raw_dtype(acc.size)), values, nonfinite


def keys(array: _Array) -> _Array:
    """Return the bits without the sign, as unsigned integers: they order by magnitude."""
    unsigned = np.dtype(f"u{array.itemsize}")
    magnitude: _Array = array.view(unsigned) & unsigned.type(2 ** (8 * array.itemsize - 1) - 1)
    return magnitude


def _accumulated(gradient: _Array, residual: _Array | None) -> _Array:
    with np.errstate(all="ignore"):
        return gradient if residual is None else residual + gradient


def _nonfinite(array: _Array) -> int:
    infinity = keys(np.array([np.inf], array.dtype))[0]
    return int(np.count_nonzero(keys(array) >= infinity))


def add(out: _Array, array: _Array) -> None:
    """Add in place."""
    with np.errstate(all="ignore"):
        out += array


def sgd_step(
    params: _Array,
    gradient: _Array,
    velocity: _Array | None,
    rate: float,
    momentum: float,
    decay: float,
    nesterov: bool,
) -> None:
    """Descend with momentum, block by block, so that what is in between stays in the cache."""
    rate, momentum, decay = (params.dtype.type(number) for number in (rate, momentum, decay))
    on_host = isinstance(params, np.ndarray)  # on a GPU every call costs, and there is no cache
    block = 65536 if on_host else max(1, params.size)
    for first in range(0, params.size, block):
        part = slice(first, first + block)
        target, step = params[part], gradient[part]
        with np.errstate(all="ignore"):
            if decay:
                step = step + decay * target
            if velocity is not None:
                v = velocity[part]
                v *= momentum
                v += step
                step = step + momentum * v if nesterov else v
            target -= rate * step


def scatter_add(dense: _Array, indices: _Array, values: _Array, scale: float) -> None:
    """Add at indices that may repeat."""
    if indices.size and indices.max() >= dense.size:
        raise ValueError(
            f"indices must be below the length of dense, {dense.size}, got {indices.max()}"
        )
    with np.errstate(all="ignore"):
        np.add.at(dense, indices, dense.dtype.type(scale) * values)


# ---- indices ---------------------------------------------------------------------------------


def choose_codec(indices: _Array, n: int) -> int:
    """Return the codec of the fewest bytes; rice where it is as good as another."""
    if not indices.size:
        return _RICE
    if indices.size == n:
        return _FULL
    sizes = {
        _RICE: len(_encode_split(_checked_positions(indices, n), True)),
        _BITMAP: max_encoded_bytes(n, indices.size, _BITMAP),
        _RAW: max_encoded_bytes(n, indices.size, _RAW),
    }
    return min(sizes, key=lambda codec: sizes[codec])


def max_chosen_bytes(n: int, k: int) -> int:
    """Return the bound for whatever `choose_codec` takes."""
    if k in (0, n):
        return 0
    return min(max_encoded_bytes(n, k, codec) for codec in (_RICE, _BITMAP, _RAW))


def max_encoded_bytes(n: int, k: int, codec: int) -> int:
    """Return the bound that csrc/index_codec.cpp derives."""
    if codec == _BITMAP:
        return _ceil_div(n, 8)
    if codec == _RAW:
        return k * _raw_dtype(n).itemsize
    if k == 0 or codec == _FULL:
        return 0
    return _ceil_div(k * ((n // k).bit_length() + 3), 8) + _ceil_div(k, _BLOCK) * 4


def encode_indices(indices: _Array, n: int, codec: int, out: _Bytes) -> int:
    """Encode into `out` and return the number of bytes."""
    if codec == _FULL and indices.size != n:
        raise ValueError(f"codec full must have all {n} entries, got {indices.size}")
    positions = _checked_positions(indices, n)
    if codec == _FULL:
        return 0
    if codec == _BITMAP:
        encoded = _encode_bitmap(positions, n)
    elif codec == _RAW:
        encoded = positions.astype(_raw_dtype(n)).tobytes()
    else:
        encoded = _encode_split(positions, codec == _RICE)
    out[: len(encoded)] = np.frombuffer(encoded, np.uint8)
    return len(encoded)


def _checked_positions(indices: _Array, n: int) -> _Array:
    positions = indices.astype(np.int64)
    bad = np.flatnonzero(np.diff(positions) <= 0)
    if bad.size:
        before, after = positions[bad[0] : bad[0] + 2]
        raise ValueError(f"indices must be strictly ascending, got {before} before {after}")
    if positions.size and positions[-1] >= n:
        raise ValueError(f"indices must be below n = {n}, got {positions[-1]}")
    return positions


def decode_indices(data: _Bytes, n: int, codec: int, out: _Array) -> None:
    """Decode out.size indices into `out`."""
    out[:] = _decode(data, n, out.size, codec)


def validate_indices(data: _Bytes, n: int, k: int, codec: int) -> None:
    """Raise MessageError unless the bytes can be decoded."""
    _decode(data, n, k, codec)


def _decode(data: _Bytes, n: int, k: int, codec: int) -> _Array:
    if codec == _BITMAP:
        return _decode_bitmap(data, n, k)
    if codec == _FULL:
        return _decode_full(data, n, k)
    if codec == _RAW:
        return _decode_raw(data, n, k)
    return _decode_split(data, n, k, codec == _RICE)


def _raw_dtype(n: int) -> np.dtype[Any]:
    return np.dtype("<u4" if n <= 2**32 else "<u8")


def _encode_split(positions: _Array, by_gaps: bool) -> bytes:
    """Encode by rice, or by Elias-Fano: the latter splits distances from the start of a block."""
    directory, streams, start = [], [], 0
    for first in range(0, positions.size, _BLOCK):
        block = positions[first : first + _BLOCK]
        distances = np.diff(block, prepend=start - 1) - 1 if by_gaps else block - start
        low_bits = _rice_parameter(distances) if by_gaps else _elias_fano_parameter(distances)
        quotients = distances >> low_bits
        if not by_gaps:
            quotients = np.diff(quotients, prepend=0)
        ones = np.zeros(block.size + int(quotients.sum()), np.uint8)
        ones[np.cumsum(quotients + 1) - 1] = 1
        lows = (distances[:, None] >> np.arange(low_bits) & 1).astype(np.uint8)
        unary = _pack(ones)
        directory.append(struct.pack("<H", low_bits << 10 | len(unary)))
        streams.append(_pack(lows.reshape(-1)) + unary)
        start = int(block[-1]) + 1
    return b"".join(directory + streams)


def _elias_fano_parameter(distances: _Array) -> int:
    # One more low bit halves the sum of the quotients, which is that of the last distance.
    low_bits, last = 0, int(distances[-1])
    while (last >> low_bits) - (last >> low_bits + 1) > distances.size:
        low_bits += 1
    return low_bits


def _rice_parameter(gaps: _Array) -> int:
    # Near log2(ln 2 * mean gap); the exact sizes for it and its successor decide.
    low_bits = max((int(gaps.sum()) * 177 // 256 // gaps.size).bit_length() - 1, 0)
    size = int((gaps >> low_bits).sum())
    next_size = int((gaps >> low_bits + 1).sum()) + gaps.size
    return low_bits + 1 if next_size < size else low_bits


def _decode_split(data: _Bytes, n: int, k: int, by_gaps: bool) -> _Array:
    blocks = _ceil_div(k, _BLOCK)
    if data.size < 2 * blocks:
        raise MessageError(
            f"index stream is truncated: the directory takes {2 * blocks} bytes, got {data.size}"
        )
    positions = np.empty(k, np.int64)
    at, start = 2 * blocks, 0
    for number in range(blocks):
        block = positions[number * _BLOCK : (number + 1) * _BLOCK]
        entry = int(data[2 * number]) | int(data[2 * number + 1]) << 8
        size = _decode_block(data[at:], entry, number, start, block, by_gaps)
        start = int(block[-1]) + 1
        if start > n:
            raise MessageError(f"indices must be below n = {n}, got {start - 1}")
        at += size
    if at != data.size:
        raise MessageError(f"index stream has {data.size - at} trailing bytes")
    return positions


def _decode_block(
    data: _Bytes, entry: int, number: int, start: int, block: _Array, by_gaps: bool
) -> int:
    low_bits, unary_bytes, count = entry >> 10, entry & 1023, block.size
    if low_bits > _MOST_LOW_BITS:
        raise MessageError(
            f"low bits must be at most {_MOST_LOW_BITS}, got {low_bits} in block {number}"
        )
    low_bytes = _ceil_div(count * low_bits, 8)
    size = low_bytes + unary_bytes
    if data.size < size:
        raise MessageError(
            f"index stream is truncated: block {number} takes {size} bytes, got {data.size}"
        )
    ones = np.flatnonzero(_unpack(data[low_bytes:size]))
    if ones.size != count or data[size - 1] == 0:
        raise MessageError(
            f"unary stream must hold {count} ones and end with one, "
            f"got {ones.size} in block {number}"
        )
    bits = _unpack(data[:low_bytes]).astype(np.int64)
    if bits[count * low_bits :].any():
        raise MessageError(f"spare low bits must be zero in block {number}")
    lows = bits[: count * low_bits].reshape(count, low_bits) @ (1 << np.arange(low_bits))
    quotients = np.diff(ones, prepend=-1) - 1
    if by_gaps:
        block[:] = start - 1 + np.cumsum((quotients << low_bits) + lows + 1)
    else:
        block[:] = start + (np.cumsum(quotients) << low_bits) + lows
        _check_ascending(block, number)
    return size


def _decode_raw(data: _Bytes, n: int, k: int) -> _Array:
    dtype = _raw_dtype(n)
    if data.size != k * dtype.itemsize:
        raise MessageError(f"raw indices must take {k * dtype.itemsize} bytes, got {data.size}")
    positions = np.frombuffer(data.tobytes(), dtype)
    start = 0
    for first in range(0, k, _BLOCK):
        block = positions[first : first + _BLOCK]
        if block[0] < start:
            raise MessageError(f"indices must be strictly ascending in block {first // _BLOCK}")
        _check_ascending(block, first // _BLOCK)
        if block[-1] >= n:
            raise MessageError(f"indices must be below n = {n}, got {block[-1]}")
        start = int(block[-1]) + 1
    return positions


def _check_ascending(block: _Array, number: int) -> None:
    if (block[1:] <= block[:-1]).any():
        raise MessageError(f"indices must be strictly ascending in block {number}")


def _encode_bitmap(positions: _Array, n: int) -> bytes:
    ones = np.zeros(n, np.uint8)
    ones[positions] = 1
    return _pack(ones)


def _decode_bitmap(data: _Bytes, n: int, k: int) -> _Array:
    if data.size != _ceil_div(n, 8):
        raise MessageError(f"bitmap must take {_ceil_div(n, 8)} bytes, got {data.size}")
    if n % 8 and data[-1] >> (n % 8):
        raise MessageError("spare bits of the bitmap must be zero")
    positions = np.flatnonzero(_unpack(data))
    if positions.size != k:
        raise MessageError(f"bitmap must hold {k} ones, got {positions.size}")
    return positions


def _decode_full(data: _Bytes, n: int, k: int) -> _Array:
    if data.size or k != n:
        raise MessageError(
            f"full indices must take 0 bytes for all {n} entries, got {data.size} bytes for {k}"
        )
    return np.arange(n)


# ---- values ----------------------------------------------------------------------------------


def value_bytes(value_type: int, count: int) -> int:
    """Return the number of bytes of `count` values."""
    return _scale_bytes(value_type, count) + _ceil_div(count * _CODE_BITS[value_type], 8)


def quantize(
    values: _Array, residual: _Array | None, value_type: int, seed: int, out: _Bytes
) -> tuple[int, int]:
    """Encode into `out`, leave the rest in `residual`; count what saturated and was not finite."""
    acc, saturated = _accumulated(values, residual), 0
    with np.errstate(all="ignore"):
        if value_type in (_FLOAT16, _BFLOAT16):
            half = np.dtype(np.float16 if value_type == _FLOAT16 else ml_dtypes.bfloat16)
            beyond = np.isinf(acc.astype(half)) & np.isfinite(acc)
            saturated = int(np.count_nonzero(beyond))
            largest = np.float32(65504 if value_type == _FLOAT16 else 0xFF << 120)
            codes = np.where(beyond, np.copysign(largest, acc), acc).astype(half)
            if value_type == _FLOAT16:  # a NaN comes out quiet, as from the processor
                nans = acc.view(np.uint32)[np.isnan(acc)]
                quiet = nans >> 16 & 0x8000 | 0x7E00 | nans >> 13 & 0x03FF
                codes.view(np.uint16)[np.isnan(acc)] = quiet
            encoded = codes.tobytes()
        else:
            encoded = _quantize_groups(acc, value_type, seed)
    out[: len(encoded)] = np.frombuffer(encoded, np.uint8)
    if residual is not None:
        sent = np.empty_like(acc)
        dequantize(out[: len(encoded)], value_type, sent)
        with np.errstate(all="ignore"):
            sent[~np.isfinite(sent)] = 0
            residual[:] = np.where(np.isfinite(acc), acc - sent, 0)
    return saturated, _nonfinite(acc)


def dequantize(data: _Bytes, value_type: int, out: _Array) -> None:
    """Decode out.size values."""
    size = value_bytes(value_type, out.size)
    if data.size != size:
        raise MessageError(f"{out.size} values must take {size} bytes, got {data.size}")
    _validate_values(data, value_type, out.size)
    plain = {_FLOAT32: np.float32, _FLOAT16: np.float16, _BFLOAT16: ml_dtypes.bfloat16}
    if value_type in plain:
        out[:] = np.frombuffer(data.tobytes(), plain[value_type])
        if value_type == _FLOAT16:
            out.view(np.uint32)[np.isnan(out)] |= 0x0040_0000
        return
    at = _scale_bytes(value_type, out.size)
    scales = np.frombuffer(data[:at].tobytes(), np.float32).repeat(_GROUP)[: out.size]
    codes = data[at:]
    with np.errstate(all="ignore"):
        if value_type == _INT8:
            out[:] = codes.view(np.int8) * scales
        elif value_type == _QSGD4:
            nibbles = np.stack([codes & 15, codes >> 4], axis=1).reshape(-1)[: out.size]
            out[:] = ((nibbles.astype(np.int8) ^ 8) - 8) * scales
        else:
            minus = _unpack(codes)[: out.size].astype(np.uint32)
            out[:] = (scales.view(np.uint32) ^ minus << 31).view(np.float32)


def _quantize_groups(acc: _Array, value_type: int, seed: int) -> bytes:
    groups = _ceil_div(acc.size, _GROUP)
    x = np.zeros((groups, _GROUP), np.float32)
    x.reshape(-1)[: acc.size] = acc
    if value_type == _SIGN:
        scales = _mean_magnitudes(x, acc.size)
        codes = _pack(np.signbit(acc).astype(np.uint8))
    elif value_type == _INT8:
        scales, steps = _steps(x, 127)
        codes = np.rint(steps).astype(np.int8).reshape(-1)[: acc.size].tobytes()
    else:
        scales, steps = _steps(x, 7, 4096)
        units = np.rint(steps).astype(np.int32) + _random_units(groups, seed)
        nibbles = (units >> 12 & 15).astype(np.uint8).reshape(-1)[: acc.size + acc.size % 2]
        codes = (nibbles[::2] | nibbles[1::2] << 4).tobytes()
    return scales.tobytes() + codes


def _steps(x: _Array, most: int, unit: int = 1) -> tuple[_Array, _Array]:
    """Return the scales of groups, and the values in 1/unit of these."""
    least = np.float32(2.0**-110 if unit > 1 else 2.0**-126)
    scales = np.abs(x).max(axis=1, initial=0) / np.float32(most)
    too_large = np.isinf(scales * np.float32(most))
    scales[too_large] = np.nextafter(scales[too_large], np.float32(0))
    scales[scales < least] = 0
    scales[~np.isfinite(x).all(axis=1)] = np.nan
    by = np.where(scales > 0, np.float32(unit) / scales, np.float32(0))
    return scales, np.where(by[:, None] > 0, x * by[:, None], np.float32(0))


def _mean_magnitudes(x: _Array, count: int) -> _Array:
    means, finite = _means(np.abs(x), count), np.isfinite(x).all(axis=1)
    large = np.isinf(means) & finite  # the sum of 256 is too large a number, the mean of them none
    small = _means(np.abs(x) * np.float32(2.0**-8), count) * np.float32(2.0**8)
    means[large] = np.minimum(small[large], np.finfo(np.float32).max)
    means[~finite] = np.nan
    return means


def _means(magnitudes: _Array, count: int) -> _Array:
    # The order of the native sum: 16 side by side, then by halves.
    rows = magnitudes.reshape(-1, _GROUP // 16, 16)
    sums = np.zeros((rows.shape[0], 16), np.float32)
    for row in range(_GROUP // 16):
        sums += rows[:, row]
    for half in (8, 4, 2, 1):
        sums = sums[:, :half] + sums[:, half : 2 * half]
    sizes = np.full(rows.shape[0], _GROUP, np.float32)
    if count % _GROUP:
        sizes[-1] = count % _GROUP
    means: _Array = sums[:, 0] / sizes
    return means


def _random_units(groups: int, seed: int) -> _Array:
    """Return random integers of [0, 4096): see group_random and encode_qsgd4 in csrc/quantize*."""
    numbers = np.arange(1, groups + 1, dtype=np.uint64)
    x = np.uint64(seed) + numbers * np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ x >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ x >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    first = ((x ^ x >> np.uint64(31)) >> np.uint64(32)).astype(np.uint32)
    y = first[:, None] + np.arange(_GROUP // 2, dtype=np.uint32) * np.uint32(0x9E3779B9)
    y = (y ^ y >> np.uint32(16)) * np.uint32(0x85EBCA6B)
    y = (y ^ y >> np.uint32(13)) * np.uint32(0xC2B2AE35)
    y ^= y >> np.uint32(16)
    halves = np.stack([y >> np.uint32(4) & np.uint32(0xFFF), y >> np.uint32(20)], axis=2)
    return halves.reshape(groups, _GROUP).astype(np.int32)


def _scale_bytes(value_type: int, count: int) -> int:
    return 4 * _ceil_div(count, _GROUP) if value_type >= _INT8 else 0


def _validate_values(data: _Bytes, value_type: int, count: int) -> None:
    spare = -count * _CODE_BITS[value_type] % 8
    if spare and data[value_bytes(value_type, count) - 1] >> (8 - spare):
        raise MessageError("spare bits after the values must be zero")


# ---- messages --------------------------------------------------------------------------------


def crc32(data: _Bytes) -> int:
    """Return zlib's CRC-32."""
    return zlib.crc32(data.data)


def encode_message(
    indices: _Array, values: _Bytes, n: int, codec: int, value_type: int, out: _Bytes
) -> int:
    """Encode into `out` and return the number of bytes."""
    index_bytes = encode_indices(indices, n, codec, out[_HEADER.size :])
    value_at = _HEADER.size + _padded(index_bytes)
    size = value_at + values.size
    out[_HEADER.size + index_bytes : value_at] = 0
    out[value_at:size] = values
    fields = (_MAGIC, _VERSION, codec, value_type, 0, n, indices.size, index_bytes)
    _HEADER.pack_into(out.data, 0, *fields, 0, 0)
    _HEADER.pack_into(out.data, 0, *fields, _message_checksum(out[:size]), 0)
    return size


def pack_header(n: int, k: int, index_bytes: int, codec: int, value_type: int) -> bytes:
    """Return a header with zeros for the checksum."""
    return _HEADER.pack(_MAGIC, _VERSION, codec, value_type, 0, n, k, index_bytes, 0, 0)


def encode_full_message(values: _Bytes, n: int, value_type: int, out: _Bytes) -> int:
    """Encode all n entries of a vector."""
    return encode_message(np.arange(n), values, n, _FULL, value_type, out)


def read_header(data: _Bytes) -> tuple[int, int, int, int, int, int, int]:
    """Return version, codec, value type, n, k, index_bytes, checksum after checks."""
    return parse_header(data, data.size)


def parse_header(data: _Bytes, size: int) -> tuple[int, int, int, int, int, int, int]:
    """Do so for a message of `size` bytes, of which those of the header are in `data`."""
    _check_kind(data)
    _, version, codec, value_type, _, n, k, index_bytes, checksum, _ = _HEADER.unpack_from(
        data.data
    )
    if n > 2**40 or k > n:
        raise MessageError(f"header must have k <= n <= 2^40, got n = {n} and k = {k}")
    if index_bytes > size:
        raise MessageError(
            f"message is truncated: its indices take {index_bytes} bytes, the message has {size}"
        )
    expected = _HEADER.size + _padded(index_bytes) + value_bytes(value_type, k)
    if size != expected:
        raise MessageError(f"message must take {expected} bytes by its header, got {size}")
    return version, codec, value_type, n, k, index_bytes, checksum


def decode_message(data: _Bytes, indices: _Array, values: _Array) -> None:
    """Decode into arrays of the sizes and dtypes that the header gives."""
    _, codec, value_type, n, k, index_bytes, checksum = read_header(data)
    _verify_message(data, index_bytes, checksum)
    encoded = data[_HEADER.size + _padded(index_bytes) :]
    _validate_values(encoded, value_type, k)
    decode_indices(data[_HEADER.size :][:index_bytes], n, codec, indices)
    if value_type == _FLOAT64:
        values.view(np.uint8)[:] = encoded
    else:
        dequantize(encoded, value_type, values)


def decode_add_message(data: _Bytes, dense: _Array, scale: float) -> None:
    """Decode, then scatter-add."""
    _, _, value_type, n, k, _, _ = read_header(data)
    check_message_fits(n, value_type, dense.size, dense.dtype)
    indices, values = np.empty(k, np.uint64), np.empty(k, dense.dtype)
    decode_message(data, indices, values)
    scatter_add(dense, indices, values, scale)


def decode_sum_messages(
    messages: list[_Bytes], dense: _Array, scale: float, indices: _Array, values: _Array
) -> None:
    """Overwrite with the sum of all messages' vectors."""
    total = np.zeros_like(dense)
    for where, what in _decode_all(messages, dense.size, indices, values):
        scatter_add(total, where, what, scale)
    dense[:] = total


def decode_merge_messages(
    messages: list[_Bytes],
    n: int,
    indices: _Array,
    values: _Array,
    to_indices: _Array,
    to_values: _Array,
) -> int:
    """List the entries of that sum that are not zero; return how many they are."""
    vectors = _decode_all(messages, n, indices, values)
    places = np.unique(np.concatenate([indices[:0], *(where for where, _ in vectors)]))
    total = np.zeros(places.size, values.dtype)
    for where, what in vectors:
        scatter_add(total, np.searchsorted(places, where), what, 1)
    found = np.flatnonzero(total)
    to_indices[: found.size] = places[found]
    to_values[: found.size] = total[found]
    return found.size


def _decode_all(
    messages: list[_Bytes], n: int, indices: _Array, values: _Array
) -> list[tuple[_Array, _Array]]:
    """Decode messages one behind the other, and return what each has become."""
    vectors, used, room = [], 0, min(indices.size, values.size)
    for data in messages:
        _, _, value_type, length, k, _, _ = read_header(data)
        check_message_fits(length, value_type, n, values.dtype)
        if k > room - used:
            raise ValueError(f"indices and values must have room for all entries, got {room}")
        part = slice(used, used + k)
        decode_message(data, indices[part], values[part])
        vectors.append((indices[part], values[part]))
        used += k
    return vectors


def check_message_fits(n: int, value_type: int, size: int, dtype: np.dtype[Any]) -> None:
    """Raise MessageError unless a message is for a dense vector of this size and dtype."""
    decoded = np.dtype(np.float64 if value_type == _FLOAT64 else np.float32)
    if decoded != dtype or n != size:
        raise MessageError(
            f"message must be for {size} entries of {dtype} as dense is, got {n} of {decoded}"
        )


def _check_kind(data: _Bytes) -> None:
    if data.size < _HEADER.size:
        raise MessageError(
            f"message is truncated: the header takes {_HEADER.size} bytes, got {data.size}"
        )
    magic, version, codec, value_type, flags, *_, reserved = _HEADER.unpack_from(data.data)
    if magic != _MAGIC:
        wanted, got = (int.from_bytes(word, "little") for word in (_MAGIC, magic))
        raise MessageError(f"not a message: expected magic {wanted:08x}, got {got:08x}")
    if version != _VERSION:
        raise MessageError(f"message version must be {_VERSION}, got {version}")
    if not _RICE <= codec <= _FULL:
        raise MessageError(f"index codec must be from 1 to 5, got {codec}")
    if not _FLOAT32 <= value_type <= _SIGN:
        raise MessageError(f"value type must be from 1 to 7, got {value_type}")
    if flags or reserved:
        raise MessageError("reserved bytes of the header must be zero")


def _verify_message(data: _Bytes, index_bytes: int, checksum: int) -> None:
    check_checksum(_message_checksum(data), checksum)
    if data[_HEADER.size + index_bytes : _HEADER.size + _padded(index_bytes)].any():
        raise MessageError("padding between indices and values must be zero")


def check_checksum(computed: int, told: int) -> None:
    """Raise MessageError unless the checksum of a message is the one that its header tells."""
    if computed != told:
        raise MessageError(
            f"message was altered: its checksum is {computed:08x}, the header says {told:08x}"
        )


def _message_checksum(data: _Bytes) -> int:
    crc = zlib.crc32(bytes(4), zlib.crc32(data[:_CHECKSUM_AT].data))
    return zlib.crc32(data[_CHECKSUM_AT + 4 :].data, crc)


def _padded(size: int) -> int:
    return _ceil_div(size, 8) * 8


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def _pack(bits: _Array) -> bytes:
    return np.packbits(bits, bitorder="little").tobytes()


def _unpack(data: _Bytes) -> _Bytes:
    return np.unpackbits(data, bitorder="little")
