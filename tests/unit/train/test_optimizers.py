import numpy as np
import pytest

from paropt_hpc.errors import ConfigError
from paropt_hpc.train import LAMB, LARS, MLP, SGD, Adam, AdamW

N = 17
LAYERS = [slice(0, 5), slice(5, 16), slice(16, 17)]


def sgd(params, gradients, lr, momentum=0.0, nesterov=False, weight_decay=0.0):
    """The textbook's formulas, one array at a time."""
    velocity = np.zeros_like(params)
    for gradient in gradients:
        g = gradient + params * weight_decay if weight_decay else gradient
        if momentum:
            velocity = velocity * momentum + g
            g = g + velocity * momentum if nesterov else velocity
        params = params - g * lr
    return params


def adam_directions(gradients, b1=0.9, b2=0.999, eps=1e-8):
    """A generator: send it each gradient, get its bias-corrected direction."""
    m = v = 0.0
    for t, g in enumerate(gradients, 1):
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g * g
        yield m / (1 - b1**t) / (np.sqrt(v) / np.sqrt(1 - b2**t) + eps)


def gradients_of(dtype="float64", steps=6):
    generator = np.random.default_rng(0)
    return [generator.standard_normal(N).astype(dtype) for _ in range(steps)]


def start(dtype="float64"):
    return np.linspace(-1, 1.5, N).astype(dtype)


def run(optimizer, gradients, params):
    for gradient in gradients:
        optimizer.update(params, gradient.copy())
    return params


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, False), (0.9, False), (0.9, True)])
def test_sgd_equals_the_formulas_to_the_bit(dtype, momentum, nesterov, weight_decay):
    settings = (0.1, momentum, nesterov, weight_decay)
    params = run(SGD(*settings), gradients_of(dtype), start(dtype))
    assert params.dtype == dtype
    assert np.array_equal(params, sgd(start(dtype), gradients_of(dtype), *settings))


def test_adam():
    params = start()
    for direction in adam_directions(gradients_of()):
        params -= 0.01 * direction
    assert np.allclose(run(Adam(0.01), gradients_of(), start()), params, rtol=1e-12)


def test_decay_is_part_of_adams_gradient_but_not_of_adamws():
    coupled, decoupled = start(), start()
    gradients = gradients_of()
    optimizer = Adam(0.01, weight_decay=0.1)
    for gradient, direction in zip(gradients, adam_directions(gradients_of()), strict=True):
        optimizer.update(coupled, gradient.copy())
        decoupled -= 0.01 * (direction + 0.1 * decoupled)
    assert np.allclose(run(AdamW(0.01, weight_decay=0.1), gradients, start()), decoupled)
    assert not np.allclose(coupled, decoupled, rtol=1e-3)


def test_lars_scales_each_layer():
    gradient, params = gradients_of()[0], start()
    expected = params.copy()
    for layer in LAYERS:
        w, g = params[layer], gradient[layer]
        size, slope = np.linalg.norm(w), np.linalg.norm(g)
        expected[layer] -= 0.5 * 0.02 * size / (slope + 0.1 * size) * (g + 0.1 * w)
    optimizer = LARS(0.5, LAYERS, momentum=0.9, weight_decay=0.1, trust=0.02)
    optimizer.update(params, gradient.copy())
    assert np.allclose(params, expected, rtol=1e-12)


def test_lamb_steps_as_long_as_the_weights():
    gradient, before = gradients_of()[0], start()
    params = before.copy()
    LAMB(0.01, LAYERS, weight_decay=0.1).update(params, gradient.copy())
    for layer in LAYERS:
        step = np.linalg.norm(params[layer] - before[layer])
        assert step == pytest.approx(0.01 * np.linalg.norm(before[layer]))


def test_lars_over_many_steps():
    """Equation 6 and algorithm 1 of the paper: the momentum collects what is already scaled."""
    params, velocity = start(), np.zeros(N)
    for gradient in gradients_of():
        for layer in LAYERS:
            w, g = params[layer], gradient[layer]
            size = np.linalg.norm(w)
            rate = 0.02 * size / (np.linalg.norm(g) + 0.1 * size)
            velocity[layer] = 0.9 * velocity[layer] + rate * (g + 0.1 * w)
        params -= 0.5 * velocity
    optimizer = LARS(0.5, LAYERS, momentum=0.9, weight_decay=0.1, trust=0.02)
    assert np.allclose(run(optimizer, gradients_of(), start()), params, rtol=1e-12)


def test_lamb_over_many_steps():
    """Algorithm 2 of the paper, with the identity for phi."""
    params = start()
    for direction in adam_directions(gradients_of(), eps=1e-6):
        for layer in LAYERS:
            w = params[layer]
            update = direction[layer] + 0.1 * w
            w -= 0.01 * np.linalg.norm(w) / np.linalg.norm(update) * update
    optimizer = LAMB(0.01, LAYERS, weight_decay=0.1)
    assert np.allclose(run(optimizer, gradients_of(), start()), params, rtol=1e-12)


@pytest.mark.parametrize("kind", [LARS, LAMB])
def test_a_layer_of_zeros_keeps_its_rate(kind):
    params = np.zeros(N)
    kind(0.1, LAYERS).update(params, gradients_of()[0].copy())
    assert np.count_nonzero(params) == N
    assert np.isfinite(params).all()


def test_layers_of_a_model_cover_its_parameters():
    model = MLP(4, [5, 3], 2)
    covered = np.zeros(model.size, int)
    for layer in model.layers:
        covered[layer] += 1
    assert (covered == 1).all()
    assert len(model.layers) == 6


OPTIMIZERS = {
    "sgd": lambda: SGD(0.1, 0.9, nesterov=True, weight_decay=0.01),
    "lars": lambda: LARS(0.1, LAYERS, weight_decay=0.01, trust=0.02),
    "adam": lambda: Adam(0.01, weight_decay=0.01),
    "adamw": lambda: AdamW(0.01, weight_decay=0.01),
    "lamb": lambda: LAMB(0.01, LAYERS, weight_decay=0.01),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_goes_on_exactly_from_a_saved_state(name):
    first, rest = gradients_of()[:3], gradients_of()[3:]
    whole, resumed = OPTIMIZERS[name](), OPTIMIZERS[name]()
    params = run(whole, first, start())
    copy = params.copy()
    resumed.load_state_dict(whole.state_dict())
    assert np.array_equal(run(whole, rest, params), run(resumed, rest, copy))
    assert resumed.steps == 6


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_finds_the_bottom_of_a_bowl(name):
    optimizer, params = OPTIMIZERS[name](), start()
    centre = np.linspace(0.5, 1, N)
    before = np.square(params - centre).sum()
    for _ in range(300):
        optimizer.update(params, params - centre)
    assert np.square(params - centre).sum() < 0.1 * before


@pytest.mark.parametrize(
    "make",
    [
        lambda: SGD(0.1, momentum=1.0),
        lambda: SGD(0.1, momentum=-0.1),
        lambda: SGD(0.1, weight_decay=-1),
        lambda: SGD(0.1, nesterov=True),
        lambda: Adam(0.1, betas=(0.9, 1.0)),
    ],
)
def test_settings_out_of_range(make):
    with pytest.raises(ConfigError):
        make()


def test_an_optimizer_follows_its_schedule():
    optimizer, params = SGD(lambda step: 10.0**-step), np.zeros(1)
    for _ in range(3):
        optimizer.update(params, np.ones(1))
    assert params[0] == pytest.approx(-1.11)
    assert optimizer.lr == pytest.approx(1e-3)


PEERS = {
    "sgd": (
        lambda: SGD(0.1, 0.9, weight_decay=0.01),
        lambda torch, p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01),
    ),
    "nesterov": (
        lambda: SGD(0.1, 0.9, nesterov=True, weight_decay=0.01),
        lambda torch, p: torch.optim.SGD(p, 0.1, 0.9, nesterov=True, weight_decay=0.01),
    ),
    "adam": (
        lambda: Adam(0.01, (0.8, 0.99), weight_decay=0.01),
        lambda torch, p: torch.optim.Adam(p, 0.01, (0.8, 0.99), weight_decay=0.01),
    ),
    "adamw": (
        lambda: AdamW(0.01, weight_decay=0.1),
        lambda torch, p: torch.optim.AdamW(p, 0.01, weight_decay=0.1),
    ),
}


@pytest.mark.parametrize("name", PEERS)
def test_the_same_as_torch(name):
    torch = pytest.importorskip("torch", reason="a peer, not a dependency")
    make, make_peer = PEERS[name]
    theirs = torch.tensor(start(), requires_grad=True)
    peer = make_peer(torch, [theirs])
    for gradient in gradients_of(steps=12):
        theirs.grad = torch.tensor(gradient)
        peer.step()
    ours = run(make(), gradients_of(steps=12), start())
    np.testing.assert_allclose(ours, theirs.detach().numpy(), rtol=1e-12)
