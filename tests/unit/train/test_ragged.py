"""Samples of varying length: padding, buckets, and the batches drawn from them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paropt_hpc.errors import ConfigError, DataError
from paropt_hpc.train import Batch, BucketSampler, Config, Ragged, bucket_edges, load_dataset
from paropt_hpc.train.build import build_model


def ragged(lengths, edges=None, seed=0):
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    values = np.random.default_rng(seed).integers(1, 9, offsets[-1])
    return Ragged(values, offsets, edges)


LENGTHS = st.lists(st.integers(0, 40), min_size=1, max_size=60)


@given(LENGTHS, st.integers(1, 6))
def test_rows_are_the_samples_and_zeros_up_to_an_edge(lengths, buckets):
    x = ragged(lengths, bucket_edges(np.array(lengths), buckets))
    for row, length in enumerate(lengths):
        padded = x[np.array([row])]
        assert padded.shape[1] in x.edges
        begin = sum(lengths[:row])
        np.testing.assert_array_equal(padded[0, :length], x.values[begin : begin + length])
        assert not padded[0, length:].any()
    np.testing.assert_array_equal(x[:].shape, (len(lengths), max(lengths)))


def test_what_is_longer_than_every_edge_keeps_its_length():
    assert ragged([3, 9], np.array([4]))[np.array([0, 1])].shape == (2, 9)


@given(LENGTHS, st.integers(1, 6))
def test_edges_ascend_and_end_at_the_largest_length(lengths, buckets):
    edges = bucket_edges(np.array(lengths), buckets)
    assert edges.size <= buckets
    assert (np.diff(edges) > 0).all()
    assert edges[-1] == max(lengths)


@given(st.lists(st.integers(0, 30), min_size=3, max_size=80), st.integers(1, 3), st.integers(1, 5))
def test_every_sample_comes_once_an_epoch_on_any_number_of_ranks(lengths, size, per_rank):
    x = ragged(lengths, bucket_edges(np.array(lengths), 4))
    samplers = [BucketSampler(x, per_rank * size, rank, size, 0) for rank in range(size)]
    shards = [list(sampler.epoch(1)) for sampler in samplers]
    assert len({len(each) for each in shards}) == 1
    seen = np.concatenate([shard.indices for each in shards for shard in each])
    np.testing.assert_array_equal(np.sort(seen), np.arange(len(lengths)))
    sizes = [shard.batch for shard in shards[0]]
    assert all(count == per_rank * size for count in sizes[:-1])


def test_whole_batches_come_from_one_bucket_in_an_order_of_their_own():
    lengths = np.repeat([5, 10, 20], 40)
    x = ragged(lengths, bucket_edges(lengths, 3))
    sampler = BucketSampler(x, 8, 0, 1, 0)
    epochs = [[set(lengths[s.indices]) for s in sampler.epoch(e)] for e in (0, 1)]
    assert all(len(batch) == 1 for batch in epochs[0])
    assert epochs[0] != epochs[1]
    assert sampler.padding(0) == 0.0


def test_padding_is_what_the_rows_show():
    lengths = np.random.default_rng(3).integers(1, 50, 203)
    for size in (1, 3):
        x = ragged(lengths, bucket_edges(lengths, 5))
        shards = [s for rank in range(size) for s in BucketSampler(x, 12, rank, size, 0).epoch(4)]
        entries = sum(x[shard.indices].size for shard in shards)
        assert BucketSampler(x, 12, 0, size, 0).padding(4) == pytest.approx(
            1 - lengths.sum() / entries
        )
    whole = BucketSampler(ragged(lengths), 12, 0, 1, 0)
    assert BucketSampler(x, 12, 0, 1, 0).padding(0) < whole.padding(0) / 2


@pytest.mark.parametrize(
    ("values", "offsets", "said"),
    [
        ([1, 0], [0, 2], "tokens must be whole numbers from 1"),
        ([1.5], [0, 1], "tokens must be whole numbers from 1"),
        ([1, 2], [0, 1], "offsets must ascend from 0 to the number of tokens, 2"),
        ([1, 2], [0, 2, 1, 2], "offsets must ascend"),
        ([1, 2], [], "offsets must ascend"),
    ],
)
def test_damaged_data_is_refused(values, offsets, said):
    with pytest.raises(DataError, match=said):
        Ragged(np.array(values), np.array(offsets, np.int64))


def test_a_configuration_reads_and_buckets_them(tmp_path):
    x = ragged(np.arange(1, 101) % 17)
    offsets = np.concatenate([[0], np.cumsum(x.lengths)])
    np.savez(tmp_path / "text.npz", values=x.values, offsets=offsets, y=np.arange(100) % 2)
    data = {"format": "npz", "train": str(tmp_path / "text.npz"), "buckets": 4}
    config = Config(data=data, model={"name": "embedding-bag", "embedding": 5})
    dataset = load_dataset(config.data, 0, "float32")
    assert len(dataset.train.x.edges) == 4
    assert dataset.features == 8
    model = build_model(config, dataset)
    batch = Batch(dataset.test.x[:], dataset.test.y)
    loss, gradient = model.loss_and_grad(model.init(0, "float32"), batch)
    assert np.isfinite(loss)
    assert gradient.shape == (model.size,)
    with pytest.raises(ConfigError, match="'mlp' does not fit samples of varying length"):
        build_model(Config(data=data), dataset)
