"""Counters of what one rank sends, receives and waits for, by operation.

The counting rule: payload bytes that this rank itself puts on the wire or takes from it, in the
bandwidth-optimal algorithm of each operation, without MPI's envelopes.

================  ======================================  =================================
operation         bytes sent                              bytes received
================  ======================================  =================================
allreduce, start  2n less two chunks, about 2 (P-1)/P n   the same
allgather_bytes   P-1 times the own message and its       the other ranks' messages and
                  8-byte length                           their lengths
gather_scalars    8 (P-1)                                 8 (P-1)
together          8 (P-1)                                 8 (P-1)
broadcast         (P-1) n on the root, else 0             n, but 0 on the root
neighbor_…        n for every target                      n of every source
sparse_allreduce  what its scheme sends, lengths and        the same
                  samples included; a dense one counts
                  as the all-reduce that it is
================  ======================================  =================================

With ``algorithm="mpi"`` the library picks its own algorithm, and inside a node no message is
sent at all: for both the optimal volume is counted. Ring, recursive doubling and hierarchical
count what they have sent. With one rank calls are counted and all bytes are 0.

``waiting`` are the seconds, of those counted, in which this rank had nothing to do but wait for
another one; inside the library's own collectives that is not known apart, and all of it counts.
"""

import math
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["OperationTraffic", "StepTimes", "Traffic"]


@dataclass
class OperationTraffic:
    """What one operation has cost this rank so far."""

    calls: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    seconds: float = 0.0  # from call to return: waiting for the other ranks included
    waiting: float = 0.0  # of these, seconds in which there was nothing to do


@dataclass
class StepTimes:
    """Mean and spread of the seconds of communication per step (Welford's recurrence)."""

    steps: int = 0
    mean: float = 0.0
    squares: float = 0.0  # sum of squared distances from the mean

    def add(self, seconds: float) -> None:
        """Count one step."""
        self.steps += 1
        distance = seconds - self.mean
        self.mean += distance / self.steps
        self.squares += distance * (seconds - self.mean)

    @property
    def jitter(self) -> float:
        """Standard deviation over mean; 0 where fewer than two steps or no seconds were."""
        if self.steps < 2 or self.mean <= 0:
            return 0.0
        return math.sqrt(self.squares / self.steps) / self.mean


@dataclass
class Traffic:
    """The counters of one communicator; attributes are the totals over all operations.

    Attributes
    ----------
    seconds : float
        Spent in collectives, waiting included.
    """

    operations: dict[str, OperationTraffic] = field(
        default_factory=lambda: defaultdict(OperationTraffic)
    )

    step_times: StepTimes = field(default_factory=StepTimes)
    seconds: float = 0.0  # kept as a sum, since it is asked for in every step
    _seconds_at_step: float = 0.0
    #: called at the end of every operation with its name, when it began, and its seconds
    listener: Callable[[str, float, float], None] | None = None

    def record(
        self,
        operation: str,
        sent: int,
        received: int,
        seconds: float,
        waiting: float = 0.0,
        calls: int = 1,
        begun: float | None = None,
    ) -> None:
        """Count one call, or `calls` of them together.

        `begun` is by ``time.perf_counter``; without it the call has just ended.
        """
        counter = self.operations[operation]
        counter.calls += calls
        counter.waiting += waiting
        counter.bytes_sent += sent
        counter.bytes_received += received
        counter.seconds += seconds
        self.seconds += seconds
        if self.listener is not None:
            begun = time.perf_counter() - seconds if begun is None else begun
            self.listener(operation, begun, seconds)

    def __getitem__(self, operation: str) -> OperationTraffic:
        """Return one operation's counters, all zero if it was never called."""
        return self.operations.get(operation, OperationTraffic())

    @property
    def calls(self) -> int:
        """Calls of all operations."""
        return sum(counter.calls for counter in self.operations.values())

    @property
    def bytes_sent(self) -> int:
        """Bytes this rank has sent."""
        return sum(counter.bytes_sent for counter in self.operations.values())

    @property
    def bytes_received(self) -> int:
        """Bytes this rank has received."""
        return sum(counter.bytes_received for counter in self.operations.values())

    @property
    def waiting(self) -> float:
        """Seconds, of those in collectives, in which there was nothing to do but wait."""
        return sum(counter.waiting for counter in self.operations.values())

    def end_step(self, *, counted: bool = True) -> None:
        """Say that a training step has ended: its communication time joins `step_times`.

        Unless it is not to be `counted`, like a first one, in which connections are made.
        """
        seconds = self.seconds
        if counted:
            self.step_times.add(seconds - self._seconds_at_step)
        self._seconds_at_step = seconds

    @property
    def jitter(self) -> float:
        """Standard deviation over mean of the communication time per step."""
        return self.step_times.jitter

    def warn_of_jitter(self, limit: float = 0.3) -> bool:
        """Warn if the communication time varies by more than `limit`; return whether it did.

        Warns
        -----
        RuntimeWarning
            With the figures and where to look first. Not before ten steps.
        """
        times = self.step_times
        if times.steps < 10 or times.jitter <= limit:
            return False
        warnings.warn(
            f"the communication time per step varies by {100 * times.jitter:.0f} % "
            f"(standard deviation over mean, {times.steps} steps of {times.mean:.3g} s): above "
            f"{100 * limit:.0f} % look at the links first (error counters, speed and duplex of "
            "each port), then at other jobs on the nodes",
            RuntimeWarning,
            stacklevel=2,
        )
        return True

    def reset(self) -> None:
        """Set every counter back to zero."""
        self.operations.clear()
        self.step_times = StepTimes()
        self.seconds = self._seconds_at_step = 0.0
