"""Which scheme, and which ranges: the arithmetic without messages."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paropt_hpc.comm.sparse_ranges import (
    Load,
    Work,
    choose_scheme,
    expected_union,
    range_bounds,
    sample_count,
    sample_positions,
)
from paropt_hpc.comm.tuning import CostModel, Link, Shape


def bounds_of(n, lists):
    counts = np.array([len(indices) for indices in lists])
    s = sample_count(counts)
    samples = np.zeros((len(lists), s), np.uint64)
    for row, indices in zip(samples, lists, strict=True):
        if len(indices):
            row[:] = np.sort(indices)[sample_positions(len(indices), s)]
    return range_bounds(n, samples, counts)


def loads(bounds, lists):
    everything = np.sort(np.concatenate(lists))
    return np.diff(np.searchsorted(everything, bounds[1:-1]), prepend=0, append=everything.size)


@pytest.mark.parametrize("ranks", [2, 3, 4, 8, 16, 64])
@pytest.mark.parametrize("kind", ["even", "one layer", "heavy tail", "each its own"])
def test_ranges_are_balanced(ranks, kind):
    n, k = 10_000_000, 10_000
    rng = np.random.default_rng(ranks)
    lists = []
    for rank in range(ranks):
        if kind == "even":
            drawn = rng.integers(0, n, 2 * k)
        elif kind == "one layer":
            drawn = np.r_[rng.integers(n // 2, n // 2 + 50_000, 2 * k), rng.integers(0, n, k // 5)]
        elif kind == "heavy tail":
            drawn = (n * rng.random(2 * k) ** 8).astype(np.int64)
        else:
            drawn = rank * n // ranks + rng.integers(0, 60_000, 2 * k)
        lists.append(rng.permutation(np.unique(drawn))[:k])
    counted = loads(bounds_of(n, lists), lists)
    assert counted.max() / counted.mean() <= 1.1


@given(
    st.integers(0, 1000),
    st.lists(st.lists(st.integers(0, 999), max_size=40, unique=True), min_size=1, max_size=9),
)
def test_bounds_are_in_order_whatever_the_entries(n, lists):
    lists = [[index for index in indices if index < n] for indices in lists]
    bounds = bounds_of(n, lists)
    assert bounds.dtype == np.int64
    assert (bounds[0], bounds[-1]) == (0, n)
    assert len(bounds) == len(lists) + 1
    assert (np.diff(bounds) >= 0).all()


def test_a_rank_counts_by_its_entries():
    # Nearly everything is rank 0's, which has it at the front.
    lists = [np.arange(9000), np.arange(90_000, 90_010), np.arange(95_000, 95_010)]
    counted = loads(bounds_of(100_000, lists), lists)
    assert counted.max() / counted.mean() <= 1.1


def test_ranges_beyond_32_bits():
    lists = [np.arange(2**39, 2**39 + 1000), np.arange(2**39 + 500, 2**39 + 1500)]
    bounds = bounds_of(2**40, lists)
    assert abs(bounds[1] - (2**39 + 750)) <= 50


def test_equal_widths_where_nothing_is_known():
    assert bounds_of(8, [[], [], [], []]).tolist() == [0, 2, 4, 6, 8]


FAST = Link(2e-6, 12.5e9)
SLOW = Link(2e-5, 1e8 / 8)
FREE = Work(0, 0)  # where the network alone counts


def scheme(n, k, ranks, link=SLOW, union=None, entry=5, work=FREE):
    counts = np.full(ranks, k)
    union = expected_union(n, counts) if union is None else union
    model = CostModel(link_latency=link.latency, link_bandwidth=link.bandwidth)
    shape = Shape(ranks, ranks, 1, 1, shares_memory=False)
    dense = model.seconds(model.choose(4 * n, shape), 4 * n, shape)
    return choose_scheme(Load(counts, counts * entry, union), link, dense, work)


def test_scheme_of_long_messages_is_that_of_the_fewest_bytes():
    assert scheme(10**7, 10**5, 2) == "allgather"
    # The indices of all ranks are the same: a split sends 1.9 k instead of 15 k.
    assert scheme(10**7, 10**5, 16, union=10**5) == "split"
    # Dense sends 8/P bytes for every element, the all-gather 5 for every entry: at P = 2 they
    # meet at a density of 4/5.
    assert scheme(10**6, 799_000, 2) == "allgather"
    assert scheme(10**6, 801_000, 2) == "dense"
    # Where the union fills the vector, a split still saves the first half of a dense ring.
    assert scheme(10**6, 10**5, 64) == "split"
    assert scheme(10**6, 9 * 10**5, 64) == "dense"


def test_scheme_of_short_messages_is_that_of_the_fewest_rounds():
    # A split saves 13 us of 15 at 12.5 GB/s, and takes 20 messages more.
    assert scheme(10**7, 3000, 16, FAST, union=3000) == "allgather"
    assert scheme(10**7, 3000, 16, SLOW, union=3000) == "split"
    # A dense vector of a kilobyte goes round in as many rounds, and a sparse one is shorter.
    assert scheme(256, 2, 16, FAST) == "allgather"
    assert scheme(0, 0, 4) in ("allgather", "dense")


def test_where_the_network_is_fast_the_entries_cost_more_than_their_bytes():
    # 64 ranks send 32 MB, 3 ms, but every rank has to add up 6.4 million entries; a dense ring of
    # 40 MB takes 6.5 ms, in which there is one message to decode.
    assert scheme(10**7, 10**5, 64, FAST) != "dense"
    assert scheme(10**7, 10**5, 64, FAST, work=Work()) == "dense"
    assert scheme(10**7, 10**5, 2, FAST, work=Work()) == "allgather"
    assert scheme(10**7, 10**5, 64, SLOW, work=Work()) == scheme(10**7, 10**5, 64, SLOW)
    # Where the ranks agree on the indices, a split adds each of them up once.
    assert scheme(10**7, 10**5, 64, FAST, union=10**5, work=Work()) == "split"


@pytest.mark.parametrize("work", [FREE, Work(3e-7, 5e-7)])
@pytest.mark.parametrize("scheme_", ["allgather", "split"])
@pytest.mark.parametrize(("m", "rounds"), [(40_000, 3), (400_000, 7)])
def test_predicted_seconds(scheme_, m, rounds, work):
    """Between a dense time just below and just above what the table of the module says."""
    a, b, ranks, k = 1e-3, 1e6, 8, m // 8  # eight bytes an entry
    v = 2 * k if scheme_ == "split" else 10**9
    c, d = work.code, work.code + work.add
    if scheme_ == "allgather":
        seconds = rounds * a + 7 * m / b + 8 * k * d
    else:
        seconds = (7 + 6 + rounds) * a + 7 / 8 * (m + 8 * v) / b
        seconds += 2 * k * c + k * d + v * (c / 8 + d)
    load, link = Load(np.full(ranks, k), np.full(ranks, m), v), Link(a, b)
    assert choose_scheme(load, link, 1.001 * seconds - k * d, work) == scheme_
    assert choose_scheme(load, link, 0.999 * seconds - k * d, work) == "dense"


def test_union_of_independent_choices():
    assert expected_union(1000, np.array([100, 100])) == pytest.approx(190)
    assert expected_union(1000, np.array([1000, 5])) == pytest.approx(1000)
    assert expected_union(0, np.array([0, 0])) == 0


def test_samples_do_not_outweigh_a_short_message():
    assert sample_count(np.array([0, 0])) == 0
    assert sample_count(np.array([0, 1, 0])) == 1
    assert sample_count(np.full(16, 1000)) == 62
    assert sample_count(np.full(4, 10**6)) == 96
    assert sample_count(np.full(1000, 10**6)) == 1024
