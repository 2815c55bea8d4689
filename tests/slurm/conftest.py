import os
import shutil
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from cluster import Cluster, why_not


@pytest.fixture(scope="session")
def slurm():
    """A running cluster of two nodes; skips where there can be none."""
    reason = why_not()
    if reason:
        pytest.skip(reason)
    with Cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def mpi():
    """The plugin of srun's that the installed MPI library understands."""
    from paropt_hpc.cluster.submission import mpi_plugin

    return mpi_plugin()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def paropt():
    """The installed command, as a path: jobs start in an environment of their own."""
    found = shutil.which("paropt", path=os.environ["PATH"])
    assert found is not None
    return found
