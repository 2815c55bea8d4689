"""Averages of random pairs, without ranks: what they keep, and how fast the distance falls."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paropt_hpc.comm import topology
from paropt_hpc.train.async_gossip import meet

GRAPHS = [
    topology.make(name, size)
    for name, size in [("ring", 5), ("complete", 4), ("star", 6), ("one-peer-exponential", 8)]
]


def pairs_of(graph):
    """Every exchange with its probability."""
    for step in range(graph.period):
        for rank in range(graph.size):
            targets = graph.neighbors(rank, step).targets
            for target in targets:
                yield rank, target, 1 / (graph.size * graph.period * len(targets))


def exchanged(x, asker, partner):
    x = x.copy()
    question = x[asker].copy()
    meet(x[partner], question, asking=False)
    x[asker] += question
    return x


def distance(x):
    return np.square(x - x.mean(axis=0)).sum()


@pytest.mark.parametrize("graph", GRAPHS, ids=repr)
def test_the_expected_distance_falls_by_the_spectral_gap(graph):
    matrix = topology.pairwise_matrix(graph)
    assert topology.is_doubly_stochastic(matrix)
    second = 1 - topology.spectral_gap(matrix)
    slowest = np.linalg.eigh(matrix)[1][:, -2][:, None]  # the direction that decays last
    anything = np.random.default_rng(1).standard_normal((graph.size, 7))
    for x, exact in [(slowest, True), (anything, False)]:
        after = sum(share * distance(exchanged(x, i, j)) for i, j, share in pairs_of(graph))
        assert after <= second * distance(x) + 1e-12
        if exact:
            assert after == pytest.approx(second * distance(x))


@given(data=st.data())
def test_the_mean_stays_whatever_happens_between_question_and_answer(data):
    """Questions may be answered late, after other exchanges and in any order."""
    size = data.draw(st.integers(2, 5))
    x = np.random.default_rng(2).standard_normal((size, 3))
    mean, largest = x.mean(axis=0), np.abs(x).max()
    asked, answers = {}, {}
    ranks = st.integers(0, size - 1)
    for _ in range(data.draw(st.integers(0, 30))):
        rank = data.draw(ranks)
        if rank in answers:
            x[rank] += answers.pop(rank)
        elif rank in asked:
            partner, question = asked.pop(rank)
            meet(x[partner], question, asking=partner in asked or partner in answers)
            answers[rank] = question
        else:
            partner = (rank + 1 + data.draw(st.integers(0, size - 2))) % size
            asked[rank] = partner, x[rank].copy()
    for rank, answer in answers.items():
        x[rank] += answer
    assert np.allclose(x.mean(axis=0), mean)
    assert np.abs(x).max() <= 4 * largest


@pytest.mark.parametrize("size", [2, 3, 4, 7, 8])
def test_ranks_that_keep_step_come_closer_too(size):
    """All ask, then all answer: each a drawn neighbour, or each the one to its right."""
    ring = topology.make("ring", size)
    rng = np.random.default_rng(size)
    start = x = rng.standard_normal((size, 3))
    right = (np.arange(size) + 1) % size
    for partners in [right, right - 2] + 40 * [None]:
        if partners is None:
            partners = [rng.choice(ring.neighbors(rank).targets) for rank in range(size)]
        questions, before = x.copy(), distance(x)
        x = x.copy()
        for asker, partner in enumerate(partners):
            meet(x[partner % size], questions[asker], asking=True)
        x += questions  # the answers
        assert distance(x) < before + 1e-20  # what rounding leaves of equal ones
    assert distance(x) < 1e-3 * distance(start)
    np.testing.assert_allclose(x.mean(axis=0), start.mean(axis=0), atol=1e-14)
