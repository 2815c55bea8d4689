"""Trials spread over ranks: rank 0 suggests and records, groups of other ranks try.

Rank 0 sleeps between messages, so start one rank more than should work. On one rank it does all
itself.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from paropt_hpc.comm import Communicator
from paropt_hpc.comm.letterbox import Letterbox
from paropt_hpc.errors import ConfigError, EvaluationError, on_every_rank
from paropt_hpc.tuning.pruning import Pruner
from paropt_hpc.tuning.samplers import Sampler, Suggestion
from paropt_hpc.tuning.table import Record, TrialTable, best_of
from paropt_hpc.tuning.trial import Trial, TrialPruned

__all__ = ["tune"]

Objective = Callable[[Trial], float]
_NAP = 30.0  # seconds after which a group that has nothing to do stirs, so that no wait times out


def tune(
    comm: Communicator,
    objective: Objective,
    sampler: Sampler,
    *,
    trials: int | None = None,
    pruner: Pruner | None = None,
    table: TrialTable | None = None,
    part: tuple[int, int] = (0, 1),
    ranks_per_trial: int = 1,
    max_failures: int = 20,
    observer: Callable[[list[Record], int], object] | None = None,
) -> list[Record]:
    """Try parameters until there are enough trials; collective.

    Parameters
    ----------
    comm : Communicator
        Rank 0 manages; the others are cut into groups, each of which has one trial at a time. Ranks
        that are left over join the last group. One rank alone does both.
    objective : callable
        Takes a :class:`Trial` and returns a value, the smaller the better, the same on all ranks of
        ``trial.comm``. It may raise: the trial has failed then. Like any collective, it must not
        raise on some of its ranks only while the others wait for them.
    sampler : Sampler
        Used on rank 0.
    trials : int, optional
        In total, with those in the table; by default as many as the sampler has.
    pruner : Pruner, optional
        Ends trials early that report intermediate values; on rank 0.
    table : TrialTable, optional
        Keeps the records; those it has are not tried again.
    part : tuple of int, optional
        ``(k, n)`` for one of n searches that share a table: this one tries the numbers k, k + n,
        k + 2 n and so on.
    ranks_per_trial : int
    max_failures : int
        So many failed trials in a row end the search.
    observer : callable, optional
        Told of the records and the number of running trials, on rank 0.

    Returns
    -------
    list of Record
        In the order in which the trials ended; the same on every rank. A trial that was running
        when a search was killed is tried again by the next one with the same table.

    Raises
    ------
    ConfigError, EvaluationError
        On every rank.
    """
    if ranks_per_trial < 1 or (comm.size > 1 and comm.size - 1 < ranks_per_trial):
        raise on_every_rank(
            ConfigError(
                f"ranks_per_trial must be in [1, {max(1, comm.size - 1)}], got {ranks_per_trial}; "
                "rank 0 only manages"
            )
        )
    manager = None
    with comm.together():
        if comm.rank == 0:
            manager = Manager(
                sampler, trials, pruner, table or TrialTable(), part, max_failures, observer
            )
    if comm.size == 1:
        assert manager is not None
        manager.alone(comm, objective)
    else:
        groups = (comm.size - 1) // ranks_per_trial
        color = 0 if comm.rank == 0 else 1 + min((comm.rank - 1) // ranks_per_trial, groups - 1)
        group = comm.split(color)
        letters = Letterbox(comm)
        with comm.together():
            if manager is not None:
                manager.serve(letters, [1 + g * ranks_per_trial for g in range(groups)])
            else:
                _work(group, letters, objective)
        letters.flush()
        group.free()
    own = [] if manager is None else [asdict(record) for record in manager.table.records]
    told = json.loads(comm.gather_texts(json.dumps(own))[0])
    return [Record(**values | {"steps": [(s, v) for s, v in values["steps"]]}) for values in told]


class Manager:
    """Suggests, prunes and records; on rank 0."""

    def __init__(
        self,
        sampler: Sampler,
        trials: int | None,
        pruner: Pruner | None,
        table: TrialTable,
        part: tuple[int, int],
        max_failures: int,
        observer: Callable[[list[Record], int], object] | None,
    ) -> None:
        limits = [limit for limit in (trials, sampler.limit) if limit is not None]
        if not limits or min(limits) < 1 or max_failures < 1:
            raise ConfigError(
                f"trials and max_failures must be at least 1, got {trials} and {max_failures}"
            )
        first, step = part
        if not 0 <= first < step:
            raise ConfigError(f"part must be (k, n) with 0 <= k < n, got {part}")
        self.sampler, self.pruner, self.table = sampler, pruner, table
        self._max_failures, self._observer = max_failures, observer
        self._failed = 0  # in a row
        self._running: dict[int, tuple[int, Suggestion]] = {}  # by leader
        done = {record.number for record in table.records}
        self._left = [n for n in range(first, min(limits), step) if n not in done]
        self._learn(table.records)

    def alone(self, comm: Communicator, objective: Objective) -> None:
        """Try all on this rank."""
        while self._left:
            self._learn(self.table.refresh())
            suggestion = self.sampler.suggest(self._left[0])
            assert suggestion is not None  # nothing is running that it could wait for
            number = self._left.pop(0)
            trial = Trial(number, suggestion.params, suggestion.budget, comm, self._stops(number))
            self._record(number, suggestion, _tried(objective, trial))
            try:
                self._check()
            except EvaluationError as error:
                raise on_every_rank(error) from None

    def serve(self, letters: Letterbox, leaders: list[int]) -> None:
        """Hand out trials to groups, until all have ended."""
        try:
            while self._hand_out(letters, leaders) or self._running:
                letter = letters.take(1.0)
                if letter is not None:
                    self._answer(letters, letter.source, json.loads(letter.payload.tobytes()))
            self._check()
        except Exception:
            self._end_running(letters)
            raise
        finally:
            for leader in leaders:
                _post(letters, leader, {"end": True})

    def _end_running(self, letters: Letterbox) -> None:
        """Stop what is being tried; an answer left unread would be taken for a later search's."""
        while self._running:
            letter = letters.take(1.0)
            if letter is None:
                continue
            if "step" in json.loads(letter.payload.tobytes()):
                _post(letters, letter.source, {"stop": True})
            else:
                self._running.pop(letter.source, None)

    def _hand_out(self, letters: Letterbox, leaders: list[int]) -> bool:
        """Give every idle group a trial; return whether any was given."""
        given = False
        if any(leader not in self._running for leader in leaders):
            self._learn(self.table.refresh())
        for leader in leaders:
            if leader in self._running or not self._left or self._hopeless:
                continue
            suggestion = self.sampler.suggest(self._left[0])
            if suggestion is None:
                break
            number = self._left.pop(0)
            _post(letters, leader, {"number": number, **suggestion._asdict()})
            self._running[leader] = (number, suggestion)
            given = True
        return given

    def _answer(self, letters: Letterbox, leader: int, told: dict[str, Any]) -> None:
        number, suggestion = self._running[leader]
        if "step" in told:
            stop = True
            try:
                stop = self._stops(number)(told["step"], told["value"]) or self._hopeless
            finally:
                _post(letters, leader, {"stop": stop})
            return
        del self._running[leader]
        self._record(number, suggestion, told)

    def _learn(self, records: list[Record]) -> None:
        """Tell sampler and pruner of trials that were made elsewhere, or before."""
        for record in records:
            self.sampler.tell(record)
            for step, value in record.steps if self.pruner is not None else ():
                self.pruner.stops(record.number, step, value)  # type: ignore[union-attr]

    def _stops(self, number: int) -> Callable[[int, float], bool]:
        def stops(step: int, value: float) -> bool:
            return self.pruner is not None and self.pruner.stops(number, step, value)

        return stops

    def _record(self, number: int, suggestion: Suggestion, told: dict[str, Any]) -> None:
        steps = [(int(step), float(value)) for step, value in told.pop("steps")]
        record = Record(number, suggestion.params, budget=suggestion.budget, steps=steps, **told)
        self.table.add(record)
        self.sampler.tell(record)
        self._failed = self._failed + 1 if record.state == "failed" else 0
        if self._observer is not None:
            self._observer(self.table.records, len(self._running))

    @property
    def _hopeless(self) -> bool:
        return self._failed >= self._max_failures

    def _check(self) -> None:
        if self._hopeless:
            best = best_of(self.table.records)
            raise EvaluationError(
                f"{self._failed} trials in a row have failed, the last one: "
                f"{self.table.records[-1].cause}; "
                + (f"the best value was {best.value}" if best else "none has succeeded")
            )


def _work(part: Communicator, letters: Letterbox, objective: Objective) -> None:
    """Try what rank 0 sends, on all ranks of a group, until it sends the end."""
    while True:
        letter = letters.take(_NAP) if part.rank == 0 else None
        text = "{}" if letter is None else letter.payload.tobytes().decode()
        task = json.loads(part.gather_texts(text)[0])
        if "end" in task:
            return
        if not task:
            continue

        def ask(step: int, value: float) -> bool:
            _post(letters, 0, {"step": step, "value": value})
            while (letter := letters.take(_NAP)) is None:
                pass
            return bool(json.loads(letter.payload.tobytes())["stop"])

        told = _tried(objective, Trial(comm=part, ask=ask, **task))
        if part.rank == 0:
            _post(letters, 0, told)


def _tried(objective: Objective, trial: Trial) -> dict[str, Any]:
    """Return what became of a trial; collective over its ranks."""
    start = time.perf_counter()
    state, value, cause = "complete", None, ""
    try:
        with trial.comm.together():
            value = float(objective(trial))
        if not math.isfinite(value):
            state, value, cause = "failed", None, f"returned {value}"
    except TrialPruned:
        state, value = "pruned", trial.steps[-1][1] if trial.steps else None
    except Exception as error:
        state, value = "failed", None
        cause = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    seconds = time.perf_counter() - start
    return {
        "state": state, "value": value, "cause": cause, "steps": trial.steps, "seconds": seconds,
    }  # fmt: skip


def _post(letters: Letterbox, rank: int, message: dict[str, Any]) -> None:
    letters.post(rank, np.frombuffer(json.dumps(message).encode(), np.uint8))
