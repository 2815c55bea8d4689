"""Strategies: how ranks keep their parameters together.

The way of a gradient is `AllReduce._exchange`: compress, exchange, add up; then the
optimizer updates the parameters.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from paropt_hpc.comm import Communicator, sparse_allreduce
from paropt_hpc.compress import TopK
from paropt_hpc.errors import ConfigError, on_every_rank
from paropt_hpc.runs.checkpoint import flatten, merge, only, unflatten
from paropt_hpc.train.arrays import Array, namespace
from paropt_hpc.train.optimizers import Optimizer

__all__ = ["AllReduce", "Strategy"]


class Strategy(ABC):
    """What the training loop asks of a strategy; with one rank each equals plain SGD.

    Parameters
    ----------
    comm : Communicator
        The ranks that train together.
    optimizer : Optimizer
        Turns gradients into updates.
    """

    #: parts of a saved state that are equal on all ranks, so that rank 0 alone saves them
    shared: tuple[str, ...] = ()

    def __init__(self, comm: Communicator, optimizer: Optimizer) -> None:
        self.comm = comm
        self.optimizer = optimizer

    @property
    def compressors(self) -> list[Any]:
        """What shrinks this rank's gradients, once it has started."""
        compressor = getattr(self, "compressor", None)
        return [] if compressor is None else [compressor]

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

    def metrics(self, params: Array) -> dict[str, Any]:
        """Return what this strategy has to say at the end of an epoch; collective."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """Return what a later `load_state_dict` needs to go on exactly (a copy); local."""
        return {"optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state of this rank, after `start`; local."""
        self.optimizer.load_state_dict(state["optimizer"])

    def reshard(self, states: list[dict[str, Any]], rank: int, size: int) -> dict[str, Any]:
        """Make one of `size` ranks' states from those that another number of ranks has saved.

        Local. Here every rank takes the mean of all vectors: the consensus of ranks that had
        parameters of their own.

        Parameters
        ----------
        states : list of dict
            In the order of the ranks; with the keys ``params`` and ``strategy``.
        """
        return combine(states, lambda vectors: np.mean(vectors, axis=0))


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
    algorithm : str
        Of the dense all-reduce; see `Communicator.allreduce`.
    sparse_scheme : {"auto", "allgather", "split", "reselect", "dense"}
        Of the sparse all-reduce, with a compressor; see `paropt_hpc.comm.sparse_allreduce`.
    accumulate : int
        Exchange the mean of this many steps at once: as one step on a batch as many times
        as large. The last group of an epoch may be smaller and is weighed by its samples.
    clip_norm : float, optional
        Scale a mean gradient whose Euclidean norm is above this down to it.
    weight_decay : float
        Added to each rank's gradient before compression; with a compressor the optimizer's
        own decay comes too late to be part of what error feedback keeps.
    """

    shared = ("params", "strategy/optimizer")

    def __init__(
        self,
        comm: Communicator,
        optimizer: Optimizer,
        compressor: TopK | None = None,
        algorithm: str = "auto",
        *,
        sparse_scheme: str = "auto",
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
        self.sparse_scheme = sparse_scheme
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
        if self.weight_decay:
            self._decayed = namespace(params).empty_like(params)
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
            namespace(params).multiply(params, self.weight_decay, out=self._decayed)
            gradient += self._decayed
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
        result = sparse_allreduce(self.comm, message, gradient, self.sparse_scheme)
        self.compressor.keep_back(result.dropped_indices, result.dropped_values)
        # After the sum, so that its bits do not depend on the scheme that was chosen.
        if self.comm.size > 1:
            gradient *= 1 / self.comm.size

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

    def reshard(self, states: list[dict[str, Any]], rank: int, size: int) -> dict[str, Any]:
        """Take the parameters as they are, and deal out the residuals, so that no part is lost.

        Each new rank gets the sum of every `size`-th old rank's, times the ratio of the sizes:
        what a rank sends counts for one part in as many as there are ranks.
        """
        own = states[rank::size] or [combine(states[:1], lambda vectors: np.zeros_like(vectors[0]))]
        ratio = size / len(states)
        dealt = combine(own, lambda vectors: ratio * np.sum(vectors, axis=0))
        state = merge(dealt, only(states[0], self.shared))
        if "group" in state["strategy"]:  # a sum over all ranks' samples, not a mean
            state["strategy"]["group"]["sum"] /= ratio
        return state


def combine(states: list[dict[str, Any]], by: Callable[[list[Array]], Array]) -> dict[str, Any]:
    """Combine the vectors of saved states; numbers are taken from the first."""
    leaves = [flatten(state) for state in states]
    names = [name for name in leaves[0] if all(name in other for other in leaves)]
    combined = {
        name: by([other[name] for other in leaves]).astype(leaves[0][name].dtype)
        if isinstance(leaves[0][name], np.ndarray)
        else leaves[0][name]
        for name in names
    }
    return unflatten((name, np.asarray(value)) for name, value in combined.items())


def clip(gradient: Array, norm: float) -> None:
    """Scale a gradient down to this Euclidean norm if it is longer, in place."""
    length = float(namespace(gradient).linalg.norm(gradient))
    if length > norm:
        gradient *= norm / length
