"""Layers of a network: from activations to activations, and the derivatives back.

A layer keeps no parameters: it is handed views of the flat vectors in which all parameters and all
gradients lie. What `forward` must remember for `backward` it returns, so that a layer has no state
but the running statistics of a normalisation (`paropt_hpc.train.normalisation`). Images are
(batch, height, width, channels): channels last, so that a convolution is one matrix product.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.errors import ConfigError
from paropt_hpc.train.arrays import Array, blocks, namespace

__all__ = ["Conv2D", "Dense", "Embedding", "Layer", "MaxPool", "ReLU", "Reduce", "Reshape"]

#: adds up a float64 vector over all ranks, in place; collective
Reduce = Callable[[NDArray[np.float64]], None]


class Layer(ABC):
    """What a network asks of a layer.

    Attributes
    ----------
    shapes : sequence of tuple of int
        Of its parameter arrays; none where it has none.
    collective : bool
        Whether `forward` and `backward` communicate: then all ranks call them, also for an
        empty batch.
    """

    shapes: Sequence[tuple[int, ...]] = ()
    collective = False

    def init(self, params: Sequence[Array], generator: np.random.Generator) -> None:  # noqa: B027
        """Write initial parameters; they are 0 when this is called."""

    @abstractmethod
    def forward(self, params: Sequence[Array], x: Array, training: bool) -> tuple[Array, Any]:
        """Return the output for `x` and what `backward` needs; may overwrite `x`.

        Parameters
        ----------
        params : sequence of ndarray
            Of `shapes`; read only.
        x : ndarray, shape (batch, ...)
            What the layer before has put out.
        training : bool
            Whether `backward` follows.
        """

    @abstractmethod
    def backward(
        self,
        params: Sequence[Array],
        saved: Any,
        delta: Array,
        gradient: Sequence[Array],
        wanted: bool,
    ) -> Array:
        """Write the derivatives by the parameters and return those by the input.

        Parameters
        ----------
        params : sequence of ndarray
            As in `forward`.
        saved : object
            What `forward` returned.
        delta : ndarray
            Derivatives of the mean loss of this rank's batch by the output; may be overwritten.
        gradient : sequence of ndarray
            Of `shapes`; written.
        wanted : bool
            Whether anybody needs the derivatives by the input; if not, anything may be returned.
        """

    def connect(self, reduce: Reduce) -> None:  # noqa: B027
        """Take what adds up over the ranks that train together."""

    def end_epoch(self) -> None:  # noqa: B027
        """Make the state equal on all ranks; collective."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state that is neither parameter nor gradient (a copy)."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:  # noqa: B027
        """Take over a saved state."""


class Dense(Layer):
    """All inputs to all outputs: ``x @ weights + bias``.

    Initial weights are He-normal: the variance 2 / inputs keeps the scale of activations through
    ReLU layers (K. He et al., "Delving deep into rectifiers", ICCV 2015, eq. 10).

    Parameters
    ----------
    inputs, outputs : int
        Widths.
    bias : bool
        Left out where a normalisation follows, which has one.
    """

    def __init__(self, inputs: int, outputs: int, bias: bool = True) -> None:
        self.shapes = [(inputs, outputs), (outputs,)][: 1 + bias]

    def init(self, params: Sequence[Array], generator: np.random.Generator) -> None:
        """Draw the weights; the bias stays 0."""
        weights = params[0]
        _draw(generator, weights, np.sqrt(2.0 / weights.shape[0]))

    def forward(self, params: Sequence[Array], x: Array, training: bool) -> tuple[Array, Any]:
        """Return ``x @ weights + bias``; remembers `x`."""
        y = x @ params[0]
        if len(params) > 1:
            y += params[1]
        return y, x

    def backward(
        self,
        params: Sequence[Array],
        saved: Any,
        delta: Array,
        gradient: Sequence[Array],
        wanted: bool,
    ) -> Array:
        """Write the derivatives by weights and bias."""
        xp = namespace(delta)
        xp.matmul(saved.T, delta, out=gradient[0])
        if len(gradient) > 1:
            gradient[1][...] = sum_rows(delta)
        return delta @ params[0].T if wanted else delta


class Conv2D(Layer):
    """Convolution of odd width, stride 1, zeros around: the output is as large as the input.

    Parameters
    ----------
    channels, filters : int
        Of the input and of the output.
    width : int
        Of the square kernels; odd.
    bias : bool
        Left out where a normalisation follows, which has one.
    """

    def __init__(self, channels: int, filters: int, width: int = 3, bias: bool = True) -> None:
        if width < 1 or width % 2 == 0:
            raise ConfigError(f"the width of a kernel must be odd, got {width}; use 3 or 5")
        self.width = width
        self.shapes = [(width, width, channels, filters), (filters,)][: 1 + bias]

    def init(self, params: Sequence[Array], generator: np.random.Generator) -> None:
        """Draw He-normal kernels; the bias stays 0."""
        kernels = params[0]
        inputs = kernels[..., 0].size
        _draw(generator, kernels, np.sqrt(2.0 / inputs))

    def forward(self, params: Sequence[Array], x: Array, training: bool) -> tuple[Array, Any]:
        """Return the convolution of `x`; remembers its patches."""
        patches, filters = self._patches(x), params[0].shape[3]
        y = patches @ params[0].reshape(-1, filters)
        if len(params) > 1:
            y += params[1]
        return y.reshape(*x.shape[:3], filters), patches

    def backward(
        self,
        params: Sequence[Array],
        saved: Any,
        delta: Array,
        gradient: Sequence[Array],
        wanted: bool,
    ) -> Array:
        """Write the derivatives by kernels and bias."""
        xp = namespace(delta)
        filters = delta.shape[-1]
        rows = delta.reshape(-1, filters)
        xp.matmul(saved.T, rows, out=gradient[0].reshape(-1, filters))
        if len(gradient) > 1:
            gradient[1][...] = sum_rows(rows)
        if not wanted:
            return delta
        # An input counts in every output around it: the same convolution, kernels turned round.
        channels = params[0].shape[2]
        turned = params[0][::-1, ::-1].swapaxes(2, 3).reshape(-1, channels)
        return (self._patches(delta) @ turned).reshape(*delta.shape[:3], channels)

    def _patches(self, x: Array) -> Array:
        """Return what lies under the kernel around every pixel, one row each (a copy)."""
        xp = namespace(x)
        n, height, width, channels = x.shape
        border, k = self.width // 2, self.width
        padded = xp.zeros((n, height + 2 * border, width + 2 * border, channels), x.dtype)
        padded[:, border : border + height, border : border + width] = x
        image, row, column, channel = padded.strides
        view = xp.lib.stride_tricks.as_strided(
            padded,
            (n, height, width, k, k, channels),
            (image, row, column, row, column, channel),
        )
        return view.reshape(n * height * width, k * k * channels)


class MaxPool(Layer):
    """The largest of every 2 x 2 pixels; an odd last row or column is left out."""

    def forward(self, params: Sequence[Array], x: Array, training: bool) -> tuple[Array, Any]:
        """Return the maxima; remembers where they were, the first where several are equal."""
        xp = namespace(x)
        left_top, right_top, left_bottom, right_bottom = self._quarters(x)
        top, bottom = xp.maximum(left_top, right_top), xp.maximum(left_bottom, right_bottom)
        saved = (x.shape, right_top > left_top, right_bottom > left_bottom, bottom > top)
        return xp.maximum(top, bottom, out=top), saved

    def backward(
        self,
        params: Sequence[Array],
        saved: Any,
        delta: Array,
        gradient: Sequence[Array],
        wanted: bool,
    ) -> Array:
        """Return the derivatives: each goes to where the maximum was."""
        shape, right_of_top, right_of_bottom, below = saved
        out = namespace(delta).zeros(shape, delta.dtype)
        left_top, right_top, left_bottom, right_bottom = self._quarters(out)
        for row, left, right, is_right in (
            (delta * ~below, left_top, right_top, right_of_top),
            (delta * below, left_bottom, right_bottom, right_of_bottom),
        ):
            left[...] = row * ~is_right
            right[...] = row * is_right
        return out

    def _quarters(self, x: Array) -> tuple[Array, ...]:
        height, width = (size // 2 * 2 for size in x.shape[1:3])
        return tuple(x[:, i:height:2, j:width:2] for i in (0, 1) for j in (0, 1))


class ReLU(Layer):
    """Negative activations become 0, in place."""

    def forward(self, params: Sequence[Array], x: Array, training: bool) -> tuple[Array, Any]:
        """Overwrite `x`; remembers the output."""
        y = namespace(x).maximum(x, 0, out=x)
        return y, y

    def backward(
        self,
        params: Sequence[Array],
        saved: Any,
        delta: Array,
        gradient: Sequence[Array],
        wanted: bool,
    ) -> Array:
        """Zero the derivatives where the output was 0, in place."""
        delta *= saved > 0
        return delta


class Reshape(Layer):
    """Give every sample another shape: (height, width, channels) to an image, or (features,)."""

    def __init__(self, *shape: int) -> None:
        self.shape = shape

    def forward(self, params: Sequence[Array], x: Array, training: bool) -> tuple[Array, Any]:
        """Return a view."""
        return x.reshape(x.shape[0], *self.shape), x.shape

    def backward(
        self,
        params: Sequence[Array],
        saved: Any,
        delta: Array,
        gradient: Sequence[Array],
        wanted: bool,
    ) -> Array:
        """Undo it."""
        return delta.reshape(saved)


class Embedding(Layer):
    """The mean of the vectors of a sample's tokens.

    Tokens are whole numbers from 1; 0 is padding and counts for nothing.

    Parameters
    ----------
    tokens : int
        The largest.
    width : int
        Of the vectors.
    """

    def __init__(self, tokens: int, width: int) -> None:
        self.shapes = [(tokens, width)]

    def init(self, params: Sequence[Array], generator: np.random.Generator) -> None:
        """Draw standard normal vectors."""
        _draw(generator, params[0], 1.0)

    def forward(self, params: Sequence[Array], x: Array, training: bool) -> tuple[Array, Any]:
        """Return the means, shape (batch, width); those of samples without tokens are 0."""
        table = params[0]
        xp, real = namespace(table), x > 0
        weights = (real / xp.maximum(real.sum(axis=1, keepdims=True), 1)).astype(table.dtype)
        vectors = table[xp.where(real, x - 1, 0)]
        return xp.einsum("nl,nlw->nw", weights, vectors), (x, weights)

    def backward(
        self,
        params: Sequence[Array],
        saved: Any,
        delta: Array,
        gradient: Sequence[Array],
        wanted: bool,
    ) -> Array:
        """Add every sample's derivative to those of its tokens."""
        x, weights = saved
        xp = namespace(delta)
        sample, place = xp.nonzero(x)
        gradient[0][...] = 0
        shares = delta[sample] * weights[sample, place][:, None]
        xp.add.at(gradient[0], x[sample, place] - 1, shares)
        return delta


def sum_rows(rows: Array, dtype: Any = None) -> Array:
    """Return the sum over the first axis of a matrix.

    Many short rows are summed as fewer long ones first, over which NumPy's loops are fast.
    """
    n, width = rows.shape
    together = max(1, 256 // max(1, width))
    whole = n // together * together
    if together == 1 or whole == 0:
        return rows.sum(axis=0, dtype=dtype)
    wide = rows[:whole].reshape(-1, together * width).sum(axis=0, dtype=dtype)
    total = wide.reshape(together, width).sum(axis=0)
    if whole < n:
        total += rows[whole:].sum(axis=0, dtype=dtype)
    return total


def _draw(generator: np.random.Generator, out: Array, scale: float) -> None:
    """Draw normal numbers of this deviation: in blocks, as float64 takes twice the memory."""
    flat = out.reshape(-1)
    for part in blocks(flat):
        flat[part] = generator.standard_normal(flat[part].size) * scale
