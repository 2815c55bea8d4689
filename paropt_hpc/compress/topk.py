"""Top-k sparsification with error feedback.

Only the k largest magnitudes of a gradient buffer are sent. What was not sent
stays in the residual and is added to the next gradient, so that no part of a
gradient is ever lost, only late. This is what keeps the convergence of plain
SGD at densities of one percent and below.
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.compress.values import ValueEncoder
from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels import index_codec, message, reduce, topk

__all__ = ["TopK"]


class TopK:
    r"""Send the share ``density`` of the entries, largest magnitudes first.

    Parameters
    ----------
    density : float
        Share of the entries to send, in (0, 1]; at least one entry is sent.
    momentum : float
        Momentum correction [3]_, equation 4: each rank collects
        :math:`u \leftarrow \mu u + g` and its residual collects u, so that late entries
        arrive with the momentum they would have had; entries that are sent are cleared
        from u as well (momentum factor masking). The optimizer's own momentum must then
        be 0. With 0 the residual collects the plain gradient.
    clip_norm : float, optional
        Scale a gradient whose Euclidean norm is above this down to it, before anything
        else ([3]_ takes the threshold for the sum over P ranks times :math:`P^{-1/2}`).
    warmup_steps : int
        Steps in which the density falls from 1 to `density` along a geometric series, as
        early gradients change too fast for much of them to be late.
    values : {"float16", "bfloat16", "int8", "qsgd4", "sign"}, optional
        Send the chosen entries quantised, as `Quantize` does with all; what rounding loses stays
        in the residual too. Gradients must then be float32. Default: as they are.
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
        clip_norm: float | None = None,
        warmup_steps: int = 0,
        values: str | None = None,
        seed: int = 0,
    ) -> None:
        if not 0.0 < density <= 1.0:
            raise ConfigError(
                f"density must be in (0, 1], got {density}; 0.01 sends one entry in a hundred"
            )
        if not 0.0 <= momentum < 1.0:
            raise ConfigError(f"momentum must be in [0, 1), got {momentum}")
        if clip_norm is not None and not clip_norm > 0:
            raise ConfigError(f"clip_norm must be above 0, got {clip_norm}")
        if warmup_steps < 0:
            raise ConfigError(f"warmup_steps must be at least 0, got {warmup_steps}")
        self.density = density
        self.momentum = momentum
        self.clip_norm = clip_norm
        self.warmup_steps = warmup_steps
        self.nonfinite = 0
        self._values = ValueEncoder(values, seed)
        self.residual: NDArray[Any] = np.empty(0)
        self._velocity: NDArray[Any] | None = None
        self._steps = 0

    def density_at(self, step: int) -> float:
        """Return the density of step `step`, counted from 0."""
        if step >= self.warmup_steps:
            return self.density
        return float(self.density ** ((step + 1) / (self.warmup_steps + 1)))

    def start(self, n: int, dtype: np.dtype[Any]) -> None:
        """Make the buffers for gradients of `n` entries of type `dtype`; forget the residual."""
        self._steps = 0
        self.residual = np.zeros(n, dtype)
        self._velocity = np.zeros(n, dtype) if self.momentum else None
        self._scratch = np.empty(n, dtype) if self.clip_norm is not None else None
        most = self._count(n)
        self._values.start(most, np.dtype(dtype))
        self._selected = (np.empty(most, index_codec.index_dtype(n)), np.empty(most, dtype))
        size = message.max_bytes_up_to(n, most, self._values.message_type(dtype))
        self._encoded = np.empty(size, np.uint8)

    def compress(self, gradient: NDArray[Any]) -> NDArray[np.uint8]:
        """Add `gradient` to the residual, take out the k largest, and encode them.

        Parameters
        ----------
        gradient : ndarray, shape (n,), float32 or float64
            Read only.

        Returns
        -------
        ndarray, shape (bytes,), uint8
            The message: a view of a buffer that the next call overwrites.
        """
        collected = self._collect(gradient)
        indices, values, self.nonfinite = topk.select(
            collected, self._count(gradient.size), self.residual, out=self._selected
        )
        if self._velocity is not None:
            self._velocity[indices] = 0
        self._steps += 1
        sent, lost = self._values.encode(values)
        if lost is not None:
            reduce.scatter_add(self.residual, indices, lost)  # to zeros
        return message.encode(indices, sent, gradient.size, out=self._encoded)

    def encode(self, vector: NDArray[Any]) -> NDArray[np.uint8]:
        """Encode the k largest of a vector as they are, apart from residual and momentum.

        Returns
        -------
        ndarray, shape (bytes,), uint8
            The message: a view of a buffer that the next call overwrites.
        """
        indices, values, self.nonfinite = topk.select(
            vector, self._count(vector.size), out=self._selected
        )
        sent, _ = self._values.encode(values)
        return message.encode(indices, sent, vector.size, out=self._encoded)

    @property
    def saturated(self) -> int:
        """Finite values of the last message beyond the range of a 16-bit type."""
        return self._values.saturated

    def _count(self, n: int) -> int:
        return min(n, math.ceil(self.density_at(self._steps) * n))

    def _collect(self, gradient: NDArray[Any]) -> NDArray[Any]:
        """Return what the residual is to collect: the gradient, clipped, with momentum."""
        if self._scratch is not None and self.clip_norm is not None:
            length = float(np.linalg.norm(gradient))
            if length > self.clip_norm:
                gradient = np.multiply(gradient, self.clip_norm / length, out=self._scratch)
        if self._velocity is None:
            return gradient
        self._velocity *= self.momentum
        self._velocity += gradient
        return self._velocity

    def keep_back(self, indices: NDArray[Any], values: NDArray[Any]) -> None:
        """Add entries that were sent but not used to the residual, in place."""
        reduce.scatter_add(self.residual, indices, values)

    def decompress_add(
        self, data: NDArray[np.uint8], dense: NDArray[Any], scale: float = 1.0
    ) -> None:
        """Add ``scale`` times the values of a message into `dense`, in place.

        Raises
        ------
        MessageError
            When the bytes are not a valid message for `dense`, which is then unchanged.
        """
        message.decode_add(data, dense, scale)

    def state_dict(self) -> dict[str, Any]:
        """Return what a later `load_state_dict` needs to go on exactly (a copy)."""
        state = {
            "steps": self._steps,
            "draws": self._values.draws,
            "residual": self.residual.copy(),
        }
        if self._velocity is not None:
            state["velocity"] = self._velocity.copy()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state; `start` must have been called for the same size."""
        self._steps, self._values.draws = int(state["steps"]), int(state["draws"])
        self.residual[:] = state["residual"]
        if self._velocity is not None:
            self._velocity[:] = state["velocity"]
