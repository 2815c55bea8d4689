"""``paropt submit``: a batch job from a configuration, in one line."""

from pathlib import Path
from typing import Annotated

import typer

from paropt_hpc.cli import console
from paropt_hpc.cluster import sbatch, submission
from paropt_hpc.cluster.durations import parse_duration
from paropt_hpc.errors import ParoptError

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
    array: Annotated[str | None, typer.Option("--array", help="Elements: 0-15, or 0-15%4.")] = None,
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
    """
    named = {"partition": partition, "account": account, "qos": qos, "constraint": constraint}
    site = {option: value for option, value in (named | {"mem": mem}).items() if value is not None}
    default, folder = sbatch.purpose(config)
    if default == "train" and gpus_per_node:
        default = "gpu"
    job = sbatch.Job(
        config=config.resolve(),
        folder=(run_dir or folder).resolve(),
        template=template or default,
        nodes=nodes,
        ntasks_per_node=ntasks_per_node,
        cpus_per_task=cpus_per_task,
        seconds=parse_duration(time),
        gpus_per_node=gpus_per_node,
        mpi=mpi or submission.mpi_plugin(),
        array=array,
        site=site,
        setup=tuple(setup or ()),
        signal_seconds=signal_before,
    )
    submission.check(job, submission.partitions())
    script = submission.write(job, Path.cwd())
    if dry_run:
        console.line(f"{script}: not submitted")
        return
    number = submission.submit(job, script)
    console.line(f"job {number}: {script}")
    if follow and array:
        console.line(f"an array has a log per element: {job.folder}")
    elif follow:
        _follow(job, number)


def _follow(job: sbatch.Job, number: str) -> None:
    try:
        state, code = submission.follow(job, number, console.line)
    except KeyboardInterrupt:
        console.line(f"job {number} goes on; to end it: scancel {number}")
        raise
    if state != "COMPLETED":
        raise ParoptError(f"job {number} ended as {state}, exit code {code}; its log: {job.folder}")
