"""How compressors send values: as they are, or quantised with the rounding error at hand."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels import quantize
from paropt_hpc.kernels.device import array_module
from paropt_hpc.kernels.quantize import Quantized, ValueType
from paropt_hpc.kernels.rng import philox

__all__ = ["QUANTISED", "ValueEncoder"]

QUANTISED = tuple(kind.name.lower() for kind in ValueType if kind > ValueType.FLOAT64)


class ValueEncoder:
    """Encode values for a message, and keep what rounding loses.

    Parameters
    ----------
    kind : str, optional
        One of `QUANTISED`; None leaves values as they are.
    seed : int
        Of the random rounding of ``qsgd4``; to be another one on every rank.

    Attributes
    ----------
    saturated : int
        Finite values of the last call that were beyond the range of a 16-bit type.
    draws : int
        Calls so far: each rounds at random anew.
    """

    def __init__(self, kind: str | None, seed: int = 0) -> None:
        if kind is not None and kind not in QUANTISED:
            names = ", ".join(QUANTISED)
            raise ConfigError(f"values must be one of {names}, or None for plain, got {kind!r}")
        self.type = None if kind is None else quantize.resolve(kind)
        self.seed = seed
        self.saturated = 0
        self.draws = 0

    def start(self, most: int, dtype: np.dtype[Any], xp: Any = np) -> None:
        """Make buffers for `most` values, or more later, of gradients of type `dtype` and `xp`."""
        self.draws = 0
        self._lost = xp.empty(0, np.float32)
        if self.type is None:
            return
        if dtype != np.float32:
            raise ConfigError(
                f"values = {self.type.name.lower()} needs float32 gradients, got {dtype}; send "
                "plain values, or train in float32"
            )
        self._grow(most)

    def _grow(self, most: int) -> None:
        assert self.type is not None
        xp = array_module(self._lost)
        self._codes = xp.empty(quantize.encoded_bytes(self.type, most), np.uint8)
        self._lost = xp.empty(most, np.float32)

    def message_type(self, dtype: np.dtype[Any]) -> ValueType | np.dtype[Any]:
        """Return what `kernels.message.max_bytes` is to be asked about."""
        return dtype if self.type is None else self.type

    def step_seed(self) -> int:
        """Return the seed of the next draw and count it."""
        self.draws += 1
        if self.type is not ValueType.QSGD4:
            return 0
        return int(philox(self.seed, "quantize", self.draws).bit_generator.random_raw())

    def encode(
        self, values: NDArray[Any]
    ) -> tuple[NDArray[Any] | Quantized, NDArray[np.float32] | None]:
        """Return what goes into a message, and ``values - decoded``, None where that is zero.

        Both are views of buffers that the next call overwrites, or `values` itself.
        """
        if self.type is None:
            return values, None
        if self._lost.size < values.size:
            self._grow(values.size)
        lost = self._lost[: values.size]
        lost[:] = 0
        sent = quantize.encode(values, self.type, lost, seed=self.step_seed(), out=self._codes)
        self.saturated = sent.saturated
        return sent, lost
