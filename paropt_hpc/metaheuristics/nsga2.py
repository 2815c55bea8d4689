"""NSGA-II: several objectives at once, kept as a front of points that none dominates.

K. Deb, A. Pratap, S. Agarwal and T. Meyarivan, "A fast and elitist multiobjective genetic
algorithm: NSGA-II", IEEE Transactions on Evolutionary Computation 6, 2002.
"""

from bisect import bisect_right
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from paropt_hpc.errors import ConfigError
from paropt_hpc.metaheuristics.algorithm import Array, Rows, blocks, register
from paropt_hpc.metaheuristics.genetic import Genetic
from paropt_hpc.metaheuristics.space import Space

__all__ = ["NSGA2", "crowding_distance", "non_dominated_ranks"]

_PAIRS = 1 << 20  # that are compared at once where there are more than two objectives


def non_dominated_ranks(f: Rows, violation: Rows | None = None) -> Array:
    """Return the front of each point, 0 for those that none dominates.

    Parameters
    ----------
    f : ndarray, shape (m, k)
        Infinite where an evaluation failed: such points come last.
    violation : ndarray, shape (m,), optional
        A feasible point dominates an infeasible one, a smaller violation a larger one (section VI).

    Returns
    -------
    ndarray, shape (m,), int
    """
    if violation is None:
        return _ranks(f)
    violation = np.where(np.isfinite(f).all(axis=1), violation, np.inf)
    feasible = violation == 0
    rank = np.empty(len(f), np.intp)
    rank[feasible] = _ranks(f[feasible])
    fronts = int(rank[feasible].max(initial=-1)) + 1
    rank[~feasible] = fronts + np.unique(violation[~feasible], return_inverse=True)[1]
    return rank


def _ranks(f: Rows) -> Array:
    return _ranks_of_two(f) if f.shape[1] == 2 else _ranks_of_many(f)


def _ranks_of_two(f: Rows) -> Array:
    """Return the front of each point in O(m log m) time.

    Of the points so far, in the order of the first objective, the last one of a front has its
    least second objective: what that one does not dominate is dominated by none of the front
    (M. T. Jensen, IEEE Transactions on Evolutionary Computation 7, 2003).
    """
    rank = np.empty(len(f), np.intp)
    least: list[float] = []  # second objective of the last point of each front, ascending
    before, front = None, 0
    for places in blocks(np.lexsort((f[:, 1], f[:, 0]))):
        points = f[places].tolist()
        fronts = []
        for point in points:
            if point != before:  # equal points share a front
                front = bisect_right(least, point[1])
                least[front : front + 1] = [point[1]]
                before = point
            fronts.append(front)
        rank[places] = fronts
    return rank


def _ranks_of_many(f: Rows) -> Array:
    """Return the front of each point in O(m^2) time and O(m) memory."""
    rank = np.full(len(f), -1)
    dominators = _dominated(f, np.arange(len(f)))
    front = 0
    while (rank < 0).any():
        now = np.flatnonzero((rank < 0) & (dominators == 0))
        rank[now] = front
        dominators -= _dominated(f, now)
        front += 1
    return rank


def _dominated(f: Rows, by: Array) -> Array:
    """Return how many of some points dominate each point."""
    count = np.zeros(len(f), np.intp)
    step = max(1, _PAIRS // max(1, len(f)))
    for first in range(0, len(by), step):
        some = f[by[first : first + step]]
        no_worse = np.ones((len(some), len(f)), bool)
        better = np.zeros_like(no_worse)
        for column, others in zip(f.T, some.T, strict=True):
            no_worse &= others[:, None] <= column
            better |= others[:, None] < column
        count += np.count_nonzero(no_worse & better, axis=0)
    return count


def crowding_distance(f: Rows, rank: Array) -> Rows:
    """Return how far the neighbours within its front are from each point (section III-B).

    Parameters
    ----------
    f : ndarray, shape (m, k)
    rank : ndarray, shape (m,), int
        The fronts.

    Returns
    -------
    ndarray, shape (m,), float64
        Infinite at the ends of a front.
    """
    distance = np.zeros(len(f))
    for column in f.T:
        order = np.lexsort((column, rank))
        values, fronts = column[order], rank[order]
        ends = np.flatnonzero(np.diff(fronts, prepend=-1, append=fronts[-1:] + 1))  # and beginnings
        low, high = values[ends[:-1]], values[ends[1:] - 1]
        with np.errstate(invalid="ignore", over="ignore"):
            span = np.repeat(high - low, np.diff(ends))
        inner = np.isfinite(span) & (span > 0)
        inner[ends[:-1]] = inner[ends[1:] - 1] = False
        at = np.flatnonzero(inner)
        distance[order[at]] += (values[at + 1] - values[at - 1]) / span[at]
        distance[order[ends[:-1]]] = distance[order[ends[1:] - 1]] = np.inf
    return distance


@register("nsga2")
class NSGA2(Genetic):
    """A genetic algorithm for several objectives.

    `population` returns values of shape (n, objectives); there is no single best point, `front`
    returns those that none dominates.

    Parameters
    ----------
    space, seed, population
        See `PopulationAlgorithm`.
    objectives : int
        At least 2.
    crossover, crossover_rate, crossover_index, mutation, mutation_rate, mutation_index
        As for ``ga``.
    order_crossover, order_mutation
        As for ``ga``.
    """

    objectives: ClassVar[int | None] = None

    def __init__(
        self,
        space: Space,
        *,
        seed: int = 0,
        population: int = 100,
        objectives: int = 2,
        crossover: str = "sbx",
        crossover_rate: float = 0.9,
        crossover_index: float | None = None,
        mutation: str = "polynomial",
        mutation_rate: float | None = None,
        mutation_index: float | None = None,
        order_crossover: str = "ox",
        order_mutation: str = "inversion",
    ) -> None:
        super().__init__(
            space,
            seed=seed,
            population=population,
            crossover=crossover,
            crossover_rate=crossover_rate,
            crossover_index=crossover_index,
            mutation=mutation,
            mutation_rate=mutation_rate,
            mutation_index=mutation_index,
            order_crossover=order_crossover,
            order_mutation=order_mutation,
        )
        if objectives < 2:
            raise ConfigError(f"objectives must be at least 2, got {objectives}; use 'ga' for one")
        self._f = np.full((population, objectives), np.inf)

    def _places_in_order(self, f: Rows, violation: Rows | None) -> Rows:
        """Return the place of each point by front, then by crowding (section III-B)."""
        rank = non_dominated_ranks(f, violation)
        order = np.lexsort((-crowding_distance(f, rank), rank))
        places = np.empty(len(f))
        places[order] = np.arange(len(f))
        return places

    def _keys(self) -> Rows:
        return self._places_in_order(self._f, self._violation)

    def _tell(self, x: Rows, f: Rows, violation: Rows | None) -> None:
        self._check_objectives(f)
        if violation is not None and self._violation is None:
            self._violation = np.zeros(self._size)
        told = np.zeros(len(f)) if violation is None else violation
        if self.generation == 0:
            self._x[:], self._f[:] = x, f
            if self._violation is not None:
                self._violation[:] = told
            return
        mine = self._violation if self._violation is not None else np.zeros(self._size)
        values, violated = np.concatenate([self._f, f]), np.concatenate([mine, told])
        places = self._places_in_order(values, violated if self._violation is not None else None)
        survives = places < self._size
        gaps = np.flatnonzero(~survives[: self._size])
        self._fill(gaps, np.flatnonzero(survives[self._size :]), x, f, violation)

    def _check_objectives(self, f: Rows) -> None:
        if f.shape[1] != self._f.shape[1]:
            raise ValueError(f"f must have {self._f.shape[1]} objectives, got {f.shape[1]}")

    def front(self) -> tuple[Rows, Rows]:
        """Return copies of the members that none dominates, and their values.

        Returns
        -------
        x : ndarray, shape (n, dimension), float64
        f : ndarray, shape (n, objectives), float64
        """
        first = non_dominated_ranks(self._f, self._violation) == 0
        first &= np.isfinite(self._f).all(axis=1)
        if self._violation is not None:
            first &= self._violation == 0
        return self._x[first].copy(), self._f[first].copy()

    def inject(self, x: Rows, f: ArrayLike, where: ArrayLike | None = None) -> None:
        """Take immigrants; see `Algorithm.inject`.

        By default each replaces one of the worst members, unless that one is of a better front.
        """
        x, values, _ = self._checked(x, f, None)
        self._check_objectives(values)
        values = np.where(np.isfinite(values).all(axis=1, keepdims=True), values, np.inf)
        if where is None:
            places, taken = self._worse_members(values)
        else:
            places, taken = self._places(values[:, 0], where)
        self._x[places], self._f[places] = self.space.clip(x[taken]), values[taken]
        if self._violation is not None:
            self._violation[places] = 0
        self._asked = None

    def _worse_members(self, f: Rows) -> tuple[Array, Array]:
        """Return which members feasible immigrants replace, and which of these."""
        violation = None
        if self._violation is not None:
            violation = np.concatenate([self._violation, np.zeros(len(f))])
        rank = non_dominated_ranks(np.concatenate([self._f, f]), violation)
        mine, theirs = rank[: self._size], rank[self._size :]
        best_first = np.argsort(theirs, kind="stable")[: self._size]
        worst_first = np.argsort(self._keys(), kind="stable")[::-1][: len(best_first)]
        no_worse = theirs[best_first] <= mine[worst_first]
        return worst_first[no_worse], best_first[no_worse]

    def is_native(self, objective: Any) -> bool:
        """Say that it is not."""
        return False
