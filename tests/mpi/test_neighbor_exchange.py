"""Neighbour exchange against the mixing matrix, which every rank can apply alone."""

import numpy as np
import pytest

from paropt_hpc.comm import Communicator, neighbor_exchange, neighbor_exchange_bytes, topology
from paropt_hpc.comm.topology import TOPOLOGIES, Topology, from_edges, mixing_matrix
from paropt_hpc.errors import CollectiveMismatch, CollectiveTimeout, ConfigError

pytestmark = pytest.mark.mpi

BACKENDS = ("native", "reference")


def buffers(size, n, dtype):
    return np.random.default_rng([size, n]).normal(size=(size, n)).astype(dtype)


def fitting(size):
    """Make every topology that exists for a size, one with uneven degrees among them."""
    for name in TOPOLOGIES:
        try:
            yield topology.make(name, size)
        except ConfigError:
            continue
    if size > 1:
        cycle = [(rank, (rank + 1) % size) for rank in range(size)]
        yield from_edges(size, [*cycle, (0, size - 1)], directed=True)
        # Every rank is silent at times: each step has one edge of the cycle.
        yield Topology("slow cycle", size, [[edge] for edge in cycle])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_mixes_as_the_matrix_says(world, everywhere, backend, dtype):
    faults = []
    with Communicator(world, backend=backend, segment_bytes=64) as comm:
        for made in fitting(comm.size):
            for step, n in enumerate([0, 1, 7, 8, 9, 16, 17, 100]):
                parts = buffers(comm.size, n, dtype)
                own = parts[comm.rank].copy()
                returned = neighbor_exchange(comm, own, made, step)
                want = mixing_matrix(made, step)[comm.rank] @ parts
                tolerance = 16 * np.finfo(dtype).eps
                if returned is not own or not np.allclose(own, want, rtol=0, atol=tolerance):
                    faults.append(f"{made} step {step} n {n}")
    everywhere(faults)


@pytest.mark.parametrize("backend", BACKENDS)
def test_adds_by_rank_and_rounds_every_product(world, everywhere, backend):
    made = topology.complete(world.size)
    parts = buffers(world.size, 1000, np.float32)
    with Communicator(world, backend=backend, segment_bytes=400) as comm:
        got = neighbor_exchange(comm, parts[comm.rank].copy(), made)
    neighbors = made.neighbors(world.rank)
    want = parts[world.rank] * np.float32(neighbors.own_weight)
    for source, weight in zip(neighbors.sources, neighbors.weights, strict=True):
        want += parts[source] * np.float32(weight)
    everywhere([] if np.array_equal(got, want) else ["other bits"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_into_out_leaves_the_buffer_alone(world, everywhere, backend):
    made = topology.ring(world.size)
    parts = buffers(world.size, 50, np.float64).reshape(world.size, 5, 10)
    own, out = parts[world.rank].copy(), np.empty(50)
    with Communicator(world, backend=backend) as comm:
        returned = neighbor_exchange(comm, own, made, out=out)
        neighbor_exchange(comm, own, made, out=own)
    right = np.array_equal(out.reshape(5, 10), own) and returned is out
    want = np.tensordot(mixing_matrix(made)[world.rank], parts, axes=1)
    everywhere([] if right and np.allclose(own, want) else ["wrong mix"])


def test_gossip_finds_the_mean(world, everywhere):
    made = topology.one_peer_exponential(world.size)
    parts = buffers(world.size, 20, np.float64)
    own = parts[world.rank].copy()
    with Communicator(world) as comm:
        for step in range(120):
            neighbor_exchange(comm, own, made, step)
    everywhere([] if np.allclose(own, parts.mean(axis=0), atol=1e-9) else ["no consensus"])


def test_counts_what_it_sends_and_reuses_its_workspace(world):
    made = topology.one_peer_exponential(world.size)
    others = 1 if world.size > 1 else 0
    with Communicator(world) as comm:
        for step in range(3):
            neighbor_exchange(comm, np.zeros(1000, dtype=np.float32), made, step)
            kept = [id(value.segments) for value in comm._transport._kept.values()]
            neighbor_exchange(comm, np.zeros(10), made, step)
            assert kept == [id(value.segments) for value in comm._transport._kept.values()]
        counted = comm.traffic["neighbor_exchange"]
        volume = 3 * others * (4000 + 80)
    assert (counted.calls, counted.bytes_sent, counted.bytes_received) == (6, volume, volume)


@pytest.mark.mpi(min_size=3)
def test_working_memory_does_not_grow_with_the_degree(world):
    made = topology.complete(world.size)
    with Communicator(world, segment_bytes=2**30) as comm:
        neighbor_exchange(comm, np.zeros(2_000_000), made)
        (kept,) = comm._transport._kept.values()
        assert kept.segments.size <= 8 * 1024 * 1024


def message_of(rank, length):
    return np.random.default_rng([rank, length]).integers(0, 256, length).astype(np.uint8)


@pytest.mark.parametrize("max_count", [2**31 - 1, 10])
def test_bytes_of_uneven_length(world, everywhere, max_count):
    faults = []
    with Communicator(world, max_count=max_count) as comm:
        for made in fitting(comm.size):
            for step, lengths in enumerate([[3, 40, 0, 10], [100, 20, 9, 11], [0, 0, 0, 0]]):
                messages = neighbor_exchange_bytes(
                    comm, message_of(comm.rank, lengths[comm.rank]), made, step
                )
                neighbors = made.neighbors(comm.rank, step)
                if [(m.rank, m.weight) for m in messages] != list(
                    zip(neighbors.sources, neighbors.weights, strict=True)
                ):
                    faults.append(f"{made}: not one message of every source")
                for message in messages:
                    want = message_of(message.rank, lengths[message.rank])
                    if message.payload.tobytes() != want.tobytes():
                        faults.append(f"{made} step {step}: wrong bytes of {message.rank}")
    everywhere(faults)


def test_traffic_of_bytes(world):
    made = topology.star(world.size)
    with Communicator(world) as comm:
        neighbor_exchange_bytes(comm, np.zeros(10 * (comm.rank + 1), dtype=np.uint8), made)
        counted = comm.traffic["neighbor_exchange_bytes"]
        others = comm.size - 1
        if comm.rank == 0:
            assert counted.bytes_sent == 10 * others
            assert counted.bytes_received == sum(10 * (rank + 1) for rank in range(1, comm.size))
        else:
            assert (counted.bytes_sent, counted.bytes_received) == (10 * (comm.rank + 1), 10)


@pytest.mark.parametrize(
    ("buffer", "out", "error", "text"),
    [
        (np.zeros(4, dtype=np.int64), None, TypeError, "float32 or float64"),
        (np.zeros(8)[::2], None, ValueError, "contiguous"),
        (np.zeros(4), np.zeros(5), ValueError, "4 elements of float64 as buffer has, got 5"),
        (np.zeros(4), np.zeros(4, dtype=np.float32), ValueError, "got 4 of float32"),
    ],
)
def test_refuses_bad_buffers(world, buffer, out, error, text):
    with Communicator(world) as comm:
        with pytest.raises(error, match=text):
            neighbor_exchange(comm, buffer, topology.complete(comm.size), out=out)
        assert comm.traffic.calls == 0


def test_refuses_overlap_and_foreign_topologies(world):
    memory = np.zeros(10)
    with Communicator(world) as comm:
        made = topology.complete(comm.size)
        with pytest.raises(ValueError, match="not overlap"):
            neighbor_exchange(comm, memory[:6], made, out=memory[4:])
        other = topology.complete(comm.size + 1)
        with pytest.raises(ValueError, match=rf"topology must be one of {comm.size} ranks"):
            neighbor_exchange(comm, memory, other)
        with pytest.raises(ValueError, match=rf"topology must be one of {comm.size} ranks"):
            neighbor_exchange_bytes(comm, np.zeros(1, dtype=np.uint8), other)
        with pytest.raises(TypeError, match="vector of uint8, got 1-d float64"):
            neighbor_exchange_bytes(comm, memory, made)
        with pytest.raises(ValueError, match="step must be at least 0"):
            neighbor_exchange(comm, memory, made, -1)
        comm.barrier()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_shorter_buffer_elsewhere_is_noticed(world, everywhere, backend):
    made = from_edges(world.size, [(0, rank) for rank in range(1, world.size)])
    with Communicator(world, backend=backend, check=False) as comm:
        n = 10 if comm.rank == 0 else 20
        kind = RuntimeError if comm.rank else Exception
        with pytest.raises(kind) as caught:
            neighbor_exchange(comm, np.zeros(n), made)
        noticed = comm.rank == 0 or "10 elements arrived where 20 were" in str(caught.value)
    everywhere([] if noticed else ["not noticed"])


@pytest.mark.mpi(min_size=2)
def test_checking_mode_names_who_asked_for_something_else(world):
    made = topology.ring(world.size)
    with Communicator(world, check=True) as comm:
        neighbor_exchange(comm, np.zeros(10), made)
        neighbor_exchange_bytes(comm, np.zeros(comm.rank, dtype=np.uint8), made)
        n = 11 if comm.rank == 1 else 10
        with pytest.raises(CollectiveMismatch, match="11 float64, ring, step 0"):
            neighbor_exchange(comm, np.zeros(n), made)
        with pytest.raises(CollectiveMismatch, match="ring, step 1"):
            neighbor_exchange_bytes(comm, np.zeros(3, dtype=np.uint8), made, int(comm.rank == 1))
        comm.barrier()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["floats", "bytes"])
def test_does_not_wait_for_ever(world, everywhere, backend, kind):
    made = topology.ring(world.size)
    comm = Communicator(world, backend=backend, timeout=0.3, check=False)
    caught = True
    if comm.rank:  # rank 0 does not come
        try:
            if kind == "floats":
                neighbor_exchange(comm, np.zeros(300_000), made)
            else:
                neighbor_exchange_bytes(comm, np.zeros(300_000, dtype=np.uint8), made)
            caught = comm.rank not in (1, comm.size - 1)  # the neighbours of rank 0
        except CollectiveTimeout:
            pass
    everywhere([] if caught else ["no timeout"])
