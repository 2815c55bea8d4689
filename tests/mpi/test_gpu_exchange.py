"""Arrays on a GPU between neighbours and at a server; the GPU is that of ``tests/fake``."""

import fake_gpu
import numpy as np
import pytest

from paropt_hpc.comm import (
    PushTopology,
    gpu_allreduce,
    neighbor_exchange,
    neighbor_exchange_bytes,
    topology,
)
from paropt_hpc.compress import TopK
from paropt_hpc.train import SGD, AsyncGossip, ChocoGossip, ParameterServer

pytestmark = pytest.mark.mpi

N = 30


@pytest.fixture
def cupy(world, monkeypatch):
    return fake_gpu.install(monkeypatch, uuid=10 * world.Get_rank())


def values(rank, n, dtype=np.float64):
    return np.random.default_rng([n, rank]).standard_normal(n).astype(dtype)


def graphs(size):
    names = ("ring", "star", "complete", "one-peer-exponential")
    plain = [topology.make(name, size) for name in names]
    return [*plain, PushTopology(plain[0])]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_mix_has_the_bits_of_one_on_the_host(dtype, comm, cupy, monkeypatch, everywhere):
    monkeypatch.setattr(gpu_allreduce, "STAGE_BYTES", 200)
    faults = []
    for graph in graphs(comm.size):
        for n in (0, 1, 24, 25, 333):
            for step in range(graph.period):
                here = values(comm.rank, n, dtype)
                there, other = cupy.asarray(here), cupy.empty(n, dtype)
                neighbor_exchange(comm, there, graph, step, out=other)
                if there.get().tobytes() != here.tobytes():
                    faults.append(f"{graph.name}, {n}: the input was overwritten")
                cupy.fake.log.clear()
                neighbor_exchange(comm, there, graph, step)
                neighbor_exchange(comm, here, graph, step)
                if not there.get().tobytes() == other.get().tobytes() == here.tobytes():
                    faults.append(f"{graph.name}, {n}, step {step}")
                row = graph.neighbors(comm.rank, step)
                crossed = 2 * here.nbytes if row.sources or row.targets else 0
                if sum(cupy.fake.log) != crossed or max(cupy.fake.log, default=0) > 200:
                    faults.append(f"{graph.name}, {n}: {cupy.fake.log} crossed")
    everywhere(faults)


def test_messages_come_down_and_go_up(comm, cupy):
    graph = topology.make("complete", comm.size)
    for n in (5, 3):  # the second ones fit into the memory of the first
        own = np.full(n + comm.rank, comm.rank, np.uint8)
        cupy.fake.log.clear()
        told = neighbor_exchange_bytes(comm, cupy.asarray(own), graph)
        others = [rank for rank in range(comm.size) if rank != comm.rank]
        assert [message.rank for message in told] == others
        assert cupy.fake.log == [own.size, *(n + rank for rank in others)]
        for message in told:
            found = cupy.asarray(message.payload).get()
            np.testing.assert_array_equal(found, np.full(n + message.rank, message.rank))


def test_arguments(comm, cupy):
    graph = topology.make("ring", comm.size)
    with pytest.raises(TypeError, match="buffer must be float32 or float64, got int64"):
        neighbor_exchange(comm, cupy.zeros(3, np.int64), graph)
    with pytest.raises(TypeError, match="out must be on the GPU as buffer is, got ndarray"):
        neighbor_exchange(comm, cupy.zeros(3, np.float32), graph, out=np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="buffer must be contiguous"):
        neighbor_exchange(comm, cupy.zeros(6, np.float32)[::2], graph)
    with pytest.raises(TypeError, match="payload must be uint8, got float32"):
        neighbor_exchange_bytes(comm, cupy.zeros(3, np.float32), graph)


def test_compressed_gossip_moves_messages_alone(comm, cupy):
    graph, n = topology.make("ring", comm.size), 10_000
    strategy = ChocoGossip(comm, SGD(0.1), graph, TopK(0.01))
    params = cupy.asarray(values(0, n))
    strategy.start(params)
    cupy.fake.log.clear()
    strategy.step(params, cupy.asarray(values(comm.rank, n)))
    own, *others = cupy.fake.log
    assert len(others) == len(graph.neighbors(comm.rank).sources)
    assert max(own, *others, 0) < 0.02 * params.nbytes


def started(strategy, cupy):
    params = cupy.asarray(values(0, N))
    strategy.start(params)
    return params


def stepped(strategy, params, cupy, steps=12):
    for step in range(steps if strategy.works else 0):
        gradient = params - cupy.asarray(np.arange(float(N)) + values(step, N))
        strategy.step(params, gradient)


@pytest.mark.parametrize("compressor", [None, TopK(1.0)])
def test_one_worker_and_any_number_of_servers_is_plain_sgd_to_the_bit(compressor, comm, cupy):
    servers = max(1, comm.size - 1)
    strategy = ParameterServer(comm, SGD(0.1, 0.9), 1, compressor, servers=servers)
    params = started(strategy, cupy)
    stepped(strategy, params, cupy)
    strategy.finish(params)
    sgd, expected = SGD(0.1, 0.9), values(0, N)
    for step in range(12):
        sgd.update(expected, expected - (np.arange(float(N)) + values(step, N)))
    assert params.get().tobytes() == expected.tobytes()


def test_a_server_starts_from_what_its_parameters_are_by_then(comm, cupy):
    """As when a checkpoint is restored between `start` and the first step."""
    strategy = ParameterServer(comm, SGD(0.1), comm.size, servers=1)
    params = started(strategy, cupy)
    params[:] = 1.0
    if strategy.works:
        strategy.step(params, cupy.zeros(N))
    strategy.finish(params)
    np.testing.assert_array_equal(params.get(), np.ones(N))


def test_a_state_on_the_gpu_is_taken_over_by_servers_on_the_host(comm, cupy):
    strategy = ParameterServer(comm, SGD(0.1, 0.9), comm.size, TopK(0.5), group=2)
    params = started(strategy, cupy)
    stepped(strategy, params, cupy)
    strategy.finish(params)
    other = ParameterServer(comm, SGD(0.1, 0.9), comm.size, TopK(0.5), group=2)
    started(other, cupy)

    def above(state):
        found = {k: above(v) if isinstance(v, dict) else v for k, v in state.items()}
        return {k: cupy.asarray(v) if isinstance(v, np.ndarray) else v for k, v in found.items()}

    state = strategy.state_dict()
    other.load_state_dict(above(state))
    again = other.state_dict()
    assert again["sequencer"]["version"] == state["sequencer"]["version"] > 0
    if "optimizer" in state:
        velocity = again["optimizer"]["velocity"]
        np.testing.assert_array_equal(velocity, state["optimizer"]["velocity"])
    if "compressor" in state:
        residual = again["compressor"]["residual"]
        np.testing.assert_array_equal(residual, state["compressor"]["residual"])
        assert all(isinstance(own.residual, cupy.ndarray) for own in other.compressors)
    other.finish(params)


def test_pairs_keep_the_mean(comm, cupy):
    strategy = AsyncGossip(comm, SGD(0.1), topology.make("complete", comm.size))
    started(strategy, cupy)
    params, nothing = cupy.asarray(values(comm.rank, N)), cupy.zeros(N)
    mean, before = strategy.consensus(params), strategy.metrics(params)["consensus_distance"]
    for _ in range(40):
        strategy.step(params, nothing)
    strategy.end_epoch(params)
    said = strategy.metrics(params)
    np.testing.assert_allclose(strategy.consensus(params).get(), mean.get(), atol=1e-12)
    assert said["consensus_distance"] <= before
    if comm.size > 1:
        assert said["exchanges"] >= comm.size
        assert said["consensus_distance"] < before
    strategy.finish(params)
    bits = comm.allgather_bytes(params.get().view(np.uint8))
    assert all(other.tobytes() == bits[0].tobytes() for other in bits)
