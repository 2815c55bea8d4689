import importlib.util
import json
import math

import numpy as np
import pytest

from paropt_hpc.errors import ConfigError
from paropt_hpc.metaheuristics import Binary, Categorical, Integer, Permutation, Real, Space
from paropt_hpc.tuning import (
    ASHA,
    Bayesian,
    Grid,
    Halton,
    Random,
    Record,
    SuccessiveHalving,
    make_sampler,
)

TORCH = importlib.util.find_spec("torch") is not None
SPACE = Space(
    {
        "rate": Real(1e-4, 1, log=True),
        "layers": Integer(1, 3),
        "kind": Categorical(["sgd", "adam"]),
        "bias": Binary(),
    }
)


def complete(number, params, value, **more):
    return Record(number, params, "complete", value, **more)


@pytest.mark.parametrize("name", ["random", "halton", "grid", "tpe"])
def test_suggestions_lie_in_the_space_and_repeat_with_the_seed(name):
    def suggestions(seed):
        sampler = make_sampler(name, SPACE, seed)
        return [sampler.suggest(number).params for number in range(15)]

    first = suggestions(1)
    assert first == suggestions(1)
    assert (first != suggestions(2)) == (name != "grid")
    for params in first:
        assert params == SPACE.decode(SPACE.encode(params)) | {"rate": params["rate"]}
        assert 1e-4 <= params["rate"] <= 1
    assert len({str(params) for params in first}) > 10


def test_numbers_do_not_depend_on_the_order_of_asking():
    for sampler in (Random(SPACE, 3), Halton(SPACE, 3), Grid(SPACE)):
        later = sampler.suggest(7)
        assert [sampler.suggest(n) for n in range(8)][7] == later


def test_a_grid_has_all_combinations_once():
    grid = Grid(SPACE, points=3)
    trials = [grid.suggest(number).params for number in range(grid.limit)]
    assert grid.limit == 3 * 3 * 2 * 2 == len({str(params) for params in trials})
    rates = sorted({params["rate"] for params in trials})
    assert np.allclose(rates, [1e-4, 1e-2, 1])


def test_halton_points_are_spread_more_evenly_than_random_ones():
    space = Space({"x": Real(0, 1), "y": Real(0, 1)})

    def emptiest(sampler):
        points = [tuple(sampler.suggest(n).params.values()) for n in range(256)]
        counts = np.histogram2d(*zip(*points, strict=True), bins=8, range=[[0, 1]] * 2)[0]
        return counts.min()

    assert emptiest(Halton(space, 0)) >= 2
    assert emptiest(Random(space, 0)) == 0


METHODS = [
    "tpe",
    pytest.param("gp", marks=pytest.mark.skipif(not TORCH, reason="torch is not installed")),
]


@pytest.mark.parametrize("method", METHODS)
def test_models_learn_and_know_what_is_running(method):
    """They come nearer than random trials, and do not suggest one point twice at once."""
    space = Space({"x": Real(-10, 10), "y": Real(-10, 10)})

    def best(sampler):
        values = []
        for number in range({"tpe": 60, "gp": 12}[method]):
            params = sampler.suggest(number).params
            values.append((params["x"] - 3) ** 2 + (params["y"] + 1) ** 2)
            sampler.tell(complete(number, params, values[-1]))
        return min(values)

    assert best(Bayesian(space, 0, method, startup=6)) < best(Random(space, 0))
    sampler = Bayesian(space, 0, method, startup=2)
    for number in range(10):
        sampler.tell(complete(number, {"x": number / 2, "y": 0.0}, abs(number - 5)))
    at_once = [sampler.suggest(number).params for number in range(10, 18)]
    assert len({(params["x"], params["y"]) for params in at_once}) == 8  # corners share an x
    sampler.tell(Record(10, {}, "failed", None))
    sampler.tell(complete(11, {}, math.inf))


@pytest.mark.skipif(TORCH, reason="torch is installed")
def test_the_gaussian_process_says_what_it_needs():
    with pytest.raises(ConfigError, match="needs torch"):
        make_sampler("gp", SPACE)


def test_successive_halving_promotes_the_best_and_waits():
    space = Space({"x": Real(0, 1)})
    sampler = SuccessiveHalving(Random(space, 0), trials=9, budget=2, factor=3)
    assert sampler.limit == 9 + 3 + 1
    firsts = [sampler.suggest(number) for number in range(9)]
    assert {s.budget for s in firsts} == {2}
    for number in (8, 0, 5, 3, 1, 7, 2, 4):
        sampler.tell(complete(number, firsts[number].params, firsts[number].params["x"]))
        assert sampler.suggest(9) is None
    sampler.tell(Record(6, firsts[6].params, "failed", None))
    promoted = [sampler.suggest(number) for number in range(9, 12)]
    good = sorted(s.params["x"] for n, s in enumerate(firsts) if n != 6)[:3]
    assert [s.params["x"] for s in promoted] == good
    assert {s.budget for s in promoted} == {6}
    assert sampler.suggest(12) is None


@pytest.mark.parametrize("name", ["random", "halton"])
def test_vectors_are_lists_that_a_table_can_hold(name):
    space = Space({"weights": Real(0, 1, size=3), "order": Permutation(4)})
    params = make_sampler(name, space, 1).suggest(2).params
    assert json.loads(json.dumps(params)) == params
    assert sorted(params["order"]) == [0, 1, 2, 3]


def test_trials_outside_the_space_teach_nothing():
    sampler = Bayesian(Space({"x": Real(0, 1), "kind": Categorical(["a", "b"])}), startup=1)
    sampler.tell(complete(0, {"x": 5.0, "kind": "a"}, 1.0))
    sampler.tell(complete(1, {"x": 0.5, "kind": "c"}, 1.0))
    assert 0 <= sampler.suggest(2).params["x"] <= 1


def test_asha_keeps_the_best_share_of_each_rung():
    asha = ASHA(first=1, factor=2)
    assert not asha.stops(0, 1, 5.0)  # the first one is the best so far
    assert asha.stops(1, 1, 6.0)
    assert not asha.stops(2, 1, 4.0)
    assert not asha.stops(3, 3, 9.0)  # no rung
    assert asha.stops(4, 1, math.nan)
    assert not asha.stops(2, 2, 4.0)
    with pytest.raises(ConfigError, match="factor at least 2"):
        ASHA(factor=1)


def test_bad_settings_are_refused():
    with pytest.raises(ConfigError, match="needs names"):
        Random(Space(Real(0, 1)))
    with pytest.raises(ConfigError, match="sampler must be one of random"):
        make_sampler("best", SPACE)
    vector = Space({"order": Permutation(3)})
    for kind in (Grid, Bayesian):
        with pytest.raises(ConfigError, match="order is a vector"):
            kind(vector)
    with pytest.raises(ConfigError, match="at least 2 points"):
        Grid(SPACE, points=1)
    with pytest.raises(ConfigError, match="factor must be"):
        SuccessiveHalving(Random(SPACE), factor=1)
    with pytest.raises(ConfigError, match="method must be"):
        Bayesian(SPACE, method="magic")
