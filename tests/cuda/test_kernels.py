"""Every kernel on arrays of the GPU gives the bits that the NumPy twin gives."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from paropt_hpc.errors import ConfigError, MessageError
from paropt_hpc.kernels import cuda, device, index_codec, message, quantize, reduce, reference, topk
from paropt_hpc.kernels.device import as_device, as_host
from paropt_hpc.kernels.index_codec import Codec

pytestmark = pytest.mark.usefixtures("gpu")

DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]
QUANTISED = ["float16", "bfloat16", "int8", "qsgd4", "sign"]
CODECS = ["rice", "elias_fano", "bitmap", "raw"]
TILE = 4096

few = settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


def bits(array):
    return array.view(f"u{array.itemsize}")


def same(got, expected):
    np.testing.assert_array_equal(bits(as_host(got)), bits(expected))


def offset(array, by=1):
    """Copy to the GPU, at a place that is not aligned to more than one entry."""
    padded = np.zeros(array.size + by, array.dtype)
    padded[by:] = array
    return as_device(padded)[by:]


# ---- top-k ------------------------------------------------------------------------------------


def check_select(gradient, k, residual=None, put=as_device):
    expected = np.empty(k, np.uint32), np.empty(k, gradient.dtype)
    rest = None if residual is None else residual.copy()
    nonfinite = reference.topk(gradient, rest, k, *expected)
    there, rest_there = put(gradient), None if residual is None else put(residual)
    got = topk.select(there, k, rest_there)
    assert got.nonfinite == nonfinite
    same(got.indices, expected[0])
    same(got.values, expected[1])
    same(there, gradient)
    if residual is not None:
        same(rest_there, rest)


def patterns(n):
    rng = np.random.default_rng(0)
    normal = rng.standard_normal(n).astype(np.float32)
    hot, few = np.zeros(n, np.float32), rng.integers(-2, 3, n).astype(np.float32)
    hot[n // 2] = -3
    wild = normal.copy()
    wild[:: n // 7 + 1] = np.inf
    wild[3 :: n // 5 + 1] = -np.nan
    return {
        "normal": normal,
        "ones": np.ones(n, np.float32),
        "zeros": np.zeros(n, np.float32),
        "one-hot": hot,
        "few values": few,
        "ascending": np.sort(np.abs(normal)),
        "descending": -np.sort(-np.abs(normal)),
        "heavy tail": normal**15,
        "denormal": normal * np.float32(1e-42),
        "not finite": wild,
        "layers": normal * np.repeat(np.float32([1e-6, 1, 1e3, 1e-3]), -(-n // 4))[:n],
    }


@pytest.mark.parametrize("density", [0.001, 0.01, 0.2, 0.7])
@pytest.mark.parametrize("pattern", patterns(8))
def test_select_patterns(pattern, density):
    gradient = patterns(40_000)[pattern]
    check_select(gradient, round(gradient.size * density))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, TILE - 1, TILE, TILE + 1, 33_000])
def test_select_sizes(n, dtype):
    rng = np.random.default_rng(n)
    gradient = rng.standard_normal(n).astype(dtype)
    residual = rng.standard_normal(n).astype(dtype)
    for k in {0, min(1, n), n // 100, n // 2, n}:
        check_select(gradient, k)
        check_select(gradient, k, residual)


@pytest.mark.parametrize("dtype", DTYPES)
def test_select_at_any_address(dtype):
    gradient = np.random.default_rng(1).standard_normal(9001).astype(dtype)
    check_select(gradient, 90, np.ones(9001, dtype), put=offset)
    check_select(gradient, 4000, put=offset)


def test_select_where_the_sample_misleads():
    n = 40_000
    gradient = np.random.default_rng(2).standard_normal(n).astype(np.float32)
    lines = 512
    line = np.arange(lines, dtype=np.uint64)
    hashed = (line + 1) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)
    first = line * np.uint64(n // lines) + hashed % np.uint64(n // lines - 15)
    sampled = (first[:, None] + np.arange(16, dtype=np.uint64)).reshape(-1)
    for factor in (1e3, 1e-3):
        misleading = gradient.copy()
        misleading[sampled] *= np.float32(factor)
        check_select(misleading, 400)
        check_select(misleading, 400, gradient)


@few
@given(data=st.data())
def test_select_any_values(data):
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-45, 3e38, 1.0, -1.0, 2.0]
    entries = st.one_of(st.sampled_from(special), st.floats(width=32))
    gradient = np.array(data.draw(st.lists(entries, max_size=80)), np.float32)
    check_select(gradient, data.draw(st.integers(0, gradient.size)))


def test_select_into_given_arrays():
    gradient = as_device(np.arange(10, dtype=np.float32))
    out = as_device(np.zeros(4, np.uint32)), as_device(np.zeros(4, np.float32))
    got = topk.select(gradient, 3, out=out)
    assert as_host(got.indices).tolist() == [7, 8, 9]
    assert as_host(out[1]).tolist() == [7, 8, 9, 0]


def test_indices_of_64_bits(gpu):
    rng = np.random.default_rng(3)
    gradient = rng.standard_normal(5000).astype(np.float32)
    there, k = as_device(gradient), 70
    indices, values = device.DeviceArray(k, np.uint64), device.DeviceArray(k, np.float32)
    cuda.topk(there, None, k, indices, values)
    expected = np.empty(k, np.uint64), np.empty(k, np.float32)
    reference.topk(gradient, None, k, *expected)
    same(indices, expected[0])
    same(values, expected[1])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threshold", [0, 0.3, 2.5, np.inf])
@pytest.mark.parametrize("n", [0, 1, TILE + 1])
def test_threshold(n, threshold, dtype):
    gradient = np.random.default_rng(n).standard_normal(n).astype(dtype)
    residual = gradient[::-1].copy()
    expected = topk.threshold(gradient, threshold)
    got = topk.threshold(as_device(gradient), threshold)
    same(got.indices, expected.indices)
    same(got.values, expected.values)
    there = as_device(residual)
    expected = topk.threshold(gradient, threshold, residual)
    got = topk.threshold(as_device(gradient), threshold, there)
    assert got.nonfinite == expected.nonfinite
    same(got.indices, expected.indices)
    same(got.values, expected.values)
    same(there, residual)


# ---- sums -------------------------------------------------------------------------------------


def sparse(n, k, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    indices = np.sort(rng.choice(n, k, replace=False)).astype(index_codec.index_dtype(n))
    return indices, rng.standard_normal(k).astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("n", [0, 1, 1023, 1024, 1025, 10_001])
@pytest.mark.parametrize("put", [as_device, offset])
def test_add(n, dtype, put):
    a, b = (np.random.default_rng(seed).standard_normal(n).astype(dtype) for seed in (1, 2))
    there = put(a)
    reduce.add(there, as_device(b))
    same(there, a + b)
    reduce.add(there, there)
    same(there, 2 * (a + b))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "k"), [(0, 0), (1, 1), (1000, 0), (5001, 300), (700, 700)])
def test_sums_of_sparse_vectors(n, k, dtype):
    vectors = [sparse(n, k, dtype, seed) for seed in range(3)]
    dense = np.random.default_rng(9).standard_normal(n).astype(dtype)
    there = as_device(dense)
    reduce.scatter_add(dense, *vectors[0], 1 / 3)
    reduce.scatter_add(there, *map(as_device, vectors[0]), 1 / 3)
    same(there, dense)
    dense[:] = 0
    for vector in vectors:
        reduce.scatter_add(dense, *vector, 1 / 3)
    cuda.scatter_sum(there, [tuple(map(as_device, vector)) for vector in vectors], 1 / 3)
    same(there, dense)


@pytest.mark.parametrize("indices", [[3, 2], [2, 2], [0, 5]])
def test_sums_refuse_bad_indices_before_they_write(indices):
    dense = as_device(np.full(5, 7, np.float32))
    vector = as_device(np.array(indices, np.uint32)), as_device(np.ones(2, np.float32))
    with pytest.raises(ValueError, match=r"strictly ascending .* entry 1 breaks the order"):
        reduce.scatter_add(dense, *vector)
    with pytest.raises(ValueError, match="strictly ascending"):
        cuda.scatter_sum(dense, [vector], 1)
    assert as_host(dense).tolist() == [7] * 5


# ---- indices ----------------------------------------------------------------------------------


def check_codec(indices, n, codec):
    most = index_codec.max_encoded_bytes(n, indices.size, codec)
    expected = np.empty(most, np.uint8)
    expected = expected[: reference.encode_indices(indices, n, Codec[codec.upper()], expected)]
    data = index_codec.encode(as_device(indices), n, codec)
    same(data, expected)
    index_codec.validate(data, n, indices.size, codec)
    same(index_codec.decode(data, n, indices.size, codec), indices)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize(
    ("n", "k"),
    [(0, 0), (1, 0), (1, 1), (9, 9), (5000, 1), (3000, 1023), (3000, 1024), (5000, 4999)],
)
def test_codecs(n, k, codec):
    check_codec(sparse(n, k)[0], n, codec)


@pytest.mark.parametrize("codec", ["rice", "elias_fano", "raw"])
@pytest.mark.parametrize("n", [2**32, 2**40])
def test_codecs_of_long_vectors(n, codec):
    rng = np.random.default_rng(4)
    indices = np.unique(rng.integers(0, n, 2100, dtype=np.uint64))
    indices[-1] = n - 1
    check_codec(indices.astype(index_codec.index_dtype(n)), n, codec)


@pytest.mark.parametrize("codec", CODECS)
@few
@given(gaps=st.lists(st.one_of(st.integers(0, 3), st.integers(0, 900)), max_size=60))
def test_codecs_of_any_gaps(codec, gaps):
    indices = np.cumsum(np.array(gaps, np.int64) + 1) - 1
    n = int(indices[-1]) + 1 if gaps else 5
    check_codec(indices.astype(np.uint32), n, codec)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("indices", [[3, 2], [2, 2], [0, 9]])
def test_codecs_refuse_bad_indices(codec, indices):
    with pytest.raises(ValueError, match="strictly ascending and below n, entry 1"):
        index_codec.encode(as_device(np.array(indices, np.uint32)), 9, codec)


@pytest.mark.parametrize("k", [0, 10, 300, 2600, 2999, 3000])
def test_choice_of_codec(k):
    for indices in (sparse(3000, k)[0], np.arange(k, dtype=np.uint32)):
        assert index_codec.choose(as_device(indices), 3000) == index_codec.choose(indices, 3000)


def outcome(call, *args):
    """Return the indices that a decoder has written to its last argument, None if it refuses."""
    try:
        call(*args)
    except MessageError:
        return None
    out = args[-1]
    return (out if isinstance(out, np.ndarray) else as_host(out)).tolist()


@pytest.mark.parametrize("codec", CODECS)
@few
@given(data=st.data())
def test_hostile_bytes_are_refused_as_by_the_twin(codec, data):
    n, k = 1500, 1100
    good = np.array(index_codec.encode(sparse(n, k)[0], n, codec))
    for _ in range(data.draw(st.integers(1, 3))):
        good[data.draw(st.integers(0, good.size - 1))] ^= 1 << data.draw(st.integers(0, 7))
    cut = data.draw(st.sampled_from([0, 0, 0, 1, 7, good.size]))
    bad = good[: good.size - cut]
    twin = np.empty(k, np.uint32)
    expected = outcome(reference.decode_indices, bad, n, Codec[codec.upper()], twin)
    there, out = as_device(bad), as_device(np.zeros(k, np.uint32))
    assert outcome(index_codec.decode, there, n, k, codec, out) == expected
    if expected is None:
        assert not as_host(out).any()
        with pytest.raises(MessageError):
            index_codec.validate(there, n, k, codec)


# ---- values -----------------------------------------------------------------------------------


def check_quantize(values, value_type, residual=None, seed=5):
    kind = quantize.resolve(value_type)
    expected = np.empty(quantize.encoded_bytes(kind, values.size), np.uint8)
    rest = None if residual is None else residual.copy()
    counts = reference.quantize(values, rest, int(kind), seed, expected)
    there = None if residual is None else as_device(residual)
    got = quantize.encode(as_device(values), kind, there, seed=seed)
    assert (got.saturated, got.nonfinite) == counts
    same(got.data, expected)
    if residual is not None:
        same(there, rest)
    decoded = np.empty(values.size, np.float32)
    reference.dequantize(expected, int(kind), decoded)
    got = as_host(quantize.decode(as_device(expected), kind, values.size))
    nan = np.isnan(decoded)
    np.testing.assert_array_equal(np.isnan(got), nan)
    np.testing.assert_array_equal(bits(got)[~nan], bits(decoded)[~nan])


@pytest.mark.parametrize("value_type", QUANTISED)
@pytest.mark.parametrize("count", [0, 1, 7, 255, 256, 257, 512, 2049, 5001])
def test_quantize_sizes(count, value_type):
    rng = np.random.default_rng(count)
    values, residual = (rng.standard_normal(count).astype(np.float32) for _ in range(2))
    check_quantize(values, value_type)
    check_quantize(values, value_type, residual)


@pytest.mark.parametrize("value_type", QUANTISED)
@pytest.mark.parametrize("scale", [0, 1e-45, 1e-38, 1e30, 3e38, np.inf])
def test_quantize_extremes(value_type, scale):
    rng = np.random.default_rng(6)
    with np.errstate(all="ignore"):
        values = (rng.uniform(-1, 1, 600) * np.float32(scale)).astype(np.float32)
    values[::301] = -0.0
    check_quantize(values, value_type)
    check_quantize(values, value_type, np.zeros(600, np.float32))


@pytest.mark.parametrize("value_type", ["float16", "bfloat16"])
def test_every_half_and_its_neighbours(value_type):
    kind = np.float16 if value_type == "float16" else ml_dtypes.bfloat16
    halves = np.arange(2**16, dtype=np.uint16).view(kind).astype(np.float32)
    values = halves[np.isfinite(halves)]
    for step in (-1, 0, 1):
        near = (bits(values).astype(np.int64) + step) % 2**32
        near = near.astype(np.uint32).view(np.float32)
        check_quantize(near[np.isfinite(near)], value_type)


# ---- messages ---------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["auto", *CODECS])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("n", "k"), [(0, 0), (1, 1), (9, 9), (1000, 7), (9000, 1025)])
def test_messages_are_the_same_on_both_sides(n, k, dtype, codec):
    indices, values = sparse(n, k, dtype)
    expected = message.encode(indices, values, n, codec=codec)
    got = message.encode(as_device(indices), as_device(values), n, codec=codec)
    same(got, expected)
    decoded = message.decode(got)
    same(decoded.indices, indices)
    same(decoded.values, values)
    dense = np.random.default_rng(1).standard_normal(n).astype(dtype)
    there = as_device(dense)
    message.decode_add(got, there, 1 / 3)
    message.decode_add(expected, dense, 1 / 3)
    same(there, dense)
    message.decode_add(expected.tobytes(), there)  # from the host
    message.decode_add(expected, dense)
    same(there, dense)


@pytest.mark.parametrize("value_type", QUANTISED)
@pytest.mark.parametrize("whole", [False, True])
def test_messages_of_quantised_values(value_type, whole):
    n, k = (1300, 1300) if whole else (5000, 1300)
    indices, values = sparse(n, k)
    here = quantize.encode(values, value_type, seed=3)
    there = quantize.encode(as_device(values), value_type, seed=3)
    expected = message.encode(None if whole else indices, here, n)
    got = message.encode(None if whole else as_device(indices), there, n)
    same(got, expected)
    dense, dense_there = np.ones(n, np.float32), as_device(np.ones(n, np.float32))
    message.decode_add(expected, dense, 0.5)
    message.decode_add(got, dense_there, 0.5)
    same(dense_there, dense)


def test_altered_messages_are_refused():
    indices, values = sparse(3000, 200)
    good = message.encode(indices, values, 3000)
    rng = np.random.default_rng(7)
    dense = as_device(np.zeros(3000, np.float32))
    for at in [*range(40), *rng.integers(40, good.size, 20)]:
        bad = good.copy()
        bad[at] ^= 1 << int(rng.integers(0, 8))
        with pytest.raises(MessageError):
            message.decode_add(as_device(bad), dense)
    for size in (0, 39, 40, good.size - 1):
        with pytest.raises(MessageError):
            message.decode_add(as_device(good[:size]), dense)
    assert not as_host(dense).any()


# ---- arguments --------------------------------------------------------------------------------


def test_arrays_must_be_on_one_side():
    there, here = as_device(np.ones(4, np.float32)), np.ones(4, np.float32)
    with pytest.raises(TypeError, match="residual must be on the GPU as the other arrays are"):
        topk.select(there, 1, here)
    with pytest.raises(TypeError, match="residual must be a numpy array, got DeviceArray"):
        topk.select(here, 1, there)
    with pytest.raises(TypeError, match="array must be on the GPU"):
        reduce.add(there, here)


def test_arguments_are_checked():
    there = as_device(np.ones(4, np.float32))
    with pytest.raises(TypeError, match=r"gradient must be float32 or .*, got int32"):
        topk.select(as_device(np.ones(4, np.int32)), 1)
    with pytest.raises(ValueError, match="residual must have 4 entries, got 3"):
        topk.select(there, 1, as_device(np.ones(3, np.float32)))
    with pytest.raises(ValueError, match="residual and gradient must not overlap"):
        topk.select(there[1:], 1, there[:3])
    with pytest.raises(ValueError, match="out must have at least 8 bytes, got 3"):
        quantize.encode(there, "float16", out=as_device(np.zeros(3, np.uint8)))


def test_a_forced_backend_of_the_host(monkeypatch):
    monkeypatch.setenv("PAROPT_BACKEND", "native")
    with pytest.raises(ConfigError, match="native, but the arrays are on the GPU"):
        topk.select(as_device(np.ones(4, np.float32)), 1)


def test_a_kernel_refuses_memory_of_the_host(gpu):
    here = np.ones(4, np.float32)
    with pytest.raises(ValueError, match="must be in memory of the GPU"):
        gpu.add("f", here.ctypes.data, here.ctypes.data, 4, 0)
