"""Batch normalisation over all ranks: as in one process on the whole batch."""

import numpy as np
import pytest
from mpi4py import MPI

from paropt_hpc.comm import Communicator
from paropt_hpc.train import CNN, SGD, AllReduce, Batch, BatchNorm, Config, VirtualBatchNorm, train

pytestmark = pytest.mark.mpi

SAMPLES, STEPS = 11, 4


def samples(step):
    """Far from 0, as activations may be, and every step elsewhere."""
    generator = np.random.default_rng(step)
    x = 50 + step + generator.standard_normal((SAMPLES, 48))
    return Batch(x, generator.integers(0, 3, SAMPLES))


def network(norm=BatchNorm):
    return CNN((6, 8, 1), [2, 3], [4], 3, norm)


def parts(size, how):
    """Where each rank's samples begin and end; `how` gives the first or the last rank none."""
    if how == "even":
        return [part[[0, -1]] + [0, 1] for part in np.array_split(np.arange(SAMPLES), size)]
    weights = np.arange(size) if how == "none on the first" else np.arange(size)[::-1]
    borders = np.round(np.cumsum([0, *(weights if size > 1 else [1])]) / max(1, weights.sum()) * 11)
    return list(zip(borders[:-1].astype(int), borders[1:].astype(int), strict=True))


def whole():
    """One process, no strategy, no reduction."""
    model, sgd = network(), SGD(0.1, 0.9)
    params = model.init(0, "float64")
    for step in range(STEPS):
        sgd.update(params, model.loss_and_grad(params, samples(step))[1])
    return model, params


@pytest.mark.parametrize("how", ["even", "none on the first", "none on the last"])
def test_equals_one_process_on_the_whole_batch(comm, how):
    model, strategy = network(), AllReduce(comm, SGD(0.1, 0.9))
    model.connect(lambda sums: comm.allreduce(sums, "sum"))
    params = model.init(0, "float64")
    strategy.start(params)
    begin, end = parts(comm.size, how)[comm.rank]
    for step in range(STEPS):
        batch = samples(step)
        _, gradient = model.loss_and_grad(params, Batch(batch.x[begin:end], batch.y[begin:end]))
        strategy.step(params, gradient, (end - begin, SAMPLES))
    model.end_epoch()
    expected, expected_params = whole()
    assert np.abs(params - expected_params).max() < 1e-10 * np.abs(expected_params).max()
    for name, state in model.state_dict().items():
        want = expected.state_dict()[name]
        assert np.allclose(state["mean"], want["mean"], rtol=1e-12)
        assert np.allclose(state["variance"], want["variance"], rtol=1e-9)
        assert state["steps"] == STEPS
        copies = comm.gather_vectors([*state["mean"], *state["variance"]])
        assert (copies == copies[0]).all()


def test_virtual_batches_agree_at_the_end_of_an_epoch(comm):
    """On the mean of the ranks' running statistics, weighted by samples."""
    layer, params = VirtualBatchNorm(2, 2), [np.ones(2), np.zeros(2)]
    layer.connect(lambda sums: comm.allreduce(sums, "sum"))

    def of(rank):  # rank 0 has no samples where there are others
        count = 4 * (rank if comm.size > 1 else 1)
        return np.random.default_rng(rank).standard_normal((count, 2))

    layer.forward(params, of(comm.rank), training=True)
    layer.end_epoch()
    mean, variance, seen = 0.0, 0.0, 0
    for rank in range(comm.size):
        x = of(rank).reshape(-1, 2, 2)
        mean, variance = (
            mean + 2 * x.mean(axis=1).sum(axis=0),
            variance + (2 * x.var(axis=1, ddof=1).sum(axis=0)),
        )
        seen += 2 * len(x)
    assert np.allclose(layer.mean, mean / seen)
    assert np.allclose(layer.variance, variance / seen)


@pytest.mark.parametrize("norm", ["none", "batch", "virtual"])
def test_the_network_of_a_configuration_learns(comm, norm):
    sections = {
        "model": {"name": "cnn", "channels": [4, 8], "hidden": [32], "norm": norm},
        "train": {"epochs": 6, "batch": 60, "lr": 0.05},
    }
    summary = train(Config.model_validate(sections), comm)
    assert summary.test_accuracy > (0.75 if norm == "none" else 0.9)


def test_any_number_of_ranks_gives_the_same_run(comm):
    sections = {
        "model": {"name": "cnn", "channels": [2], "hidden": [8], "norm": "batch"},
        "train": {"epochs": 2, "batch": 120},
    }
    sections["model"]["dtype"] = "float64"
    config = Config.model_validate(sections)
    together = train(config, comm)
    with Communicator(MPI.COMM_SELF) as one:
        alone = train(config, one)
    assert together.final_loss == pytest.approx(alone.final_loss, rel=1e-8)
    assert together.test_accuracy == alone.test_accuracy
