"""Time, traffic and loss of the training steps; evaluation and checkpoints are left out."""

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from paropt_hpc.comm import Communicator
from paropt_hpc.train.timeline import KINDS, Straggler, Timeline, find_straggler

__all__ = ["Meter", "Observer"]

# Called on rank 0 after every step with (steps done, steps in all, last loss that is known).
Observer = Callable[[int, int, float], None]


class Meter:
    """What the steps of a run have cost this rank so far.

    Attributes
    ----------
    steps : int
    wall_s, comm_s, wait_s : float
        Seconds between `start` and `stop`, those of them in communication, and those of these
        in which there was nothing to do but wait for another rank.
    bytes_sent : int
    losses : list of float
        Of the steps of the current epoch, as far as ranks have told one another.
    straggler : Straggler or None
        The slowest rank, if it is much slower; of the last `gather`.
    """

    def __init__(
        self, comm: Communicator, timeline: Timeline, total: int, observer: Observer | None
    ) -> None:
        self.steps = 0
        self._connected = False  # the first step makes connections
        self.wall_s = 0.0
        self.comm_s = 0.0
        self.wait_s = 0.0
        self.bytes_sent = 0
        self.losses: list[float] = []
        self.straggler: Straggler | None = None
        self._earlier = 0.0, 0.0  # wall_s and comm_s before this process
        self._comm = comm
        self._timeline = timeline
        self._total = total
        self._observer = observer if comm.rank == 0 else None

    def start(self) -> None:
        """Begin to count."""
        traffic = self._comm.traffic
        self._before = time.perf_counter(), traffic.seconds, traffic.waiting, traffic.bytes_sent

    def stop(self) -> None:
        """Add what there was since `start`."""
        started, seconds, waiting, sent = self._before
        self.wall_s += time.perf_counter() - started
        self.comm_s += self._comm.traffic.seconds - seconds
        self.wait_s += self._comm.traffic.waiting - waiting
        self.bytes_sent += self._comm.traffic.bytes_sent - sent

    def tick(self, losses: Sequence[float], steps: int | None = None) -> None:
        """Count a step, in which these losses have become known.

        `steps` are done then, by default one more.
        """
        self.steps = self.steps + 1 if steps is None else steps
        self.losses.extend(losses)
        self._comm.traffic.end_step(counted=self._connected)
        self._connected = True
        if self._observer is not None:
            self._observer(self.steps, self._total, self.losses[-1] if self.losses else math.nan)

    def gather(self) -> dict[str, float]:
        """Return the seconds of every kind of work, the mean over all ranks; collective.

        What is none of them (drawing samples, our own code) is ``other``. Counted since this
        process began, unlike the counters that a checkpoint keeps.
        """
        own = dict(self._timeline.seconds)
        wall, communication = self.wall_s - self._earlier[0], self.comm_s - self._earlier[1]
        own["wait"] = self.wait_s
        own["communicate"] = communication - self.wait_s
        values = [own.get(kind, 0.0) for kind in KINDS]
        told = self._comm.gather_vectors(
            [*values, max(0.0, wall - sum(values)), self._timeline.calls["compute"]]
        )
        compute = told[:, KINDS.index("compute")]
        self.straggler = find_straggler(compute.tolist(), told[:, -1].astype(int).tolist())
        return dict(zip((*KINDS, "other"), np.mean(told[:, :-1], axis=0).tolist(), strict=True))

    def state(self) -> dict[str, Any]:
        """Return the counters, for a checkpoint."""
        names = ("steps", "wall_s", "comm_s", "bytes_sent")
        return {name: getattr(self, name) for name in names} | {"losses": list(self.losses)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from saved counters."""
        for name, value in state.items():
            setattr(self, name, value)
        self._earlier = self.wall_s, self.comm_s
