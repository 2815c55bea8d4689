"""What the runs of an experiment say: figures with their spread, each metric apart.

Throughput, time to the target and epochs to the target are different questions. A speed-up is a
ratio of times to the same target; twice the throughput at twice the epochs has gained nothing.
"""

import json
import math
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from paropt_hpc.experiments.matrix import RANKS, Cell, Matrix, Target, config_of
from paropt_hpc.experiments.runner import FAILURE, outcome
from paropt_hpc.train import read_summary

__all__ = ["Analysis", "Point", "Run", "Spread", "analyse"]


class Spread(NamedTuple):
    """The median of repeats, and their extremes; NaN where there is none."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        """Return the spread of some values."""
        known = [value for value in values if math.isfinite(value)]
        if not known:
            return cls(math.nan, math.nan, math.nan)
        return cls(statistics.median(known), min(known), max(known))


@dataclass(frozen=True)
class Run:
    """One finished cell."""

    cell: Cell
    records: list[dict[str, Any]]  # the metrics of every epoch
    summary: Mapping[str, Any]
    arrived: int | None  # index of the first record at the target


@dataclass(frozen=True)
class Point:
    """All repeats of one combination."""

    labels: Mapping[str, str]
    ranks: int
    batch: int  # samples behind one update, over all ranks
    planned: int
    runs: list[Run]

    @property
    def name(self) -> str:
        """Its labels in one line."""
        return ", ".join(
            f"{label} rank{'s' * (self.ranks > 1)}" if axis == RANKS else label
            for axis, label in self.labels.items()
        )

    @property
    def others(self) -> tuple[tuple[str, str], ...]:
        """Its labels without the number of ranks: what is compared when ranks scale."""
        return tuple((axis, label) for axis, label in self.labels.items() if axis != RANKS)

    @property
    def arrived(self) -> int:
        """How many repeats reached the target."""
        return sum(run.arrived is not None for run in self.runs)

    def spread(self, name: str) -> Spread:
        """Return the spread of a figure of the summaries."""
        return Spread.of(float(run.summary[name]) for run in self.runs)

    @property
    def seconds_to_target(self) -> Spread:
        """Seconds of training until the target."""
        return Spread.of(run.records[i]["wall_s"] for run, i in self._arrivals())

    @property
    def epochs_to_target(self) -> Spread:
        """Epochs until the target."""
        return Spread.of(run.records[i]["epoch"] for run, i in self._arrivals())

    @property
    def epoch_seconds(self) -> Spread:
        """Mean seconds of an epoch."""
        return Spread.of(run.summary["wall_s"] / run.summary["epochs"] for run in self.runs)

    @property
    def bytes_per_step(self) -> Spread:
        """Bytes that a rank sends in a step."""
        return Spread.of(
            run.summary["bytes_sent_per_rank"] / max(1, run.summary["steps"]) for run in self.runs
        )

    def _arrivals(self) -> list[tuple[Run, int]]:
        return [(run, run.arrived) for run in self.runs if run.arrived is not None]


@dataclass(frozen=True)
class Analysis:
    """The points of an experiment, and what failed."""

    title: str
    target: Target
    points: list[Point]
    failures: list[tuple[Cell, str]]
    missing: int  # cells that have not run

    def baseline(self, point: Point) -> Point:
        """Return the same combination on the fewest ranks: what its speed-up refers to."""
        same = [other for other in self.points if other.others == point.others]
        return min(same, key=lambda other: other.ranks)

    def reference(self, point: Point) -> Point:
        """Return the first combination on the same ranks: what convergence refers to."""
        return next(other for other in self.points if other.ranks == point.ranks)

    def speedup(self, point: Point) -> Spread:
        """Return the ratio of the times to the same target; NaN where one was not reached.

        The repeats of a point are all compared with the median of its baseline.
        """
        before, now = self.baseline(point).seconds_to_target.median, point.seconds_to_target
        return Spread(before / now.median, before / now.high, before / now.low)


def analyse(matrix: Matrix, path: Path, folder: Path) -> Analysis:
    """Read what the cells of an experiment have left in its folder."""
    groups: dict[tuple[str, ...], list[Cell]] = {}
    failures, missing = [], 0
    for cell in matrix.cells():
        groups.setdefault(tuple(cell.point.values()), []).append(cell)
        known = outcome(folder, cell)
        missing += known == "missing"
        if known == "failed":
            reason = (folder / cell.name / FAILURE).read_text(encoding="utf-8").strip()
            failures.append((cell, reason))
    points = [_point(matrix, path, folder, cells) for cells in groups.values()]
    return Analysis(path.stem, matrix.target, points, failures, missing)


def _point(matrix: Matrix, path: Path, folder: Path, cells: list[Cell]) -> Point:
    config = config_of(matrix, path, cells[0], folder)
    runs = [_read(matrix.target, folder, cell) for cell in cells if outcome(folder, cell) == "done"]
    batch = config.train.batch * config.train.accumulate
    return Point(cells[0].point, cells[0].ranks, batch, len(cells), runs)


def _read(target: Target, folder: Path, cell: Cell) -> Run:
    run = folder / cell.name
    lines = (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [json.loads(line) for line in lines]
    arrived = next((i for i, record in enumerate(records) if target.reached(record)), None)
    return Run(cell, records, read_summary(run), arrived)
