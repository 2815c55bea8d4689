"""Learning-rate schedules: pure functions from the step, counted from 0, to the rate.

Each is a small frozen object, callable and printable. `LinearScaling` stands around any
other one.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from paropt_hpc.errors import ConfigError

__all__ = [
    "Cosine",
    "Exponential",
    "LinearScaling",
    "Polynomial",
    "StepDecay",
    "WarmRestarts",
]


@dataclass(frozen=True)
class StepDecay:
    """Multiply the rate by `factor` every `period` steps."""

    lr: float
    period: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        _check_positive("period", self.period)

    def __call__(self, step: int) -> float:
        """Return the rate of step `step`."""
        return self.lr * self.factor ** (step // self.period)


@dataclass(frozen=True)
class Exponential:
    """Multiply the rate by `factor` over every `period` steps, smoothly."""

    lr: float
    period: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        _check_positive("period", self.period)

    def __call__(self, step: int) -> float:
        """Return the rate of step `step`."""
        return float(self.lr * self.factor ** (step / self.period))


@dataclass(frozen=True)
class Polynomial:
    """Fall from `lr` to `end` in `steps` steps as a power of what remains."""

    lr: float
    steps: int
    power: float = 1.0
    end: float = 0.0

    def __post_init__(self) -> None:
        _check_positive("steps", self.steps)

    def __call__(self, step: int) -> float:
        """Return the rate of step `step`; `end` from the last one on."""
        left = max(0.0, 1 - step / self.steps)
        return float(self.end + (self.lr - self.end) * left**self.power)


@dataclass(frozen=True)
class Cosine:
    """Fall from `lr` to `end` in `steps` steps along half a cosine [1]_, equation 5.

    References
    ----------
    .. [1] I. Loshchilov, F. Hutter, "SGDR: stochastic gradient descent with warm restarts",
       ICLR 2017.
    """

    lr: float
    steps: int
    end: float = 0.0

    def __post_init__(self) -> None:
        _check_positive("steps", self.steps)

    def __call__(self, step: int) -> float:
        """Return the rate of step `step`; `end` from the last one on."""
        done = min(1.0, step / self.steps)
        return self.end + (self.lr - self.end) * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True)
class WarmRestarts:
    """Repeat `Cosine` from the top, every period `growth` times as long as the last [1]_.

    References
    ----------
    .. [1] I. Loshchilov, F. Hutter, "SGDR: stochastic gradient descent with warm restarts",
       ICLR 2017, section 3.
    """

    lr: float
    period: int
    growth: int = 2
    end: float = 0.0

    def __post_init__(self) -> None:
        _check_positive("period", self.period)
        _check_positive("growth", self.growth)

    def __call__(self, step: int) -> float:
        """Return the rate of step `step`."""
        period = self.period
        while step >= period:
            step -= period
            period *= self.growth
        return Cosine(self.lr, period, self.end)(step)


@dataclass(frozen=True)
class LinearScaling:
    """Scale a rate with the batch, and reach it by a linear warm-up.

    A batch ``factor`` times as large takes ``factor`` times the rate [1]_; the first
    ``warmup_steps`` steps rise linearly to it, because the scaled rate is too large
    for freshly drawn parameters.

    References
    ----------
    .. [1] P. Goyal et al., "Accurate, large minibatch SGD: training ImageNet in 1 hour",
       2017, sections 2.1 and 2.2.
    """

    lr: float | Callable[[int], float]  # rate or schedule for the base batch
    factor: float = 1.0  # global batch over base batch
    warmup_steps: int = 0  # steps until the scaled rate is reached

    def __post_init__(self) -> None:
        if self.warmup_steps < 0:
            raise ConfigError(f"warmup_steps must be at least 0, got {self.warmup_steps}")

    def __call__(self, step: int) -> float:
        """Return the rate of step `step`."""
        target = (self.lr(step) if callable(self.lr) else self.lr) * self.factor
        if step >= self.warmup_steps:
            return target
        return target * (step + 1) / self.warmup_steps


def _check_positive(name: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"{name} must be at least 1, got {value}")
