"""Wires: buckets that overlap, 16 bits on the way, and steps that all ranks leave out."""

import copy

import numpy as np
import pytest

from paropt_hpc.compress import TopK
from paropt_hpc.errors import ConfigError, DivergenceError
from paropt_hpc.train import MLP, SGD, AllReduce, Batch, Config, LossScale, train

pytestmark = pytest.mark.mpi

MODEL = MLP(12, [16, 9], 3)
N = MODEL.size


def gradient_of(rank, step=0, dtype="float32", n=N):
    return np.random.default_rng([rank, step]).standard_normal(n).astype(dtype)


def mean_of(comm, step=0, n=N):
    return np.mean([gradient_of(rank, step, "float64", n) for rank in range(comm.size)], axis=0)


def averaged(comm, gradient, **settings):
    """The mean gradient, as one step of AllReduce without an optimizer leaves it."""
    strategy, params = AllReduce(comm, **settings), np.zeros_like(gradient)
    strategy.start(params)
    strategy.step(params, gradient)
    assert strategy.updated
    assert not params.any()
    return gradient


def equal_on_all_ranks(comm, vector):
    copies = comm.allgather_bytes(vector.view(np.uint8))
    return all(np.array_equal(copy, copies[0]) for copy in copies)


@pytest.mark.parametrize("bucket_bytes", [1, 4 * 7, 4 * N - 1, 4 * N, 1 << 20])
@pytest.mark.parametrize("wire", ["full", "bfloat16"])
def test_buckets_give_the_mean(comm, bucket_bytes, wire):
    n = 40 if bucket_bytes == 1 else N
    gradient = gradient_of(comm.rank, n=n)
    found = averaged(comm, gradient, overlap=True, bucket_bytes=bucket_bytes, wire=wire)
    tolerance = 1e-6 if wire == "full" else 2**-7
    assert np.allclose(found, mean_of(comm, n=n), rtol=tolerance, atol=tolerance)
    assert equal_on_all_ranks(comm, found)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_a_model_hands_over_its_gradient_layer_by_layer(comm, accumulate):
    """The same parameters, whether parts are sent during the backward pass or all after it."""

    def trained(tells, **settings):
        strategy = AllReduce(
            comm, SGD(0.1, 0.9), accumulate=accumulate, weight_decay=0.01, **settings
        )
        params, gradient, parts = MODEL.init(0, "float64"), np.empty(N), []
        strategy.start(params)
        for step in range(7):
            generator = np.random.default_rng([comm.rank, step])
            batch = Batch(generator.standard_normal((5, 12)), generator.integers(0, 3, 5))
            ready = strategy.begin(params, gradient, (5, 5 * comm.size)) if tells else None
            parts.append(ready is not None)
            MODEL.loss_and_grad(params, batch, gradient, ready)
            strategy.step(params, gradient, (5, 5 * comm.size))
        strategy.finish(params)
        return params, parts

    whole, _ = trained(False, overlap=False)
    in_parts, parts = trained(True, overlap=True, bucket_bytes=8 * 50)
    closing = [(step + 1) % accumulate == 0 for step in range(7)]
    assert parts == (closing if comm.size > 1 else [False] * 7)
    assert np.allclose(in_parts, whole, rtol=1e-12)
    assert equal_on_all_ranks(comm, in_parts)


def test_parts_are_announced_from_the_last_to_the_first(comm):
    announced = []
    batch = Batch(np.ones((2, 12)), np.array([0, 2]))
    params = MODEL.init(0, "float64")
    gradient = np.full(N, np.nan)

    def ready(first):
        announced.append(first)
        assert np.isfinite(gradient[first:]).all()

    MODEL.loss_and_grad(params, batch, gradient, ready)
    assert announced == [layer.start for layer in MODEL.layers[::2]][::-1]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("wire", "bits"), [("float16", 11), ("bfloat16", 8)])
def test_sixteen_bits_round_each_gradient_and_the_mean_once(comm, wire, bits, dtype):
    gradient = gradient_of(comm.rank, dtype=dtype, n=70_001)  # more than a block
    mean = mean_of(comm, n=70_001)
    size = np.mean(
        [np.abs(gradient_of(rank, n=70_001)) for rank in range(comm.size)], axis=0, dtype=float
    )
    found = averaged(comm, gradient, wire=wire, loss_scale=LossScale(1024))
    assert found.dtype == dtype
    assert (np.abs(found - mean) <= (size + np.abs(mean)) * 2.0**-bits * 1.001).all()
    assert equal_on_all_ranks(comm, found)


@pytest.mark.mpi(min_size=2)
def test_half_the_bytes(comm):
    sent = []
    for wire in ("full", "float16"):
        strategy, params = AllReduce(comm, SGD(0.1), wire=wire), np.zeros(10_000, np.float32)
        strategy.start(params)
        before = comm.traffic.bytes_sent
        strategy.step(params, np.ones_like(params))
        sent.append(comm.traffic.bytes_sent - before)
    assert sent[1] * 2 == sent[0]


def test_the_loss_scale_keeps_small_gradients(comm):
    tiny = np.full(50, 3e-9, np.float32)
    kept = averaged(comm, tiny.copy(), wire="float16", loss_scale=LossScale(2.0**20))
    lost = averaged(comm, tiny.copy(), wire="float16", loss_scale=LossScale(1))
    assert np.allclose(kept, tiny, rtol=2e-3)
    assert not lost.any()


def test_overflow_on_one_rank_is_skipped_by_all_and_halves_the_scale(comm):
    strategy = AllReduce(comm, SGD(1.0), wire="float16", loss_scale=LossScale(4096, period=2))
    params = np.zeros(10, np.float32)
    strategy.start(params)
    large = 100.0 if comm.rank == comm.size - 1 else 1.0  # 100 * 4096 is beyond float16
    strategy.step(params, np.full(10, large, np.float32))
    assert not strategy.updated
    assert not params.any()
    assert strategy.metrics(params) == {"skipped_steps": 1, "loss_scale": 2048}
    for _ in range(2):
        strategy.step(params, np.ones(10, np.float32))
    assert np.allclose(params, -2)
    assert strategy.metrics(params) == {"skipped_steps": 1, "loss_scale": 4096}


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("way", ["dense", "buckets", "bfloat16", "topk", "accumulated"])
def test_a_bad_gradient_on_one_rank_is_skipped_by_all(comm, way, bad):
    settings = {
        "dense": {},
        "buckets": {"overlap": True, "bucket_bytes": 24},
        "bfloat16": {"wire": "bfloat16"},
        "topk": {"compressor": TopK(0.1, momentum=0.9)},
        "accumulated": {"accumulate": 2},
    }[way]
    strategy = AllReduce(comm, SGD(0.5), skip_nonfinite=True, **settings)
    params = np.ones(30, np.float32)
    strategy.start(params)
    for step in range(4):
        strategy.step(params, gradient_of(comm.rank, step, n=30))
    before, state = params.copy(), copy.deepcopy(strategy.state_dict())
    for step in range(2):
        gradient = gradient_of(comm.rank, step, n=30)
        if comm.rank == comm.size - 1 and step == 0:
            gradient[17] = bad
        if way == "accumulated" or step == 0:
            strategy.step(params, gradient)
    assert np.array_equal(params, before)
    assert (strategy.updated, strategy.skipped) == (False, 1)
    if way == "topk":
        after = strategy.state_dict()["compressor"]
        assert all(np.array_equal(after[key], state["compressor"][key]) for key in after)
    for step in range(2):
        strategy.step(params, gradient_of(comm.rank, step, n=30))
    assert strategy.updated
    assert np.isfinite(params).all()
    assert not np.array_equal(params, before)


def test_bad_gradients_without_end_are_an_error_on_every_rank(comm):
    strategy, params = AllReduce(comm, SGD(1.0), skip_nonfinite=True), np.zeros(3)
    strategy.start(params)
    for _ in range(99):
        strategy.step(params, np.full(3, np.nan))
    with pytest.raises(DivergenceError, match="100 steps in a row had NaN"):
        strategy.step(params, np.full(3, np.nan))
    assert strategy.skipped == 100


def test_the_mean_of_a_group_is_left_in_the_gradient(comm):
    strategy, params = AllReduce(comm, accumulate=2), np.zeros(N)
    strategy.start(params)
    done = []
    for step in range(3):
        gradient = gradient_of(comm.rank, step, "float64")
        strategy.step(params, gradient)
        done.append(strategy.updated)
        if step == 1:
            assert np.allclose(gradient, (mean_of(comm, 0) + mean_of(comm, 1)) / 2)
    assert done == [False, True, False]
    strategy.end_epoch(params, gradient)
    assert strategy.updated
    assert np.allclose(gradient, mean_of(comm, 2))


def test_a_step_takes_the_gradient_that_was_begun(comm):
    strategy, params = AllReduce(comm, SGD(0.1)), np.zeros(3)
    strategy.start(params)
    strategy.begin(params, np.ones(3))
    with pytest.raises(ConfigError, match="the gradient that begin"):
        strategy.step(params, np.ones(3))
    strategy.step(params, np.ones(3))
    assert np.allclose(params, -0.1)


def test_sixteen_bits_and_a_compressor_do_not_go_together(comm):
    with pytest.raises(ConfigError, match="with a compressor choose its values"):
        AllReduce(comm, SGD(0.1), TopK(0.1), wire="float16")
    with pytest.raises(ConfigError, match="wire must be full, float16 or bfloat16, got 'half'"):
        AllReduce(comm, SGD(0.1), wire="half")


@pytest.mark.parametrize(
    "strategy",
    [{"wire": "float16"}, {"wire": "bfloat16"}, {"overlap": True, "bucket_mb": 0.002}],
)
def test_runs_learn(comm, strategy):
    config = Config.model_validate(
        {
            "train": {"epochs": 6, "batch": 48, "lr": 0.05},
            "model": {"hidden": [32]},
            "strategy": strategy,
        }
    )
    summary = train(config, comm)
    assert summary.test_accuracy > 0.9


def test_a_run_goes_on_after_skipped_steps(comm, tmp_path):
    """The first scale is far too large: its overflow costs steps, not the run."""
    import json

    config = Config.model_validate(
        {
            "run": {"dir": str(tmp_path / "run")},
            "train": {"epochs": 6, "batch": 48, "lr": 0.05},
            "model": {"hidden": [32]},
            "strategy": {"wire": "float16", "loss_scale": 2.0**30},
        }
    )
    assert train(config, comm).test_accuracy > 0.9
    if comm.rank == 0:
        lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
        last = json.loads(lines[-1])
        assert last["skipped_steps"] > 5
        assert last["loss_scale"] == 2.0 ** (30 - last["skipped_steps"])
