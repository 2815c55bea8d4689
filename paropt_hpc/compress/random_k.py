"""Random sparsification with error feedback, at positions that all ranks agree on."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.compress.compressor import Sparsifier, check_density
from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels import topk
from paropt_hpc.kernels.device import array_module
from paropt_hpc.kernels.topk import Selection

__all__ = ["RandomK"]


class RandomK(Sparsifier):
    """Send the share ``density`` of the entries, at random, the same ones on all ranks.

    As all ranks draw the same positions, these are not sent, and values can be summed on the way
    like a dense vector: `take` and `put` are for that. `compress` makes a message as others do.

    Parameters
    ----------
    density : float
        Share of the entries to send, in (0, 1]; at least one entry is sent.
    momentum : float
        Momentum correction and momentum factor masking; see `Sparsifier`.
    values : {"float16", "bfloat16", "int8", "qsgd4", "sign"}, optional
        Send messages with quantised values; see `Sparsifier`. Default: as they are, and summed
        on the way.
    seed : int
        Of the positions, the same on all ranks.
    rounding_seed : int
        Of the random rounding of ``qsgd4``; to be another one on every rank.

    Attributes
    ----------
    residual, saturated
        As of `TopK`.
    nonfinite : int
        NaN and infinite entries among those sent.

    Notes
    -----
    Sums hold as for `TopK`. An entry waits 1/density steps on average [1]_.

    References
    ----------
    .. [1] S. Stich, J.-B. Cordonnier, M. Jaggi, "Sparsified SGD with memory", NeurIPS 2018,
       section 2.
    """

    def __init__(
        self,
        density: float,
        *,
        momentum: float = 0.0,
        values: str | None = None,
        seed: int = 0,
        rounding_seed: int = 0,
    ) -> None:
        super().__init__(momentum, values, rounding_seed)
        self.density = check_density(density)
        self.seed = seed
        self._indices: NDArray[Any] = np.empty(0, np.uint32)

    @property
    def summable(self) -> bool:
        """Whether `take` and `put` serve: values are sent as they are."""
        return self._values.type is None

    def take(self, gradient: NDArray[Any]) -> NDArray[Any]:
        """Add `gradient` to the residual, and take out the values of this step.

        Returns
        -------
        ndarray, shape (k,)
            New; of the same positions on all ranks.
        """
        if not self.summable:
            raise ConfigError("take() is for plain values; use compress() for quantised ones")
        self._indices, values = self._take(gradient)
        return values

    def put(self, values: NDArray[Any], dense: NDArray[Any]) -> None:
        """Overwrite `dense` with the values at the positions of the last `take`, else zero."""
        dense[:] = 0
        dense[self._indices] = values

    def _pick(self, vector: NDArray[Any], residual: NDArray[Any] | None) -> Selection:
        count = math.ceil(self.density * vector.size)
        xp = array_module(vector)
        indices = xp.asarray(topk.random(vector.size, count, self.seed, self._steps))
        if residual is None:
            values = vector[indices]
        else:
            residual += vector
            values = residual[indices]
            residual[indices] = 0
        return Selection(indices, values, int(values.size - xp.isfinite(values).sum()))
