import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paropt_hpc.errors import MessageError
from paropt_hpc.kernels import backend, message, quantize, reference
from paropt_hpc.kernels.index_codec import Codec, index_dtype

FIXTURES = Path(__file__).parents[2] / "fixture"
DTYPES = [np.float32, np.float64]
CODECS = ["rice", "bitmap", "elias_fano", "raw"]


def bits(array):
    return array.view(f"u{array.itemsize}")


def sparse(n, k, dtype, seed=0):
    rng = np.random.default_rng(seed)
    indices = np.sort(rng.choice(n, k, replace=False)).astype(index_dtype(n))
    return indices, rng.standard_normal(k).astype(dtype)


def check_round_trip(indices, values, n, codec):
    k = indices.size
    data = message.encode(indices, values, n, codec=codec)
    assert data.size <= message.max_bytes(n, k, values.dtype, codec)

    twin = np.empty(message.max_bytes(n, k, values.dtype, codec), np.uint8)
    number, value_type = Codec[codec.upper()], 1 if values.dtype == np.float32 else 2
    size = reference.encode_message(indices, values.view(np.uint8), n, number, value_type, twin)
    assert data.tobytes() == twin[:size].tobytes()

    head = message.header(data)
    assert (head.version, head.codec.name) == (1, codec.upper())
    assert (head.dtype, head.n, head.k) == (values.dtype, n, k)
    decoded = message.decode(data.tobytes())
    assert decoded.indices.dtype == indices.dtype
    assert decoded.n == n
    np.testing.assert_array_equal(decoded.indices, indices)
    np.testing.assert_array_equal(bits(decoded.values), bits(values))


def check_decode_add(indices, values, n, codec, scale):
    dense = np.random.default_rng(1).standard_normal(n).astype(values.dtype)
    expected = dense.copy()
    expected[indices] += values.dtype.type(scale) * values
    message.decode_add(message.encode(indices, values, n, codec=codec), dense, scale)
    np.testing.assert_array_equal(bits(dense), bits(expected))


def check_decode_sum(dense, encoded, scale):
    expected = np.zeros_like(dense)
    for data in encoded:
        message.decode_add(data, expected, scale)
    dense[:] = np.nan
    message.decode_sum(encoded, dense, scale)
    np.testing.assert_array_equal(bits(dense), bits(expected))


def check_rejected(data, n, dtype):
    """A bad message raises the same MessageError everywhere and changes nothing."""
    dense = np.ones(n, dtype)
    with pytest.raises(MessageError) as caught:
        message.decode_add(data, dense)
    with pytest.raises(MessageError) as summed:
        message.decode_sum([data], dense)
    assert str(summed.value) == str(caught.value)
    assert (dense == 1).all()
    with pytest.raises(MessageError):
        message.decode(data)
    with pytest.raises(MessageError) as twin:
        reference.decode_add_message(data, dense, 1)
    assert str(caught.value) == str(twin.value)
    return str(caught.value)


def with_checksum(data):
    """Return the message as an attacker would: with a checksum that fits the damage."""
    data = data.copy()
    data[32:36] = 0
    data[32:36] = np.frombuffer(zlib.crc32(data).to_bytes(4, "little"), np.uint8)
    return data


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("n", "k"), [(0, 0), (1, 0), (1, 1), (9, 9), (1000, 7), (9000, 1025)])
def test_round_trip(path, dtype, codec, n, k):
    indices, values = sparse(n, k, dtype)
    check_round_trip(indices, values, n, codec)
    check_decode_add(indices, values, n, codec, 1)
    check_decode_add(indices, values, n, codec, -1 / 3)


def test_round_trip_of_a_long_vector(path):
    indices = np.array([0, 2**32, 2**40 - 1], np.uint64)
    check_round_trip(indices, np.array([1, -0.0, np.nan]), 2**40, "rice")


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.data())
def test_any_message(path, codec, data):
    n = data.draw(st.integers(0, 200))
    chosen = sorted(data.draw(st.sets(st.integers(0, n - 1)))) if n else []
    values = data.draw(st.lists(st.floats(), min_size=len(chosen), max_size=len(chosen)))
    check_round_trip(np.array(chosen, np.uint32), np.array(values, np.float64), n, codec)


@pytest.mark.parametrize("codec", CODECS)
def test_every_truncation(path, codec):
    n, (indices, values) = 50, sparse(50, 5, np.float32)
    good = message.encode(indices, values, n, codec=codec)
    for size in range(good.size):
        check_rejected(good[:size], n, np.float32)
    check_rejected(np.append(good, np.uint8(0)), n, np.float32)


@pytest.mark.parametrize("codec", CODECS)
def test_every_bit_flip(path, codec):
    n, (indices, values) = 50, sparse(50, 5, np.float32)
    good = message.encode(indices, values, n, codec=codec)
    for bit in range(8 * good.size):
        bad = good.copy()
        bad[bit // 8] ^= 1 << bit % 8
        check_rejected(bad, n, np.float32)


@pytest.mark.parametrize("codec", CODECS)
def test_every_bit_flip_with_a_fitting_checksum(path, codec):
    n, (indices, values) = 50, sparse(50, 5, np.float32)
    good = message.encode(indices, values, n, codec=codec)
    value_at = good.size - values.nbytes
    rejected = 0
    for bit in range(8 * value_at):
        bad = good.copy()
        bad[bit // 8] ^= 1 << bit % 8
        bad = with_checksum(bad)
        try:
            decoded = message.decode(bad)
        except MessageError:
            check_rejected(bad, n, np.float32)
            rejected += 1
            continue
        # What gets through is what a sender could have sent.
        assert decoded.indices.size <= decoded.n
        assert (np.diff(decoded.indices.astype(int)) > 0).all()
        assert not decoded.indices.size or decoded.indices[-1] < decoded.n
    assert rejected > 4 * value_at


HEAD = 40


@pytest.mark.parametrize(
    ("at", "value", "text"),
    [
        (0, 0, "not a message: expected magic 54505250, got 54505200"),
        (4, 2, "message version must be 1, got 2"),
        (5, 6, "index codec must be from 1 to 5, got 6"),
        (6, 9, "value type must be from 1 to 7, got 9"),
        (7, 1, "reserved bytes of the header must be zero"),
        (36, 1, "reserved bytes of the header must be zero"),
        (14, 1, r"k <= n <= 2\^40, got n = 281474976710706 and k = 5"),
        (16, 99, "got n = 50 and k = 99"),
        (31, 1, "indices take 72057594037927942 bytes, the message has 68"),
        (24, 9, "must take 76 bytes by its header, got 68"),
        (16, 4, "must take 64 bytes by its header, got 68"),
        (HEAD + 6, 1, "message was altered: its checksum is [0-9a-f]{8}, the header says"),
    ],
)
def test_what_is_wrong_is_said(path, at, value, text):
    indices, values = sparse(50, 5, np.float32)
    bad = message.encode(indices, values, 50, codec="rice")
    assert bad.size == 68
    bad[at] = value
    with pytest.raises(MessageError, match=text):
        message.decode(bad)
    check_rejected(bad, 50, np.float32)


QUANTISED = ["float16", "bfloat16", "int8", "qsgd4", "sign"]


@pytest.mark.parametrize("value_type", QUANTISED)
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(("n", "k"), [(0, 0), (9, 9), (9000, 1025), (3000, 2999)])
def test_quantised_values(path, value_type, codec, n, k):
    indices, values = sparse(n, k, np.float32)
    quantised = quantize.encode(values, value_type, seed=5)
    data = message.encode(indices, quantised, n, codec=codec)
    assert data.size <= message.max_bytes(n, k, quantised.type, codec)
    assert message.header(data).value_type is quantised.type
    sent = quantize.decode(quantised.data, value_type, k)
    decoded = message.decode(data)
    np.testing.assert_array_equal(decoded.indices, indices)
    np.testing.assert_array_equal(bits(decoded.values), bits(sent))
    dense = np.ones(n, np.float32)
    expected = dense.copy()
    expected[indices] += np.float32(0.3) * sent
    message.decode_add(data, dense, 0.3)
    np.testing.assert_array_equal(bits(dense), bits(expected))


TYPES = ["float32", "float64", *QUANTISED]


def whole(n, value_type, seed=0):
    """Return a vector, and what a message of all its entries holds and decodes to."""
    values = np.random.default_rng(seed).standard_normal(n)
    if value_type in ("float32", "float64"):
        values = values.astype(value_type)
        return values, values
    quantised = quantize.encode(values.astype(np.float32), value_type, seed=seed)
    return quantised, quantize.decode(quantised.data, value_type, n)


@pytest.mark.parametrize("value_type", TYPES)
@pytest.mark.parametrize("n", [0, 1, 255, 256, 257, 1023, 1024, 1025, 5000])
def test_a_whole_vector(path, value_type, n):
    values, sent = whole(n, value_type)
    data = message.encode(None, values, n)
    kind = quantize.ValueType[value_type.upper()]
    assert data.size == message.max_bytes(n, n, kind) == 40 + quantize.encoded_bytes(kind, n)
    indices = np.arange(n, dtype=np.uint32)
    assert message.encode(indices, values, n, codec="full").tobytes() == data.tobytes()
    head = message.header(data)
    assert (head.codec, head.value_type, head.n, head.k) == (Codec.FULL, kind, n, n)
    decoded = message.decode(data)
    np.testing.assert_array_equal(decoded.indices, indices)
    np.testing.assert_array_equal(bits(decoded.values), bits(sent))
    dense = np.linspace(-1, 1, n).astype(sent.dtype)
    expected = dense + sent.dtype.type(0.3) * sent
    message.decode_add(data, dense, 0.3)
    np.testing.assert_array_equal(bits(dense), bits(expected))
    if n:
        check_rejected(data[:-1], n, sent.dtype)
        check_rejected(with_checksum(np.append(data, np.uint8(0))), n, sent.dtype)


def test_values_of_a_whole_vector_in_place(path):
    values, _ = whole(1000, "int8")
    out = np.empty(message.max_bytes(1000, 1000, values.type), np.uint8)
    out[message.HEADER_BYTES :] = values.data
    in_place = values._replace(data=out[message.HEADER_BYTES :])
    data = message.encode(None, in_place, 1000, out)
    assert data.tobytes() == message.encode(None, values, 1000).tobytes()
    with pytest.raises(ValueError, match="out and values must not overlap"):
        message.encode(None, values._replace(data=out[: values.data.size]), 1000, out)


def test_full_must_be_all(path):
    data = message.encode(None, X5, 5)
    for k, n in ((4, 5), (5, 6)):
        bad = data[: 40 + 4 * k].copy()
        bad[8], bad[16] = n, k
        assert f"all {n} entries, got 0 bytes for {k}" in check_rejected(
            with_checksum(bad), n, np.float32
        )
    with pytest.raises(ValueError, match="codec full must have all 9 entries, got 5"):
        message.encode(I5, X5, 9, codec="full")
    with pytest.raises(ValueError, match="ascending, got 4 before 3"):
        message.encode(I5[::-1].copy(), X5, 5)
    with pytest.raises(ValueError, match="auto or full without indices, got 'rice'"):
        message.encode(None, X5, 5, codec="rice")


@given(n=st.integers(0, 3000), data=st.data())
def test_a_buffer_for_fewer_entries(n, data):
    most = data.draw(st.integers(0, n))
    room = message.max_bytes_up_to(n, most, np.float32)
    ks = range(most + 1) if n < 200 else [data.draw(st.integers(0, most)) for _ in range(20)]
    assert all(message.max_bytes(n, k, np.float32) <= room for k in ks)


def test_a_buffer_longer_than_needed(path):
    """Also by less than the padding of the indices, eight bytes."""
    indices = np.array([5, 17, 18, 25, 30, 32, 37, 48], np.uint32)
    values = np.arange(8, dtype=np.float32)
    expected = message.encode(indices, values, 58)
    room = message.max_bytes(58, 8, np.float32)
    for more in range(20):
        data = message.encode(indices, values, 58, out=np.empty(room + more, np.uint8))
        assert np.array_equal(data, expected)


def test_quantised_values_of_another_number(path):
    indices, values = sparse(50, 5, np.float32)
    with pytest.raises(ValueError, match="values must have 5 entries, got 4"):
        message.encode(indices, quantize.encode(values[:4], "int8"), 50)
    short = quantize.encode(values, "int8")
    with pytest.raises(ValueError, match=r"values.data must have 9 entries, got 8"):
        message.encode(indices, short._replace(data=short.data[:-1]), 50)


def test_spare_bits_of_values_must_be_zero(path):
    indices, values = sparse(50, 5, np.float32)
    bad = message.encode(indices, quantize.encode(values, "sign"), 50)
    bad[-1] |= 0x80
    assert "spare bits after the values" in check_rejected(with_checksum(bad), 50, np.float32)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [1, 1 / 3])
@pytest.mark.parametrize("n", [0, 1, 15, 4095, 4096, 4097, 10_001])
def test_sum_of_messages(path, dtype, n, scale):
    counts = (0, n // 3, n, n // 50)
    encoded = [message.encode(*sparse(n, k, dtype, k), n) for k in counts]
    check_decode_sum(np.empty(n, dtype), encoded, scale)
    check_decode_sum(np.empty(n, dtype), [], scale)


@pytest.mark.parametrize("offset", [0, 1, 3, 15])
@pytest.mark.parametrize("n", [1_048_576, 1_100_003])
def test_sum_of_messages_at_any_place(path, n, offset):
    dense = np.full(n + 32, 7, np.float32)
    encoded = [message.encode(*sparse(n, 999, np.float32, seed), n) for seed in (1, 2)]
    check_decode_sum(dense[offset : n + offset], encoded, 0.5)
    assert (dense[:offset] == 7).all()
    assert (dense[n + offset :] == 7).all()


def test_sum_of_messages_in_a_workspace(path):
    n, dense = 500, np.zeros(500, np.float32)
    encoded = [message.encode(*sparse(n, k, np.float32), n) for k in (40, 60)]
    message.decode_sum(encoded, dense, 1, (np.empty(100, np.uint32), np.empty(100, np.float32)))
    check_decode_sum(dense.copy(), encoded, 1)
    before = dense.copy()
    damaged = encoded[1].copy()
    damaged[-1] ^= 1
    with pytest.raises(MessageError, match="altered"):
        message.decode_sum([encoded[0], damaged], dense)
    np.testing.assert_array_equal(dense, before)
    short = np.empty(99, np.uint32), np.empty(99, np.float32)
    with pytest.raises(ValueError, match="room for all entries, got 99"):
        message.decode_sum(encoded, dense, 1, short)
    np.testing.assert_array_equal(dense, before)
    with pytest.raises(ValueError, match="dense and values must not overlap"):
        message.decode_sum(encoded, dense, 1, (np.empty(500, np.uint32), dense))


def merged(encoded, n, dtype):
    room = sum(message.header(data).k for data in encoded)
    index = index_dtype(n)
    out, workspace = ((np.empty(room, index), np.empty(room, dtype)) for _ in range(2))
    return message.decode_merge(encoded, n, out, workspace)


def check_merge(encoded, n, dtype):
    dense = np.empty(n, dtype)
    message.decode_sum(encoded, dense)
    found = merged(encoded, n, dtype)
    np.testing.assert_array_equal(found.indices, np.flatnonzero(dense))
    np.testing.assert_array_equal(bits(found.values), bits(dense[dense != 0]))
    assert found.n == n


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, 4095, 4096, 4097, 30_011])
def test_merge_of_messages(path, dtype, n):
    counts = (0, n // 3, n, n // 50)
    encoded = [message.encode(*sparse(n, k, dtype, k), n) for k in counts]
    check_merge(encoded, n, dtype)
    check_merge(encoded[:2], n, dtype)
    check_merge([encoded[3]] * 2, n, dtype)
    check_merge([], n, dtype)


@given(data=st.data())
def test_merge_of_any_messages(path, data):
    n = data.draw(st.integers(1, 300))
    encoded = []
    for _ in range(data.draw(st.integers(0, 4))):
        chosen = sorted(data.draw(st.sets(st.integers(0, n - 1))))
        # Of two NaNs a sum keeps one or the other; infinities of both signs give the only one.
        numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
        drawn = data.draw(st.lists(numbers, min_size=len(chosen), max_size=len(chosen)))
        values = np.array(drawn, np.float32)
        encoded.append(message.encode(np.array(chosen, np.uint32), values, n))
    check_merge(encoded, n, np.float32)


def test_merge_leaves_out_what_cancels_and_keeps_what_is_no_number(path):
    indices = np.array([3, 70, 4000, 4099, 9000], np.uint32)
    values = np.array([1, -0.0, np.inf, 2, np.nan], np.float32)
    opposite = np.array([-1, -0.0, np.inf, 1, 1], np.float32)
    encoded = [message.encode(indices, each, 10_000) for each in (values, opposite)]
    found = merged(encoded, 10_000, np.float32)
    assert found.indices.tolist() == [4000, 4099, 9000]
    np.testing.assert_array_equal(found.values, np.array([np.inf, 3, np.nan], np.float32))


def test_merge_of_entries_far_apart(path):
    """Of a vector longer than any dense one could be."""
    n = 2**40
    one = message.encode(np.array([5, 2**32, n - 1], np.uint64), np.ones(3), n)
    two = message.encode(np.array([2**32 - 1, 2**32], np.uint64), np.ones(2), n)
    found = merged([one, two], n, np.float64)
    assert found.indices.tolist() == [5, 2**32 - 1, 2**32, n - 1]
    assert found.values.tolist() == [1, 1, 2, 1]


def test_merge_refuses(path):
    n = 500
    encoded = [message.encode(*sparse(n, k, np.float32), n) for k in (40, 60)]

    def places(count, dtype=np.float32):
        return np.empty(count, np.uint32), np.empty(count, dtype)

    with pytest.raises(ValueError, match="room for all entries, got 99"):
        message.decode_merge(encoded, n, places(99), places(99))
    with pytest.raises(ValueError, match="out indices must have at least 100 entries"):
        message.decode_merge(encoded, n, places(99), places(100))
    with pytest.raises(MessageError, match="must be for 500 entries of float64"):
        message.decode_merge(encoded, n, places(100, np.float64), places(100, np.float64))
    with pytest.raises(MessageError, match="must be for 501 entries"):
        message.decode_merge(encoded, n + 1, places(100), places(100))
    with pytest.raises(TypeError, match="values must be"):
        message.decode_merge(encoded, n, places(100), places(100, np.int32))
    same = places(100)
    with pytest.raises(ValueError, match="must not overlap"):
        message.decode_merge(encoded, n, same, same)
    encoded[1][-1] ^= 1
    with pytest.raises(MessageError, match="altered"):
        message.decode_merge(encoded, n, places(100), places(100))


def test_padding_must_be_zero(path):
    bad = message.encode(*sparse(50, 5, np.float32), 50, codec="rice")
    head = message.header(bad)
    assert head.index_bytes % 8
    bad[HEAD + head.index_bytes] = 1
    assert "padding" in check_rejected(with_checksum(bad), 50, np.float32)


def test_message_for_another_vector(path):
    data = message.encode(*sparse(50, 5, np.float32), 50)
    for n, dtype in [(51, np.float32), (50, np.float64)]:
        dense = np.zeros(n, dtype)
        with pytest.raises(MessageError, match=f"message must be for {n} entries of"):
            message.decode_add(data, dense)
        assert not dense.any()


def frozen(name):
    """Return a vector that a formula gives, so that no generator can change under it."""
    codec, dtype, n, k = name.split("-")
    n, k = int(n), int(k)
    i = np.arange(k)
    indices = i * (n // k) + i * i % (n // k) if k else i
    values = (i * 37 % 101 - 50) / 8
    return indices.astype(index_dtype(n)), values.astype(dtype), n, codec


@pytest.mark.parametrize(
    "name",
    [
        "rice-float32-100000-1500",
        "rice-float64-8589934592-40",
        "rice-float32-10-0",
        "bitmap-float64-100-50",
    ],
)
def test_frozen_bytes(path, name):
    indices, values, n, codec = frozen(name)
    stored = (FIXTURES / f"message-v1-{name}.bin").read_bytes()
    assert message.encode(indices, values, n, codec=codec).tobytes() == stored
    decoded = message.decode(stored)
    np.testing.assert_array_equal(decoded.indices, indices)
    np.testing.assert_array_equal(decoded.values, values)


@pytest.mark.parametrize("value_type", TYPES)
@pytest.mark.parametrize(("codec", "n", "k"), [("full", 600, 600), ("elias_fano", 9000, 300)])
def test_frozen_value_types(path, value_type, codec, n, k):
    name = f"{codec}-{value_type}-{n}-{k}"
    indices, values, n, codec = frozen(name.replace(value_type, "float64"))
    if value_type in QUANTISED:
        values = quantize.encode(values.astype(np.float32), value_type, seed=7)
        sent = quantize.decode(values.data, value_type, k)
    else:
        values = sent = values.astype(value_type)
    stored = (FIXTURES / f"message-v1-{name}.bin").read_bytes()
    assert message.encode(indices, values, n, codec=codec).tobytes() == stored
    decoded = message.decode(stored)
    np.testing.assert_array_equal(decoded.indices, indices)
    np.testing.assert_array_equal(decoded.values, sent)


def test_out_is_used(path):
    indices, values = sparse(50, 5, np.float32)
    out = np.empty(message.max_bytes(50, 5, np.float32), np.uint8)
    data = message.encode(indices, values, 50, out)
    assert np.shares_memory(data, out)
    assert message.decode(data).values.tolist() == values.tolist()


@pytest.mark.parametrize("size", [0, 1, 7, 8, 9, 127, 128, 129, 191, 192, 193, 1000, 100_003])
def test_crc_is_that_of_zlib(path, size):
    data = np.random.default_rng(size).integers(256, size=size, dtype=np.uint8)
    assert backend.implementation().crc32(data) == zlib.crc32(data)


X5 = np.zeros(5, np.float32)
I5 = np.arange(5, dtype=np.uint32)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: message.encode(I5, X5[:4], 9), ValueError, "values must have 5 entries, got 4"),
        (lambda: message.encode(I5, X5.astype(int), 9), TypeError, "values must be float32 or"),
        (lambda: message.encode(I5.astype(int), X5, 9), TypeError, "indices must be uint32"),
        (lambda: message.encode(I5, X5, 4), ValueError, r"k must be in \[0, 4\], got 5"),
        (lambda: message.encode(I5, X5, 9, np.empty(9, np.uint8)), ValueError, "out must have at"),
        (lambda: message.encode(I5[::-1].copy(), X5, 9), ValueError, "ascending, got 4 before 3"),
        (lambda: message.max_bytes(9, 2, np.float16), TypeError, "dtype must be float32 or"),
        (lambda: message.decode_add(b"", X5[::2]), ValueError, "dense must be contiguous"),
        (lambda: message.decode_add(b"", X5.astype(int)), TypeError, "dense must be float32 or"),
        (lambda: message.decode(b""), MessageError, "header takes 40 bytes, got 0"),
        (lambda: message.decode("text"), TypeError, "bytes or a uint8 array, got str"),
    ],
)
def test_errors(path, call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_decode_into_out(path):
    indices, values = sparse(1000, 40, np.float64)
    data = message.encode(indices, values, 1000)
    out = np.empty(50, np.uint32), np.empty(40)
    decoded = message.decode(data, out)
    np.testing.assert_array_equal(decoded.indices, indices)
    np.testing.assert_array_equal(decoded.values, values)
    assert decoded.indices.base is out[0]
    assert np.shares_memory(decoded.values, out[1])
    with pytest.raises(ValueError, match="out indices must have at least 40 entries, got 39"):
        message.decode(data, (np.empty(39, np.uint32), out[1]))
    with pytest.raises(TypeError, match="out values must be float64, got float32"):
        message.decode(data, (out[0], np.empty(40, np.float32)))
    with pytest.raises(ValueError, match="out values and data must not overlap"):
        message.decode(data, (out[0], data[: 8 * (data.size // 8)].view(np.float64)))
