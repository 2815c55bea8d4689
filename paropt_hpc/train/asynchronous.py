"""What the training loop asks of a strategy whose ranks do not keep step."""

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple

from paropt_hpc.train.arrays import Array
from paropt_hpc.train.strategies import Strategy

__all__ = ["Asynchronous", "Outcome"]


class Outcome(NamedTuple):
    """What all ranks know when a phase is over; the same on each."""

    reached: int  # number of the first task that has not been done
    loss: float  # mean over the samples of the phase
    signal: int  # the highest that any rank told
    faulty: int  # a rank whose loss was not finite, else -1


class Asynchronous(Strategy):
    """A strategy whose ranks meet at the ends of phases only.

    In the training loop every rank walks through the tasks that a phase gives it::

        for task in strategy.phase(params, tasks, last):
            ...
            strategy.tell(loss)
            strategy.step(params, gradient, samples)

    Task ``t`` is part ``t % workers`` of global batch ``t // workers``. In somebody's own loop
    the ranks that work call `step` as often as they like, and all call `finish` or `end_epoch`
    at the end.

    Attributes
    ----------
    workers : int
        Ranks 0 to ``workers - 1`` compute gradients.
    outcome : Outcome
        Of the last phase.
    signal : callable
        Asked on every rank, in the course of a phase, for the number of a signal that should end
        it; 0 for none.
    """

    workers: int
    outcome = Outcome(0, math.nan, 0, -1)
    signal: Callable[[], int] = staticmethod(lambda: 0)
    _told = 0.0

    @property
    def works(self) -> bool:
        """Whether this rank computes gradients."""
        return self.comm.rank < self.workers

    def tell(self, loss: float) -> None:
        """Say what the next `step` is to pass on: the loss on this rank's samples."""
        self._told = loss

    @abstractmethod
    def phase(self, params: Array, tasks: range, last: bool) -> Iterator[int]:
        """Yield this rank's tasks; collective from the first to the end.

        Parameters
        ----------
        params : ndarray, shape (n,)
            Changed in place.
        tasks : range of step 1
            Each is done by one rank. A signal or a loss that is not finite, on any rank, ends
            the phase earlier, a signal at a multiple of `workers`.
        last : bool
            Whether the phase ends an epoch.
        """
