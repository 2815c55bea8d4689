"""The kernels for arrays on a GPU: the functions of ``_native`` by those of ``_cuda``.

They expect arguments that the modules of this package have checked, work on the stream that the
first array names, and wait for what they return. On the GPU the indices of a sum must be strictly
ascending, since one thread adds to an entry.
"""

from typing import Any

import numpy as np

from paropt_hpc.errors import MessageError
from paropt_hpc.kernels import device, reference
from paropt_hpc.kernels.device import View, view

__all__ = [
    "add",
    "choose_codec",
    "decode_add_message",
    "decode_indices",
    "decode_message",
    "dequantize",
    "encode_full_message",
    "encode_indices",
    "encode_message",
    "max_chosen_bytes",
    "max_encoded_bytes",
    "quantize",
    "reach",
    "read_header",
    "scatter_add",
    "scatter_sum",
    "topk",
    "validate_indices",
    "value_bytes",
]

_RICE, _BITMAP, _ELIAS_FANO, _RAW, _FULL = 1, 2, 3, 4, 5
_HEADER_BYTES, _CHECKSUM_AT = 40, 32

# Numbers only.
max_chosen_bytes = reference.max_chosen_bytes
max_encoded_bytes = reference.max_encoded_bytes
value_bytes = reference.value_bytes


def topk(gradient: Any, residual: Any, k: int, indices: Any, values: Any, hint: Any = None) -> int:
    """Select the largest magnitudes; the hint stays as it is."""
    cuda, g, r = device.required(), view(gradient), _optional(residual)
    i, v = view(indices), view(values)
    stream = device.stream_of(g, r, i, v)
    letter, wide = g.dtype.char, _wide(i)
    room = device.workspace(cuda.topk_workspace(letter, wide, g.size, k), g, stream)
    where = (g.pointer, r.pointer, g.size, k, i.pointer, v.pointer)
    return int(cuda.topk(letter, wide, *where, room, stream))


def reach(gradient: Any, residual: Any, key: int) -> tuple[Any, Any, int]:
    """Return the entries whose key reaches `key`, and how many of all are not finite."""
    cuda, g, r = device.required(), view(gradient), _optional(residual)
    stream, letter = device.stream_of(g, r), g.dtype.char
    acc = g if residual is None else r
    wide = g.size > 2**32
    room = device.workspace(cuda.topk_workspace(letter, wide, g.size, 0), g, stream)
    k, nonfinite = cuda.reach_count(letter, g.pointer, r.pointer, g.size, key, room, stream)
    indices = device.empty(k, np.uint64 if wide else np.uint32, gradient)
    values = device.empty(k, g.dtype, gradient)
    to = view(indices).pointer, view(values).pointer
    where = (acc.pointer, residual is not None, g.size, key, k, *to)
    cuda.reach_take(letter, wide, *where, room, stream)
    return indices, values, int(nonfinite)


def add(out: Any, array: Any) -> None:
    """Add in place."""
    o, a = view(out), view(array)
    stream = device.stream_of(o, a)
    device.required().add(o.dtype.char, o.pointer, a.pointer, o.size, stream)


def scatter_add(dense: Any, indices: Any, values: Any, scale: float) -> None:
    """Add at indices that strictly ascend."""
    cuda, d, i, v = device.required(), view(dense), view(indices), view(values)
    stream = device.stream_of(d, i, v)
    room = device.workspace(cuda.SCATTER_WORKSPACE, d, stream)
    where = (d.pointer, d.size, i.pointer, v.pointer, i.size)
    cuda.scatter_add(d.dtype.char, _wide(i), *where, scale, room, stream)


def scatter_sum(dense: Any, vectors: list[tuple[Any, Any]], scale: float) -> None:
    """Overwrite with the sum of vectors whose indices strictly ascend."""
    cuda, d = device.required(), view(dense)
    parts = [(view(indices), view(values)) for indices, values in vectors]
    stream = device.stream_of(d, *(v for part in parts for v in part))
    room = device.workspace(cuda.SCATTER_WORKSPACE, d, stream)
    places = [(i.pointer, v.pointer, i.size) for i, v in parts]
    wide = any(_wide(i) for i, _ in parts)
    cuda.scatter_sum(d.dtype.char, wide, d.pointer, d.size, places, scale, room, stream)


# ---- indices ---------------------------------------------------------------------------------


def choose_codec(indices: Any, n: int) -> int:
    """Return the codec of the fewest bytes; rice where it is as good as another."""
    k = view(indices).size
    if k == 0:
        return _RICE
    if k == n:
        return _FULL
    others = {codec: max_encoded_bytes(n, k, codec) for codec in (_BITMAP, _RAW)}
    best = min(others, key=lambda codec: others[codec])
    if max_encoded_bytes(n, k, _RICE) <= others[best]:
        return _RICE
    i = view(indices)
    return _RICE if _rice_bytes(i, n, i.stream) <= others[best] else best


def _rice_bytes(i: View, n: int, stream: int) -> int:
    room = _codec_room(n, i.size, _RICE, i, stream)
    return int(device.required().rice_bytes(_wide(i), i.pointer, i.size, n, room, stream))


def encode_indices(indices: Any, n: int, codec: int, out: Any) -> int:
    """Encode into `out` and return the number of bytes."""
    i, o = view(indices), view(out)
    if codec == _FULL and i.size != n:
        raise ValueError(f"codec full must have all {n} entries, got {i.size}")
    size = max_encoded_bytes(n, i.size, codec)
    if o.size < size and not (codec == _RICE and o.size >= _rice_bytes(i, n, i.stream)):
        raise ValueError("output array is too short")
    return _encode_indices(i, n, codec, o.pointer, device.stream_of(i, o))


def _encode_indices(i: View, n: int, codec: int, out: int, stream: int) -> int:
    if i.size == 0 and codec != _BITMAP:
        return 0
    if codec == _FULL:  # nothing to write, but the indices are checked
        _rice_bytes(i, n, stream)
        return 0
    room = _codec_room(n, i.size, codec, i, stream)
    where = (i.pointer, i.size, n, codec, out)
    return int(device.required().encode_indices(_wide(i), *where, room, stream))


def decode_indices(data: Any, n: int, codec: int, out: Any) -> None:
    """Decode as many indices as `out` has entries."""
    d, o = view(data), view(out)
    _decode_indices(d.pointer, d.size, n, codec, o, device.stream_of(d, o))


def _decode_indices(data: int, size: int, n: int, codec: int, o: View, stream: int) -> None:
    room = _codec_room(n, o.size, codec, o, stream)
    where = (data, size, n, o.size, codec, o.pointer)
    device.required().decode_indices(_wide(o), *where, room, stream)


def validate_indices(data: Any, n: int, k: int, codec: int) -> None:
    """Raise MessageError unless the bytes can be decoded."""
    d = view(data)
    room = _codec_room(n, k, codec, d, d.stream)
    device.required().validate_indices(d.pointer, d.size, n, k, codec, room, d.stream)


def _codec_room(n: int, k: int, codec: int, near: View, stream: int) -> int:
    return device.workspace(device.required().codec_workspace(n, k, codec), near, stream)


# ---- values ----------------------------------------------------------------------------------


def quantize(values: Any, residual: Any, value_type: int, seed: int, out: Any) -> tuple[int, int]:
    """Encode into `out`, leave the rest in `residual`; count what saturated and was not finite."""
    cuda, v, r, o = device.required(), view(values), _optional(residual), view(out)
    stream = device.stream_of(v, r, o)
    room = device.workspace(cuda.QUANTIZE_WORKSPACE, v, stream)
    where = (v.pointer, r.pointer, v.size, value_type, seed, o.pointer)
    saturated, nonfinite = cuda.quantize(*where, room, stream)
    return int(saturated), int(nonfinite)


def dequantize(data: Any, value_type: int, out: Any) -> None:
    """Decode as many values as `out` has entries."""
    cuda, d, o = device.required(), view(data), view(out)
    size = value_bytes(value_type, o.size)
    if d.size != size:
        raise MessageError(f"{o.size} values must take {size} bytes, got {d.size}")
    stream = device.stream_of(d, o)
    cuda.validate_values(d.pointer, value_type, o.size, stream)
    cuda.dequantize(d.pointer, value_type, o.size, o.pointer, stream)


# ---- messages --------------------------------------------------------------------------------


def encode_message(indices: Any, values: Any, n: int, codec: int, value_type: int, out: Any) -> int:
    """Encode into `out` and return the number of bytes."""
    cuda, i, v, o = device.required(), view(indices), view(values), view(out)
    stream = device.stream_of(i, v, o)
    payload = o.pointer + _HEADER_BYTES
    index_bytes = _encode_indices(i, n, codec, payload, stream)
    padded = -(-index_bytes // 8) * 8
    cuda.fill(payload + index_bytes, 0, padded - index_bytes, stream)
    cuda.copy(payload + padded, v.pointer, _size(v), stream)
    fields = (n, i.size, index_bytes, codec, value_type)
    return _seal(o.pointer, _HEADER_BYTES + padded + _size(v), fields, stream)


def encode_full_message(values: Any, n: int, value_type: int, out: Any) -> int:
    """Encode all n entries of a vector; the values may be in place."""
    v, o = view(values), view(out)
    stream = device.stream_of(v, o)
    to = o.pointer + _HEADER_BYTES
    if v.pointer != to:
        device.required().copy(to, v.pointer, _size(v), stream)
    return _seal(o.pointer, _HEADER_BYTES + _size(v), (n, n, 0, _FULL, value_type), stream)


def _seal(message: int, size: int, fields: tuple[int, int, int, int, int], stream: int) -> int:
    cuda = device.required()
    header = np.frombuffer(reference.pack_header(*fields), np.uint8)
    cuda.copy_to_device(message, header, stream)
    cuda.crc32(message, size, _CHECKSUM_AT, message + _CHECKSUM_AT, stream)
    return size


def read_header(data: Any) -> tuple[int, int, int, int, int, int, int]:
    """Return version, codec, value type, n, k, index_bytes, checksum after checks."""
    d = view(data)
    start = np.empty(min(d.size, _HEADER_BYTES), np.uint8)
    device.required().copy_to_host(start, d.pointer, d.stream)
    return reference.parse_header(start, d.size)


def _verified(d: View, header: tuple[int, ...], stream: int) -> tuple[int, int]:
    """Check a message but for its indices; return the addresses of indices and values."""
    cuda = device.required()
    _, _, value_type, _, k, index_bytes, checksum = header
    room, computed = device.workspace(4, d, stream), np.empty(1, np.uint32)
    cuda.crc32(d.pointer, d.size, _CHECKSUM_AT, room, stream)
    cuda.copy_to_host(computed, room, stream)
    reference.check_checksum(int(computed[0]), checksum)
    payload = d.pointer + _HEADER_BYTES
    padded = -(-index_bytes // 8) * 8
    spare = np.empty(padded - index_bytes, np.uint8)
    if spare.size:
        cuda.copy_to_host(spare, payload + index_bytes, stream)
    if spare.any():
        raise MessageError("padding between indices and values must be zero")
    cuda.validate_values(payload + padded, value_type, k, stream)
    return payload, payload + padded


def decode_message(data: Any, indices: Any, values: Any) -> None:
    """Decode a message whose header has been read."""
    cuda, d, i, v = device.required(), view(data), view(indices), view(values)
    header = read_header(data)
    _, codec, value_type, n, k, index_bytes, _ = header
    stream = device.stream_of(d, i, v)
    payload, encoded = _verified(d, header, stream)
    _decode_indices(payload, index_bytes, n, codec, i, stream)
    if v.dtype.itemsize == 8:
        cuda.copy(v.pointer, encoded, 8 * k, stream)
    else:
        cuda.dequantize(encoded, value_type, k, v.pointer, stream)


def decode_add_message(data: Any, dense: Any, scale: float) -> None:
    """Add the entries of a message to a dense vector."""
    cuda, d, out = device.required(), view(data), view(dense)
    header = read_header(data)
    _, codec, value_type, n, k, index_bytes, _ = header
    reference.check_message_fits(n, value_type, out.size, out.dtype)
    stream = device.stream_of(out, d)
    payload, encoded = _verified(d, header, stream)
    room = _codec_room(n, k, codec, out, stream)
    where = (payload, index_bytes, n, k, codec, value_type, encoded, scale, out.pointer)
    cuda.decode_scatter_add(out.dtype.char, *where, room, stream)


def _optional(array: Any) -> View:
    return View(0, (0,), np.dtype(np.uint8), True, True, 0) if array is None else view(array)


def _wide(indices: View) -> bool:
    return indices.dtype.itemsize == 8


def _size(values: View) -> int:
    return values.size * values.dtype.itemsize
