"""Models on a flat parameter vector: the loss, its gradient, and the accuracy.

A model keeps no parameters. It reads one contiguous vector and writes the gradient
into another of the same layout, the gradient buffer, which the strategies then move
between ranks as it is. Only operations that NumPy and CuPy share are used.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels import rng
from paropt_hpc.train.arrays import Array, blocks, namespace

__all__ = ["MLP", "Batch", "Softmax"]


class Batch(NamedTuple):
    """Samples and their labels."""

    x: Array  # shape (batch, features), the dtype of the parameters
    y: Array  # shape (batch,), integers in [0, classes)


class MLP:
    """Multi-layer perceptron: ReLU between the layers, softmax cross-entropy at the end.

    Parameters
    ----------
    features, classes : int
        Width of the input and number of labels.
    hidden : sequence of int
        Widths of the hidden layers; none makes it softmax regression.

    Attributes
    ----------
    size : int
        Number of parameters: all weights and biases, layer by layer.
    layers : list of slice
        Where each layer's weights, and each layer's biases, lie in the vector.
    """

    def __init__(self, features: int, hidden: Sequence[int], classes: int) -> None:
        self.widths = (features, *hidden, classes)
        if min(self.widths) < 1:
            raise ConfigError(f"every layer must have at least 1 unit, got widths {self.widths}")
        self._shapes = list(zip(self.widths, self.widths[1:], strict=False))
        counts = [count for rows, columns in self._shapes for count in (rows * columns, columns)]
        ends = [sum(counts[: i + 1]) for i in range(len(counts))]
        self.layers = [slice(end - count, end) for end, count in zip(ends, counts, strict=True)]
        self.size = ends[-1]

    def init(self, seed: int, dtype: np.dtype[Any] | str = "float32") -> NDArray[Any]:
        """Draw initial parameters, shape (size,): He-normal weights, zero biases.

        The variance 2 / inputs keeps the scale of activations through ReLU layers
        (K. He et al., "Delving deep into rectifiers", ICCV 2015, eq. 10).
        """
        params = np.zeros(self.size, dtype)
        generator = rng.philox(seed, "init")
        for weights, _ in self._layers(params):
            scale = np.sqrt(2.0 / weights.shape[0])
            flat = weights.reshape(-1)
            for part in blocks(flat):  # drawn in float64: a whole layer would be twice the model
                flat[part] = generator.standard_normal(flat[part].size) * scale
        return params

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
            Mean cross-entropy in nats.
        gradient : ndarray, shape (size,)
            `out`, or the new array.
        """
        xp = namespace(params)
        gradient = xp.empty_like(params) if out is None else out
        n = batch.x.shape[0]
        if n == 0:
            gradient[:] = 0
            return 0.0, gradient
        activations, logits = self._forward(xp, params, batch.x)
        losses, delta = _cross_entropy(xp, logits, batch.y)
        delta[xp.arange(n), batch.y] -= 1
        delta /= n
        self._backward(xp, params, activations, delta, gradient, ready)
        return float(losses.mean()), gradient

    def evaluate(self, params: Array, batch: Batch) -> tuple[float, int]:
        """Return the summed loss and the number of correctly labelled samples of a batch."""
        xp = namespace(params)
        if batch.x.shape[0] == 0:
            return 0.0, 0
        _, logits = self._forward(xp, params, batch.x)
        correct = int((logits.argmax(axis=1) == batch.y).sum())
        losses, _ = _cross_entropy(xp, logits, batch.y)
        return float(losses.sum(dtype="float64")), correct

    def _layers(self, vector: Array) -> list[tuple[Array, Array]]:
        """Return (weights, bias) views of a parameter or gradient vector, layer by layer."""
        weights, biases = self.layers[::2], self.layers[1::2]
        return [
            (vector[w].reshape(shape), vector[b])
            for w, b, shape in zip(weights, biases, self._shapes, strict=True)
        ]

    def _forward(self, xp: Any, params: Array, x: Array) -> tuple[list[Array], Array]:
        activations = [x]
        layers = self._layers(params)
        for weights, bias in layers[:-1]:
            hidden = activations[-1] @ weights
            hidden += bias
            activations.append(xp.maximum(hidden, 0, out=hidden))
        weights, bias = layers[-1]
        return activations, activations[-1] @ weights + bias

    def _backward(
        self,
        xp: Any,
        params: Array,
        activations: list[Array],
        delta: Array,
        gradient: Array,
        ready: Callable[[int], None] | None,
    ) -> None:
        """Push `delta`, the derivative by the logits, back through the layers."""
        layers = list(zip(self._layers(params), self._layers(gradient), activations, strict=True))
        for depth, ((weights, _), (weights_grad, bias_grad), inputs) in reversed(
            list(enumerate(layers))
        ):
            xp.matmul(inputs.T, delta, out=weights_grad)
            xp.sum(delta, axis=0, out=bias_grad)
            if ready is not None:
                ready(self.layers[2 * depth].start)
            if depth:
                delta = delta @ weights.T
                delta *= inputs > 0


class Softmax(MLP):
    """Softmax regression: a perceptron without hidden layers, convex in its parameters."""

    def __init__(self, features: int, classes: int) -> None:
        super().__init__(features, (), classes)

    def init(self, seed: int, dtype: np.dtype[Any] | str = "float32") -> NDArray[Any]:
        """Return zeros, shape (size,): the loss is convex, there is no symmetry to break."""
        del seed
        return np.zeros(self.size, dtype)


def _cross_entropy(xp: Any, logits: Array, y: Array) -> tuple[Array, Array]:
    """Return each sample's loss, shape (batch,), and the probabilities (over `logits`)."""
    logits -= logits.max(axis=1, keepdims=True)  # exp cannot overflow
    picked = logits[xp.arange(y.shape[0]), y]
    probabilities = xp.exp(logits, out=logits)
    total = probabilities.sum(axis=1)
    probabilities /= total[:, None]
    return xp.log(total) - picked, probabilities
