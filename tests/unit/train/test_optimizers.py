import numpy as np
import pytest

from paropt_hpc.errors import ConfigError
from paropt_hpc.train import SGD, LinearScaling


def plain_sgd(params, gradients, lr, momentum, nesterov, weight_decay):
    """The textbook's formulas, one array at a time."""
    velocity = np.zeros_like(params)
    for gradient in gradients:
        g = gradient + params * weight_decay if weight_decay else gradient
        if momentum:
            velocity = velocity * momentum + g
            g = g + velocity * momentum if nesterov else velocity
        params = params - g * lr
    return params


def gradients_of(dtype, steps=5, n=17):
    generator = np.random.default_rng(0)
    return [generator.standard_normal(n).astype(dtype) for _ in range(steps)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_equals_the_formulas_to_the_bit(dtype, momentum, nesterov, weight_decay):
    start = np.linspace(-1, 1, 17).astype(dtype)
    expected = plain_sgd(start, gradients_of(dtype), 0.1, momentum, nesterov, weight_decay)
    params = start.copy()
    optimizer = SGD(0.1, momentum, nesterov, weight_decay)
    for gradient in gradients_of(dtype):
        optimizer.update(params, gradient)
    assert params.dtype == dtype
    assert np.array_equal(params, expected)


def test_goes_on_exactly_from_a_saved_state():
    gradients = gradients_of("float64")
    whole, params = SGD(0.1, 0.9), np.ones(17)
    for gradient in gradients[:3]:
        whole.update(params, gradient.copy())
    resumed, copy = SGD(0.1, 0.9), params.copy()
    resumed.load_state_dict(whole.state_dict())
    for optimizer, vector in ((whole, params), (resumed, copy)):
        for gradient in gradients[3:]:
            optimizer.update(vector, gradient.copy())
    assert np.array_equal(params, copy)
    assert resumed.steps == 5


@pytest.mark.parametrize(
    "arguments", [{"momentum": 1.0}, {"momentum": -0.1}, {"weight_decay": -1}, {"nesterov": True}]
)
def test_settings_out_of_range(arguments):
    with pytest.raises(ConfigError):
        SGD(0.1, **arguments)


def test_warm_up_rises_linearly_to_the_scaled_rate():
    schedule = LinearScaling(0.1, factor=8, warmup_steps=4)
    assert [schedule(step) for step in range(6)] == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])
    assert LinearScaling(0.1)(0) == 0.1


def test_the_optimizer_follows_its_schedule():
    optimizer, params = SGD(lambda step: 10.0**-step), np.zeros(1)
    for _ in range(3):
        optimizer.update(params, np.ones(1))
    assert params[0] == pytest.approx(-1.11)
    assert optimizer.lr == pytest.approx(1e-3)
