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
