"""Asynchronous gossip: nobody waits, the mean stays, the distance falls."""

import time

import numpy as np
import pytest
from mpi4py import MPI

from paropt_hpc.comm import Communicator, topology
from paropt_hpc.errors import CollectiveTimeout, ConfigError, DivergenceError
from paropt_hpc.train import SGD, AsyncGossip, Config, Trainer

pytestmark = pytest.mark.mpi

N = 30


def start_of(rank):
    return np.random.default_rng(rank).standard_normal(N)


def graphs(size):
    return [topology.make(name, size) for name in ("ring", "star", "one-peer-exponential")]


def distance(comm, params):
    mean = params.copy()
    comm.allreduce(mean, "mean")
    return comm.gather_scalars(float(np.square(params - mean).sum())).sum()


def test_one_rank_is_plain_sgd_to_the_bit():
    with Communicator(MPI.COMM_SELF) as alone:
        strategy, params = AsyncGossip(alone, SGD(0.1, 0.9), topology.ring(1)), start_of(0)
        strategy.start(params)
        sgd, expected = SGD(0.1, 0.9), start_of(0)
        for step in range(8):
            strategy.step(params, params - start_of(step))
            sgd.update(expected, expected - start_of(step))
        strategy.finish(params)
    assert np.array_equal(params, expected)


def test_the_distance_falls_as_the_spectral_gap_says(comm):
    """Ranks that take unequal numbers of steps at unequal speed, and no gradients."""
    for graph in graphs(comm.size):
        strategy = AsyncGossip(comm, SGD(0.1), graph)
        strategy.start(np.zeros(N))
        params, nothing = start_of(comm.rank), np.zeros(N)
        before, mean = distance(comm, params), strategy.consensus(params)
        # However rarely a rank gets a core: all answer until the last of them has enough.
        while comm.size > 1 and strategy._exchanges < 40 + 10 * comm.rank:
            strategy.step(params, nothing)
            time.sleep(1e-4 * (comm.rank + 1))
        strategy.end_epoch(params)
        assert np.allclose(strategy.consensus(params), mean)
        exchanges = strategy.metrics(params)["exchanges"]
        if comm.size == 1:
            continue
        assert exchanges >= sum(40 + 10 * rank for rank in range(comm.size))
        second = 1 - topology.spectral_gap(topology.pairwise_matrix(graph))
        # The expectation falls by `second` in each exchange that overlaps with no other one;
        # by Markov's inequality a thousand times more is as rare as one in a thousand.
        rounding = 1e-26 * before
        bound = 1e3 * max(second, 0.0) ** (exchanges / 2) * before + rounding
        assert distance(comm, params) <= bound, graph


def test_all_ranks_end_with_the_mean(comm):
    strategy, params = AsyncGossip(comm, SGD(0.1), topology.ring(comm.size)), start_of(0)
    strategy.start(params)
    for _ in range(5 + comm.rank):
        strategy.step(params, params - start_of(comm.rank))
    strategy.finish(params)
    copies = comm.allgather_bytes(params.view(np.uint8))
    assert all(np.array_equal(copy, copies[0]) for copy in copies)


def config_of(**sections):
    base = {
        "train": {"epochs": 8, "batch": 48, "lr": 0.05},
        "model": {"hidden": [32]},
        "strategy": {"name": "async-gossip", "lead": 4},
    }
    return Config.model_validate(base | sections)


def test_learns_though_one_rank_is_slow(comm, tmp_path):
    slow = {"slow_rank": comm.size - 1, "slow_factor": 2.0}
    run = {"dir": str(tmp_path / "run")} if comm.rank == 0 else {}
    trainer = Trainer(config_of(debug=slow, run=run), comm)
    summary = trainer.run()
    assert summary.test_accuracy > 0.9
    assert summary.steps == 8 * trainer.sampler.steps_per_epoch
    if comm.rank == 0:
        metrics = (tmp_path / "run" / "metrics.jsonl").read_text()
        assert "consensus_distance" in metrics
        assert "exchanges" in metrics


def test_divergence_is_raised_everywhere(comm):
    with pytest.raises(DivergenceError, match=r"the loss is nan on rank \d in epoch 1"):
        Trainer(config_of(train={"epochs": 3, "batch": 48, "lr": 1e30}), comm).run()
    comm.barrier()


def test_errors(comm):
    with pytest.raises(ConfigError, match="lead must be at least 1"):
        AsyncGossip(comm, SGD(0.1), topology.ring(comm.size), lead=0)
    with pytest.raises(ConfigError, match="topology must be one of"):
        AsyncGossip(comm, SGD(0.1), topology.ring(comm.size + 1))
    with pytest.raises(ConfigError, match="must be connected, but nothing from rank 0 ever"):
        topology.from_edges(4, [(0, 1), (2, 3)])


def test_a_neighbour_that_is_gone_is_noticed(world):
    if world.Get_size() == 1:
        return
    comm = Communicator(world, check=False)
    strategy, params = AsyncGossip(comm, SGD(0.1), topology.complete(comm.size)), start_of(0)
    strategy.start(params)
    strategy._mail.timeout = 0.5  # not before all are there
    if comm.rank == 0:
        with pytest.raises(CollectiveTimeout, match=r"did not come .* within 0\.5 s"):
            strategy.finish(params)
    world.Barrier()
