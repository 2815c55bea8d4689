"""Strategies: how ranks keep their parameters together."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from paropt_hpc.comm import Communicator
from paropt_hpc.errors import ConfigError, on_every_rank
from paropt_hpc.runs.checkpoint import flatten, unflatten
from paropt_hpc.train.arrays import Array
from paropt_hpc.train.optimizers import Optimizer

__all__ = ["Strategy", "combine"]


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
    #: whether the last step has changed the parameters
    updated = True
    #: whether a step with NaN or infinity in a gradient is left out, by all ranks
    skip_nonfinite = False

    def __init__(self, comm: Communicator, optimizer: Optimizer) -> None:
        self.comm = comm
        self.optimizer = optimizer

    @property
    def meets(self) -> bool:
        """Whether all ranks wait for one another in the next step; the same on all of them."""
        return True

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
            On every rank, when ranks bring different numbers or types of parameters.
        """
        told = self.comm.gather_texts(f"{params.size} {params.dtype}")
        rank = next((rank for rank, text in enumerate(told) if text != told[0]), None)
        if rank is not None:
            error = ConfigError(
                f"all ranks must have the same parameters, got {told[0]} on rank 0 and "
                f"{told[rank]} on rank {rank}; build the same model on every rank"
            )
            raise on_every_rank(error)
        self.comm.broadcast(params)

    def begin(
        self, params: Array, gradient: Array, samples: tuple[int, int] | None = None
    ) -> Callable[[int], None] | None:
        """Open a step whose gradient is still to be computed; collective.

        A strategy that can make use of parts of a gradient returns a function ``ready(first)``:
        to be called as soon as the entries of `gradient` from `first` on are what they will be,
        with a falling `first`, as the backward pass of a model goes from its last layer to its
        first. They must not be touched from then on. Nobody has to call it, nor this method:
        `step`, with the same arguments, takes all that is left.

        Returns
        -------
        callable or None
        """
        return None

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
        """Return what a later `load_state_dict` needs to go on exactly; local.

        The vectors are no copies, so that a checkpoint takes no memory: the next step changes them.
        """
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


def combine(states: list[dict[str, Any]], by: Callable[[list[Array]], Array]) -> dict[str, Any]:
    """Combine the vectors of saved states; numbers are taken from the first."""
    leaves = [flatten(state) for state in states]
    names = [name for name in leaves[0] if all(name in other for other in leaves)]
    combined = {
        name: by([other[name] for other in leaves]).astype(leaves[0][name].dtype, copy=False)
        if isinstance(leaves[0][name], np.ndarray)
        else leaves[0][name]
        for name in names
    }
    return unflatten((name, np.asarray(value)) for name, value in combined.items())
