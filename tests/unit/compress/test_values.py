"""What compressors keep and send when values are quantised."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paropt_hpc.compress import Quantize, TopK
from paropt_hpc.compress.values import QUANTISED
from paropt_hpc.errors import ConfigError, MessageError
from paropt_hpc.kernels import message

EXACT = ("float16", "bfloat16")
MAKERS = {
    "topk": lambda values, **settings: TopK(0.1, values=values, **settings),
    "quantize": lambda values, **settings: Quantize(values, **settings),
}


def gradients(n, steps, seed=0):
    return np.random.default_rng(seed).standard_normal((steps, n)).astype(np.float32)


def decoded(compressor, data, n):
    dense = np.zeros(n, np.float32)
    compressor.decompress_add(data, dense)
    return dense


def started(maker, values, n, **settings):
    compressor = MAKERS[maker](values, **settings)
    compressor.start(n, np.dtype(np.float32))
    return compressor


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("values", QUANTISED)
@pytest.mark.parametrize("n", [1, 255, 256, 257, 3000])
def test_sent_and_kept_are_all_there_was(path, maker, values, n):
    compressor = started(maker, values, n, seed=1)
    for gradient in gradients(n, 4):
        acc = compressor.residual + gradient
        data = compressor.compress(gradient)
        assert message.header(data).value_type.name.lower() == values
        sent = decoded(compressor, data, n)
        np.testing.assert_array_equal(compressor.residual, acc - sent)  # float32, rounded once
        if values in EXACT:
            exact = compressor.residual.astype(float) + sent
            np.testing.assert_array_equal(exact, acc.astype(float))


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("values", QUANTISED)
def test_nothing_is_lost_in_the_long_run(path, maker, values):
    n, steps = 500, 200
    compressor, sent = started(maker, values, n), np.zeros(n)
    for gradient in gradients(n, steps):
        sent += decoded(compressor, compressor.compress(gradient), n)
    total = gradients(n, steps).astype(float).sum(axis=0)
    np.testing.assert_allclose(sent + compressor.residual, total, atol=1e-3)


@given(
    values=st.sampled_from(QUANTISED),
    gradient=st.lists(st.floats(-1e4, 1e4, width=32), min_size=1, max_size=40),
)
def test_any_gradient(values, gradient):
    gradient = np.array(gradient, np.float32)
    for maker in MAKERS:
        compressor = started(maker, values, gradient.size)
        sent = decoded(compressor, compressor.compress(gradient), gradient.size)
        np.testing.assert_array_equal(compressor.residual, gradient - sent)


@pytest.mark.parametrize("maker", MAKERS)
def test_saturation_is_counted_and_kept(path, maker):
    compressor, gradient = started(maker, "float16", 20), np.zeros(20, np.float32)
    gradient[3:5] = 70000, -1e5
    data = compressor.compress(gradient)
    assert (compressor.saturated, compressor.nonfinite) == (2, 0)
    assert decoded(compressor, data, 20)[3:5].tolist() == [65504, -65504]
    assert compressor.residual[3:5].tolist() == [70000 - 65504, 65504 - 1e5]
    compressor.compress(np.zeros(20, np.float32))
    assert compressor.saturated == 0


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("values", QUANTISED)
@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_one_bad_gradient_does_not_stay(path, maker, values, bad):
    compressor, (gradient, after) = started(maker, values, 600), gradients(600, 2)
    gradient[300] = bad
    assert not np.isfinite(decoded(compressor, compressor.compress(gradient), 600)[300])
    assert compressor.nonfinite == 1
    assert np.isfinite(compressor.residual).all()
    assert np.isfinite(decoded(compressor, compressor.compress(after), 600)).all()
    assert compressor.nonfinite == 0


@pytest.mark.parametrize("maker", MAKERS)
def test_each_step_and_each_seed_rounds_anew(path, maker):
    gradient = gradients(2000, 1)[0]
    first, other = (started(maker, "qsgd4", 2000, seed=seed) for seed in (1, 2))
    sent = [first.encode(gradient).tobytes() for _ in range(2)] + [other.encode(gradient).tobytes()]
    assert len(set(sent)) == 3
    again = started(maker, "qsgd4", 2000, seed=1)
    assert [again.encode(gradient).tobytes() for _ in range(2)] == sent[:2]
    assert not first.residual.any()


@pytest.mark.parametrize("maker", MAKERS)
def test_a_saved_state_goes_on_exactly(path, maker):
    one, other = (started(maker, "qsgd4", 900, seed=5) for _ in range(2))
    steps = gradients(900, 5)
    for gradient in steps[:3]:
        one.compress(gradient)
    other.load_state_dict(one.state_dict())
    for gradient in steps[3:]:
        assert one.compress(gradient).tobytes() == other.compress(gradient).tobytes()
        np.testing.assert_array_equal(one.residual, other.residual)


@pytest.mark.parametrize("n", [1, 8, 100, 1000])
def test_a_falling_density_fits_the_buffers(path, n):
    compressor = TopK(0.01, warmup_steps=30, values="int8")
    compressor.start(n, np.dtype(np.float32))
    for step, gradient in enumerate(gradients(n, 40)):
        sent = np.count_nonzero(decoded(compressor, compressor.compress(gradient), n))
        assert sent <= np.ceil(compressor.density_at(step) * n)


def test_dropped_entries_go_back(path):
    compressor = started("quantize", "sign", 4)
    compressor.keep_back(np.array([1, 3], np.uint32), np.array([2, 5], np.float32))
    assert compressor.residual.tolist() == [0, 2, 0, 5]


def test_a_damaged_message_changes_nothing(path):
    compressor = started("quantize", "int8", 50)
    data = compressor.compress(gradients(50, 1)[0]).copy()
    data[45] ^= 1
    dense = np.ones(50, np.float32)
    with pytest.raises(MessageError, match="altered"):
        compressor.decompress_add(data, dense)
    assert (dense == 1).all()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: TopK(0.1, values="int7"), "values must be one of float16, .*got 'int7'"),
        (lambda: TopK(0.1, values="float32"), "or None for plain, got 'float32'"),
        (lambda: Quantize(None), "must name a quantised type, got None; int8"),
        (lambda: Quantize("int8").start(5, np.dtype(float)), "needs float32 gradients, got float6"),
        (lambda: TopK(0.1, values="sign").start(5, np.dtype(float)), "sign needs float32"),
    ],
)
def test_errors(call, text):
    with pytest.raises(ConfigError, match=text):
        call()
