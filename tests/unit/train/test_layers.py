import numpy as np
import pytest

from paropt_hpc.errors import ConfigError
from paropt_hpc.train import (
    CNN,
    MLP,
    Batch,
    BatchNorm,
    Conv2D,
    Embedding,
    EmbeddingBag,
    MaxPool,
    Network,
    ReLU,
    VirtualBatchNorm,
)
from paropt_hpc.train.layers import sum_rows

GENERATOR = np.random.default_rng(0)


def virtual(channels):
    return VirtualBatchNorm(channels, 3)


NETWORKS = {
    "cnn": CNN((6, 5, 2), [3, 4], [5], 3),
    "cnn, batch norm": CNN((6, 5, 2), [3, 4], [5], 3, BatchNorm),
    "cnn, virtual": CNN((6, 5, 2), [3, 4], [5], 3, virtual),
    "mlp, batch norm": MLP(60, [5], 3, BatchNorm),
}


@pytest.mark.parametrize("name", [*NETWORKS, "embedding"])
def test_gradient_is_the_derivative_of_the_loss(name):
    generator = np.random.default_rng(1)
    network, x = NETWORKS.get(name), 2 + 3 * generator.standard_normal((7, 60))
    if name == "embedding":
        network, x = EmbeddingBag(8, 4, [5], 3), generator.integers(0, 9, (7, 5))
    batch = Batch(x, generator.integers(0, 3, 7))
    params = network.init(0, "float64")
    params += 0.1 * generator.standard_normal(params.size)
    _, gradient = network.loss_and_grad(params, batch)
    step = 1e-6
    for i in range(network.size):
        up, down = params.copy(), params.copy()
        up[i] += step
        down[i] -= step
        high, low = (network.loss_and_grad(p, batch)[0] for p in (up, down))
        assert gradient[i] == pytest.approx((high - low) / 2 / step, abs=2e-7)


@pytest.mark.parametrize("width", [1, 3, 5])
def test_convolution_equals_four_loops(width):
    x, kernels = GENERATOR.standard_normal((2, 4, 5, 3)), np.zeros((width, width, 3, 2))
    kernels[...] = GENERATOR.standard_normal(kernels.shape)
    bias = np.array([0.5, -1.0])
    y, _ = Conv2D(3, 2, width).forward([kernels, bias], x, training=False)
    border = width // 2
    padded = np.pad(x, ((0, 0), (border, border), (border, border), (0, 0)))
    for i in range(4):
        for j in range(5):
            window = padded[:, i : i + width, j : j + width]
            expected = np.einsum("nabc,abcf->nf", window, kernels) + bias
            assert np.allclose(y[:, i, j], expected)


def test_pooling_takes_the_first_of_equal_maxima_and_leaves_odd_edges_out():
    x = np.zeros((1, 3, 5, 1))
    x[0, :, :, 0] = [[1, 1, 0, 2, 9], [0, 1, 3, 3, 9], [9, 9, 9, 9, 9]]
    layer = MaxPool()
    y, saved = layer.forward([], x, training=True)
    assert y[0, :, :, 0].tolist() == [[1, 3]]
    back = layer.backward([], saved, np.array([[[[5.0], [7.0]]]]), [], wanted=True)
    assert back[0, :, :, 0].tolist() == [[5, 0, 0, 0, 0], [0, 0, 7, 0, 0], [0, 0, 0, 0, 0]]


def test_padding_and_its_width_change_nothing():
    layer, table = Embedding(4, 3), GENERATOR.standard_normal((4, 3))
    short, _ = layer.forward([table], np.array([[2, 4], [0, 0]]), training=True)
    long, _ = layer.forward([table], np.array([[2, 4, 0, 0], [0, 0, 0, 0]]), training=True)
    assert np.allclose(short, [table[[1, 3]].mean(axis=0), np.zeros(3)])
    assert np.allclose(short, long)


@pytest.mark.parametrize("shape", [(0, 3), (1, 3), (85, 3), (1000, 3), (513, 1), (7, 300)])
def test_sums_of_rows(shape):
    rows = GENERATOR.standard_normal(shape).astype("float32")
    assert np.allclose(sum_rows(rows, np.float64), rows.astype("float64").sum(axis=0), rtol=1e-12)


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_statistics_are_those_of_the_batch(offset):
    layer = BatchNorm(3)
    x = offset + GENERATOR.standard_normal((50, 3)) * [1, 2, 0]
    params = [np.array([1.0, 2.0, 3.0]), np.array([0.0, 1.0, 2.0])]
    y, _ = layer.forward(params, x, training=True)
    expected = (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + 1e-5) * params[0] + params[1]
    assert np.allclose(y, expected, rtol=1e-9, atol=1e-9)
    assert np.allclose(layer.mean, x.mean(axis=0), rtol=1e-12)
    assert np.allclose(layer.variance, x.var(axis=0, ddof=1), rtol=1e-9, atol=1e-15)


def test_running_statistics_follow_and_serve_in_evaluation():
    layer, params = BatchNorm(2, momentum=0.25), [np.ones(2), np.zeros(2)]
    one, two = (GENERATOR.standard_normal((20, 2)) + i for i in (0, 5))
    layer.forward(params, one, training=True)
    layer.forward(params, two, training=True)
    mean = 0.75 * one.mean(axis=0) + 0.25 * two.mean(axis=0)
    variance = 0.75 * one.var(axis=0, ddof=1) + 0.25 * two.var(axis=0, ddof=1)
    y, _ = layer.forward(params, one.copy(), training=False)
    assert np.allclose(y, (one - mean) / np.sqrt(variance + 1e-5))
    assert layer.steps == 2  # an evaluation is no step


def test_a_virtual_batch_is_a_batch_of_its_own():
    layer, params = VirtualBatchNorm(2, 4), [np.ones(2), np.zeros(2)]
    x = GENERATOR.standard_normal((9, 2))
    y, saved = layer.forward(params, x, training=True)
    delta = GENERATOR.standard_normal((9, 2))
    gradient = [np.empty(2), np.empty(2)]
    back = layer.backward(params, saved, delta, gradient, wanted=True)
    sums = np.zeros((2, 2))
    for part in (slice(0, 5), slice(5, 9)):  # 9 samples are two virtual batches of nearly 4
        alone = BatchNorm(2)
        expected, kept = alone.forward(params, x[part], training=True)
        assert np.allclose(y[part], expected)
        own = [np.empty(2), np.empty(2)]
        assert np.allclose(back[part], alone.backward(params, kept, delta[part], own, True))
        sums += own
    assert np.allclose(gradient, sums)


@pytest.mark.parametrize("norm", [BatchNorm, virtual])
def test_a_network_goes_on_exactly_from_a_saved_state(norm):
    one, two = (MLP(6, [4], 3, norm) for _ in range(2))
    params = one.init(0, "float64")
    batch = Batch(GENERATOR.standard_normal((8, 6)), np.arange(8) % 3)
    one.loss_and_grad(params, Batch(1 + 2 * batch.x, batch.y))
    two.load_state_dict(one.state_dict())
    one.loss_and_grad(params, batch)
    assert two.evaluate(params, batch) != one.evaluate(params, batch)  # a state is a copy
    two.loss_and_grad(params, batch)
    assert two.evaluate(params, batch) == one.evaluate(params, batch)


@pytest.mark.parametrize("network", NETWORKS.values(), ids=NETWORKS)
def test_an_empty_batch_has_no_loss_and_no_gradient(network):
    loss, gradient = network.loss_and_grad(
        network.init(0, "float64"), Batch(np.empty((0, 60)), np.empty(0, int))
    )
    assert loss == 0
    assert not gradient.any()


@pytest.mark.parametrize("norm", [None, BatchNorm, virtual])
def test_types_stay(norm):
    network = CNN((4, 4, 1), [2], [3], 2, norm)
    batch = Batch(np.ones((5, 16), "float32"), np.zeros(5, int))
    assert network.loss_and_grad(network.init(0, "float32"), batch)[1].dtype == np.float32


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: CNN((3, 3, 1), [2, 2], [], 2), "cannot be halved 2 times"),
        (lambda: Conv2D(1, 1, 4), "width of a kernel must be odd, got 4"),
        (lambda: Network([ReLU()]), "needs a layer with parameters"),
        (lambda: EmbeddingBag(0, 3, [], 2), "at least 1 unit"),
        (lambda: BatchNorm(3, momentum=0), r"must be in \(0, 1\]"),
        (lambda: VirtualBatchNorm(3, 1), "at least 2 samples"),
    ],
)
def test_settings_out_of_range(make, said):
    with pytest.raises(ConfigError, match=said):
        make()
