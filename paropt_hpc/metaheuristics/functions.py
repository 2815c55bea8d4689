"""Functions to try algorithms on, each with its usual box.

They take rows, shape (m, d), and return values, shape (m,). Those that are native make
`Algorithm.advance` run without returning to Python.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels.backend import implementation
from paropt_hpc.metaheuristics.space import Real, Space

__all__ = ["FUNCTIONS", "Function", "function"]

Rows = NDArray[np.float64]


@dataclass(frozen=True)
class Function:
    """A function to minimise; 0 is its smallest value.

    Parameters
    ----------
    name : str
    low, high : float
        The box of every column.
    at : float
        All columns of the minimum.
    native : int, optional
        Its number in the kernels.
    formula : callable, optional
        Where it is not native.
    """

    name: str
    low: float
    high: float
    at: float = 0.0
    native: int | None = None
    formula: Callable[[Rows], Rows] | None = field(default=None, repr=False)

    def __call__(self, x: Rows) -> Rows:
        """Return the values of rows."""
        if self.formula is not None:
            return self.formula(x)
        f = np.empty(len(x))
        implementation().evaluate(self.native, np.ascontiguousarray(x, np.float64), f)
        return f

    def space(self, dimension: int) -> Space:
        """Return its box as a space."""
        return Space(Real(self.low, self.high, size=dimension))


def _griewank(x: Rows) -> Rows:
    j = np.sqrt(np.arange(1, x.shape[1] + 1))
    value: Rows = (x * x).sum(axis=1) / 4000 - np.cos(x / j).prod(axis=1) + 1
    return value


def _schwefel(x: Rows) -> Rows:
    offset = 418.9828872724339  # the value of the minimum, at 420.96874635998202
    value: Rows = offset * x.shape[1] - (x * np.sin(np.sqrt(np.abs(x)))).sum(axis=1)
    return value


def _levy(x: Rows) -> Rows:
    w = 1 + (x - 1) / 4
    inner = (w[:, :-1] - 1) ** 2 * (1 + 10 * np.sin(np.pi * w[:, :-1] + 1) ** 2)
    last = (w[:, -1] - 1) ** 2 * (1 + np.sin(2 * np.pi * w[:, -1]) ** 2)
    value: Rows = np.sin(np.pi * w[:, 0]) ** 2 + inner.sum(axis=1) + last
    return value


FUNCTIONS = {
    one.name: one
    for one in (
        Function("sphere", -5.12, 5.12, native=0),
        Function("rastrigin", -5.12, 5.12, native=1),
        Function("rosenbrock", -5.0, 10.0, at=1.0, native=2),
        Function("ackley", -15.0, 30.0, native=3),
        Function("griewank", -600.0, 600.0, formula=_griewank),
        Function("schwefel", -500.0, 500.0, at=420.96874635998202, formula=_schwefel),
        Function("levy", -10.0, 10.0, at=1.0, formula=_levy),
    )
}


def function(name: str) -> Function:
    """Return a function by its name, one of `FUNCTIONS`."""
    if name not in FUNCTIONS:
        raise ConfigError(f"function must be one of {', '.join(FUNCTIONS)}, got {name!r}")
    return FUNCTIONS[name]
