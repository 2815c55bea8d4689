"""Differential evolution: each member is challenged by a vector made of differences of others.

R. Storn and K. Price, "Differential evolution: a simple and efficient heuristic for global
optimization over continuous spaces", Journal of Global Optimization 11, 1997.
"""

import numpy as np

from paropt_hpc.errors import ConfigError
from paropt_hpc.metaheuristics.algorithm import PopulationAlgorithm, Rows, register
from paropt_hpc.metaheuristics.constraints import Constraints
from paropt_hpc.metaheuristics.space import Space

__all__ = ["DifferentialEvolution"]


@register("de")
class DifferentialEvolution(PopulationAlgorithm):
    """DE/rand/1/bin.

    Parameters
    ----------
    space, seed, population, constraints
        See `PopulationAlgorithm`; at least 4 members.
    weight : float
        F of equation 2, in (0, 2].
    crossover : float
        CR of equation 4, in [0, 1].
    """

    _least_population = 4

    def __init__(
        self,
        space: Space,
        *,
        seed: int = 0,
        population: int = 100,
        weight: float = 0.5,
        crossover: float = 0.9,
        constraints: Constraints | None = None,
    ) -> None:
        super().__init__(space, seed=seed, population=population, constraints=constraints)
        if not 0 < weight <= 2:
            raise ConfigError(f"weight must be in (0, 2], got {weight}")
        if not 0 <= crossover <= 1:
            raise ConfigError(f"crossover must be in [0, 1], got {crossover}")
        self.weight = weight
        self.crossover = crossover

    def _ask(self) -> Rows:
        if self.generation == 0:
            return self._x
        n, d = self._x.shape
        rng = self._rng()
        # Three different members, none of them the challenged one.
        first = rng.random((n, n - 1)).argsort(axis=1)[:, :3]
        r = first + (first >= np.arange(n)[:, None])
        mutant = self._x[r[:, 0]] + self.weight * (self._x[r[:, 1]] - self._x[r[:, 2]])
        crossed = rng.random((n, d)) < self.crossover
        crossed[np.arange(n), rng.integers(d, size=n)] = True
        trial = np.where(crossed, mutant, self._x)
        # A column outside bounces half-way back, as in JADE (Zhang and Sanderson 2009).
        trial = np.where(trial < self.space.lower, (self._x + self.space.lower) / 2, trial)
        return np.where(trial > self.space.upper, (self._x + self.space.upper) / 2, trial)

    def _tell(self, x: Rows, f: Rows, violation: Rows | None) -> None:
        self._select(x, f, violation)
