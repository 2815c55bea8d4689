"""NSGA-II: several objectives at once, kept as a front of points that none dominates.

K. Deb, A. Pratap, S. Agarwal and T. Meyarivan, "A fast and elitist multiobjective genetic
algorithm: NSGA-II", IEEE Transactions on Evolutionary Computation 6, 2002.
"""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from paropt_hpc.errors import ConfigError
from paropt_hpc.metaheuristics.algorithm import Array, Rows, register
from paropt_hpc.metaheuristics.genetic import Genetic
from paropt_hpc.metaheuristics.space import Space

__all__ = ["NSGA2", "crowding_distance", "non_dominated_ranks"]


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
    m = len(f)
    no_worse = np.ones((m, m), bool)
    better = np.zeros((m, m), bool)
    for column in f.T:
        no_worse &= column[:, None] <= column
        better |= column[:, None] < column
    dominates = no_worse & better
    if violation is not None:
        both = (violation == 0)[:, None] & (violation == 0)
        dominates = np.where(both, dominates, violation[:, None] < violation)
    rank = np.full(m, -1)
    dominators = dominates.sum(axis=0)
    front = 0
    while (rank < 0).any():
        now = (rank < 0) & (dominators == 0)
        rank[now] = front
        dominators = dominators - dominates[now].sum(axis=0)
        front += 1
    return rank


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
    for front in range(int(rank.max(initial=-1)) + 1):
        members = np.flatnonzero(rank == front)
        for column in f.T:
            order = members[np.argsort(column[members], kind="stable")]
            values = column[order]
            distance[order[[0, -1]]] = np.inf
            if not np.isfinite(values[[0, -1]]).all():
                continue
            span = values[-1] - values[0]
            if len(order) > 2 and span > 0:
                distance[order[1:-1]] += (values[2:] - values[:-2]) / span
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
        kept = np.argsort(places)[: self._size]
        self._x = np.concatenate([self._x, x])[kept]
        self._f = values[kept]
        if self._violation is not None:
            self._violation = violated[kept]

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
        values = np.where(np.isfinite(values), values, np.inf)
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
