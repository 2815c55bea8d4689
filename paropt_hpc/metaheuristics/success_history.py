"""L-SHADE: differential evolution that remembers which F and CR succeeded, and shrinks.

R. Tanabe and A. S. Fukunaga, "Improving the search performance of SHADE using linear population
size reduction", CEC 2014; mutation and archive are those of JADE.
"""

from typing import Any, ClassVar

import numpy as np

from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels.backend import implementation
from paropt_hpc.metaheuristics.algorithm import (
    Array,
    PopulationAlgorithm,
    Rows,
    register,
    take_rows,
)
from paropt_hpc.metaheuristics.constraints import Constraints
from paropt_hpc.metaheuristics.space import Space

__all__ = ["LSHADE"]

_CURRENT_TO_BEST = 2
_MEMORY = 6  # H of the paper
_MANY = 100_000  # members


@register("lshade")
class LSHADE(PopulationAlgorithm):
    """DE/current-to-pbest/1/bin with archive and success history: L-SHADE.

    Parameters
    ----------
    space, seed, constraints
        See `PopulationAlgorithm`.
    population : int, optional
        Members at the start, at least 4; by default 18 for each column.
    budget : int, optional
        Evaluations after which only 4 members are left; by default none are lost, which is SHADE.
    greediness : float
        p: the share of best members that trials move to.
    archive : float, optional
        Replaced members that are remembered, as a multiple of the population; by default 2.6, as in
        the paper, and 1, as in JADE, from 100,000 members on, where memory matters more.
    """

    _state: ClassVar[tuple[str, ...]] = (
        *PopulationAlgorithm._state,
        "_archive",
        "_weights",
        "_rates",
        "_next",
    )
    _least_population = 4

    def __init__(
        self,
        space: Space,
        *,
        seed: int = 0,
        population: int | None = None,
        budget: int | None = None,
        greediness: float = 0.11,
        archive: float | None = None,
        constraints: Constraints | None = None,
    ) -> None:
        members = max(4, 18 * space.dimension) if population is None else population
        super().__init__(space, seed=seed, population=members, constraints=constraints)
        if budget is not None and budget < 1:
            raise ConfigError(f"budget must be at least 1, got {budget}")
        if not 0 < greediness <= 1:
            raise ConfigError(f"greediness must be in (0, 1], got {greediness}")
        if archive is None:
            archive = 2.6 if members < _MANY else 1.0
        if not archive >= 0:
            raise ConfigError(f"archive must be at least 0, got {archive}")
        self._start_size, self._budget = self._size, budget
        self._greediness, self._archive_share = greediness, archive
        self._room = np.empty((0, space.dimension))
        self._archive = self._room  # the rows of it that are in use
        self._trial = np.empty_like(self._x)
        self._weights, self._rates = np.full(_MEMORY, 0.5), np.full(_MEMORY, 0.5)
        self._next = 0
        self._streams = self._key()

    def _loaded(self) -> None:
        self._size = len(self._x)
        self._room = self._archive
        self._trial = np.empty_like(self._x)

    def _check_state(self, name: str, value: Any) -> None:
        resized = name in ("_x", "_f", "_violation", "_archive")  # with the budget
        if not resized or np.shape(value)[1:] != np.shape(getattr(self, name))[1:]:
            super()._check_state(name, value)

    def _parameters(self) -> tuple[Rows, Rows]:
        """Return F and CR of the trials, drawn around remembered ones."""
        rng = self._rng("parameters")
        slot = rng.integers(_MEMORY, size=self._size)
        rate = np.clip(self._rates[slot] + 0.1 * rng.standard_normal(self._size), 0, 1)
        rate[self._rates[slot] < 0] = 0  # the terminal value
        weight = np.zeros(self._size)
        while (missing := weight <= 0).any():
            drawn = self._weights[slot] + 0.1 * rng.standard_cauchy(self._size)
            weight = np.where(missing, drawn, weight)
        return np.minimum(weight, 1), rate

    def _ask(self) -> Rows:
        if self.generation == 0:
            return self._x
        kernel = implementation()
        best = max(2, round(self._greediness * self._size))
        guides = np.argsort(self._keys(), kind="stable")[:best].astype(np.uint32)
        weight, rate = self._parameters()
        trial = self._trial[: self._size]
        kernel.de_trials(
            self.space.lower,
            self.space.upper,
            _CURRENT_TO_BEST,
            self._archive,
            guides,
            weight,
            rate,
            kernel.generation_key(self._streams, self.generation),
            self._x,
            trial,
        )
        return trial

    def _tell(self, x: Rows, f: Rows, violation: Rows | None) -> None:
        if self.generation > 0:
            mine, theirs = self._keys(), self.constraints.key(f, violation)
            better = theirs < mine
            if better.any():
                with np.errstate(invalid="ignore"):
                    gain = np.where(better, mine - theirs, 0.0)
                self._learn(better, np.where(np.isfinite(gain), gain, 1e300))
                self._remember(np.flatnonzero(better))
        self._select(x, f, violation)
        self._shrink(self.evaluations + len(x))

    def _learn(self, better: Array, gain: Rows) -> None:
        """Remember the means of the F and CR that succeeded."""
        weight, rate = self._parameters()
        share = gain[better] / gain[better].max()
        share = share / share.sum()
        f, cr = weight[better], rate[better]
        self._weights[self._next] = (share @ f**2) / (share @ f)
        if self._rates[self._next] < 0 or cr.max() == 0:
            self._rates[self._next] = -1  # terminal: CR stays 0
        else:
            self._rates[self._next] = (share @ cr**2) / (share @ cr)
        self._next = (self._next + 1) % _MEMORY

    def _remember(self, replaced: Array) -> None:
        """Put members that are about to be replaced into the archive, and forget others at random.

        In place, so that no second archive is needed: those that stay move to the front.
        """
        old, most = len(self._archive), int(self._archive_share * self._size)
        kept = np.arange(old + len(replaced))
        if len(kept) > most:
            kept = np.sort(self._rng("archive").permutation(len(kept))[:most])
        stay = kept[kept < old]
        come = replaced[kept[len(stay) :] - old]
        if len(self._room) < len(kept):
            self._room = np.empty((max(most, old), self.space.dimension))
            self._room[:old] = self._archive
        take_rows(self._room, stay, self._room)
        take_rows(self._x, come, self._room[len(stay) :])
        self._archive = self._room[: len(kept)]

    def _shrink(self, evaluations: int) -> None:
        """Drop the worst members as the budget is used up."""
        if self._budget is None:
            return
        used = min(1.0, evaluations / self._budget)
        size = round(self._start_size + (4 - self._start_size) * used)
        if size >= self._size:
            return
        kept = np.sort(np.argsort(self._keys(), kind="stable")[:size])
        take_rows(self._x, kept, self._x)  # in place, as these are in order
        self._x, self._f, self._size = self._x[:size], self._f[kept], size
        if self._violation is not None:
            self._violation = self._violation[kept]
        self._archive = self._archive[: int(self._archive_share * size)]
