"""Native ring and twin against a result that every rank computes alone, to the last bit."""

import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI

from paropt_hpc.comm import ring_allreduce
from paropt_hpc.comm.ring_allreduce import OPS, chunk_begin, ring_volume

pytestmark = pytest.mark.mpi

DTYPES = (np.float32, np.float64)
BACKENDS = ("native", "reference")
SPECIAL = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 1e-310])


def contribution(rank, n, dtype, seed=0):
    return np.random.default_rng([seed, rank]).standard_normal(n).astype(dtype)


def fold(op, own, received):
    if op in ("sum", "mean"):
        return received + own
    better = received < own if op == "min" else received > own
    return np.where(better | np.isnan(received), received, own)


def expected(parts, op):
    """Reduce the ranks' parts along the path that each chunk takes around the ring."""
    size, n = len(parts), parts[0].size
    result = np.empty_like(parts[0])
    for owner in range(size):
        chunk = slice(chunk_begin(n, size, owner), chunk_begin(n, size, owner + 1))
        total = parts[(owner + 1) % size][chunk]
        for hop in range(2, size + 1):
            total = fold(op, parts[(owner + hop) % size][chunk], total)
        result[chunk] = total / total.dtype.type(size) if op == "mean" else total
    return result


def edge_sizes(size, segment):
    around_segments = [size * segment * k + d for k in (1, 2) for d in (-1, 0, 1)]
    return sorted({0, 1, size - 1, size, size + 1, 37, size * segment * 3 // 2, *around_segments})


def faults_of(world, n, dtype, op, backend, **options):
    parts = [contribution(rank, n, dtype) for rank in range(world.size)]
    buffer = parts[world.rank].copy()
    sent = ring_allreduce(world, buffer, op, backend=backend, **options)
    faults = []
    if buffer.tobytes() != expected(parts, op).tobytes():
        faults.append(f"wrong result for n = {n}, {options}")
    if sent != ring_volume(n, buffer.itemsize, world.rank, world.size)[0]:
        faults.append(f"{sent} bytes sent for n = {n}, {options}")
    return faults


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_sizes_at_edges(world, everywhere, dtype, op, backend):
    segment_bytes = 64
    faults = []
    for n in edge_sizes(world.size, segment_bytes // np.dtype(dtype).itemsize):
        faults += faults_of(world, n, dtype, op, backend, segment_bytes=segment_bytes)
    everywhere(faults)


@pytest.mark.parametrize("backend", BACKENDS)
def test_default_segments(world, everywhere, backend):
    everywhere(faults_of(world, 1_200_003, np.float32, "mean", backend))


def test_many_segments(world, everywhere):
    # Long enough for the ranks to be interrupted and to run ahead of each other.
    everywhere(faults_of(world, 200_000, np.float32, "sum", "native", segment_bytes=64))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("max_count", [1, 3, 64])
def test_counts_above_the_limit(world, everywhere, max_count, backend):
    # The limit stands for 2**31 - 1: no message may have more elements, whatever segment_bytes is.
    faults = []
    for n in (1, 2 * max_count + 1, 5 * max_count * world.size + 1):
        faults += faults_of(world, n, np.float64, "sum", backend, max_count=max_count)
    everywhere(faults)


@given(
    n=st.integers(0, 300),
    segment_bytes=st.integers(1, 400),
    max_count=st.integers(1, 60),
    op=st.sampled_from(OPS),
    dtype=st.sampled_from(DTYPES),
)
def test_any_combination(n, segment_bytes, max_count, op, dtype):
    world, faults = MPI.COMM_WORLD, []
    for backend in BACKENDS:
        faults += faults_of(
            world, n, dtype, op, backend, segment_bytes=segment_bytes, max_count=max_count
        )
    found = world.allgather(faults)
    assert not any(found), found


@pytest.mark.parametrize("dtype", DTYPES)
def test_sum_is_near_the_exact_sum(world, everywhere, dtype):
    # The oracle above follows our own order; this one does not know it.
    parts = np.array([contribution(rank, 1001, dtype) for rank in range(world.size)])
    buffer = parts[world.rank].copy()
    ring_allreduce(world, buffer, "sum")
    near = np.allclose(buffer, parts.astype(np.longdouble).sum(axis=0), rtol=0, atol=1e-5)
    everywhere([] if near else ["the sum is off"])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_min_max_of_nan_infinity_and_signed_zero(world, everywhere, dtype, op, backend):
    n = 50 * SPECIAL.size
    parts = [
        np.random.default_rng([7, rank]).choice(SPECIAL, n).astype(dtype)
        for rank in range(world.size)
    ]
    buffer = parts[world.rank].copy()
    ring_allreduce(world, buffer, op, segment_bytes=100, backend=backend)
    faults = []
    if buffer.tobytes() != expected(parts, op).tobytes():
        faults.append("other bits than the rule gives")
    if not np.array_equal(np.isnan(buffer), np.isnan(parts).any(axis=0)):
        faults.append("a NaN was lost or made")
    everywhere(faults)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sum_of_nan_and_infinity(world, everywhere, backend):
    parts = [np.random.default_rng([8, rank]).choice(SPECIAL, 200) for rank in range(world.size)]
    buffer = parts[world.rank].copy()
    ring_allreduce(world, buffer, "sum", backend=backend)
    with np.errstate(invalid="ignore"):
        same = np.array_equal(buffer, expected(parts, "sum"), equal_nan=True)
    # Which NaN it is may depend on the order of two of them, but not on the rank.
    identical = world.allgather(buffer.tobytes()).count(buffer.tobytes()) == world.size
    everywhere([] if same and identical else ["wrong sum or other bits on another rank"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_views_and_shapes(world, everywhere, backend):
    total = sum(range(1, world.size + 1))
    base = np.full(1000, float(world.rank + 1), dtype=np.float32)
    shifted, square, point = base[1:98], base[100:200].reshape(10, 10), base[300:301].reshape(())
    for view in (shifted, square, point):
        ring_allreduce(world, view, "sum", backend=backend)
    want = np.full(1000, float(world.rank + 1), dtype=np.float32)
    for piece in (slice(1, 98), slice(100, 200), slice(300, 301)):
        want[piece] = total
    everywhere([] if np.array_equal(base, want) else ["a view was copied or its neighbours hit"])


def read_only(n):
    array = np.zeros(n, dtype=np.float32)
    array.flags.writeable = False
    return array


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("buffer", "error", "text"),
    [
        ([1.0, 2.0], TypeError, "numpy.ndarray, got list"),
        (np.zeros(4, dtype=np.int16), TypeError, "int32 or int64, got int16"),
        (np.zeros(4, dtype=">f4"), TypeError, "int32 or int64, got >f4"),
        (np.zeros(8, dtype=np.float32)[::2], ValueError, "contiguous"),
        (np.zeros((4, 4)).T[:2], ValueError, "contiguous"),
        (read_only(4), ValueError, "read-only"),
        (np.zeros(17, dtype=np.uint8)[1:].view(np.float32), ValueError, "aligned"),
    ],
)
def test_bad_buffer_is_refused_before_any_message(world, buffer, error, text, backend):
    with pytest.raises(error, match=text):
        ring_allreduce(world, buffer, backend=backend)
    assert_still_works(world)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"op": "product"}, "op must be one of"),
        ({"segment_bytes": 0}, "segment_bytes must be at least 1, got 0"),
        ({"max_count": 0}, r"max_count must be in \[1, 2147483647\], got 0"),
        ({"max_count": 2**31}, "max_count must be in"),
    ],
)
def test_bad_option_is_refused_before_any_message(world, options, text, backend):
    with pytest.raises(ValueError, match=text):
        ring_allreduce(world, np.zeros(4), backend=backend, **options)
    assert_still_works(world)


def test_null_communicator_is_refused():
    with pytest.raises(ValueError, match="intra-communicator"):
        ring_allreduce(MPI.COMM_NULL, np.zeros(4))


def assert_still_works(world):
    buffer = np.ones(5)
    ring_allreduce(world, buffer, "sum")
    assert np.array_equal(buffer, np.full(5, float(world.size)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_on_derived_communicators(world, everywhere, backend):
    # Handles of duplicates look unlike those of COMM_WORLD: negative ints in MPICH, for one.
    reverse = world.Split(0, key=-world.rank)
    half = world.Split(world.rank % 2, key=world.rank)
    faults = []
    for comm in (reverse, half, reverse.Dup()):
        faults += faults_of(comm, 41, np.float32, "mean", backend, segment_bytes=16)
        comm.Free()
    everywhere(faults)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("backend", BACKENDS)
def test_neighbour_with_another_size_is_found(world, backend):
    if world.size != 2:
        pytest.skip("with more ranks those that agree would wait for the others")
    comm = world.Dup()
    with pytest.raises(RuntimeError, match=r"were expected|truncated|TRUNCATE"):
        ring_allreduce(comm, np.zeros(8 if world.rank else 16), backend=backend)


@pytest.mark.mpi(min_size=2)
def test_two_segments_are_on_their_way(world, everywhere):
    """Rank 1 plays the neighbour, and takes nothing before it has seen how far rank 0 goes.

    A synchronous send ends when its receive has been posted. While rank 0 waits for the end of
    its first send, it has taken two segments and asks for two more; one that sends and receives
    them one by one would have asked for two in all. The two on their way lie in memory of their
    own: both have arrived before either is added, so that in one place the later would be added
    twice.
    """
    segments, length = 6, 500_000  # 2 MB: a send that waits for its receiver
    numbers = np.arange(1, segments + 1, dtype=np.float32)[:, None]
    comm = world.Split(0 if world.rank < 2 else MPI.UNDEFINED, world.rank)
    faults = []
    if world.rank == 0:
        buffer = np.zeros(2 * segments * length, dtype=np.float32)
        ring_allreduce(comm, buffer, "sum", segment_bytes=4 * length, backend="native")
        own, other = buffer.reshape(2, segments, length)
        if (own != numbers).any() or (other != 1).any():
            faults.append("wrong sum")
    elif world.rank == 1:
        rows = np.broadcast_to(numbers, (segments, length)).copy()
        sends = [comm.Issend(row, 0, 7301) for row in rows]
        deadline = time.monotonic() + 20
        while not all([send.Test() for send in sends[:4]]) and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.05)
        posted = sum(send.Test() for send in sends)
        if posted != 4:
            faults.append(f"{posted} receives were posted")
        received = np.empty_like(rows)
        for row in received:
            comm.Recv(row, 0, 7301)
        MPI.Request.Waitall(sends)
        sums = [comm.Isend(row, 0, 7301) for row in received + 1]
        for row in received:
            comm.Recv(row, 0, 7301)
        MPI.Request.Waitall(sums)
    if comm != MPI.COMM_NULL:
        comm.Free()
    everywhere(faults)


@pytest.mark.mpi(min_size=2)
def test_other_threads_run_while_it_waits(world, everywhere):
    ticked = []
    ticker = threading.Timer(0.05, lambda: ticked.append(time.monotonic()))
    world.Barrier()
    if world.rank == 0:
        time.sleep(0.5)
        late = ring_allreduce(world, np.zeros(10), backend="native")
        everywhere([] if late else ["nothing sent"])
        return
    ticker.start()
    start = time.monotonic()
    ring_allreduce(world, np.zeros(10), backend="native")
    ticker.join()
    everywhere([] if ticked[0] < start + 0.3 else ["the GIL was held while waiting for rank 0"])
