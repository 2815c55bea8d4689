"""Differential evolution: each member is challenged by a vector made of differences of others.

R. Storn and K. Price, "Differential evolution: a simple and efficient heuristic for global
optimization over continuous spaces", Journal of Global Optimization 11, 1997.
"""

from typing import Any, ClassVar

import numpy as np

from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels.backend import implementation
from paropt_hpc.metaheuristics.algorithm import PopulationAlgorithm, Rows, register
from paropt_hpc.metaheuristics.constraints import Constraints
from paropt_hpc.metaheuristics.space import Space

__all__ = ["MUTATIONS", "DifferentialEvolution", "SelfAdaptiveDE"]

MUTATIONS = ("rand/1", "best/1", "current-to-best/1")


@register("de")
class DifferentialEvolution(PopulationAlgorithm):
    """DE with binomial crossover.

    Parameters
    ----------
    space, seed, population, constraints
        See `PopulationAlgorithm`; at least 4 members.
    mutation : str
        ``rand/1``, ``best/1``, or ``current-to-best/1``, which move towards the best member.
    weight : float
        F, the weight of a difference, in (0, 2].
    crossover : float
        CR, the chance of a column to come from the mutant, in [0, 1].

    Notes
    -----
    A column that would leave the box bounces half-way back (J. Zhang and A. C. Sanderson, "JADE:
    adaptive differential evolution with optional external archive", IEEE Transactions on
    Evolutionary Computation 13, 2009).
    """

    _least_population = 4

    def __init__(
        self,
        space: Space,
        *,
        seed: int = 0,
        population: int = 100,
        mutation: str = "rand/1",
        weight: float = 0.5,
        crossover: float = 0.9,
        constraints: Constraints | None = None,
    ) -> None:
        super().__init__(space, seed=seed, population=population, constraints=constraints)
        if mutation not in MUTATIONS:
            raise ConfigError(f"mutation must be one of {', '.join(MUTATIONS)}, got {mutation!r}")
        if not 0 < weight <= 2:
            raise ConfigError(f"weight must be in (0, 2], got {weight}")
        if not 0 <= crossover <= 1:
            raise ConfigError(f"crossover must be in [0, 1], got {crossover}")
        self._mutation = MUTATIONS.index(mutation)
        self._weight = np.full(self._size, float(weight))
        self._crossover = np.full(self._size, float(crossover))
        self._trial = np.empty_like(self._x)
        self._archive = np.empty((0, space.dimension))
        self._streams = self._key()

    def _ask(self) -> Rows:
        return self._trials(self._weight, self._crossover)

    def _trials(self, weight: Rows, crossover: Rows) -> Rows:
        if self.generation == 0:
            return self._x
        kernel = implementation()
        guides = np.array([self._keys().argmin()], np.uint32)
        key = kernel.generation_key(self._streams, self.generation)
        kernel.de_trials(
            self.space.lower,
            self.space.upper,
            self._mutation,
            self._archive,
            guides,
            weight,
            crossover,
            key,
            self._x,
            self._trial,
        )
        return self._trial

    def _tell(self, x: Rows, f: Rows, violation: Rows | None) -> None:
        self._select(x, f, violation)

    def is_native(self, objective: Any) -> bool:
        """See `Algorithm.is_native`."""
        return self._is_plain(objective)

    def _run_kernel(self, objective: int, generations: int, best: tuple[Rows, Rows, float]) -> int:
        done: int = implementation().de_run(
            self.space.lower,
            self.space.upper,
            self._mutation,
            self._weight,
            self._crossover,
            objective,
            self._streams,
            self.generation,
            generations,
            self._x,
            self._f,
            self._trial,
            np.empty(self._size),
            best,
        )
        return done


@register("jde")
class SelfAdaptiveDE(DifferentialEvolution):
    """DE/rand/1/bin whose members carry their own F and CR: jDE.

    J. Brest et al., "Self-adapting control parameters in differential evolution: a comparative
    study on numerical benchmark problems", IEEE Transactions on Evolutionary Computation 10, 2006.

    Parameters
    ----------
    space, seed, population, constraints
        See `PopulationAlgorithm`; at least 4 members.
    """

    _state: ClassVar[tuple[str, ...]] = (*PopulationAlgorithm._state, "_weight", "_crossover")

    def __init__(
        self,
        space: Space,
        *,
        seed: int = 0,
        population: int = 100,
        constraints: Constraints | None = None,
    ) -> None:
        super().__init__(space, seed=seed, population=population, constraints=constraints)

    def _ask(self) -> Rows:
        return self._trials(*self._parameters())

    def _parameters(self) -> tuple[Rows, Rows]:
        """Return F and CR of the trials: sometimes new ones, otherwise the members' own."""
        if self.generation == 0:
            return self._weight, self._crossover
        r = self._rng("parameters").random((4, self._size))
        weight = np.where(r[1] < 0.1, 0.1 + 0.9 * r[0], self._weight)
        return weight, np.where(r[3] < 0.1, r[2], self._crossover)

    def _tell(self, x: Rows, f: Rows, violation: Rows | None) -> None:
        mine, theirs = self._keys(), self.constraints.key(f, violation)
        survived = theirs <= mine
        weight, crossover = self._parameters()
        self._weight = np.where(survived, weight, self._weight)
        self._crossover = np.where(survived, crossover, self._crossover)
        self._select(x, f, violation)

    def is_native(self, objective: Any) -> bool:
        """Say that it is not."""
        return False
