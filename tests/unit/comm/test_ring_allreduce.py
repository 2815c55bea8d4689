"""The schedule of the ring, walked for all ranks at once in one process, without MPI."""

from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paropt_hpc.comm.ring_allreduce import (
    MAX_COUNT,
    chunk_begin,
    ring_volume,
    schedule,
    segment_length,
    workspace_length,
)

sizes = st.integers(1, 9)
lengths = st.integers(0, 60)


@given(n=lengths, size=sizes)
def test_chunks_cover_the_buffer_evenly(n, size):
    begins = [chunk_begin(n, size, chunk) for chunk in range(size + 1)]
    extents = np.diff(begins)
    assert (begins[0], begins[-1]) == (0, n)
    assert extents.max() - extents.min() <= 1
    assert extents[0] == extents.max()


def walk_together(buffers, segment, lag, combine):
    """Move the items of one phase between simulated ranks; return the elements each has sent."""
    size, n = len(buffers), buffers[0].size
    plans = [list(schedule(n, rank, size, segment, lag)) for rank in range(size)]
    assert len({len(plan) for plan in plans}) == 1
    sent = [0] * size
    for items in zip(*plans, strict=True):
        wires = deque()
        for rank, item in enumerate(items):
            wires.append(buffers[rank][item.outgoing].copy())
            sent[rank] += wires[-1].size
        wires.rotate(1)  # what rank r receives is what its left neighbour has sent
        for rank, (item, message) in enumerate(zip(items, wires, strict=True)):
            place = buffers[rank][item.incoming]
            assert place.size == message.size <= segment
            place[:] = combine(place, message)
    return sent


@given(n=lengths, size=sizes, segment=st.integers(1, 20))
def test_both_phases_sum_on_every_rank(n, size, segment):
    buffers = [np.arange(n) * (rank + 1) for rank in range(size)]
    sent = walk_together(buffers, segment, 1, np.add)
    for owner, buffer in enumerate(buffers):
        own = slice(chunk_begin(n, size, owner), chunk_begin(n, size, owner + 1))
        assert np.array_equal(buffer[own], np.arange(n)[own] * size * (size + 1) // 2)
    gathered = walk_together(buffers, segment, 0, lambda old, new: new)
    for rank, buffer in enumerate(buffers):
        assert np.array_equal(buffer, np.arange(n) * size * (size + 1) // 2)
        assert (sent[rank] + gathered[rank]) * 8 == ring_volume(n, 8, rank, size)[0]


@given(n=lengths, size=sizes)
def test_volume_is_the_lower_bound(n, size):
    volumes = [ring_volume(n, 4, rank, size) for rank in range(size)]
    total = 2 * (size - 1) * n * 4
    assert [sum(column) for column in zip(*volumes, strict=True)] == [total, total]
    for rank in range(size):
        assert volumes[rank][0] == volumes[(rank + 1) % size][1]


def test_last_step_is_marked():
    marks = [item.last_step for item in schedule(12, 0, 4, 2, 1)]
    assert marks == [False, False, False, False, True, True]


@pytest.mark.parametrize(
    ("itemsize", "segment_bytes", "max_count", "segment"),
    [(4, 4096, MAX_COUNT, 1024), (8, 4097, MAX_COUNT, 512), (8, 1, 5, 1), (4, 2**40, 7, 7)],
)
def test_segment_length(itemsize, segment_bytes, max_count, segment):
    assert segment_length(itemsize, segment_bytes, max_count) == segment


def test_workspace_never_exceeds_two_chunks():
    assert workspace_length(10, 1, 4) == 0
    assert workspace_length(10, 4, 1000) == 2 * 3
    assert workspace_length(10**6, 4, 1000) == 2 * 1000
