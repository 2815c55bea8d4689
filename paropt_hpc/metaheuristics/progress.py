"""What a search tells while it runs and when it has ended."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from paropt_hpc.metaheuristics.algorithm import Rows

__all__ = ["Clock", "Moment", "Outcome"]

_PROGRESS = 0.1  # seconds between two reports


class Moment(NamedTuple):
    """Figures of a search at a meeting."""

    generation: int
    evaluations: int
    best_f: float
    #: median of the last generation's values, mean over the islands
    median_f: float
    #: standard deviation of the rows of the last generation as a share of that of uniform ones:
    #: 1 at the start, 0 when all are the same; mean over columns and islands
    diversity: float


@dataclass(frozen=True)
class Outcome:
    """What a search came to; the same on every rank, but for `seconds`.

    With several objectives there is a `front` instead of a best point.
    """

    #: shape (d,), float64, or None before the first success
    best_x: Rows | None
    best_f: float
    best_violation: float
    evaluations: int
    #: of the island that has done most
    generations: int
    #: failed evaluations by cause
    failures: dict[str, int]
    #: "evaluations", "generations", "target", "seconds" or "done"
    reason: str
    seconds: float
    history: list[Moment]
    #: what one of the failed evaluations of each cause has said; which one depends on the ranks
    causes: dict[str, str] = field(default_factory=dict)
    #: of several objectives: rows, shape (n, d), and values, shape (n, k), of the feasible members
    #: that none dominates, in the order of the first objective
    front: tuple[Rows, Rows] | None = None


class Clock:
    """The time of a run, and when to report next."""

    def __init__(
        self, limit: float | None, observer: Callable[[Moment, float], object] | None
    ) -> None:
        self._start = time.perf_counter()
        self._limit = np.inf if limit is None else limit
        self._observer = observer
        self._told = -np.inf

    @property
    def seconds(self) -> float:
        """Return the seconds since the start."""
        return time.perf_counter() - self._start

    @property
    def up(self) -> bool:
        """Say whether the time is up."""
        return self.seconds > self._limit

    def tell(self, moment: Moment) -> None:
        """Report, unless the last report is only just past."""
        if self._observer is not None and self.seconds - self._told > _PROGRESS:
            self._told = self.seconds
            self._observer(moment, self._told)
