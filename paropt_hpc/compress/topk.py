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

from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels import index_codec, message, topk

__all__ = ["TopK"]


class TopK:
    """Send the share ``density`` of the entries, largest magnitudes first.

    Parameters
    ----------
    density : float
        Share of the entries to send, in (0, 1]; at least one entry is sent.

    Attributes
    ----------
    residual : ndarray, shape (n,)
        What error feedback has not sent yet; zero after `start`.
    nonfinite : int
        NaN and infinite entries seen by the last `compress`.

    Notes
    -----
    Per step ``residual_after + sent == gradient + residual_before`` holds exactly, in
    every entry [1]_, [2]_.

    References
    ----------
    .. [1] S. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with memory", NeurIPS 2018,
       algorithm 1.
    .. [2] S. P. Karimireddy et al., "Error feedback fixes SignSGD and other gradient
       compression schemes", ICML 2019, algorithm 2.
    """

    def __init__(self, density: float) -> None:
        if not 0.0 < density <= 1.0:
            raise ConfigError(
                f"density must be in (0, 1], got {density}; 0.01 sends one entry in a hundred"
            )
        self.density = density
        self.nonfinite = 0
        self.residual: NDArray[Any] = np.empty(0)

    def start(self, n: int, dtype: np.dtype[Any]) -> None:
        """Make the buffers for gradients of `n` entries of type `dtype`; forget the residual."""
        self._k = min(n, math.ceil(self.density * n))
        self.residual = np.zeros(n, dtype)
        self._selected = (np.empty(self._k, index_codec.index_dtype(n)), np.empty(self._k, dtype))
        self._encoded = np.empty(message.max_bytes(n, self._k, dtype), np.uint8)

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
        indices, values, self.nonfinite = topk.select(
            gradient, self._k, self.residual, out=self._selected
        )
        return message.encode(indices, values, gradient.size, out=self._encoded)

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
        return {"residual": self.residual.copy()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved residual; `start` must have been called for the same size."""
        self.residual[:] = state["residual"]
