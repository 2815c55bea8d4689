"""The object around a communicator: each result against what every rank can compute alone."""

import json

import numpy as np
import pytest
from mpi4py import MPI

from paropt_hpc.comm import Communicator
from paropt_hpc.errors import ConfigError, DataError, DivergenceError

pytestmark = pytest.mark.mpi


def raise_if(condition, error):
    if condition:
        raise error


def message_of(rank, length):
    return np.random.default_rng([rank, length]).integers(0, 256, length).astype(np.uint8)


def test_knows_its_place(world, comm):
    # The tests run on one machine, so the node is everybody.
    assert (comm.rank, comm.size) == (world.rank, world.size)
    assert (comm.node_rank, comm.node_size) == (world.rank, world.size)


def test_allreduce_refuses_bad_arguments(comm):
    with pytest.raises(ValueError, match=r"algorithm must be one of auto, .*, got 'tree'"):
        comm.allreduce(np.zeros(3), algorithm="tree")
    with pytest.raises(ValueError, match="op must be one of"):
        comm.allreduce(np.zeros(3), "product")
    with pytest.raises(TypeError, match="int32 or int64, got int16"):
        comm.allreduce(np.zeros(3, dtype=np.int16))
    with pytest.raises(TypeError, match="op 'mean' needs floats, got int64"):
        comm.allreduce(np.zeros(3, dtype=np.int64))
    assert comm.traffic.calls == 0


@pytest.mark.parametrize("max_count", [2**31 - 1, 10])
def test_allgather_bytes(world, everywhere, max_count):
    faults = []
    with Communicator(world, max_count=max_count) as comm:
        # Growing, shrinking, empty on some ranks, empty on all.
        for lengths in ([5 * r + 3 for r in range(4)], [0, 40, 0, 7], [1, 1, 1, 1], [0, 0, 0, 0]):
            views = comm.allgather_bytes(message_of(comm.rank, lengths[comm.rank]))
            if len(views) != comm.size or any(view.dtype != np.uint8 for view in views):
                faults.append("not one uint8 array per rank")
            for rank, view in enumerate(views):
                if view.tobytes() != message_of(rank, lengths[rank]).tobytes():
                    faults.append(f"wrong message of rank {rank} for {lengths}")
    everywhere(faults)


@pytest.mark.parametrize(
    ("payload", "error", "text"),
    [
        (b"bytes", TypeError, "numpy.ndarray, got bytes"),
        (np.zeros(3, dtype=np.int8), TypeError, "vector of uint8, got 1-d int8"),
        (np.zeros((2, 2), dtype=np.uint8), TypeError, "vector of uint8, got 2-d"),
        (np.zeros(8, dtype=np.uint8)[::2], ValueError, "contiguous"),
    ],
)
def test_allgather_bytes_refuses_bad_payloads(comm, payload, error, text):
    with pytest.raises(error, match=text):
        comm.allgather_bytes(payload)
    comm.barrier()


def test_gather_scalars(comm, everywhere):
    values = comm.gather_scalars(1.5 * comm.rank - 1)
    want = 1.5 * np.arange(comm.size) - 1
    right = values.dtype == np.float64 and np.array_equal(values, want)
    everywhere([] if right else [f"got {values}"])


@pytest.mark.parametrize("max_count", [2**31 - 1, 10])
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.uint8, np.bool_])
def test_broadcast(world, everywhere, dtype, max_count):
    faults = []
    with Communicator(world, max_count=max_count) as comm:
        for root in range(comm.size):
            buffer = ((np.arange(12) + comm.rank) % 5).astype(dtype).reshape(3, 4)
            comm.broadcast(buffer, root)
            want = ((np.arange(12) + root) % 5).astype(dtype).reshape(3, 4)
            if not np.array_equal(buffer, want):
                faults.append(f"wrong values from root {root}")
    everywhere(faults)


def test_broadcast_refuses_bad_arguments(comm):
    with pytest.raises(ValueError, match=rf"root must be in \[0, {comm.size}\), got {comm.size}"):
        comm.broadcast(np.zeros(3), comm.size)
    with pytest.raises(TypeError, match="plain numbers"):
        comm.broadcast(np.array([None]))
    with pytest.raises(ValueError, match="contiguous"):
        comm.broadcast(np.zeros(8)[::2])
    comm.barrier()


@pytest.mark.parametrize("algorithm", ["ring", "mpi"])
def test_traffic_of_allreduce(comm, algorithm):
    n = 12 * 5  # divisible by 1, 2, 3 and 4: every chunk has n/P elements
    for _ in range(3):
        comm.allreduce(np.zeros(n), "sum", algorithm)
    counted = comm.traffic["allreduce"]
    volume = 3 * 2 * (comm.size - 1) * n // comm.size * 8
    assert (counted.calls, counted.bytes_sent, counted.bytes_received) == (3, volume, volume)
    assert 0 < counted.seconds < 60


def test_traffic_of_the_others(comm):
    comm.allgather_bytes(np.zeros(10 * comm.rank, dtype=np.uint8))
    comm.gather_scalars(0)
    comm.broadcast(np.zeros(3), root=0)
    comm.barrier()
    others, traffic = comm.size - 1, comm.traffic
    if others:
        gathered = traffic["allgather_bytes"]
        assert gathered.bytes_sent == others * (8 + 10 * comm.rank)
        everyone = 10 * sum(range(comm.size))
        assert gathered.bytes_received == 8 * others + everyone - 10 * comm.rank
    assert traffic["gather_scalars"].bytes_sent == 8 * others
    assert traffic["broadcast"].bytes_sent == (24 * others if comm.rank == 0 else 0)
    assert traffic["broadcast"].bytes_received == (0 if comm.rank == 0 else 24)
    assert traffic.calls == 4
    assert traffic.bytes_sent == sum(c.bytes_sent for c in traffic.operations.values())
    traffic.reset()
    assert (traffic.calls, traffic.bytes_sent, traffic.seconds) == (0, 0, 0)


def test_together_without_failure(comm):
    with comm.together():
        value = comm.rank
    assert value == comm.rank
    assert comm.traffic["together"].bytes_sent == 8 * (comm.size - 1)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kind", [ConfigError, DivergenceError, ValueError, FileNotFoundError])
def test_together_raises_one_ranks_error_on_all(comm, kind):
    last = comm.size - 1
    with pytest.raises(kind, match=f"^rank {last}: no such luck$") as caught, comm.together():
        raise_if(comm.rank == last, kind("no such luck"))
    assert type(caught.value) is kind
    comm.barrier()


@pytest.mark.mpi(min_size=2)
def test_together_raises_the_lowest_ranks_error(comm):
    with pytest.raises(DataError, match=r"^rank 0: bad line 0$"), comm.together():
        raise_if(comm.rank < 2, DataError(f"bad line {comm.rank}"))
    comm.barrier()


@pytest.mark.mpi(min_size=2)
def test_together_keeps_the_name_of_a_foreign_type(comm):
    text = "^rank 1: JSONDecodeError: Expecting value"
    with pytest.raises(ValueError, match=text) as caught, comm.together():
        json.loads("1" if comm.rank != 1 else "")
    assert type(caught.value) is ValueError
    comm.barrier()


def test_together_keeps_an_error_that_all_share(comm):
    error = ConfigError("misspelled key")
    with pytest.raises(ConfigError, match=r"^misspelled key$") as caught, comm.together():
        raise error
    assert caught.value is error
    comm.barrier()


def test_together_lets_an_exit_pass(comm):
    with pytest.raises(SystemExit), comm.together():
        raise SystemExit(3)
    assert comm.traffic.calls == 0


def test_free_twice_and_use_afterwards(world):
    comm = Communicator(world)
    comm.free()
    comm.free()
    for call in (comm.barrier, lambda: comm.gather_scalars(1), lambda: comm.allreduce(np.ones(1))):
        with pytest.raises(ValueError, match="communicator is freed"):
            call()
    world.Barrier()  # which was not freed with it


def test_leaves_the_users_messages_alone(world, comm, everywhere):
    pending = world.Irecv(np.zeros(64), MPI.ANY_SOURCE, MPI.ANY_TAG)
    buffer = np.full(64, float(comm.rank))
    comm.allreduce(buffer, "sum")
    untouched = not pending.Test()
    pending.Cancel()
    pending.Wait()
    right = np.array_equal(buffer, np.full(64, float(sum(range(comm.size)))))
    everywhere([] if right and untouched else ["our message met the user's receive"])


def test_of_part_of_the_ranks(world, everywhere):
    half = world.Split(world.rank % 2, world.rank)
    members = range(world.rank % 2, world.size, 2)
    with Communicator(half) as comm:
        values = comm.gather_scalars(world.rank)
    half.Free()
    everywhere([] if values.tolist() == list(members) else [f"got {values}"])


@pytest.mark.mpi(min_size=2)
def test_backend_is_chosen_when_made(world, monkeypatch):
    monkeypatch.setenv("PAROPT_BACKEND", "reference")
    with Communicator(world) as comm:
        assert comm._transport.module is None
    with Communicator(world, backend="native") as comm:
        assert comm._transport.module is not None
    monkeypatch.setenv("PAROPT_BACKEND", "fortran")
    with pytest.raises(ConfigError, match=r"PAROPT_BACKEND must be one of .*, got 'fortran'"):
        Communicator(world)


def test_refuses_what_is_no_group_of_ranks():
    with pytest.raises(ValueError, match="intra-communicator"):
        Communicator(MPI.COMM_NULL)
