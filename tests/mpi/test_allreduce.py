"""Every algorithm, type and size against a result that every rank computes alone."""

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

from paropt_hpc.comm import Communicator, native
from paropt_hpc.comm.buffers import DTYPES
from paropt_hpc.comm.ring_allreduce import OPS
from paropt_hpc.errors import CollectiveMismatch, ConfigError

pytestmark = pytest.mark.mpi

FLOATS = DTYPES[:4]
SPECIAL = [np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 6e-8]
# How a communicator is made, and the algorithm: a hierarchy needs nodes, which node_size makes.
WAYS = {
    "mpi": ({}, "mpi"),
    "ring": ({}, "ring"),
    "recursive_doubling": ({}, "recursive_doubling"),
    "shared": ({}, "shared"),
    "hierarchical, one node": ({}, "hierarchical"),
    "hierarchical, nodes of 1": ({"node_size": 1}, "hierarchical"),
    "hierarchical, nodes of 2": ({"node_size": 2}, "hierarchical"),
    "hierarchical, nodes of 3, 2 leaders": ({"node_size": 3, "leaders": 2}, "hierarchical"),
    "auto": ({}, "auto"),
}
LIMIT = 8_000_000  # bytes of segments that a rank may take
OURS = [way for way in WAYS if way != "mpi"]


def part(rank, n, dtype, seed=0):
    values = np.random.default_rng([seed, n, rank]).integers(-40, 41, n)
    return values.astype(dtype) if dtype.kind == "i" else (values / 8).astype(dtype)


def expected(parts, op):
    """The values are small multiples of 1/8: their sums are exact in every order."""
    wide = np.stack(parts).astype(np.float64 if parts[0].dtype.kind != "i" else np.int64)
    result = {"sum": np.sum, "mean": np.mean, "min": np.min, "max": np.max}[op](wide, axis=0)
    return result.astype(np.float32).astype(parts[0].dtype) if wide.dtype.kind == "f" else result


def faults_of(comm, buffers, op, algorithm, out=False):
    parts, own = buffers, buffers[comm.rank].copy()
    result = np.empty_like(own) if out else own
    comm.allreduce(own, op, algorithm, result if out else None)
    want = expected(parts, op).astype(own.dtype)
    wrong = np.flatnonzero(result != want)
    faults = [f"{op} of {own.size} {own.dtype}: {wrong.size} wrong"] if wrong.size else []
    if out and own.tobytes() != parts[comm.rank].tobytes():
        faults.append("the input was overwritten")
    return faults


def sizes(comm):
    return sorted({0, 1, comm.size - 1, comm.size + 1, 7, 8, 9, 1000, 8191, 8192, 30_011})


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_types_sizes_and_operations(world, everywhere, way, dtype):
    options, algorithm = WAYS[way]
    faults = []
    with Communicator(world, **options, check=False) as comm:
        for n in sizes(comm):
            parts = [part(rank, n, dtype) for rank in range(comm.size)]
            for op in OPS:
                if op == "mean" and (dtype.kind == "i" or comm.size == 3):
                    continue  # thirds are not exact; test_mean_of_three_ranks has them
                faults += faults_of(comm, parts, op, algorithm, out=n % 2 == 1)
    everywhere(faults)


@pytest.mark.parametrize("way", WAYS)
def test_mean_of_three_ranks(world, everywhere, way):
    options, algorithm = WAYS[way]
    parts = [part(rank, 777, np.dtype(np.float64)) for rank in range(world.size)]
    own = parts[world.rank].copy()
    with Communicator(world, **options) as comm:
        comm.allreduce(own, "mean", algorithm)
    near = np.allclose(own, np.mean(parts, axis=0), rtol=1e-14, atol=0)
    everywhere([] if near else ["the mean is off"])


@pytest.mark.parametrize("n", [300_001, 2_000_003])
@pytest.mark.parametrize("way", WAYS)
def test_many_rounds(world, everywhere, way, n):
    options, algorithm = WAYS[way]
    parts = [part(rank, n, np.dtype(np.float32)) for rank in range(world.size)]
    with Communicator(world, **options) as comm:
        faults = [f for op in ("sum", "max") for f in faults_of(comm, parts, op, algorithm)]
    everywhere(faults)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("algorithm", ["auto", "shared"])
def test_around_the_longest_flat_vector(world, everywhere, algorithm, dtype):
    faults = []
    with Communicator(world, check=False) as comm:
        flat = comm._transport.lane.native.flat_bytes() // dtype.itemsize
        # The slots of both ways are the same memory: they must not meet when ways alternate.
        for n in (flat, flat + 1, flat, 3 * flat, 5, flat - 1, flat + 1):
            parts = [part(rank, n, dtype) for rank in range(comm.size)]
            faults += faults_of(comm, parts, "sum", algorithm)
    everywhere(faults)


@pytest.mark.mpi(min_size=2)
def test_ranks_bound_to_one_core_share_it(world, everywhere):
    """Also where a launcher has bound every rank to one: it may be the same for several."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    try:
        with Communicator(world, check=False) as comm:
            flat = comm._transport.lane.native.flat_bytes()  # all that a record carries
    finally:
        os.sched_setaffinity(0, before)
    everywhere([] if flat == 256 * 1024 else [f"{flat} bytes at most are reduced flat"])


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("n", [5, 1000, 300_000])
def test_after_a_mismatch_the_shared_memory_is_as_before(world, everywhere, n):
    # Some ranks have staged a round when the others are found to want something else.
    faults = []
    with Communicator(world, check=False) as comm:
        for turn in range(3):
            wrong = np.ones(n if comm.rank == turn % comm.size else 400_000, dtype=np.float32)
            with pytest.raises(CollectiveMismatch, match="the ranks disagree"):
                comm.allreduce(wrong, "sum")
            if (wrong != 1).any():
                faults.append("a buffer was written")
            for length in (7, 200_000, 3000):
                parts = [part(rank, length, np.dtype(np.float32)) for rank in range(comm.size)]
                faults += faults_of(comm, parts, "sum", "auto")
    everywhere(faults)


@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_instruction_sets_agree(world, everywhere, isa, dtype):
    if world.size == 1:
        pytest.skip("one rank reduces nothing")
    module, faults = native.load(), []
    before = module.isa()
    try:
        module.set_isa(isa)
    except ValueError:
        pytest.skip(f"this processor has no {isa}")
    with Communicator(world) as comm:
        for n in (9, 1000, 200_001):
            parts = [part(rank, n, dtype) for rank in range(comm.size)]
            faults += [f for op in ("sum", "min") for f in faults_of(comm, parts, op, "shared")]
    module.set_isa(before)
    everywhere(faults)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("way", OURS)
def test_same_bits_on_all_ranks_and_in_every_run(world, everywhere, way, dtype):
    options, algorithm = WAYS[way]
    digests = []
    with Communicator(world, **options) as comm:
        for n in (5, 1000, 100_000):
            rng = np.random.default_rng([n, world.rank])
            values = (rng.standard_normal(n) * 10.0 ** rng.integers(-3, 4, n)).astype(dtype)
            for _ in range(2):
                own = values.copy()
                comm.allreduce(own, "sum", algorithm)
                digests.append(own.tobytes())
    faults = ["other bits in a second run"] if digests[::2] != digests[1::2] else []
    if any(other != digests for other in world.allgather(digests)):
        faults.append("other bits on another rank")
    everywhere(faults)


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("way", OURS)
def test_a_nan_anywhere_gives_nan(world, everywhere, way, dtype, op):
    options, algorithm = WAYS[way]
    parts = [
        np.random.default_rng([7, rank]).choice(SPECIAL, 500).astype(dtype)
        for rank in range(world.size)
    ]
    own = parts[world.rank].copy()
    with Communicator(world, **options) as comm:
        comm.allreduce(own, op, algorithm)
    wide = np.stack(parts).astype(np.float64)
    want = (np.min if op == "min" else np.max)(wide, axis=0)
    same = np.array_equal(own.astype(np.float64), want, equal_nan=True)
    everywhere([] if same else ["a NaN was lost or made, or a value is wrong"])


@pytest.mark.parametrize("dtype", [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)], ids=str)
@pytest.mark.parametrize("way", WAYS)
def test_sixteen_bits_are_summed_in_thirty_two(world, everywhere, way, dtype):
    options, algorithm = WAYS[way]
    n = 150_000  # more than is widened at a time
    parts = [
        np.random.default_rng([5, rank]).standard_normal(n).astype(dtype)
        for rank in range(world.size)
    ]
    own = parts[world.rank].copy()
    with Communicator(world, **options) as comm:
        comm.allreduce(own, "sum", algorithm)
    # One rounding of a float32 sum, whose own error is far below half a place of 16 bits.
    exact = np.sum([p.astype(np.float64) for p in parts], axis=0)
    rounded = exact.astype(dtype).astype(np.float64)
    off = (own.astype(np.float64) != rounded).mean()
    everywhere([] if off < 1e-3 else [f"{off:.2%} were rounded more than once"])


@pytest.mark.parametrize("way", WAYS)
def test_mean_of_large_halves_does_not_overflow(world, everywhere, way):
    options, algorithm = WAYS[way]
    own = np.full(1001, 60000, dtype=np.float16)
    with Communicator(world, **options) as comm:
        comm.allreduce(own, "mean", algorithm)
        everywhere([] if (own == 60000).all() else [f"got {own[0]}"])
        comm.allreduce(own, "sum", algorithm)
    over = np.isinf(own).all() if world.size > 1 else (own == 60000).all()
    everywhere([] if over else [f"a sum beyond 65504 gave {own[0]}"])


@pytest.mark.parametrize("way", WAYS)
def test_counts_above_the_limit(world, everywhere, way):
    # The limit stands for 2**31 - 1: no message may have more elements.
    options, algorithm = WAYS[way]
    faults = []
    with Communicator(world, **options, max_count=7, segment_bytes=1024) as comm:
        for n in (1, 6, 7, 8, 100, 1000):
            parts = [part(rank, n, np.dtype(np.float64)) for rank in range(comm.size)]
            faults += faults_of(comm, parts, "sum", algorithm)
    everywhere(faults)


# ---- buffers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("op", ["sum", "max"])
def test_shared_memory_buffers(world, everywhere, op, dtype):
    faults = []
    with Communicator(world) as comm:
        for n in (0, 1, 7, 1000, 70_001, 300_000):
            source, target = comm.empty(n, dtype), comm.empty(n, dtype)
            if source.any() or source.dtype != dtype or source.shape != (n,):
                faults.append(f"{n} {dtype}: not a vector of zeros")
            parts = [part(rank, n, dtype) for rank in range(comm.size)]
            want = expected(parts, op).astype(dtype)
            source[:] = parts[comm.rank]
            comm.allreduce(source, op, out=target)
            if not np.array_equal(source, parts[comm.rank]):
                faults.append(f"{n} {dtype}: the input was overwritten")
            comm.allreduce(source, op)
            faults += [
                f"{n} {dtype}: wrong {name}"
                for name, got in (("in place", source), ("out", target))
                if not np.array_equal(got, want)
            ]
            del source, target
    everywhere(faults)


def test_a_long_shared_memory_buffer(world, everywhere):
    """Long enough for huge pages, where the kernel has them: parts of it lie on small ones."""
    n, faults = 2_000_003, []
    with Communicator(world) as comm:
        whole = comm.empty(n)
        if whole.any():
            faults.append("not zeros")
        for begin, end in ((0, n), (17, n - 700_000)):
            parts = [part(rank, end - begin, np.dtype(np.float32)) for rank in range(comm.size)]
            whole[begin:end] = parts[comm.rank]
            comm.allreduce(whole[begin:end], "sum")
            if not np.array_equal(whole[begin:end], expected(parts, "sum")):
                faults.append(f"wrong sum from {begin} to {end}")
        del whole
    everywhere(faults)


def test_slices_and_mixtures_of_shared_memory_buffers(world, everywhere):
    n, faults = 100_000, []
    parts = [part(rank, n, np.dtype(np.float32)) for rank in range(world.size)]
    want = expected(parts, "sum")
    with Communicator(world) as comm:
        whole = comm.empty(2 * n)
        whole[:] = -1
        whole[13 : n + 13] = parts[comm.rank]
        comm.allreduce(whole[13 : n + 13], "sum")
        if not np.array_equal(whole[13 : n + 13], want):
            faults.append("wrong slice")
        if (whole[:13] != -1).any() or (whole[n + 13 :] != -1).any():
            faults.append("the neighbours of a slice were hit")
        # One rank's buffer is ordinary, or elsewhere: found out together, and copied by all.
        at = comm.rank * 100
        own = parts[comm.rank].copy() if comm.rank == 0 else whole[at : at + n]
        own[:] = parts[comm.rank]
        comm.allreduce(own, "sum")
        if not np.array_equal(own, want):
            faults.append("wrong mixture")
    everywhere(faults)


def test_memory_outlives_free_where_it_is_used(world, everywhere):
    comm = Communicator(world)
    kept = comm.empty(50_000)
    kept[:] = comm.rank
    if comm.rank:
        kept = kept.copy()  # only rank 0 still uses the shared one
    comm.free()
    kept += 1
    everywhere([] if (kept == world.rank + 1).all() else ["the memory changed"])


def test_views_and_shapes(world, everywhere):
    total = sum(range(1, world.size + 1))
    base = np.full(1000, float(world.rank + 1), dtype=np.float32)
    want = base.copy()
    with Communicator(world, check=False) as comm:
        for algorithm in ("auto", "shared", "recursive_doubling", "ring"):
            comm.allreduce(base[1:98], "sum", algorithm)
            comm.allreduce(base[100:200].reshape(10, 10), "sum", algorithm)
            comm.allreduce(base[300:301].reshape(()), "sum", algorithm)
            for piece in (slice(1, 98), slice(100, 200), slice(300, 301)):
                want[piece] *= world.size if algorithm != "auto" else 1
            if algorithm == "auto":
                for piece in (slice(1, 98), slice(100, 200), slice(300, 301)):
                    want[piece] = total
    everywhere([] if np.array_equal(base, want) else ["a view was copied or its neighbours hit"])


def read_only(n):
    array = np.zeros(n, dtype=np.float32)
    array.flags.writeable = False
    return array


def test_read_only_input_with_out(world, everywhere):
    with Communicator(world, check=False) as comm:
        for algorithm in ("auto", "ring", "shared", "mpi"):
            out = np.empty(4, dtype=np.float32)
            comm.allreduce(read_only(4), "sum", algorithm, out)
            everywhere([] if not out.any() else ["wrong sum"])


@pytest.mark.parametrize("algorithm", ["auto", "shared", "ring", "mpi"])
@pytest.mark.parametrize(
    ("buffer", "out", "error", "text"),
    [
        ([1.0], None, TypeError, "numpy.ndarray, got list"),
        (np.zeros(4, dtype=np.uint8), None, TypeError, "int32 or int64, got uint8"),
        (np.zeros(4, dtype=">f4"), None, TypeError, "got >f4"),
        (np.zeros(8)[::2], None, ValueError, "contiguous"),
        (read_only(4), None, ValueError, "read-only"),
        (np.zeros(4), read_only(4), ValueError, "out must be writable"),
        (np.zeros(17, dtype=np.uint8)[1:].view(np.float32), None, ValueError, "aligned"),
        (np.zeros(4), np.zeros(5), ValueError, "out must be as buffer"),
        (np.zeros(4), np.zeros(4, dtype=np.float32), ValueError, "out must be as buffer"),
    ],
)
def test_bad_buffers_are_refused_before_any_message(world, buffer, out, error, text, algorithm):
    with Communicator(world) as comm:
        with pytest.raises(error, match=text):
            comm.allreduce(buffer, "sum", algorithm, out)
        assert comm.traffic.calls == 0
        comm.barrier()


def test_overlap_is_refused(world):
    base = np.zeros(10)
    with Communicator(world) as comm, pytest.raises(ValueError, match="they overlap"):
        comm.allreduce(base[:8], "sum", out=base[2:])
    with Communicator(world) as comm:
        comm.allreduce(base, "sum", out=base)


@pytest.mark.mpi(min_size=2)
def test_what_needs_the_native_module_or_one_node_says_so(world):
    with Communicator(world, backend="reference") as comm:
        for algorithm in ("shared", "hierarchical", "recursive_doubling"):
            with pytest.raises(ConfigError, match="needs the native module; use 'ring'"):
                comm.allreduce(np.zeros(3), "sum", algorithm)
        comm.allreduce(np.zeros(3), "sum")
    comm = Communicator(world, node_size=1)
    with pytest.raises(ConfigError, match="works inside one node; use 'hierarchical'"):
        comm.allreduce(np.zeros(3), "sum", "shared")
    comm.free()


# ---- memory, messages, communicators ------------------------------------------------------------


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(
    "algorithm", ["shared", "ring", "recursive_doubling", "hierarchical", "mpi"]
)
def test_segments_are_bounded_and_made_once(world, everywhere, algorithm, dtype):
    with Communicator(world, check=False) as comm:
        buffer = np.zeros(12_000_000, dtype=dtype)
        comm.allreduce(buffer, "sum", algorithm)
        after_first = comm.memory_bytes
        for _ in range(3):
            comm.allreduce(buffer, "sum", algorithm)
        grown = comm.memory_bytes != after_first
    faults = ["a later call took more memory"] if grown else []
    if not 0 < after_first <= LIMIT:
        faults.append(f"{after_first} bytes of segments")
    everywhere(faults)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("nodes", [1, 2])
def test_segments_of_everything_together_are_bounded(world, everywhere, nodes):
    """Every algorithm, of the widest and the 16-bit type, in both the caller's lane and the thread.

    What the object says is held against what the process has mapped of the ranks' shared memory.
    """
    ways = ("shared", "ring", "recursive_doubling", "hierarchical", "mpi")[nodes - 1 :]
    before = mapped_shared()
    with Communicator(world, check=False, node_size=-(-world.size // nodes)) as comm:
        for dtype in (np.float64, np.float16):
            buffer = np.zeros(6_000_000, dtype)
            for algorithm in ways:
                comm.allreduce(buffer, "sum", algorithm)
                comm.start(buffer, "sum", algorithm).wait()
        taken, mapped = comm.memory_bytes, mapped_shared() - before
    faults = [] if 0 < taken <= LIMIT else [f"{taken} bytes of segments"]
    if mapped > world.size * LIMIT or (nodes == 1 and mapped == 0):
        faults.append(f"{mapped} bytes mapped")
    everywhere(faults)


def mapped_shared():
    """Return the bytes of memory that this process shares with others, in whole pages."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    ranges = [line.split()[0].split("-") for line in lines if line.split()[1].endswith("s")]
    return sum(int(end, 16) - int(begin, 16) for begin, end in ranges)


@pytest.mark.parametrize("dtype", [np.dtype(np.float32), np.dtype(np.float16)], ids=str)
@pytest.mark.parametrize("algorithm", ["shared", "ring", "mpi"])
def test_counted_bytes_are_the_lower_bound(world, algorithm, dtype):
    n = 12 * 5000
    with Communicator(world) as comm:
        comm.allreduce(np.zeros(n, dtype), "sum", algorithm)
        counted = comm.traffic["allreduce"]
        bound = 2 * (comm.size - 1) * n * dtype.itemsize // comm.size
        assert (counted.bytes_sent, counted.bytes_received) == (bound, bound)


def test_short_calls_are_counted(world):
    with Communicator(world, check=False) as comm:
        for _ in range(5):
            comm.allreduce(np.zeros(12), "sum")
        counted = comm.traffic["allreduce"]
        bytes_each = 2 * (comm.size - 1) * 12 * 8 // comm.size
        assert (counted.calls, counted.bytes_sent) == (5, 5 * bytes_each)
        assert 0 <= counted.waiting <= counted.seconds < 60
    assert comm.traffic["allreduce"].calls == 5  # also after it was freed


def test_on_duplicated_and_split_communicators(world, everywhere):
    faults = []
    reverse = world.Split(0, key=-world.rank)
    half = world.Split(world.rank % 2, key=world.rank)
    for mpi_comm in (reverse, half, world):
        with Communicator(mpi_comm) as first, Communicator(mpi_comm) as second:
            for comm in (first, second, first):
                for n in (3, 100_000):
                    parts = [part(rank, n, np.dtype(np.float32)) for rank in range(comm.size)]
                    faults += faults_of(comm, parts, "sum", "shared")
    reverse.Free()
    half.Free()
    everywhere(faults)


def test_many_calls_in_a_row(world, everywhere):
    # Ranks run ahead of each other here; records and slots must not be overwritten too early.
    faults = 0
    with Communicator(world, check=False) as comm:
        short, flat, long = np.empty(3), np.empty(30_000), np.empty(200_000)
        for call in range(300):
            for buffer in (short, long, flat, long) if call % 10 == 0 else (short,):
                buffer[:] = call + comm.rank
                comm.allreduce(buffer, "max")
                faults += (buffer != call + comm.size - 1).any()
    everywhere([f"{faults} wrong"] if faults else [])


def test_thread_level_is_multiple_here():
    # What the tests of start() rely on.
    assert MPI.Query_thread() == MPI.THREAD_MULTIPLE
