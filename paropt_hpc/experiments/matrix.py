"""The matrix of an experiment: every combination of its axes, several times each."""

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from paropt_hpc.runs.settings import Section, load
from paropt_hpc.train.config import Config, load_config

__all__ = ["RANKS", "Cell", "Matrix", "Target", "config_of", "load_matrix"]

RANKS = "ranks"
_LABEL = "label"
# What every cell sets by itself.
_OWN = {
    "run.seed": "repeats differ in it; choose repeats and seed",
    "run.dir": "every run has a folder in that of the experiment",
    "run.resume": "every run is gone on with",
}


class Target(Section):
    """When a run has got where it should: the first epoch whose metric is there."""

    metric: Literal["test_accuracy", "loss"] = "test_accuracy"
    value: Annotated[float, Field(allow_inf_nan=False)]

    def reached(self, record: Mapping[str, Any]) -> bool:
        """Say whether the metrics of an epoch are at the target."""
        got = record[self.metric]
        return bool(got <= self.value if self.metric == "loss" else got >= self.value)


class Matrix(Section):
    """An experiment: a base configuration, axes, and how often to repeat each combination.

    A value of an axis is that of the setting after which the axis is called, such as
    ``"compress.density" = [0.1, 0.01]``, or a table of several settings with a ``label``.
    The axis ``ranks`` says on how many ranks.
    """

    base: str  # configuration of a run, relative to this file
    target: Target
    axes: Annotated[dict[str, list[Any]], Field(min_length=1)]
    repeats: Annotated[int, Field(ge=2)] = 3  # with seeds of their own: no figure without a spread
    seed: Annotated[int, Field(ge=0)] = 0  # of the first repeat

    @field_validator("axes")
    @classmethod
    def _axes_have_values(cls, axes: dict[str, list[Any]]) -> dict[str, list[Any]]:
        for name, values in axes.items():
            if not values:
                raise ValueError(f"axis {name!r} has no values")
            if name == RANKS and not all(type(v) is int and v >= 1 for v in values):
                raise ValueError(f"axis 'ranks' must hold numbers of at least 1, got {values}")
            if any(isinstance(v, dict) and not isinstance(v.get(_LABEL), str) for v in values):
                raise ValueError(f'a table on axis {name!r} needs a label = "..."')
            labels = [_written(_name(v)) for v in values]
            twice = next((label for label in labels if labels.count(label) > 1), None)
            if twice is not None:
                raise ValueError(f"axis {name!r} has {twice!r} twice; its folders would be one")
            for key in {name, *(key for v in values if isinstance(v, dict) for key in v)}:
                if key in _OWN:
                    raise ValueError(f"{key!r} cannot be on an axis: {_OWN[key]}")
        return axes

    def cells(self) -> list["Cell"]:
        """Return every run of the experiment, repeats next to one another."""
        found: list[Cell] = []
        for combination in itertools.product(*self.axes.values()):
            point = {name: _name(v) for name, v in zip(self.axes, combination, strict=True)}
            settings = dict(_settings(self.axes, combination))
            ranks = int(settings.pop(RANKS, 1))
            for repeat in range(self.repeats):
                found.append(Cell(len(found), point, ranks, settings, self.seed + repeat))
        return found


@dataclass(frozen=True)
class Cell:
    """One run: a point of the matrix, and a seed."""

    number: int
    point: Mapping[str, str]  # the label of the value on each axis
    ranks: int
    settings: Mapping[str, Any]  # on top of the base configuration
    seed: int

    @property
    def name(self) -> str:
        """The name of its folder, which stays when axes and repeats grow."""
        words = "-".join(f"{axis.split('.')[-1]}-{label}" for axis, label in self.point.items())
        return _written(f"{words}-seed-{self.seed}")

    def assignments(self, folder: Path) -> list[str]:
        """Return the settings as ``--set`` takes them."""
        values = {**self.settings, "run.seed": self.seed, "run.dir": str(folder / self.name)}
        return [f"{key}={_toml(value)}" for key, value in values.items()]


def load_matrix(path: Path) -> Matrix:
    """Read the matrix of an experiment and check the configuration of each of its cells.

    Raises
    ------
    ConfigError
        Naming the key, what was expected, and what was found.
    """
    matrix = load(Matrix, path)
    for cell in matrix.cells():
        config_of(matrix, path, cell, Path())
    return matrix


def config_of(matrix: Matrix, path: Path, cell: Cell, folder: Path) -> Config:
    """Return the configuration of one run."""
    return load_config(path.parent / matrix.base, cell.assignments(folder))


def _settings(axes: Mapping[str, Any], combination: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    for name, value in zip(axes, combination, strict=True):
        if isinstance(value, dict):
            yield from ((key, each) for key, each in value.items() if key != _LABEL)
        else:
            yield name, value


def _written(text: str) -> str:
    """Return a text without what does not belong into the name of a folder."""
    return re.sub(r"[^\w.+-]+", "-", text)


def _name(value: Any) -> str:
    return str(value[_LABEL] if isinstance(value, dict) else value)


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return repr(value) if isinstance(value, (int, float)) else f'"{value}"'
