"""What every algorithm promises, for each that is registered."""

import copy
import re
import tracemalloc

import numpy as np
import pytest

from paropt_hpc.errors import ConfigError
from paropt_hpc.metaheuristics import (
    ALGORITHMS,
    AdaptivePenalty,
    Binary,
    Migration,
    Permutation,
    Real,
    Space,
    function,
    make,
    make_islands,
)
from paropt_hpc.metaheuristics.migration import emigrants

SPACE = Space(Real(-3, 5, size=4))
REAL = [
    "bipop-cmaes",
    "cmaes",
    "de",
    "ga",
    "ipop-cmaes",
    "jde",
    "lshade",
    "pso",
    "sa",
    "sep-cmaes",
    "tempering",
]
OPTIONS = {"lshade": {"population": 30, "budget": 4000}, "sa": {"steps": 800}}
# How many times the generations of others it takes.
LONGER = {"sa": 10, "tempering": 10}
OTHERS = {"binary-pso", "mmas", "nsga2"}  # tested in files of their own


def sphere(x):
    return ((x - 1) ** 2).sum(axis=1)


def new(name, **options):
    return make(name, SPACE, **OPTIONS.get(name, {}), **options)


def run(algorithm, generations, objective=sphere):
    for _ in range(generations):
        x = algorithm.ask()
        algorithm.tell(x, objective(x))
    return algorithm


def check_same(a, b):
    assert a.keys() == b.keys()
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@pytest.fixture(params=REAL)
def name(request):
    return request.param


def test_finds_the_minimum(name):
    algorithm = run(new(name, seed=3), 150 * LONGER.get(name, 1))
    assert algorithm.best_f < 1e-3
    np.testing.assert_allclose(algorithm.best_x, 1, atol=0.05)
    assert algorithm.best_f == sphere(algorithm.best_x[None])[0]
    assert algorithm.best_violation == 0


def test_asks_for_rows_within_bounds(name):
    algorithm = new(name, seed=1)
    for _ in range(30):
        x = algorithm.ask()
        assert x.dtype == np.float64
        assert x.ndim == 2
        assert ((x >= SPACE.lower) & (x <= SPACE.upper)).all()
        algorithm.tell(x, -x.sum(axis=1))  # the minimum is a corner
    assert algorithm.evaluations >= 30


def test_asking_twice_returns_the_same(name):
    algorithm = run(new(name, seed=1), 5)
    first = algorithm.ask().copy()
    np.testing.assert_array_equal(algorithm.ask(), first)


def test_the_seed_decides(name):
    a, b, c = (run(new(name, seed=seed), 10) for seed in (7, 7, 8))
    check_same(a.state_dict(), b.state_dict())
    assert not np.array_equal(a.ask(), c.ask())


@pytest.mark.parametrize("asked", [False, True])
@pytest.mark.parametrize("generations", [0, 1, 7])
def test_a_resumed_run_equals_an_uninterrupted_one(name, generations, asked):
    algorithm = run(new(name, seed=5), generations)
    if asked:
        algorithm.ask()
    state = copy.deepcopy(algorithm.state_dict())
    resumed = new(name, seed=5)
    resumed.load_state_dict(state)
    run(algorithm, 8)
    run(resumed, 8)
    check_same(algorithm.state_dict(), resumed.state_dict())


def test_the_state_is_plain(name):
    state = run(new(name, seed=5), 3).state_dict()
    plain = (np.ndarray, str, int, float, bool, type(None), dict)
    assert all(isinstance(value, plain) for value in state.values())


def test_a_state_of_another_algorithm_is_refused(name):
    algorithm = new(name)
    state = algorithm.state_dict()
    with pytest.raises(ValueError, match="state must be of"):
        algorithm.load_state_dict({**state, "algorithm": "other"})


def test_failed_evaluations_never_lose_the_best(name):
    rng = np.random.default_rng(0)
    algorithm, seen = new(name, seed=2), []
    for _ in range(60 * LONGER.get(name, 1)):
        x = algorithm.ask()
        f = sphere(x)
        f[rng.random(len(f)) < 0.25] = rng.choice([np.nan, np.inf, -np.inf])
        seen += list(f[np.isfinite(f)])
        algorithm.tell(x, f)
        assert algorithm.best_f == min(seen, default=np.inf)
    assert algorithm.failures == algorithm.evaluations - len(seen) > 0
    assert algorithm.best_f < 0.5


def test_survives_generations_without_any_success(name):
    algorithm = new(name, seed=2)
    for _ in range(3):
        x = algorithm.ask()
        algorithm.tell(x, np.full(len(x), np.nan))
    assert algorithm.best_x is None
    assert algorithm.best_f == np.inf
    run(algorithm, 150 * LONGER.get(name, 1))
    assert algorithm.best_f < 1e-2


def test_looks_elsewhere_where_all_have_failed(name):
    algorithm = new(name)
    first = algorithm.ask().copy()
    run(algorithm, 2, lambda x: np.full(len(x), np.nan))
    again = algorithm.ask()
    assert (again != first[: len(again)]).any(axis=1).mean() > 0.9


def test_takes_immigrants(name):
    algorithm = run(new(name, seed=2), 3)
    best = np.full((1, 4), 1.0)
    algorithm.inject(best, [0.0])
    assert algorithm.best_f == 0
    np.testing.assert_array_equal(algorithm.best_x, best[0])
    x, f = algorithm.population()
    assert x.shape == (algorithm.population_size, 4)
    assert f.shape == (algorithm.population_size,)
    run(algorithm, 3)


def test_feasible_points_come_first(name):
    algorithm = new(name, seed=4)
    for _ in range(150 * LONGER.get(name, 1)):
        x = algorithm.ask()
        algorithm.tell(x, sphere(x), np.maximum(2 - x[:, 0], 0))  # x0 >= 2
    assert algorithm.best_violation == 0
    assert algorithm.best_x[0] >= 2
    assert algorithm.best_f == pytest.approx(1, abs=0.05)


def test_wrong_shapes_are_refused_and_change_nothing(name):
    algorithm = run(new(name, seed=4), 2)
    before = algorithm.state_dict()
    x = algorithm.ask()
    for wrong in [
        (x[:, :2], sphere(x)),
        (x, sphere(x)[:-1]),
        (x, sphere(x)[:, None]),
        (x, sphere(x), np.zeros(1)),
    ]:
        with pytest.raises(ValueError, match="must have shape"):
            algorithm.tell(*wrong)
    with pytest.raises(ValueError, match=r"must have the \d+ rows that ask"):
        algorithm.tell(x[1:], sphere(x[1:]) - 1e9)  # better than the best
    check_same(before, algorithm.state_dict())


def test_only_feasible_members_emigrate(name):
    algorithm = new(name, seed=4)
    for generation in range(20):
        x = algorithm.ask()
        algorithm.tell(x, sphere(x), np.maximum(2 - x[:, 0], 0))  # x0 >= 2, the minimum is not
        rng = np.random.default_rng(generation)
        guests = emigrants(algorithm, Migration(size=100), rng)
        assert (guests.x[:, 0] >= 2).all()
        np.testing.assert_array_equal(guests.f, sphere(guests.x))
    assert len(guests.x)


NUMBERS, BITS, ORDER = Real(-3, 5, size=30), Binary(size=30), Permutation(30)
LARGE = [
    *[(n, NUMBERS) for n in ("de", "ga", "jde", "pso", "sa", "cmaes", "sep-cmaes", "nsga2")],
    *[(n, BITS) for n in ("ga", "binary-pso", "nsga2")],
    ("ga", ORDER),
    ("lshade", NUMBERS),
]


@pytest.mark.parametrize("violated", [False, True])
@pytest.mark.parametrize(("name", "variable"), LARGE)
def test_a_large_population_is_held_at_most_four_times(name, variable, violated):
    size, space = 20000, Space(variable)
    options = {"archive": 1.0, "budget": 10 * size} if name == "lshade" else {}
    one = size * 30 * 8
    tracemalloc.start()
    algorithm = make(name, space, population=size, **options)
    for generation in range(4):
        asked = len(algorithm.ask())
        one_f = (np.arange(asked, dtype=float) - generation) % asked
        f = np.column_stack([one_f, -one_f]) if name == "nsga2" else one_f
        algorithm.tell(algorithm.ask(), f, one_f % 2 if violated else None)
    if name != "nsga2" and variable is NUMBERS:
        algorithm.advance(function("sphere"), 3)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 * one


NATIVE = [
    ("de", {}),
    ("de", {"mutation": "best/1"}),
    ("de", {"mutation": "current-to-best/1", "population": 7}),
    ("ga", {}),
    ("ga", {"crossover": "blend", "mutation": "gaussian", "population": 11}),
    ("ga", {"survival": "generational", "elite": 3, "tournament": 3}),
    ("pso", {}),
    ("pso", {"neighbourhood": "ring", "bounds": "absorb"}),
    ("pso", {"neighbourhood": "von-neumann", "bounds": "periodic", "population": 12}),
]


@pytest.mark.parametrize(("name", "options"), NATIVE)
def test_native_generations_equal_asking_and_telling(name, options):
    rastrigin = function("rastrigin")
    native, by_hand = (make(name, SPACE, seed=6, **options) for _ in range(2))
    native.advance(rastrigin, 20)
    run(by_hand, 20, rastrigin)
    check_same(native.state_dict(), by_hand.state_dict())
    for until in ({}, {"evaluations": native.evaluations + 31}, {"target": native.best_f / 2}):
        assert native.is_native(rastrigin)
        native.advance(rastrigin, 40, **until)
        by_hand.advance(lambda x: rastrigin(x), 40, **until)
        check_same(native.state_dict(), by_hand.state_dict())


def test_native_generations_keep_the_first_of_equal_points():
    """Next to the minimum different points have the value 0; members change there, the best not."""
    ackley, space = function("ackley"), function("ackley").space(1)
    native, by_hand = (make("de", space, seed=6, population=8) for _ in range(2))
    native.advance(ackley, 300)
    by_hand.advance(lambda x: ackley(x), 300)
    x, f = native.population()
    assert (f == 0).all()
    assert (x != native.best_x).any()
    check_same(native.state_dict(), by_hand.state_dict())


def test_only_plain_searches_are_native():
    rastrigin = function("rastrigin")
    assert not make("de", SPACE).is_native(lambda x: rastrigin(x))
    assert not make("de", Space(Real(1e-3, 1, log=True))).is_native(rastrigin)
    assert not make("jde", SPACE).is_native(rastrigin)
    assert not make("ga", SPACE, selection="rank").is_native(rastrigin)
    violated = make("pso", SPACE)
    violated.tell(violated.ask(), np.zeros(100), np.ones(100))
    assert not violated.is_native(rastrigin)


def test_all_real_algorithms_are_tested():
    assert set(REAL) | OTHERS == set(ALGORITHMS)


def test_unknown_names_and_options_are_refused():
    with pytest.raises(ConfigError, match=r"algorithm must be one of .*de.*, got 'annealing'"):
        make("annealing", SPACE)
    with pytest.raises(ConfigError, match="algorithm 'de' has no option 'size'"):
        make("de", SPACE, size=3)
    with pytest.raises(ConfigError, match="population of 'de' must be at least 4, got 3"):
        make("de", SPACE, population=3)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"population": "fifty"}, "population of algorithm 'de' must be int, got 'fifty'"),
        ({"population": 50.0}, "must be int, got 50.0"),
        ({"weight": True}, "weight of algorithm 'de' must be float, got True"),
        ({"mutation": 1}, "mutation of algorithm 'de' must be str, got 1"),
    ],
)
def test_options_of_a_wrong_type_are_refused(options, wanted):
    with pytest.raises(ConfigError, match=re.escape(wanted)):
        make("de", SPACE, **options)
    assert make("de", SPACE, population=np.int64(7), weight=1).population_size == 7


def test_islands_do_not_share_what_a_penalty_learns():
    penalty = AdaptivePenalty(weight=3.0, memory=1)
    first, second = make_islands("de", SPACE, 2, constraints=penalty)
    x = first.ask()
    first.tell(x, sphere(x), np.ones(len(x)))
    assert first.constraints.weight == 6.0
    assert second.constraints.weight == penalty.weight == 3.0
