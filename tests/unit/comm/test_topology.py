"""Topologies against their definitions, and their matrices against published eigenvalues."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paropt_hpc.comm import topology
from paropt_hpc.comm.topology import (
    TOPOLOGIES,
    from_edges,
    is_connected,
    is_doubly_stochastic,
    mixing_matrix,
    period_matrix,
    spectral_gap,
)
from paropt_hpc.errors import ConfigError

SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 31, 32)


def fitting(name):
    if name == "hypercube":
        return [size for size in SIZES if size & (size - 1) == 0]
    if name == "torus":
        return [size for size in SIZES if size not in (2, 3, 5, 7, 31)]
    return SIZES


CASES = [(name, size) for name in TOPOLOGIES for size in fitting(name)]


@st.composite
def edge_lists(draw, directed):
    """Draw a connected edge list: a cycle, or a tree where edges go both ways, and more."""
    size = draw(st.integers(2, 12))
    order = draw(st.permutations(range(size)))
    if directed:
        edges = [(order[i], order[(i + 1) % size]) for i in range(size)]
    else:
        edges = [(order[draw(st.integers(0, i - 1))], order[i]) for i in range(1, size)]
    pairs = st.tuples(st.integers(0, size - 1), st.integers(0, size - 1))
    more = draw(st.lists(pairs.filter(lambda pair: pair[0] != pair[1]), max_size=20))
    return size, edges + more


@pytest.mark.parametrize(("name", "size"), CASES)
def test_who_sends_is_who_is_received_from(name, size):
    made = topology.make(name, size)
    for step in range(made.period + 1):
        sends = {(r, t) for r in range(size) for t in made.neighbors(r, step).targets}
        receives = {(s, r) for r in range(size) for s in made.neighbors(r, step).sources}
        assert sends == receives
        assert all(source != target for source, target in sends)


@pytest.mark.parametrize(("name", "size"), CASES)
def test_matrices_of_every_topology_are_doubly_stochastic(name, size):
    made = topology.make(name, size)
    for step in range(made.period):
        assert is_doubly_stochastic(mixing_matrix(made, step))
    assert spectral_gap(period_matrix(made)) > 1e-3


def neighbors(made, rank, step=0):
    return made.neighbors(rank, step).sources


def test_neighbors_by_hand():
    assert neighbors(topology.ring(5), 0) == (1, 4)
    assert neighbors(topology.ring(2), 0) == (1,)
    # 0 1 2 / 3 4 5: the two ways round a row of two are the same neighbour.
    assert neighbors(topology.torus(6), 4) == (1, 3, 5)
    assert neighbors(topology.torus(12, (4, 3)), 0) == (1, 2, 3, 9)
    assert neighbors(topology.hypercube(8), 5) == (1, 4, 7)
    assert topology.exponential(6).neighbors(0).targets == (1, 2, 4)
    assert neighbors(topology.exponential(6), 0) == (2, 4, 5)
    assert neighbors(topology.star(4), 0) == (1, 2, 3)
    assert neighbors(topology.star(4), 3) == (0,)
    assert neighbors(topology.complete(4), 2) == (0, 1, 3)


def test_one_peer_exponential_takes_turns():
    made = topology.one_peer_exponential(6)
    assert made.period == 3
    assert [made.neighbors(0, step).targets for step in range(5)] == [(1,), (2,), (4,), (1,), (2,)]
    assert [neighbors(made, 0, step) for step in range(3)] == [(5,), (4,), (2,)]
    assert made.neighbors(3, 7).own_weight == 0.5


@given(edge_lists(directed=False))
def test_metropolis_weights(case):
    size, edges = case
    made = from_edges(size, edges)
    matrix = mixing_matrix(made)
    assert is_doubly_stochastic(matrix)
    assert np.array_equal(matrix, matrix.T)
    joined = np.zeros((size, size), dtype=bool)
    for a, b in edges:
        joined[a, b] = joined[b, a] = True
    degree = joined.sum(axis=1)
    for a, b in edges:
        assert matrix[a, b] == 1 / (1 + max(degree[a], degree[b]))
    assert not matrix[~joined & ~np.eye(size, dtype=bool)].any()
    assert 0 < spectral_gap(matrix) <= 1


@given(edge_lists(directed=True))
def test_directed_edge_lists_have_rows_that_sum_to_one(case):
    size, edges = case
    made = from_edges(size, edges, directed=True)
    matrix = mixing_matrix(made)
    assert np.allclose(matrix.sum(axis=1), 1, rtol=0, atol=1e-12)
    assert set(zip(*np.nonzero(matrix - np.diag(np.diag(matrix))), strict=True)) == {
        (target, source) for source, target in edges
    }
    assert (np.diag(matrix) > 0).all()
    ends = np.bincount([target for _, target in set(edges)], minlength=size)
    begins = np.bincount([source for source, _ in set(edges)], minlength=size)
    assert is_doubly_stochastic(matrix) or (ends != begins).any()


@pytest.mark.parametrize("size", [2, 4, 8, 16, 64])
def test_one_peer_exponential_averages_exactly_in_a_period(size):
    # Ying et al. 2021, lemma 1.
    made = topology.one_peer_exponential(size)
    assert np.array_equal(period_matrix(made), np.full((size, size), 1 / size))
    assert spectral_gap(period_matrix(made)) == 1


@pytest.mark.parametrize("size", [4, 6, 8, 10, 24, 32, 50])
def test_gap_of_the_exponential_graph(size):
    # Ying et al. 2021, proposition 1, for even sizes.
    gap = spectral_gap(mixing_matrix(topology.exponential(size)))
    assert gap == pytest.approx(2 / (1 + np.ceil(np.log2(size))), abs=1e-10)


@pytest.mark.parametrize("size", [4, 8, 32])
def test_gap_of_the_hypercube(size):
    gap = spectral_gap(mixing_matrix(topology.hypercube(size)))
    assert gap == pytest.approx(2 / (1 + np.log2(size)), abs=1e-12)


@pytest.mark.parametrize("size", [5, 12, 31])
def test_gap_of_the_ring(size):
    gap = spectral_gap(mixing_matrix(topology.ring(size)))
    assert gap == pytest.approx(2 / 3 * (1 - np.cos(2 * np.pi / size)), abs=1e-12)


def test_gap_at_the_ends():
    assert spectral_gap(mixing_matrix(topology.complete(7))) == pytest.approx(1)
    assert spectral_gap(np.eye(3)) == pytest.approx(0)
    assert spectral_gap(np.ones((1, 1))) == 1


def test_gap_tells_how_fast_differences_shrink():
    matrix = mixing_matrix(topology.torus(12))
    values = np.random.default_rng(1).normal(size=12)
    mean, spread = values.mean(), np.linalg.norm(values - values.mean())
    for _ in range(20):
        values = matrix @ values
    assert values.mean() == pytest.approx(mean)
    assert np.linalg.norm(values - mean) <= spread * (1 - spectral_gap(matrix)) ** 20 * (1 + 1e-9)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: topology.hypercube(6), "power of two, got 6; the nearest are 4 and 8"),
        (lambda: topology.torus(7), r"got 7; the nearest are 6 and 8, or pass shape=\(1, 7\)"),
        (lambda: topology.torus(2), "got 2; the nearest are 4, or pass"),
        (lambda: topology.torus(6, (2, 2)), "one of 1 x 6, 2 x 3, 3 x 2, 6 x 1, got 2 x 2"),
        (lambda: topology.ring(0), "size of a topology must be at least 1, got 0"),
        (lambda: topology.make("tree", 4), "one of ring, torus, .*complete, got 'tree'"),
        (lambda: from_edges(4, [(0, 1), (2, 3)]), "nothing from rank 0 ever reaches rank 2"),
        (lambda: from_edges(3, [(0, 1), (1, 2)], directed=True), "from rank 1 ever reaches rank 0"),
        (lambda: from_edges(3, [(0, 3)]), r"ranks in \[0, 3\), got \(0, 3\)"),
        (lambda: from_edges(3, [(1, 1)]), r"different ranks, got \(1, 1\)"),
    ],
)
def test_refuses_what_is_no_topology(make, text):
    with pytest.raises(ConfigError, match=text):
        make()


def test_refuses_bad_questions():
    with pytest.raises(ValueError, match=r"rank must be in \[0, 3\), got 3"):
        topology.ring(3).neighbors(3)
    with pytest.raises(ValueError, match="step must be at least 0, got -1"):
        topology.ring(3).neighbors(0, -1)
    with pytest.raises(ValueError, match=r"square and not empty, got shape \(2, 3\)"):
        spectral_gap(np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"must sum to one, got 2\.0 in row 0"):
        spectral_gap(np.ones((2, 2)))


@given(st.integers(1, 8), st.lists(st.tuples(st.integers(0, 7), st.integers(0, 7)), max_size=30))
def test_is_connected_agrees_with_powers_of_the_matrix(size, pairs):
    edges = [(a % size, b % size) for a, b in pairs]
    reach = np.eye(size, dtype=bool)
    for source, target in edges:
        reach[source, target] = True
    for _ in range(size):
        reach = reach | (reach.astype(int) @ reach.astype(int) > 0)
    assert is_connected(size, edges) == reach.all()


@given(st.integers(1, 2000))
def test_divisors(size):
    assert topology.divisors(size) == [d for d in range(1, size + 1) if size % d == 0]
