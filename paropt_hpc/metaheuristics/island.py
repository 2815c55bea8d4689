"""An island: an algorithm with its counters, and what it says of itself."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from paropt_hpc.comm import Communicator
from paropt_hpc.errors import ConfigError, on_every_rank
from paropt_hpc.metaheuristics.algorithm import Algorithm, Rows
from paropt_hpc.metaheuristics.evaluation import Status, Tally, Vectorised
from paropt_hpc.metaheuristics.evaluators import Evaluator

__all__ = ["Budget", "Island", "Report"]

_SAMPLE = 512  # rows from which diversity is judged
_NUMBERS = 1 << 20  # that are moved between two looks at the clock: some milliseconds


@dataclass(frozen=True)
class Budget:
    """When to end; the first that is reached. At least one must be given.

    Parameters
    ----------
    evaluations : int, optional
        Over all islands, each of which has an equal share and finishes the generation it is in.
    generations : int, optional
        Of each island.
    target : float, optional
        End when a feasible point has this value or a smaller one.
    seconds : float, optional
        Of this run, by the clock: the one limit that makes results differ from run to run.
    """

    evaluations: int | None = None
    generations: int | None = None
    target: float | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        given = {name: value for name, value in asdict(self).items() if value is not None}
        if not given:
            raise ConfigError(f"a budget needs one of {', '.join(asdict(self))}")
        for name, value in given.items():
            if name != "target" and not value > 0:
                raise ConfigError(f"{name} of a budget must be above 0, got {value}")
        if self.target is not None and np.isnan(self.target):
            raise ConfigError("target of a budget must be a number, got NaN")


class Report(NamedTuple):
    """What an island says of itself at a meeting: figures alone, for they go to all ranks."""

    island: int
    generation: int
    evaluations: int
    finished: bool
    stopped: bool
    best_f: float
    best_violation: float
    median_f: float
    diversity: float
    #: evaluations by `Status`
    counts: Rows


def _median(values: Rows) -> float:
    """Return what `numpy.median` does, which takes ten times as long for a few values."""
    middle = [(len(values) - 1) // 2, len(values) // 2]
    return float(np.partition(values, middle)[middle].mean())


_FIGURES = len(Report._fields) - 1 + len(Status)


def packed_reports(reports: list[Report]) -> Rows:
    """Return reports as numbers."""
    rows = [np.array([*report[:-1], *report.counts], np.float64) for report in reports]
    return np.concatenate([*rows, np.empty(0)])


def unpacked_reports(numbers: Rows) -> list[Report]:
    """Return the reports that were packed, as copies."""
    reports = []
    for row in numbers.reshape(-1, _FIGURES):
        island, generation, evaluations = (int(number) for number in row[:3])
        flags = bool(row[3]), bool(row[4])
        best_f, best_violation, median_f, diversity = row[5:9].tolist()
        figures = best_f, best_violation, median_f, diversity
        reports.append(Report(island, generation, evaluations, *flags, *figures, row[9:].copy()))
    return reports


class Island:
    """An algorithm with its counters."""

    def __init__(self, number: int, algorithm: Algorithm, share: int | None, tally: Tally) -> None:
        self.number = number
        self.algorithm = algorithm
        self.share = share  # of the evaluations
        self.tally = tally
        self.stopped = False
        self.median_f = np.nan
        self.diversity = 1.0
        columns = algorithm.space.upper - algorithm.space.lower
        self._uniform = columns / np.sqrt(12)

    def finished(self, budget: Budget) -> bool:
        """Say whether there is nothing left to do for this island."""
        algorithm = self.algorithm
        return (
            algorithm.done
            or (self.share is not None and algorithm.evaluations >= self.share)
            or (budget.generations is not None and algorithm.generation >= budget.generations)
            or (
                budget.target is not None
                and algorithm.best_violation == 0
                and algorithm.best_f <= budget.target
            )
        )

    def advance(
        self, evaluator: Evaluator, until: int, budget: Budget, wish: Callable[[], bool]
    ) -> None:
        """Take generations up to a number; collective over the evaluator's ranks."""
        algorithm = self.algorithm
        self.stopped = False
        while algorithm.generation < until and not self.finished(budget):
            if self._advance_natively(evaluator, until - 1, budget, wish):
                continue
            x = algorithm.ask()
            results = evaluator.evaluate(x, wish())
            last = algorithm.generation + 1 >= until or results.stop
            if last:
                self._look(x, results.f)
            algorithm.tell(x, results.f, results.violation)
            self.tally.add(results)
            if self.tally.exhausted:
                self._give_up(evaluator.comm)
            if results.stop:
                self.stopped = True
                return
        if self.finished(budget) and algorithm.generation < until:
            self._look(*algorithm.population())

    def _advance_natively(
        self, evaluator: Evaluator, until: int, budget: Budget, wish: Callable[[], bool]
    ) -> bool:
        """Take some generations without returning to Python, where that is possible.

        Never the last one before a meeting, whose rows are looked at.
        """
        algorithm, objective = self.algorithm, evaluator.objective
        function = objective.function if isinstance(objective, Vectorised) else None
        most = max(1, _NUMBERS // (algorithm.population_size * algorithm.space.dimension))
        most = min(most, until - algorithm.generation)
        if algorithm.generation == 0 or most < 1 or not algorithm.is_native(function) or wish():
            return False
        count = evaluator.alone(most)
        if count == 0:
            return False
        assert function is not None
        before = algorithm.evaluations
        algorithm.advance(function, count, evaluations=self.share, target=budget.target)
        self.tally.add_successes(algorithm.evaluations - before)
        return True

    def _look(self, x: Rows, f: Rows) -> None:
        """Take the figures of a generation."""
        good = f[np.isfinite(f)] if f.ndim == 1 else f[np.isfinite(f).all(axis=1), 0]
        self.median_f = _median(good) if good.size else np.nan
        some = x[:: max(1, len(x) // _SAMPLE)]
        deviation = np.sqrt(((some - some.mean(axis=0)) ** 2).mean(axis=0)) if len(x) else 0.0
        self.diversity = float((deviation / self._uniform).mean())

    def _give_up(self, comm: Communicator) -> None:
        told = comm.gather_texts(next(iter(self.tally.examples.values()), ""))
        error = self.tally.error([text for text in told if text])
        algorithm = self.algorithm
        if algorithm.best_x is not None:
            best = f"; the best point had {algorithm.best_f:.10g} at {algorithm.best_x.tolist()}"
            error.args = (f"{error}{best}",)
        raise on_every_rank(error)

    def report(self, budget: Budget) -> Report:
        """Say what the others need to know."""
        a = self.algorithm
        return Report(
            self.number, a.generation, a.evaluations, self.finished(budget), self.stopped,
            a.best_f, a.best_violation, self.median_f, self.diversity,
            self.tally.counts.astype(float),
        )  # fmt: skip

    def state_dict(self) -> dict[str, Any]:
        """Return all that a resumed run needs of this island; arrays change when it goes on."""
        return {
            "algorithm": self.algorithm.state_dict(copy=False),
            "tally": self.tally.state_dict(),
            "figures": {"median_f": self.median_f, "diversity": self.diversity},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a state that was saved."""
        self.algorithm.load_state_dict(state["algorithm"])
        self.tally.load_state_dict(state["tally"])
        self.median_f = state["figures"]["median_f"]
        self.diversity = state["figures"]["diversity"]
