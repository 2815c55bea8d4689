import numpy as np
import pytest

from paropt_hpc.errors import ConfigError
from paropt_hpc.metaheuristics import (
    Binary,
    Categorical,
    Integer,
    Permutation,
    Real,
    Space,
    make,
)

MIXED = {
    "x": Real(-2, 3, size=2),
    "rate": Real(1e-4, 1, log=True),
    "n": Integer(0, 20),
    "mode": Categorical(["bad", "worse", "good"]),
    "bits": Binary(size=6),
    "order": Permutation(5),
}


def mixed_value(batch):
    modes = np.array([{"good": 0, "bad": 1, "worse": 2}[mode] for mode in batch["mode"]])
    return (
        ((batch["x"] - 1) ** 2).sum(axis=1)
        + np.abs(np.log10(batch["rate"]) + 2)
        + np.abs(batch["n"] - 13)
        + modes
        + (~batch["bits"]).sum(axis=1)
        + np.abs(batch["order"] - np.arange(5)[::-1]).sum(axis=1)
    )


@pytest.mark.parametrize("selection", ["tournament", "rank", "roulette"])
@pytest.mark.parametrize("survival", ["truncation", "generational"])
def test_mixed_spaces(selection, survival):
    space = Space(MIXED)
    options = {"selection": selection, "survival": survival, "elite": 3}
    algorithm = make("ga", space, seed=1, population=60, **options)
    algorithm.advance(lambda x: mixed_value(space.decode_batch(x)), 200)
    best = space.decode(algorithm.best_x)
    assert algorithm.best_f < 0.7
    assert best["mode"] == "good"
    assert best["n"] == 13
    assert best["bits"].all()
    np.testing.assert_array_equal(best["order"], [4, 3, 2, 1, 0])


@pytest.mark.parametrize("name", ["de", "pso", "cmaes"])
def test_real_algorithms_search_mixed_spaces_too(name):
    space = Space(MIXED)
    algorithm = make(name, space, seed=1, population=60)
    algorithm.advance(lambda x: mixed_value(space.decode_batch(x)), 200)
    assert algorithm.best_f < 4


def test_a_binary_swarm_that_has_failed_begins_elsewhere():
    swarm = make("binary-pso", Space(Binary(40)), seed=1, population=5)
    first = swarm.ask().copy()
    swarm.tell(first, np.full(5, np.nan))
    assert (swarm.ask() != first).any(axis=1).all()
    assert set(np.unique(swarm.ask())) == {0, 1}


@pytest.mark.parametrize("name", ["ga", "binary-pso"])
def test_one_max(name):
    space = Space(Binary(size=40))
    algorithm = make(name, space, seed=1, population=40)
    algorithm.advance(lambda x: (~space.decode_batch(x)).sum(axis=1).astype(float), 120)
    assert algorithm.best_f == 0


def test_binary_swarm_needs_bits():
    with pytest.raises(ConfigError, match="needs a space of Binary"):
        make("binary-pso", Space(Real(0, 1)))


@pytest.mark.parametrize("elite", [0, 1, 5])
def test_generational_survival_keeps_the_elite(elite):
    space = Space(Real(-1, 1, size=3))
    algorithm = make("ga", space, seed=2, population=20, survival="generational", elite=elite)
    before = np.empty(0)
    for _ in range(15):
        x = algorithm.ask()
        assert len(x) == (20 if len(before) == 0 else 20 - elite)
        algorithm.tell(x, (x**2).sum(axis=1))
        values = np.sort(algorithm.population()[1])
        assert set(before[:elite]) <= set(values)
        before = values


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"selection": "best"}, "selection must be one of tournament"),
        ({"crossover": "ox"}, "crossover must be one of sbx, blend"),
        ({"elite": 100}, "elite must be in"),
        ({"tournament": 0}, "tournament must be at least 1"),
        ({"crossover_rate": 1.5}, r"crossover_rate must be in \[0, 1\], got 1.5"),
        ({"mutation_index": -1}, "index must be at least 0"),
    ],
)
def test_wrong_settings_are_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        make("ga", Space(Real(0, 1)), **options)
