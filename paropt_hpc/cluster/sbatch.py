"""From what a user asks for to the text of a batch script; no Slurm needed."""

import shlex
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import jinja2

from paropt_hpc.cluster.durations import slurm_duration
from paropt_hpc.errors import ConfigError, StoppedError
from paropt_hpc.train import load_config

__all__ = ["MPI_PLUGINS", "TEMPLATES", "Job", "Purpose", "purpose", "render"]

_LOADER = jinja2.PackageLoader("paropt_hpc.cluster", "slurm")
_SUFFIX = ".sbatch.j2"

# One per way of running.
TEMPLATES = sorted(
    name.removesuffix(_SUFFIX) for name in _LOADER.list_templates() if not name.startswith("base")
)

# The plugin of `srun --mpi=` that each MPI library understands, by the start of its name.
MPI_PLUGINS = {"MPICH": "pmi2", "Intel": "pmi2", "MVAPICH": "pmi2", "Open MPI": "pmix"}


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
            return Purpose(template, Path(values.get(section, {}).get("dir", _folder(config))))
    settings = load_config(config)
    template = _STRATEGIES.get(settings.strategy.name, "train")
    return Purpose(template, Path(settings.run.dir or _folder(config)))


def _folder(config: Path) -> Path:
    return Path("runs") / config.stem


@dataclass(frozen=True)
class Job:
    """What to ask Slurm for. Nothing of a site is invented: what is None is not written."""

    config: Path  # of the command that the template runs
    folder: Path  # the run folder: script, log and job number go there
    template: str = "train"
    nodes: int = 1
    ntasks_per_node: int = 1
    cpus_per_task: int = 1
    seconds: int = 3600
    gpus_per_node: int = 0
    mpi: str = "pmi2"  # for srun
    array: str | None = None  # such as 0-15%4
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
        return self.folder / "job.sbatch"

    @property
    def log(self) -> str:
        """The log's path in Slurm's notation: name and number of the job, of an array both."""
        return str(self.folder / ("%x-%A_%a.out" if self.array else "%x-%j.out"))


def render(job: Job, working_folder: Path) -> str:
    """Return the text of a job's script; pure.

    Raises
    ------
    ConfigError
        There is no such template.
    """
    if job.template not in TEMPLATES:
        raise ConfigError(f"template {job.template!r} does not exist; use {', '.join(TEMPLATES)}")
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
