"""L-SHADE: differential evolution that remembers which F and CR succeeded, and shrinks.

R. Tanabe and A. S. Fukunaga, "Improving the search performance of SHADE using linear population
size reduction", CEC 2014; mutation and archive are those of JADE.
"""

from typing import Any, ClassVar

import numpy as np

from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels.backend import implementation
from paropt_hpc.metaheuristics.algorithm import Array, PopulationAlgorithm, Rows, register
from paropt_hpc.metaheuristics.constraints import Constraints
from paropt_hpc.metaheuristics.space import Space

__all__ = ["LSHADE"]

_CURRENT_TO_BEST = 2
_MEMORY = 6  # H of the paper


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
    archive : float
        Replaced members that are remembered, as a multiple of the population.
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
        archive: float = 2.6,
        constraints: Constraints | None = None,
    ) -> None:
        members = max(4, 18 * space.dimension) if population is None else population
        super().__init__(space, seed=seed, population=members, constraints=constraints)
        if budget is not None and budget < 1:
            raise ConfigError(f"budget must be at least 1, got {budget}")
        if not 0 < greediness <= 1:
            raise ConfigError(f"greediness must be in (0, 1], got {greediness}")
        if not archive >= 0:
            raise ConfigError(f"archive must be at least 0, got {archive}")
        self._start_size, self._budget = self._size, budget
        self._greediness, self._archive_share = greediness, archive
        self._archive = np.empty((0, space.dimension))
        self._weights, self._rates = np.full(_MEMORY, 0.5), np.full(_MEMORY, 0.5)
        self._next = 0
        self._streams = self._key()

    def _loaded(self) -> None:
        self._size = len(self._x)

    def _check_state(self, name: str, value: Any) -> None:
        if name not in ("_x", "_f", "_violation", "_archive"):  # whose lengths change
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
        trial = np.empty_like(self._x)
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
                self._remember(self._x[better])
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

    def _remember(self, replaced: Rows) -> None:
        """Put replaced members into the archive, and forget others at random."""
        most = int(self._archive_share * self._size)
        self._archive = np.concatenate([self._archive, replaced])
        if len(self._archive) > most:
            kept = np.sort(self._rng("archive").permutation(len(self._archive))[:most])
            self._archive = self._archive[kept]

    def _shrink(self, evaluations: int) -> None:
        """Drop the worst members as the budget is used up."""
        if self._budget is None:
            return
        used = min(1.0, evaluations / self._budget)
        size = round(self._start_size + (4 - self._start_size) * used)
        if size >= self._size:
            return
        kept = np.sort(np.argsort(self._keys(), kind="stable")[:size])
        self._x, self._f, self._size = self._x[kept], self._f[kept], size
        if self._violation is not None:
            self._violation = self._violation[kept]
        self._archive = self._archive[: int(self._archive_share * size)]
