import numpy as np
import pytest

from paropt_hpc.metaheuristics import Real, Space, function, make


def test_the_population_shrinks_with_the_budget():
    rastrigin = function("rastrigin")
    algorithm = make("lshade", rastrigin.space(5), seed=1, population=50, budget=10000)
    sizes = []
    while algorithm.evaluations < 10000:
        algorithm.advance(rastrigin, 1)
        sizes.append(algorithm.population_size)
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == 50
    assert sizes[-1] == 4
    assert algorithm.best_f < 1e-3
    state = algorithm.state_dict()
    assert len(state["_archive"]) <= 2.6 * 50
    resumed = make("lshade", rastrigin.space(5), seed=1, population=50, budget=10000)
    resumed.load_state_dict(state)
    np.testing.assert_array_equal(resumed.ask(), algorithm.ask())
    assert resumed.population_size == 4


def test_successes_move_the_memory():
    sphere = function("sphere")
    algorithm = make("lshade", sphere.space(5), seed=1, population=50)
    algorithm.advance(sphere, 50)
    state = algorithm.state_dict()
    assert (state["_weights"] != 0.5).all()
    assert (state["_rates"] != 0.5).all()
    assert ((state["_weights"] > 0) & (state["_weights"] <= 1)).all()


def test_the_archive_of_a_large_population_is_as_large_as_that():
    sphere = function("sphere")
    for size, share in [(99_999, 2.6), (100_000, 1.0)]:
        algorithm = make("lshade", sphere.space(2), seed=1, population=size)
        algorithm.advance(sphere, 12)
        assert len(algorithm.state_dict()["_archive"]) == int(share * size)


def test_a_state_of_other_columns_is_refused():
    state = make("lshade", Space(Real(-1, 1, size=9)), population=8).state_dict()
    with pytest.raises(ValueError, match=r"_x of the state has shape \(8, 9\)"):
        make("lshade", Space(Real(-1, 1, size=3)), population=8).load_state_dict(state)
