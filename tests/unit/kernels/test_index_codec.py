import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paropt_hpc.errors import MessageError
from paropt_hpc.kernels import index_codec, reference
from paropt_hpc.kernels.index_codec import Codec, index_dtype

BLOCK = 1024
CODECS = ["rice", "bitmap", "elias_fano", "raw"]
WIDE_CODECS = ["rice", "elias_fano", "raw"]  # a bitmap of 2**40 bits would not fit


def check_round_trip(indices, n, codec):
    k = indices.size
    most = index_codec.max_encoded_bytes(n, k, codec)
    data = index_codec.encode(indices, n, codec)
    assert data.size <= most

    twin = np.empty(most, np.uint8)
    twin = twin[: reference.encode_indices(indices, n, Codec[codec.upper()], twin)]
    assert data.tobytes() == twin.tobytes()

    index_codec.validate(data, n, k, codec)
    decoded = index_codec.decode(data.tobytes(), n, k, codec)
    assert decoded.dtype == indices.dtype
    np.testing.assert_array_equal(decoded, indices)


def outcome(call, *args):
    try:
        return call(*args).tolist()
    except MessageError as error:
        return str(error)


def check_hostile(data, n, k, codec):
    """Whatever the bytes: indices as promised or MessageError, and the same as from the twin."""
    twin = np.empty(k, index_dtype(n))
    number = Codec[codec.upper()]
    expected = outcome(lambda: reference.decode_indices(data, n, number, twin) or twin)
    got = outcome(index_codec.decode, data, n, k, codec, np.empty(k, index_dtype(n)))
    assert got == expected
    if isinstance(got, list):
        assert len(got) == k
        assert all(a < b for a, b in itertools.pairwise([*got, n]))
        index_codec.validate(data, n, k, codec)
    else:
        with pytest.raises(MessageError):
            index_codec.validate(data, n, k, codec)


def from_gaps(gaps):
    return np.cumsum(np.asarray(gaps, np.int64) + 1) - 1


@pytest.mark.parametrize("codec", CODECS)
@given(gaps=st.lists(st.integers(0, 40), max_size=60), tail=st.integers(0, 20))
def test_any_gaps(path, codec, gaps, tail):
    positions = from_gaps(gaps)
    n = int(positions[-1]) + 1 + tail if gaps else tail
    check_round_trip(positions.astype(np.uint32), n, codec)


@pytest.mark.parametrize("codec", WIDE_CODECS)
@given(gaps=st.lists(st.one_of(st.integers(0, 3), st.integers(0, 2**34)), max_size=40))
def test_wild_gaps(path, codec, gaps):
    check_round_trip(from_gaps(gaps).astype(np.uint64), 2**40, codec)


@pytest.mark.parametrize("codec", WIDE_CODECS)
@given(gaps=st.lists(st.one_of(st.integers(0, 3), st.integers(0, 2**26)), max_size=60))
def test_wild_gaps_of_narrow_indices(path, codec, gaps):
    check_round_trip(from_gaps(gaps).astype(np.uint32), 2**32, codec)


@pytest.mark.parametrize("k", [1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 5000])
@pytest.mark.parametrize("density", [0.0005, 0.01, 0.1, 0.35, 0.9, 1])
def test_blocks(path, k, density):
    n = round(k / density)
    rng = np.random.default_rng(k)
    indices = np.sort(rng.choice(n, k, replace=False)).astype(np.uint32)
    for codec in CODECS:
        check_round_trip(indices, n, codec)


@pytest.mark.parametrize("sigma", [1, 3, 6])
def test_clustered(path, sigma):
    gaps = np.exp(np.random.default_rng(sigma).normal(0, sigma, 3000)).astype(np.int64)
    indices = from_gaps(gaps)
    for codec in WIDE_CODECS:
        check_round_trip(indices.astype(np.uint64), 2**40, codec)
        if indices[-1] < 2**32:
            check_round_trip(indices.astype(np.uint32), 2**32, codec)


@pytest.mark.parametrize(
    ("indices", "n"),
    [
        ([], 0),
        ([], 10),
        ([0], 1),
        ([0], 2**32),
        ([2**32 - 1], 2**32),
        ([0, 2**32 - 1], 2**32),
        ([2**32], 2**32 + 1),
        ([2**40 - 1], 2**40),
        ([0, 1, 2, 2**40 - 1], 2**40),
    ],
)
@pytest.mark.parametrize("codec", WIDE_CODECS)
def test_extremes(path, codec, indices, n):
    check_round_trip(np.array(indices, index_dtype(n)), n, codec)


def test_size_is_near_the_entropy(path):
    # 11.41, 8.08 and 4.69 bits per index are the entropy of an even spread.
    for density, limit in [(0.001, 11.41 * 1.02), (0.01, 8.08 * 1.01), (0.1, 4.69 * 1.02)]:
        n = 1_000_000
        chosen = np.random.default_rng(1).choice(n, int(n * density), replace=False)
        data = index_codec.encode(np.sort(chosen).astype(np.uint32), n)
        assert 8 * data.size / chosen.size < limit


def test_elias_fano_is_near_the_entropy(path):
    chosen = np.random.default_rng(1).choice(1_000_000, 10_000, replace=False)
    data = index_codec.encode(np.sort(chosen).astype(np.uint32), 1_000_000, "elias_fano")
    assert 8 * data.size / chosen.size < 8.08 * 1.07


def uneven(rng):
    """Return positions that a single parameter for all would not suit, and the length n."""
    n = 400_000
    layers = rng.random(n) < np.repeat([0.5, 0.0005, 0.1, 0.002], n // 4)
    runs = np.repeat(rng.random(n // 50) < 0.05, 50)
    ends = np.zeros(n, bool)
    ends[:20_000] = ends[-20_000:] = True
    return {
        "layers": layers,
        "runs": runs,
        "ends": ends,
        "regular": np.arange(n) % 50 == 0,
        "dense": rng.random(n) < 0.8,
        "few": np.isin(np.arange(n), [7, 399_999]),
    }


UNEVEN = uneven(np.random.default_rng(3))


@pytest.mark.parametrize("kind", UNEVEN)
def test_choice_is_never_much_larger_than_the_best(path, kind):
    indices, n = np.flatnonzero(UNEVEN[kind]).astype(np.uint32), UNEVEN[kind].size
    sizes = {codec: index_codec.encode(indices, n, codec).size for codec in CODECS}
    chosen = index_codec.encode(indices, n, "auto")
    assert chosen.size == sizes[index_codec.choose(indices, n).name.lower()]
    assert chosen.size <= 1.03 * min(sizes.values())
    assert chosen.size <= index_codec.max_encoded_bytes(n, indices.size, "auto")
    out = np.empty(index_codec.max_encoded_bytes(n, indices.size, "auto"), np.uint8)
    assert index_codec.encode(indices, n, "auto", out).tobytes() == chosen.tobytes()


def test_choice(path):
    def choice(ones, n):
        return index_codec.choose(np.array(ones, index_dtype(n)), n)

    assert choice([], 1000) is Codec.RICE
    assert choice([1, 2, 3], 1000) is Codec.RICE
    assert choice(range(0, 1000, 2), 1000) is Codec.BITMAP
    assert choice([2**31], 2**32) is Codec.RAW
    assert choice(range(1000), 1000) is Codec.FULL
    np.testing.assert_array_equal(
        index_codec.decode(np.packbits(np.arange(8) < 4), 8, 4, "bitmap"), range(4, 8)
    )


@pytest.mark.parametrize("n", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1])
def test_all_indices_take_no_bytes(path, n):
    check_round_trip(np.arange(n, dtype=np.uint32), n, "full")
    check_hostile(np.zeros(1, np.uint8), n, n, "full")
    check_hostile(np.empty(0, np.uint8), n + 1, n, "full")
    with pytest.raises(ValueError, match=f"full must have all {n + 1} entries, got {n}"):
        index_codec.encode(np.arange(n, dtype=np.uint32), n + 1, "full")


@pytest.mark.parametrize("codec", CODECS)
@given(data=st.binary(max_size=60), n=st.integers(0, 300), k=st.integers(0, 40))
def test_random_bytes(path, codec, data, n, k):
    check_hostile(np.frombuffer(data, np.uint8), n, min(n, k), codec)


@pytest.mark.parametrize("codec", CODECS)
def test_every_damage(path, codec):
    n, indices = 100, np.array([3, 4, 17, 40, 41, 42, 90], np.uint32)
    good = index_codec.encode(indices, n, codec)
    for size in range(good.size):
        with pytest.raises(MessageError):
            index_codec.decode(good[:size], n, indices.size, codec)
    with pytest.raises(MessageError):
        index_codec.decode(np.append(good, np.uint8(0)), n, indices.size, codec)
    for bit in range(8 * good.size):
        bad = good.copy()
        bad[bit // 8] ^= 1 << bit % 8
        check_hostile(bad, n, indices.size, codec)


@pytest.mark.parametrize("codec", WIDE_CODECS)
def test_damage_in_a_large_stream(path, codec):
    n, k = 100_000, 3000
    rng = np.random.default_rng(2)
    good = index_codec.encode(np.sort(rng.choice(n, k, replace=False)).astype(np.uint32), n, codec)
    for _ in range(100):
        bad = good.copy()
        bad[rng.integers(good.size, size=3)] = rng.integers(256, size=3)
        check_hostile(bad, n, k, codec)


def test_out_is_used(path):
    indices, n = np.array([1, 5, 6], np.uint32), 9
    out = np.empty(index_codec.max_encoded_bytes(n, 3), np.uint8)
    data = index_codec.encode(indices, n, out=out)
    assert np.shares_memory(data, out)
    decoded = np.empty(3, np.uint32)
    assert index_codec.decode(data, n, 3, out=decoded) is decoded
    np.testing.assert_array_equal(decoded, indices)


def u32(*values):
    return np.array(values, np.uint32)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: index_codec.encode(u32(1, 1), 9), ValueError, "ascending, got 1 before 1"),
        (lambda: index_codec.encode(u32(0, 5, 2), 9), ValueError, "ascending, got 5 before 2"),
        (lambda: index_codec.encode(u32(1, 9), 9), ValueError, "below n = 9, got 9"),
        (lambda: index_codec.encode(u32(1), 2**32 + 1), TypeError, "uint64, got uint32"),
        (lambda: index_codec.encode(u32(1), 2**41), ValueError, r"n must be in \[0, 2\*\*40\]"),
        (lambda: index_codec.encode(u32(1, 2), 1), ValueError, r"k must be in \[0, 1\], got 2"),
        (
            lambda: index_codec.encode(u32(1), 9, "zip"),
            ValueError,
            "must be auto, rice, bitmap, elias_fano, raw, full, got 'zip'",
        ),
        (lambda: index_codec.encode(u32(1), 9, out=np.empty(1, np.uint8)), ValueError, "at least"),
        (lambda: index_codec.encode(u32(1, 2, 3)[::2], 9), ValueError, "contiguous"),
        (lambda: index_codec.decode(b"1", 9, 1, "auto"), ValueError, "must be named to decode"),
        (lambda: index_codec.decode([1], 9, 1), TypeError, "bytes or a uint8 array, got list"),
        (lambda: index_codec.decode(b"", 9, 1), MessageError, "0 bytes cannot hold 1 indices"),
        (lambda: index_codec.decode(b"1", 2**40, 2**39, "rice"), MessageError, "cannot hold"),
        (lambda: index_codec.decode(b"1", 9, 1, out=u32(1, 2)), ValueError, "1 entries, got 2"),
    ],
)
def test_errors(path, call, error, text):
    with pytest.raises(error, match=text):
        call()
