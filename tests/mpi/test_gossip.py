"""Gossip strategies against a simulation of all ranks in one process."""

import numpy as np
import pytest
from mpi4py import MPI

from paropt_hpc.comm import Communicator, PushTopology, topology
from paropt_hpc.compress import TopK
from paropt_hpc.errors import ConfigError
from paropt_hpc.train import SGD, AllReduce, ChocoGossip, Config, Gossip, PushSum, train

pytestmark = pytest.mark.mpi

N, STEPS, LR = 30, 8, 0.1


def gradient_of(rank, params, step):
    """Of a quadratic bowl that is another one on every rank."""
    centre = np.random.default_rng([rank, 1]).standard_normal(N)
    noise = np.random.default_rng([rank, step, 2]).standard_normal(N)
    return params - centre + 0.1 * noise


def start_of(rank):
    return np.random.default_rng(rank).standard_normal(N)


def run(strategy, comm, steps=STEPS):
    """Start all ranks from rank 0's parameters and return this rank's after some steps."""
    params = start_of(0)
    strategy.start(params)
    for step in range(steps):
        strategy.step(params, gradient_of(comm.rank, params, step))
    return params


def matrices(graph):
    return [weights(graph, step) for step in range(STEPS)]


def weights(graph, step):
    matrix = np.zeros((graph.size, graph.size))
    for rank in range(graph.size):
        row = graph.neighbors(rank, step)
        matrix[rank, rank] = row.own_weight
        matrix[rank, list(row.sources)] = row.weights
    return matrix


def simulated(size, one_step):
    """All ranks' parameters, shape (size, N), after steps of one_step(x, gradients, step)."""
    x = np.tile(start_of(0), (size, 1))
    for step in range(STEPS):
        x = one_step(x, step)
    return x


def gradients_at(x, step):
    return np.stack([gradient_of(rank, x[rank], step) for rank in range(len(x))])


def graphs(size):
    names = ["ring", "complete", "star", "exponential", "one-peer-exponential"]
    return [topology.make(name, size) for name in names]


def close(params, expected):
    return np.allclose(params, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("order", ["adapt-then-combine", "combine-then-adapt"])
def test_gossip_follows_its_formula(comm, order):
    for graph in graphs(comm.size):
        mixing = matrices(graph)

        def one_step(x, step, mixing=mixing):
            change = LR * gradients_at(x, step)
            if order == "adapt-then-combine":
                return mixing[step] @ (x - change)
            return mixing[step] @ x - change

        params = run(Gossip(comm, SGD(LR), graph, order), comm)
        assert close(params, simulated(comm.size, one_step)[comm.rank]), graph


def test_gradient_tracking_follows_its_formula(comm):
    for graph in graphs(comm.size):
        mixing = matrices(graph)
        last, tracked = np.zeros((comm.size, N)), None

        def one_step(x, step, mixing=mixing):
            nonlocal last, tracked
            gradients = gradients_at(x, step)
            tracked = gradients if tracked is None else mixing[step] @ tracked + gradients - last
            last = gradients
            return mixing[step] @ (x - LR * tracked)

        params = run(Gossip(comm, SGD(LR), graph, tracking=True), comm)
        assert close(params, simulated(comm.size, one_step)[comm.rank]), graph


def directed(size):
    """A ring with one shortcut: its row weights would not keep the mean."""
    edges = [(rank, (rank + 1) % size) for rank in range(size)] if size > 1 else []
    return topology.from_edges(size, [*edges, *([(0, 2)] if size > 2 else [])], directed=True)


@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_push_sum_follows_its_formula(comm, decay):
    for graph in [directed(comm.size), *graphs(comm.size)]:
        mixing = matrices(PushTopology(graph))
        for matrix in mixing:
            assert np.allclose(matrix.sum(axis=0), 1)
        biased, weight = np.tile(start_of(0), (comm.size, 1)), np.ones((comm.size, 1))

        def one_step(x, step, mixing=mixing):
            nonlocal biased, weight
            # The parameters that decay are those that the gradients are taken at.
            biased = mixing[step] @ (biased - LR * (gradients_at(x, step) + decay * x))
            weight = mixing[step] @ weight
            return biased / weight

        params = run(PushSum(comm, SGD(LR, weight_decay=decay), graph), comm)
        assert close(params, simulated(comm.size, one_step)[comm.rank]), graph


def largest(vector, k):
    kept = np.argsort(-np.abs(vector), kind="stable")[:k]
    out = np.zeros_like(vector)
    out[kept] = vector[kept]
    return out


def test_compressed_gossip_follows_its_formula(comm):
    graph, k, gamma = topology.ring(comm.size), 6, 0.5
    mixing = weights(graph, 0)
    told = np.tile(start_of(0), (comm.size, 1))

    def one_step(x, step):
        nonlocal told
        x = x - LR * gradients_at(x, step)
        told = told + np.stack([largest(row, k) for row in x - told])
        return x + gamma * (mixing @ told - told)

    strategy = ChocoGossip(comm, SGD(LR), graph, TopK(k / N), gamma)
    assert close(run(strategy, comm), simulated(comm.size, one_step)[comm.rank])


def test_mixing_with_everybody_is_all_reduce(comm):
    graph = topology.complete(comm.size)
    params = run(Gossip(comm, SGD(LR), graph), comm)
    # In the bowl, the mean of gradients at equal parameters is what all-reduce applies.
    assert np.allclose(params, run(AllReduce(comm, SGD(LR)), comm), rtol=1e-10)


def test_the_distance_falls_as_the_spectral_gap_says(comm):
    for graph in graphs(comm.size):
        strategy = Gossip(comm, SGD(0.1), graph)
        strategy.start(np.zeros(N))
        params = start_of(comm.rank)
        before = strategy.metrics(params)["consensus_distance"]
        for _ in range(graph.period):
            strategy.step(params, np.zeros(N))
        after = strategy.metrics(params)["consensus_distance"]
        bound = 1 - topology.spectral_gap(topology.period_matrix(graph))
        assert after <= bound * before + 1e-9, graph
        if comm.size > 1 and bound < 1e-9:
            assert before > 0.1


def test_tracking_finds_the_optimum_of_all_where_plain_gossip_does_not(comm):
    """Without noise, on a ring, at a fixed rate, ranks' own optima far apart."""

    def distance(strategy):
        params = np.zeros(N)
        strategy.start(params)
        for _ in range(400):
            strategy.step(params, params - 10 * start_of(comm.rank))
        optimum = np.mean([10 * start_of(rank) for rank in range(comm.size)], axis=0)
        return comm.gather_scalars(np.abs(params - optimum).max()).max()

    graph = topology.star(comm.size)
    assert distance(Gossip(comm, SGD(0.2), graph, tracking=True)) < 1e-6
    if comm.size > 2:
        assert distance(Gossip(comm, SGD(0.2), graph)) > 1e-2


VARIANTS = {
    "plain": lambda comm: Gossip(comm, SGD(LR, 0.9), topology.ring(comm.size)),
    "combine first": lambda comm: Gossip(
        comm, SGD(LR), topology.one_peer_exponential(comm.size), "combine-then-adapt"
    ),
    "tracking": lambda comm: Gossip(comm, SGD(LR), topology.ring(comm.size), tracking=True),
    "push": lambda comm: PushSum(comm, SGD(LR), directed(comm.size)),
    "choco": lambda comm: ChocoGossip(comm, SGD(LR), topology.ring(comm.size), TopK(0.2)),
}


@pytest.mark.parametrize("name", sorted(set(VARIANTS) - {"tracking"}))
def test_one_rank_is_plain_sgd_to_the_bit(name):
    with Communicator(MPI.COMM_SELF) as alone:
        params = run(VARIANTS[name](alone), alone)
    sgd, expected = SGD(LR, 0.9 if name == "plain" else 0.0), start_of(0)
    for step in range(STEPS):
        sgd.update(expected, gradient_of(0, expected, step))
    assert np.array_equal(params, expected)


def test_one_rank_that_tracks_is_plain_sgd_up_to_rounding():
    with Communicator(MPI.COMM_SELF) as alone:
        params = run(VARIANTS["tracking"](alone), alone)
        assert close(params, run(AllReduce(alone, SGD(LR)), alone))


@pytest.mark.parametrize("name", VARIANTS)
def test_all_ranks_end_with_the_mean(comm, name):
    strategy = VARIANTS[name](comm)
    params = run(strategy, comm)
    mean = strategy.consensus(params)
    strategy.finish(params)
    assert np.allclose(params, mean)
    copies = comm.allgather_bytes(params.view(np.uint8))
    assert all(np.array_equal(copy, copies[0]) for copy in copies)


@pytest.mark.parametrize("name", VARIANTS)
def test_goes_on_exactly_from_a_saved_state(comm, name):
    whole = VARIANTS[name](comm)
    params = run(whole, comm, 5)
    resumed, copy = VARIANTS[name](comm), start_of(0)
    resumed.start(copy)
    resumed.load_state_dict(whole.state_dict())
    copy[:] = params
    for step in range(5, 12):
        whole.step(params, gradient_of(comm.rank, params, step))
        resumed.step(copy, gradient_of(comm.rank, copy, step))
    assert np.array_equal(params, copy)


def test_errors(comm):
    with pytest.raises(ConfigError, match="topology must be one of"):
        Gossip(comm, SGD(LR), topology.ring(comm.size + 1))
    with pytest.raises(ConfigError, match="order must be one of"):
        Gossip(comm, SGD(LR), topology.ring(comm.size), "backwards")
    with pytest.raises(ConfigError, match="topology that stays the same"):
        ChocoGossip(comm, SGD(LR), Changing(comm.size), TopK(0.1))


class Changing(topology.Topology):
    """A ring that takes a second step."""

    def __init__(self, size):
        edges = [(rank, (rank + 1) % size) for rank in range(size)] if size > 1 else []
        super().__init__("changing", size, [edges, edges])


@pytest.mark.parametrize(
    "strategy",
    [
        {"name": "gossip", "topology": "ring"},
        {"name": "gossip", "topology": "one-peer-exponential", "order": "combine-then-adapt"},
        {"name": "push-sum", "topology": "exponential"},
        {"name": "choco"},
    ],
)
def test_every_way_learns(comm, strategy, tmp_path):
    sections = {
        "train": {"epochs": 8, "batch": 48, "lr": 0.05},
        "model": {"hidden": [32]},
        "strategy": strategy,
    }
    if strategy["name"] == "choco":
        sections["compress"] = {"method": "topk", "density": 0.1}
    if comm.rank == 0:
        sections["run"] = {"dir": str(tmp_path / "run")}
    summary = train(Config.model_validate(sections), comm)
    assert summary.test_accuracy > 0.9
    if comm.rank == 0:
        assert "consensus_distance" in (tmp_path / "run" / "metrics.jsonl").read_text()
