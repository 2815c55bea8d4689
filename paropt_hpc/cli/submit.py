"""``paropt submit``: a batch job from a configuration, in one line."""

from pathlib import Path
from typing import Annotated

import typer

from paropt_hpc import experiments
from paropt_hpc.cli import console
from paropt_hpc.cluster import sbatch, submission
from paropt_hpc.cluster.durations import parse_duration
from paropt_hpc.errors import ConfigError, ParoptError
from paropt_hpc.metaheuristics.config import load_search

__all__ = ["submit_command"]


def submit_command(
    config: Annotated[Path, typer.Argument(metavar="CONFIG", help="What to run, a TOML file.")],
    nodes: Annotated[int, typer.Option("--nodes", help="Nodes.")] = 1,
    ntasks_per_node: Annotated[int, typer.Option("--ntasks-per-node", help="Ranks per node.")] = 1,
    cpus_per_task: Annotated[
        int, typer.Option("--cpus-per-task", help="Cores, and threads, of a rank.")
    ] = 1,
    time: Annotated[str, typer.Option("--time", help="Limit: 90m, 2h, 1h30m, 1-12:00:00.")] = "1h",
    gpus_per_node: Annotated[int, typer.Option("--gpus-per-node", help="GPUs per node.")] = 0,
    template: Annotated[
        str | None,
        typer.Option(
            "--template", help=f"One of {', '.join(sbatch.TEMPLATES)}; by default as CONFIG says."
        ),
    ] = None,
    array: Annotated[
        str | None,
        typer.Option("--array", help="Elements: 0-15, or 0-15%4; each has a seed of its own."),
    ] = None,
    partition: Annotated[
        str | None, typer.Option("--partition", help="As your site names it.")
    ] = None,
    account: Annotated[str | None, typer.Option("--account", help="As your site names it.")] = None,
    qos: Annotated[str | None, typer.Option("--qos", help="As your site names it.")] = None,
    constraint: Annotated[
        str | None, typer.Option("--constraint", help="Features of the nodes.")
    ] = None,
    mem: Annotated[str | None, typer.Option("--mem", help="Memory per node, such as 8G.")] = None,
    setup: Annotated[
        list[str] | None,
        typer.Option(
            "--setup",
            metavar="LINE",
            help="A line of shell before Python starts: 'module load mpich'.",
        ),
    ] = None,
    mpi: Annotated[
        str | None, typer.Option("--mpi", help="srun's --mpi=; by default as the MPI here needs.")
    ] = None,
    signal_before: Annotated[
        int, typer.Option("--signal-before", help="Seconds before the limit at which ranks save.")
    ] = 120,
    run_dir: Annotated[
        Path | None, typer.Option("--run-dir", help="The run folder; by default as CONFIG says.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Write the script, do not submit.")
    ] = False,
    follow: Annotated[
        bool, typer.Option("--follow", help="Show state and log until the job ends.")
    ] = False,
) -> None:
    """Write a batch script for CONFIG and give it to Slurm.

    Script, log and job number are kept in the run folder. A job whose time is nearly up, or that is
    preempted, saves a checkpoint and goes on from it when Slurm starts it again. Nothing of your
    site is guessed: partition, account and the like are written only when you name them.

    The cells of an experiment that have no result yet become arrays, one for each number of ranks,
    of at most `--nodes` times `--ntasks-per-node`; `--array` picks some of them, `--array %8` runs
    8 at a time.
    """
    named = {"partition": partition, "account": account, "qos": qos, "constraint": constraint}
    site = {option: value for option, value in (named | {"mem": mem}).items() if value is not None}
    purpose = sbatch.purpose(config)
    if purpose.template == "train" and gpus_per_node:
        purpose = purpose._replace(template="gpu")
    job = sbatch.Job(
        config=config.resolve(),
        folder=(run_dir or purpose.folder).resolve(),
        template=purpose.chosen(template),
        nodes=nodes,
        ntasks_per_node=ntasks_per_node,
        cpus_per_task=cpus_per_task,
        seconds=parse_duration(time),
        gpus_per_node=gpus_per_node,
        mpi=mpi or submission.mpi_plugin(),
        array=None if array is None else sbatch.Array.parse(array),
        site=site,
        setup=tuple(setup or ()),
        signal_seconds=signal_before,
    )
    _check_config(job)
    jobs = _cells(job) if job.template == "experiment" else [job]
    known = submission.partitions()
    for each in jobs:
        submission.check(each, known)
    if not jobs:
        console.line(f"no cell is without a result: paropt experiment {config} --report")
        return
    submission.check_folder(job.folder)
    scripts = [submission.write(each, Path.cwd()) for each in jobs]
    if dry_run:
        console.line("\n".join(f"{script}: not submitted" for script in scripts))
        return
    numbers = []
    for each, script in zip(jobs, scripts, strict=True):
        numbers.append(submission.submit(each, script))
        console.line(f"job {numbers[-1]}: {script}")
    if follow:
        _follow(dict(zip(numbers, jobs, strict=True)))


def _check_config(job: sbatch.Job) -> None:
    """Read what the job will read: better now than in the queue."""
    if job.template == "islands":
        load_search(job.config)
    elif job.template == "tune":
        experiments.load_tuning(job.config)


def _cells(job: sbatch.Job) -> list[sbatch.Job]:
    """Return the jobs that run those cells of an experiment that have no result."""
    matrix = experiments.load_matrix(job.config)
    experiments.check_settings(matrix, job.config, job.folder)
    cells = {cell.number: cell for cell in matrix.cells()}
    named = job.array.elements if job.array else ()
    if named and named[-1] not in cells:
        raise ConfigError(f"--array {job.array}: the cells are 0-{len(cells) - 1}")
    # A cell that has failed runs once more only where it is named.
    wanted = ("missing", "failed") if named else ("missing",)
    ranks = {
        number: cells[number].ranks
        for number in named or cells
        if experiments.outcome(job.folder, cells[number]) in wanted
    }
    return sbatch.by_ranks(job, ranks)


def _follow(jobs: dict[str, sbatch.Job]) -> None:
    """Show what becomes of the jobs, by their numbers, until they end."""
    arrays = {number: job.array for number, job in jobs.items() if job.array is not None}
    first, job = next(iter(jobs.items()))
    try:
        if arrays:
            ended = submission.follow_arrays(arrays, console.line)
            bad = [f"{count} {state}" for state, count in ended.items() if state != "COMPLETED"]
            fault = f"of the elements ended: {', '.join(bad)}" if bad else ""
        else:
            state, code = submission.follow(job, first, console.line)
            bad = [] if state == "COMPLETED" else [state]
            fault = f"job {first} ended as {state}, exit code {code}" if bad else ""
    except KeyboardInterrupt:
        console.line(f"to end what goes on: scancel {' '.join(jobs)}")
        raise
    if bad:
        raise ParoptError(f"{fault}; see {job.folder}")
