"""The native module is refused, never called, where its MPI is not the one that runs."""

import importlib.machinery
import sys
from pathlib import Path

import pytest

from paropt_hpc.comm import native
from paropt_hpc.errors import ConfigError

OTHER = Path(sys.prefix) / "other-mpi" / "built" / "paropt_hpc"

RING = """
import numpy as np
from mpi4py import MPI
from paropt_hpc import comm, errors
try:
    buffer = np.ones(5)
    comm.ring_allreduce(MPI.COMM_WORLD, buffer, "sum")
    print("sum", buffer[0])
except Exception as error:
    print(type(error).__name__, error)
"""


def with_module_from(folder):
    return f"import paropt_hpc\nparopt_hpc.__path__.insert(0, {str(folder)!r})\n"


needs_other_mpi = pytest.mark.skipif(
    not OTHER.exists(), reason="no second MPI: `make test` gets it for the MPI wheels"
)


def assert_refused(done):
    # A negative status would be a signal: the crash that the guard is there to prevent.
    assert done.returncode == 0, done.stderr
    assert "MPIMismatchError paropt_hpc._mpi was built with" in done.stdout
    assert "MPICH" in done.stdout
    assert "Open MPI" in done.stdout
    assert "pip install --force-reinstall" in done.stdout


@needs_other_mpi
def test_built_for_another_mpi(run_python):
    assert_refused(run_python(with_module_from(OTHER) + RING))


@needs_other_mpi
def test_built_for_another_mpi_on_two_ranks(run_ranks):
    done = run_ranks(2, with_module_from(OTHER) + RING)
    assert_refused(done)
    assert done.stdout.count("MPIMismatchError") == 2


@needs_other_mpi
def test_built_for_another_mpi_does_without(run_python):
    done = run_python(with_module_from(OTHER) + RING, PAROPT_BACKEND="reference")
    assert done.stdout == "sum 1.0\n"


def test_built_for_an_mpi_that_is_not_there(run_python, tmp_path):
    # What the loader says of a file that is no library stands for a libmpi that is missing.
    (tmp_path / f"_mpi{importlib.machinery.EXTENSION_SUFFIXES[0]}").write_bytes(b"not ELF")
    done = run_python(with_module_from(tmp_path) + RING)
    assert done.returncode == 0, done.stderr
    assert "MPIMismatchError paropt_hpc._mpi was built with an MPI that cannot be loaded" in (
        done.stdout
    )


NOT_BUILT = """
from paropt_hpc.comm import native
native.importlib.util.find_spec = lambda name: None
"""


def test_not_built_does_without(run_python):
    done = run_python(NOT_BUILT + RING)
    assert done.stdout == "sum 1.0\n"


def test_not_built_but_asked_for(run_python):
    done = run_python(NOT_BUILT + RING, PAROPT_BACKEND="native")
    assert done.stdout.startswith("ConfigError backend 'native' asked for")
    assert "PAROPT_BUILD_MPI=1" in done.stdout


def test_built_here_is_accepted(run_python):
    said = run_python("from paropt_hpc.comm import native\nprint(native.load().built_with())")
    assert said.stdout.startswith(("MPICH", "Open MPI", "MPI")), said.stderr


def test_unknown_backend(monkeypatch):
    with pytest.raises(ConfigError, match="backend must be one of auto, native, reference"):
        native.select("fortran")
    monkeypatch.setenv("PAROPT_BACKEND", "fortran")
    with pytest.raises(ConfigError, match="PAROPT_BACKEND must be one of"):
        native.select()


def test_a_backend_of_the_kernels_alone(monkeypatch):
    monkeypatch.setattr(native, "load", lambda: "loaded")
    monkeypatch.setenv("PAROPT_BACKEND", "cuda")
    assert native.select() == "loaded"


def test_reference_needs_no_module(monkeypatch):
    monkeypatch.setattr(native, "load", lambda: pytest.fail("must not be loaded"))
    assert native.select("reference") is None


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("MPICH 5.0.2", "MPICH"),
        ("Intel(R) MPI Library 2021.13 for Linux", "MPICH"),
        ("MPI VERSION : CRAY MPICH version 8.1.29", "MPICH"),
        ("MVAPICH Version : 4.0", "MPICH"),
        ("Open MPI v5.0.11", "Open MPI"),
        ("MPI ABI 1.0", "MPI ABI"),
        ("Fujitsu MPI 4", "Fujitsu MPI 4"),
    ],
)
def test_family(name, family):
    assert native._family(name) == family


def test_importing_comm_does_not_start_mpi(run_python):
    said = run_python("import sys, paropt_hpc.comm\nprint('mpi4py.MPI' in sys.modules)")
    assert said.stdout == "False\n", said.stderr
