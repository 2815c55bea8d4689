import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paropt_hpc.errors import MessageError
from paropt_hpc.kernels import quantize, reference
from paropt_hpc.kernels.quantize import ValueType

TYPES = ["float16", "bfloat16", "int8", "qsgd4", "sign"]
GROUPED = TYPES[2:]
SIZES = [0, 1, 2, 7, 8, 9, 255, 256, 257, 1000, 150_001]


def bits(array):
    return array.view(np.uint32)


def normal(count, seed=0):
    return np.random.default_rng(seed).standard_normal(count).astype(np.float32)


def outcome(call, *args):
    try:
        values = call(*args)
        return np.where(np.isnan(values), np.float32(np.nan), values).tobytes()  # one NaN for all
    except MessageError as error:
        return str(error)


def check_encode(values, value_type, residual=None, seed=0):
    """Encode as the twin does; what is lost stays in the residual."""
    twin = np.empty(quantize.encoded_bytes(value_type, values.size), np.uint8)
    twin_residual = None if residual is None else residual.copy()
    number = ValueType[value_type.upper()]
    with np.errstate(all="ignore"):
        acc = values.copy() if residual is None else residual + values
    expected = reference.quantize(values, twin_residual, number, seed, twin)

    got = quantize.encode(values, value_type, residual, seed=seed)
    assert (got.saturated, got.nonfinite) == expected
    assert got.nonfinite == np.count_nonzero(~np.isfinite(acc))
    assert got.data.tobytes() == twin.tobytes()
    sent = quantize.decode(got.data.tobytes(), value_type, values.size)
    twin_sent = np.empty_like(values)
    reference.dequantize(twin, number, twin_sent)
    np.testing.assert_array_equal(sent, twin_sent)
    if residual is not None:
        check_residual(residual, acc, sent, got)
    return sent


def check_residual(residual, acc, sent, got):
    """What rounding loses is kept, bit for bit; of what is not finite only the finite part."""
    finite = np.isfinite(acc)
    arrived = np.where(np.isfinite(sent), sent, np.float32(0))
    with np.errstate(all="ignore"):
        expected = np.where(finite, acc - arrived, np.float32(0))
    np.testing.assert_array_equal(residual, expected)
    assert np.isfinite(residual).all()
    if got.type in (ValueType.FLOAT16, ValueType.BFLOAT16) and not got.saturated:
        exact = arrived[finite].astype(float) + residual[finite]
        np.testing.assert_array_equal(exact, acc[finite].astype(float))


@pytest.mark.parametrize("value_type", TYPES)
@pytest.mark.parametrize("size", SIZES)
def test_sizes(path, value_type, size):
    check_encode(normal(size), value_type)
    check_encode(normal(size), value_type, normal(size, 1), seed=2**64 - 1)


@pytest.mark.parametrize(
    ("value_type", "offset"), [("float16", 2), ("bfloat16", 6), ("float16", 3), ("int8", 3)]
)
def test_codes_that_go_past_the_caches(path, value_type, offset):
    size = 2**22 + 300
    values = np.tile(normal(2**16), 65)[:size]
    values[[5, 2**20, -2]] = np.inf, np.nan, 3.4e38
    residual, twin_residual = values[::-1].copy(), values[::-1].copy()
    twin = np.empty(quantize.encoded_bytes(value_type, size), np.uint8)
    number = ValueType[value_type.upper()]
    expected = reference.quantize(values, twin_residual, number, 0, twin)
    room = np.full(twin.size + 10, 7, np.uint8)
    out = room[offset : offset + twin.size]  # no line of it begins where it does
    got = quantize.encode(values, value_type, residual, out=out)
    assert np.array_equal(got.data, twin)
    assert (got.saturated, got.nonfinite) == expected
    np.testing.assert_array_equal(bits(residual), bits(twin_residual))
    assert (room[:offset] == 7).all()
    assert (room[offset + twin.size :] == 7).all()


@pytest.mark.parametrize("value_type", TYPES)
@given(values=st.lists(st.floats(width=32), max_size=40))
def test_any_values(path, value_type, values):
    values = np.array(values, np.float32)
    check_encode(values, value_type)
    check_encode(values, value_type, np.full(values.size, 0.5, np.float32))


@pytest.mark.parametrize("value_type", TYPES)
def test_extremes(path, value_type):
    info = np.finfo(np.float32)
    for x in (0.0, -0.0, info.smallest_subnormal, info.tiny, info.max, -info.max):
        check_encode(np.full(300, x, np.float32), value_type, np.zeros(300, np.float32))


def test_every_half(path):
    halves = np.arange(2**16, dtype=np.uint16)
    for value_type, dtype in (("float16", np.float16), ("bfloat16", ml_dtypes.bfloat16)):
        with np.errstate(all="ignore"):
            expected = halves.view(dtype).astype(np.float32)
        decoded = quantize.decode(halves.view(np.uint8), value_type, halves.size)
        np.testing.assert_array_equal(decoded, expected)
        finite = expected[np.isfinite(expected)]
        between = ((finite[1:].astype(float) + finite[:-1]) / 2).astype(np.float32)  # ties
        check_encode(between[np.isfinite(between)], value_type)


@pytest.mark.parametrize("value_type", ["float16", "bfloat16"])
def test_every_kind_of_nan_has_the_bits_of_the_twin(path, value_type):
    signs = np.array([0, 1 << 31], np.uint32)[:, None]
    nans = (np.arange(0x7F800001, 0x80000000, 4097, np.uint32) | signs).reshape(-1)
    check_encode(nans.view(np.float32), value_type)
    halves = np.arange(2**16, dtype=np.uint16).view(np.uint8)
    twin = np.empty(2**16, np.float32)
    reference.dequantize(halves, ValueType[value_type.upper()], twin)
    decoded = quantize.decode(halves, value_type, twin.size)
    np.testing.assert_array_equal(bits(decoded), bits(twin))


def test_values_beyond_float16_saturate_and_are_counted(path):
    values = np.array([65504, 65519.9, 65520, -1e9, np.inf, -np.inf, np.nan, 1], np.float32)
    got = quantize.encode(values, "float16")
    assert (got.saturated, got.nonfinite) == (2, 3)
    np.testing.assert_array_equal(
        quantize.decode(got.data, "float16", 8),
        np.array([65504, 65504, 65504, -65504, np.inf, -np.inf, np.nan, 1], np.float32),
    )


def test_values_beyond_bfloat16_saturate_and_are_counted(path):
    values = np.array([3.3895e38, 3.39e38, -3.4e38, np.inf, -np.inf, np.nan, 1], np.float32)
    residual = np.zeros(7, np.float32)
    got = quantize.encode(values, "bfloat16", residual)
    largest = np.float32(ml_dtypes.finfo(ml_dtypes.bfloat16).max)
    assert (got.saturated, got.nonfinite) == (1, 3)
    np.testing.assert_array_equal(
        quantize.decode(got.data, "bfloat16", 7),
        np.array([largest, largest, -largest, np.inf, -np.inf, np.nan, 1], np.float32),
    )
    sent = np.array([largest, largest, -largest])
    np.testing.assert_array_equal(sent + residual[:3], values[:3])
    np.testing.assert_array_equal(residual[3:], 0)


@pytest.mark.parametrize("value_type", TYPES)
def test_finite_values_stay_finite(path, value_type):
    values = np.tile(np.array([np.finfo(np.float32).max, -3e38, 1e38, 0], np.float32), 128)
    sent = check_encode(values, value_type, np.zeros(512, np.float32), seed=3)
    assert np.isfinite(sent).all()


@pytest.mark.parametrize("value_type", GROUPED)
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_nonfinite_values_are_not_overlooked(path, value_type, bad):
    values = normal(600)
    values[300] = bad
    sent = quantize.decode(quantize.encode(values, value_type).data, value_type, 600)
    assert np.isfinite(sent[:256]).all()
    assert np.isnan(sent[256:512]).all()
    assert np.isfinite(sent[512:]).all()


def test_int8_error_is_half_a_step(path):
    values = normal(1024)
    sent = quantize.decode(quantize.encode(values, "int8").data, "int8", 1024)
    steps = np.abs(values).reshape(-1, 256).max(axis=1).repeat(256) / 127
    assert (np.abs(sent - values) <= 0.5001 * steps).all()


def test_sign_keeps_the_mean_magnitude(path):
    values = normal(512)
    sent = quantize.decode(quantize.encode(values, "sign").data, "sign", 512)
    np.testing.assert_array_equal(np.sign(sent), np.sign(values))
    means = np.abs(values).reshape(2, 256).mean(axis=1)
    np.testing.assert_allclose(np.abs(sent).reshape(2, 256), means[:, None].repeat(256, 1), 1e-6)


def test_qsgd4_is_right_on_average(path):
    # The error of one draw is below a step and has a variance of at most step**2 / 4; the mean of
    # 3000 draws is within 6 sigma for each of 256 values but once in two million runs.
    values, draws = normal(256), 3000
    total = np.zeros(256)
    for seed in range(draws):
        total += quantize.decode(quantize.encode(values, "qsgd4", seed=seed).data, "qsgd4", 256)
    step = np.abs(values).max() / 7
    errors = total / draws - values
    assert np.abs(errors).max() < 6 * step / 2 / np.sqrt(draws)
    assert abs(errors.mean()) < 6 * step / 2 / np.sqrt(draws * values.size)


def test_qsgd4_rounds_up_as_often_as_the_fraction_says(path):
    # 16 fractions of a step, 4080 values of each per seed; the deviation of a share is known.
    fractions = np.arange(1, 16) / 16
    values = np.repeat(np.append(fractions, 7), 16).astype(np.float32)  # a group: its scale is 1
    values = np.tile(values, 256)
    up, draws = np.zeros(values.size), 8
    for seed in range(draws):
        sent = quantize.encode(values, "qsgd4", seed=seed)
        up += quantize.decode(sent.data, "qsgd4", values.size)
    share = up.reshape(256, 16, 16).sum(axis=(0, 2)) / (256 * 16 * draws)
    assert share[15] == 7
    deviation = np.sqrt(fractions * (1 - fractions) / (256 * 16 * draws))
    assert (np.abs(share[:15] - fractions) < 6 * deviation).all()
    assert (sent.data[: 256 * 4].view(np.float32) == 1).all()


def test_qsgd4_rounds_each_value_by_itself(path):
    # Neighbours and seeds must not share their luck: the correlation of 2 * 65536 draws is small.
    values = np.full(65536, 0.5, np.float32)
    values[::256] = 7  # the scale is 1, so that all others round to 0 or 1 evenly
    up = [
        quantize.decode(quantize.encode(values, "qsgd4", seed=s).data, "qsgd4", 65536)
        for s in (1, 2)
    ]
    odd = np.stack(up)[:, np.arange(65536) % 256 > 0] - 0.5
    limit = 6 * 0.25 / np.sqrt(odd.shape[1])
    assert abs((odd[0] * odd[1]).mean()) < limit
    for lag in (1, 2, 3, 255, 256):
        assert abs((odd[0][lag:] * odd[0][:-lag]).mean()) < limit


@pytest.mark.parametrize("value_type", TYPES)
def test_error_feedback_sends_all_in_the_end(path, value_type):
    gradient, residual, sent = normal(1000), np.zeros(1000, np.float32), np.zeros(1000)
    for step in range(50):
        got = quantize.encode(gradient, value_type, residual, seed=step)
        sent += quantize.decode(got.data, value_type, 1000)
    np.testing.assert_allclose(sent + residual, 50.0 * gradient, atol=1e-3)
    assert np.abs(residual).max() < 0.7 * 50 * np.abs(gradient).max()


@pytest.mark.parametrize("value_type", TYPES)
@given(data=st.data())
def test_any_bytes_decode_or_are_rejected(path, value_type, data):
    count = data.draw(st.integers(0, 20))
    size = quantize.encoded_bytes(value_type, count)
    raw = np.frombuffer(data.draw(st.binary(min_size=size, max_size=size)), np.uint8)
    twin, number = np.empty(count, np.float32), ValueType[value_type.upper()]
    expected = outcome(lambda: reference.dequantize(raw, number, twin) or twin)
    assert outcome(quantize.decode, raw, value_type, count) == expected


def test_out_is_used(path):
    out = np.empty(100, np.uint8)
    got = quantize.encode(normal(5), "int8", out=out)
    assert np.shares_memory(got.data, out)
    decoded = np.empty(5, np.float32)
    assert quantize.decode(got.data, "int8", 5, decoded) is decoded


X = np.zeros(4, np.float32)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: quantize.encode(X, "int7"), ValueError, "value_type must be one of float32, "),
        (lambda: quantize.encode(X, "float32"), ValueError, "quantised one, got float32; send"),
        (
            lambda: quantize.encode(X.astype(float), "int8"),
            TypeError,
            "must be float32, got float64",
        ),
        (lambda: quantize.encode(X[::2], "int8"), ValueError, "contiguous"),
        (lambda: quantize.encode(X, "int8", X), ValueError, "must not overlap"),
        (lambda: quantize.encode(X, "int8", X[:3].copy()), ValueError, "4 entries, got 3"),
        (
            lambda: quantize.encode(X, "int8", out=np.empty(7, np.uint8)),
            ValueError,
            "8 bytes, got 7",
        ),
        (
            lambda: quantize.decode(b"", "int8", 4),
            MessageError,
            "4 values must take 8 bytes, got 0",
        ),
        (lambda: quantize.decode(b"", "float64", 0), ValueError, "decodes to float32, got float64"),
    ],
)
def test_errors(path, call, error, text):
    with pytest.raises(error, match=text):
        call()
