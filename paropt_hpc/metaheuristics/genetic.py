"""Genetic algorithm: parents are chosen by their values, crossed and mutated, and the best live on.

K. Deb, "Multi-objective optimization using evolutionary algorithms", Wiley 2001, chapter 4. Columns
of real numbers and integers take the real-coded operators, truth values and categories are
exchanged and drawn anew, permutations have operators of their own
(`paropt_hpc.metaheuristics.permutations`).
"""

from typing import Any, ClassVar

import numpy as np

from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels.backend import implementation
from paropt_hpc.metaheuristics.algorithm import Array, PopulationAlgorithm, Rows, blocks, register
from paropt_hpc.metaheuristics.constraints import Constraints
from paropt_hpc.metaheuristics.permutations import ORDER_CROSSOVERS, ORDER_MUTATIONS
from paropt_hpc.metaheuristics.space import Permutation, Space

__all__ = ["CROSSOVERS", "MUTATION_STEPS", "SELECTIONS", "SURVIVALS", "Genetic"]

SELECTIONS = ("tournament", "rank", "roulette")
SURVIVALS = ("truncation", "generational")
CROSSOVERS = ("sbx", "blend")
MUTATION_STEPS = ("polynomial", "gaussian")


@register("ga")
class Genetic(PopulationAlgorithm):
    """A genetic algorithm for any space.

    Parameters
    ----------
    space, seed, population, constraints
        See `PopulationAlgorithm`.
    selection : str
        How parents are chosen: ``tournament``, linear ``rank`` (the best twice as often as the
        middle one; J. E. Baker 1985), or ``roulette`` in proportion to the lead over the worst.
    tournament : int
        Rivals of a tournament.
    survival : str
        ``truncation``: the best of parents and children live on; ``generational``: all children and
        the `elite`.
    elite : int
        Members that always live on.
    crossover : str
        ``sbx``, simulated binary crossover (K. Deb and R. B. Agrawal 1995), or
        ``blend`` (L. J. Eshelman and J. D. Schaffer 1993: BLX-alpha).
    crossover_rate : float
        Of a pair.
    crossover_index : float, optional
        eta of ``sbx``, 15 by default; alpha of ``blend``, 0.5 by default.
    mutation : str
        ``polynomial`` (K. Deb and D. Deb 2014) or ``gaussian``.
    mutation_rate : float, optional
        Of a column; by default one column of a row on average.
    mutation_index : float, optional
        eta of ``polynomial``, 20 by default; of ``gaussian`` the standard deviation as a share of
        the range, 0.1 by default.
    order_crossover, order_mutation : str
        Of permutations: ``ox``, ``pmx`` or ``edge``; ``swap``, ``inversion`` or ``insertion``.
    """

    _state: ClassVar[tuple[str, ...]] = PopulationAlgorithm._state

    def __init__(
        self,
        space: Space,
        *,
        seed: int = 0,
        population: int = 100,
        selection: str = "tournament",
        tournament: int = 2,
        survival: str = "truncation",
        elite: int = 1,
        crossover: str = "sbx",
        crossover_rate: float = 0.9,
        crossover_index: float | None = None,
        mutation: str = "polynomial",
        mutation_rate: float | None = None,
        mutation_index: float | None = None,
        order_crossover: str = "ox",
        order_mutation: str = "inversion",
        constraints: Constraints | None = None,
    ) -> None:
        super().__init__(space, seed=seed, population=population, constraints=constraints)
        self._selection = _choice("selection", selection, SELECTIONS)
        self._truncation = _choice("survival", survival, SURVIVALS) == "truncation"
        kind = CROSSOVERS.index(_choice("crossover", crossover, CROSSOVERS))
        step = MUTATION_STEPS.index(_choice("mutation", mutation, MUTATION_STEPS))
        if not 0 <= elite < population:
            raise ConfigError(f"elite must be in [0, {population - 1}], got {elite}")
        if tournament < 1:
            raise ConfigError(f"tournament must be at least 1, got {tournament}")
        rate = 1 / space.dimension if mutation_rate is None else mutation_rate
        self._elite, self._tournament = elite, tournament
        index = _index(crossover_index, (15.0, 0.5)[kind])
        self._crossover = kind, _rate("crossover_rate", crossover_rate), index
        index = _index(mutation_index, (20.0, 0.1)[step])
        self._mutation = step, _rate("mutation_rate", rate), index
        self._order_crossover = ORDER_CROSSOVERS[
            _choice("order_crossover", order_crossover, tuple(ORDER_CROSSOVERS))
        ]
        self._order_mutation = ORDER_MUTATIONS[
            _choice("order_mutation", order_mutation, tuple(ORDER_MUTATIONS))
        ]
        children = population if self._truncation else population - elite
        self._child = np.empty((children, space.dimension))
        self._parents = np.empty(children, np.uint32)
        rivals = population + children
        self._scratch = np.empty(rivals, np.uint32), np.empty(rivals)
        self._streams = self._key()

    def _ask(self) -> Rows:
        if self.generation == 0:
            return self._x
        kernel = implementation()
        key = kernel.generation_key(self._streams, self.generation)
        if self._selection == "tournament":
            kernel.ga_parents(self._tournament, key, self._keys(), self._parents)
        else:
            self._parents[:] = self._drawn_parents(self._rng("parents"))
        if not self.space.is_only("permutation"):
            kernel.ga_children(
                self.space.lower,
                self.space.upper,
                self._crossover,
                self._mutation,
                key,
                self._x,
                self._parents,
                self._child,
            )
        if not set(self.space.kinds) <= {"real", "integer"}:
            self._vary_discrete(self._rng("discrete"))
        return self._child

    def _drawn_parents(self, rng: np.random.Generator) -> Array:
        """Return parents drawn by rank or by roulette."""
        keys = self._keys()
        if self._selection == "rank":
            chance = np.empty(self._size)
            chance[np.argsort(keys, kind="stable")] = np.arange(self._size, 0, -1)
        else:
            finite = keys[np.isfinite(keys)]
            worst = finite.max() if finite.size else 0.0
            chance = np.where(np.isfinite(keys), worst - np.minimum(keys, worst), 0.0)
        total = chance.sum()
        if not 0 < total < np.inf:  # all alike, or too far apart to add up
            chance = np.ones(self._size)
            total = float(self._size)
        return rng.choice(self._size, size=len(self._parents), p=chance / total)

    def _vary_discrete(self, rng: np.random.Generator) -> None:
        """Overwrite the columns of discrete variables by the children of operators of their own."""
        m = len(self._child)
        crossed = rng.random(m)[(np.arange(m) // 2) * 2] < self._crossover[1]
        parts = (blocks(part) for part in (self._child, self._parents, crossed))
        for child, parents, crosses in zip(*parts, strict=True):
            self._vary_some(child, parents, crosses, rng)

    def _vary_some(
        self, child: Rows, parents: Array, crossed: Array, rng: np.random.Generator
    ) -> None:
        m = len(child)
        p, q = self._x[parents], self._x[parents[np.minimum(np.arange(m) ^ 1, m - 1)]]
        pool = np.array(self.space.kinds)
        columns = np.flatnonzero((pool == "binary") | (pool == "categorical"))
        if columns.size:
            # Uniform crossover, the same columns for both children of a pair.
            swaps = rng.random((m, columns.size))[(np.arange(m) // 2) * 2] < 0.5
            values = np.where(swaps & crossed[:, None], q[:, columns], p[:, columns])
            mutated = rng.random(values.shape) < self._mutation[1]
            low, high = self.space.lower[columns], self.space.upper[columns]
            drawn = low + rng.random(values.shape) * (high - low)
            flipped = np.where(pool[columns] == "binary", 1 - np.rint(values), drawn)
            child[:, columns] = np.where(mutated, flipped, values)
        for name, variable in self.space.variables.items():
            if isinstance(variable, Permutation):
                block = self.space.columns[name]
                order = child[:, block]
                self._vary_order(variable, order, p[:, block], q[:, block], crossed, rng)

    def _vary_order(
        self,
        variable: Permutation,
        child: Rows,
        p: Rows,
        q: Rows,
        crossed: Array,
        rng: np.random.Generator,
    ) -> None:
        first, second = variable.decode(p), variable.decode(q)
        mutated = rng.random(len(p)) < min(1.0, self._mutation[1] * variable.size)
        for i in range(len(p)):
            row = self._order_crossover(first[i], second[i], rng) if crossed[i] else first[i]
            child[i] = self._order_mutation(row, rng) if mutated[i] else row

    def _tell(self, x: Rows, f: Rows, violation: Rows | None) -> None:
        if self.generation == 0:
            self._select(x, f, violation)
            return
        self.constraints.adapt(f, violation)
        if violation is None and self._violation is None:
            keys = self._f
            theirs = f
        else:
            self._violation = np.zeros(self._size) if self._violation is None else self._violation
            keys = self._keys().copy()
            theirs = self.constraints.key(f, violation)
        if self._violation is None:
            self._survive(self._x, keys, x, theirs)
            return
        # Values and violations follow the rows: ask for the child that comes into each place.
        child = np.full((self._size, 1), -1.0)
        self._survive(child, keys, np.arange(len(f), dtype=np.float64)[:, None], theirs)
        gaps = np.flatnonzero(child[:, 0] >= 0)
        self._fill(gaps, child[gaps, 0].astype(np.intp), x, f, violation)

    def _fill(self, gaps: Array, come: Array, x: Rows, f: Rows, violation: Rows | None) -> None:
        """Put children into gaps, in blocks for the sake of memory."""
        for places, chosen in zip(blocks(gaps), blocks(come), strict=True):
            self._x[places] = x[chosen]
        self._f[gaps] = f[come]
        if self._violation is not None:
            self._violation[gaps] = 0 if violation is None else violation[come]

    def _survive(self, x: Rows, keys: Rows, child: Rows, child_keys: Rows) -> None:
        implementation().ga_survive(
            self._elite, self._truncation, x, keys, child, child_keys, *self._scratch
        )

    def is_native(self, objective: Any) -> bool:
        """See `Algorithm.is_native`."""
        return self._is_plain(objective) and self._selection == "tournament"

    @property
    def _asked_size(self) -> int:
        return len(self._child)

    def _run_kernel(self, objective: int, generations: int, best: tuple[Rows, Rows, float]) -> int:
        done: int = implementation().ga_run(
            self.space.lower,
            self.space.upper,
            self._elite,
            self._tournament,
            self._truncation,
            self._crossover,
            self._mutation,
            objective,
            self._streams,
            self.generation,
            generations,
            self._x,
            self._f,
            self._child,
            np.empty(len(self._child)),
            self._parents,
            *self._scratch,
            best,
        )
        return done


def _choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return value


def _rate(name: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise ConfigError(f"{name} must be in [0, 1], got {value}")
    return float(value)


def _index(value: float | None, default: float) -> float:
    if value is not None and not value >= 0:
        raise ConfigError(f"an index must be at least 0, got {value}")
    return default if value is None else float(value)
