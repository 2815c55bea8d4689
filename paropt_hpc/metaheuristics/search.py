"""The run: islands advance, meet, migrate, are saved, until a budget is spent.

A search has K islands; usually one. P ranks are cut into groups, each with its share of the islands
or, where there are more ranks than islands, each island with a group of its own, whose ranks split
the rows. What an island does depends on its number and on what its neighbours have sent, never on
the rank that computes it; so the result is the same for every P.

Islands *meet* after a number of generations, the same for all: their figures go to all ranks, their
emigrants to the neighbours alone. Between meetings groups do not wait for one another.
"""

import json
import math
import signal as signals
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from paropt_hpc.comm import Communicator, neighbor_exchange_bytes
from paropt_hpc.errors import ConfigError, StoppedError, on_every_rank
from paropt_hpc.kernels.rng import philox
from paropt_hpc.metaheuristics.algorithm import Algorithm, Rows
from paropt_hpc.metaheuristics.asynchronous import MigrationLog, Wanderers, shared
from paropt_hpc.metaheuristics.evaluation import Objective, Status, Tally, as_objective
from paropt_hpc.metaheuristics.evaluators import Evaluator, RowSplit
from paropt_hpc.metaheuristics.island import (
    Budget,
    Island,
    Report,
    packed_reports,
    unpacked_reports,
)
from paropt_hpc.metaheuristics.migration import (
    Emigration,
    Migrants,
    Migration,
    admit,
    between_groups,
    emigrants,
    fit_members,
    packed_emigrants,
    unpacked_emigrants,
)
from paropt_hpc.metaheuristics.nsga2 import non_dominated_ranks
from paropt_hpc.metaheuristics.progress import Clock, Moment, Outcome
from paropt_hpc.metaheuristics.space import Space
from paropt_hpc.runs import Checkpoint, Checkpoints, StopRequest

__all__ = ["Budget", "Moment", "Outcome", "Search"]

_HISTORY = 256  # moments that are kept; when there are more, every other one goes
_MEETING = 10  # generations between the meetings of islands that do not migrate


class Search:
    """Minimise an objective by one or more algorithms, over all ranks.

    Making it, :meth:`run` and :meth:`free` are collective.

    Parameters
    ----------
    comm : Communicator
    algorithms : Algorithm or sequence of Algorithm
        One for each island, with the same space; the same on all ranks, with seeds that differ
        between islands (see :func:`islands`). They are changed in place, those of this rank's
        islands only.
    objective : Objective or callable
        A plain function is one of one row, as for :class:`.Scalar`.
    migration : Migration, optional
        How islands exchange members; None: not at all.
    evaluator : callable, optional
        Makes an evaluator from a group's communicator and the objective; default
        :class:`.RowSplit`.
    max_failures : int
        So many failed evaluations of an island in a row end the run with an error.
    settings : mapping, optional
        What else must be the same for a run to be gone on with: names and JSON values.
    """

    def __init__(
        self,
        comm: Communicator,
        algorithms: Algorithm | Sequence[Algorithm],
        objective: Any,
        *,
        migration: Migration | None = None,
        evaluator: Callable[[Communicator, Objective], Evaluator] = RowSplit,
        max_failures: int = 1000,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        listed = [algorithms] if isinstance(algorithms, Algorithm) else list(algorithms)
        self.comm = comm
        self.migration = migration if len(listed) > 1 else None
        self.topology = None
        with comm.together():
            objective = as_objective(objective)
            _check_islands(listed, objective.outputs)
            if self.migration is not None:
                self.topology = self.migration.between(len(listed))
        self.settings = dict(settings or {})
        self.algorithms = listed
        self.groups = min(comm.size, len(listed))
        group = comm.rank * self.groups // comm.size
        self.group = comm if self.groups == 1 else comm.split(group)
        homes = [i * self.groups // len(listed) for i in range(len(listed))]
        self._islands = [
            Island(i, algorithm, None, Tally(max_failures))
            for i, algorithm in enumerate(listed)
            if homes[i] == group
        ]
        self._routes = self._roots = None  # of emigrants: between which groups, by which ranks
        if self.topology is not None and self.groups > 1:
            self._routes = between_groups(self.topology, homes)
            alone = self.groups == comm.size
            self._roots = comm if alone else comm.split(int(self.group.rank > 0))
        self.evaluator = evaluator(self.group, objective)
        if self.evaluator.comm.size != self.group.size:
            raise on_every_rank(
                ConfigError(
                    f"the evaluator works on {self.evaluator.comm.size} rank(s), its island has "
                    f"{self.group.size}; use RowSplit or ManagerWorker"
                )
            )
        self._met = 0  # generation of the last meeting
        self._stride = 1
        self._history: list[Moment] = []

    def run(
        self,
        budget: Budget,
        *,
        checkpoints: Checkpoints | None = None,
        every: int | None = None,
        resume: bool = False,
        observer: Callable[[Moment, float], object] | None = None,
    ) -> Outcome:
        """Search until the budget is spent; collective.

        Parameters
        ----------
        budget : Budget
        checkpoints : Checkpoints, optional
            Where to save: at the end, at a signal, and every `every` generations.
        every : int, optional
        resume : bool
            Go on from the newest checkpoint, if there is one. The result is that of a run that was
            never interrupted, on any number of ranks.
        observer : callable, optional
            Told on rank 0, some times a second, of a `Moment` and the seconds since the start.

        Raises
        ------
        EvaluationError
            On every rank, when too many evaluations in a row have failed.
        StoppedError
            On every rank, after SIGTERM or SIGUSR1 to any of them, and a checkpoint.
        ConfigError
            When the checkpoint is of another search.
        """
        if every is not None and every < 1:
            raise ConfigError(f"every must be at least 1 generation, got {every}")
        if resume and checkpoints is not None:
            self.resume(checkpoints)
        self._share_out(budget)
        clock = Clock(budget.seconds, observer if self.comm.rank == 0 else None)
        with StopRequest() as request:
            while True:
                until = self._next(every, budget)
                reports = self._advance(until, budget, lambda: clock.up or request.number > 0)
                reason = self._reason(reports, budget)
                stopped = any(report.stopped for report in reports)
                moment = self._moment(reports)
                clock.tell(moment)
                if not stopped and not reason:
                    self._migrate(until)
                    self._met = until
                    self._note(until, moment)
                signal, late = self._why(stopped, clock, request)
                due = every is not None and not stopped and until % every == 0
                if checkpoints is not None and (due or reason or stopped):
                    self._save(checkpoints, reports)
                if signal and not reason:
                    raise on_every_rank(_stopped(signal, checkpoints))
                if late and not reason:
                    reason = "seconds"
                if reason:
                    return self._outcome(reports, reason, clock.seconds)

    def run_asynchronous(
        self,
        budget: Budget,
        *,
        replay: MigrationLog | None = None,
        observer: Callable[[Moment, float], object] | None = None,
    ) -> tuple[Outcome, MigrationLog]:
        """Search without waiting for slower islands; collective.

        Immigrants come in when they come, so the result depends on how fast the ranks are. The log
        that is returned repeats the run to the bit, on any number of ranks.

        Parameters
        ----------
        budget : Budget
        replay : MigrationLog, optional
            Of the run to repeat, with the same algorithms and budget.
        observer : callable, optional
            Told of this rank's islands, on rank 0.

        Raises
        ------
        EvaluationError, StoppedError, ConfigError
            As :meth:`run`, but nothing is saved.
        """
        if self.migration is None or self.topology is None:
            raise ConfigError("asynchronous islands need a migration and at least 2 islands")
        if replay is not None and len(replay.generations) != len(self.algorithms):
            raise ConfigError(
                f"the log is of {len(replay.generations)} islands, there are {len(self.algorithms)}"
            )
        self._share_out(budget)
        k = len(self.algorithms)
        owners = [-(-(i * self.groups // k) * self.comm.size // self.groups) for i in range(k)]
        parts = self.comm, self.group, owners, self.migration, self.topology, replay
        wanderers = Wanderers(*parts)
        clock = Clock(budget.seconds, observer if self.comm.rank == 0 else None)

        def reports() -> list[Report]:
            return [island.report(budget) for island in self._islands]

        with StopRequest() as request:
            try:
                with self.comm.together():
                    wanderers.run(
                        self._islands, self.evaluator, budget,
                        lambda: clock.up or request.number > 0,
                        lambda: clock.tell(self._moment(reports())),
                    )  # fmt: skip
            except Exception:
                wanderers.finish()
                raise
            wanderers.finish()
            told = self._gathered(reports())
            signal, late = self._why(any(r.stopped for r in told), clock, request)
        if signal:
            raise on_every_rank(_stopped(signal, None))
        log = wanderers.log([report.generation for report in told])
        reason = self._reason(told, budget) or ("seconds" if late else "target")
        outcome = self._outcome(told, reason, clock.seconds)
        return outcome, log

    def free(self) -> None:
        """Give the groups' communicators back; collective."""
        if hasattr(self.evaluator, "free"):
            self.evaluator.free()
        for part in (self._roots, self.group):
            if part is not None and part is not self.comm:
                part.free()

    def _share_out(self, budget: Budget) -> None:
        k, total = len(self.algorithms), budget.evaluations
        for island in self._islands:
            i = island.number
            island.share = None if total is None else total * (i + 1) // k - total * i // k

    def _next(self, every: int | None, budget: Budget) -> int:
        """Return the generation of the next meeting."""
        interval = self._stride
        if len(self.algorithms) > 1:
            interval = self.migration.interval if self.migration else _MEETING
        marks = [self._met // step * step + step for step in (interval, every) if step]
        if budget.generations is not None:
            marks.append(max(budget.generations, self._met + 1))
        return min(marks)

    def _advance(self, until: int, budget: Budget, wish: Callable[[], bool]) -> list[Report]:
        """Let this group's islands advance, and return the reports of all islands."""
        if self.groups == 1:
            return self._advance_own(until, budget, wish)
        reports: list[Report] = []
        with self.comm.together():
            reports = self._advance_own(until, budget, wish)
        return self._gathered(reports)

    def _gathered(self, reports: list[Report]) -> list[Report]:
        """Return the reports of all islands."""
        own = reports if self.group.rank == 0 else []
        letters = self.comm.allgather_bytes(packed_reports(own).view(np.uint8))
        gathered = [
            report for letter in letters for report in unpacked_reports(letter.view(np.float64))
        ]
        return sorted(gathered, key=lambda report: report.island)

    def _advance_own(self, until: int, budget: Budget, wish: Callable[[], bool]) -> list[Report]:
        for island in self._islands:
            island.advance(self.evaluator, until, budget, wish)
        return [island.report(budget) for island in self._islands]

    def _migrate(self, generation: int) -> None:
        """Exchange members, if it is time to; collective."""
        if self.migration is None or generation % self.migration.interval:
            return
        assert self.topology is not None
        step = generation // self.migration.interval - 1
        leaving = []
        for island in self._islands:
            rng = philox(island.algorithm.seed, "emigrants", island.number, generation)
            guests = emigrants(island.algorithm, self.migration, rng)
            leaving.append(Emigration(-1, island.number, step, guests))
        here = {one.source: one.guests for one in leaving + self._arriving(leaving, step)}
        for island in self._islands:
            rng = philox(island.algorithm.seed, "immigrants", island.number, generation)
            for source in self.topology.neighbors(island.number, step).sources:
                admit(island.algorithm, here[source], self.migration, rng)

    def _arriving(self, leaving: list[Emigration], step: int) -> list[Emigration]:
        """Return the emigrants of this group's neighbours; collective."""
        if self._routes is None or self._roots is None:
            return []
        arriving = []
        if self.group.rank == 0:
            numbers = np.concatenate([packed_emigrants(emigration) for emigration in leaving])
            payload = numbers.view(np.uint8)
            messages = neighbor_exchange_bytes(self._roots, payload, self._routes, step)
            for message in messages:
                arriving += unpacked_emigrants(message.payload.copy().view(np.float64))
        return shared(self.group, arriving)

    def _reason(self, reports: list[Report], budget: Budget) -> str:
        """Return why the search is over, or nothing."""
        target = budget.target
        if target is not None and any(
            report.best_f <= target and report.best_violation == 0 for report in reports
        ):
            return "target"
        if not all(report.finished for report in reports):
            return ""
        if budget.generations and all(r.generation >= budget.generations for r in reports):
            return "generations"
        if budget.evaluations and sum(r.evaluations for r in reports) >= budget.evaluations:
            return "evaluations"
        return "done"

    def _why(self, stopped: bool, clock: "Clock", request: StopRequest) -> tuple[int, bool]:
        """Return the signal that any rank has got, and whether time is up for any."""
        if not stopped:
            return 0, False
        told = self.comm.gather_vectors([request.number, clock.up])
        return int(told[:, 0].max()), bool(told[:, 1].any())

    def _moment(self, reports: list[Report]) -> Moment:
        medians = [r.median_f for r in reports if math.isfinite(r.median_f)]
        return Moment(
            max(report.generation for report in reports),
            sum(report.evaluations for report in reports),
            min(_feasible(report) for report in reports),
            math.fsum(medians) / len(medians) if medians else math.nan,
            math.fsum(report.diversity for report in reports) / len(reports),
        )

    def _note(self, until: int, moment: Moment) -> None:
        """Keep a moment; thin out the past when there are many, so that memory stays bounded.

        Never that of an end, which a run that goes on does not have.
        """
        if until % self._stride == 0:
            self._history.append(moment)
        if len(self._history) >= _HISTORY:
            del self._history[1::2]
            self._stride *= 2

    def _save(self, checkpoints: Checkpoints, reports: list[Report]) -> None:
        parts = {}
        if self.group.rank == 0:
            parts = {_part(island.number): island.state_dict() for island in self._islands}
        position = {
            "search": self._identity(),
            "met": self._met,
            "stride": self._stride,
            "history": self._history,
        }
        checkpoints.save(sum(report.generation for report in reports), position, parts)

    def resume(self, checkpoints: Checkpoints) -> None:
        """Take over the newest checkpoint, if there is one; collective. What :meth:`run` may do.

        Raises
        ------
        ConfigError
            When it is of another search.
        """
        found = checkpoints.load()
        if found is None:
            return
        with self.comm.together():
            self._check(found)
            for island in self._islands:
                try:
                    island.load_state_dict(found.state(_part(island.number)))
                except ValueError as error:
                    raise ConfigError(f"cannot resume from {found.folder}: {error}") from None
        self._met, self._stride = found.position["met"], found.position["stride"]
        self._history = [Moment(*values) for values in found.position["history"]]

    def _identity(self) -> dict[str, Any]:
        """Return what makes a search what it is, but for its budget."""
        about: dict[str, Any] = {
            "algorithms": [algorithm.name for algorithm in self.algorithms],
            "seeds": [algorithm.seed for algorithm in self.algorithms],
            "dimension": self.algorithms[0].space.dimension,
            "bounds (their checksum)": _checksum(self.algorithms[0].space),
        }
        if self.migration is not None:
            name = getattr(self.migration.topology, "name", self.migration.topology)
            about["migration"] = asdict(replace(self.migration, topology=name))
        return about | self.settings

    def _check(self, found: Checkpoint) -> None:
        saved, mine = found.position.get("search", {}), self._identity()
        for key in {*saved, *mine}:
            if saved.get(key) != mine.get(key):
                raise ConfigError(
                    f"cannot resume: {key} was {saved.get(key)!r} when {found.folder} was "
                    f"made and is {mine.get(key)!r} now; restore it, or start anew"
                )

    def _row_of(self, island: int) -> Rows | None:
        """Return the best row of an island on all ranks; collective."""
        best_x = self.algorithms[island].best_x
        if self.groups == 1:
            return None if best_x is None else best_x.copy()
        tells = self.group.rank == 0 and any(own.number == island for own in self._islands)
        row = best_x if tells and best_x is not None else np.empty(0)
        told = np.concatenate(self.comm.allgather_bytes(row.view(np.uint8)))
        return told.view(np.float64) if told.size else None

    def _front(self) -> tuple[Rows, Rows] | None:
        """Return what no member of any island dominates, of several objectives; collective."""
        if self.algorithms[0].objectives is not None:
            return None
        own = [np.empty(0)]
        for island in self._islands if self.group.rank == 0 else ():
            fit, (x, f) = fit_members(island.algorithm), island.algorithm.population()
            first = fit[non_dominated_ranks(f[fit]) == 0]
            front = Migrants(x[first], f[first])
            own.append(packed_emigrants(Emigration(-1, island.number, 0, front)))
        letters = self.comm.allgather_bytes(np.concatenate(own).view(np.uint8))
        told = [
            guests for letter in letters for guests in unpacked_emigrants(letter.view(np.float64))
        ]
        x, f = (np.concatenate([one.guests[part] for one in told]) for part in (0, 1))
        if not len(f):
            return x, f
        # In the order of the first objective; what islands have given one another is there once.
        together = np.unique(np.column_stack([f, x])[non_dominated_ranks(f) == 0], axis=0)
        return together[:, f.shape[1] :], together[:, : f.shape[1]]

    def _causes(self) -> dict[str, str]:
        """Return what one failure of each kind has said, on the lowest rank that saw one."""
        own = {
            Status(status).label: text
            for island in reversed(self._islands)
            for status, text in island.tally.examples.items()
        }
        causes: dict[str, str] = {}
        for text in self.comm.gather_texts(json.dumps(own)):
            causes = json.loads(text) | causes
        return causes

    def _outcome(self, reports: list[Report], reason: str, seconds: float) -> Outcome:
        best = min(reports, key=lambda r: (r.best_violation, r.best_f))
        counts = np.sum([report.counts for report in reports], axis=0)
        return Outcome(
            best_x=self._row_of(best.island),
            best_f=best.best_f,
            best_violation=best.best_violation,
            evaluations=sum(report.evaluations for report in reports),
            generations=max(report.generation for report in reports),
            failures={s.label: int(counts[s]) for s in Status if s and counts[s]},
            reason=reason,
            seconds=seconds,
            history=[*self._history, self._moment(reports)],
            causes=self._causes() if counts[1:].any() else {},
            front=self._front(),
        )


def _stopped(signal: int, checkpoints: Checkpoints | None) -> StoppedError:
    place = "no checkpoint, for want of a folder"
    if checkpoints is not None:
        place = f"checkpoint in {checkpoints.folder}; go on with --resume"
    return StoppedError(f"stopped by {signals.Signals(signal).name}: {place}")


def _feasible(report: Report) -> float:
    return report.best_f if report.best_violation == 0 else np.inf


def _part(island: int) -> str:
    return f"island-{island:05d}"


def _checksum(space: Space) -> str:
    return f"{zlib.crc32(np.concatenate([space.lower, space.upper]).tobytes()):08x}"


def _check_islands(algorithms: list[Algorithm], outputs: int) -> None:
    if not algorithms:
        raise ConfigError("a search needs at least one algorithm, got none")
    first = algorithms[0].space
    for number, algorithm in enumerate(algorithms):
        same = np.array_equal(algorithm.space.lower, first.lower) and np.array_equal(
            algorithm.space.upper, first.upper
        )
        if not same or algorithm.space.kinds != first.kinds:
            raise ConfigError(f"all islands must search the same space; island {number} differs")
        _check_objectives(algorithm, outputs)
    named = [(algorithm.name, algorithm.seed) for algorithm in algorithms]
    if len(set(named)) < len(named):
        raise ConfigError(
            "islands of the same algorithm need different seeds, or they all do the same"
        )


def _check_objectives(algorithm: Algorithm, outputs: int) -> None:
    if (algorithm.objectives is None) != (outputs > 1):
        if outputs > 1:
            raise ConfigError(
                f"{algorithm.name!r} is for one objective, but the function has {outputs} outputs; "
                "use 'nsga2'"
            )
        raise ConfigError(
            f"{algorithm.name!r} is for several objectives, but the function has one output; "
            "say how many it has, or use another algorithm"
        )
    if outputs > 1 and (made_for := algorithm.population()[1].shape[1]) != outputs:
        raise ConfigError(
            f"{algorithm.name!r} was made for {made_for} objectives, but the function has "
            f"{outputs} outputs"
        )
