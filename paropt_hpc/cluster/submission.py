"""Handing a job to Slurm: checked before, followed after."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

from paropt_hpc.cluster.durations import parse_duration, slurm_duration
from paropt_hpc.cluster.sbatch import Array, Job, render
from paropt_hpc.comm.launcher import srun_plugin
from paropt_hpc.errors import ConfigError

__all__ = [
    "Partition",
    "check",
    "check_folder",
    "follow",
    "follow_arrays",
    "mpi_plugin",
    "partitions",
    "submit",
    "write",
]

_SIGNAL = 65535  # seconds, the most that sbatch --signal takes
_ENDED = {
    "BOOT_FAIL",
    "CANCELLED",
    "COMPLETED",
    "DEADLINE",
    "FAILED",
    "NODE_FAIL",
    "OUT_OF_MEMORY",
    "TIMEOUT",
}


class Partition(NamedTuple):
    """What ``sinfo`` tells of the nodes of a partition; the largest node counts."""

    name: str
    default: bool
    nodes: int
    cpus: int  # per node
    gpus: int  # per node
    seconds: int | None  # None: no limit


def partitions() -> list[Partition]:
    """Return what ``sinfo`` knows of the cluster; empty where there is none to ask."""
    done = _run("sinfo", "--noheader", "--exact", "--format=%R|%P|%D|%c|%G|%l")
    found: dict[str, Partition] = {}
    for line in done.stdout.splitlines() if done.returncode == 0 else []:
        name, marked, nodes, cpus, gres, limit = (part.strip() for part in line.split("|"))
        new = Partition(
            name,
            marked.endswith("*"),
            int(nodes),
            int(cpus.rstrip("+")),
            sum(int(count) for count in re.findall(r"gpu:(?:[^:(,]+:)?(\d+)", gres)),
            None if limit in ("infinite", "n/a") else parse_duration(limit),
        )
        old = found.get(name)
        found[name] = new if old is None else _union(old, new)
    return list(found.values())


def _union(one: Partition, two: Partition) -> Partition:
    return one._replace(
        nodes=one.nodes + two.nodes, cpus=max(one.cpus, two.cpus), gpus=max(one.gpus, two.gpus)
    )


def check(job: Job, known: list[Partition]) -> None:
    """Refuse what cannot run; of nodes and limits only what `known` tells.

    Raises
    ------
    ConfigError
        Naming the value and what is possible.
    """
    for name in ("nodes", "ntasks_per_node", "cpus_per_task"):
        if getattr(job, name) < 1:
            option = name.replace("_", "-")
            raise ConfigError(f"--{option} must be at least 1, got {getattr(job, name)}")
    if job.gpus_per_node < 0 or (job.template == "gpu" and job.gpus_per_node == 0):
        raise ConfigError(f"--gpus-per-node must be at least 1, got {job.gpus_per_node}")
    for option, value in job.site.items():
        if "\n" in value:
            raise ConfigError(f"--{option} must be one line, got {value!r}")
    if job.array is not None and not job.array.elements:
        raise ConfigError(f"--array {job.array} names no elements; write 0-15{job.array}")
    if job.template == "tune" and job.array and job.array.elements[-1] >= len(job.array.elements):
        raise ConfigError(
            f"--array {job.array}: the elements of a tuning share its trials, so their numbers "
            f"must be 0-{len(job.array.elements) - 1}"
        )
    if not 0 < job.signal_seconds <= _SIGNAL:
        raise ConfigError(f"--signal-before must be in 1..{_SIGNAL}, got {job.signal_seconds}")
    if job.signal_seconds >= job.seconds:
        raise ConfigError(
            f"--time {slurm_duration(job.seconds)} is over before the ranks are told to save, "
            f"{job.signal_seconds} s ahead of its end; ask for more time or lower --signal-before"
        )
    _check_partition(job, known)


def _check_partition(job: Job, known: list[Partition]) -> None:
    """Refuse what no partition that is asked for can run."""
    chosen = job.site.get("partition")
    names = [partition.name for partition in known]
    if chosen is not None and known and not set(chosen.split(",")) <= set(names):
        raise ConfigError(f"there is no partition {chosen!r}; sinfo knows {', '.join(names)}")
    asked = chosen.split(",") if chosen else [each.name for each in known if each.default]
    candidates = [partition for partition in known if partition.name in asked]
    faults = [_fault(job, partition) for partition in candidates]
    if faults and all(faults):
        raise ConfigError(faults[0])


def _fault(job: Job, partition: Partition) -> str:
    """Say why a job cannot run in a partition; empty when it can."""
    cpus = job.ntasks_per_node * job.cpus_per_task
    if cpus > partition.cpus:
        return (
            f"{job.ntasks_per_node} tasks of {job.cpus_per_task} cpu(s) per node are {cpus} cpus, "
            f"but a node of partition {partition.name} has {partition.cpus}; "
            "lower --ntasks-per-node or --cpus-per-task"
        )
    if job.nodes > partition.nodes:
        return f"--nodes {job.nodes}: partition {partition.name} has {partition.nodes}"
    if job.gpus_per_node > partition.gpus:
        return (
            f"--gpus-per-node {job.gpus_per_node}: a node of partition {partition.name} "
            f"has {partition.gpus}"
        )
    if partition.seconds is not None and job.seconds > partition.seconds:
        return (
            f"--time {slurm_duration(job.seconds)} is above the limit of partition "
            f"{partition.name}, {slurm_duration(partition.seconds)}"
        )
    return ""


def mpi_plugin() -> str:
    """Return the ``srun --mpi=`` plugin that the MPI library here understands.

    Raises
    ------
    ConfigError
        There is no library, or an unknown one.
    """
    with contextlib.suppress(ImportError):
        import mpi4py

        mpi4py.rc.initialize = False  # its name is enough, and a login node may not run MPI
    plugin = srun_plugin()
    if plugin is None:
        raise ConfigError(
            "the MPI library here is none, or one whose srun --mpi= is not known; name it: "
            "--mpi pmi2 or --mpi pmix"
        )
    return plugin


def write(job: Job, working_folder: Path) -> Path:
    """Write a job's script into its run folder; return its path."""
    text = render(job, working_folder)
    job.folder.mkdir(parents=True, exist_ok=True)
    _replace(job.script, text)
    return job.script


def check_folder(folder: Path) -> None:
    """Refuse a run folder that belongs to a job which has not ended, or to a run that has.

    A run that has ended but left a checkpoint may be made longer.

    Raises
    ------
    ConfigError
        Naming the job, or the folder.
    """
    resumable = any((folder / "checkpoints").glob("*"))
    if (folder / "summary.json").exists() and not resumable:
        raise ConfigError(
            f"{folder} already holds the results of a run; name another --run-dir, or remove it"
        )
    for kept in sorted(folder.glob("job*.json")):
        number = json.loads(kept.read_text(encoding="utf-8"))["job_id"]
        if _run("squeue", "--noheader", "--jobs", number).stdout.strip():
            raise ConfigError(
                f"job {number} has not ended, and writes into {folder}; wait for it, end it by "
                f"scancel {number}, or name another --run-dir"
            )


def submit(job: Job, script: Path) -> str:
    """Give a written script to ``sbatch``; return the job's number, also kept beside the script.

    Raises
    ------
    ConfigError
        There is no ``sbatch``, or it refuses the job: with its own words.
    """
    if shutil.which("sbatch") is None:
        raise ConfigError(
            f"sbatch is not on PATH: submit {script} from a login node, or use --dry-run"
        )
    # The environment of a job that submits would leak into the new one.
    clean = {name: value for name, value in os.environ.items() if not _of_a_job(name)}
    done = _run("sbatch", "--parsable", str(script), env=clean)
    if done.returncode != 0:
        raise ConfigError(f"sbatch refused {script}: {' '.join(done.stderr.split())}")
    number = done.stdout.strip().split(";")[0]
    values = {each.name: getattr(job, each.name) for each in fields(job)}
    known = {name: str(value) for name, value in values.items() if value}
    _replace(script.with_suffix(".json"), json.dumps({"job_id": number} | known, indent=2) + "\n")
    return number


def _of_a_job(name: str) -> bool:
    return name.startswith(("SLURM_", "SBATCH_", "SRUN_", "PMI_", "PMIX_")) and name not in (
        "SLURM_CONF",
    )


def follow(
    job: Job, number: str, show: Callable[[str], None], pause: float = 1.0
) -> tuple[str, str]:
    """Show a job's states and what its log gains until it ends.

    Returns
    -------
    state : str
        As Slurm names it, such as COMPLETED.
    code : str
        Exit status and signal of its script, such as ``0:0``.
    """
    log = job.folder / f"{job.name}-{number}.out"
    state, shown = "", 0
    while True:
        described = _describe(number)
        now = described.get("JobState", "UNKNOWN")
        ended = now in _ENDED or not described
        if ended:  # what the job has said comes before its end
            _show_tail(log, shown, show)
        if now != state:
            reason = described.get("Reason", "None")
            show(f"job {number}: {now}" + (f" ({reason})" if reason != "None" else ""))
            state = now
        if ended:
            return now, described.get("ExitCode", "unknown")
        shown = _show_tail(log, shown, show)
        time.sleep(pause)


def follow_arrays(
    arrays: Mapping[str, Array], show: Callable[[str], None], pause: float = 1.0
) -> Counter[str]:
    """Show how many elements are in which state, until all have ended.

    Parameters
    ----------
    arrays : mapping
        From the number of a job to its elements.
    show : callable
        Takes one line.
    pause : float
        Seconds between two questions to Slurm.

    Returns
    -------
    Counter
        How many elements ended in which state.
    """
    states = {(job, each): "PENDING" for job, array in arrays.items() for each in array.elements}
    shown: Counter[str] = Counter()
    while True:
        alive = False
        for job in arrays:
            for described in _describe_all(job):
                alive = True
                for each in Array.parse(described.get("ArrayTaskId", "")).elements:
                    states[job, each] = described.get("JobState", "UNKNOWN")
        counts = Counter(states.values())
        if counts != shown:
            show(", ".join(f"{count} {state}" for state, count in sorted(counts.items())))
            shown = counts
        # Slurm forgets what ended some minutes ago.
        if not alive or set(counts) <= _ENDED:
            return counts
        time.sleep(pause)


def _describe(number: str) -> dict[str, str]:
    """Return what the controller knows of a job, for a few minutes after its end as well."""
    return next(iter(_describe_all(number)), {})


def _describe_all(number: str) -> list[dict[str, str]]:
    """Return the same of every element of an array; those that wait share one."""
    done = _run("scontrol", "show", "job", "--oneliner", number)
    lines = [line for line in done.stdout.splitlines() if "JobState=" in line]
    return [dict(part.split("=", 1) for part in line.split() if "=" in part) for line in lines]


def _show_tail(log: Path, shown: int, show: Callable[[str], None]) -> int:
    """Show the whole lines that a log has gained since position `shown`; return the new one."""
    if not log.exists():
        return shown
    with log.open("rb") as file:
        file.seek(shown)
        whole, newline, _ = file.read().rpartition(b"\n")
    for line in whole.decode(errors="replace").split("\n") if newline else []:
        show(line)
    return shown + len(whole) + len(newline)


def _run(*command: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    if shutil.which(command[0]) is None:  # no cluster here: nothing to ask
        return subprocess.CompletedProcess(command, 127, "", f"{command[0]} is not on PATH")
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, env=env
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"{command[0]} does not answer; is the Slurm controller up?") from None


def _replace(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
