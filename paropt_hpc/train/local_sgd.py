"""Local SGD: every rank trains alone for a round, then all average."""

from typing import Any

from paropt_hpc.comm import Communicator
from paropt_hpc.errors import ConfigError
from paropt_hpc.train.arrays import Array, namespace
from paropt_hpc.train.optimizers import Optimizer
from paropt_hpc.train.strategies import Strategy

__all__ = ["LocalSGD"]


class LocalSGD(Strategy):
    r"""Every rank trains alone for a round, then all average their parameters [1]_.

    With outer momentum :math:`\beta`, the mean change of a round, :math:`\Delta`, is treated
    as a gradient: :math:`u \leftarrow \beta u + \Delta`, and the parameters at the start of
    the round move by :math:`\eta u` [2]_, algorithm 1.

    Parameters
    ----------
    comm : Communicator
        The ranks that train together.
    optimizer : Optimizer
        Each rank's own; its state is not exchanged.
    period : int
        Steps in the first round.
    growth : float
        Each round is this many times as long as the one before; 1 keeps the period.
    outer_momentum, outer_lr : float
        :math:`\beta` in [0, 1) and :math:`\eta`; with 0 and 1 it is plain averaging.
    algorithm : str
        Of the all-reduce; see `Communicator.allreduce`.

    References
    ----------
    .. [1] S. Stich, "Local SGD converges fast and communicates little", ICLR 2019.
    .. [2] J. Wang et al., "SlowMo: improving communication-efficient distributed SGD with
       slow momentum", ICLR 2020.
    """

    def __init__(
        self,
        comm: Communicator,
        optimizer: Optimizer,
        period: int = 8,
        growth: float = 1.0,
        outer_momentum: float = 0.0,
        outer_lr: float = 1.0,
        algorithm: str = "auto",
    ) -> None:
        super().__init__(comm, optimizer)
        if period < 1 or growth < 1:
            raise ConfigError(f"period and growth must be at least 1, got {period} and {growth}")
        if not 0.0 <= outer_momentum < 1.0:
            raise ConfigError(f"outer_momentum must be in [0, 1), got {outer_momentum}")
        self.period = period
        self.growth = growth
        self.outer_momentum = outer_momentum
        self.outer_lr = outer_lr
        self.algorithm = algorithm
        self._rounds = 0
        self._steps = 0  # in this round
        self._anchor: Array | None = None  # parameters at the start of the round
        self._momentum: Array | None = None

    @property
    def round_length(self) -> int:
        """Steps in the current round."""
        return int(self.period * self.growth**self._rounds)

    @property
    def meets(self) -> bool:
        """Whether the next step ends a round."""
        return self._steps + 1 == self.round_length

    def start(self, params: Array) -> None:
        """Broadcast the parameters of rank 0 to all ranks, in place; collective."""
        super().start(params)
        if self.outer_momentum or self.outer_lr != 1:
            self._anchor = params.copy()
            self._momentum = namespace(params).zeros_like(params)

    def step(self, params: Array, gradient: Array, samples: tuple[int, int] | None = None) -> None:
        """Update this rank's parameters, and average them at the end of a round.

        A rank without samples leaves its parameters alone.
        """
        if samples is None or samples[0] > 0:
            self.optimizer.update(params, gradient)
        self._steps += 1
        if self._steps == self.round_length:
            self._average(params)

    def consensus(self, params: Array) -> Array:
        """Return the mean of the parameters of all ranks, a copy; collective."""
        mean = params.copy()
        self.comm.allreduce(mean, "mean", algorithm=self.algorithm)
        return mean

    def finish(self, params: Array) -> None:
        """Average what is left of a round, so that all ranks end alike; collective."""
        if self._steps:
            self._average(params)

    def _average(self, params: Array) -> None:
        self._rounds += 1
        self._steps = 0
        self.comm.allreduce(params, "mean", algorithm=self.algorithm)
        if self._anchor is None or self._momentum is None:
            return
        self._momentum *= self.outer_momentum
        self._momentum += self._anchor
        self._momentum -= params
        self._anchor -= self.outer_lr * self._momentum
        params[:] = self._anchor

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank, no copy; local."""
        state = super().state_dict() | {"rounds": self._rounds, "steps": self._steps}
        if self._anchor is not None and self._momentum is not None:
            state |= {"anchor": self._anchor, "momentum": self._momentum}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state of this rank, after `start`; local."""
        super().load_state_dict(state)
        self._rounds, self._steps = int(state["rounds"]), int(state["steps"])
        if self._anchor is not None and self._momentum is not None:
            self._anchor[:] = state["anchor"]
            self._momentum[:] = state["momentum"]
