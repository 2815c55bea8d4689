"""Data-parallel training: equal to one process, whatever the number of ranks."""

import numpy as np
import pytest

from paropt_hpc.comm import Communicator
from paropt_hpc.compress import Quantize, RandomK, Threshold, TopK
from paropt_hpc.errors import ConfigError, DivergenceError
from paropt_hpc.train import (
    MLP,
    SGD,
    AllReduce,
    Batch,
    Config,
    LocalSGD,
    ShardedSampler,
    loop,
    train,
)
from paropt_hpc.train.loop import Trainer

pytestmark = pytest.mark.mpi

FEATURES, CLASSES, SAMPLES, BATCH = 12, 3, 100, 24  # 24 = 1, 2, 3, 4 ranks; the tail has 4 samples
MODEL = MLP(FEATURES, [16], CLASSES)


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
    strategy = AllReduce(comm, optimizer(), compressor, algorithm)
    return trained_by(strategy, comm, dtype, epochs)


def trained_by(strategy, comm, dtype="float64", epochs=3):
    data, params = samples(dtype), MODEL.init(comm.rank, dtype)
    strategy.start(params)
    sampler = ShardedSampler(SAMPLES, BATCH, comm.rank, comm.size, 5)
    for epoch in range(epochs):
        for shard in sampler.epoch(epoch):
            batch = Batch(data.x[shard.indices], data.y[shard.indices])
            _, gradient = MODEL.loss_and_grad(params, batch)
            strategy.step(params, gradient, (len(batch.y), shard.batch))
        strategy.end_epoch(params)
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


@pytest.mark.parametrize("make", [lambda: TopK(1.0), lambda: RandomK(1.0), lambda: Threshold(0.0)])
def test_a_compressor_that_sends_all_equals_dense(comm, make):
    params = distributed(comm, make())
    assert relative(params, distributed(comm)) < 1e-10
    assert equal_on_all_ranks(comm, params)


WITH_FEEDBACK = {
    "topk": lambda rank: TopK(0.05, values="int8", seed=rank),
    "randomk": lambda rank: RandomK(0.1),
    "randomk float16": lambda rank: RandomK(0.1, values="float16"),
    "threshold": lambda rank: Threshold(1.5),
    "sign": lambda rank: Quantize("sign"),
}


@pytest.mark.parametrize("way", WITH_FEEDBACK)
def test_what_arrives_and_what_is_kept_is_the_sum_of_all_gradients(comm, way):
    """Over a whole run, and over all ranks: nothing is lost, only late."""
    n, steps = 300, 25

    def gradient_of(rank, step):
        return np.random.default_rng([rank, step]).standard_normal(n).astype(np.float32)

    compressor, params = WITH_FEEDBACK[way](comm.rank), np.zeros(n, np.float32)
    strategy = AllReduce(comm, SGD(1.0), compressor)
    strategy.start(params)
    for step in range(steps):
        strategy.step(params, gradient_of(comm.rank, step))
    given = [gradient_of(rank, step) for rank in range(comm.size) for step in range(steps)]
    kept = comm.allgather_bytes(compressor.residual.view(np.uint8))
    late = np.sum([residual.view(np.float32) for residual in kept], axis=0, dtype=float)
    assert np.allclose(late - params * comm.size, np.sum(given, axis=0, dtype=float), atol=2e-3)
    assert equal_on_all_ranks(comm, params)


def test_random_positions_are_not_sent(comm):
    strategy, params = AllReduce(comm, SGD(0.1), RandomK(0.01)), np.zeros(10_000, np.float32)
    strategy.start(params)
    before = comm.traffic.bytes_sent
    strategy.step(params, np.ones_like(params))
    if comm.size == 2:
        assert comm.traffic.bytes_sent - before == 100 * 4
    assert np.count_nonzero(params) == 100


def test_local_clipping_bounds_what_a_rank_collects(comm):
    strategy = AllReduce(comm, SGD(1.0), TopK(1.0), local_clip_norm=0.5)
    params = np.zeros(16)
    strategy.start(params)
    strategy.step(params, np.full(16, 1.0 if comm.rank == 0 else 0.01))
    assert np.allclose(params, -(0.125 + 0.01 * (comm.size - 1)) / comm.size)
    with pytest.raises(ConfigError, match="local_clip_norm needs a compressor"):
        AllReduce(comm, SGD(1.0), local_clip_norm=0.5)


@pytest.mark.parametrize("scheme", ["auto", "allgather", "split", "reselect", "dense"])
def test_topk_keeps_ranks_equal_and_learns(comm, scheme):
    strategy = AllReduce(comm, optimizer(), TopK(0.05), sparse_scheme=scheme)
    params = trained_by(strategy, comm, dtype="float32", epochs=10)
    assert equal_on_all_ranks(comm, params)
    whole = samples("float32")
    before, _ = MODEL.evaluate(MODEL.init(0), whole)
    after, _ = MODEL.evaluate(params, whole)
    assert after < 0.8 * before


def test_the_exact_schemes_give_the_same_bits(comm):
    schemes = ["auto", "allgather", "split"]
    results = [
        trained_by(AllReduce(comm, optimizer(), TopK(0.05), sparse_scheme=scheme), comm)
        for scheme in schemes
    ]
    assert all(np.array_equal(params, results[0]) for params in results)


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


def grouped_sgd(accumulate, epochs=3):
    """One process, one update per group of batches, by the mean over the group's samples."""
    data, params, sgd = samples(), MODEL.init(0, "float64"), optimizer()
    sampler = ShardedSampler(SAMPLES, BATCH, 0, 1, 5)
    for epoch in range(epochs):
        batches = [shard.indices for shard in sampler.epoch(epoch)]
        for first in range(0, len(batches), accumulate):
            rows = np.concatenate(batches[first : first + accumulate])
            sgd.update(params, MODEL.loss_and_grad(params, Batch(data.x[rows], data.y[rows]))[1])
    return params


@pytest.mark.parametrize("accumulate", [2, 3, 7])
def test_accumulation_is_one_step_on_the_batches_of_a_group(comm, accumulate):
    """Also for the last group of an epoch, which is incomplete (5 batches, the last of 4)."""
    strategy = AllReduce(comm, optimizer(), accumulate=accumulate)
    params = trained_by(strategy, comm)
    assert relative(params, grouped_sgd(accumulate)) < 1e-10
    assert equal_on_all_ranks(comm, params)
    assert strategy.optimizer.steps == 3 * -(-5 // accumulate)


def test_clipping_bounds_the_mean_gradient(comm):
    strategy = AllReduce(comm, SGD(1.0), clip_norm=0.01)
    params = np.zeros(50)
    strategy.start(params)
    strategy.step(params, np.full(50, 1.0 + comm.rank))
    assert np.linalg.norm(params) == pytest.approx(0.01)
    before = params.copy()
    strategy.step(params, np.full(50, 1e-5))
    assert np.allclose(before - params, 1e-5, rtol=1e-9)


def test_decay_before_compression_is_that_of_the_optimizer_at_density_one(comm):
    early = AllReduce(comm, SGD(0.1, 0.9), TopK(1.0), weight_decay=0.01)
    late = AllReduce(comm, SGD(0.1, 0.9, weight_decay=0.01))
    assert relative(trained_by(early, comm), trained_by(late, comm)) < 1e-10


def test_momentum_correction_at_density_one_is_momentum_of_the_last_gradient_only(comm):
    """All is sent, so masking clears all of it: plain SGD without momentum."""
    corrected = AllReduce(comm, SGD(0.1), TopK(1.0, momentum=0.9))
    plain = AllReduce(comm, SGD(0.1))
    assert relative(trained_by(corrected, comm), trained_by(plain, comm)) < 1e-10


@pytest.mark.parametrize("outer", [{}, {"outer_momentum": 0.5, "outer_lr": 0.9}])
def test_local_sgd_with_a_round_of_one_step(comm, outer):
    """Averaging after every step, of plain SGD, is averaging gradients."""
    local = LocalSGD(comm, SGD(0.1), period=1, **outer)
    params = trained_by_equal_shards(local, comm)
    if not outer:
        assert relative(params, trained_by_equal_shards(AllReduce(comm, SGD(0.1)), comm)) < 1e-10
    assert equal_on_all_ranks(comm, params)
    assert np.isfinite(params).all()


def trained_by_equal_shards(strategy, comm, steps=9):
    data, params = samples(), MODEL.init(comm.rank, "float64")
    strategy.start(params)
    for step in range(steps):
        rows = (np.arange(8) + 8 * (comm.rank + comm.size * step)) % SAMPLES
        _, gradient = MODEL.loss_and_grad(params, Batch(data.x[rows], data.y[rows]))
        strategy.step(params, gradient)
    strategy.finish(params)
    return params


def test_outer_momentum_follows_its_formula(comm):
    """Every rank moves by its own constant; the outer step sees the mean change."""
    strategy = LocalSGD(comm, SGD(1.0), period=2, outer_momentum=0.5, outer_lr=0.8)
    params = np.zeros(3)
    strategy.start(params)
    change, momentum, expected = 2 * (1 + (comm.size - 1) / 2), 0.0, 0.0
    for _ in range(3):
        for _ in range(2):
            strategy.step(params, np.full(3, 1.0 + comm.rank))
        momentum = 0.5 * momentum + change
        expected -= 0.8 * momentum
        assert np.allclose(params, expected)


def test_local_sgd_meets_at_the_end_of_each_round_only(comm):
    strategy = LocalSGD(comm, SGD(0.1), period=2, growth=2)
    params = np.zeros(5)
    strategy.start(params)
    met = []
    for step in range(1, 15):
        strategy.step(params, np.full(5, 1.0 + comm.rank))
        if equal_on_all_ranks(comm, params):
            met.append(step)
    assert met == (list(range(1, 15)) if comm.size == 1 else [2, 6, 14])


def test_one_rank_of_local_sgd_is_plain_sgd_to_the_bit():
    from mpi4py import MPI

    with Communicator(MPI.COMM_SELF) as alone:
        params = trained_by(LocalSGD(alone, optimizer(), period=3), alone)
    assert np.array_equal(params, plain_sgd())


STRATEGIES = {
    "dense": lambda comm: AllReduce(comm, optimizer()),
    "accumulated": lambda comm: AllReduce(comm, optimizer(), accumulate=2),
    "reselect": lambda comm: AllReduce(comm, SGD(0.1), TopK(0.2), sparse_scheme="reselect"),
    "topk": lambda comm: AllReduce(comm, SGD(0.1), TopK(0.05, momentum=0.9, warmup_steps=6)),
    "randomk": lambda comm: AllReduce(comm, SGD(0.1), RandomK(0.1, momentum=0.5), accumulate=3),
    "threshold": lambda comm: AllReduce(comm, SGD(0.1), Threshold(1.0), clip_norm=1.0),
    "local": lambda comm: LocalSGD(comm, optimizer(), 3, 1.5, outer_momentum=0.5),
}


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_strategy_goes_on_exactly_from_its_saved_state(comm, name):
    def gradients(steps):
        return [np.random.default_rng([comm.rank, step]).standard_normal(40) for step in steps]

    whole, params = STRATEGIES[name](comm), np.zeros(40)
    whole.start(params)
    for gradient in gradients(range(7)):
        whole.step(params, gradient)
    resumed, copy = STRATEGIES[name](comm), params.copy()
    resumed.start(copy)
    resumed.load_state_dict(whole.state_dict())
    copy[:] = params
    for strategy, vector in ((whole, params), (resumed, copy)):
        for gradient in gradients(range(7, 15)):
            strategy.step(vector, gradient)
        strategy.finish(vector)
    assert np.array_equal(params, copy)


@pytest.mark.mpi(min_size=2)
def test_models_of_different_size_are_refused_on_every_rank(comm):
    strategy = AllReduce(comm, SGD(0.1))
    with pytest.raises(ConfigError, match="got 10 float64 on rank 0 and 11 float64 on rank 1"):
        strategy.start(np.zeros(10 + (comm.rank == 1)))
    kind = "float32" if comm.rank == comm.size - 1 else "float64"
    with pytest.raises(ConfigError, match=f"and 10 float32 on rank {comm.size - 1}; build the"):
        strategy.start(np.zeros(10, kind))


def config_of(**sections):
    return Config.model_validate(
        {
            "train": {"epochs": 8, "batch": 48, "lr": 0.05, **sections.pop("train", {})},
            "model": {"hidden": [32], "dtype": "float64", **sections.pop("model", {})},
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


@pytest.mark.parametrize(
    "sections",
    [
        {"strategy": {"name": "localsgd", "period": 4}},
        {"train": {"accumulate": 2, "clip_norm": 1.0, "schedule": "cosine"}},
        {"train": {"optimizer": "adamw", "lr": 0.005, "weight_decay": 0.01}},
        {"train": {"optimizer": "lars", "lr": 5.0}},
        {"train": {"optimizer": "lamb", "lr": 0.01}},
        {"compress": {"method": "topk", "momentum_correction": True, "warmup_epochs": 2.0}},
        {"compress": {"method": "randomk", "density": 0.1, "momentum_correction": True}},
        {"compress": {"method": "threshold", "threshold": 0.01, "clip_norm": 5.0}},
        {"compress": {"method": "topk", "values": "int8"}, "model": {"dtype": "float32"}},
        {"compress": {"method": "quantize", "values": "qsgd4"}, "model": {"dtype": "float32"}},
    ],
)
def test_every_way_learns(comm, sections):
    summary = train(config_of(**sections), comm)
    assert summary.test_accuracy > 0.9
    assert summary.final_loss < 0.5


@pytest.mark.parametrize(
    ("compress", "density"),
    [
        ({"density": 0.01}, 0.01),
        ({"density": 0.01, "min_entries": 256}, 256 / 2410),
        ({"density": 0.2, "min_entries": 256}, 0.2),
        ({"density": 0.01, "min_entries": 9999}, 1.0),
        ({"density": 0.01, "min_entries": 256, "momentum_correction": True}, 0.01),
    ],
)
def test_short_messages_are_filled_up(comm, compress, density):
    trainer = Trainer(config_of(compress={"method": "topk", **compress}), comm)
    assert trainer.strategy.compressor.density == density


def test_compression_sends_less(comm):
    summary = train(config_of(compress={"method": "topk", "density": 0.01}), comm)
    assert summary.test_accuracy > 0.85
    if comm.size == 2:
        assert summary.bytes_sent_per_rank < summary.dense_bytes_per_rank / 20


def test_divergence_reaches_every_rank_and_names_rank_and_step(comm):
    with pytest.raises(DivergenceError, match=r"the loss is \w+ on rank \d at step \d+ \(epoch"):
        train(config_of(train={"lr": 1e150, "momentum": 0.0}), comm)


@pytest.mark.parametrize(
    ("sections", "every"),
    [
        ({"strategy": {"name": "localsgd", "period": 5}}, 5),
        ({"strategy": {"name": "localsgd", "period": 40}}, loop.MEET_EVERY),
        ({"strategy": {"name": "gossip"}}, loop.MEET_EVERY),
        ({"train": {"accumulate": 3}}, 3),
        ({}, 1),
    ],
)
def test_ranks_wait_for_all_others_only_where_the_strategy_does(comm, monkeypatch, sections, every):
    told, tell = [], Trainer._tell
    monkeypatch.setattr(
        Trainer, "_tell", lambda self, *args: told.append(args[1] + 1) or tell(self, *args)
    )
    config = config_of(**{**sections, "train": {"epochs": 1, **sections.get("train", {})}})
    steps = train(config, comm).steps
    assert told == sorted({*range(every, steps + 1, every), steps})


def test_losses_told_late_are_those_of_their_steps(comm, monkeypatch):
    def losses(meet_every, **sections):
        monkeypatch.setattr(loop, "MEET_EVERY", meet_every)
        seen = []
        record = Trainer._record
        monkeypatch.setattr(
            Trainer,
            "_record",
            lambda self, epoch, meter: seen.extend(meter.losses) or record(self, epoch, meter),
        )
        train(config_of(strategy={"name": "gossip"}, **sections), comm)
        monkeypatch.undo()
        return seen

    at_once, late = (losses(every, train={"epochs": 2}) for every in (1, 8))
    assert len(at_once) == len(set(at_once))
    assert at_once == late
    faults = []
    for every in (1, 8):
        with pytest.raises(DivergenceError) as caught:
            losses(every, train={"lr": 1e150, "momentum": 0.0})
        faults.append(str(caught.value))
        monkeypatch.undo()
    assert faults[0] == faults[1]


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
