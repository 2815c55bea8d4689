"""Ant colony: ants make tours along trails, and good tours strengthen the trails.

T. Stuetzle and H. H. Hoos, "MAX-MIN ant system", Future Generation Computer Systems 16, 2000.
"""

import math
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels.backend import implementation
from paropt_hpc.metaheuristics.algorithm import Algorithm, Array, Rows, numbers, register
from paropt_hpc.metaheuristics.constraints import Constraints, worth_migrating
from paropt_hpc.metaheuristics.evaluation import read_only
from paropt_hpc.metaheuristics.space import Space

__all__ = ["AntColony"]

_BEST_EVERY = 5  # generations; in the others the best ant of the generation strengthens its trail
_P_BEST = 0.05  # probability of the best tour in a colony that has converged


@register("mmas")
class AntColony(Algorithm):
    """The MAX-MIN ant system for a single permutation, e.g. a tour of cities.

    Trails lie between successors in a closed tour. They are measured in multiples of what one best
    ant leaves, so that values may have any sign and scale.

    Parameters
    ----------
    space, seed, constraints
        See `Algorithm`; a space of one `Permutation`.
    population : int
        Ants of a generation.
    distances : array_like, shape (n, n), optional
        Of cities: ants prefer near ones. Without them only trails count.
    local_search : bool, optional
        Improve each tour by native Lin-Kernighan moves before it is asked for; needs symmetric
        distances, and is the default where they are. The values told must then be lengths.
    kicks : int, optional
        Perturbations of each tour in the local search; by default half as many as there are cities.
    alpha, beta : float
        Exponents of the trail and of 1 / distance in an ant's choice.
    evaporation : float
        1 - rho, the share of a trail that is lost in a generation, in (0, 1); by default 0.2 with
        local search and 0.02 without.
    neighbours : int
        Nearest cities that an ant considers first.
    """

    _state: ClassVar[tuple[str, ...]] = ("_trail", "_x", "_f")

    def __init__(
        self,
        space: Space,
        *,
        seed: int = 0,
        population: int = 25,
        distances: ArrayLike | None = None,
        local_search: bool | None = None,
        kicks: int | None = None,
        alpha: float = 1.0,
        beta: float = 2.0,
        evaporation: float | None = None,
        neighbours: int = 20,
        constraints: Constraints | None = None,
    ) -> None:
        super().__init__(space, seed=seed, constraints=constraints)
        if not space.is_only("permutation") or len(space.variables) != 1:
            raise ConfigError("'mmas' needs a space of one Permutation; use 'ga' for others")
        if population < 1 or neighbours < 1:
            raise ConfigError(
                f"population and neighbours must be at least 1, got {population}, {neighbours}"
            )
        n = space.dimension
        self._distances = _checked_distances(distances, n)
        symmetric = distances is not None and bool((self._distances == self._distances.T).all())
        if local_search and not symmetric:
            raise ConfigError("local_search needs symmetric distances; leave it out")
        self._local_search = symmetric if local_search is None else local_search
        self._kicks = n // 2 if kicks is None else kicks
        if self._kicks < 0 or not (math.isfinite(alpha) and math.isfinite(beta)):
            raise ConfigError(
                f"kicks must be at least 0, alpha and beta finite, got {kicks}, {alpha} and {beta}"
            )
        self._ants = population
        default = 0.2 if self._local_search else 0.02
        self._evaporation = default if evaporation is None else evaporation
        if not 0 < self._evaporation < 1:
            raise ConfigError(f"evaporation must be in (0, 1), got {evaporation}")
        self._alpha = alpha
        away = self._distances + np.where(np.eye(n, dtype=bool), np.inf, 0)
        self._near = np.ascontiguousarray(
            np.argsort(away, axis=1, kind="stable")[:, : min(neighbours, n - 1)], np.uint32
        )
        shortest = self._distances[self._distances > 0].min(initial=1.0)
        self._sight = np.maximum(away, shortest * 1e-3) ** -beta
        self._most = 1 / self._evaporation  # of a trail, in ants
        root = _P_BEST ** (1 / n)
        average = max(n / 2 - 1, 1)
        self._least = min(self._most, self._most * (1 - root) / (average * root))
        self._trail = np.full((n, n), self._most)
        self._x: Rows = np.empty((0, n))
        self._f: Rows = np.empty(0)
        self._streams = self._key()

    @property
    def population_size(self) -> int:
        """Return the number of ants."""
        return self._ants

    def _ask(self) -> Rows:
        kernel = implementation()
        key = kernel.generation_key(self._streams, self.generation)
        tours = np.empty((self._ants, self.space.dimension), np.uint32)
        attraction = self._trail**self._alpha * self._sight
        kernel.ant_tours(attraction, self._near, key, tours)
        if self._local_search:
            near = np.ascontiguousarray(self._near[:, :10])
            kernel.improve_tours(self._distances, near, self._kicks, key, tours)
        return tours.astype(np.float64)

    def _tell(self, x: Rows, f: Rows, violation: Rows | None) -> None:
        self.constraints.adapt(f, violation)
        keys = self.constraints.key(f, violation)
        self._x, self._f = x.copy(), worth_migrating(f, violation)
        if not np.isfinite(keys).any():
            return
        leader = x[int(keys.argmin())]
        if self.generation % _BEST_EVERY == 0 and self.best_x is not None:
            leader = self.best_x
        (variable,) = self.space.variables.values()  # named or not
        tour = variable.decode(leader[None])[0]
        self._trail *= 1 - self._evaporation
        after = np.roll(tour, -1)
        self._trail[tour, after] += 1
        self._trail[after, tour] += 1
        np.clip(self._trail, self._least, self._most, out=self._trail)

    def population(self) -> tuple[Rows, Rows]:
        """Return read-only views of the tours told last and their values."""
        if len(self._x):
            return read_only(self._x), read_only(self._f)
        return read_only(self.ask()), np.full(self._ants, math.inf)

    def inject(self, x: Rows, f: ArrayLike, where: ArrayLike | None = None) -> None:
        """Take immigrants: the best tour ever, if among them, strengthens the trails."""
        x, values, _ = self._checked(x, f, None)
        self._note_best(x, np.where(np.isfinite(values), values, math.inf), None)

    def _check_state(self, name: str, value: Array) -> None:
        if name == "_trail" and value.shape != self._trail.shape:
            super()._check_state(name, value)


def _checked_distances(distances: ArrayLike | None, n: int) -> Rows:
    if distances is None:
        return np.ones((n, n))
    checked = np.ascontiguousarray(numbers("distances", distances))
    if checked.shape != (n, n) or not (checked >= 0).all():
        raise ConfigError(f"distances must be finite, at least 0, and of shape ({n}, {n})")
    return checked
