"""Which trials to end early, from the values that they report on their way."""

from collections import defaultdict
from typing import Protocol

from paropt_hpc.errors import ConfigError

__all__ = ["ASHA", "Pruner"]


class Pruner(Protocol):
    """Decides from intermediate values; on rank 0 only."""

    def stops(self, number: int, step: int, value: float) -> bool:
        """Take a value of a trial at a step, and say whether the trial should end."""
        ...


class ASHA:
    """Asynchronous successive halving: at each rung only the best share goes on.

    L. Li et al., "A system for massively parallel hyperparameter tuning", MLSys 2020, in its
    stopping form: a trial that comes to rung r, which is step ``first * factor**r``, goes on if its
    value is among the best 1/factor of those that have come there so far, itself included. Nobody
    waits.

    Parameters
    ----------
    first : int
        Step of the first rung.
    factor : int
        At least 2.
    """

    def __init__(self, first: int = 1, factor: int = 3) -> None:
        if first < 1 or factor < 2:
            raise ConfigError(
                f"first must be at least 1 and factor at least 2, got {first} and {factor}"
            )
        self.first, self.factor = first, factor
        self._rungs: dict[int, dict[int, float]] = defaultdict(dict)

    def stops(self, number: int, step: int, value: float) -> bool:
        """Say whether the trial should end at this step."""
        rung = self.first
        while rung < step:
            rung *= self.factor
        if rung != step:
            return False
        values = self._rungs[rung]
        values[number] = value
        kept = max(1, len(values) // self.factor)
        # NaN compares with nothing, so it never is among the best.
        return not sum(other < value for other in values.values()) < kept or value != value
