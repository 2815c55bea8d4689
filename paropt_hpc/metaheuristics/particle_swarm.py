"""Particle swarm: points that fly, drawn to the best places that they and their neighbours know.

J. Kennedy and R. Eberhart, "Particle swarm optimization", ICNN 1995; inertia by Y. Shi and
R. Eberhart, "A modified particle swarm optimizer", CEC 1998.
"""

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels.backend import implementation
from paropt_hpc.metaheuristics.algorithm import Array, PopulationAlgorithm, Rows, blocks, register
from paropt_hpc.metaheuristics.constraints import Constraints
from paropt_hpc.metaheuristics.space import Space

__all__ = ["BOUNDS", "NEIGHBOURHOODS", "BinarySwarm", "ParticleSwarm", "constriction"]

BOUNDS = ("reflect", "absorb", "periodic")
NEIGHBOURHOODS = ("global", "ring", "von-neumann")


def constriction(own: float = 2.05, social: float = 2.05) -> tuple[float, float, float]:
    """Return inertia and both pulls of the constricted swarm.

    M. Clerc and J. Kennedy, "The particle swarm: explosion, stability, and convergence in a
    multidimensional complex space", IEEE Transactions on Evolutionary Computation 6, 2002, with
    kappa 1.

    Parameters
    ----------
    own, social : float
        Their sum above 4.
    """
    phi = own + social
    if not phi > 4:
        raise ConfigError(f"own + social must be above 4 for the constriction, got {phi}")
    chi = 2 / (phi - 2 + math.sqrt(phi * phi - 4 * phi))
    return chi, chi * own, chi * social


def neighbours(neighbourhood: str, count: int) -> NDArray[np.uint32]:
    """Return whom each particle listens to, itself included: shape (count, k), 0 columns for all.

    In the ring these are 2 particles, in the grid of von Neumann 4; J. Kennedy and R. Mendes,
    "Population structure and particle swarm performance", CEC 2002.
    """
    if neighbourhood not in NEIGHBOURHOODS:
        raise ConfigError(
            f"neighbourhood must be one of {', '.join(NEIGHBOURHOODS)}, got {neighbourhood!r}"
        )
    me = np.arange(count)
    if neighbourhood == "global":
        known = np.empty((count, 0), np.int64)
    elif neighbourhood == "ring":
        known = np.stack([me, me - 1, me + 1], axis=1) % count
    else:
        # The squarest grid of full rows; a prime count makes one row, which is the ring.
        width = next(w for w in range(math.isqrt(count), 0, -1) if count % w == 0)
        row, column = divmod(me, width)
        right = row * width + (column + 1) % width
        left = row * width + (column - 1) % width
        known = np.stack([me, left, right, (me - width) % count, (me + width) % count], axis=1)
    return np.ascontiguousarray(known, np.uint32)


class _Swarm(PopulationAlgorithm):
    """What swarms have in common: the members are the best places that particles have seen."""

    _state: ClassVar[tuple[str, ...]] = (*PopulationAlgorithm._state, "_place", "_velocity")
    _least_population = 1

    def __init__(
        self,
        space: Space,
        seed: int,
        population: int,
        neighbourhood: str,
        coefficients: tuple[float, float, float],
        constraints: Constraints | None,
    ) -> None:
        super().__init__(space, seed=seed, population=population, constraints=constraints)
        if not all(map(math.isfinite, coefficients)):
            raise ConfigError(f"inertia, own and social must be finite, got {coefficients}")
        self._neighbours = neighbours(neighbourhood, self._size)
        self._coefficients = coefficients  # inertia, own, social
        self._place = self._x.copy()
        self._velocity = np.zeros_like(self._x)

    def _ask(self) -> Rows:
        return self._place

    def _tell(self, x: Rows, f: Rows, violation: Rows | None) -> None:
        self._select(x, f, violation, strict=self.generation > 0)
        if x is not self._place:
            self._place[:] = x
        if self.best_x is None:  # all have failed: nothing draws particles away from there
            self._place[:] = self._x[:] = self._drawn()
            return
        self._move()

    def _drawn(self) -> Rows:
        """Return new places."""
        return self.space.sample(self._size, self._rng("drawn"))

    def _move(self) -> None:
        """Move the particles."""
        raise NotImplementedError

    def _replaced(self, places: Array) -> None:
        self._place[places] = self._x[places]


@register("pso")
class ParticleSwarm(_Swarm):
    """A swarm; its members are the best places that its particles have seen.

    Parameters
    ----------
    space, seed, population, constraints
        See `PopulationAlgorithm`.
    neighbourhood : str
        ``global``, ``ring`` or ``von-neumann``: whose best place a particle knows.
    inertia, own, social : float
        w, c1 and c2; the defaults are the constriction coefficients of Clerc and Kennedy.
    speed_limit : float
        Largest speed as a share of the range of a column; above 0.
    bounds : str
        What happens to a particle that leaves the box: ``reflect`` turns it, ``absorb`` stops it at
        the wall, ``periodic`` lets it enter on the other side.
    """

    def __init__(
        self,
        space: Space,
        *,
        seed: int = 0,
        population: int = 100,
        neighbourhood: str = "global",
        inertia: float = 0.7298437881283576,
        own: float = 1.496179765663133,
        social: float = 1.496179765663133,
        speed_limit: float = 0.5,
        bounds: str = "reflect",
        constraints: Constraints | None = None,
    ) -> None:
        coefficients = float(inertia), float(own), float(social)
        super().__init__(space, seed, population, neighbourhood, coefficients, constraints)
        if bounds not in BOUNDS:
            raise ConfigError(f"bounds must be one of {', '.join(BOUNDS)}, got {bounds!r}")
        if not speed_limit > 0:
            raise ConfigError(f"speed_limit must be above 0, got {speed_limit}")
        self._bounds = BOUNDS.index(bounds)
        self._fastest = np.minimum(speed_limit, 1e300) * (space.upper - space.lower)
        self._guide = np.empty(self._size, np.uint32)
        self._streams = self._key()

    def _move(self) -> None:
        kernel = implementation()
        kernel.swarm_move(
            self.space.lower,
            self.space.upper,
            self._neighbours,
            self._fastest,
            self._coefficients,
            self._bounds,
            kernel.generation_key(self._streams, self.generation),
            self._x,
            self._keys(),
            self._place,
            self._velocity,
            self._guide,
        )

    def is_native(self, objective: Any) -> bool:
        """See `Algorithm.is_native`."""
        return self._is_plain(objective)

    def _run_kernel(self, objective: int, generations: int, best: tuple[Rows, Rows, float]) -> int:
        done: int = implementation().swarm_run(
            self.space.lower,
            self.space.upper,
            self._neighbours,
            self._fastest,
            self._coefficients,
            self._bounds,
            objective,
            self._streams,
            self.generation,
            generations,
            self._place,
            self._velocity,
            self._x,
            self._f,
            np.empty(self._size),
            self._guide,
            best,
        )
        return done


@register("binary-pso")
class BinarySwarm(_Swarm):
    """A swarm of bit strings: speeds are log-odds of ones.

    J. Kennedy and R. C. Eberhart, "A discrete binary version of the particle swarm algorithm", SMC
    1997. For spaces of `Binary` variables only.

    Parameters
    ----------
    space, seed, population, constraints
        See `PopulationAlgorithm`.
    neighbourhood : str
        As for ``pso``.
    inertia, own, social : float
        w, c1 and c2.
    speed_limit : float
        Largest log-odds: the smaller, the more bits flip at random.
    """

    def __init__(
        self,
        space: Space,
        *,
        seed: int = 0,
        population: int = 100,
        neighbourhood: str = "ring",
        inertia: float = 1.0,
        own: float = 2.0,
        social: float = 2.0,
        speed_limit: float = 4.0,
        constraints: Constraints | None = None,
    ) -> None:
        if not space.is_only("binary"):
            raise ConfigError("'binary-pso' needs a space of Binary variables; use 'ga' or 'pso'")
        if not speed_limit > 0:
            raise ConfigError(f"speed_limit must be above 0, got {speed_limit}")
        coefficients = inertia, own, social
        super().__init__(space, seed, population, neighbourhood, coefficients, constraints)
        self._limit = speed_limit
        for rows in (self._x, self._place):
            np.rint(rows, out=rows)

    def _drawn(self) -> Rows:
        return np.rint(super()._drawn())

    def _move(self) -> None:
        inertia, own, social = self._coefficients
        keys, rng = self._keys(), self._rng()
        if self._neighbours.shape[1] == 0:
            guide = np.full(self._size, keys.argmin())
        else:
            best = keys[self._neighbours].argmin(axis=1)
            guide = self._neighbours[np.arange(self._size), best]
        parts = (blocks(part) for part in (self._x, guide, self._place, self._velocity))
        for mine, guides, place, velocity in zip(*parts, strict=True):
            velocity *= inertia
            velocity += own * rng.random(place.shape) * (mine - place)
            velocity += social * rng.random(place.shape) * (self._x[guides] - place)
            np.clip(velocity, -self._limit, self._limit, out=velocity)
            odds = 1 / (1 + np.exp(-velocity))
            place[:] = rng.random(place.shape) < odds
