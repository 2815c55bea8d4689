"""The trials of a search, one line of JSON each: no database, nothing to set up."""

import json
import math
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from paropt_hpc.errors import DataError

__all__ = ["Record", "TrialTable", "best_of"]


@dataclass(frozen=True)
class Record:
    """What became of a trial."""

    number: int
    params: dict[str, Any]
    state: Literal["complete", "pruned", "failed"]
    #: the smaller, the better; None if the trial has failed
    value: float | None
    #: what it was given to spend, such as epochs; None where trials are all alike
    budget: int | None = None
    #: intermediate values: pairs of step and value
    steps: list[tuple[int, float]] = field(default_factory=list)
    seconds: float = 0.0
    #: why it failed
    cause: str = ""


class TrialTable:
    """A file to which records are added, whole lines at a time; rank 0 only.

    Several searches may share the trials: each adds to a file of its own, and reads the others'.

    Parameters
    ----------
    path : Path, optional
        None keeps the records in memory only.
    resume : bool
        Go on with the records of the file; otherwise one that has some is refused.
    shared : str, optional
        A pattern for the names of files beside `path` that other searches add to.

    Attributes
    ----------
    records : list of Record
        Those of all files.

    Raises
    ------
    DataError
        If the file cannot be written, or holds something else, or trials that are not to be gone on
        with.
    """

    def __init__(
        self, path: Path | None = None, *, resume: bool = False, shared: str | None = None
    ) -> None:
        self.path = path
        self.records: list[Record] = []
        self._shared = shared
        if path is not None and path.exists():
            self.records = read(path)
        self.refresh()
        if self.records and not resume:
            assert path is not None
            path = path if shared is None else path.parent / shared
            raise DataError(
                f"{path} already holds {len(self.records)} trials; go on with --resume, or name "
                "another file"
            )
        if self.path is not None:
            self._append(b"")  # what cannot be kept need not be tried

    def refresh(self) -> list[Record]:
        """Take in what other searches have added; return it."""
        if self.path is None or self._shared is None:
            return []
        known = {record.number for record in self.records}
        new = [
            record
            for path in sorted(self.path.parent.glob(self._shared))
            if path != self.path
            for record in read(path)
            if record.number not in known
        ]
        self.records += new
        return new

    def add(self, record: Record) -> None:
        """Append a record; it is on the disk when this returns."""
        self.records.append(record)
        if self.path is not None:
            self._append(json.dumps(asdict(record)).encode() + b"\n")

    def _append(self, line: bytes) -> None:
        assert self.path is not None
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a+b") as file:
                # A crash may have left half a line.
                if file.tell() and not _ends_a_line(self.path):
                    file.write(b"\n")
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise DataError(f"cannot write the trials to {self.path}: {error.strerror}") from None


def read(path: Path) -> list[Record]:
    """Return the records of a file; a last line that is not whole is passed over."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read the trials in {path}: {error}") from None
    records = []
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
            steps = [(int(step), float(value)) for step, value in values.pop("steps")]
            records.append(Record(**values, steps=steps))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            # What a crash has cut short is followed by nothing, or by the lines of a resumed run;
            # what another search is writing just now ends the file.
            last = number == len(lines) and not text.endswith("\n")
            if last or not line.rstrip().endswith("}"):
                continue
            raise DataError(f"line {number} of {path} is no trial: {error}") from None
    return records


def best_of(records: list[Record]) -> Record | None:
    """Return the complete record with the least value, the first of equals; None without any."""
    done = [r for r in records if r.state == "complete" and r.value is not None]
    # Trials of a smaller budget only say who goes on.
    largest = max((r.budget or 0 for r in done), default=0)
    done = [r for r in done if (r.budget or 0) == largest and math.isfinite(r.value or 0.0)]
    return min(done, key=lambda record: (record.value, record.number), default=None)


def _ends_a_line(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
