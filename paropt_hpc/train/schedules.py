"""Learning-rate schedules: pure functions from the step to the rate."""

from dataclasses import dataclass

from paropt_hpc.errors import ConfigError

__all__ = ["LinearScaling"]


@dataclass(frozen=True)
class LinearScaling:
    """Scale the rate with the batch, and reach it by a linear warm-up.

    A batch ``factor`` times as large takes ``factor`` times the rate [1]_; the first
    ``warmup_steps`` steps rise linearly to it, because the scaled rate is too large
    for freshly drawn parameters.

    References
    ----------
    .. [1] P. Goyal et al., "Accurate, large minibatch SGD: training ImageNet in 1 hour",
       2017, sections 2.1 and 2.2.
    """

    lr: float  # rate for the base batch
    factor: float = 1.0  # global batch over base batch
    warmup_steps: int = 0  # steps until the scaled rate is reached

    def __post_init__(self) -> None:
        if self.warmup_steps < 0:
            raise ConfigError(f"warmup_steps must be at least 0, got {self.warmup_steps}")

    def __call__(self, step: int) -> float:
        """Return the rate of step `step`, counted from 0."""
        target = self.lr * self.factor
        if step >= self.warmup_steps:
            return target
        return target * (step + 1) / self.warmup_steps
