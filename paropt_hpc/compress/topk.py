"""Top-k sparsification with error feedback: only the k largest magnitudes are sent."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.compress.compressor import Sparsifier, check_density
from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels import index_codec, reduce, topk
from paropt_hpc.kernels.topk import Selection

__all__ = ["TopK"]


class TopK(Sparsifier):
    r"""Send the share ``density`` of the entries, largest magnitudes first.

    Parameters
    ----------
    density : float
        Share of the entries to send, in (0, 1]; at least one entry is sent.
    momentum : float
        Momentum correction and momentum factor masking [3]_; see `Sparsifier`.
    warmup_steps : int
        Steps in which the density falls from 1 to `density` along a geometric series, as
        early gradients change too fast for much of them to be late [3]_.
    values : {"float16", "bfloat16", "int8", "qsgd4", "sign"}, optional
        Send the chosen entries quantised; see `Sparsifier`. Default: as they are.
    overshoot : float
        Send so many times what was picked, in [1, 2), and leave the rest, of the other sign, in
        the residual: an entry that is sent every T steps is T / 2 steps late on average, and
        with 1.5 about half of that.
    seed : int
        Of the random rounding of ``qsgd4``; to be another one on every rank.

    Attributes
    ----------
    residual : ndarray, shape (n,)
        What error feedback has not sent yet; zero after `start`.
    nonfinite : int
        NaN and infinite entries seen by the last `compress`.
    saturated : int
        Finite values of the last message that were beyond the range of float16 or bfloat16.

    Notes
    -----
    Per step ``residual_after + sent == u + residual_before`` holds exactly, in every entry,
    where u is the gradient without momentum correction [1]_, [2]_. With quantised values,
    ``residual_after == (u + residual_before) - sent`` in float32 arithmetic; the subtraction is
    exact for ``float16`` and ``bfloat16`` unless a value saturates, else rounded once.

    With overshoot :math:`\beta` a vector x loses :math:`\beta (2 - \beta) \lVert s \rVert^2` of
    its squared length, where s are the entries picked of it: a contraction, which is all that the
    convergence of error feedback asks for [2]_. What is sent and what is left still add up exactly.

    References
    ----------
    .. [1] S. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with memory", NeurIPS 2018,
       algorithm 1.
    .. [2] S. P. Karimireddy et al., "Error feedback fixes SignSGD and other gradient
       compression schemes", ICML 2019, algorithm 2.
    .. [3] Y. Lin et al., "Deep gradient compression", ICLR 2018, sections 3.1 to 3.3.
    """

    def __init__(
        self,
        density: float,
        *,
        momentum: float = 0.0,
        warmup_steps: int = 0,
        overshoot: float = 1.0,
        values: str | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__(momentum, values, seed)
        if warmup_steps < 0:
            raise ConfigError(f"warmup_steps must be at least 0, got {warmup_steps}")
        if not 1.0 <= overshoot < 2.0:
            raise ConfigError(f"overshoot must be in [1, 2), got {overshoot}")
        self.overshoot = overshoot
        self.density = check_density(density)
        self.warmup_steps = warmup_steps

    def density_at(self, step: int) -> float:
        """Return the density of step `step`, counted from 0."""
        if step >= self.warmup_steps:
            return self.density
        return float(self.density ** ((step + 1) / (self.warmup_steps + 1)))

    def start(self, n: int, dtype: np.dtype[Any], xp: Any = np) -> None:
        """Make the buffers for gradients of `n` entries of type `dtype`; forget the residual."""
        super().start(n, dtype, xp)
        most = self._count(n)
        self._selected = (xp.empty(most, index_codec.index_dtype(n)), xp.empty(most, dtype))
        # Saves time, never changes a result: no part of the state that is saved.
        self._hint = topk.Hint()

    def _take(self, gradient: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Add `gradient` to the residual, and take out what is sent."""
        indices, values = super()._take(gradient)
        if self.overshoot == 1.0:
            return indices, values
        sent = values * values.dtype.type(self.overshoot)
        values -= sent  # exact, since the one is between one and two times the other (Sterbenz)
        reduce.scatter_add(self.residual, indices, values)  # to zeros
        return indices, sent

    def _pick(self, vector: NDArray[Any], residual: NDArray[Any] | None) -> Selection:
        hint = None if residual is None else self._hint  # other vectors have other thresholds
        return topk.select(
            vector, self._count(vector.size), residual, out=self._selected, hint=hint
        )

    def _count(self, n: int) -> int:
        return min(n, math.ceil(self.density_at(self._steps) * n))
