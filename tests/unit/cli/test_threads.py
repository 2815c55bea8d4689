import os

import pytest

from paropt_hpc.cli.threads import share_cores


@pytest.fixture
def eight_cores(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))


@pytest.mark.parametrize(
    ("environ", "threads"),
    [
        ({}, "8"),
        ({"MPI_LOCALNRANKS": "2"}, "4"),
        ({"OMPI_COMM_WORLD_LOCAL_SIZE": "3"}, "2"),
        ({"MPI_LOCALNRANKS": "64"}, "1"),
        ({"MPI_LOCALNRANKS": "2", "OMP_NUM_THREADS": "7"}, "7"),
    ],
)
def test_ranks_of_a_node_share_its_cores(eight_cores, environ, threads):
    share_cores(environ)
    assert environ["OMP_NUM_THREADS"] == threads


def test_a_bound_rank_uses_its_cores(eight_cores, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {2, 3, 4})
    environ = {"MPI_LOCALNRANKS": "8"}
    share_cores(environ)
    assert environ["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize(("ranks", "yields"), [("8", False), ("9", True)])
def test_ranks_without_a_core_of_their_own_do_not_spin(eight_cores, ranks, yields):
    environ = {"MPI_LOCALNRANKS": ranks}
    share_cores(environ)
    assert ("MPIR_CVAR_ENABLE_HEAVY_YIELD" in environ) is yields


def test_what_the_user_says_of_spinning_stays(eight_cores):
    environ = {"MPI_LOCALNRANKS": "9", "MPIR_CVAR_POLLS_BEFORE_YIELD": "50"}
    share_cores(environ)
    assert environ["MPIR_CVAR_POLLS_BEFORE_YIELD"] == "50"


@pytest.mark.parametrize(
    ("bound", "environ", "pinned"),
    [
        (2, {"SLURM_PROCID": "1", "OMP_NUM_THREADS": "2"}, True),
        (8, {"SLURM_PROCID": "1", "OMP_NUM_THREADS": "8"}, False),  # srun has not bound it
        (4, {"SLURM_PROCID": "1", "OMP_NUM_THREADS": "1"}, False),  # others may be there as well
        (2, {"OMP_NUM_THREADS": "2"}, False),
    ],
)
def test_threads_are_pinned_to_cores_of_their_own_only(
    eight_cores, monkeypatch, bound, environ, pinned
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(bound)))
    share_cores(environ)
    assert environ.get("OMP_PROC_BIND") == ("close" if pinned else None)
