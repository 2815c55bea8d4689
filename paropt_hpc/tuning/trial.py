"""What an objective sees of its trial."""

import math
from collections.abc import Callable
from typing import Any

from paropt_hpc.comm import Communicator

__all__ = ["Trial", "TrialPruned"]


class TrialPruned(Exception):
    """The trial need not go on."""


class Trial:
    """One set of parameters to try.

    Attributes
    ----------
    number : int
        From 0.
    params : dict
        A value for each variable of the space.
    budget : int or None
        What to spend, such as epochs, where the sampler says so.
    comm : Communicator
        The ranks of this trial.
    steps : list of (int, float)
        What was reported.
    """

    def __init__(
        self,
        number: int,
        params: dict[str, Any],
        budget: int | None,
        comm: Communicator,
        ask: Callable[[int, float], bool],
    ) -> None:
        self.number, self.params, self.budget, self.comm = number, params, budget, comm
        self.steps: list[tuple[int, float]] = []
        self._ask = ask

    def report(self, step: int, value: float) -> None:
        """Tell an intermediate value; collective over `comm`.

        Parameters
        ----------
        step : int
            Ascending, from 1: the epoch, for instance.
        value : float
            The smaller, the better; that of rank 0 counts.

        Raises
        ------
        TrialPruned
            On every rank of `comm`, when others are so much better that this trial should end.
            Let it pass.
        """
        value = float(value)
        stop = 0.0
        if self.comm.rank == 0:
            self.steps.append((step, value if math.isfinite(value) else math.inf))
            stop = float(self._ask(step, value))
        if self.comm.gather_scalars(stop)[0]:
            raise TrialPruned(f"trial {self.number} was pruned at step {step}")
