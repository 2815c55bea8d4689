"""Checks before any work, on real ranks."""

import tempfile
from pathlib import Path

import pytest

from paropt_hpc.cluster import inspect, local_device, preflight
from paropt_hpc.errors import ConfigError, is_on_every_rank


@pytest.fixture
def shared_folder(world):
    made = tempfile.TemporaryDirectory() if world.rank == 0 else None
    yield Path(world.bcast(made.name if made else None))
    world.Barrier()
    if made:
        made.cleanup()


def test_ranks_as_promised_pass(comm, monkeypatch, shared_folder):
    monkeypatch.setenv("PAROPT_RANKS", str(comm.size))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    preflight(comm, shared_folder / "runs" / "new")
    assert all(fact.ok for fact in inspect(comm))


def test_other_than_promised(comm, monkeypatch):
    monkeypatch.setenv("PAROPT_RANKS", str(comm.size + 1))
    with pytest.raises(ConfigError, match=r"PAROPT_RANKS is .* --mpi=") as raised:
        preflight(comm)
    assert is_on_every_rank(raised.value)


def test_versions_that_differ_name_the_rank(comm, monkeypatch):
    if comm.size == 1:
        pytest.skip("needs two ranks to differ")
    if comm.rank == comm.size - 1:
        monkeypatch.setattr("paropt_hpc.cluster.inspection.__version__", "0.0.1")
    with pytest.raises(ConfigError, match=rf"rank {comm.size - 1} on .* paropt-hpc 0\.0\.1"):
        preflight(comm)


def test_a_folder_of_one_rank_alone(comm, monkeypatch, tmp_path, shared_folder):
    if comm.size == 1:
        pytest.skip("needs two ranks to differ")
    monkeypatch.setattr("paropt_hpc.cluster.inspection._ATTRIBUTE_CACHE", 0.3)
    folder = shared_folder if comm.rank < comm.size - 1 else tmp_path
    with pytest.raises(ConfigError, match=rf"not the same on rank {comm.size - 1}"):
        preflight(comm, folder)


def test_more_threads_than_cores(comm, monkeypatch):
    if comm.size == 1:
        pytest.skip("one rank may do as it likes")
    monkeypatch.setenv("OMP_NUM_THREADS", "1000")
    with pytest.raises(ConfigError, match=r"threads on .* cores; lower OMP_NUM_THREADS"):
        preflight(comm)


def test_neighbours_take_neighbouring_devices(comm):
    taken = comm.gather_scalars(local_device(comm, comm.node_size))
    assert sorted(taken) == list(range(comm.size))


def test_a_gpu_for_every_rank(comm, monkeypatch):
    def said():
        return next(fact for fact in inspect(comm) if fact.name == "GPUs")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(comm.node_size))))
    assert said().value == "one for each rank"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", str(comm.rank))  # each sees its own alone
    assert said().value == "one for each rank"
    if comm.size > 1:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
        assert said().value == f"up to {comm.size} ranks share one"
        if comm.rank == 1:
            monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
        with pytest.raises(ConfigError, match=r"rank 1 on .* sees none"):
            preflight(comm)
