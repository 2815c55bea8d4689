"""Travelling salesmen: TSPLIB files, and the length of tours.

G. Reinelt, "TSPLIB - a traveling salesman problem library", ORSA Journal on Computing 3, 1991; the
distance functions are those of the "TSPLIB 95" paper, section 2: integers, rounded as there.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.errors import DataError
from paropt_hpc.metaheuristics.space import Permutation, Space

__all__ = ["Tour", "read_tsplib"]

_SECTIONS = ("NODE_COORD_SECTION", "EDGE_WEIGHT_SECTION", "DISPLAY_DATA_SECTION", "EOF")
_RADIUS = 6378.388  # kilometres, of the idealised earth of GEO distances
_PI = 3.141592  # as TSPLIB has it


@dataclass(frozen=True)
class Tour:
    """A symmetric or asymmetric problem: an objective of permutations of the cities.

    Called with rows, shape (m, n), that hold permutations, or keys whose order is one, it returns
    the lengths of the closed tours, shape (m,).
    """

    name: str
    #: shape (n, n), float64
    distances: NDArray[np.float64]

    @property
    def space(self) -> Space:
        """The permutations of the cities."""
        return Space(Permutation(len(self.distances)))

    def __call__(self, rows: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the lengths of tours."""
        tours = self.space.decode_batch(rows)
        lengths: NDArray[np.float64] = self.distances[tours, np.roll(tours, -1, axis=1)].sum(axis=1)
        return lengths


def read_tsplib(path: Path) -> Tour:
    """Read a ``.tsp`` or ``.atsp`` file.

    Edge weights of type EUC_2D, CEIL_2D, MAN_2D, MAX_2D, ATT, GEO, and EXPLICIT in any of the
    matrix formats.

    Raises
    ------
    DataError
        If the file cannot be read, is not whole, or of another kind.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    header, sections = _split(text)
    try:
        n = int(header["DIMENSION"])
        if n < 2:
            raise ValueError(f"DIMENSION {n}, expected at least 2")
        kind = header["EDGE_WEIGHT_TYPE"]
        if kind == "EXPLICIT":
            numbers = [float(word) for word in sections["EDGE_WEIGHT_SECTION"]]
            distances = _explicit(numbers, n, header.get("EDGE_WEIGHT_FORMAT", "FULL_MATRIX"))
        else:
            words = sections["NODE_COORD_SECTION"]
            table = np.array(words, np.float64).reshape(n, -1)
            distances = _DISTANCES[kind](table[:, 1], table[:, 2])
    except KeyError as error:
        raise DataError(f"{path} is no TSPLIB file that can be read: no {error}") from None
    except (ValueError, IndexError) as error:
        raise DataError(f"{path} is no whole TSPLIB file: {error}") from None
    np.fill_diagonal(distances, 0)
    return Tour(header.get("NAME", path.stem), distances)


def _split(text: str) -> tuple[dict[str, str], dict[str, list[str]]]:
    """Return the header, and the words of each section."""
    header: dict[str, str] = {}
    sections: dict[str, list[str]] = {}
    words: list[str] | None = None
    for line in text.splitlines():
        first = line.strip().rstrip(":").strip()
        if first in _SECTIONS or first.endswith("_SECTION"):
            words = sections.setdefault(first, [])
        elif words is not None and not (first[:1].isalpha()):
            words += line.split()
        elif ":" in line:
            key, _, value = line.partition(":")
            header[key.strip()] = value.strip()
    return header, sections


def _euclidean(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.hypot(x[:, None] - x, y[:, None] - y)


def _nint(distances: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.floor(distances + 0.5)


def _att(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Pseudo-Euclidean distances."""
    return np.ceil(np.sqrt(((x[:, None] - x) ** 2 + (y[:, None] - y) ** 2) / 10.0))


def _geo(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Great-circle distances; coordinates are degrees and minutes, as in DDD.MM."""

    def radians(values: NDArray[np.float64]) -> NDArray[np.float64]:
        degrees = np.trunc(values)
        return _PI * (degrees + 5.0 * (values - degrees) / 3.0) / 180.0

    latitude, longitude = radians(x), radians(y)
    q1 = np.cos(longitude[:, None] - longitude)
    q2 = np.cos(latitude[:, None] - latitude)
    q3 = np.cos(latitude[:, None] + latitude)
    inner = np.clip(0.5 * ((1.0 + q1) * q2 - (1.0 - q1) * q3), -1.0, 1.0)
    return np.floor(_RADIUS * np.arccos(inner) + 1.0)


_DISTANCES = {
    "EUC_2D": lambda x, y: _nint(_euclidean(x, y)),
    "CEIL_2D": lambda x, y: np.ceil(_euclidean(x, y)),
    "MAN_2D": lambda x, y: _nint(np.abs(x[:, None] - x) + np.abs(y[:, None] - y)),
    "MAX_2D": lambda x, y: _nint(np.maximum(np.abs(x[:, None] - x), np.abs(y[:, None] - y))),
    "ATT": _att,
    "GEO": _geo,
}


def _explicit(numbers: list[float], n: int, form: str) -> NDArray[np.float64]:
    """Return a matrix from its entries, of one triangle or all."""
    distances = np.zeros((n, n))
    places = list(_places(n, form))
    if len(numbers) != len(places):
        raise ValueError(f"{len(numbers)} edge weights, expected {len(places)} of {form}")
    rows, columns = zip(*places, strict=True)
    distances[rows, columns] = numbers
    if form != "FULL_MATRIX":
        distances[columns, rows] = numbers
    return distances


def _places(n: int, form: str) -> Iterator[tuple[int, int]]:
    direction, _, diagonal = form.partition("_")
    if form == "FULL_MATRIX":
        yield from itertools.product(range(n), range(n))
        return
    skip = {"ROW": 1, "DIAG_ROW": 0, "COL": 1, "DIAG_COL": 0}.get(diagonal)
    if direction not in ("UPPER", "LOWER") or skip is None:
        raise ValueError(f"EDGE_WEIGHT_FORMAT {form}")
    # By columns an upper triangle is written as a lower one by rows.
    upper = (direction == "UPPER") == diagonal.endswith("ROW")
    for i in range(n):
        for j in range(i + skip, n) if upper else range(i + 1 - skip):
            yield i, j
