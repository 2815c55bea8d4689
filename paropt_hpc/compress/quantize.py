"""Quantisation of whole gradients with error feedback.

Every entry is sent, in 1 to 16 bits. What rounding loses stays in the residual and is added to the
next gradient.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.compress.compressor import Compressor
from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels import message, quantize

__all__ = ["Quantize"]


class Quantize(Compressor):
    r"""Send every entry in fewer bits.

    Parameters
    ----------
    values : {"float16", "bfloat16", "int8", "qsgd4", "sign"}
        What an entry is sent as: 16, 16, 8, 4 or 1 bit, and for the last three a scale of 32 bits
        per 256 entries; see `paropt_hpc.kernels.quantize.ValueType`.
    seed : int
        Of the random rounding of ``qsgd4``; to be another one on every rank, so that the errors of
        ranks are independent.

    Attributes
    ----------
    residual : ndarray, shape (n,), float32
        What error feedback has not sent yet; zero after `start`.
    nonfinite : int
        NaN and infinite entries of gradient + residual seen by the last `compress`.
    saturated : int
        Finite entries of them that were beyond the range of float16 or bfloat16; what was cut off
        stays in the residual.

    Notes
    -----
    Per step ``residual_after == (residual_before + gradient) - decoded`` holds in every entry, bit
    for bit in float32 arithmetic, with each operation rounded once. For ``float16`` and
    ``bfloat16`` the subtraction is exact unless an entry saturates, so that what is sent and what
    is kept add up to residual + gradient. The receiver sees entries that are not finite, or all 256
    that share their scale, as NaN or infinity; the residual keeps the finite ones and 0 for the
    others [1]_.

    References
    ----------
    .. [1] S. P. Karimireddy et al., "Error feedback fixes SignSGD and other gradient compression
       schemes", ICML 2019, algorithm 2.
    """

    def __init__(self, values: str, *, seed: int = 0) -> None:
        super().__init__(values, seed)
        if self._values.type is None:
            raise ConfigError("values must name a quantised type, got None; int8 is a start")
        self._type = self._values.type
        self.saturated = 0

    def start(self, n: int, dtype: np.dtype[Any], xp: Any = np) -> None:
        """Make the buffers for gradients of `n` entries of float32; forget the residual."""
        self._values.start(0, np.dtype(dtype), xp)
        self.residual = xp.zeros(n, dtype)
        self._encoded = xp.empty(message.max_bytes(n, n, self._type), np.uint8)

    def compress(self, gradient: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Add `gradient` to the residual, and encode the sum less what rounding loses.

        Parameters
        ----------
        gradient : ndarray, shape (n,), float32
            Read only.

        Returns
        -------
        ndarray, shape (bytes,), uint8
            The message: a view of a buffer that the next call overwrites.
        """
        return self._encode(gradient, self.residual)

    def encode(self, vector: NDArray[np.float32]) -> NDArray[np.uint8]:
        """Encode a vector as it is, apart from the residual.

        Returns
        -------
        ndarray, shape (bytes,), uint8
            The message: a view of a buffer that the next call overwrites.
        """
        return self._encode(vector, None)

    def _encode(
        self, vector: NDArray[np.float32], residual: NDArray[np.float32] | None
    ) -> NDArray[np.uint8]:
        # Codes go straight to their place in the message.
        out = self._encoded[message.HEADER_BYTES :]
        seed = self._values.step_seed()
        sent = quantize.encode(vector, self._type, residual, seed=seed, out=out)
        self.saturated, self.nonfinite = sent.saturated, sent.nonfinite
        return message.encode(None, sent, vector.size, out=self._encoded)
