"""Islands that do not wait for one another, and a log from which the run can be repeated.

Each group of ranks lets its islands advance round by round. After a round an island posts its
emigrants and takes whatever immigrants have come; so who meets whom depends on how fast the ranks
are. The log keeps just that: for each island and round, whose emigrants of which round came in, in
order, and after how many rounds it ended. A run that is given the log waits for exactly those, and
so gives the same result to the bit, on any number of ranks.
"""

import json
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from paropt_hpc.comm import Communicator
from paropt_hpc.comm.letterbox import Letter, Letterbox
from paropt_hpc.comm.topology import Topology
from paropt_hpc.errors import DataError
from paropt_hpc.kernels.rng import philox
from paropt_hpc.metaheuristics.algorithm import Rows
from paropt_hpc.metaheuristics.evaluators import Evaluator
from paropt_hpc.metaheuristics.island import Budget, Island
from paropt_hpc.metaheuristics.migration import (
    Emigration,
    Migration,
    admit,
    emigrants,
    packed_emigrants,
    unpacked_emigrants,
)

__all__ = ["Arrival", "MigrationLog"]

_CROWDED = 256  # letters on their way, above which new ones are left out
_STOP = -1.0  # in place of a target island: the search is over


class Arrival(NamedTuple):
    """Emigrants of one island that came to another one."""

    island: int
    #: rounds that the island had done
    round: int
    source: int
    #: rounds that the source had done when they left
    source_round: int


class MigrationLog(NamedTuple):
    """What an asynchronous run did that a repetition could not know."""

    #: in the order in which they came in, for each island
    arrivals: list[Arrival]
    #: rounds that each island did, the last one perhaps not to its end
    rounds: list[int]
    #: generations that it did in them
    generations: list[int]

    def save(self, path: Path) -> None:
        """Write it as lines of JSON: rounds and generations, then the arrivals."""
        lines = [json.dumps({"rounds": self.rounds, "generations": self.generations})]
        lines += [json.dumps(arrival) for arrival in self.arrivals]
        temporary = path.with_name(f".{path.name}.tmp")
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
        temporary.replace(path)

    @classmethod
    def load(cls, path: Path) -> "MigrationLog":
        """Read what :meth:`save` has written.

        Raises
        ------
        DataError
            If the file cannot be read, or is no such log.
        """
        try:
            first, *lines = path.read_text(encoding="utf-8").splitlines()
            arrivals = [Arrival(*map(int, json.loads(line))) for line in lines]
            counts = json.loads(first)
            return cls(arrivals, *([int(n) for n in counts[name]] for name in cls._fields[1:]))
        except OSError as error:
            raise DataError(f"cannot read the migration log {path}: {error.strerror}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is no migration log: {error}") from None


def shared(group: Communicator, emigrations: list[Emigration]) -> list[Emigration]:
    """Give a whole group what its first rank has; collective over the group."""
    if group.size == 1:
        return emigrations
    own = emigrations if group.rank == 0 else []
    numbers = np.concatenate([packed_emigrants(emigration) for emigration in own] or [np.empty(0)])
    first = group.allgather_bytes(numbers.view(np.uint8))[0]
    return unpacked_emigrants(first.copy().view(np.float64))


class Wanderers:
    """The asynchronous part of a search; one on each rank, making it is collective.

    Parameters
    ----------
    comm, group : Communicator
        All ranks, and those that share this rank's islands.
    owners : sequence of int
        For each island the rank that takes its letters.
    replay : MigrationLog, optional
        To repeat.
    """

    def __init__(
        self,
        comm: Communicator,
        group: Communicator,
        owners: list[int],
        migration: Migration,
        topology: Topology,
        replay: MigrationLog | None,
    ) -> None:
        self.comm, self.group, self.owners = comm, group, owners
        self.migration, self.topology = migration, topology
        self.replay = replay
        self.arrivals: list[Arrival] = []
        self.rounds: dict[int, int] = {}
        self.over = False
        self._letters = Letterbox(comm)
        self._posted = np.zeros(comm.size)
        self._taken = 0
        self._waiting: dict[int, list[Emigration]] = defaultdict(list)
        self._expected: dict[tuple[int, int], list[Arrival]] = defaultdict(list)
        self._wanted: set[tuple[int, int, int]] = set()
        for arrival in replay.arrivals if replay else ():
            self._expected[arrival.island, arrival.round].append(arrival)
            self._wanted.add((arrival.island, arrival.source, arrival.source_round))

    def run(
        self,
        islands: list[Island],
        evaluator: Evaluator,
        budget: Budget,
        wish: Callable[[], bool],
        tell: Callable[[], None],
    ) -> None:
        """Let this group's islands advance to their end; local to the group.

        Where it fails, the other groups are told to stop.
        """
        try:
            self._run(islands, evaluator, budget, wish, tell)
        except Exception:
            self._stop_all()
            raise

    def log(self, generations: list[int]) -> MigrationLog:
        """Return what has happened on all ranks; collective."""
        own = [self.arrivals, list(self.rounds.items())] if self.group.rank == 0 else [[], []]
        told = [json.loads(text) for text in self.comm.gather_texts(json.dumps(own))]
        arrivals = [Arrival(*values) for listed, _ in told for values in listed]
        rounds = dict(pair for _, listed in told for pair in listed)
        arrivals.sort(key=lambda arrival: arrival[:2])  # stable: the order within is the order
        return MigrationLog(arrivals, [rounds[i] for i in sorted(rounds)], generations)

    def _run(
        self,
        islands: list[Island],
        evaluator: Evaluator,
        budget: Budget,
        wish: Callable[[], bool],
        tell: Callable[[], None],
    ) -> None:
        rounds = self.rounds = {island.number: 0 for island in islands}
        log = self.replay
        left = [i for i in islands if log is None or log.rounds[i.number] > 0]
        while left and not self.over:
            ready = [island for island in left if self._ready(island.number, rounds)]
            if not ready:
                self._wait()
                continue
            for island in ready:
                if self._round(island, rounds, evaluator, budget, wish):
                    left.remove(island)
            tell()

    def _round(
        self,
        island: Island,
        rounds: dict[int, int],
        evaluator: Evaluator,
        budget: Budget,
        wish: Callable[[], bool],
    ) -> bool:
        """Do one round of an island; return whether it was its last."""
        number = island.number
        self._take_in(island, rounds[number])
        until = (rounds[number] + 1) * self.migration.interval
        log = self.replay
        if log is not None:
            budget = replace(budget, generations=max(1, log.generations[number]))
        island.advance(evaluator, until, budget, wish)
        rounds[number] += 1
        ended = island.stopped or island.finished(budget)
        if log is not None:
            ended = island.stopped or rounds[number] == log.rounds[number]
        self._send(island, rounds[number])
        if island.stopped or (self.replay is None and self._reached(island, budget)):
            self._stop_all()
        return ended

    @staticmethod
    def _reached(island: Island, budget: Budget) -> bool:
        a = island.algorithm
        return budget.target is not None and a.best_violation == 0 and a.best_f <= budget.target

    def _ready(self, island: int, rounds: dict[int, int]) -> bool:
        """Say whether all immigrants that a repetition needs for the next round are here."""
        if self.replay is None:
            return True
        here = {(emigration.source, emigration.round) for emigration in self._waiting[island]}
        wanted = self._expected.get((island, rounds[island]), ())
        ready = all((arrival.source, arrival.source_round) in here for arrival in wanted)
        return bool(self._agreed(float(ready)))

    def _agreed(self, value: float) -> float:
        """Return what the group's first rank says."""
        if self.group.size == 1:
            return value
        return float(self.group.gather_scalars(value)[0])

    def _take_in(self, island: Island, round_: int) -> None:
        """Let in what has come, or what the log says."""
        self._read()
        queue = self._waiting.pop(island.number, [])
        if self.replay is not None:
            by_name = {(e.source, e.round): e for e in queue}
            wanted = self._expected.get((island.number, round_), [])
            names = [(arrival.source, arrival.source_round) for arrival in wanted]
            self._waiting[island.number] = [e for name, e in by_name.items() if name not in names]
            queue = [by_name[name] for name in names] if self.group.rank == 0 else []
        rng = philox(island.algorithm.seed, "immigrants", island.number, round_)
        for _, source, sent, guests in shared(self.group, queue):
            admit(island.algorithm, guests, self.migration, rng)
            self.arrivals.append(Arrival(island.number, round_, source, sent))

    def _send(self, island: Island, round_: int) -> None:
        number, a = island.number, island.algorithm
        rng = philox(a.seed, "emigrants", number, round_)
        leaving = emigrants(a, self.migration, rng)
        if self.group.rank > 0 or len(leaving.x) == 0:
            return
        for target in self.topology.neighbors(number, round_ - 1).targets:
            if self.replay is not None or self._letters.unsent < _CROWDED:
                self._post(
                    self.owners[target],
                    packed_emigrants(Emigration(target, number, round_, leaving)),
                )

    def _stop_all(self) -> None:
        self.over = True
        if self.group.rank == 0:
            for rank in {*self.owners} - {self.comm.rank}:
                self._post(rank, np.full(6, _STOP))

    def _post(self, rank: int, numbers: Rows) -> None:
        self._posted[rank] += 1
        self._letters.post(rank, numbers.view(np.uint8))

    def _read(self) -> None:
        """Sort the letters that have come by the island they are for."""
        while (letter := self._letters.take()) is not None:
            self._sort(letter)
        self.over = bool(self._agreed(float(self.over)))

    def _wait(self) -> None:
        """Wait for the next letter: an island of a repetition needs it."""
        if self.group.rank == 0:
            self._sort(self._letters.wait("emigrants that the log names"))

    def _sort(self, letter: Letter) -> None:
        self._taken += 1
        numbers = letter.payload.view(np.float64)
        if numbers[0] == _STOP:
            self.over = True
            return
        for emigration in unpacked_emigrants(numbers):
            if self.replay is None or emigration[:3] in self._wanted:
                self._waiting[emigration.target].append(emigration)

    def finish(self) -> None:
        """Take all letters that are still on their way, so that none is lost; collective."""
        posted = self.comm.gather_vectors(self._posted.tolist())
        while self._taken < posted[:, self.comm.rank].sum():
            self._sort(self._letters.wait("letters at the end of a search"))
        self._letters.flush()
