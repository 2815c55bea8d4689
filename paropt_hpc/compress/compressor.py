"""What all compressors have in common: a message out of a gradient, and what it leaves behind.

What is not sent stays in the residual and is added to the next gradient, so that no part of a
gradient is ever lost, only late: error feedback. This is what keeps the convergence of plain SGD at
densities of one percent and below.
"""

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.compress.values import ValueEncoder
from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels import message, reduce
from paropt_hpc.kernels.device import array_module
from paropt_hpc.kernels.topk import Selection

__all__ = ["Compressor", "Sparsifier", "check_density"]


class Compressor(ABC):
    """What strategies ask of a compressor.

    Attributes
    ----------
    residual : ndarray, shape (n,)
        What error feedback has not sent yet; zero after `start`.
    nonfinite : int
        NaN and infinite entries seen by the last `compress`.
    """

    def __init__(self, values: str | None, seed: int) -> None:
        self.residual: NDArray[Any] = np.empty(0, np.float32)
        self.nonfinite = 0
        self._values = ValueEncoder(values, seed)

    @abstractmethod
    def start(self, n: int, dtype: np.dtype[Any], xp: Any = np) -> None:
        """Make the buffers for gradients of `n` entries of type `dtype`; forget the residual.

        `xp` is the module that gradients are arrays of: NumPy, or CuPy for those on a GPU.
        """

    @abstractmethod
    def compress(self, gradient: NDArray[Any]) -> NDArray[np.uint8]:
        """Add `gradient` to the residual, and encode what is sent of the sum.

        Parameters
        ----------
        gradient : ndarray, shape (n,), float32 or float64
            Read only.

        Returns
        -------
        ndarray, shape (bytes,), uint8
            The message: a view of a buffer that the next call overwrites.
        """

    @abstractmethod
    def encode(self, vector: NDArray[Any]) -> NDArray[np.uint8]:
        """Encode a vector as it is, apart from residual and momentum.

        Returns
        -------
        ndarray, shape (bytes,), uint8
            The message: a view of a buffer that the next call overwrites.
        """

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

    def counters(self) -> dict[str, int]:
        """Return the numbers on which the next message depends: all the state of `encode`."""
        return {"draws": self._values.draws}

    def load_counters(self, state: dict[str, Any]) -> None:
        """Take over what `counters` or `state_dict` has returned."""
        self._values.draws = int(state["draws"])

    def state_dict(self) -> dict[str, Any]:
        """Return what a later `load_state_dict` needs to go on exactly.

        The vectors are no copies: the next gradient changes them.
        """
        return self.counters() | {"residual": self.residual}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state; `start` must have been called for the same size."""
        self.load_counters(state)
        self.residual[:] = state["residual"]


class Sparsifier(Compressor):
    r"""A compressor that picks some entries.

    Parameters
    ----------
    momentum : float
        Momentum correction [1]_, equation 4: each rank collects
        :math:`u \leftarrow \mu u + g` and its residual collects u, so that late entries
        arrive with the momentum they would have had; entries that are sent are cleared
        from u as well (momentum factor masking). The optimizer's own momentum must then
        be 0. With 0 the residual collects the plain gradient.
    values : {"float16", "bfloat16", "int8", "qsgd4", "sign"}, optional
        Send the chosen entries quantised, as `Quantize` does with all; what rounding loses stays
        in the residual too. Gradients must then be float32. Default: as they are.
    seed : int
        Of everything random.

    References
    ----------
    .. [1] Y. Lin et al., "Deep gradient compression", ICLR 2018, sections 3.1 to 3.3.
    """

    def __init__(self, momentum: float, values: str | None, seed: int) -> None:
        super().__init__(values, seed)
        if not 0.0 <= momentum < 1.0:
            raise ConfigError(f"momentum must be in [0, 1), got {momentum}")
        self.momentum = momentum
        self._velocity: NDArray[Any] | None = None
        self._steps = 0
        self._encoded = np.empty(0, np.uint8)

    def start(self, n: int, dtype: np.dtype[Any], xp: Any = np) -> None:
        """Make the buffers for gradients of `n` entries of type `dtype`; forget the residual."""
        self._steps = 0
        self.residual = xp.zeros(n, dtype)
        self._velocity = xp.zeros(n, dtype) if self.momentum else None
        self._encoded = xp.empty(0, np.uint8)
        self._values.start(0, np.dtype(dtype), xp)

    @abstractmethod
    def _pick(self, vector: NDArray[Any], residual: NDArray[Any] | None) -> Selection:
        """Pick entries of `vector`, or of the sum with `residual`, which keeps the others."""

    def compress(self, gradient: NDArray[Any]) -> NDArray[np.uint8]:
        """Add `gradient` to the residual, and take out and encode what is sent."""
        indices, values = self._take(gradient)
        sent, lost = self._values.encode(values)
        if lost is not None:
            reduce.scatter_add(self.residual, indices, lost)  # to zeros
        return self._message(indices, sent, gradient.size)

    def _take(self, gradient: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """Add `gradient` to the residual, and take out what is sent."""
        collected = gradient
        if self._velocity is not None:
            self._velocity *= self.momentum
            self._velocity += gradient
            collected = self._velocity
        indices, values, self.nonfinite = self._pick(collected, self.residual)
        if self._velocity is not None:
            self._velocity[indices] = 0
        self._steps += 1
        return indices, values

    def encode(self, vector: NDArray[Any]) -> NDArray[np.uint8]:
        """Encode what would be picked of a vector, apart from residual and momentum."""
        indices, values, self.nonfinite = self._pick(vector, None)
        self._steps += 1
        sent, _ = self._values.encode(values)
        return self._message(indices, sent, vector.size)

    def _message(self, indices: NDArray[Any], sent: Any, n: int) -> NDArray[np.uint8]:
        kind = self._values.message_type(self.residual.dtype)
        size = message.max_bytes_up_to(n, indices.size, kind)
        if self._encoded.size < size:
            self._encoded = array_module(self.residual).empty(size, np.uint8)
        return message.encode(indices, sent, n, out=self._encoded)

    @property
    def saturated(self) -> int:
        """Finite values of the last message beyond the range of a 16-bit type."""
        return self._values.saturated

    def counters(self) -> dict[str, int]:
        """Return the numbers on which the next message depends: all the state of `encode`."""
        return super().counters() | {"steps": self._steps}

    def load_counters(self, state: dict[str, Any]) -> None:
        """Take over what `counters` or `state_dict` has returned."""
        super().load_counters(state)
        self._steps = int(state["steps"])

    def state_dict(self) -> dict[str, Any]:
        """Return what a later `load_state_dict` needs to go on exactly, no copy."""
        state = super().state_dict()
        if self._velocity is not None:
            state["velocity"] = self._velocity
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state; `start` must have been called for the same size."""
        super().load_state_dict(state)
        if self._velocity is not None:
            self._velocity[:] = state["velocity"]


def check_density(density: float) -> float:
    """Return a density, or say what it must be."""
    if not 0.0 < density <= 1.0:
        raise ConfigError(
            f"density must be in (0, 1], got {density}; 0.01 sends one entry in a hundred"
        )
    return density
