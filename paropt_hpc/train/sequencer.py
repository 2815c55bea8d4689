"""The order of events at a parameter server: who may pull, whose gradient is applied, and when.

Pure: no arrays, no messages, no clock. Workers arrive, with or without a gradient, and each
arrival yields the actions that every server carries out in the same order, so that all parts
of the parameters go through the same versions. The words:

version
    updates so far.
staleness
    version at which a gradient is applied, less the version it was computed on.
task
    the number of a piece of work; each one of a phase is done exactly once.
phase
    from `open` until every worker is back and nothing is left to do.

Why the bound holds under ``wait`` and ``sync``: the gradients under way are a queue by version
in which number i would be applied at version ``now + (filled + i) // group``. A pull is
answered, and a gradient accepted, only if afterwards no place in that queue is later than its
bound. The oldest may always go first (earliest deadline first), so nothing waits for ever.
"""

from collections import deque
from collections.abc import Iterable
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from paropt_hpc.errors import ConfigError

__all__ = ["POLICIES", "Action", "Kind", "Sequencer"]

POLICIES = ("drop", "wait", "sync")


class Kind(IntEnum):
    """What the servers do."""

    ACCEPT = 0  # add the worker's gradient to the group; `number` is its samples
    DROP = 1  # receive the worker's gradient and forget it
    UPDATE = 2  # apply the group
    REPLY = 3  # send the worker the parameters and task `number`
    END = 4  # send the worker the parameters: the phase is over


class Action(NamedTuple):
    """One step of every server."""

    kind: Kind
    worker: int = -1
    number: int = -1


class _Push(NamedTuple):
    version: int
    task: int
    samples: int


class Sequencer:
    """Order pushes and pulls so that no gradient is applied later than the bound allows.

    Parameters
    ----------
    workers : int
        They are numbered from 0.
    bound : int
        The largest staleness at which a gradient is applied, at least 1.
    policy : {"drop", "wait", "sync"}
        What to do about one that is, or would become, too stale: discard it, and do its task
        anew; block the workers ahead until the slowest has caught up; or let all workers meet
        and go on from the same version.
    group : int
        Gradients whose mean is one update.

    Attributes
    ----------
    version, filled : int
        Updates so far, and gradients in the group that is filling up.
    histogram : ndarray, shape (bound + 1,), int64
        How many gradients were applied at each staleness.
    dropped, blocked, synchronisations : int
        Gradients discarded, gradients that had to wait, and times that all workers met.
    """

    def __init__(self, workers: int, bound: int, policy: str = "drop", group: int = 1) -> None:
        if bound < 1:
            raise ConfigError(
                f"the staleness bound must be at least 1, got {bound}: with 0 a gradient would "
                "have to be computed on the version it is applied to, so that one worker at a "
                "time could work; for that use strategy.name = 'allreduce'"
            )
        if policy not in POLICIES:
            raise ConfigError(
                f"the staleness policy must be one of {', '.join(POLICIES)}, got {policy!r}"
            )
        if group < 1:
            raise ConfigError(f"a group must have at least 1 gradient, got {group}")
        self.workers = workers
        self.bound = bound
        self.policy = policy
        self.group = group
        self.version = 0
        self.filled = 0
        self.histogram = np.zeros(bound + 1, np.int64)
        self.dropped = self.blocked = self.synchronisations = 0
        self.open(None)

    def open(self, tasks: range | None, flush: bool = True) -> None:
        """Begin a phase.

        Parameters
        ----------
        tasks : range of step 1, optional
            Dealt out one by one. Without it the workers know themselves what to do, begin at
            once with the parameters that all have, and leave when they have done it.
        flush : bool
            Apply an incomplete group at the end, unless `stop` has come before it.
        """
        self._tasks = tasks
        self._next = tasks.start if tasks is not None else 0
        self._stop = tasks.stop if tasks is not None else 0
        self._again: deque[int] = deque()  # tasks whose gradient was dropped
        self._flush = flush
        # Worker: version and task.
        self._computing: dict[int, tuple[int, int]] = {}
        if tasks is None:
            self._computing = {worker: (self.version, -1) for worker in range(self.workers)}
        self._held: dict[int, _Push] = {}  # pushed, but not yet accepted
        self._parked: list[int] = []  # workers that want parameters, in order of arrival
        self._left: list[int] = []  # workers that want no more
        self._meeting = False  # of all workers, for `sync`
        self.closed = False

    @property
    def reached(self) -> int:
        """The number of the first task of the phase that has not been dealt out."""
        return self._next

    @property
    def computing(self) -> list[int]:
        """The workers that have parameters and owe a gradient."""
        return sorted(self._computing)

    def arrive(
        self, worker: int, version: int = -1, samples: int = -1, *, more: bool = True
    ) -> list[Action]:
        """Take note of a worker that wants parameters, or wants to leave.

        Parameters
        ----------
        worker : int
        version : int
            What its gradient was computed on; -1 when it brings none.
        samples : int
            That its gradient is the mean of.
        more : bool
            False: it will not push again in this phase.

        Returns
        -------
        list of Action
        """
        actions: list[Action] = []
        known, task = self._computing.pop(worker, (-1, -1))
        if version >= 0:
            if version != known:
                raise ValueError(f"worker {worker} pulled version {known} and pushed {version}")
            self._held[worker] = _Push(version, task, samples)
        (self._parked if more else self._left).append(worker)
        self._settle(actions)
        self.blocked += worker in self._held or (worker in self._parked and self._has_tasks)
        return actions

    def stop(self, multiple: int = 1) -> None:
        """Deal out no new tasks, but fill up to a multiple of so many."""
        self._stop = min(self._stop, -(-self._next // multiple) * multiple)

    def abandon(self) -> None:
        """Deal out no tasks any more, not even those whose gradient was dropped."""
        self._stop = self._next
        self._again.clear()

    def _settle(self, actions: list[Action]) -> None:
        """Do all that can be done now."""
        accepted = True
        while accepted:
            self._drop_stale(actions)
            accepted = self._accept_one(actions)
        if self._held and not self._meeting and self.policy == "sync":
            self._meeting = True
            self.synchronisations += 1
        if not self._held and not self._computing:
            self._meeting = False
        self._admit(actions)
        if len(self._parked) + len(self._left) == self.workers and not self._held:
            self._close(actions)

    def _drop_stale(self, actions: list[Action]) -> None:
        for worker, push in list(self._held.items()):
            if self.version - push.version > self.bound:
                del self._held[worker]
                self.dropped += 1
                actions.append(Action(Kind.DROP, worker))
                if push.task >= 0:
                    self._again.append(push.task)

    def _accept_one(self, actions: list[Action]) -> bool:
        """Accept the oldest gradient that may be accepted; say whether there was one."""
        # More workers than fit may begin a phase with the same version. When all of them are
        # here, the oldest goes first, and `_drop_stale` sees to the others.
        by_age = sorted(self._held, key=lambda worker: self._held[worker].version)
        first = (w for w in by_age if not self._computing or self._fits_without(w))
        worker = next(first, None)
        if worker is None:
            return False
        push = self._held.pop(worker)
        self.histogram[self.version - push.version] += 1
        actions.append(Action(Kind.ACCEPT, worker, push.samples))
        self.filled += 1
        if self.filled == self.group:
            self._update(actions)
        return True

    def _update(self, actions: list[Action]) -> None:
        actions.append(Action(Kind.UPDATE))
        self.version += 1
        self.filled = 0

    def _fits_without(self, accepted: int) -> bool:
        """Say whether all others stay within the bound when this worker's gradient goes first."""
        if self.policy == "drop":
            return True
        others = [push.version for worker, push in self._held.items() if worker != accepted]
        others += [version for version, _ in self._computing.values()]
        return self._fits(others, self.filled + 1)

    def _fits(self, versions: Iterable[int], filled: int) -> bool:
        return all(
            self.version + (filled + place) // self.group - version <= self.bound
            for place, version in enumerate(sorted(versions))
        )

    def _admit(self, actions: list[Action]) -> None:
        """Answer the pulls of workers whose gradients would still be in time."""
        for worker in list(self._parked):
            if worker in self._held:
                continue
            if self._meeting or not self._has_tasks:
                return
            under_way = [version for version, _ in self._computing.values()]
            under_way += [push.version for push in self._held.values()]
            if self.policy != "drop" and not self._fits([*under_way, self.version], self.filled):
                return
            self._parked.remove(worker)
            task = self._take()
            self._computing[worker] = self.version, task
            actions.append(Action(Kind.REPLY, worker, task))

    @property
    def _has_tasks(self) -> bool:
        return self._tasks is None or bool(self._again) or self._next < self._stop

    def _take(self) -> int:
        if self._tasks is None:
            return -1
        if self._again:
            return self._again.popleft()
        self._next += 1
        return self._next - 1

    def _close(self, actions: list[Action]) -> None:
        whole = self._tasks is None or self._next == self._tasks.stop
        if self._flush and whole and self.filled:
            self._update(actions)
        actions += [Action(Kind.END, worker) for worker in sorted(self._parked + self._left)]
        self.closed = True

    def state_dict(self) -> dict[str, Any]:
        """Return what a later `load_state_dict` needs to go on exactly (a copy)."""
        names = ("version", "filled", "dropped", "blocked", "synchronisations")
        return {name: getattr(self, name) for name in names} | {"histogram": self.histogram.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state; its histogram may be of another bound."""
        for name in ("version", "filled", "dropped", "blocked", "synchronisations"):
            setattr(self, name, int(state[name]))
        counts = np.asarray(state["histogram"])
        self.histogram[:] = 0
        self.histogram[: counts.size] = counts[: self.histogram.size]
