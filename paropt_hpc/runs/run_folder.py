"""The folder that holds what a run was and what came of it."""

import json
import os
import shutil
from pathlib import Path
from typing import Any, Protocol

from paropt_hpc.errors import ConfigError
from paropt_hpc.runs.checkpoint import flatten
from paropt_hpc.runs.settings import Section, to_toml

__all__ = ["RunFolder", "read_summary"]


class _RunSettings(Protocol):
    """What a ``[run]`` table says of its folder."""

    @property
    def overwrite(self) -> bool:
        """Replace the results in the folder."""

    @property
    def resume(self) -> bool:
        """Go on with them."""


class RunFolder:
    """Write ``config.toml``, ``metrics.jsonl`` and ``summary.json``; rank 0 only.

    Files are written whole under a temporary name and then renamed; the metrics grow by
    whole lines. A folder that already has results is refused unless told otherwise.
    """

    def __init__(
        self, path: Path, config: Section, run: _RunSettings, *, tensorboard: bool = False
    ) -> None:
        self.path = path
        self._writer: Any = None  # of TensorBoard's event files
        self._metrics = path / "metrics.jsonl"
        self._config = config
        if self._has_results() and not run.overwrite and not run.resume:
            raise ConfigError(
                f"{path} already holds the results of a run; name another run.dir, "
                "go on with --resume, or replace them with --set run.overwrite=true"
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
            if not (run.resume and self._metrics.exists()):
                self._write("metrics.jsonl", "")
            if not run.resume:
                shutil.rmtree(path / "checkpoints", ignore_errors=True)
                self.begin()
        except OSError as error:
            raise ConfigError(f"cannot write the run folder {path}: {error.strerror}") from None
        if tensorboard:
            self._writer = _event_writer(path / "tensorboard")

    def _has_results(self) -> bool:
        """Say whether there is more than what a run leaves that failed at its start."""
        if self._metrics.exists() and self._metrics.stat().st_size > 0:
            return True
        summary = self.path / "summary.json"
        return summary.exists() or any((self.path / "checkpoints").glob("step-*"))

    def begin(self) -> None:
        """Take the folder over; for a run that goes on, once it is known that it can."""
        (self.path / "summary.json").unlink(missing_ok=True)
        self._write("config.toml", to_toml(self._config))

    def add_metrics(self, record: dict[str, Any]) -> None:
        """Append one record, one line of JSON."""
        with self._metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        if self._writer is not None:
            for name, value in flatten(record).items():
                if isinstance(value, int | float):
                    self._writer.add_scalar(name, value, record["step"])
            self._writer.flush()

    def keep_metrics(self, count: int) -> None:
        """Go on with the first `count` records: what came after a checkpoint comes again."""
        self.begin()
        lines = self._metrics.read_text(encoding="utf-8").splitlines(keepends=True)
        self._write("metrics.jsonl", "".join(lines[:count]))

    def write_summary(self, summary: dict[str, Any]) -> None:
        """Write the result of the whole run."""
        if self._writer is not None:
            self._writer.close()
        self._write("summary.json", json.dumps(summary, indent=2) + "\n")

    def _write(self, name: str, text: str) -> None:
        temporary = self.path / f".{name}.tmp"
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self.path / name)


def _event_writer(path: Path) -> Any:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        raise ConfigError(
            "run.tensorboard = true needs tensorboardX; pip install 'paropt-hpc[tensorboard]', "
            "or set it to false: metrics.jsonl holds the same"
        ) from None
    return SummaryWriter(str(path))


def read_summary(path: Path) -> dict[str, Any]:
    """Return the summary of a finished run.

    Raises
    ------
    ConfigError
        When the folder holds no finished run.
    """
    try:
        summary: dict[str, Any] = json.loads((path / "summary.json").read_text(encoding="utf-8"))
    except OSError:
        raise ConfigError(f"{path} holds no finished run: it has no summary.json") from None
    except ValueError as error:
        raise ConfigError(f"{path / 'summary.json'} is damaged: {error}") from None
    return summary
