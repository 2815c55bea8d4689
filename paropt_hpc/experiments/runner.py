"""Running the cells of a matrix: those that have no result yet, each in processes of its own."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from paropt_hpc.errors import ConfigError, StoppedError
from paropt_hpc.experiments.matrix import Cell, Matrix, config_of
from paropt_hpc.train import load_config
from paropt_hpc.train.config import changed_setting, identity

__all__ = [
    "FAILURE",
    "Outcome",
    "check_settings",
    "launcher",
    "outcome",
    "record_failure",
    "run_cells",
]

FAILURE = "failed.txt"  # why a run failed, in its folder

# The word for what became of a cell: "done", "failed" or "missing".
Outcome = str


def outcome(folder: Path, cell: Cell) -> Outcome:
    """Say what is known of a cell in the folder of an experiment."""
    run = folder / cell.name
    if (run / "summary.json").exists():
        return "done"
    return "failed" if (run / FAILURE).exists() else "missing"


def check_settings(matrix: Matrix, path: Path, folder: Path) -> None:
    """Refuse to mix runs of the present settings with those of others in a folder; local.

    Raises
    ------
    ConfigError
        Naming the run and a setting that has changed since.
    """
    for cell in matrix.cells():
        kept = folder / cell.name / "config.toml"
        if not kept.exists():
            continue
        before, now = load_config(kept), config_of(matrix, path, cell, folder)
        found = changed_setting(identity(before), now)
        if found is None and before.train.epochs != now.train.epochs:
            found = "train.epochs", before.train.epochs, now.train.epochs
        if found is not None:
            key, old, new = found
            raise ConfigError(
                f"{kept.parent} was made when {key} was {old!r}, and it is {new!r} now; restore "
                "it, remove that folder, or name another folder by --dir"
            )


def record_failure(folder: Path, cell: Cell, reason: str) -> None:
    """Keep why a cell has failed; local."""
    run = folder / cell.name
    run.mkdir(parents=True, exist_ok=True)
    (run / FAILURE).write_text(reason + "\n", encoding="utf-8")


def run_cells(
    matrix: Matrix,
    path: Path,
    folder: Path,
    show: Callable[[Cell, Outcome], None],
    *,
    retry: bool = False,
) -> None:
    """Run every cell that has no result, one after the other; a failed one is kept and passed over.

    Parameters
    ----------
    matrix : Matrix
    path : Path
        Its file.
    folder : Path
        Of the experiment; holds a run folder per cell.
    show : callable
        Told of every cell and what became of it.
    retry : bool, default False
        Run those that have failed once more.

    Raises
    ------
    ConfigError
        There is no mpiexec for runs on several ranks.
    StoppedError
        A run was told to stop; the same call goes on with it.
    """
    if any(cell.ranks > 1 for cell in matrix.cells()):
        launcher()  # better now than after hours on one rank
    for cell in matrix.cells():
        known = outcome(folder, cell)
        if known == "missing" or (known == "failed" and retry):
            _run(cell, path.parent / matrix.base, folder)
        show(cell, outcome(folder, cell))


def _run(cell: Cell, base: Path, folder: Path) -> None:
    run = folder / cell.name
    run.mkdir(parents=True, exist_ok=True)
    (run / FAILURE).unlink(missing_ok=True)
    command = [sys.executable, "-m", "paropt_hpc", "train", str(base), "--resume"]
    for assignment in cell.assignments(folder):
        command += ["--set", assignment]
    if cell.ranks > 1:
        command = [*launcher(), "-n", str(cell.ranks), *command]
    with (run / "log.txt").open("w", encoding="utf-8") as log:
        status = subprocess.run(command, stdout=log, stderr=log, check=False).returncode
    if status == StoppedError.status:
        raise StoppedError(f"{cell.name} was told to stop; the same command goes on")
    if status != 0:
        record_failure(folder, cell, f"status {status}: {_last_words(run / 'log.txt')}")


def launcher() -> list[str]:
    """Return the command that starts ranks here: ``PAROPT_MPIEXEC``, or the ``mpiexec`` at hand.

    Raises
    ------
    ConfigError
        There is none.
    """
    named = os.environ.get("PAROPT_MPIEXEC")
    beside = Path(sys.executable).with_name("mpiexec")  # of an MPI installed by pip
    found = named or (str(beside) if beside.exists() else shutil.which("mpiexec"))
    if found is None:
        raise ConfigError(
            "mpiexec is not on PATH: pip install mpich, load your MPI module, or name it by "
            "PAROPT_MPIEXEC"
        )
    return found.split()


def _last_words(log: Path) -> str:
    """Return the error that a run ended with, or else the last line of its log."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").split("\n")]
    errors = [line for line in lines if "error:" in line]
    return (errors or [line for line in lines if line] or ["no output"])[-1]
