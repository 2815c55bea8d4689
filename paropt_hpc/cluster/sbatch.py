"""From what a user asks for to the text of a batch script; no Slurm needed."""

import math
import re
import shlex
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import jinja2

from paropt_hpc.cluster.durations import slurm_duration
from paropt_hpc.errors import ConfigError, StoppedError
from paropt_hpc.train import load_config

__all__ = ["TEMPLATES", "Array", "Job", "Purpose", "by_ranks", "purpose", "render"]

_LOADER = jinja2.PackageLoader("paropt_hpc.cluster", "slurm")
_SUFFIX = ".sbatch.j2"

# One per way of running.
TEMPLATES = sorted(
    name.removesuffix(_SUFFIX) for name in _LOADER.list_templates() if not name.startswith("base")
)

_PART = r"\d+(?:-\d+(?::[1-9]\d*)?)?"
_ARRAY = re.compile(rf"(?P<elements>(?:{_PART}(?:,{_PART})*)?)(?:%(?P<limit>[1-9]\d*))?")
_MOST = 4_000_000  # what Slurm can be set to
# Which template a strategy runs best with; the others with "train".
_STRATEGIES = {
    "gossip": "gossip",
    "push-sum": "gossip",
    "choco": "gossip",
    "parameter-server": "parameter-server",
}
# A table that only the configuration of that command has, and the one that names its folder.
_COMMANDS = {
    "objective": ("islands", "run"),
    "tune": ("tune", "tune"),
    "axes": ("experiment", "run"),
}


class Purpose(NamedTuple):
    """What a configuration is for: the template that runs it, and its run folder."""

    template: str
    folder: Path

    def chosen(self, template: str | None) -> str:
        """Return the template to use when one is asked for.

        Raises
        ------
        ConfigError
            It is not there, or runs something else.
        """
        if template is None:
            return self.template
        if template not in TEMPLATES:
            raise ConfigError(f"template {template!r} does not exist; use {', '.join(TEMPLATES)}")
        others = {name for name, _ in _COMMANDS.values()}
        if template != self.template and {template, self.template} & others:
            raise ConfigError(
                f"template {template!r} does not run this configuration; leave --template out: "
                f"{self.template!r} does"
            )
        return template


def purpose(config: Path) -> Purpose:
    """Read a configuration, and tell how to run it.

    Raises
    ------
    ConfigError
        It cannot be read, or, for training, a setting is wrong: better now than in the queue.
    """
    try:
        values = tomllib.loads(config.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
        values = {}  # `load_config` says what is wrong
    for key, (template, section) in _COMMANDS.items():
        if key in values:
            given = values.get(section)
            folder = given.get("dir") if isinstance(given, dict) else None
            return Purpose(template, Path(folder) if isinstance(folder, str) else _folder(config))
    settings = load_config(config)
    template = _STRATEGIES.get(settings.strategy.name, "train")
    return Purpose(template, Path(settings.run.dir or _folder(config)))


def _folder(config: Path) -> Path:
    return Path("runs") / config.stem


class Array(NamedTuple):
    """The elements of a job array, and how many of them may run at a time (None: any number)."""

    elements: tuple[int, ...]
    limit: int | None = None

    @classmethod
    def parse(cls, text: str) -> "Array":
        """Read Slurm's notation: ``0-15``, ``0-15:4%2``, ``1,3,7``; ``%2`` names no elements."""
        match = _ARRAY.fullmatch(text)
        if match is None:
            raise ConfigError(f"--array {text!r} cannot be read; write 0-15, 0-15%4 or 1,3,7")
        elements: set[int] = set()
        for part in filter(None, match["elements"].split(",")):
            ends, _, step = part.partition(":")
            first, _, last = ends.partition("-")
            if int(last or first) > _MOST:
                raise ConfigError(f"--array {text!r} is beyond Slurm's largest number, {_MOST}")
            elements.update(range(int(first), int(last or first) + 1, int(step or 1)))
        if match["elements"] and not elements:
            raise ConfigError(f"--array {text!r} has no elements; write the smaller number first")
        return cls(tuple(sorted(elements)), int(match["limit"]) if match["limit"] else None)

    def __str__(self) -> str:
        text = ",".join(map(str, self.elements))
        whole = range(self.elements[0], self.elements[-1] + 1) if self.elements else range(0)
        if len(whole) == len(self.elements) > 1:
            text = f"{whole[0]}-{whole[-1]}"
        return text + (f"%{self.limit}" if self.limit else "")


@dataclass(frozen=True)
class Job:
    """What to ask Slurm for. Nothing of a site is invented: what is None is not written."""

    config: Path  # of the command that the template runs
    folder: Path  # the run folder: script, log and job number go there
    template: str = "train"
    nodes: int = 1
    ntasks_per_node: int = 1
    ntasks: int | None = None  # where the last node is not to be filled
    cpus_per_task: int = 1
    seconds: int = 3600
    gpus_per_node: int = 0
    mpi: str = "pmi2"  # for srun
    array: Array | None = None
    site: Mapping[str, str] = field(default_factory=dict)  # partition, account, qos, mem, ...
    setup: tuple[str, ...] = ()  # lines of shell before Python starts
    signal_seconds: int = 120  # how long before the end of the time ranks save a checkpoint
    max_restarts: int = 50

    @property
    def name(self) -> str:
        """The job's name, and the log's."""
        return self.config.stem

    @property
    def script(self) -> Path:
        """Where the script is kept."""
        return self.folder / f"job{f'-{self.ntasks}' if self.ntasks else ''}.sbatch"

    @property
    def log(self) -> str:
        """The log's path in Slurm's notation: name and number of the job, of an array both."""
        folder = str(self.folder).replace("%", "%%")
        return f"{folder}/{'%x-%A_%a.out' if self.array else '%x-%j.out'}"


def by_ranks(job: Job, ranks: Mapping[int, int]) -> list[Job]:
    """Cut an array whose elements need different numbers of ranks into jobs of equal ones; pure.

    Parameters
    ----------
    job : Job
        Its nodes and tasks are the most that a part may have.
    ranks : mapping
        From the number of an element to its ranks.

    Raises
    ------
    ConfigError
        An element needs more.
    """
    jobs, most = [], job.nodes * job.ntasks_per_node
    for count in sorted(set(ranks.values())):
        elements = tuple(number for number, needed in ranks.items() if needed == count)
        if count > most:
            raise ConfigError(
                f"cell {elements[0]} needs {count} ranks, but --nodes {job.nodes} times "
                f"--ntasks-per-node {job.ntasks_per_node} are {most}"
            )
        nodes = math.ceil(count / job.ntasks_per_node)
        array = Array(elements, job.array.limit if job.array else None)
        per_node = math.ceil(count / nodes)
        jobs.append(replace(job, nodes=nodes, ntasks=count, ntasks_per_node=per_node, array=array))
    return jobs


def render(job: Job, working_folder: Path) -> str:
    """Return the text of a job's script; pure."""
    environment = jinja2.Environment(
        loader=_LOADER,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    # The shell and the lines that Slurm reads know the same quotes.
    environment.filters["quoted"] = lambda value: shlex.quote(str(value))
    return environment.get_template(job.template + _SUFFIX).render(
        job=job,
        time=slurm_duration(job.seconds),
        site=job.site.items(),
        folder=working_folder,
        python=sys.executable,
        stopped=StoppedError.status,
    )
