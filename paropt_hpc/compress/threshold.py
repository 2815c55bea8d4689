"""Sparsification by a fixed bound, with error feedback: all that reaches it is sent."""

from typing import Any

from numpy.typing import NDArray

from paropt_hpc.compress.compressor import Sparsifier
from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels import topk
from paropt_hpc.kernels.topk import Selection

__all__ = ["Threshold"]


class Threshold(Sparsifier):
    """Send all entries whose magnitude, with what is left of earlier ones, reaches a bound.

    How many that are follows the gradients, from none to all: much is sent where much happens.
    Of all sparsifiers that send as much over a whole run it leaves the smallest sum of residuals
    [1]_. The bound has the scale of the gradients of the model at hand, so that there is no
    default.

    Parameters
    ----------
    threshold : float
        The bound, at least 0; 0 sends everything.
    momentum : float
        Momentum correction and momentum factor masking; see `Sparsifier`.
    values : {"float16", "bfloat16", "int8", "qsgd4", "sign"}, optional
        Send the chosen entries quantised; see `Sparsifier`. Default: as they are.
    seed : int
        Of the random rounding of ``qsgd4``; to be another one on every rank.

    Attributes
    ----------
    residual, nonfinite, saturated
        As of `TopK`.

    Notes
    -----
    Sums hold as for `TopK`. With plain values no entry of the residual ever reaches the threshold.

    References
    ----------
    .. [1] A. Sahu et al., "Rethinking gradient sparsification as total error minimization",
       NeurIPS 2021, section 4.
    """

    def __init__(
        self,
        threshold: float,
        *,
        momentum: float = 0.0,
        values: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(momentum, values, seed)
        if not 0.0 <= threshold < float("inf"):
            raise ConfigError(f"threshold must be at least 0 and finite, got {threshold}")
        self.threshold = threshold

    def _pick(self, vector: NDArray[Any], residual: NDArray[Any] | None) -> Selection:
        return topk.threshold(vector, self.threshold, residual)
