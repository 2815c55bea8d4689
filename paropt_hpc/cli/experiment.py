"""``paropt experiment``: every combination of some settings, and what came of it."""

from pathlib import Path
from typing import Annotated

import typer

from paropt_hpc import experiments
from paropt_hpc.cli import console
from paropt_hpc.cluster import in_job, preflight
from paropt_hpc.comm import Communicator, world
from paropt_hpc.errors import ConfigError, StoppedError, is_on_every_rank
from paropt_hpc.experiments.matrix import config_of
from paropt_hpc.train import train

__all__ = ["experiment_command"]


def experiment_command(
    matrix_file: Annotated[
        Path, typer.Argument(metavar="MATRIX", help="Base, axes and target, a TOML file.")
    ],
    folder: Annotated[
        Path | None, typer.Option("--dir", help="Folder of the runs; by default runs/NAME.")
    ] = None,
    retry: Annotated[bool, typer.Option("--retry", help="Run failed cells once more.")] = False,
    report: Annotated[
        bool, typer.Option("--report", help="Run nothing, write the report of what there is.")
    ] = False,
    cell: Annotated[
        int | None,
        typer.Option("--cell", help="Run this one only, on the ranks started; in job arrays."),
    ] = None,
) -> None:
    """Run every combination of some settings, several times each, and report on them.

    The runs are started here by mpiexec, one after the other; what has a result is not run again,
    and a run that fails does not lose the others. On Slurm arrays run them: `paropt submit MATRIX
    --ntasks-per-node 4`, then `paropt experiment MATRIX --report`.

    A matrix is, for example:

    `base = "digits.toml"`; `target.value = 0.95`; `repeats = 3`; `axes.ranks = [1, 2, 4]`;
    `axes."compress.method" = ["none", "topk"]`.
    """
    matrix = experiments.load_matrix(matrix_file)
    folder = folder or Path("runs") / matrix_file.stem
    if cell is not None:
        with world() as comm:
            _run_cell(comm, matrix, matrix_file, folder, cell)
        return
    experiments.check_settings(matrix, matrix_file, folder)
    if not report:
        total = len(matrix.cells())
        experiments.run_cells(
            matrix,
            matrix_file,
            folder,
            lambda done, what: console.line(f"{done.number + 1}/{total} {done.name}: {what}"),
            retry=retry,
        )
    analysis = experiments.analyse(matrix, matrix_file, folder)
    console.table(*experiments.overview(analysis))
    for text in experiments.verdicts(analysis):
        console.line(f"- {text}")
    folder.mkdir(parents=True, exist_ok=True)
    written = experiments.write_report(analysis, folder)
    console.line(f"report in {' and '.join(map(str, written))}")


def _run_cell(
    comm: Communicator, matrix: experiments.Matrix, path: Path, folder: Path, number: int
) -> None:
    """Run one cell on the ranks that were started; a failure is kept in its folder."""
    with comm.together():
        cells = matrix.cells()
        if not 0 <= number < len(cells):
            raise ConfigError(f"--cell must be in 0..{len(cells) - 1}, got {number}")
        chosen = cells[number]
        if chosen.ranks != comm.size:
            raise ConfigError(
                f"cell {number} wants {chosen.ranks} ranks, but {comm.size} were started"
            )
        config = config_of(matrix, path, chosen, folder)
        config = config.model_copy(update={"run": config.run.model_copy(update={"resume": True})})
    if in_job():
        preflight(comm, folder)
    with comm.together():
        done = experiments.outcome(folder, chosen) == "done"
    if done:
        return
    try:
        train(config, comm)
    except StoppedError:  # it goes on later
        raise
    except Exception as error:
        if comm.rank == 0 or not is_on_every_rank(error):
            experiments.record_failure(folder, chosen, str(error))
        raise
