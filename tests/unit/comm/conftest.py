"""Fresh processes for what cannot be shown in this one: starting MPI, failing to, being ended."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# What a launcher leaves behind; a process started with it would believe that it is a rank.
_LAUNCHER = ("PMI", "PMIX", "OMPI_COMM", "PRTE_", "SLURM_", "FLUX_", "MV2_", "HYDI", "MPI_LOCAL")

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def run(command: list[str], variables: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    env = {name: value for name, value in os.environ.items() if not name.startswith(_LAUNCHER)}
    # Open MPI refuses root and counts slots, both wrong in a container.
    env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    env |= {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "PYTHONSAFEPATH": "1"}
    return subprocess.run(
        command, env=env | variables, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.fixture
def run_python(tmp_path: Path) -> Run:
    """Run a script in a process of its own: run_python(source, VARIABLE="value")."""

    def start(source: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        script = tmp_path / "script.py"
        script.write_text(source)
        return run([sys.executable, str(script)], variables)

    return start


@pytest.fixture
def run_ranks(tmp_path: Path) -> Run:
    """Run a script on n ranks, through ``python -m mpi4py`` as the guide advises."""
    beside = Path(sys.prefix) / "bin" / "mpiexec"
    ours = beside if beside.exists() else shutil.which("mpiexec")
    if ours is None:
        pytest.skip("no mpiexec beside this Python or on PATH")

    def start(
        n: int, source: str, *, mpiexec: Path | str = ours, **variables: str
    ) -> "subprocess.CompletedProcess[str]":
        script = tmp_path / "script.py"
        script.write_text(source)
        command = [str(mpiexec), "-n", str(n), sys.executable, "-m", "mpi4py", str(script)]
        return run(command, variables)

    return start
