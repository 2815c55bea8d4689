import numpy as np
import pytest

from paropt_hpc.errors import ConfigError
from paropt_hpc.metaheuristics import Space, function, make


@pytest.mark.parametrize("name", ["cmaes", "bipop-cmaes"])
def test_narrow_valleys_and_bad_conditions(name):
    d = 10
    scale = 10.0 ** (6 * np.arange(d) / (d - 1))
    rotation, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((d, d)))
    ellipsoid = make(name, Space.box(np.full(d, -5), np.full(d, 5)), seed=1)
    ellipsoid.advance(lambda x: (scale * ((x - 1) @ rotation) ** 2).sum(axis=1), 700)
    assert ellipsoid.best_f < 1e-8
    rosenbrock = make(name, function("rosenbrock").space(d), seed=1)
    rosenbrock.advance(function("rosenbrock"), 900)
    assert rosenbrock.best_f < 1e-8


def test_separable_matrix_for_many_columns():
    d = 200
    scale = 10.0 ** (2 * np.arange(d) / (d - 1))
    algorithm = make("sep-cmaes", Space.box(np.full(d, -5), np.full(d, 5)), seed=1)
    algorithm.advance(lambda x: (scale * (x - 0.5) ** 2).sum(axis=1), 1500)
    assert algorithm.best_f < 1e-5


def test_a_minimum_on_the_wall():
    space = Space.box(np.full(5, -5), np.full(5, 5))
    algorithm = make("cmaes", space, seed=1)
    algorithm.advance(lambda x: (x + 5).sum(axis=1), 300)
    assert algorithm.best_f < 1e-6


def test_a_run_ends_by_itself_and_restarts_go_on():
    sphere = function("sphere")
    alone = make("cmaes", sphere.space(3), seed=1)
    alone.advance(sphere, 5000)
    assert alone.done
    assert alone.evaluations < 5000
    for name, sizes in [("ipop-cmaes", {10, 20, 40}), ("bipop-cmaes", {10, 20})]:
        algorithm, seen = make(name, sphere.space(3), seed=1), set()
        while algorithm.evaluations < 20000:
            seen.add(algorithm.population_size)
            algorithm.advance(sphere, 1)
        assert not algorithm.done
        assert sizes <= seen


def test_bipop_shares_the_evaluations():
    rastrigin = function("rastrigin")
    algorithm = make("bipop-cmaes", rastrigin.space(5), seed=3)
    while algorithm.evaluations < 30000:
        algorithm.advance(rastrigin, 1)
    large, small = algorithm.state_dict()["_spent"]
    assert large + small == algorithm.evaluations
    assert small > 0.2 * large
    assert algorithm.best_f < 1e-8


def test_runs_start_where_they_are_told():
    sphere = function("sphere")
    algorithm = make("cmaes", sphere.space(2), seed=1, start=[3.0, -2.0], sigma=1e-9)
    np.testing.assert_allclose(algorithm.ask(), np.tile([3.0, -2.0], (6, 1)), atol=1e-6)
    corners = [[1.0, -3.0], [2.0, -2.5]]
    algorithm = make("ipop-cmaes", sphere.space(2), seed=1, start=corners, sigma=1e-9)
    for _ in range(3):
        x = algorithm.ask()
        assert ((x > corners[0]) & (x < corners[1])).all()
        while algorithm.population_size == len(x):
            algorithm.tell(algorithm.ask(), np.zeros(len(x)))


def test_immigrants_are_sampled_and_pull_the_mean():
    sphere = function("sphere")
    algorithm = make("cmaes", sphere.space(4), seed=2)
    algorithm.advance(sphere, 2)
    guest = np.zeros((1, 4))
    algorithm.inject(guest, [0.0])
    assert (algorithm.ask() == guest).all(axis=1).any()
    before = np.linalg.norm(algorithm._mean - 0.5)
    algorithm.advance(sphere, 1)
    assert np.linalg.norm(algorithm._mean - 0.5) < before


def test_repaired_rows_are_learned_from():
    space = Space.box(np.full(4, -5), np.full(4, 5))
    algorithm = make("cmaes", space, seed=2)
    for _ in range(200):
        x = np.maximum(algorithm.ask(), 1.0)  # a repair: the box is smaller
        algorithm.tell(x, (x**2).sum(axis=1))
    assert algorithm.best_f == pytest.approx(4, abs=1e-9)


def test_wrong_settings_are_refused():
    space = function("sphere").space(2)
    for options, text in [
        ({"population": 3}, "at least 4"),
        ({"sigma": 0}, "sigma must be in"),
        ({"restarts": "often"}, "restarts must be one of"),
        ({"start": [0.0]}, "start must be 1 or 2 rows of 2"),
    ]:
        with pytest.raises(ConfigError, match=text):
            make("cmaes", space, **options)
