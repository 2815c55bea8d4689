"""Sparse all-reduce: bits, conservation, bytes and balance, against what every rank can compute."""

import importlib
import time

import numpy as np
import pytest

from paropt_hpc.comm import Communicator, sparse_allreduce
from paropt_hpc.errors import CollectiveMismatch, CollectiveTimeout, MessageError
from paropt_hpc.kernels import message as messages
from paropt_hpc.kernels import quantize
from paropt_hpc.kernels.index_codec import index_dtype

pytestmark = pytest.mark.mpi

EXACT = ("auto", "allgather", "split", "dense")
ALL = (*EXACT, "reselect")


def sparse(rank, n, k, dtype=np.float32, *, clustered=False, whole=False, seed=0):
    """Draw the entries of one rank; `clustered` puts nine of ten into a hundredth of the vector."""
    rng = np.random.default_rng([seed, rank, n, k])
    if clustered:
        near = rng.choice(max(n // 100, k), 9 * k // 10, replace=False) + n // 3
        far = np.setdiff1d(rng.choice(n, k, replace=False), near)[: k - near.size]
        indices = np.sort(np.concatenate([near, far]))
    else:
        indices = np.sort(rng.choice(n, k, replace=False))
    values = rng.integers(-9, 10, k) if whole else rng.normal(size=k)
    return indices.astype(index_dtype(n)), values.astype(dtype)


def encoded(parts, n):
    return messages.encode(*parts, n)


def added_up(every, n, dtype):
    """Add the entries of all ranks in the order of the ranks."""
    total = np.zeros(n, dtype)
    for indices, values in every:
        total[indices] += values
    return total


def gathered(comm, array):
    return [view.view(array.dtype).copy() for view in comm.allgather_bytes(array.view(np.uint8))]


def bits(array):
    return array.view(f"u{array.itemsize}")


@pytest.mark.parametrize("backend", ["native", "reference"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("scheme", ["auto", "allgather", "split"])
def test_exact_schemes_add_in_the_order_of_the_ranks(
    world, everywhere, monkeypatch, scheme, dtype, backend
):
    monkeypatch.setenv("PAROPT_BACKEND", backend)
    faults = []
    with Communicator(world) as comm:
        for n, k in ((0, 0), (1, 1), (3, 1), (100, 0), (100, 7), (100, 100), (5000, 50)):
            every = [sparse(rank, n, k, dtype) for rank in range(comm.size)]
            dense = np.full(n, np.nan, dtype)
            result = sparse_allreduce(comm, encoded(every[comm.rank], n), dense, scheme)
            want = added_up(every, n, dtype)
            if result.scheme == "dense":
                right = np.allclose(dense, want, rtol=0, atol=1e-5)
            else:
                right = np.array_equal(bits(dense), bits(want))
            if not right or result.dropped_indices.size:
                faults.append(f"n {n} k {k}: wrong sum by {result.scheme}")
    everywhere(faults)


@pytest.mark.parametrize("value_type", ["float16", "bfloat16", "int8", "qsgd4", "sign"])
def test_quantised_messages_of_some_entries_and_of_all(world, everywhere, value_type):
    n, faults = 3000, []
    with Communicator(world) as comm:
        for k in (40, n):
            every, own = [], None
            for rank in range(comm.size):
                indices, values = sparse(rank, n, k)
                sent = quantize.encode(values, value_type, seed=rank)
                every.append((indices, quantize.decode(sent.data, value_type, k)))
                if rank == comm.rank:
                    own = messages.encode(None if k == n else indices, sent, n)
            want = added_up(every, n, np.float32)
            for scheme in EXACT:
                dense = np.full(n, np.nan, np.float32)
                result = sparse_allreduce(comm, own, dense, scheme)
                exact = result.scheme != "dense" and np.array_equal(bits(dense), bits(want))
                if not exact and not np.allclose(dense, want, rtol=0, atol=1e-4):
                    faults.append(f"k {k}: wrong sum by {result.scheme}")
                if not exact and result.scheme != "dense":
                    faults.append(f"k {k}: other bits by {result.scheme}")
    everywhere(faults)


@pytest.mark.parametrize("node_size", [None, 1])
def test_messages_of_any_length_one_after_the_other(world, everywhere, node_size):
    """Shared memory grows with them; nodes of one rank have none and send theirs."""
    faults = []
    with Communicator(world, node_size=node_size) as comm:
        for n, k in ((50, 3), (300_000, 100_000), (50, 3), (2_000_000, 400_000)):
            every = [sparse(rank, n, k // (rank + 1)) for rank in range(comm.size)]
            dense = np.empty(n, np.float32)
            sparse_allreduce(comm, encoded(every[comm.rank], n), dense, "allgather")
            if not np.array_equal(bits(dense), bits(added_up(every, n, np.float32))):
                faults.append(f"n {n} k {k}: wrong sum")
    everywhere(faults)


@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("scheme", ALL)
def test_same_bits_on_all_ranks(world, everywhere, scheme, op):
    n, k = 20_000, 400
    dense = np.empty(n, np.float32)
    with Communicator(world) as comm:
        every = [sparse(rank, n, k, clustered=True) for rank in range(comm.size)]
        for _ in range(3):
            sparse_allreduce(comm, encoded(every[comm.rank], n), dense, scheme, op=op)
        others = gathered(comm, dense)
        want = added_up(every, n, np.float32) / (comm.size if op == "mean" else 1)
    faults = [] if all(np.array_equal(bits(o), bits(dense)) for o in others) else ["other bits"]
    sent = dense != 0  # of a re-selection some entries are missing, the others are right
    if not np.allclose(dense[sent], want[sent], rtol=0, atol=1e-5):
        faults.append("wrong values")
    everywhere(faults)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("clustered", [False, True])
def test_reselect_loses_nothing(world, everywhere, clustered, dtype):
    n, k = 10_000, 200
    faults = []
    with Communicator(world) as comm:
        for whole in (True, False):
            every = [
                sparse(rank, n, k, dtype, clustered=clustered, whole=whole)
                for rank in range(comm.size)
            ]
            dense = np.empty(n, dtype)
            result = sparse_allreduce(comm, encoded(every[comm.rank], n), dense, "reselect")
            total = dense.copy()
            indices = gathered(comm, result.dropped_indices)
            values = gathered(comm, result.dropped_values)
            for where, what in zip(indices, values, strict=True):
                if total[where].any():
                    faults.append("dropped what was sent")
                total[where] = what
            # Whole numbers add without rounding, so this is then exactly what was put in.
            if not np.array_equal(total, added_up(every, n, dtype)):
                faults.append(f"whole {whole}: sent and dropped are not the sum")
            if np.count_nonzero(dense) > k or (comm.size > 2 and not sum(map(np.size, indices))):
                faults.append(f"kept {np.count_nonzero(dense)} of {k}")
    everywhere(faults)


@pytest.mark.mpi(min_size=2)
def test_reselect_keeps_the_largest_of_each_range(world, everywhere):
    n, k, keep = 4000, 100, 40
    with Communicator(world) as comm:
        every = [sparse(rank, n, k) for rank in range(comm.size)]
        dense = np.empty(n, np.float32)
        message = encoded(every[comm.rank], n)
        result = sparse_allreduce(comm, message, dense, "reselect", keep=keep)
        smallest_kept = min(map(abs, dense[dense != 0].tolist()))
        own = np.abs(result.dropped_values)
        sums = added_up(every, n, np.float32)
        right = np.count_nonzero(dense) == keep
        right &= np.array_equal(sums[result.dropped_indices], result.dropped_values)
        # Between the ends of this rank's range nothing kept is smaller than what was dropped.
        low, high = result.dropped_indices.min(), result.dropped_indices.max()
        mine = np.abs(dense[low : high + 1])
        right &= own.max() <= mine[mine > 0].min() and smallest_kept > 0
    everywhere([] if right else ["not the largest"])


@pytest.mark.parametrize("scheme", ALL)
def test_counts_that_differ(world, everywhere, scheme):
    n = 1000
    counts = [0, 300, 1, 40]
    with Communicator(world) as comm:
        every = [sparse(rank, n, counts[rank], whole=True) for rank in range(comm.size)]
        dense = np.empty(n, np.float32)
        message = encoded(every[comm.rank], n)
        sparse_allreduce(comm, message, dense, scheme, keep=n if scheme == "reselect" else None)
    everywhere([] if np.array_equal(dense, added_up(every, n, np.float32)) else ["wrong sum"])


@pytest.mark.parametrize("scheme", ALL)
def test_in_pieces(world, everywhere, scheme):
    n, k = 1000, 60
    with Communicator(world, max_count=37) as comm:
        every = [sparse(rank, n, k, whole=True) for rank in range(comm.size)]
        dense = np.empty(n, np.float32)
        sparse_allreduce(comm, encoded(every[comm.rank], n), dense, scheme, keep=n)
    everywhere([] if np.array_equal(dense, added_up(every, n, np.float32)) else ["wrong sum"])


def test_sums_that_cancel_and_values_that_are_not_finite(world, everywhere):
    faults = []
    with Communicator(world) as comm:
        values = np.array([1, np.nan, np.inf, -0.0, 5], np.float32)
        if comm.rank % 2:
            values[0], values[4] = -1, -5
        message = messages.encode(np.arange(0, 50, 10, dtype=np.uint32), values, 50)
        wants = np.empty(50, np.float32)
        sparse_allreduce(comm, message, wants, "allgather")
        for scheme in ("split", "reselect"):
            dense = np.empty(50, np.float32)
            sparse_allreduce(comm, message, dense, scheme, keep=50)
            if not np.array_equal(dense, wants, equal_nan=True):
                faults.append(f"{scheme}: {dense[::10]} instead of {wants[::10]}")
    everywhere(faults)


def received_and_sent(comm, names=("sparse_allreduce", "together")):
    counted = [comm.traffic[name] for name in names]
    return sum(c.bytes_sent for c in counted), sum(c.bytes_received for c in counted)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("clustered", [False, True])
def test_volume_of_reselect_is_below_the_bound_and_balanced(world, clustered):
    n, k = 2_000_000, 20_000
    with Communicator(world) as comm:
        message = encoded(sparse(comm.rank, n, k, clustered=clustered), n)
        dense = np.empty(n, np.float32)
        result = sparse_allreduce(comm, message, dense, "reselect")
        sent, received = received_and_sent(comm)
        every = comm.gather_scalars(sent + received)
    bound = 6 * k * (comm.size - 1) / comm.size * 8  # Ok-Topk: an index and a value take 64 bits
    assert max(sent, received) <= 0.44 * bound
    assert result.imbalance <= 1.1
    assert every.max() / every.mean() <= 1.1


@pytest.mark.mpi(min_size=2)
def test_ranges_follow_entries_that_move(world):
    n, k = 1_000_000, 10_000
    with Communicator(world) as comm:
        dense = np.empty(n, np.float32)
        first = encoded(sparse(comm.rank, n, k, clustered=True), n)
        elsewhere = encoded(sparse(comm.rank, n // 2, k, clustered=True), n // 2)
        moved, values, _ = messages.decode(elsewhere)
        second = messages.encode(moved, values, n)
        seen = [
            sparse_allreduce(comm, data, dense, "split").imbalance
            for data in (first, first, second, second)
        ]
        other = sparse_allreduce(comm, first, dense, "split", bucket=1).imbalance
    assert max(seen[0], seen[1], seen[3], other) <= 1.1
    assert seen[2] > 1.1  # the step that notices


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(("k", "scheme"), [(100, "allgather"), (99_900, "dense")])
def test_auto_switches_to_dense_where_that_is_less(world, k, scheme):
    n = 100_000
    with Communicator(world) as comm:
        message = encoded(sparse(comm.rank, n, k), n)
        result = sparse_allreduce(comm, message, np.empty(n, np.float32))
        assert result.scheme == scheme
        assert comm.traffic["allreduce"].calls == (scheme == "dense")


@pytest.mark.mpi(min_size=4)
def test_auto_splits_where_the_ranks_agree_on_the_indices(world):
    n, k = 4_000_000, 100_000
    with Communicator(world, node_size=1) as comm:
        message = encoded(sparse(0, n, k), n)  # the same on all ranks
        dense = np.empty(n, np.float32)
        assert sparse_allreduce(comm, message, dense).scheme == "allgather"  # nothing known yet
        sparse_allreduce(comm, message, dense, "split")
        assert sparse_allreduce(comm, message, dense).scheme == "split"


@pytest.mark.mpi(min_size=2)
def test_counts_bytes_of_the_allgather(world):
    with Communicator(world) as comm:
        message = encoded(sparse(comm.rank, 1000, 10 + comm.rank), 1000)
        lengths = comm.gather_scalars(message.size)
        sparse_allreduce(comm, message, np.empty(1000, np.float32), "allgather")
        counted = comm.traffic["sparse_allreduce"]
        records = 7 * 8 * (comm.size - 1)
        assert counted.bytes_sent == records + (comm.size - 1) * message.size
        assert counted.bytes_received == records + lengths.sum() - message.size


@pytest.mark.parametrize("scheme", ALL)
def test_no_second_is_counted_twice(world, scheme):
    n = 20_000
    with Communicator(world) as comm:
        message = encoded(sparse(comm.rank, n, 500), n)
        begun = time.perf_counter()
        for _ in range(5):
            sparse_allreduce(comm, message, np.empty(n, np.float32), scheme)
        assert 0 < comm.traffic.seconds <= time.perf_counter() - begun
        assert comm.traffic.waiting <= comm.traffic.seconds


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"scheme": "tree"}, ValueError, "scheme must be one of auto, .*, got 'tree'"),
        ({"op": "max"}, ValueError, "op must be sum or mean, got 'max'"),
        ({"keep": 101}, ValueError, r"keep must be in \[0, 100\], got 101"),
        ({"dense_out": np.empty(99, np.float32)}, ValueError, "must have 100 entries, got 99"),
        ({"dense_out": np.empty(100)}, TypeError, "dense_out must be float32, got float64"),
        ({"message": np.zeros(3, np.uint8)}, MessageError, "message is truncated"),
    ],
)
def test_refuses_bad_arguments(world, arguments, error, text):
    good = {"message": encoded(sparse(0, 100, 5), 100), "dense_out": np.empty(100, np.float32)}
    with Communicator(world) as comm:
        with pytest.raises(error, match=text):
            sparse_allreduce(comm, **(good | arguments))
        assert comm.traffic.calls == 0


@pytest.mark.mpi(min_size=2)
def test_arguments_that_differ_are_named_on_every_rank(world):
    with Communicator(world, check=False) as comm:
        n = 100 + (comm.rank == comm.size - 1)
        with pytest.raises(ValueError, match=f"same length, but rank {comm.size - 1} passed"):
            sparse_allreduce(comm, encoded(sparse(0, n, 5), n), np.empty(n, np.float32))
        scheme = "split" if comm.rank == 1 else "allgather"
        message, dense = encoded(sparse(0, 100, 5), 100), np.empty(100, np.float32)
        with pytest.raises(ValueError, match="same scheme, but rank 1 passed"):
            sparse_allreduce(comm, message, dense, scheme)
        comm.barrier()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("scheme", ALL)
def test_a_damaged_message_raises_on_every_rank(world, scheme):
    with Communicator(world) as comm:
        message = encoded(sparse(0, 100, 5), 100)
        if comm.rank == 1:
            message[-1] ^= 1
        with pytest.raises(MessageError, match="altered"):
            sparse_allreduce(comm, message, np.empty(100, np.float32), scheme)
        comm.barrier()


@pytest.mark.mpi(min_size=2)
def test_a_part_damaged_on_its_way_raises_on_every_rank(world, monkeypatch):
    module = importlib.import_module("paropt_hpc.comm.sparse_allreduce")
    real = module._exchange

    def damaging(call, parts):
        arrived = real(call, parts)
        if call.comm.rank == 1:
            arrived[0][-1] ^= 1
        return arrived

    monkeypatch.setattr(module, "_exchange", damaging)
    with Communicator(world) as comm:
        message = encoded(sparse(0, 1000, 50), 1000)
        text = "altered" if comm.rank == 1 else "rank 1 received a damaged part"
        with pytest.raises(MessageError, match=text):
            sparse_allreduce(comm, message, np.empty(1000, np.float32), "split")
        comm.barrier()


def test_reuses_its_buffers(world):
    with Communicator(world) as comm:
        message = encoded(sparse(comm.rank, 5000, 100), 5000)
        dense = np.empty(5000, np.float32)
        for scheme in ("allgather", "split", "reselect"):
            sparse_allreduce(comm, message, dense, scheme)
            (work,) = comm._transport._kept.values()
            before = {name: id(buffer) for name, buffer in work.buffers.items()}
            sparse_allreduce(comm, message, dense, scheme)
            assert before == {name: id(buffer) for name, buffer in work.buffers.items()}


@pytest.mark.mpi(min_size=2)
def test_checking_mode_names_who_asked_for_something_else(world):
    with Communicator(world, check=True) as comm:
        n = 100 + (comm.rank == 1)
        with pytest.raises(CollectiveMismatch, match="sum of 101 float32, auto"):
            sparse_allreduce(comm, encoded(sparse(0, n, 5), n), np.empty(n, np.float32))
        comm.barrier()


@pytest.mark.mpi(min_size=2)
def test_does_not_wait_for_ever(world, everywhere):
    comm = Communicator(world, timeout=0.3, check=False)
    faults = []
    if comm.rank:  # rank 0 does not come
        try:
            message = encoded(sparse(0, 100, 5), 100)
            sparse_allreduce(comm, message, np.empty(100, np.float32))
            faults.append("no timeout")
        except CollectiveTimeout:
            pass
    everywhere(faults)
