"""Time, traffic and loss of the training steps; evaluation and checkpoints are left out."""

import time
from collections.abc import Callable
from typing import Any

from paropt_hpc.comm import Communicator

__all__ = ["Meter", "Observer"]

# Called on rank 0 after every step with (steps done, steps in all, loss of the step).
Observer = Callable[[int, int, float], None]


class Meter:
    """What the steps of a run have cost this rank so far.

    Attributes
    ----------
    steps : int
    wall_s, comm_s : float
        Seconds between `start` and `stop`, and those of them in communication.
    bytes_sent : int
    losses : list of float
        Of the steps of the current epoch.
    """

    def __init__(self, comm: Communicator, total: int, observer: Observer | None) -> None:
        self.steps = 0
        self.wall_s = 0.0
        self.comm_s = 0.0
        self.bytes_sent = 0
        self.losses: list[float] = []
        self._comm = comm
        self._total = total
        self._observer = observer if comm.rank == 0 else None

    def start(self) -> None:
        """Begin to count."""
        traffic = self._comm.traffic
        self._before = time.perf_counter(), traffic.seconds, traffic.bytes_sent

    def stop(self) -> None:
        """Add what there was since `start`."""
        started, seconds, sent = self._before
        self.wall_s += time.perf_counter() - started
        self.comm_s += self._comm.traffic.seconds - seconds
        self.bytes_sent += self._comm.traffic.bytes_sent - sent

    def tick(self, loss: float, steps: int | None = None) -> None:
        """Count a step that had this loss; `steps` are done then, by default one more."""
        self.steps = self.steps + 1 if steps is None else steps
        self.losses.append(loss)
        self._comm.traffic.end_step()
        if self._observer is not None:
            self._observer(self.steps, self._total, loss)

    def state(self) -> dict[str, Any]:
        """Return the counters, for a checkpoint."""
        names = ("steps", "wall_s", "comm_s", "bytes_sent")
        return {name: getattr(self, name) for name in names} | {"losses": list(self.losses)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Go on from saved counters."""
        for name, value in state.items():
            setattr(self, name, value)
