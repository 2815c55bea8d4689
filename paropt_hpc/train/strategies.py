"""Strategies: how ranks keep their parameters together.

The way of a gradient is `AllReduce.step`: compress, exchange, add up, update.
"""

from abc import ABC, abstractmethod
from typing import Any

from paropt_hpc.comm import Communicator
from paropt_hpc.compress import TopK
from paropt_hpc.train.arrays import Array
from paropt_hpc.train.optimizers import SGD

__all__ = ["AllReduce", "Strategy"]


class Strategy(ABC):
    """What the training loop asks of a strategy; with one rank each equals plain SGD."""

    @abstractmethod
    def start(self, params: Array) -> None:
        """Give all ranks the same parameters, in place; collective."""

    @abstractmethod
    def step(self, params: Array, gradient: Array) -> None:
        """Turn this rank's gradient into an update of `params`, in place; collective."""

    def finish(self, params: Array) -> None:  # noqa: B027  (most strategies have nothing to do)
        """Bring `params` to the result of the run, in place; collective."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return what a later `load_state_dict` needs to go on exactly; local."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state; local."""


class AllReduce(Strategy):
    """Synchronous data-parallel SGD: every rank applies the mean gradient of all ranks.

    Parameters
    ----------
    comm : Communicator
        The ranks that train together.
    optimizer : SGD
        Applied on every rank to the same mean gradient, so parameters stay equal bit for bit.
    compressor : TopK, optional
        Sends each rank's gradient as a sparse message; dense without it.
    algorithm : {"ring", "mpi"}
        Of the dense all-reduce: our segmented ring or the library's own.
    """

    def __init__(
        self,
        comm: Communicator,
        optimizer: SGD,
        compressor: TopK | None = None,
        algorithm: str = "ring",
    ) -> None:
        self.comm = comm
        self.optimizer = optimizer
        self.compressor = compressor
        self.algorithm = algorithm

    def start(self, params: Array) -> None:
        """Broadcast the parameters of rank 0 to all ranks, in place; collective."""
        self.comm.broadcast(params)
        if self.compressor is not None:
            self.compressor.start(params.size, params.dtype)

    def step(self, params: Array, gradient: Array) -> None:
        """Average `gradient` over the ranks and update `params`; both in place; collective.

        Parameters
        ----------
        params : ndarray, shape (n,)
            Equal on all ranks before and after.
        gradient : ndarray, shape (n,)
            This rank's gradient; overwritten.
        """
        if self.compressor is None:
            self.comm.allreduce(gradient, "mean", algorithm=self.algorithm)
        else:
            message = self.compressor.compress(gradient)
            gradient[:] = 0
            # In rank order on every rank, so that the sums are equal bit for bit.
            for received in self.comm.allgather_bytes(message):
                self.compressor.decompress_add(received, gradient, 1 / self.comm.size)
        self.optimizer.update(params, gradient)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of optimizer and compressor of this rank (a copy); local."""
        state = {"optimizer": self.optimizer.state_dict()}
        if self.compressor is not None:
            state["compressor"] = self.compressor.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state of this rank, after `start`; local."""
        self.optimizer.load_state_dict(state["optimizer"])
        if self.compressor is not None:
            self.compressor.load_state_dict(state["compressor"])
