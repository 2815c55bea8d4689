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
    exchange,
    function,
    make,
)


@pytest.mark.parametrize("cooling", ["geometric", "lundy-mees", "adaptive"])
def test_coolings_find_the_minimum(cooling):
    rastrigin = function("rastrigin")
    algorithm = make("sa", rastrigin.space(3), seed=1, cooling=cooling, steps=2000)
    temperatures = []
    for _ in range(2200):
        algorithm.advance(rastrigin, 1)
        temperatures.append(algorithm.state_dict()["_temperature"][0])
    assert algorithm.best_f < 0.01
    assert (np.diff(temperatures[1:]) <= 0).all()
    assert temperatures[-1] < 1e-3 * temperatures[1]


def test_the_start_temperature_accepts_most_first_moves():
    sphere = function("sphere")
    algorithm = make("sa", sphere.space(5), seed=1, population=400, steps=10**6)
    algorithm.advance(sphere, 2)
    before = algorithm.population()[1].copy()
    accepted = []
    for _ in range(10):
        x = algorithm.ask()
        rises = sphere(x) > before
        algorithm.advance(sphere, 1)
        now = algorithm.population()[1].copy()
        accepted.append((now[rises] != before[rises]).mean())
        before = now
    assert 0.7 < np.mean(accepted) < 0.9


def test_exchange_keeps_a_permutation_and_prefers_good_points_cold():
    rng = np.random.default_rng(0)
    temperature = np.geomspace(0.1, 10, 8)
    f = np.arange(8)[::-1].astype(float)
    for odd in (False, True):
        source = exchange(f, temperature, odd, rng)
        np.testing.assert_array_equal(np.sort(source), np.arange(8))
        # The warmer has the better point in each pair, so that all pairs exchange.
        pairs = [(i, i + 1) for i in range(int(odd), 7, 2)]
        assert all(source[a] == b and source[b] == a for a, b in pairs)
    failed = np.full(8, np.inf)
    np.testing.assert_array_equal(exchange(failed, temperature, False, rng), np.arange(8))


def test_exchange_has_the_frequency_of_its_formula():
    rng = np.random.default_rng(0)
    f, temperature = np.array([1.0, 2.0]), np.array([1.0, 2.0])
    swaps = [exchange(f, temperature, False, rng)[0] == 1 for _ in range(4000)]
    assert np.mean(swaps) == pytest.approx(np.exp(-1 * (1 - 0.5)), abs=0.03)


@pytest.mark.parametrize("name", ["sa", "tempering"])
def test_any_space(name):
    space = Space(
        {
            "x": Real(-2, 3),
            "n": Integer(0, 20),
            "mode": Categorical(["bad", "good", "worse"]),
            "bits": Binary(size=4),
            "order": Permutation(5),
        }
    )

    def value(rows):
        batch = space.decode_batch(rows)
        return (
            (batch["x"] - 1) ** 2
            + np.abs(batch["n"] - 13)
            + (batch["mode"] != "good")
            + (~batch["bits"]).sum(axis=1)
            + np.abs(batch["order"] - np.arange(5)[::-1]).sum(axis=1)
        )

    options = {"steps": 400} if name == "sa" else {}
    algorithm = make(name, space, seed=1, population=12, **options)
    algorithm.advance(value, 700)
    best = space.decode(algorithm.best_x)
    assert algorithm.best_f < 0.05
    assert best["n"] == 13
    assert best["mode"] == "good"
    np.testing.assert_array_equal(best["order"], [4, 3, 2, 1, 0])


def test_wrong_settings_are_refused():
    space = Space(Real(0, 1))
    for name, options, text in [
        ("sa", {"cooling": "none"}, "cooling must be one of"),
        ("sa", {"steps": 0}, "steps must be at least 1"),
        ("sa", {"start_temperature": 0}, "start_temperature must be above 0"),
        ("sa", {"start_temperature": 1.0, "end_temperature": 2.0}, "end_temperature must be at"),
        ("tempering", {"coldest": 2.0, "hottest": 1.0}, "coldest must be below hottest"),
        ("tempering", {"coldest": -1.0}, "coldest must be above 0"),
        ("tempering", {"hottest": 0.0}, "hottest must be above 0"),
        ("tempering", {"exchange_every": 0}, "exchange_every must be at least 1"),
        ("tempering", {"population": 1}, "at least 2"),
    ]:
        with pytest.raises(ConfigError, match=text):
            make(name, space, **options)
