"""world() where several processes were started but MPI knows of one, or of none."""

import sys
from pathlib import Path

import pytest

from paropt_hpc.comm.launcher import launched_size

OTHER_MPIEXEC = Path(sys.prefix) / "other-mpi" / "bin" / "mpiexec"

WORLD = """
from paropt_hpc import comm
try:
    print(comm.world())
except Exception as error:
    print(type(error).__name__, error)
"""
# What mpi4py's wheels say on a machine without an MPI library.
NO_MPI = """
import sys
class NoLibrary:
    def find_spec(self, name, path=None, target=None):
        if name == "mpi4py.MPI":
            raise RuntimeError("cannot load MPI library")
sys.meta_path.insert(0, NoLibrary())
"""


@pytest.mark.parametrize(
    ("environ", "size", "variable"),
    [
        ({}, 1, ""),
        ({"PMI_SIZE": "4", "PMI_RANK": "0"}, 4, "PMI_SIZE"),
        ({"PMI_SIZE": "1"}, 1, "PMI_SIZE"),
        ({"OMPI_COMM_WORLD_SIZE": "8", "PMIX_RANK": "0"}, 8, "OMPI_COMM_WORLD_SIZE"),
        ({"PMIX_RANK": "3"}, 4, "PMIX_RANK"),
        # srun, and an mpiexec within a job of 16 tasks, which knows better.
        ({"SLURM_STEP_NUM_TASKS": "16", "SLURM_PROCID": "0"}, 16, "SLURM_STEP_NUM_TASKS"),
        ({"SLURM_STEP_NUM_TASKS": "16", "PMI_SIZE": "2"}, 2, "PMI_SIZE"),
        # The batch script itself runs once, whatever the job was given.
        ({"SLURM_NTASKS": "16", "SLURM_PROCID": "0"}, 1, "SLURM_PROCID"),
        ({"SLURM_NTASKS": "16", "SLURM_PROCID": "2"}, 3, "SLURM_PROCID"),
        ({"PMI_SIZE": "many"}, 1, ""),
    ],
)
def test_launched_size(environ, size, variable):
    assert launched_size(environ) == (size, variable)


def test_alone_with_mpi(run_python):
    assert run_python(WORLD).stdout == "<Communicator rank 0 of 1>\n"


def test_alone_without_mpi(run_python):
    assert run_python(NO_MPI + WORLD).stdout == "<SerialCommunicator rank 0 of 1>\n"


def test_alone_without_mpi4py(run_python):
    hide = "import sys\nsys.modules['mpi4py'] = None\n"
    assert run_python(hide + WORLD).stdout == "<SerialCommunicator rank 0 of 1>\n"


def test_several_without_mpi(run_python):
    said = run_python(NO_MPI + WORLD, PMI_SIZE="2").stdout
    assert said.startswith("MPINotFoundError PMI_SIZE says that at least 2 processes were started")
    assert "pip install mpich" in said


def test_several_but_mpi_sees_one(run_python):
    # Neither MPICH nor Open MPI looks at MVAPICH2's variable.
    said = run_python(WORLD, MV2_COMM_WORLD_SIZE="3").stdout
    assert said.startswith("MPIMismatchError MV2_COMM_WORLD_SIZE says that at least 3 processes")
    assert "sees one" in said
    assert "unset MV2_COMM_WORLD_SIZE" in said


@pytest.mark.skipif(
    not OTHER_MPIEXEC.exists(), reason="no second MPI: `make test` gets it for the MPI wheels"
)
def test_ranks_of_the_other_mpis_launcher(run_ranks):
    done = run_ranks(2, WORLD, mpiexec=OTHER_MPIEXEC)
    assert "of 1>" not in done.stdout
    # MPICH ends by itself where it meets Open MPI's launcher; Open MPI goes on alone.
    refused = done.stdout.count("the launcher belongs to another MPI")
    assert refused == 2 or done.returncode != 0


def test_ranks_of_a_real_launcher(run_ranks):
    said = run_ranks(2, WORLD).stdout
    assert "<Communicator rank 0 of 2>" in said
    assert "<Communicator rank 1 of 2>" in said
