"""Data-parallel training: equal to one process, whatever the number of ranks."""

import numpy as np
import pytest

from paropt_hpc.comm import Communicator
from paropt_hpc.compress import TopK
from paropt_hpc.errors import ConfigError, DivergenceError
from paropt_hpc.train import MLP, SGD, AllReduce, Batch, Config, ShardedSampler, train

pytestmark = pytest.mark.mpi

FEATURES, CLASSES, SAMPLES, BATCH = 12, 3, 100, 24  # 24 = 1, 2, 3, 4 ranks; the tail has 4 samples
MODEL = MLP(FEATURES, [16], CLASSES)


@pytest.fixture
def comm():
    from mpi4py import MPI

    with Communicator(MPI.COMM_WORLD) as communicator:
        yield communicator


def samples(dtype="float64"):
    generator = np.random.default_rng(7)
    x = generator.standard_normal((SAMPLES, FEATURES)).astype(dtype)
    return Batch(x, generator.integers(0, CLASSES, SAMPLES))


def optimizer():
    return SGD(0.1, momentum=0.9, nesterov=True, weight_decay=1e-3)


def plain_sgd(dtype="float64", epochs=3):
    """One process on the whole global batch: no strategy, no communicator."""
    data, params, sgd = samples(dtype), MODEL.init(0, dtype), optimizer()
    sampler = ShardedSampler(SAMPLES, BATCH, 0, 1, 5)
    for epoch in range(epochs):
        for shard in sampler.epoch(epoch):
            batch = Batch(data.x[shard.indices], data.y[shard.indices])
            sgd.update(params, MODEL.loss_and_grad(params, batch)[1])
    return params


def distributed(comm, compressor=None, dtype="float64", algorithm="ring", epochs=3):
    data, params = samples(dtype), MODEL.init(comm.rank, dtype)
    strategy = AllReduce(comm, optimizer(), compressor, algorithm)
    strategy.start(params)
    sampler = ShardedSampler(SAMPLES, BATCH, comm.rank, comm.size, 5)
    for epoch in range(epochs):
        for shard in sampler.epoch(epoch):
            batch = Batch(data.x[shard.indices], data.y[shard.indices])
            _, gradient = MODEL.loss_and_grad(params, batch)
            gradient *= len(batch.y) * comm.size / shard.batch
            strategy.step(params, gradient)
    strategy.finish(params)
    return params


def equal_on_all_ranks(comm, params):
    copies = comm.allgather_bytes(params.view(np.uint8))
    return all(np.array_equal(copy, copies[0]) for copy in copies)


def relative(params, expected):
    return np.abs(params - expected).max() / np.abs(expected).max()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("density", [None, 1.0])
def test_one_rank_is_plain_sgd_to_the_bit(comm, dtype, density):
    from mpi4py import MPI

    compressor = TopK(density) if density else None
    with Communicator(MPI.COMM_SELF) as alone:
        params = distributed(alone, compressor, dtype)
    assert np.array_equal(params, plain_sgd(dtype))


@pytest.mark.parametrize("algorithm", ["ring", "mpi"])
def test_dense_equals_one_process_on_the_global_batch(comm, algorithm):
    params = distributed(comm, algorithm=algorithm)
    assert relative(params, plain_sgd()) < 1e-10
    assert equal_on_all_ranks(comm, params)


def test_topk_of_density_one_equals_dense(comm):
    params = distributed(comm, TopK(1.0))
    assert relative(params, distributed(comm)) < 1e-10
    assert equal_on_all_ranks(comm, params)


def test_topk_keeps_ranks_equal_and_learns(comm):
    params = distributed(comm, TopK(0.05), dtype="float32", epochs=10)
    assert equal_on_all_ranks(comm, params)
    whole = samples("float32")
    before, _ = MODEL.evaluate(MODEL.init(0), whole)
    after, _ = MODEL.evaluate(params, whole)
    assert after < 0.8 * before


def test_what_is_sent_and_what_is_kept_is_the_whole_gradient(comm):
    """At every step, in every entry: residual + sent == gradient + old residual."""
    data, params = samples(), MODEL.init(0, "float64")
    compressor = TopK(0.03)
    compressor.start(MODEL.size, params.dtype)
    strategy = AllReduce(comm, optimizer())
    for shard in ShardedSampler(SAMPLES, BATCH, comm.rank, comm.size, 5).epoch(0):
        batch = Batch(data.x[shard.indices], data.y[shard.indices])
        _, gradient = MODEL.loss_and_grad(params, batch)
        whole = gradient + compressor.residual
        message = compressor.compress(gradient)
        sent = np.zeros_like(gradient)
        compressor.decompress_add(message, sent)
        assert np.array_equal(compressor.residual + sent, whole)
        assert np.count_nonzero(sent) <= -(-3 * MODEL.size // 100)
        strategy.step(params, sent)


def config_of(**sections):
    return Config.model_validate(
        {
            "train": {"epochs": 8, "batch": 48, "lr": 0.05, **sections.pop("train", {})},
            "model": {"hidden": [32], "dtype": "float64"},
            **sections,
        }
    )


def test_a_whole_run(comm, tmp_path):
    folder = tmp_path / "run"  # written by rank 0 alone
    summary = train(config_of(run={"dir": str(folder)}), comm)
    assert summary.ranks == comm.size
    assert summary.steps == 8 * 30  # of 1,438 samples in batches of 48
    assert summary.test_accuracy > 0.9
    assert summary.final_loss < 0.5
    assert 0 <= summary.comm_share <= 1
    assert (summary.dense_bytes_per_rank > 0) == (comm.size > 1)
    if comm.rank == 0:
        assert sorted(path.name for path in folder.iterdir()) == [
            "config.toml",
            "metrics.jsonl",
            "summary.json",
        ]
        assert len((folder / "metrics.jsonl").read_text().splitlines()) == 8


def test_any_number_of_ranks_gives_the_same_run(comm):
    from mpi4py import MPI

    config = config_of(train={"epochs": 2})
    together = train(config, comm)
    with Communicator(MPI.COMM_SELF) as one:
        alone = train(config, one)
    assert together.final_loss == pytest.approx(alone.final_loss, rel=1e-9)
    assert together.test_accuracy == alone.test_accuracy


def test_compression_sends_less(comm):
    summary = train(config_of(compress={"method": "topk", "density": 0.01}), comm)
    assert summary.test_accuracy > 0.85
    if comm.size == 2:
        assert summary.bytes_sent_per_rank < summary.dense_bytes_per_rank / 20


def test_divergence_reaches_every_rank_and_names_rank_and_step(comm):
    with pytest.raises(DivergenceError, match=r"the loss is \w+ on rank \d at step \d+ \(epoch"):
        train(config_of(train={"lr": 1e150, "momentum": 0.0}), comm)


@pytest.mark.mpi(min_size=2)
def test_faults_found_before_the_first_step_reach_every_rank(comm):
    with pytest.raises(ConfigError, match=f"not a multiple of {comm.size} ranks"):
        train(config_of(train={"batch": 4 * comm.size + 1}), comm)


@pytest.mark.mpi(min_size=2)
def test_a_fault_of_one_rank_reaches_every_rank(comm, tmp_path):
    (tmp_path / "file").write_text("")
    run = {"dir": str(tmp_path / "file" / "run")}  # only rank 0 writes, so only it fails
    with pytest.raises(ConfigError, match="cannot write the run folder"):
        train(config_of(run=run), comm)
