"""Arrays on a GPU between ranks; the GPU is that of ``tests/fake``."""

import fake_gpu
import ml_dtypes
import numpy as np
import pytest

from paropt_hpc.comm import gpu_allreduce, gpu_mpi, sparse_allreduce
from paropt_hpc.comm.buffers import DTYPES
from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels import device, message, quantize

pytestmark = pytest.mark.mpi


@pytest.fixture
def cupy(world, monkeypatch):
    monkeypatch.delenv(gpu_mpi.VARIABLE, raising=False)
    return fake_gpu.install(monkeypatch, uuid=10 * world.Get_rank())


def values(rank, n, dtype):
    """Small multiples of 1/8: their sums are exact in every order."""
    drawn = np.random.default_rng([n, rank]).integers(-40, 41, n)
    return (drawn if np.dtype(dtype).kind == "i" else drawn / 8).astype(dtype)


def reduced(comm, n, dtype, op):
    wide = np.stack([values(rank, n, dtype).astype(np.float64) for rank in range(comm.size)])
    return getattr(np, op)(wide, axis=0).astype(dtype)


def faults_of(comm, cupy, n, dtype, op, algorithm, out=False):
    own = cupy.asarray(values(comm.rank, n, dtype))
    target = cupy.empty_like(own) if out else own
    comm.allreduce(own, op, algorithm, target if out else None)
    faults = []
    if target.get().tobytes() != reduced(comm, n, dtype, op).tobytes():
        faults.append(f"{op} of {n} {np.dtype(dtype)} by {algorithm}")
    if out and own.get().tobytes() != values(comm.rank, n, dtype).tobytes():
        faults.append("the input was overwritten")
    return faults


@pytest.mark.parametrize("segments", [1, 2, 3, 4, 9])
def test_staged_through_the_host_in_segments(segments, comm, cupy, monkeypatch, everywhere):
    monkeypatch.setattr(gpu_allreduce, "STAGE_BYTES", 256)
    n = 64 * segments - 5
    faults = faults_of(comm, cupy, n, np.float32, "sum", "auto")
    everywhere(faults + faults_of(comm, cupy, n, np.float32, "mean", "ring", out=True))
    if comm.size > 1:
        assert max(cupy.fake.log) <= 256
        assert sum(cupy.fake.log) == 2 * 2 * 4 * n  # two calls, down and up
        assert comm.memory_bytes >= 256 * min(3, segments) - 20


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_all_types_and_operations(dtype, comm, cupy, monkeypatch, everywhere):
    monkeypatch.setattr(gpu_allreduce, "STAGE_BYTES", 100)
    faults = []
    for op in ("sum", "min", "max") + (() if dtype.kind == "i" else ("mean",)):
        for n in (0, 1, 77):
            faults += faults_of(comm, cupy, n, dtype, op, "auto")
    everywhere(faults)


def test_the_next_segment_comes_down_while_one_is_reduced(cupy, monkeypatch):
    monkeypatch.setattr(gpu_allreduce, "STAGE_BYTES", 8)
    array, staging, seen = cupy.asarray(np.arange(5.0)), gpu_allreduce.Staging(), []

    def work(segment):
        seen.append((segment.tolist(), sum(map(len, cupy.fake.queues.values()))))
        segment += 1

    view = device.view(array)
    staging.run(view, view, work)
    # In flight: the segment after this one, and up to two before it.
    assert seen == [([0.0], 1), ([1.0], 2), ([2.0], 3), ([3.0], 3), ([4.0], 2)]
    np.testing.assert_array_equal(array.get(), np.arange(1.0, 6.0))


@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("algorithm", ["auto", "ring", "mpi"])
def test_by_an_mpi_that_takes_addresses(algorithm, op, comm, cupy, monkeypatch, everywhere):
    monkeypatch.setenv(gpu_mpi.VARIABLE, "1")
    faults = []
    for n in (0, 1, 2, 5, 1000):
        faults += faults_of(comm, cupy, n, np.float64, op, algorithm)
        faults += faults_of(comm, cupy, n, np.float32, op, algorithm, out=True)
    everywhere(faults)
    assert not cupy.fake.log  # nothing has passed the host


def test_what_has_no_kernel_passes_the_host(comm, cupy, monkeypatch, everywhere):
    monkeypatch.setenv(gpu_mpi.VARIABLE, "1")
    faults = faults_of(comm, cupy, 9, ml_dtypes.bfloat16, "mean", "mpi")
    faults += faults_of(comm, cupy, 9, np.float32, "max", "auto")
    everywhere(faults)
    assert bool(cupy.fake.log) == (comm.size > 1)


def test_a_bad_variable_is_said_by_all(comm, cupy, monkeypatch):
    if comm.rank == comm.size - 1:
        monkeypatch.setenv(gpu_mpi.VARIABLE, "perhaps")
    if comm.size > 1:
        with pytest.raises(ConfigError, match="must be 0, 1 or auto, got 'perhaps'"):
            comm.allreduce(cupy.zeros(3, np.float32))


def test_nccl(comm, cupy, everywhere):
    faults = faults_of(comm, cupy, 50, np.float32, "mean", "nccl")
    faults += faults_of(comm, cupy, 50, np.int64, "max", "nccl", out=True)
    everywhere(faults)
    with pytest.raises(ConfigError, match="'nccl' is for arrays on a GPU"):
        comm.allreduce(np.zeros(3), algorithm="nccl")
    if comm.size > 1:
        with pytest.raises(TypeError, match=r"'nccl' takes float32, .*, got float16"):
            comm.allreduce(cupy.zeros(3, np.float16), algorithm="nccl")


def test_nccl_wants_a_gpu_for_every_rank(comm, cupy):
    cupy.fake.device_uuid = 0
    if comm.size > 1:
        with pytest.raises(ConfigError, match="ranks 0 and 1 share one on"):
            comm.allreduce(cupy.zeros(3, np.float32), algorithm="nccl")


def test_started_and_broadcast(comm, cupy, monkeypatch):
    monkeypatch.setattr(gpu_allreduce, "STAGE_BYTES", 64)
    array = cupy.asarray(values(comm.rank, 100, np.float64))
    comm.broadcast(array, comm.size - 1)
    np.testing.assert_array_equal(array.get(), values(comm.size - 1, 100, np.float64))
    request = comm.start(array, "sum")
    request.wait()
    np.testing.assert_array_equal(array.get(), comm.size * values(comm.size - 1, 100, np.float64))


def test_arguments(comm, cupy):
    with pytest.raises(TypeError, match=r"buffer must be float32, .*, got uint8"):
        comm.allreduce(cupy.zeros(3, np.uint8))
    with pytest.raises(ValueError, match="buffer must be contiguous"):
        comm.allreduce(cupy.zeros(6, np.float32)[::2])
    with pytest.raises(TypeError, match="out must be on the GPU as buffer is, got ndarray"):
        comm.allreduce(cupy.zeros(3, np.float32), out=np.zeros(3, np.float32))
    with pytest.raises(ValueError, match="out must be as buffer"):
        comm.allreduce(cupy.zeros(3, np.float32), out=cupy.zeros(4, np.float32))
    whole = cupy.zeros(6, np.float32)
    with pytest.raises(ValueError, match="they overlap"):
        comm.allreduce(whole[:4], out=whole[2:])
    with pytest.raises(TypeError, match="op 'mean' needs floats"):
        comm.allreduce(cupy.zeros(3, np.int32))


def sparse(rank, n, k):
    rng = np.random.default_rng([rank, n, k])
    indices = np.sort(rng.choice(n, k, replace=False)).astype(np.uint32)
    return indices, rng.standard_normal(k, np.float32)


@pytest.mark.parametrize("scheme", ["auto", "allgather", "split", "reselect", "dense"])
def test_sparse_sums_are_those_of_the_host(scheme, comm, cupy, everywhere):
    faults = []
    for n, k in ((1, 1), (100, 0), (3000, 60), (3000, 2000)):
        indices, values = sparse(comm.rank, n, k)
        here = np.full(n, np.nan, np.float32)
        expected = sparse_allreduce(comm, message.encode(indices, values, n), here, scheme)
        there = cupy.asarray(np.full(n, np.nan, np.float32))
        data = message.encode(cupy.asarray(indices), cupy.asarray(values), n)
        cupy.fake.log.clear()
        result = sparse_allreduce(comm, data, there, scheme, op="sum")
        if scheme != "auto" and there.get().tobytes() != here.tobytes():
            faults.append(f"{scheme}: {k} of {n}")
        for name in ("dropped_indices", "dropped_values"):
            if scheme != "auto" and not np.array_equal(
                getattr(result, name).get(), getattr(expected, name)
            ):
                faults.append(f"{scheme}: {name}")
        if scheme == "auto" and not np.allclose(there.get(), here, atol=1e-6):
            faults.append(f"auto took {result.scheme}")
        # What has crossed: messages, here as long as their entries at most, and no dense vector.
        if (n, k) == (3000, 60) and scheme != "dense":
            assert max(cupy.fake.log) < 1500
    everywhere(faults)


def test_a_quantised_message_crosses_as_it_is(comm, cupy):
    n = 1000
    values = cupy.asarray(np.linspace(-1, 1, n, dtype=np.float32))
    data = message.encode(None, quantize.encode(values, "int8"), n)
    there = cupy.empty(n, np.float32)
    cupy.fake.log.clear()
    sparse_allreduce(comm, data, there, "allgather", op="mean")
    np.testing.assert_allclose(there.get(), values.get(), atol=1e-2)
    assert set(cupy.fake.log) - {0} == ({data.size} if comm.size > 1 else set())
