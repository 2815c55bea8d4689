"""Strategies: how ranks keep their parameters together.

The way of a gradient is `AllReduce._exchange`: compress, exchange, add up; then the
optimizer updates the parameters.
"""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from paropt_hpc.comm import Communicator
from paropt_hpc.compress import TopK
from paropt_hpc.errors import ConfigError, on_every_rank
from paropt_hpc.train.arrays import Array, namespace
from paropt_hpc.train.optimizers import Optimizer

__all__ = ["AllReduce", "LocalSGD", "Strategy"]


class Strategy(ABC):
    """What the training loop asks of a strategy; with one rank each equals plain SGD.

    Parameters
    ----------
    comm : Communicator
        The ranks that train together.
    optimizer : Optimizer
        Turns gradients into updates.
    """

    def __init__(self, comm: Communicator, optimizer: Optimizer) -> None:
        self.comm = comm
        self.optimizer = optimizer

    def start(self, params: Array) -> None:
        """Broadcast the parameters of rank 0 to all ranks, in place; collective.

        Raises
        ------
        ConfigError
            On every rank, when ranks bring different numbers of parameters.
        """
        sizes = self.comm.gather_scalars(params.size)
        if (sizes != sizes[0]).any():
            rank = int(np.nonzero(sizes != sizes[0])[0][0])
            error = ConfigError(
                f"all ranks must have the same parameters, got {int(sizes[0])} on rank 0 and "
                f"{int(sizes[rank])} on rank {rank}; build the same model on every rank"
            )
            raise on_every_rank(error)
        self.comm.broadcast(params)

    @abstractmethod
    def step(self, params: Array, gradient: Array, samples: tuple[int, int] | None = None) -> None:
        """Turn this rank's gradient into an update of `params`, in place; collective.

        Parameters
        ----------
        params : ndarray, shape (n,)
            Changed in place.
        gradient : ndarray, shape (n,)
            Mean over this rank's samples; overwritten.
        samples : (int, int), optional
            How many samples that were, and how many on all ranks together. Without it all
            ranks weigh the same.
        """

    def end_epoch(self, params: Array) -> None:  # noqa: B027  (most have nothing to do)
        """Apply what waits for a group to fill up; collective."""

    def finish(self, params: Array) -> None:
        """Bring `params` to the result of the run, equal on all ranks, in place; collective."""
        self.end_epoch(params)

    def consensus(self, params: Array) -> Array:
        """Return the parameters that all ranks stand for, to evaluate them; collective."""
        return params

    def state_dict(self) -> dict[str, Any]:
        """Return what a later `load_state_dict` needs to go on exactly (a copy); local."""
        return {"optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state of this rank, after `start`; local."""
        self.optimizer.load_state_dict(state["optimizer"])


class AllReduce(Strategy):
    """Synchronous data-parallel SGD: every rank applies the mean gradient of all ranks.

    Parameters
    ----------
    comm : Communicator
        The ranks that train together.
    optimizer : Optimizer
        Applied on every rank to the same mean gradient, so parameters stay equal bit for bit.
    compressor : TopK, optional
        Sends each rank's gradient as a sparse message; dense without it.
    algorithm : {"ring", "mpi"}
        Of the dense all-reduce: our segmented ring or the library's own.
    accumulate : int
        Exchange the mean of this many steps at once: as one step on a batch as many times
        as large. The last group of an epoch may be smaller and is weighed by its samples.
    clip_norm : float, optional
        Scale a mean gradient whose Euclidean norm is above this down to it.
    weight_decay : float
        Added to each rank's gradient before compression; with a compressor the optimizer's
        own decay comes too late to be part of what error feedback keeps.
    """

    def __init__(
        self,
        comm: Communicator,
        optimizer: Optimizer,
        compressor: TopK | None = None,
        algorithm: str = "ring",
        *,
        accumulate: int = 1,
        clip_norm: float | None = None,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(comm, optimizer)
        if accumulate < 1:
            raise ConfigError(f"accumulate must be at least 1, got {accumulate}")
        if clip_norm is not None and not clip_norm > 0:
            raise ConfigError(f"clip_norm must be above 0, got {clip_norm}")
        self.compressor = compressor
        self.algorithm = algorithm
        self.accumulate = accumulate
        self.clip_norm = clip_norm
        self.weight_decay = weight_decay
        self._sum: Array | None = None  # of sample-weighted gradients, while a group fills up
        self._group = 0  # steps in it
        self._samples = 0  # over all ranks in it

    def start(self, params: Array) -> None:
        """Broadcast the parameters of rank 0 to all ranks, in place; collective."""
        super().start(params)
        if self.compressor is not None:
            self.compressor.start(params.size, params.dtype)
        if self.accumulate > 1:
            self._sum = namespace(params).zeros_like(params)

    def step(self, params: Array, gradient: Array, samples: tuple[int, int] | None = None) -> None:
        """Average `gradient` over the ranks and update `params`; both in place; collective.

        All ranks have equal parameters before and after. With accumulation, only every
        `accumulate`-th step communicates and updates.
        """
        here, everywhere = samples or (1, self.comm.size)
        if self._sum is None:
            self._weigh(gradient, here, everywhere)
            self._apply(params, gradient)
            return
        gradient *= here
        self._sum += gradient
        self._group += 1
        self._samples += everywhere
        if self._group == self.accumulate:
            self.end_epoch(params)

    def end_epoch(self, params: Array) -> None:
        """Apply an accumulated group, also an incomplete one; collective."""
        if self._group == 0:
            return
        assert self._sum is not None
        self._weigh(self._sum, 1, self._samples)
        self._apply(params, self._sum)
        self._sum[:] = 0
        self._group = self._samples = 0

    def _weigh(self, gradient: Array, here: int, everywhere: int) -> None:
        """Scale so that the plain mean over ranks is the mean over samples."""
        weight = here * self.comm.size / everywhere
        if weight != 1:
            gradient *= weight

    def _apply(self, params: Array, gradient: Array) -> None:
        if self.weight_decay:
            gradient += self.weight_decay * params
        self._exchange(gradient)
        if self.clip_norm is not None:
            clip(gradient, self.clip_norm)
        self.optimizer.update(params, gradient)

    def _exchange(self, gradient: Array) -> None:
        """Replace each rank's gradient by the mean over all ranks."""
        if self.compressor is None:
            self.comm.allreduce(gradient, "mean", algorithm=self.algorithm)
            return
        message = self.compressor.compress(gradient)
        gradient[:] = 0
        # In rank order on every rank, so that the sums are equal bit for bit.
        for received in self.comm.allgather_bytes(message):
            self.compressor.decompress_add(received, gradient, 1 / self.comm.size)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of optimizer, compressor and group of this rank (a copy); local."""
        state = super().state_dict()
        if self.compressor is not None:
            state["compressor"] = self.compressor.state_dict()
        if self._sum is not None:
            group = {"steps": self._group, "samples": self._samples, "sum": self._sum.copy()}
            state["group"] = group
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state of this rank, after `start`; local."""
        super().load_state_dict(state)
        if self.compressor is not None:
            self.compressor.load_state_dict(state["compressor"])
        if self._sum is not None:
            group = state["group"]
            self._group, self._samples = int(group["steps"]), int(group["samples"])
            self._sum[:] = group["sum"]


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
    algorithm : {"ring", "mpi"}
        Of the all-reduce.

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
        algorithm: str = "ring",
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
        """Return the state of this rank (a copy); local."""
        state = super().state_dict() | {"rounds": self._rounds, "steps": self._steps}
        if self._anchor is not None and self._momentum is not None:
            state |= {"anchor": self._anchor.copy(), "momentum": self._momentum.copy()}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state of this rank, after `start`; local."""
        super().load_state_dict(state)
        self._rounds, self._steps = int(state["rounds"]), int(state["steps"])
        if self._anchor is not None and self._momentum is not None:
            self._anchor[:] = state["anchor"]
            self._momentum[:] = state["momentum"]


def clip(gradient: Array, norm: float) -> None:
    """Scale a gradient down to this Euclidean norm if it is longer, in place."""
    length = float(namespace(gradient).linalg.norm(gradient))
    if length > norm:
        gradient *= norm / length
