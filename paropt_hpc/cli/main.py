"""Commands of ``paropt``, and what becomes of an error on one or all ranks.

A fault that all ranks have agreed on ends each of them with one line from rank 0. A fault
of one rank alone is printed there, and ends the others through ``MPI_Abort``, because
they may be waiting for it.
"""

import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, TextIO

import typer
from typer.main import get_command

from paropt_hpc import __version__
from paropt_hpc.cli import console
from paropt_hpc.cli.advise import advise_command
from paropt_hpc.cli.experiment import experiment_command
from paropt_hpc.cli.submit import submit_command
from paropt_hpc.cluster import describe, in_job, inspect, preflight, run_selftest
from paropt_hpc.comm import Communicator, tuning, world
from paropt_hpc.comm.communicator import LAST_WORDS
from paropt_hpc.comm.launcher import abort, finish, launched_rank, launched_size
from paropt_hpc.errors import (
    ConfigError,
    EvaluationError,
    ParoptError,
    StoppedError,
    is_on_every_rank,
    on_every_rank,
)
from paropt_hpc.experiments import load_tuning, plot_search, plot_trials, tune_training
from paropt_hpc.metaheuristics.config import load_search
from paropt_hpc.metaheuristics.minimise import minimise
from paropt_hpc.train import Config, Summary, load_config, read_summary, train
from paropt_hpc.tuning import importance

__all__ = ["main"]

# The end of any rank ends the others: so long those of which MPI has not started wait for rank 0,
# which speaks for all.
_FIRST_WORDS = 1.0
_CTRL_C = 130  # exit status

app = typer.Typer(
    help="Parallel optimisation on MPI clusters.",
    epilog="Start with several ranks by mpiexec: mpiexec -n 4 paropt train config.toml",
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


def main(arguments: list[str] | None = None) -> None:
    """Run ``paropt`` with the given arguments (default: those of the process) and exit.

    The exit status is 0 for success, 1 for a failed selftest or an internal error, 2 for a
    fault of the user's input, 75 when a signal stopped a run that can go on, 130 after Ctrl-C.
    """
    arguments = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    if {"--help", "--version"} & {*arguments} and launched_rank(os.environ) > 0:
        sys.exit(0)  # once is enough
    python_shows = warnings.showwarning
    warnings.showwarning = _show_warning
    try:
        status = _run(get_command(app), arguments)
    finally:
        warnings.showwarning = python_shows
    sys.exit(status)


def _show_warning(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning that is for the user, in one line; others as Python does."""
    if issubclass(category, UserWarning):
        console.warning(str(message))
    else:
        print(warnings.formatwarning(message, category, filename, lineno, line), file=sys.stderr)


def _run(command: Callable[..., object], arguments: list[str]) -> int:
    try:
        status = command(args=arguments, prog_name="paropt", standalone_mode=False)
        if status == _CTRL_C:
            raise KeyboardInterrupt  # which typer has made a status of
        return status if isinstance(status, int) else 0
    except typer.Exit as stop:
        return stop.exit_code
    except (typer.Abort, KeyboardInterrupt):
        if launched_size(os.environ)[0] > 1:
            abort(_CTRL_C)  # another rank may wait for this one where no Ctrl-C is heard
        return _CTRL_C
    except StoppedError as error:
        return _fail(str(error), StoppedError.status, everywhere=is_on_every_rank(error))
    except ParoptError as error:
        return _fail(str(error), 2, everywhere=is_on_every_rank(error))
    except MemoryError as error:
        text = f"not enough memory: {error}" if str(error) else "not enough memory"
        return _fail(text, 2, everywhere=is_on_every_rank(error))
    except Exception as error:
        if hasattr(error, "format_message"):  # wrong usage, as every rank has found out
            said = error.format_message().rstrip(".")
            return _fail(f"{said}; see paropt --help", 2, everywhere=True)
        return _fail(traceback.format_exc(), 1, everywhere=is_on_every_rank(error))


def _fail(text: str, status: int, *, everywhere: bool) -> int:
    """Print a fault; end the other ranks unless each of them fails as well."""
    rank, (size, _) = launched_rank(os.environ), launched_size(os.environ)
    if everywhere:
        if rank == 0:
            console.error(text)
        if not finish() and rank > 0:
            time.sleep(_FIRST_WORDS)
        return status
    console.error(text if size == 1 else f"rank {rank}: {text}")
    time.sleep(LAST_WORDS)
    abort(status)
    return status


ConfigFile = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="Settings of the run, a TOML file.")
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change one setting: `--set train.lr=0.1`."),
]
RunFolders = Annotated[
    list[Path], typer.Argument(metavar="RUN...", help="Folders of finished runs.")
]


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        console.line(f"paropt-hpc {__version__}")
        raise typer.Exit


Resume = Annotated[
    bool, typer.Option("--resume", help="Go on from the newest checkpoint, if there is one.")
]


Trace = Annotated[
    Path | None,
    typer.Option(
        "--trace", metavar="FILE", help="Write a timeline of all ranks for chrome://tracing."
    ),
]


@app.command("train", epilog="mpiexec -n 4 paropt train digits.toml --set compress.method=topk")
def train_command(
    config_file: ConfigFile,
    assignments: Assignments = None,
    resume: Resume = False,
    trace: Trace = None,
) -> None:
    """Train a model as a configuration says, on as many ranks as are started.

    Results go to the run folder, `runs/NAME` by default: the complete configuration, the
    metrics of every epoch, and a summary.
    """
    with world() as comm:
        assignments = [*(assignments or []), *(["run.resume=true"] if resume else [])]
        if trace is not None:
            assignments.append(f"run.trace={json.dumps(str(trace))}")
        config = _shared_config(comm, config_file, assignments)
        if in_job():
            preflight(comm, Path(config.run.dir or "."))
        with console.progress(comm.rank) as observer:
            summary = train(config, comm, observer)
        if comm.rank == 0:
            console.summary(asdict(summary))
            console.line(f"results in {config.run.dir}")
            if trace is not None:
                console.line(f"timeline in {trace}; open it in chrome://tracing or ui.perfetto.dev")
            if summary.straggler >= 0 and config.strategy.name != "parameter-server":
                console.warning(_about_straggler(summary))


@app.command(epilog="mpiexec -n 4 paropt optimize search.toml --set islands.count=4")
def optimize(
    config_file: ConfigFile, assignments: Assignments = None, resume: Resume = False
) -> None:
    """Minimise a function, a benchmark, a tour or what a program prints, without gradients.

    Results go to the run folder, `runs/NAME` by default: the complete configuration, the figures of
    the generations, a plot of the convergence, and a summary with the best point.
    """
    with world() as comm:
        assignments = [*(assignments or []), *(["run.resume=true"] if resume else [])]
        with comm.together():
            config = load_search(config_file, assignments)
            if config.run.dir is None:
                run = config.run.model_copy(update={"dir": str(Path("runs") / config_file.stem)})
                config = config.model_copy(update={"run": run})
        folder = Path(str(config.run.dir)).absolute()  # an objective may leave for another one
        if in_job():
            preflight(comm, folder)
        with console.search_progress(comm.rank) as observer:
            summary = minimise(config, comm, observer)
        if comm.rank == 0:
            console.search(summary)
            if config.run.plots and plot_search(folder) is None:
                console.line("no plot: pip install 'paropt-hpc[plots]'")
            console.line(f"results in {config.run.dir}")
        if summary["best_f"] is None and not summary["front"]:
            causes = ", ".join(f"{cause} ({text})" for cause, text in summary["causes"].items())
            raise on_every_rank(EvaluationError(f"no evaluation has given a value: {causes}"))


@app.command(epilog="mpiexec -n 5 paropt tune tune.toml --set tune.trials=40")
def tune(config_file: ConfigFile, assignments: Assignments = None, resume: Resume = False) -> None:
    """Search good settings of a training: learning rate, batch, density, strategy.

    Rank 0 only manages, so start one rank more than should train. Results go to `runs/NAME`
    by default: a table of the trials, which `--resume` goes on with, and a plot.
    """
    with world() as comm:
        assignments = [*(assignments or []), *(["tune.resume=true"] if resume else [])]
        with comm.together():
            config = load_tuning(config_file, assignments)
            if config.tune.dir is None:
                found = config.tune.model_copy(update={"dir": str(Path("runs") / config_file.stem)})
                config = config.model_copy(update={"tune": found})
        if in_job():
            preflight(comm, Path(str(config.tune.dir)))
        with console.tuning_progress(comm.rank) as observer:
            space, records = tune_training(config, comm, observer)
        if comm.rank == 0:
            shares = importance(space, records)
            console.trials(records, shares)
            folder = Path(str(config.tune.dir))
            if plot_trials(folder, records, shares) is None:
                console.line("no plot: pip install 'paropt-hpc[plots]'")
            console.line(f"trials in {folder}")
        if records and all(record.state == "failed" for record in records):
            cause = records[-1].cause
            raise on_every_rank(EvaluationError(f"no trial has succeeded, the last one: {cause}"))


@app.command()
def compare(folders: RunFolders) -> None:
    """Print the figures of finished runs side by side."""
    names = [folder.resolve().name for folder in folders]
    if len({*names}) < len(names):
        names = [str(folder) for folder in folders]
    console.comparison(dict(zip(names, map(read_summary, folders), strict=True)))


@app.command()
def info() -> None:
    """Say what this installation has, what is missing, and how to get it.

    Under `mpiexec`, also where the ranks are.
    """
    with world() as comm:
        found = [*describe(comm), *inspect(comm)]
        if comm.rank == 0:
            console.facts(found)


@app.command()
def selftest() -> None:
    """Try every kernel against its oracle, and every collective on the ranks started.

    Takes less than a minute: `mpiexec -n 4 paropt selftest`.
    """
    with world() as comm:
        done = run_selftest(comm)
        if comm.rank == 0:
            console.checks(done)
        if any(check.fault for check in done):
            raise typer.Exit(1)


@app.command("tune-comm")
def tune_comm() -> None:
    """Measure every all-reduce on the ranks started, and keep the fastest of each size.

    `algorithm = "auto"` then uses this table for as many ranks on as many nodes; without it,
    a model of latencies and bandwidths.
    """
    with world() as comm:
        path = tuning.table_path()
        with comm.together():
            if comm.size == 1:
                raise ConfigError("there is nothing to tune on one rank; use mpiexec -n 4 ...")
            before = tuning.Table.load(path) if path.exists() else tuning.Table({})
            if comm.rank == 0:
                before.save(path)  # finds out that this cannot be done before it measures
        rows: list[tuple[int, dict[str, float]]] = []
        table = tuning.measure(comm, report=lambda nbytes, times: rows.append((nbytes, times)))
        if comm.rank == 0:
            before.merged(table).save(path)
            console.timings(rows)
            console.line(f"table in {path}")


def _about_straggler(summary: Summary) -> str:
    return (
        f"rank {summary.straggler} takes {summary.straggler_factor:.1f} times as long as the "
        "others to compute a step, so that they wait wherever all must meet; look at its node "
        "(clock, other jobs, pinning), or let strategy.name = 'parameter-server' deal it less work"
    )


app.command("advise", epilog="paropt advise digits.toml --network 25Gbit --nodes 8 --memory 80GB")(
    advise_command
)
app.command("experiment", epilog="paropt experiment matrix.toml --retry")(experiment_command)
app.command(
    "submit", epilog="paropt submit digits.toml --nodes 4 --ntasks-per-node 8 --time 2h --follow"
)(submit_command)


def _shared_config(comm: Communicator, path: Path, assignments: list[str]) -> Config:
    """Read the configuration on every rank; name the run folder after the file."""
    with comm.together():
        config = load_config(path, assignments)
        if config.run.dir is None:
            run = config.run.model_copy(update={"dir": str(Path("runs") / path.stem)})
            config = config.model_copy(update={"run": run})
    return config
