"""Callers' errors: arrays of the wrong kind are refused with a clear error before any write."""

import numpy as np
import pytest

from paropt_hpc.kernels import index_codec, message, quantize, reduce

N = 64
INDICES = np.arange(0, N, 2, dtype=np.uint32)
VALUES = np.linspace(-1, 1, INDICES.size).astype(np.float32)
CODES = index_codec.encode(INDICES, N)
MESSAGE = message.encode(INDICES, VALUES, N)
INT8 = quantize.encode(VALUES, "int8").data


def misaligned(array):
    room = np.empty(array.nbytes + 1, np.uint8)[1:]
    room[:] = array.view(np.uint8)
    return room.view(array.dtype)


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def room(dtype, size=256):
    return np.zeros(size, dtype)


#: what is wrong with an array, and what the error says
DAMAGE = {
    "strided": (lambda a: np.repeat(a, 2)[::2], ValueError, "contiguous, got a stride of"),
    "negative stride": (lambda a: a[::-1], ValueError, "contiguous, got a stride of -"),
    "misaligned": (misaligned, ValueError, r"aligned to \d bytes; pass a copy"),
    "two dimensions": (lambda a: a.reshape(2, -1), ValueError, r"one dimension, got shape \(2, "),
    "another dtype": (lambda a: a.astype(np.int16), TypeError, "got int16; convert it with astype"),
    "a list": (lambda a: a.tolist(), TypeError, "(numpy array|bytes or a uint8 array), got list"),
}

#: each input, given an array and somewhere to write
INPUTS = {
    "index_codec.encode": (INDICES, np.uint8, lambda a, out: index_codec.encode(a, N, out=out)),
    "index_codec.choose": (INDICES, np.uint8, lambda a, out: index_codec.choose(a, N)),
    "message.encode indices": (
        INDICES,
        np.uint8,
        lambda a, out: message.encode(a, VALUES, N, out=out),
    ),
    "message.encode values": (
        VALUES,
        np.uint8,
        lambda a, out: message.encode(INDICES, a, N, out=out),
    ),
    "message.encode all": (
        VALUES,
        np.uint8,
        lambda a, out: message.encode(None, a, VALUES.size, out=out),
    ),
    "quantize.encode": (VALUES, np.uint8, lambda a, out: quantize.encode(a, "int8", out=out)),
    "reduce.scatter_add": (
        VALUES,
        np.float32,
        lambda a, out: reduce.scatter_add(out, INDICES, a),
    ),
}

#: each input of bytes
BYTES = {
    "index_codec.decode": (
        CODES,
        INDICES,
        lambda a, out: index_codec.decode(a, N, INDICES.size, out=out),
    ),
    "message.decode_add": (
        MESSAGE,
        np.zeros(N, np.float32),
        lambda a, out: message.decode_add(a, out),
    ),
    "quantize.decode": (
        INT8,
        VALUES,
        lambda a, out: quantize.decode(a, "int8", VALUES.size, out),
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("name", INPUTS)
def test_bad_inputs(path, name, damage):
    good, dtype, call = INPUTS[name]
    spoil, error, text = DAMAGE[damage]
    out = room(dtype)
    with pytest.raises(error, match=text):
        call(spoil(good), out)
    assert not out.any()
    call(good, out)


@pytest.mark.parametrize("damage", [d for d in DAMAGE if d != "misaligned"])
@pytest.mark.parametrize("name", BYTES)
def test_bad_bytes(path, name, damage):
    good, like, call = BYTES[name]
    spoil, error, text = DAMAGE[damage]
    out = np.zeros_like(like)
    good = good[: good.size // 2 * 2]  # two dimensions need an even number
    with pytest.raises(error, match=text):
        call(spoil(good), out)
    assert not out.any()


@pytest.mark.parametrize("damage", [*(d for d in DAMAGE if d != "a list"), "read-only"])
@pytest.mark.parametrize("name", BYTES)
def test_bad_outputs(path, name, damage):
    data, like, call = BYTES[name]
    spoil, error, text = {**DAMAGE, "read-only": (read_only, ValueError, "writable")}[damage]
    out = spoil(np.zeros_like(like))
    with pytest.raises(error, match=text):
        call(data, out)
    assert not np.asarray(out).any()


@pytest.mark.parametrize("name", [name for name in INPUTS if "choose" not in name])
def test_outputs_that_cannot_be_written(path, name):
    good, dtype, call = INPUTS[name]
    with pytest.raises(ValueError, match="must be writable, got a read-only array; pass a copy"):
        call(good, read_only(room(dtype)))
    if dtype == np.uint8:
        out = room(dtype, 3)
        with pytest.raises(ValueError, match=r"out must have at least \d+ bytes, got 3"):
            call(good, out)
        assert not out.any()


@pytest.mark.parametrize("residual", [VALUES[:-1].copy(), VALUES.astype(float), misaligned(VALUES)])
def test_bad_residuals(path, residual):
    before, out = residual.copy(), room(np.uint8)
    with pytest.raises((TypeError, ValueError), match="residual must"):
        quantize.encode(VALUES, "sign", residual, out=out)
    assert not out.any()
    np.testing.assert_array_equal(residual, before)


@pytest.mark.parametrize(
    ("n", "k", "text"),
    [
        (-1, 0, r"n must be in \[0, 2\*\*40\], got -1"),
        (2**40 + 1, 0, r"n must be in \[0, 2\*\*40\], got 1099511627777"),
        (5, -1, r"k must be in \[0, 5\], got -1"),
        (5, 6, r"k must be in \[0, 5\], got 6"),
    ],
)
def test_counts_out_of_range(path, n, k, text):
    calls = [
        lambda: index_codec.max_encoded_bytes(n, k),
        lambda: index_codec.decode(b"", n, k),
        lambda: index_codec.validate(b"", n, k),
        lambda: message.max_bytes(n, k, np.float32),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=text):
            call()


@pytest.mark.parametrize(
    ("indices", "text"),
    [
        ([3, 2], "strictly ascending, got 3 before 2"),
        ([2, 2], "strictly ascending, got 2 before 2"),
        ([2, N], f"below n = {N}, got {N}"),
        ([2**32 - 1], f"below n = {N}, got {2**32 - 1}"),
    ],
)
@pytest.mark.parametrize("codec", ["auto", "rice", "bitmap", "elias_fano", "raw"])
def test_bad_indices(path, codec, indices, text):
    indices, out = np.array(indices, np.uint32), room(np.uint8, 1000)
    values = np.ones(indices.size, np.float32)
    with pytest.raises(ValueError, match=text):
        index_codec.encode(indices, N, codec, out)
    with pytest.raises(ValueError, match=text):
        message.encode(indices, values, N, out, codec)
    assert not out.any()


def test_a_negative_count_of_values(path):
    with pytest.raises(ValueError, match="count must be in"):
        quantize.decode(b"", "int8", -1)
