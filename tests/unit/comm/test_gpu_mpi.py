"""Whether MPI is given arrays on a GPU, and which GPU is a rank's."""

import sys
from types import SimpleNamespace

import pytest

from paropt_hpc.comm import gpu_mpi, native
from paropt_hpc.comm.gpu_mpi import Awareness, local_device, through_mpi
from paropt_hpc.errors import ConfigError


@pytest.fixture
def asked_anew():
    gpu_mpi.awareness.cache_clear()
    yield
    gpu_mpi.awareness.cache_clear()


def test_the_variable_decides_before_the_library(monkeypatch):
    monkeypatch.setattr(gpu_mpi, "awareness", lambda: Awareness(True, "says the test"))
    assert through_mpi({})
    assert through_mpi({"PAROPT_GPU_MPI": "auto"})
    assert not through_mpi({"PAROPT_GPU_MPI": "0"})
    monkeypatch.setattr(gpu_mpi, "awareness", lambda: Awareness(False, "says the test"))
    assert not through_mpi({})
    assert through_mpi({"PAROPT_GPU_MPI": "1"})
    with pytest.raises(ConfigError, match="PAROPT_GPU_MPI must be 0, 1 or auto, got 'yes'"):
        through_mpi({"PAROPT_GPU_MPI": "yes"})


@pytest.mark.parametrize(
    ("library", "variable"),
    [
        ("CRAY MPICH version 8.1.28", "MPICH_GPU_SUPPORT_ENABLED"),
        ("MVAPICH2 Version 2.3.7", "MV2_USE_CUDA"),
        ("Intel(R) MPI Library 2021.11", "I_MPI_OFFLOAD"),
    ],
)
def test_libraries_with_a_switch(library, variable, monkeypatch, asked_anew):
    monkeypatch.setattr(native, "library", lambda: library)
    monkeypatch.delenv(variable, raising=False)
    assert gpu_mpi.awareness() == (False, f"{variable} is not set")
    gpu_mpi.awareness.cache_clear()
    monkeypatch.setenv(variable, "1")
    assert gpu_mpi.awareness() == (True, f"{variable} is 1")


def test_a_library_without_the_query(monkeypatch, asked_anew):
    monkeypatch.setattr(native, "library", lambda: "Some MPI 1.0")
    monkeypatch.setattr(gpu_mpi, "_loaded_library", lambda: "/no/such/libmpi.so")
    assert gpu_mpi.awareness() == (False, "it has no MPIX_Query_cuda_support")
    monkeypatch.setattr(gpu_mpi, "_loaded_library", lambda: None)
    gpu_mpi.awareness.cache_clear()
    assert not gpu_mpi.awareness().aware


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_the_library_that_is_loaded_answers(asked_anew):
    aware, reason = gpu_mpi.awareness()
    assert reason == f"MPIX_Query_cuda_support is {int(aware)}"


def test_the_place_on_the_node_decides_not_slurm(monkeypatch):
    monkeypatch.setenv("SLURM_LOCALID", "0")
    places = [local_device(SimpleNamespace(node_rank=r, node_size=4), 2) for r in range(4)]
    assert places == [0, 1, 0, 1]
