import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paropt_hpc.metaheuristics import ORDER_CROSSOVERS, ORDER_MUTATIONS, Permutation, Space, make
from paropt_hpc.metaheuristics.permutations import order_crossover, partially_mapped_crossover

SIZES = st.integers(2, 30)


def edges(tour):
    return {frozenset(pair) for pair in zip(tour, np.roll(tour, 1), strict=True)}


@pytest.mark.parametrize("name", ORDER_CROSSOVERS)
@given(n=SIZES, seed=st.integers(0, 1000))
def test_crossovers_make_permutations(name, n, seed):
    rng = np.random.default_rng(seed)
    first, second = rng.permutation(n), rng.permutation(n)
    before = first.copy(), second.copy()
    child = ORDER_CROSSOVERS[name](first, second, rng)
    np.testing.assert_array_equal(np.sort(child), np.arange(n))
    np.testing.assert_array_equal(first, before[0])
    np.testing.assert_array_equal(second, before[1])
    if name == "edge":  # nearly all edges are the parents'
        foreign = edges(child.tolist()) - edges(first.tolist()) - edges(second.tolist())
        assert len(foreign) <= 1 + n // 4
    # Equal parents have no other children.
    np.testing.assert_array_equal(np.sort(ORDER_CROSSOVERS[name](first, first, rng)), np.arange(n))


@given(n=SIZES, seed=st.integers(0, 1000))
def test_a_section_is_inherited(n, seed):
    rng = np.random.default_rng(seed)
    first, second = rng.permutation(n), rng.permutation(n)
    child = partially_mapped_crossover(first, second, rng)
    assert (child == first).sum() >= 2
    # Outside the section a place is the second's unless its city is in the section.
    assert ((child == first) | (child == second) | np.isin(second, first[child == first])).all()
    child = order_crossover(first, second, rng)
    assert (child == first).sum() >= 2


@pytest.mark.parametrize("name", ORDER_MUTATIONS)
@given(n=SIZES, seed=st.integers(0, 1000))
def test_moves_make_permutations(name, n, seed):
    rng = np.random.default_rng(seed)
    order = rng.permutation(n)
    moved = ORDER_MUTATIONS[name](order, rng)
    np.testing.assert_array_equal(np.sort(moved), np.arange(n))
    assert (moved != order).any()
    if name == "inversion" and n > 3:
        assert len(edges(order.tolist()) - edges(moved.tolist())) <= 2


@pytest.mark.parametrize("crossover", ORDER_CROSSOVERS)
@pytest.mark.parametrize("mutation", ORDER_MUTATIONS)
def test_genetic_algorithm_orders_a_circle(crossover, mutation):
    n = 9
    angle = 2 * np.pi * np.random.default_rng(0).permutation(n) / n
    points = np.column_stack([np.cos(angle), np.sin(angle)])

    def length(x):
        tour = points[space.decode_batch(x)]
        return np.linalg.norm(tour - np.roll(tour, 1, axis=1), axis=2).sum(axis=1)

    space = Space(Permutation(n))
    options = {"order_crossover": crossover, "order_mutation": mutation, "mutation_rate": 0.05}
    algorithm = make("ga", space, seed=1, population=40, **options)
    algorithm.advance(length, 80)
    assert algorithm.best_f == pytest.approx(2 * n * np.sin(np.pi / n), rel=1e-9)
