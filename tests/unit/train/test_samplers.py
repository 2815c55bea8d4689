import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paropt_hpc.errors import ConfigError
from paropt_hpc.train import ShardedSampler


def epoch_of(n, batch, size, number=0, seed=0):
    """All ranks' shards of one epoch: a list of steps, each a list of shards."""
    ranks = [list(ShardedSampler(n, batch, r, size, seed).epoch(number)) for r in range(size)]
    return list(zip(*ranks, strict=True))


@given(n=st.integers(4, 200), per_rank=st.integers(1, 9), size=st.integers(1, 4))
def test_every_sample_counts_once_and_all_ranks_take_the_same_steps(n, per_rank, size):
    steps = epoch_of(n, per_rank * size, size)
    assert len(steps) == -(-n // (per_rank * size))
    drawn = np.concatenate([shard.indices for step in steps for shard in step])
    assert sorted(drawn) == list(range(n))
    for step in steps:
        lengths = [len(shard.indices) for shard in step]
        assert {shard.batch for shard in step} == {sum(lengths)}
        assert max(lengths) - min(lengths) <= 1


@given(n=st.integers(12, 100), size=st.integers(2, 4))
def test_a_global_batch_is_the_same_for_any_number_of_ranks(n, size):
    alone = epoch_of(n, 12, 1, number=3)
    together = epoch_of(n, 12, size, number=3)
    for (one,), many in zip(alone, together, strict=True):
        assert np.array_equal(one.indices, np.concatenate([shard.indices for shard in many]))


def test_epochs_and_seeds_differ():
    orders = {
        tuple(np.concatenate([s.indices for (s,) in epoch_of(50, 10, 1, number, seed)]))
        for number in range(3)
        for seed in range(2)
    }
    assert len(orders) == 6


def test_a_batch_that_the_ranks_do_not_divide_names_the_next_values():
    with pytest.raises(ConfigError, match="not a multiple of 3 ranks; use 99 or 102"):
        ShardedSampler(1000, 100, 0, 3, 0)
    with pytest.raises(ConfigError, match="use 4"):
        ShardedSampler(1000, 2, 0, 4, 0)


def test_fewer_samples_than_ranks():
    with pytest.raises(ConfigError, match="3 samples are fewer than 4 ranks"):
        ShardedSampler(3, 4, 0, 4, 0)


@pytest.mark.parametrize(
    ("n", "batch", "size"), [(100, 24, 3), (97, 24, 4), (96, 24, 2), (5, 6, 3)]
)
def test_tasks_are_the_shards_of_all_ranks_but_the_empty_ones(n, batch, size):
    samplers = [ShardedSampler(n, batch, rank, size, seed=3) for rank in range(size)]
    steps = samplers[0].steps_per_epoch
    tasks = samplers[0].tasks(0, steps)
    parts = [samplers[0].part(2, task) for task in tasks]
    assert all(part.indices.size for part in parts)
    epochs = [list(sampler.epoch(2)) for sampler in samplers]
    shards = [shards[at] for at in range(steps) for shards in epochs]
    whole = [shard for shard in shards if shard.indices.size]
    assert len(parts) == len(whole)
    for part, shard in zip(parts, whole, strict=True):
        assert np.array_equal(part.indices, shard.indices)
        assert part.batch == shard.batch


def test_tasks_of_a_part_of_an_epoch():
    sampler = ShardedSampler(100, 24, 0, 3, seed=0)
    assert sampler.tasks(1, 3) == range(3, 9)
    assert sampler.tasks(4, 5) == range(12, 15)  # four samples for three ranks
    assert len(sampler.tasks(5, 5)) == 0
