import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from paropt_hpc.errors import ConfigError
from paropt_hpc.metaheuristics import (
    Real,
    Space,
    crowding_distance,
    make,
    non_dominated_ranks,
    nsga2,
)


def schaffer(x):
    return np.column_stack([x[:, 0] ** 2, (x[:, 0] - 2) ** 2])


def zdt1(x):
    g = 1 + 9 * x[:, 1:].mean(axis=1)
    return np.column_stack([x[:, 0], g * (1 - np.sqrt(x[:, 0] / g))])


def values(elements):
    shapes = st.tuples(st.integers(0, 15), st.integers(2, 4))
    return hnp.arrays(np.float64, shapes, elements=elements)


LEVELS = st.sampled_from([0.0, 1.0, 2.5, 3.0, np.inf])


@given(f=values(LEVELS), data=st.data())
def test_ranks_are_those_of_the_definition(f, data):
    violation = data.draw(st.none() | hnp.arrays(np.float64, len(f), elements=LEVELS))
    rank = non_dominated_ranks(f, violation)
    assert rank.shape == (len(f),)
    if violation is not None:  # a failure is behind what is infeasible
        violation = np.where(np.isfinite(f).all(axis=1), violation, np.inf)

    def dominates(i, j):
        if violation is not None and (violation[i] > 0 or violation[j] > 0):
            return violation[i] < violation[j]
        return (f[i] <= f[j]).all() and (f[i] < f[j]).any()

    for i in range(len(f)):
        worse_than = [rank[j] for j in range(len(f)) if dominates(j, i)]
        assert rank[i] == max(worse_than, default=-1) + 1


def test_ranks_are_found_in_blocks(monkeypatch):
    f = np.random.default_rng(1).integers(0, 30, (9000, 3)).astype(float)
    last = np.ones(len(f))
    np.testing.assert_array_equal(
        non_dominated_ranks(f[:, :2]), non_dominated_ranks(np.column_stack([f[:, :2], last]))
    )
    at_once = non_dominated_ranks(f[:300])
    monkeypatch.setattr(nsga2, "_PAIRS", 1000)
    np.testing.assert_array_equal(non_dominated_ranks(f[:300]), at_once)


@given(f=values(LEVELS))
def test_crowding_is_that_of_the_definition(f):
    rank = non_dominated_ranks(f)
    distance = crowding_distance(f, rank)
    expected = np.zeros(len(f))
    for front in set(rank.tolist()):
        for column in f.T:
            members = sorted(np.flatnonzero(rank == front), key=lambda i: column[i])
            low, high = column[members[0]], column[members[-1]]
            expected[[members[0], members[-1]]] = np.inf
            if not low < high < np.inf:
                continue
            for before, member, after in zip(members, members[1:], members[2:], strict=False):
                expected[member] += (column[after] - column[before]) / (high - low)
    np.testing.assert_array_equal(distance, expected)


def test_crowding_prefers_the_ends_and_gaps():
    f = np.array([[0, 10], [1, 6], [2, 5], [10, 0.0]])
    distance = crowding_distance(f, np.zeros(4, int))
    np.testing.assert_allclose(distance, [np.inf, 2 / 10 + 5 / 10, 9 / 10 + 6 / 10, np.inf])


def test_finds_the_front():
    algorithm = make("nsga2", Space(Real(-10, 10)), seed=1, population=40)
    algorithm.advance(schaffer, 40)
    x, f = algorithm.front()
    assert len(x) > 30
    assert (x > -0.05).all()
    assert (x < 2.05).all()
    assert np.diff(np.sort(x[:, 0])).max() < 0.3
    np.testing.assert_array_equal(f, schaffer(x))


def test_converges_on_zdt1():
    algorithm = make("nsga2", Space(Real(0, 1, size=6)), seed=1, population=60)
    algorithm.advance(zdt1, 150)
    _, f = algorithm.front()
    assert np.abs(f[:, 1] - (1 - np.sqrt(f[:, 0]))).mean() < 0.02


def test_constraints_failures_and_resume():
    def run(algorithm, generations):
        rng = np.random.default_rng(algorithm.generation)
        for _ in range(generations):
            x = algorithm.ask()
            f = schaffer(x)
            f[rng.random(len(f)) < 0.2] = np.nan
            algorithm.tell(x, f, np.maximum(1 - x[:, 0], 0))  # x >= 1
        return algorithm

    algorithm = run(make("nsga2", Space(Real(-10, 10)), seed=1, population=20), 20)
    resumed = make("nsga2", Space(Real(-10, 10)), seed=1, population=20)
    resumed.load_state_dict(algorithm.state_dict())
    run(algorithm, 10)
    run(resumed, 10)
    for mine, theirs in zip(algorithm.population(), resumed.population(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    x, f = algorithm.front()
    assert len(x) > 10
    assert (x >= 1).all()
    assert np.isfinite(f).all()
    algorithm.inject(np.array([[1.5]]), np.array([[2.25, 0.25]]))
    assert (algorithm.population()[0] == 1.5).any()


def test_a_failure_ranks_behind_what_is_infeasible():
    algorithm = make("nsga2", Space(Real(-10, 10)), seed=1, population=2)
    algorithm.tell(np.array([[1.0], [2.0]]), np.array([[np.nan, 1.0], [1.0, np.inf]]), np.zeros(2))
    algorithm.tell(np.array([[3.0], [4.0]]), np.ones((2, 2)), np.array([1.0, 2.0]))
    assert sorted(algorithm.population()[0][:, 0]) == [3, 4]
    algorithm.inject(np.array([[5.0]]), np.array([[-1.0, np.nan]]), where=[0])
    assert len(algorithm.front()[0]) == 0
    assert np.isinf(algorithm.population()[1][0]).all()


def test_immigrants_replace_only_what_is_worse():
    algorithm = make("nsga2", Space(Real(-10, 10)), seed=1, population=4)
    x = np.array([[0.0], [0.5], [1.0], [1.5]])
    algorithm.tell(x, schaffer(x), np.array([0.0, 0.0, 0.0, 1.0]))
    algorithm.inject(np.array([[9.0]]), schaffer(np.array([[9.0]])))  # dominated, but feasible
    assert sorted(algorithm.population()[0][:, 0]) == [0, 0.5, 1, 9]
    algorithm.inject(np.array([[8.0], [9.5]]), schaffer(np.array([[8.0], [9.5]])))
    assert sorted(algorithm.population()[0][:, 0]) == [0, 0.5, 1, 8]
    algorithm.inject(np.array([[3.0]]), schaffer(np.array([[3.0]])), where=[0])
    assert (algorithm.population()[0] == 3).sum() == 1
    assert sorted(algorithm.front()[0][:, 0]) == [0.5, 1]
    with pytest.raises(ValueError, match="must have 2 objectives"):
        algorithm.inject(np.array([[3.0]]), np.ones((1, 3)))


def test_wrong_settings_are_refused():
    with pytest.raises(ConfigError, match="objectives must be at least 2"):
        make("nsga2", Space(Real(0, 1)), objectives=1)
    algorithm = make("nsga2", Space(Real(0, 1)), objectives=3)
    x = algorithm.ask()
    with pytest.raises(ValueError, match="f must have shape"):
        algorithm.tell(x, np.zeros(len(x)))
    with pytest.raises(ValueError, match="must have 3 objectives"):
        algorithm.tell(x, np.zeros((len(x), 2)))
