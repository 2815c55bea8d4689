"""Batch normalisation over the whole global batch, or over small virtual batches.

    y = scale * (x - mean) / sqrt(variance + eps) + shift

Mean and variance are those of each channel over all samples (and pixels) of a batch while
training, and their running averages in evaluation (S. Ioffe, C. Szegedy, "Batch normalization",
ICML 2015, algorithms 1 and 2). They are a few numbers per channel and stay on the host, also where
activations are on a GPU.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.errors import ConfigError
from paropt_hpc.train.arrays import Array, like, namespace, to_host
from paropt_hpc.train.layers import Layer, Reduce, sum_rows

__all__ = ["BatchNorm", "VirtualBatchNorm"]

_Vector = NDArray[np.float64]


class _Saved(NamedTuple):
    """What the way back needs of a batch."""

    normal: Array  # (x - mean) / deviation, shape (rows, channels)
    inverse: _Vector  # 1 / deviation
    rows: float  # on all ranks
    samples: int  # of this rank's batch


class BatchNorm(Layer):
    """Normalise by the statistics of the global batch: all samples of all ranks.

    The result is that of one process on the whole batch, however many samples each rank has,
    none included. It costs one reduction of 2 numbers per channel in each direction. Sums are
    float64 and taken of the distances from the running mean, not of the values, so that they stay
    exact where the mean is large beside the deviation (T. Chan, G. Golub, R. LeVeque, "Algorithms
    for computing the sample variance", The American Statistician 37(3), 1983, section 3).

    Parameters
    ----------
    channels : int
        Length of the last axis.
    momentum : float
        Weight of a new batch in the running statistics, in (0, 1].
    eps : float
        Added to the variance.

    Attributes
    ----------
    mean, variance : ndarray, shape (channels,), float64
        Running statistics; the variance is the unbiased one. Equal on all ranks.
    steps : int
        Batches so far.
    """

    collective = True

    def __init__(self, channels: int, momentum: float = 0.1, eps: float = 1e-5) -> None:
        if not 0 < momentum <= 1:
            raise ConfigError(f"momentum of batch norm must be in (0, 1], got {momentum}")
        self.shapes = [(channels,), (channels,)]
        self.momentum = momentum
        self.eps = eps
        self.mean = np.zeros(channels)
        self.variance = np.ones(channels)
        self.steps = 0
        self._reduce: Reduce = _alone

    def connect(self, reduce: Reduce) -> None:
        """Take what adds up over the ranks."""
        self._reduce = reduce

    def init(self, params: Sequence[Array], generator: np.random.Generator) -> None:
        """Set the scales to 1; the shifts stay 0."""
        params[0][...] = 1

    def forward(self, params: Sequence[Array], x: Array, training: bool) -> tuple[Array, Any]:
        """Normalise, while training by the statistics of the batch; collective then."""
        rows = x.reshape(-1, x.shape[-1])
        if not training:
            factor = params[0] / like(np.sqrt(self.variance + self.eps), x)
            y = rows * factor.astype(x.dtype)
            y += (params[1] - factor * like(self.mean, x)).astype(x.dtype)
            return y.reshape(x.shape), None
        saved, mean, variance = self._normalised(rows, x.shape[0], self._reduce)
        if saved.rows:
            self._observe(mean, variance)
        return self._scaled(params, saved.normal).reshape(x.shape), saved

    def backward(
        self,
        params: Sequence[Array],
        saved: Any,
        delta: Array,
        gradient: Sequence[Array],
        wanted: bool,
    ) -> Array:
        """Return the derivatives by `x`, through mean and variance too; collective."""
        rows = delta.reshape(saved.normal.shape)
        return self._back(params, saved, rows, gradient, self._reduce).reshape(delta.shape)

    def _normalised(
        self, rows: Array, samples: int, reduce: Reduce
    ) -> tuple[_Saved, _Vector, _Vector]:
        """Return the normalised rows, and mean and unbiased variance of all of them."""
        origin = self.mean if self.steps else _mean(rows, reduce)
        near = origin.astype(rows.dtype)  # what is subtracted, rounded as it is
        normal = rows - like(near, rows)
        sums = np.empty(1 + 2 * normal.shape[1])
        sums[0] = len(normal)
        first, second = np.split(sums[1:], 2)
        first[:] = to_host(sum_rows(normal, np.float64))
        second[:] = to_host(sum_rows(normal * normal, np.float64))
        reduce(sums)
        count = max(1.0, sums[0])
        distance = first / count
        squares = np.maximum(second - count * distance**2, 0)
        inverse = 1 / np.sqrt(squares / count + self.eps)
        normal -= like(distance.astype(rows.dtype), rows)
        normal *= like(inverse.astype(rows.dtype), rows)
        mean, variance = near + distance, squares / max(1.0, count - 1)
        return _Saved(normal, inverse, sums[0], samples), mean, variance

    def _scaled(self, params: Sequence[Array], normal: Array) -> Array:
        y = normal * params[0]
        y += params[1]
        return y

    def _observe(self, mean: _Vector, variance: _Vector) -> None:
        """Let the running statistics follow; the first batch sets them."""
        weight = self.momentum if self.steps else 1.0
        self.mean += weight * (mean - self.mean)
        self.variance += weight * (variance - self.variance)
        self.steps += 1

    def _back(
        self,
        params: Sequence[Array],
        saved: _Saved,
        delta: Array,
        gradient: Sequence[Array],
        reduce: Reduce,
    ) -> Array:
        """Return the derivatives by the rows [Ioffe and Szegedy, section 3].

        `delta` belongs to the mean over this rank's samples; what crosses ranks is therefore
        counted in samples, and the share of this rank brought back to its own mean.
        """
        both = sum_rows(delta, np.float64), sum_rows(delta * saved.normal, np.float64)
        gradient[1][...], gradient[0][...] = both
        sums = np.concatenate([to_host(one) for one in both])
        sums *= saved.samples
        reduce(sums)
        sums /= max(1.0, saved.rows * saved.samples)
        plain, along = (like(one, delta) for one in np.split(sums.astype(delta.dtype), 2))
        out = saved.normal  # nobody needs it any more
        out *= -along
        out -= plain
        out += delta
        out *= (params[0] * like(saved.inverse, delta)).astype(delta.dtype)
        return out

    def state_dict(self) -> dict[str, Any]:
        """Return the running statistics (a copy)."""
        return {"mean": self.mean.copy(), "variance": self.variance.copy(), "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over saved statistics."""
        self.mean[:], self.variance[:] = state["mean"], state["variance"]
        self.steps = int(state["steps"])


class VirtualBatchNorm(BatchNorm):
    """Normalise by the statistics of small virtual batches within a rank.

    No step communicates. A rank's batch is cut into virtual ones of nearly `batch` samples, each
    normalised by itself, which also keeps the noise of small batches where the global one is large
    (E. Hoffer, I. Hubara, D. Soudry, "Train longer, generalize better", NeurIPS 2017, algorithm 1).
    Each rank lets running statistics follow its own; at the end of an epoch all take their mean,
    weighted by samples.

    Parameters
    ----------
    channels, momentum, eps
        As in `BatchNorm`.
    batch : int
        Samples of a virtual batch; at least 2.
    """

    collective = False

    def __init__(
        self, channels: int, batch: int = 16, momentum: float = 0.1, eps: float = 1e-5
    ) -> None:
        super().__init__(channels, momentum, eps)
        if batch < 2:
            raise ConfigError(f"a virtual batch must have at least 2 samples, got {batch}")
        self.batch = batch
        self.seen = 0  # samples since the ranks have agreed

    def forward(self, params: Sequence[Array], x: Array, training: bool) -> tuple[Array, Any]:
        """Normalise every virtual batch by itself, in evaluation by the running statistics."""
        if not training or len(x) == 0:
            return super().forward(params, x, training=False)
        groups = max(1, len(x) // self.batch)
        parts = [
            self._normalised(part.reshape(-1, x.shape[-1]), len(part), _alone)
            for part in namespace(x).array_split(x, groups)
        ]
        self._observe(
            np.mean([mean for _, mean, _ in parts], axis=0),
            np.mean([variance for *_, variance in parts], axis=0),
        )
        self.seen += len(x)
        y = namespace(x).concatenate([self._scaled(params, saved.normal) for saved, *_ in parts])
        return y.reshape(x.shape), [saved for saved, *_ in parts]

    def backward(
        self,
        params: Sequence[Array],
        saved: Any,
        delta: Array,
        gradient: Sequence[Array],
        wanted: bool,
    ) -> Array:
        """Return the derivatives by `x`, through each virtual batch's statistics."""
        rows = delta.reshape(-1, delta.shape[-1])
        xp = namespace(delta)
        total = [xp.zeros_like(part) for part in gradient]
        first, out = 0, []
        for part in saved or ():
            own = rows[first : first + len(part.normal)]
            first += len(own)
            out.append(self._back(params, part, own, gradient, _alone))
            for sum_, one in zip(total, gradient, strict=True):
                sum_ += one
        for sum_, one in zip(total, gradient, strict=True):
            one[...] = sum_
        return xp.concatenate(out).reshape(delta.shape) if out else delta

    def end_epoch(self) -> None:
        """Let all ranks have the mean of their running statistics; collective."""
        sums = self.seen * np.concatenate([[1.0], self.mean, self.variance])
        self._reduce(sums)
        if sums[0] > 0:
            self.mean[:], self.variance[:] = np.split(sums[1:] / sums[0], 2)
            self.steps = max(1, self.steps)
        self.seen = 0

    def state_dict(self) -> dict[str, Any]:
        """Return the running statistics of this rank (a copy)."""
        return super().state_dict() | {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over saved statistics."""
        super().load_state_dict(state)
        self.seen = int(state["seen"])


def _alone(sums: _Vector) -> None:
    """Add up over one rank: nothing to do."""


def _mean(rows: Array, reduce: Reduce) -> _Vector:
    """Return the mean of all rows of all ranks."""
    sums = np.empty(1 + rows.shape[1])
    sums[0], sums[1:] = len(rows), to_host(sum_rows(rows, np.float64))
    reduce(sums)
    return np.asarray(sums[1:] / max(1.0, sums[0]))
