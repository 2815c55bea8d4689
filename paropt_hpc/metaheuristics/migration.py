"""Who leaves an island, where it goes, and whom it replaces there; pure functions, no MPI.

The words: an *island* is an algorithm with a population of its own; *emigrants* are copies of some
of its members, which become *immigrants* of its neighbours in a topology. A *round* is what lies
between two migrations.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.comm import topology as topologies
from paropt_hpc.comm.topology import Topology
from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels.rng import philox
from paropt_hpc.metaheuristics.algorithm import ALGORITHMS, Algorithm, Rows, blocks, make
from paropt_hpc.metaheuristics.nsga2 import non_dominated_ranks
from paropt_hpc.metaheuristics.space import Space

__all__ = ["Migrants", "Migration", "make_islands"]

Places = NDArray[np.intp]
_SELECTIONS = ("best", "random", "tournament")
_REPLACEMENTS = ("worse", "worst", "random", "nearest")


@dataclass(frozen=True)
class Migration:
    """How islands exchange members.

    Parameters
    ----------
    topology : str or Topology
        Between islands: a name of :data:`paropt_hpc.comm.topology.TOPOLOGIES`, or one of as many
        as there are islands. A time-varying one takes a step at each migration.
    interval : int
        Generations between two migrations.
    size : int
        Emigrants of an island, at most half of its members; each of its targets gets them all.
    selection : {"best", "random", "tournament"}
        Who leaves: the best members, any, or winners against another one each.
    replacement : {"worse", "worst", "random", "nearest"}
        Whom an immigrant replaces: one of the worst members if it is better than that one; one of
        the worst, or any, in any case; the member nearest to it, if it is better.
    """

    topology: str | Topology = "ring"
    interval: int = 10
    size: int = 2
    selection: Literal["best", "random", "tournament"] = "best"
    replacement: Literal["worse", "worst", "random", "nearest"] = "worse"

    def __post_init__(self) -> None:
        if self.interval < 1 or self.size < 1:
            raise ConfigError(
                "interval and size of a migration must be at least 1, "
                f"got {self.interval} and {self.size}"
            )
        if isinstance(self.topology, str) and self.topology not in topologies.TOPOLOGIES:
            raise ConfigError(
                f"topology must be one of {', '.join(topologies.TOPOLOGIES)}, got {self.topology!r}"
            )
        for name, value, known in (
            ("selection", self.selection, _SELECTIONS),
            ("replacement", self.replacement, _REPLACEMENTS),
        ):
            if value not in known:
                raise ConfigError(f"{name} must be one of {', '.join(known)}, got {value!r}")

    def between(self, islands: int) -> Topology:
        """Return the topology for a number of islands."""
        if isinstance(self.topology, str):
            return topologies.make(self.topology, islands)
        if self.topology.size != islands:
            raise ConfigError(
                f"the topology joins {self.topology.size} islands, but there are {islands}"
            )
        return self.topology


class Migrants(NamedTuple):
    """Members on their way."""

    #: shape (n, d), float64
    x: Rows
    #: shape (n,) or (n, objectives), float64, finite
    f: Rows

    @classmethod
    def none(cls, dimension: int) -> Self:
        """Return nobody."""
        return cls(np.empty((0, dimension)), np.empty(0))


class Emigration(NamedTuple):
    """Emigrants with what their target needs to know of them."""

    #: the island that they go to; -1 where the receiver knows
    target: int
    source: int
    #: rounds that the source had done when they left
    round: int
    guests: Migrants


def packed_emigrants(emigration: Emigration) -> Rows:
    """Return emigrants as numbers: six that say who they are, their rows, their values."""
    target, source, round_, (x, f) = emigration
    columns = f.shape[1] if f.ndim > 1 else 0
    head = [target, source, round_, len(x), columns, x.shape[1]]
    return np.concatenate([head, x.ravel(), f.ravel()])


def unpacked_emigrants(numbers: Rows) -> list[Emigration]:
    """Return what was packed, one after the other."""
    emigrations, at = [], 0
    while at < len(numbers):
        target, source, round_, n, columns, d = (int(value) for value in numbers[at : at + 6])
        middle = at + 6 + n * d
        end = middle + n * max(1, columns)
        x, f = numbers[at + 6 : middle].reshape(n, d), numbers[middle:end]
        guests = Migrants(x, f.reshape(n, columns) if columns else f)
        emigrations.append(Emigration(target, source, round_, guests))
        at = end
    return emigrations


def between_groups(topology: Topology, groups: Sequence[int]) -> Topology:
    """Return the topology of groups of islands: who must write to whom.

    Parameters
    ----------
    topology : Topology
        Of the islands.
    groups : sequence of int
        The group of each island.
    """
    steps = (
        {
            (groups[source], group)
            for island, group in enumerate(groups)
            for source in topology.neighbors(island, step).sources
            if groups[source] != group
        }
        for step in range(topology.period)
    )
    return Topology(f"{topology.name} of groups", max(groups) + 1, steps)


def make_islands(
    names: str | Sequence[str], space: Space, count: int, *, seed: int = 0, **options: Any
) -> list[Algorithm]:
    """Return algorithms for so many islands, each with a seed of its own.

    Parameters
    ----------
    names : str or sequence of str
        Of :data:`.ALGORITHMS`; several take turns.
    space : Space
    count : int
        Islands, at least 1.
    seed : int
        Names the random streams of all of them.
    options
        Of every algorithm, as for :func:`.make`.
    """
    if count < 1:
        raise ConfigError(f"there must be at least 1 island, got {count}")
    listed = [names] if isinstance(names, str) else list(names)
    unknown = [name for name in listed if name not in ALGORITHMS]
    if unknown or not listed:
        raise ConfigError(
            f"algorithm must be one of {', '.join(sorted(ALGORITHMS))}, "
            f"got {unknown[0] if unknown else listed!r}"
        )
    seeds = [int(philox(seed, "island", i).integers(1 << 62)) for i in range(count)]
    if count == 1:
        seeds = [seed]  # a search of one island is that of the algorithm alone
    return [make(listed[i % len(listed)], space, seed=s, **options) for i, s in enumerate(seeds)]


def emigrants(algorithm: Algorithm, migration: Migration, rng: np.random.Generator) -> Migrants:
    """Return copies of the members that leave.

    Never more than half of them, and only such as are evaluated and feasible.
    """
    x, f = algorithm.population()
    members = fit_members(algorithm)
    count = min(migration.size, max(1, len(f) // 2), len(members))
    if count == 0:
        return Migrants.none(x.shape[1])
    chosen = _select(members, f, count, migration.selection, rng)
    return Migrants(x[chosen], f[chosen])


def fit_members(algorithm: Algorithm) -> Places:
    """Return which members of a population are evaluated and feasible."""
    _, f = algorithm.population()
    fit = np.isfinite(f.reshape(len(f), -1)).all(axis=1)
    violation = getattr(algorithm, "_violation", None)
    if violation is not None:
        fit &= violation == 0
    return np.flatnonzero(fit)


def _select(
    members: Places, f: Rows, count: int, selection: str, rng: np.random.Generator
) -> Places:
    if selection == "random":
        anyone: Places = rng.choice(members, count, replace=False)
        return anyone
    if selection == "tournament":
        first, second = rng.choice(members, (2, count))
        wins = f[first] <= f[second]
        winners: Places = np.where(wins if wins.ndim == 1 else wins.all(axis=1), first, second)
        return winners
    if f.ndim > 1:  # there is no best one of several objectives, but some are beaten by none
        members = members[non_dominated_ranks(f[members]) == 0]
        return _select(members, f[:, 0], min(count, len(members)), "random", rng)
    best_first: Places = members[np.argsort(f[members], kind="stable")]
    return best_first[:count]


def admit(
    algorithm: Algorithm, guests: Migrants, migration: Migration, rng: np.random.Generator
) -> None:
    """Let immigrants replace members of a population.

    Those of several islands come one island after the other.
    """
    x, f = guests
    if len(x) == 0:
        return
    if migration.replacement == "worse":
        algorithm.inject(x, f)
        return
    mine, values = algorithm.population()
    keys = values if values.ndim == 1 else values.sum(axis=1)
    news = f if f.ndim == 1 else f.sum(axis=1)
    best_first = np.argsort(news, kind="stable")[: len(mine)]
    x, f, news = x[best_first], f[best_first], news[best_first]
    if migration.replacement == "worst":
        where = np.argsort(keys, kind="stable")[::-1][: len(x)]
    elif migration.replacement == "random":
        where = rng.choice(len(mine), len(x), replace=False)
    else:
        scale = algorithm.space.upper - algorithm.space.lower
        where = np.array([_nearest(mine, guest, scale) for guest in x])
        # Of several immigrants nearest to one member the best takes its place.
        wins = (news < keys[where]) & _first_of_each(where)
        x, f, where = x[wins], f[wins], where[wins]
    if len(x):
        algorithm.inject(x, f, where)


def _nearest(mine: Rows, guest: Rows, scale: Rows) -> int:
    """Return the member nearest to a guest, lengths being shares of the range of a column."""
    squares = [(((rows - guest) / scale) ** 2).sum(axis=1) for rows in blocks(mine)]
    return int(np.concatenate(squares).argmin())


def _first_of_each(where: Places) -> NDArray[np.bool_]:
    first = np.zeros(len(where), bool)
    first[np.unique(where, return_index=True)[1]] = True
    return first
