"""Early stopping: end a run when a metric has not improved for a while."""

import math
from typing import Any

from paropt_hpc.errors import ConfigError

__all__ = ["EarlyStopping"]


class EarlyStopping:
    """Watch a metric from epoch to epoch.

    Parameters
    ----------
    patience : int
        Epochs without improvement after which to stop, at least 1.
    min_delta : float
        By how much a value must be better than the best one so far, at least 0.
    mode : {"min", "max"}
        Whether smaller or larger is better.

    Attributes
    ----------
    best : float
        The best value so far.
    waited : int
        Epochs since then.
    """

    def __init__(self, patience: int, min_delta: float = 0.0, mode: str = "min") -> None:
        if patience < 1 or not min_delta >= 0:
            raise ConfigError(
                f"patience must be at least 1 and min_delta at least 0, got {patience} and "
                f"{min_delta}"
            )
        if mode not in ("min", "max"):
            raise ConfigError(f"mode must be 'min' or 'max', got {mode!r}")
        self.patience = patience
        self.min_delta = min_delta
        self._sign = 1.0 if mode == "min" else -1.0
        self.best = self._sign * math.inf
        self.waited = 0

    def update(self, value: float) -> None:
        """Take note of an epoch's value; one that is not a number is no improvement."""
        if self._sign * value < self._sign * self.best - self.min_delta:
            self.best, self.waited = value, 0
        else:
            self.waited += 1

    @property
    def stopped(self) -> bool:
        """Whether the patience is at its end."""
        return self.waited >= self.patience

    def state_dict(self) -> dict[str, Any]:
        """Return what a later `load_state_dict` needs to go on."""
        return {"best": self.best, "waited": self.waited}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state."""
        self.best, self.waited = float(state["best"]), int(state["waited"])
