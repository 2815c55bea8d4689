"""The population kernels equal their NumPy twin in every bit, on every instruction set."""

import numpy as np
import pytest

from paropt_hpc.kernels import backend, reference

SIZES = [(4, 1), (5, 2), (7, 7), (8, 8), (9, 9), (33, 16), (100, 30)]
BIG = (4099, 64)  # enough numbers for two threads


def kernel():
    return backend.implementation()


def population(n, d, seed=0):
    rng = np.random.default_rng(seed)
    lower, upper = -rng.uniform(0.5, 5, d), rng.uniform(0.5, 5, d)
    return rng.uniform(lower, upper, (n, d)), lower, upper


def check_twins(name, inputs, outputs):
    """Call a kernel and its twin on the same arguments; outputs must be equal to the bit."""
    mine = [array.copy() for array in outputs]
    theirs = [array.copy() for array in outputs]
    getattr(kernel(), name)(*inputs, *mine)
    getattr(reference, name)(*inputs, *theirs)
    for a, b in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(a, b)
    return mine


@pytest.mark.parametrize("objective", range(4))
@pytest.mark.parametrize(("n", "d"), [*SIZES, BIG, (0, 3)])
def test_objectives(path, objective, n, d):
    x, _, _ = population(n, d)
    check_twins("evaluate", (objective, x), [np.zeros(n)])


@pytest.mark.parametrize("d", [1, 2, 30])
def test_objectives_have_the_values_of_their_formulas(path, d):
    x, _, _ = population(50, d)
    two_pi = 2 * np.pi
    cos = np.cos(two_pi * x)
    expected = [
        (x * x).sum(axis=1),
        (x * x - 10 * cos + 10).sum(axis=1),
        (100 * (x[:, 1:] - x[:, :-1] ** 2) ** 2 + (1 - x[:, :-1]) ** 2).sum(axis=1),
        20 - 20 * np.exp(-0.2 * np.sqrt((x * x).mean(axis=1))) + np.e - np.exp(cos.mean(axis=1)),
    ]
    for objective, values in enumerate(expected):
        f = np.empty(50)
        kernel().evaluate(objective, x, f)
        np.testing.assert_allclose(f, values, rtol=1e-13, atol=1e-13)
        kernel().evaluate(objective, np.full((1, d), float(objective == 2)), f[:1])
        assert f[0] == 0


def test_elementary_functions_are_accurate():
    x = np.random.default_rng(1).uniform(0, 1, 10000)
    np.testing.assert_allclose(reference_of("_log")(x), np.log(x), rtol=4e-16, atol=1e-16)
    np.testing.assert_allclose(reference_of("_exp")(40 - 80 * x), np.exp(40 - 80 * x), rtol=5e-15)
    y = x - 0.5
    np.testing.assert_allclose(reference_of("_sinpi")(y), np.sin(np.pi * y), rtol=1e-15, atol=0)
    u = np.float32(np.append(2.0 ** (-30 * x), 1))
    for e in np.float32([1, 1 / 3, 1 / 21, -1 / 16, -1]):
        np.testing.assert_allclose(reference_of("_power")(u, e), u.astype(float) ** e, rtol=3e-6)
    assert reference_of("_power")(np.float32([1]), np.float32(0.3)) == 1


def reference_of(name):
    from paropt_hpc.kernels import reference_population

    return getattr(reference_population, name)


@pytest.mark.parametrize(("n", "d"), [*SIZES, BIG])
def test_normals(path, n, d):
    check_twins("normals", (123,), [np.zeros((n, d))])


def test_normals_are_normal_and_independent(path):
    z = np.empty((2000, 50))
    kernel().normals(7, z)
    assert abs(z.mean()) < 0.01
    assert abs(z.std() - 1) < 0.01
    assert abs((z**4).mean() - 3) < 0.05
    assert abs((np.abs(z) > 1.96).mean() - 0.05) < 0.003
    off_diagonal = np.corrcoef(z.T) - np.eye(50)
    assert np.abs(off_diagonal).max() < 0.1  # 4.5 standard deviations of 2000 samples
    assert abs(np.corrcoef(z[:-1].ravel(), z[1:].ravel())[0, 1]) < 0.015


def test_uniform_numbers_are_uniform():
    streams = reference_of("streams")(99, np.arange(1000))
    u = reference_of("_uniforms")(streams, 64)
    counts = np.histogram(u, bins=100, range=(0, 1))[0]
    assert ((counts - 640.0) ** 2 / 640).sum() < 160  # chi-square with 99 degrees: 1 in 10000
    assert np.abs(np.corrcoef(u.T) - np.eye(64)).max() < 0.16
    assert len(np.unique(u)) > 0.9999 * u.size


def test_the_key_of_a_generation_is_the_same_by_all_paths(path):
    for key, generation in [(0, 0), (2**64 - 1, 5), (12345, 2**40)]:
        mine = kernel().generation_key(key, generation)
        assert mine == reference.generation_key(key, generation)


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize(("n", "d"), [*SIZES, BIG])
def test_take_better(path, n, d, strict):
    rng = np.random.default_rng(n)
    x, other = rng.random((2, n, d))
    f, other_f = rng.integers(0, 3, (2, n)).astype(float)
    f[::3], other_f[::4] = np.inf, np.inf
    a, b = [x.copy(), f.copy()], [x.copy(), f.copy()]
    kernel().take_better(*a, other, other_f, strict)
    reference.take_better(*b, other, other_f, strict)
    np.testing.assert_array_equal(a[0], b[0])
    np.testing.assert_array_equal(a[1], b[1])


def de_inputs(n, d, mutation, archived):
    x, lower, upper = population(n, d)
    rng = np.random.default_rng(5)
    archive = rng.uniform(lower, upper, (archived, d))
    guides = np.arange(min(n, 3), dtype=np.uint32)
    weight, rate = rng.uniform(0.1, 1, n), rng.random(n)
    return (lower, upper, mutation, archive, guides, weight, rate, 77, x)


@pytest.mark.parametrize("archived", [0, 13])
@pytest.mark.parametrize("mutation", range(3))
@pytest.mark.parametrize(("n", "d"), [*SIZES, BIG])
def test_de_trials(path, n, d, mutation, archived):
    inputs = de_inputs(n, d, mutation, archived)
    (trial,) = check_twins("de_trials", inputs, [np.zeros((n, d))])
    assert ((trial >= inputs[0]) & (trial <= inputs[1])).all()
    assert (trial != inputs[-1]).any(axis=1).mean() > 0.8


def test_de_picks_different_members_evenly():
    n = 5
    without = reference_of("_without")
    me = np.arange(n).repeat(4000)
    rng = np.random.default_rng(0)
    a = without(rng.integers(n - 1, size=me.size), me)
    b = without(rng.integers(n - 2, size=me.size), me, a)
    c = without(rng.integers(n - 3, size=me.size), me, a, b)
    for one, two in [(me, a), (me, b), (a, b), (me, c), (a, c), (b, c)]:
        assert (one != two).all()
    counts = np.bincount(c, minlength=n)
    assert counts.min() > 0.9 * counts.mean()


def swarm_inputs(n, d, neighbouring, bounds):
    _, lower, upper = population(n, d)
    rng = np.random.default_rng(2)
    neighbours = rng.integers(n, size=(n, neighbouring)).astype(np.uint32)
    fastest = 0.7 * (upper - lower)
    return (lower, upper, neighbours, fastest, (0.73, 1.5, 1.4), bounds)


@pytest.mark.parametrize("bounds", range(3))
@pytest.mark.parametrize("neighbouring", [0, 3])
@pytest.mark.parametrize(("n", "d"), [*SIZES, BIG])
def test_swarm_move(path, n, d, neighbouring, bounds):
    x, lower, upper = population(n, d)
    rng = np.random.default_rng(3)
    best_x, best_f = rng.uniform(lower, upper, (n, d)), rng.random(n)
    v = rng.standard_normal((n, d)) * (upper - lower)
    inputs = (*swarm_inputs(n, d, neighbouring, bounds), 9, best_x, best_f)
    moved, speed, _ = check_twins("swarm_move", inputs, [x, v, np.zeros(n, np.uint32)])
    assert ((moved >= lower) & (moved <= upper)).all()
    assert (np.abs(speed) <= 0.7 * (upper - lower)).all()


OPERATORS = [((0, 0.9, 15.0), (0, 0.2, 20.0)), ((1, 0.7, 0.5), (1, 0.2, 0.1))]


@pytest.mark.parametrize(("crossover", "mutation"), OPERATORS)
@pytest.mark.parametrize("children", [1, 6, 33, 8001])
@pytest.mark.parametrize("d", [1, 7, 8, 30])
def test_ga_children(path, d, children, crossover, mutation):
    n = 20
    x, lower, upper = population(n, d)
    parents = np.random.default_rng(4).integers(n, size=children).astype(np.uint32)
    inputs = (lower, upper, crossover, mutation, 5, x, parents)
    (child,) = check_twins("ga_children", inputs, [np.zeros((children, d))])
    assert ((child >= lower) & (child <= upper)).all()


@pytest.mark.parametrize("rate", [0.0, 1e-12, 0.02, 0.5, 1.0])
@pytest.mark.parametrize("kind", [0, 1])
def test_ga_mutates_at_its_rate(path, kind, rate):
    n, d = 200, 50
    x = np.full((n, d), 0.5)
    box = np.zeros(d), np.ones(d)
    inputs = (*box, (0, 0.0, 15.0), (kind, rate, (20.0, 0.1)[kind]), 5, x)
    parents = np.arange(n, dtype=np.uint32)
    (child,) = check_twins("ga_children", (*inputs, parents), [np.zeros((n, d))])
    steps = (child - x)[child != x]
    assert steps.size / x.size == pytest.approx(rate, abs=5 * (rate * (1 - rate) / x.size) ** 0.5)
    if steps.size > 100:
        assert abs((steps > 0).mean() - 0.5) < 2.5 / steps.size**0.5
        # Of 1 - u^(1/21) the mean is 1/22; of the normal one 0.8 of its deviation.
        size = (1 / 22, 0.1 * (2 / np.pi) ** 0.5)[kind]
        assert np.abs(steps).mean() == pytest.approx(size, rel=5 / steps.size**0.5)


@pytest.mark.parametrize(("kind", "index"), [(0, 2.0), (0, 15.0), (1, 0.5)])
def test_ga_crosses_around_the_middle_of_the_parents(path, kind, index):
    n, d = 400, 50
    x = np.repeat([[1.0] * d, [3.0] * d], n // 2, axis=0)
    parents = np.arange(n, dtype=np.uint32).reshape(2, -1).T.ravel()
    inputs = (np.full(d, -1e9), np.full(d, 1e9), (kind, 1.0, index), (0, 0.0, 20.0), 5, x)
    (child,) = check_twins("ga_children", (*inputs, np.ascontiguousarray(parents)), [x * 0])
    one, two = child[::2].ravel(), child[1::2].ravel()
    np.testing.assert_allclose(one + two, 4.0, rtol=1e-6)
    assert (one == 1.0).mean() == pytest.approx(0.5, abs=0.03)  # half of the columns stay
    spread = np.abs(one - two)[one != 1.0] / 2
    if kind == 0:  # u^(1/(index + 1)) inwards or its inverse outwards
        assert (spread < 1).mean() == pytest.approx(0.5, abs=0.03)
        assert np.median(np.minimum(spread, 1 / spread)) == pytest.approx(
            0.5 ** (1 / (index + 1)), rel=0.05
        )
    else:  # evenly over the interval of the parents and alpha of it on both sides
        assert spread.max() <= 1 + 2 * index
        assert spread.mean() == pytest.approx(0.5 + index, rel=0.05)
    assert (one > two).mean() == pytest.approx(0.25, abs=0.03)  # half of the crossed ones


@pytest.mark.parametrize("tournament", [1, 2, 5])
def test_ga_parents(path, tournament):
    f = np.random.default_rng(6).integers(0, 30, 50).astype(float)
    (parents,) = check_twins("ga_parents", (tournament, 3, f), [np.zeros(5000, np.uint32)])
    expected = (1 - np.arange(51) / 50) ** tournament  # that all rivals are at least the r-th
    wins = np.bincount(np.argsort(np.argsort(f, kind="stable"))[parents], minlength=50) / 5000
    assert wins[:10].sum() == pytest.approx(1 - expected[10], abs=0.05)


VALUES = {
    "few values": lambda rng, m: rng.integers(0, 5, m).astype(float),
    "all equal": lambda rng, m: np.ones(m),
    "failures": lambda rng, m: np.where(rng.random(m) < 0.7, np.inf, rng.random(m)),
    "falling": lambda rng, m: -np.arange(float(m)),
    "organ pipes": lambda rng, m: -np.abs(np.arange(m) - m / 2),
}


@pytest.mark.parametrize("values", VALUES)
@pytest.mark.parametrize("n", [1, 10, 1000])
@pytest.mark.parametrize(("elite", "truncation"), [(0, True), (1, False), (0, False), (10, False)])
def test_ga_survive(path, elite, truncation, n, values):
    d, elite = 3, min(elite, n - 1)
    m = n if truncation else n - elite
    rng = np.random.default_rng(8)
    x, child = rng.random((n, d)), rng.random((m, d))
    f, child_f = np.split(VALUES[values](rng, n + m), [n])
    a = [x.copy(), f.copy()]
    b = [x.copy(), f.copy()]
    scratch = np.zeros(n + m, np.uint32), np.zeros(n + m)
    kernel().ga_survive(elite, truncation, *a, child, child_f, *scratch)
    reference.ga_survive(elite, truncation, *b, child, child_f, *scratch)
    np.testing.assert_array_equal(a[0], b[0])
    np.testing.assert_array_equal(a[1], b[1])
    rivals = np.concatenate([f, child_f])
    best = np.sort(rivals)[:n] if truncation else np.sort([*np.sort(f)[:elite], *child_f])
    np.testing.assert_array_equal(np.sort(a[1]), best)


@pytest.mark.parametrize("objective", range(4))
def test_runs_equal_their_twins(path, objective):
    n, d, generations = 12, 9, 6
    x, lower, upper = population(n, d)
    f, other, other_f = np.full(n, np.inf), np.zeros((n, d)), np.zeros(n)
    key, first = 21, 3
    weight, rate = np.full(n, 0.6), np.full(n, 0.8)
    steps = (objective, key, first, generations)
    for mutation in range(3):
        inputs = (lower, upper, mutation, weight, rate, *steps)
        check_runs("de_run", inputs, [x, f, other, other_f], generations)
    swarm = swarm_inputs(n, d, 3, 0)[:2]
    neighbours, fastest = swarm_inputs(n, d, 3, 0)[2:4]
    guide = np.zeros(n, np.uint32)
    inputs = (*swarm, neighbours, fastest, (0.73, 1.5, 1.4), 0, *steps)
    check_runs("swarm_run", inputs, [x, np.zeros((n, d)), x, f, other_f, guide], generations)
    for crossover, mutation in OPERATORS:
        inputs = (lower, upper, 1, 2, True, crossover, mutation, *steps)
        scratch = [np.zeros(n, np.uint32), np.zeros(2 * n, np.uint32), np.zeros(2 * n)]
        outputs = [x, np.arange(n, dtype=float), other, other_f, *scratch]
        check_runs("ga_run", inputs, outputs, generations, compared=4)


def check_runs(name, inputs, outputs, generations, compared=None):
    """Compare a run with that of the twin, to its end and to a value on the way."""
    target = -np.inf
    for _ in range(2):
        told = []
        for module in (kernel(), reference):
            arrays = [array.copy() for array in outputs]
            best = np.zeros(len(inputs[0])), np.array([np.inf])
            done = getattr(module, name)(*inputs, *arrays, (*best, target))
            told.append((done, [*best, *arrays[:compared]]))
        (done, mine), (expected, theirs) = told
        assert done == expected
        for a, b in zip(mine, theirs, strict=True):
            np.testing.assert_array_equal(a, b)
        assert done == generations if target == -np.inf else mine[1][0] <= target
        target = mine[1][0]  # is reached by the last of its generations at the latest


def test_wrong_arguments_are_refused_by_native_code():
    native = backend.native_module()
    if native is None:
        pytest.skip("native kernels were not built")
    x, lower, upper = population(6, 3)
    with pytest.raises(ValueError, match="shapes"):
        native.evaluate(0, x, np.zeros(5))
    with pytest.raises(ValueError, match="out of range"):
        native.evaluate(9, x, np.zeros(6))
    with pytest.raises(TypeError):
        native.evaluate(0, x.astype(np.float32), np.zeros(6))
    parents = np.full(4, 6, np.uint32)
    with pytest.raises(ValueError, match="index is out of range"):
        native.ga_children(lower, upper, (0, 1, 1), (0, 1, 1), 0, x, parents, np.zeros((4, 3)))
    with pytest.raises(ValueError, match="guide"):
        native.de_trials(
            lower, upper, 1, x[:0], np.empty(0, np.uint32), np.ones(6), np.ones(6), 0, x, x.copy()
        )
