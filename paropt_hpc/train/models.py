"""Models on a flat parameter vector: the loss, its gradient, and the accuracy.

A model keeps no parameters. It reads one contiguous vector and writes the gradient
into another of the same layout, the gradient buffer, which the strategies then move
between ranks as it is. `Network` is a stack of layers (`paropt_hpc.train.layers`); the models
here are stacks with a name.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels import rng
from paropt_hpc.train.arrays import Array, namespace
from paropt_hpc.train.layers import (
    Conv2D,
    Dense,
    Embedding,
    Layer,
    MaxPool,
    Reduce,
    ReLU,
    Reshape,
)
from paropt_hpc.train.normalisation import BatchNorm

__all__ = ["CNN", "MLP", "Batch", "EmbeddingBag", "Model", "Network", "Norm", "Softmax"]

#: makes the normalisation of so many channels
Norm = Callable[[int], BatchNorm]


class Batch(NamedTuple):
    """Samples and their labels."""

    x: Array  # shape (batch, features), the dtype of the parameters
    y: Array  # shape (batch,), integers in [0, classes)


class Model(ABC):
    """What the training loop asks of a model; derive your own from it.

    The name of a configuration's ``model.name`` may be ``module:callable``: a callable that takes
    ``features`` and ``classes``, and ``model.options`` as further keywords, and returns one.

    Attributes
    ----------
    size : int
        Number of parameters.
    layers : sequence of slice
        Where each weight matrix and each bias lies in the vector of parameters, in the order of
        the forward pass: LARS and LAMB give each a rate of its own.
    """

    size: int
    layers: Sequence[slice]

    @abstractmethod
    def init(self, seed: int, dtype: np.dtype[Any] | str) -> NDArray[Any]:
        """Draw initial parameters, shape (size,), of this dtype; the same for the same seed."""

    @abstractmethod
    def loss_and_grad(
        self,
        params: Array,
        batch: Batch,
        out: Array | None = None,
        ready: Callable[[int], None] | None = None,
    ) -> tuple[float, Array]:
        """Return the mean loss of a batch and its gradient.

        Parameters
        ----------
        params : ndarray, shape (size,)
            Read only.
        batch : Batch
            May be empty: then the loss and the gradient are 0.
        out : ndarray, shape (size,), optional
            Where to write the gradient; a new array otherwise.
        ready : callable, optional
            Called with falling positions, as soon as the gradient from there on is written; see
            `paropt_hpc.train.Strategy.begin`. A model of your own may do without this argument.

        Returns
        -------
        loss : float
            Mean over the samples, in nats.
        gradient : ndarray, shape (size,)
            `out`, or the new array.
        """

    @abstractmethod
    def evaluate(self, params: Array, batch: Batch) -> tuple[float, int]:
        """Return the summed loss and the number of correctly labelled samples; local."""

    def connect(self, reduce: Reduce) -> None:  # noqa: B027
        """Take what adds up a float64 vector over the ranks, in place; called once."""

    def end_epoch(self) -> None:  # noqa: B027
        """Make what is neither parameter nor gradient equal on all ranks; collective."""

    def state_dict(self) -> dict[str, Any]:
        """Return what is neither parameter nor gradient (a copy), for a checkpoint; local."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Take over a saved state; local."""


class Network(Model):
    """Layers one after the other, softmax cross-entropy at the end.

    Parameters
    ----------
    stack : sequence of Layer
        The last one puts out one logit per class.

    Attributes
    ----------
    size : int
        Number of parameters: those of all layers, in order.
    layers : list of slice
        Where each parameter array lies in the vector.
    """

    def __init__(self, stack: Sequence[Layer]) -> None:
        self.stack = list(stack)
        self.layers: list[slice] = []
        self._places: list[list[tuple[slice, tuple[int, ...]]]] = []
        end = 0
        for layer in self.stack:
            places = []
            for shape in layer.shapes:
                if min(shape) < 1:
                    raise ConfigError(f"every layer must have at least 1 unit, got shape {shape}")
                begin, end = end, end + int(np.prod(shape))
                places.append((slice(begin, end), tuple(shape)))
            self._places.append(places)
            self.layers += [place for place, _ in places]
        if not self.layers:
            raise ConfigError("a network needs a layer with parameters, got none")
        self.size = end
        self._first = next(i for i, places in enumerate(self._places) if places)

    def init(self, seed: int, dtype: np.dtype[Any] | str = "float32") -> NDArray[Any]:
        """Draw initial parameters, shape (size,), as each layer wants them."""
        params = np.zeros(self.size, dtype)
        generator = rng.philox(seed, "init")
        for layer, views in zip(self.stack, self._views(params), strict=True):
            layer.init(views, generator)
        return params

    def loss_and_grad(
        self,
        params: Array,
        batch: Batch,
        out: Array | None = None,
        ready: Callable[[int], None] | None = None,
    ) -> tuple[float, Array]:
        """Return mean loss and gradient; see `Model`.

        Collective when a layer is: a `BatchNorm` that is connected to other ranks.
        """
        xp = namespace(params)
        gradient = xp.empty_like(params) if out is None else out
        n = batch.x.shape[0]
        if n == 0 and not any(layer.collective for layer in self.stack):
            gradient[:] = 0
            return 0.0, gradient
        views = list(self._views(params))
        logits, saved = self._forward(views, batch.x, training=True)
        losses, delta = _cross_entropy(xp, logits, batch.y)
        delta[xp.arange(n), batch.y] -= 1
        delta /= max(1, n)
        self._backward(views, saved, delta, gradient, ready)
        return float(losses.mean()) if n else 0.0, gradient

    def evaluate(self, params: Array, batch: Batch) -> tuple[float, int]:
        """Return the summed loss and the number of correctly labelled samples; local."""
        xp = namespace(params)
        if batch.x.shape[0] == 0:
            return 0.0, 0
        logits, _ = self._forward(list(self._views(params)), batch.x, training=False)
        correct = int((logits.argmax(axis=1) == batch.y).sum())
        losses, _ = _cross_entropy(xp, logits, batch.y)
        return float(losses.sum(dtype="float64")), correct

    def connect(self, reduce: Reduce) -> None:
        """Give the layers what adds up a float64 vector over the ranks, in place."""
        for layer in self.stack:
            layer.connect(reduce)

    def end_epoch(self) -> None:
        """Make what is neither parameter nor gradient equal on all ranks; collective."""
        for layer in self.stack:
            layer.end_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Return what is neither parameter nor gradient (a copy): running statistics; local."""
        states = {str(i): layer.state_dict() for i, layer in enumerate(self.stack)}
        return {name: state for name, state in states.items() if state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state; local."""
        for name, values in state.items():
            self.stack[int(name)].load_state_dict(values)

    def _views(self, vector: Array) -> Iterator[list[Array]]:
        """Yield each layer's parameter arrays in a vector of parameters or gradients."""
        for places in self._places:
            yield [vector[place].reshape(shape) for place, shape in places]

    def _forward(
        self, views: list[list[Array]], x: Array, training: bool
    ) -> tuple[Array, list[Any]]:
        """Return the logits and, while training, what every layer has remembered."""
        saved = []
        for layer, params in zip(self.stack, views, strict=True):
            x, remembered = layer.forward(params, x, training)
            saved.append(remembered if training else None)
        return x, saved

    def _backward(
        self,
        views: list[list[Array]],
        saved: list[Any],
        delta: Array,
        gradient: Array,
        ready: Callable[[int], None] | None,
    ) -> None:
        """Push `delta`, the derivative by the logits, back through the layers."""
        gradients = list(self._views(gradient))
        for i in range(len(self.stack) - 1, self._first - 1, -1):
            wanted = i > self._first
            delta = self.stack[i].backward(views[i], saved.pop(), delta, gradients[i], wanted)
            if ready is not None and self._places[i]:
                ready(self._places[i][0][0].start)


class MLP(Network):
    """Multi-layer perceptron: ReLU between the layers, softmax cross-entropy at the end.

    Parameters
    ----------
    features, classes : int
        Width of the input and number of labels.
    hidden : sequence of int
        Widths of the hidden layers; none makes it softmax regression.
    norm : callable, optional
        ``channels -> BatchNorm``, before every ReLU.
    """

    def __init__(
        self, features: int, hidden: Sequence[int], classes: int, norm: Norm | None = None
    ) -> None:
        self.widths = (features, *hidden, classes)
        if min(self.widths) < 1:
            raise ConfigError(f"every layer must have at least 1 unit, got widths {self.widths}")
        super().__init__(_dense_layers(self.widths, norm))


class Softmax(MLP):
    """Softmax regression: a perceptron without hidden layers, convex in its parameters."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, (), classes)

    def init(self, seed: int, dtype: np.dtype[Any] | str = "float32") -> NDArray[Any]:
        """Return zeros, shape (size,): the loss is convex, there is no symmetry to break."""
        del seed
        return np.zeros(self.size, dtype)


class CNN(Network):
    """Convolutions of 3 x 3, each halved by its maxima, then a perceptron.

    Parameters
    ----------
    image : (int, int, int)
        Height, width and channels of a sample, which is flat in the batch.
    channels : sequence of int
        Filters of the convolutions.
    hidden : sequence of int
        Widths of the hidden layers of the perceptron.
    classes : int
        Number of labels.
    norm : callable, optional
        ``channels -> BatchNorm``, before every ReLU.
    """

    def __init__(
        self,
        image: tuple[int, int, int],
        channels: Sequence[int],
        hidden: Sequence[int],
        classes: int,
        norm: Norm | None = None,
    ) -> None:
        height, width, before = image
        halvings = 2 ** len(channels)
        if min(height, width) < halvings:
            raise ConfigError(
                f"an image of {height} x {width} cannot be halved {len(channels)} times; "
                "name fewer model.channels"
            )
        stack: list[Layer] = [Reshape(*image)]
        for after in channels:
            stack.append(Conv2D(before, after, bias=norm is None))
            if norm is not None:
                stack.append(norm(after))
            stack += [MaxPool(), ReLU()]  # the other order gives the same, four times as slow
            before = after
        inputs = (height // halvings) * (width // halvings) * before
        super().__init__(
            [*stack, Reshape(inputs), *_dense_layers((inputs, *hidden, classes), norm)],
        )


class EmbeddingBag(Network):
    """The mean of a sample's token vectors, then a perceptron: for samples of varying length.

    Parameters
    ----------
    tokens : int
        The largest token; tokens count from 1, and 0 is padding.
    width : int
        Of the token vectors.
    hidden : sequence of int
        Widths of the hidden layers.
    classes : int
        Number of labels.
    norm : callable, optional
        ``channels -> BatchNorm``, before every ReLU.
    """

    def __init__(
        self,
        tokens: int,
        width: int,
        hidden: Sequence[int],
        classes: int,
        norm: Norm | None = None,
    ) -> None:
        stack = [Embedding(tokens, width), *_dense_layers((width, *hidden, classes), norm)]
        super().__init__(stack)


def _dense_layers(widths: Sequence[int], norm: Norm | None) -> list[Layer]:
    """Return a perceptron's layers: no ReLU after the last."""
    stack: list[Layer] = []
    for inputs, outputs in pairwise(widths[:-1]):
        stack.append(Dense(inputs, outputs, bias=norm is None))
        if norm is not None:
            stack.append(norm(outputs))
        stack.append(ReLU())
    return [*stack, Dense(widths[-2], widths[-1])]


def _cross_entropy(xp: Any, logits: Array, y: Array) -> tuple[Array, Array]:
    """Return each sample's loss, shape (batch,), and the probabilities (over `logits`)."""
    logits -= logits.max(axis=1, keepdims=True)  # exp cannot overflow
    picked = logits[xp.arange(y.shape[0]), y]
    probabilities = xp.exp(logits, out=logits)
    total = probabilities.sum(axis=1)
    probabilities /= total[:, None]
    return xp.log(total) - picked, probabilities
