"""Search spaces: what may vary, and how a point of it is written as a row of float64.

Algorithms work on *rows*: float64 vectors within ``lower`` and ``upper``, one or more columns for
each variable. Objectives see *values*: what `Space.decode` makes of a row. Every row decodes, so
that any algorithm may search any space, and encoding a value and decoding it again gives it back.

==============  =============================  ==================================================
variable        row                            value
==============  =============================  ==================================================
`Real`          the number, or its logarithm   float
`Integer`       the number, or its logarithm   int: the nearest one
`Categorical`   the place among the choices    one of the choices
`Binary`        0 to 1                         bool: at least 1/2
`Permutation`   n keys                         the rank of each key; ranks are keys of themselves
==============  =============================  ==================================================
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paropt_hpc.errors import ConfigError

__all__ = ["Binary", "Categorical", "Integer", "Permutation", "Real", "Space", "Variable"]

Rows: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True)
class Real:
    """A real number in [low, high].

    Parameters
    ----------
    low, high : float
        Finite, low < high; above 0 if `log`.
    log : bool
        Search the logarithm: for scales such as a learning rate.
    size : int, optional
        A vector of so many numbers instead of one.
    """

    kind: ClassVar[str] = "real"
    low: float
    high: float
    log: bool = False
    size: int | None = None

    def __post_init__(self) -> None:
        _check_range("real", self.low, self.high, self.log, self.size)

    def bounds(self) -> tuple[float, float]:
        """Return the bounds of a column."""
        return (math.log(self.low), math.log(self.high)) if self.log else (self.low, self.high)

    def decode(self, rows: Rows) -> NDArray[Any]:
        """Return the values of columns, one row for each point."""
        values = np.exp(rows) if self.log else rows
        return np.clip(values, self.low, self.high)

    def encode(self, value: Any) -> Rows:
        """Return the columns of a value."""
        numbers = np.asarray(value, np.float64)
        return np.log(numbers) if self.log else numbers


@dataclass(frozen=True)
class Integer:
    """An integer in [low, high], both included.

    Parameters
    ----------
    low, high : int
        low < high; low at least 1 if `log`.
    log : bool
        Search the logarithm: for sizes such as a batch.
    size : int, optional
        A vector of so many integers instead of one.
    """

    kind: ClassVar[str] = "integer"
    low: int
    high: int
    log: bool = False
    size: int | None = None

    def __post_init__(self) -> None:
        _check_range("integer", self.low, self.high, self.log, self.size)
        if self.low != int(self.low) or self.high != int(self.high):
            raise ConfigError(f"integer bounds must be whole, got {self.low} and {self.high}")
        if max(abs(self.low), abs(self.high)) > 2**53:  # beyond it float64 has gaps
            raise ConfigError(
                f"integer bounds must be within 2**53, got {self.low} and {self.high}"
            )

    def bounds(self) -> tuple[float, float]:
        """Return the bounds of a column: half a step outside, so that all values are alike."""
        low, high = self.low - 0.5, self.high + 0.5
        return (math.log(low), math.log(high)) if self.log else (low, high)

    def decode(self, rows: Rows) -> NDArray[Any]:
        """Return the values of columns, one row for each point."""
        values = np.rint(np.exp(rows) if self.log else rows)
        return np.clip(values, self.low, self.high).astype(np.int64)

    def encode(self, value: Any) -> Rows:
        """Return the columns of a value."""
        numbers = np.asarray(value, np.float64)
        return np.log(numbers) if self.log else numbers


@dataclass(frozen=True)
class Categorical:
    """One of several values without an order.

    Parameters
    ----------
    choices : sequence
        At least two values of any type that can be compared by ``==``.
    """

    kind: ClassVar[str] = "categorical"
    choices: Sequence[Any]
    size: None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "choices", tuple(self.choices))
        if len(self.choices) < 2:
            raise ConfigError(f"a categorical needs at least 2 choices, got {len(self.choices)}")

    def bounds(self) -> tuple[float, float]:
        """Return the bounds of a column."""
        return -0.5, len(self.choices) - 0.5

    def decode(self, rows: Rows) -> NDArray[Any]:
        """Return the values of columns, one row for each point."""
        places = np.clip(np.rint(rows), 0, len(self.choices) - 1).astype(np.int64)
        values = np.empty(places.shape, object)
        for at, place in np.ndenumerate(places):
            values[at] = self.choices[int(place)]
        return values

    def encode(self, value: Any) -> Rows:
        """Return the columns of a value."""
        if value not in self.choices:
            raise ValueError(f"value must be one of {self.choices}, got {value!r}")
        return np.asarray(self.choices.index(value), np.float64)


@dataclass(frozen=True)
class Binary:
    """A truth value.

    Parameters
    ----------
    size : int, optional
        A vector of so many truth values instead of one.
    """

    kind: ClassVar[str] = "binary"
    size: int | None = None

    def __post_init__(self) -> None:
        _check_size("binary", self.size)

    def bounds(self) -> tuple[float, float]:
        """Return the bounds of a column."""
        return 0.0, 1.0

    def decode(self, rows: Rows) -> NDArray[Any]:
        """Return the values of columns, one row for each point."""
        return rows >= 0.5

    def encode(self, value: Any) -> Rows:
        """Return the columns of a value."""
        return np.asarray(value, bool).astype(np.float64)


@dataclass(frozen=True)
class Permutation:
    """An order of 0 to size - 1, such as a tour.

    Parameters
    ----------
    size : int
        At least 2.
    """

    kind: ClassVar[str] = "permutation"
    size: int

    def __post_init__(self) -> None:
        _check_size("permutation", self.size, least=2)

    def bounds(self) -> tuple[float, float]:
        """Return the bounds of a column."""
        return 0.0, self.size - 1.0

    def decode(self, rows: Rows) -> NDArray[Any]:
        """Return the rank of each key; equal keys keep their order."""
        ranks = np.empty(rows.shape, np.int64)
        order = np.argsort(rows, axis=1, kind="stable")
        np.put_along_axis(ranks, order, np.arange(self.size)[None, :], axis=1)
        return ranks

    def encode(self, value: Any) -> Rows:
        """Return the columns of a value."""
        order = np.asarray(value, np.float64)
        if not np.array_equal(np.sort(order.ravel()), np.arange(self.size)):
            raise ValueError(f"value must be a permutation of 0 to {self.size - 1}, got {value!r}")
        return order


Variable: TypeAlias = Real | Integer | Categorical | Binary | Permutation
_VARIABLES = (Real, Integer, Categorical, Binary, Permutation)


class Space:
    """A set of points to search.

    Parameters
    ----------
    variables : Variable or mapping of str to Variable
        A single variable, whose value is what an objective gets, or named ones: then it gets a
        dict.

    Attributes
    ----------
    dimension : int
        Columns of a row.
    lower, upper : ndarray, shape (dimension,), float64
        The bounds of the columns.
    kinds : tuple of str, length dimension
        ``real``, ``integer``, ``categorical``, ``binary`` or ``permutation`` for each column.

    Examples
    --------
    >>> space = Space({"rate": Real(1e-4, 1, log=True), "layers": Integer(1, 3)})
    >>> row = space.encode({"rate": 0.01, "layers": 2})
    >>> space.decode(row)["layers"]
    2
    """

    def __init__(self, variables: Variable | Mapping[str, Variable]) -> None:
        self.named = isinstance(variables, Mapping)
        named = variables if isinstance(variables, Mapping) else {"": variables}
        for name, variable in named.items():
            if not isinstance(variable, _VARIABLES):
                expected = ", ".join(kind.__name__ for kind in _VARIABLES)
                raise ConfigError(
                    f"variable {name!r} must be one of {expected}, got {type(variable).__name__}"
                )
        if not named:
            raise ConfigError("a space needs at least one variable")
        self.variables: dict[str, Variable] = dict(named)
        sizes = [variable.size or 1 for variable in named.values()]
        ends = np.cumsum([0, *sizes])
        self.columns = {
            name: slice(int(first), int(last))
            for name, first, last in zip(named, ends[:-1], ends[1:], strict=True)
        }
        self.dimension = int(ends[-1])
        self.lower = np.repeat([v.bounds()[0] for v in named.values()], sizes).astype(np.float64)
        self.upper = np.repeat([v.bounds()[1] for v in named.values()], sizes).astype(np.float64)
        self.kinds = tuple(np.repeat([v.kind for v in named.values()], sizes).tolist())

    @classmethod
    def box(cls, lower: ArrayLike, upper: ArrayLike) -> "Space":
        """Return a space of real vectors between two corners.

        Parameters
        ----------
        lower, upper : array_like, shape (d,)
            Finite, lower < upper in each column.
        """
        low, high = np.broadcast_arrays(
            np.atleast_1d(np.asarray(lower, np.float64)), np.asarray(upper, np.float64)
        )
        if low.ndim != 1 or not (np.isfinite(low) & np.isfinite(high) & (low < high)).all():
            raise ConfigError(
                f"bounds must be finite vectors with lower < upper, got {lower!r}, {upper!r}"
            )
        space = cls(Real(float(low.min()), float(high.max()), size=low.size))
        space.lower, space.upper = low.copy(), high.copy()
        return space

    def is_only(self, kind: str) -> bool:
        """Say whether all columns are of one kind."""
        return set(self.kinds) == {kind}

    def sample(self, count: int, rng: np.random.Generator) -> Rows:
        """Draw rows uniformly.

        Returns
        -------
        ndarray, shape (count, dimension), float64
        """
        rows = rng.random((count, self.dimension))
        rows *= self.upper - self.lower
        rows += self.lower
        for name, variable in self.variables.items():
            if isinstance(variable, Permutation):
                columns = rows[:, self.columns[name]]
                columns[:] = variable.decode(columns)
        return rows

    def clip(self, rows: Rows) -> Rows:
        """Return rows moved to the nearest point within the bounds; NaN becomes the lower bound."""
        return np.clip(np.where(np.isnan(rows), self.lower, rows), self.lower, self.upper)

    def decode(self, row: Rows) -> Any:
        """Return the value of one row.

        Parameters
        ----------
        row : ndarray, shape (dimension,), float64

        Returns
        -------
        dict, ndarray, or scalar
            A dict for named variables; for a single one its value, an array if it has a size.
        """
        values = {name: column[0] for name, column in self._columns(row[None, :]).items()}
        plain = {
            name: value.item() if isinstance(value, np.generic) else value
            for name, value in values.items()
        }
        return plain if self.named else plain[""]

    def decode_batch(self, rows: Rows) -> Any:
        """Return the values of many rows at once, for objectives that take them all.

        Parameters
        ----------
        rows : ndarray, shape (m, dimension), float64

        Returns
        -------
        dict of str to ndarray, or ndarray
            Arrays of shape (m,) or (m, size); a bare array for a single variable.
        """
        values = self._columns(rows)
        return values if self.named else values[""]

    def _columns(self, rows: Rows) -> dict[str, NDArray[Any]]:
        self._check_rows(rows)
        values = {}
        for name, variable in self.variables.items():
            columns = self.columns[name]
            if isinstance(variable, Real) and not variable.log:  # the bounds of `box` differ
                value: NDArray[Any] = np.clip(
                    rows[:, columns], self.lower[columns], self.upper[columns]
                )
            else:
                value = variable.decode(rows[:, columns])
            values[name] = value[:, 0] if variable.size is None else value
        return values

    def encode(self, value: Any) -> Rows:
        """Return the row of a value, within the bounds.

        Parameters
        ----------
        value : dict, array_like, or scalar
            As `decode` returns it.

        Raises
        ------
        ValueError
            If a variable is missing, unknown, or its value cannot be encoded.
        """
        values = value if self.named else {"": value}
        if not isinstance(values, Mapping) or set(values) != set(self.variables):
            raise ValueError(f"value must have the variables {list(self.variables)}, got {value!r}")
        row = np.empty(self.dimension)
        for name, variable in self.variables.items():
            with np.errstate(divide="ignore", invalid="ignore"):
                row[self.columns[name]] = variable.encode(values[name])
        if np.isnan(row).any():
            raise ValueError(f"value must be made of numbers, got {value!r}")
        return np.clip(row, self.lower, self.upper)

    def _check_rows(self, rows: Rows) -> None:
        if rows.ndim != 2 or rows.shape[1] != self.dimension:
            raise ValueError(f"rows must have shape (m, {self.dimension}), got {rows.shape}")


def _check_range(kind: str, low: float, high: float, log: bool, size: int | None) -> None:
    _check_size(kind, size)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ConfigError(f"a {kind} needs finite bounds with low < high, got {low} and {high}")
    if not math.isfinite(high - low):
        raise ConfigError(f"the range of a {kind} must be finite, got {low} to {high}")
    if log and low <= 0:
        raise ConfigError(f"a {kind} on a log scale needs a lower bound above 0, got {low}")


def _check_size(kind: str, size: int | None, least: int = 1) -> None:
    if size is not None and (size != int(size) or size < least):
        raise ConfigError(f"the size of a {kind} must be at least {least}, got {size}")
