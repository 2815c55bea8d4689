"""What the sparsifiers pick, keep and clear, against the formulas one entry at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paropt_hpc.compress import RandomK, Threshold, TopK
from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels import message

MAKERS = {
    "topk": lambda **settings: TopK(0.2, **settings),
    "randomk": lambda **settings: RandomK(0.2, **settings),
    "threshold": lambda **settings: Threshold(1.0, **settings),
}


def started(maker, n, dtype="float64", **settings):
    compressor = MAKERS[maker](**settings)
    compressor.start(n, np.dtype(dtype))
    return compressor


def decoded(compressor, data, n):
    dense = np.zeros(n, compressor.residual.dtype)
    compressor.decompress_add(data, dense)
    return dense


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@given(
    n=st.sampled_from([1, 2, 31, 257, 1000]),
    seed=st.integers(0, 2**32),
    scale=st.sampled_from([1e-20, 0.3, 1.0, 1e6]),
)
def test_each_step_sends_or_keeps_every_entry_whole(maker, dtype, n, seed, scale):
    compressor = started(maker, n, dtype)
    for step in range(4):
        generator = np.random.default_rng([seed, step])
        gradient = (generator.standard_normal(n) * scale).astype(dtype)
        acc = compressor.residual + gradient
        sent = decoded(compressor, compressor.compress(gradient), n)
        assert np.array_equal(np.where(sent != 0, sent, compressor.residual), acc)
        assert not (sent[compressor.residual != 0]).any()


@pytest.mark.parametrize("maker", MAKERS)
def test_momentum_is_collected_and_cleared_where_it_was_sent(maker):
    """Equation 4 of the paper on deep gradient compression, with masking."""
    n, mu = 50, 0.7
    compressor = started(maker, n, momentum=mu)
    velocity, residual = np.zeros(n), np.zeros(n)
    for step in range(12):
        gradient = np.random.default_rng(step).standard_normal(n)
        velocity = mu * velocity + gradient
        residual = residual + velocity
        data = compressor.compress(gradient)
        picked = message.decode(data).indices
        assert np.array_equal(decoded(compressor, data, n)[picked], residual[picked])
        velocity[picked] = residual[picked] = 0
        assert np.array_equal(compressor.residual, residual)


def test_a_threshold_leaves_nothing_that_reaches_it():
    compressor, counts = started("threshold", 300), []
    for step in range(30):
        data = compressor.compress(np.random.default_rng(step).standard_normal(300) * 0.3)
        counts.append(message.header(data).k)
        assert np.abs(compressor.residual).max() < 1.0
    assert counts[0] < 5
    assert max(counts) > 10  # what has waited long enough


def test_a_threshold_of_zero_sends_all_and_a_high_one_nothing():
    for bound, k in ((0.0, 40), (1e30, 0)):
        compressor = Threshold(bound)
        compressor.start(40, np.dtype("float32"))
        data = compressor.compress(np.linspace(-1, 1, 40).astype("float32"))
        assert message.header(data).k == k


def test_random_positions_are_those_of_all_ranks_and_new_in_each_step():
    n, ranks = 200, [started("randomk", 200, seed=3, rounding_seed=rank) for rank in range(3)]
    seen = []
    for step in range(40):
        picked = [
            message.decode(one.compress(np.random.default_rng([rank, step]).random(n))).indices
            for rank, one in enumerate(ranks)
        ]
        assert all(np.array_equal(picked[0], other) for other in picked)
        assert picked[0].size == 40
        seen.append(picked[0])
    assert len({tuple(indices) for indices in seen}) == 40
    assert np.unique(np.concatenate(seen)).size == n


def test_taking_and_putting_is_what_a_message_would_do():
    taking, encoding = started("randomk", 70), started("randomk", 70)
    for step in range(5):
        gradient = np.random.default_rng(step).standard_normal(70)
        dense = np.full(70, np.nan)
        taking.put(taking.take(gradient), dense)
        assert np.array_equal(dense, decoded(encoding, encoding.compress(gradient), 70))
        assert np.array_equal(taking.residual, encoding.residual)


def test_quantised_random_values_go_as_messages():
    compressor = RandomK(0.5, values="int8")
    compressor.start(10, np.dtype("float32"))
    assert not compressor.summable
    with pytest.raises(ConfigError, match="use compress"):
        compressor.take(np.ones(10, "float32"))


@pytest.mark.parametrize("maker", MAKERS)
def test_vectors_encoded_as_they_are_leave_the_residual_alone(maker):
    compressor, first = started(maker, 100), set()
    for _ in range(5):
        data = compressor.encode(np.arange(1.0, 101))
        first.add(tuple(message.decode(data).indices))
        assert not compressor.residual.any()
    assert len(first) == (5 if maker == "randomk" else 1)


@pytest.mark.parametrize("maker", MAKERS)
@pytest.mark.parametrize("settings", [{}, {"momentum": 0.5}, {"values": "qsgd4"}])
def test_goes_on_exactly_from_a_saved_state(maker, settings):
    gradients = np.random.default_rng(0).standard_normal((6, 90)).astype("float32")
    whole, resumed = (started(maker, 90, "float32", **settings) for _ in range(2))
    for gradient in gradients[:3]:
        whole.compress(gradient)
    resumed.load_state_dict(whole.state_dict())
    for gradient in gradients[3:]:
        assert np.array_equal(whole.compress(gradient), resumed.compress(gradient))
    assert np.array_equal(whole.residual, resumed.residual)


def test_the_density_of_topk_falls_to_its_value():
    compressor = TopK(0.001, warmup_steps=2)
    densities = [compressor.density_at(step) for step in range(4)]
    assert densities == pytest.approx([0.1, 0.01, 0.001, 0.001])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: TopK(0.0), r"density must be in \(0, 1\], got 0.0"),
        (lambda: RandomK(1.5), r"density must be in \(0, 1\], got 1.5"),
        (lambda: TopK(0.1, momentum=1.0), "momentum must be in"),
        (lambda: TopK(0.1, warmup_steps=-1), "warmup_steps must be at least 0"),
        (lambda: Threshold(-1.0), "threshold must be at least 0 and finite, got -1.0"),
        (lambda: Threshold(float("nan")), "got nan"),
        (lambda: RandomK(0.1, values="int4"), "values must be one of"),
    ],
)
def test_settings_out_of_range(make, said):
    with pytest.raises(ConfigError, match=said):
        make()
