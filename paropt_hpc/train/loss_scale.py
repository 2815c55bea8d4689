"""The factor that keeps small gradients alive in float16."""

import math
from typing import Any

from paropt_hpc.errors import ConfigError

__all__ = ["LossScale"]


class LossScale:
    """A factor for gradients in float16: halved on overflow, doubled after a while without.

    Gradients below 6e-8 vanish in float16, those above 65504 overflow; a factor moves them
    into that range, and is divided out again afterwards [1]_, section 3.2. Powers of two keep
    every bit.

    Parameters
    ----------
    scale : float
        The first factor, above 0.
    period : int
        Steps without overflow after which the factor doubles; 0 never changes it.

    References
    ----------
    .. [1] P. Micikevicius et al., "Mixed precision training", ICLR 2018.
    """

    def __init__(self, scale: float = 1024.0, period: int = 2000) -> None:
        if not (scale > 0 and math.isfinite(scale)):
            raise ConfigError(f"the loss scale must be above 0, got {scale}; 1024 is a good start")
        if period < 0:
            raise ConfigError(f"the period of the loss scale must be at least 0, got {period}")
        self.scale = scale
        self.period = period
        self._steps = 0  # without overflow since the last change

    def update(self, finite: bool) -> None:
        """Tell whether the gradient of a step was finite."""
        if self.period == 0:
            return
        self._steps = self._steps + 1 if finite else 0
        if not finite:
            self.scale /= 2
        elif self._steps == self.period:
            self.scale *= 2
            self._steps = 0

    def state_dict(self) -> dict[str, Any]:
        """Return what a later `load_state_dict` needs to go on exactly."""
        return {"scale": self.scale, "steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state."""
        self.scale, self._steps = float(state["scale"]), int(state["steps"])
