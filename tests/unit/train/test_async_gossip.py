"""Averages of random pairs, without ranks: what they keep, and how fast the distance falls."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paropt_hpc.comm import topology
from paropt_hpc.train.async_gossip import meet_halfway

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
    meet_halfway(x[partner], question)
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
            meet_halfway(x[partner], question)
            answers[rank] = question
        else:
            partner = (rank + 1 + data.draw(st.integers(0, size - 2))) % size
            asked[rank] = partner, x[rank].copy()
    for rank, answer in answers.items():
        x[rank] += answer
    assert np.allclose(x.mean(axis=0), mean)
    assert np.abs(x).max() <= 4 * largest
