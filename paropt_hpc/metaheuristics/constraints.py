"""Constraints: one number for each point that orders feasible and infeasible ones.

A violation says in total how much constraints are violated, and is 0 for a feasible point.
Algorithms compare *keys*, which are the values themselves as long as no violation is told.
"""

import math
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.errors import ConfigError

__all__ = [
    "AdaptivePenalty",
    "Constraints",
    "FeasibilityRules",
    "total_violation",
    "worth_migrating",
]

Rows = NDArray[np.float64]
_INFEASIBLE = 1e300  # above the values that an objective may have


class Constraints(Protocol):
    """How values and violations become keys."""

    def key(self, f: Rows, violation: Rows | None) -> Rows:
        """Return keys: the smaller, the better; infinite where the evaluation failed."""
        ...

    def adapt(self, f: Rows, violation: Rows | None) -> None:
        """Learn from a generation."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return what was learned."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what was learned."""
        ...


class FeasibilityRules:
    """Feasible before infeasible, then by value, infeasible ones by violation.

    K. Deb, "An efficient constraint handling method for genetic algorithms", Computer Methods in
    Applied Mechanics and Engineering 186, 2000. There the worst feasible value is added to the
    violation. Here keys of infeasible points lie above 1e300 in the order of the violation,
    so that keys of different generations can be compared.
    """

    def key(self, f: Rows, violation: Rows | None) -> Rows:
        """Return keys: the smaller, the better; infinite where the evaluation failed."""
        if violation is None:
            return f
        with np.errstate(divide="ignore"):
            # In (0, 1) and monotone over the whole range of float64.
            place = (np.log2(violation) + 1080) / 2160
        infeasible = np.where(violation == math.inf, 1e301, _INFEASIBLE * (1 + place))
        return np.where(np.isfinite(f), np.where(violation > 0, infeasible, f), math.inf)

    def adapt(self, f: Rows, violation: Rows | None) -> None:
        """Learn nothing."""

    def state_dict(self) -> dict[str, Any]:
        """Return that nothing was learned."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take nothing."""


class AdaptivePenalty:
    """Value plus weight times violation, the weight following the success of the search.

    A. B. Hadj-Alouane and J. C. Bean, "A genetic algorithm for the multiple-choice integer
    program", Operations Research 45, 1997: the weight is divided by `shrink` when the best point of
    each of the last `memory` generations was feasible, multiplied by `grow` when none was.

    Parameters
    ----------
    weight : float
        At the start; above 0.
    memory : int
        Generations that decide; at least 1.
    grow, shrink : float
        Above 1, and different, so that weights do not cycle.
    """

    def __init__(
        self, weight: float = 1.0, *, memory: int = 5, grow: float = 2.0, shrink: float = 1.5
    ) -> None:
        if not (weight > 0 and memory >= 1 and grow > 1 and shrink > 1 and grow != shrink):
            raise ConfigError(
                "an adaptive penalty needs weight > 0, memory >= 1, grow > 1, shrink > 1 and "
                f"grow != shrink, got {weight}, {memory}, {grow}, {shrink}"
            )
        self.weight = float(weight)
        self.memory = memory
        self.grow = grow
        self.shrink = shrink
        self._recent: list[bool] = []  # was the best of the generation feasible

    def key(self, f: Rows, violation: Rows | None) -> Rows:
        """Return keys: the smaller, the better; infinite where the evaluation failed."""
        return f if violation is None else f + self.weight * violation

    def adapt(self, f: Rows, violation: Rows | None) -> None:
        """Learn from a generation."""
        if violation is None or len(f) == 0:
            return
        self._recent.append(bool(violation[int(self.key(f, violation).argmin())] == 0))
        if len(self._recent) < self.memory:
            return
        if all(self._recent):
            self.weight = max(self.weight / self.shrink, 1e-12)
        elif not any(self._recent):
            self.weight = min(self.weight * self.grow, 1e12)
        del self._recent[0]

    def state_dict(self) -> dict[str, Any]:
        """Return what was learned."""
        return {"weight": self.weight, "recent": list(self._recent)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what was learned."""
        self.weight = float(state["weight"])
        self._recent = [bool(value) for value in state["recent"]]


def worth_migrating(f: Rows, violation: Rows | None) -> Rows:
    """Return a copy of values, infinite where infeasible: migrants are taken for feasible."""
    return f.copy() if violation is None else np.where(violation > 0, math.inf, f)


def total_violation(
    inequalities: NDArray[Any] | None = None,
    equalities: NDArray[Any] | None = None,
    tolerance: float = 1e-4,
) -> Rows:
    """Return how much constraints are violated in total.

    Parameters
    ----------
    inequalities : ndarray, shape (m, p), optional
        Satisfied where at most 0.
    equalities : ndarray, shape (m, q), optional
        Satisfied where within `tolerance` of 0.
    tolerance : float
        At least 0.

    Returns
    -------
    ndarray, shape (m,), float64
        The sum of the excesses; infinite where one is NaN.
    """
    excess = []
    if inequalities is not None:
        excess.append(np.asarray(inequalities, np.float64))
    if equalities is not None:
        excess.append(np.abs(np.asarray(equalities, np.float64)) - tolerance)
    if not excess:
        raise ValueError("total_violation needs inequalities or equalities")
    total = np.maximum(np.concatenate(excess, axis=1), 0).sum(axis=1)
    return np.where(np.isnan(total), math.inf, total)
