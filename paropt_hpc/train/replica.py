"""Around somebody else's training loop: parameters and gradients as a list of arrays."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.comm import Communicator
from paropt_hpc.errors import ConfigError, on_every_rank
from paropt_hpc.train.allreduce import AllReduce
from paropt_hpc.train.optimizers import Untouched
from paropt_hpc.train.strategies import Strategy

__all__ = ["Replica"]

_FLOATS = (np.dtype(np.float32), np.dtype(np.float64))


class Replica:
    """The copy that a rank has of a model whose parameters are a list of arrays.

    The arrays may be NumPy's or of any framework that exports DLPack from the memory of the
    CPU, such as PyTorch's tensors. They stay where they are: values are changed in place. The
    constructor is collective; it gives all ranks the parameters of rank 0.

    Parameters
    ----------
    strategy : Strategy
        Such as ``AllReduce(comm)``, which leaves the update to an optimizer of your own, or
        ``AllReduce(comm, SGD(0.1))``.
    params : iterable of array
        All float32 or all float64, writable; equal in number and shape on all ranks.

    Raises
    ------
    ConfigError
        On every rank, when the parameters of any cannot be used, or those of two differ.

    Notes
    -----
    A strategy without an optimizer takes one more vector of the size of the parameters, for the
    gradient; one with an optimizer two. Every step copies gradients there and back.
    """

    def __init__(self, strategy: Strategy, params: Iterable[Any]) -> None:
        self.strategy = strategy
        comm = strategy.comm
        with comm.together():
            self._params = _arrays("parameter", params)
            _check_one_dtype(self._params)
        _check_equal(comm, self._params)
        sizes = [array.size for array in self._params]
        ends = np.cumsum(sizes).tolist()
        self._places = [slice(end - n, end) for n, end in zip(sizes, ends, strict=True)]
        self._gradient = comm.empty(ends[-1], self._params[0].dtype)
        flat = np.empty_like(self._gradient)
        self._gather(self._params, flat)
        strategy.start(flat)
        self._scatter(flat, self._params)
        self._updates = not isinstance(strategy.optimizer, Untouched)
        self._reads = self._updates or bool(getattr(strategy, "weight_decay", 0.0))
        self._flat = flat if self._reads else flat[:0].copy()

    def step(self, gradients: Iterable[Any], samples: tuple[int, int] | None = None) -> bool:
        """Take a step of the strategy; collective.

        Parameters
        ----------
        gradients : iterable of array
            In the order of the parameters, and of their shapes. Without an optimizer they are
            overwritten with what is to be applied, else read only.
        samples : (int, int), optional
            How many samples the gradient is the mean of, and how many that were on all ranks.
            Without it all ranks weigh the same.

        Returns
        -------
        bool
            Whether there is an update: made, or, without an optimizer, left in `gradients`. Not
            so inside an accumulated group, and where a step is skipped.

        Raises
        ------
        ConfigError
            On every rank, when a gradient of any is None, or of another shape.
        """
        arrays: list[NDArray[Any]] = []
        with self.strategy.comm.together():
            arrays = self._checked(gradients)
        self._gather(arrays, self._gradient)
        if self._reads:
            self._gather(self._params, self._flat)
        self.strategy.step(self._flat, self._gradient, samples)
        return self._hand_back(arrays)

    def flush(self, gradients: Iterable[Any]) -> bool:
        """Apply what an incomplete group has accumulated, as at the end of an epoch; collective.

        `gradients` and the result are as those of `step`, but nothing is read from the arrays.
        """
        arrays: list[NDArray[Any]] = []
        with self.strategy.comm.together():
            arrays = self._checked(gradients)
        if self._reads:
            self._gather(self._params, self._flat)
        if isinstance(self.strategy, AllReduce):
            self.strategy.end_epoch(self._flat, self._gradient)
        else:
            self.strategy.end_epoch(self._flat)
        return self._hand_back(arrays)

    def finish(self) -> None:
        """Bring the parameters to the result of the run, equal on all ranks; collective.

        Without an optimizer there is nothing to bring: see `flush`.
        """
        if self._updates:
            self._gather(self._params, self._flat)
            self.strategy.finish(self._flat)
            self._scatter(self._flat, self._params)

    def _hand_back(self, gradients: list[NDArray[Any]]) -> bool:
        if self._updates:
            self._scatter(self._flat, self._params)
        elif self.strategy.updated:
            self._scatter(self._gradient, gradients)
        return self.strategy.updated

    def _checked(self, gradients: Iterable[Any]) -> list[NDArray[Any]]:
        given = list(gradients)
        if len(given) != len(self._params):
            raise ConfigError(
                f"expected a gradient for each of {len(self._params)} parameters, got {len(given)}"
            )
        for number, (one, param) in enumerate(zip(given, self._params, strict=True)):
            if one is None:
                raise ConfigError(
                    f"the gradient of parameter {number}, of shape {param.shape}, is None: it has "
                    "no part in the loss; leave it out on all ranks, or pass zeros"
                )
        arrays = _arrays("gradient", given)
        for number, (one, param) in enumerate(zip(arrays, self._params, strict=True)):
            if one.shape != param.shape or one.dtype != param.dtype:
                raise ConfigError(
                    f"gradient {number} must be as its parameter, {param.shape} {param.dtype}, "
                    f"got {one.shape} {one.dtype}"
                )
        return arrays

    def _gather(self, arrays: list[NDArray[Any]], flat: NDArray[Any]) -> None:
        for array, place in zip(arrays, self._places, strict=True):
            flat[place].reshape(array.shape)[...] = array

    def _scatter(self, flat: NDArray[Any], arrays: list[NDArray[Any]]) -> None:
        for array, place in zip(arrays, self._places, strict=True):
            array[...] = flat[place].reshape(array.shape)


def _arrays(kind: str, given: Iterable[Any]) -> list[NDArray[Any]]:
    return [_view(f"{kind} {number}", one) for number, one in enumerate(given)]


def _view(name: str, given: Any) -> NDArray[Any]:
    """Return an array on the same memory."""
    if hasattr(given, "detach"):  # PyTorch's word for "without its history"
        given = given.detach()
    if isinstance(given, np.ndarray):
        array = given
    else:
        try:
            array = np.from_dlpack(given)
        except (AttributeError, BufferError, RuntimeError, TypeError, ValueError) as error:
            raise ConfigError(
                f"{name} must be a NumPy array or give DLPack in the memory of the CPU, got "
                f"{type(given).__name__} ({error}); pass numpy.asarray of it"
            ) from None
    if array.dtype not in _FLOATS or not array.flags.writeable:
        kind = str(array.dtype) if array.flags.writeable else f"read-only {array.dtype}"
        raise ConfigError(f"{name} must be writable float32 or float64, got {kind}; pass a copy")
    return array


def _check_one_dtype(params: list[NDArray[Any]]) -> None:
    if not params:
        raise ConfigError("expected at least one parameter, got none")
    for number, array in enumerate(params):
        if array.dtype != params[0].dtype:
            raise ConfigError(
                f"all parameters must have one dtype, got {params[0].dtype} for the first and "
                f"{array.dtype} for parameter {number}"
            )


def _check_equal(comm: Communicator, params: list[NDArray[Any]]) -> None:
    """Raise on every rank unless all have parameters of the same shapes."""
    own = "\n".join(f"{array.shape} {array.dtype}" for array in params)
    first, *others = (text.split("\n") for text in comm.gather_texts(own))
    for rank, other in enumerate(others, 1):
        if other == first:
            continue
        found = f"{len(first)} parameters on rank 0 and {len(other)} on rank {rank}"
        for number, (one, two) in enumerate(zip(first, other, strict=False)):
            if one != two:
                found = f"parameter {number} of {one} on rank 0 and {two} on rank {rank}"
                break
        error = ConfigError(
            f"all ranks must have the same parameters, got {found}; build the same model on "
            "every rank"
        )
        raise on_every_rank(error)
