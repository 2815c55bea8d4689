"""What Top-k carries from step to step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from paropt_hpc.compress import TopK
from paropt_hpc.errors import ConfigError


def started(n):
    compressor = TopK(0.02, momentum=0.5)
    compressor.start(n, np.dtype(np.float32))
    return compressor


def test_a_restored_compressor_sends_the_same_bytes_without_the_old_threshold(path):
    gradients = np.random.default_rng(0).standard_normal((8, 20_000)).astype(np.float32)
    through, before = started(20_000), started(20_000)
    for gradient in gradients[:4]:
        assert through.compress(gradient).tobytes() == before.compress(gradient).tobytes()
    state = before.state_dict()
    assert set(state) == {"steps", "draws", "residual", "velocity"}

    resumed = started(20_000)
    resumed.load_state_dict(state)
    for gradient in gradients[4:]:
        assert through.compress(gradient).tobytes() == resumed.compress(gradient).tobytes()
    np.testing.assert_array_equal(through.residual, resumed.residual)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(data=st.data())
def test_overshoot_leaves_the_difference_behind(path, dtype, data):
    n, overshoot = 40, data.draw(st.floats(1, 1.99))
    numbers = st.floats(-1e6, 1e6, width=32)
    gradients = data.draw(hnp.arrays(dtype, (3, n), elements=numbers))
    compressor = TopK(0.1, overshoot=overshoot)
    compressor.start(n, np.dtype(dtype))
    for gradient in gradients:
        collected = compressor.residual + gradient
        sent = np.zeros(n, dtype)
        compressor.decompress_add(compressor.compress(gradient), sent)
        picked = np.argsort(-np.abs(collected), kind="stable")[:4]
        expected = np.zeros(n, dtype)
        expected[picked] = collected[picked] * dtype(overshoot)
        np.testing.assert_array_equal(sent, expected)
        np.testing.assert_array_equal(compressor.residual, collected - sent)
        np.testing.assert_array_equal(compressor.residual + sent, collected)


def test_what_overshoots_is_paid_back():
    """A constant gradient arrives in full, however it is sent."""
    gradient = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    compressor = TopK(0.1, overshoot=1.5)
    compressor.start(1000, np.dtype(np.float32))
    arrived = np.zeros(1000, np.float32)
    for _ in range(500):
        compressor.decompress_add(compressor.compress(gradient), arrived)
    late = np.abs(500 * gradient - arrived)
    assert late.max() < 20 * np.abs(gradient).max()


@pytest.mark.parametrize("overshoot", [0.99, 2.0, float("nan")])
def test_overshoot_has_bounds(overshoot):
    with pytest.raises(ConfigError, match=r"overshoot must be in \[1, 2\)"):
        TopK(0.1, overshoot=overshoot)
