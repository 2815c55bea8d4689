import numpy as np
import pytest

from paropt_hpc.errors import ConfigError
from paropt_hpc.train import MLP, Batch, Softmax

MODELS = {
    "softmax": Softmax(5, 3),
    "mlp": MLP(5, [7], 3),
    "deep": MLP(5, [7, 4], 3),
}


@pytest.fixture(params=MODELS)
def model(request):
    return MODELS[request.param]


def batch_of(n, seed=0):
    generator = np.random.default_rng(seed)
    return Batch(generator.standard_normal((n, 5)), generator.integers(0, 3, n))


def test_gradient_is_the_derivative_of_the_loss(model):
    batch = batch_of(6)
    params = np.random.default_rng(1).standard_normal(model.size)
    _, gradient = model.loss_and_grad(params, batch)
    step = 1e-6
    for i in range(model.size):
        up, down = params.copy(), params.copy()
        up[i] += step
        down[i] -= step
        slope = (model.loss_and_grad(up, batch)[0] - model.loss_and_grad(down, batch)[0]) / 2 / step
        assert gradient[i] == pytest.approx(slope, abs=1e-7)


def test_loss_at_zero_is_the_log_of_the_classes(model):
    loss, _ = model.loss_and_grad(np.zeros(model.size), batch_of(9))
    assert loss == pytest.approx(np.log(3))


def test_parameters_stay_and_out_is_used(model):
    params = model.init(3, "float64")
    before = params.copy()
    out = np.full(model.size, np.nan)
    _, gradient = model.loss_and_grad(params, batch_of(4), out=out)
    assert gradient is out
    assert np.isfinite(out).all()
    assert np.array_equal(params, before)


def test_empty_batch_has_no_loss_and_no_gradient(model):
    loss, gradient = model.loss_and_grad(model.init(0, "float64"), batch_of(0))
    assert loss == 0
    assert not gradient.any()
    assert model.evaluate(model.init(0, "float64"), batch_of(0)) == (0, 0)


def test_large_logits_do_not_overflow(model):
    loss, gradient = model.loss_and_grad(np.full(model.size, 1e4), batch_of(4))
    assert np.isfinite(loss)
    assert np.isfinite(gradient).all()


def test_evaluate_agrees_with_the_loss(model):
    params, batch = model.init(1, "float64"), batch_of(11)
    total, correct = model.evaluate(params, batch)
    assert total / 11 == pytest.approx(model.loss_and_grad(params, batch)[0])
    assert 0 <= correct <= 11


def test_init_is_seeded_and_scaled():
    model = MLP(400, [300], 10)
    params = model.init(5)
    assert params.dtype == np.float32
    assert np.array_equal(params, model.init(5))
    assert not np.array_equal(params, model.init(6))
    assert params[: 400 * 300].std() == pytest.approx(np.sqrt(2 / 400), rel=0.02)


def test_a_layer_without_units_is_refused():
    with pytest.raises(ConfigError, match="at least 1 unit"):
        MLP(5, [0], 3)
