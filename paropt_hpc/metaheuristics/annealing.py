"""Simulated annealing: chains that accept a worse point now and then, less and less often.

S. Kirkpatrick, C. D. Gelatt and M. P. Vecchi, "Optimization by simulated annealing", Science 220,
1983. The chains of a population are independent (multi-start), or hold different temperatures and
exchange their points (parallel tempering). A move changes one variable of a chain: a number by a
Cauchy step (H. Szu and R. Hartley, "Fast simulated annealing", Physics Letters A 122, 1987) whose
size follows the chain's success, a permutation by an inversion, swap or insertion.
"""

import math
from typing import ClassVar

import numpy as np

from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels.rng import philox
from paropt_hpc.metaheuristics.algorithm import Array, PopulationAlgorithm, Rows, register
from paropt_hpc.metaheuristics.constraints import Constraints
from paropt_hpc.metaheuristics.permutations import ORDER_MUTATIONS
from paropt_hpc.metaheuristics.space import Permutation, Space

__all__ = ["COOLINGS", "ParallelTempering", "SimulatedAnnealing", "exchange"]

COOLINGS = ("geometric", "lundy-mees", "adaptive")
_ACCEPTED = 0.44  # of the moves; the best share in one dimension (G. O. Roberts et al. 1997)


class _Chains(PopulationAlgorithm):
    """Chains that propose and accept; subclasses say at what temperature."""

    _state: ClassVar[tuple[str, ...]] = (*PopulationAlgorithm._state, "_step", "_temperature")
    _least_population = 1

    def __init__(
        self, space: Space, *, seed: int, population: int, constraints: Constraints | None
    ) -> None:
        super().__init__(space, seed=seed, population=population, constraints=constraints)
        self._step = np.full(self._size, 0.1)  # as a share of the range
        self._temperature = np.zeros(self._size)  # zero: not known yet
        self._numbers = np.flatnonzero(np.array(space.kinds) != "permutation")
        self._orders = [
            (variable, space.columns[name])
            for name, variable in space.variables.items()
            if isinstance(variable, Permutation)
        ]

    def _ask(self) -> Rows:
        if self.generation == 0:
            return self._x
        rng = self._rng("move")
        trial = self._x.copy()
        # A permutation counts as many variables as it has places.
        share = self._numbers.size / self.space.dimension
        numeric = rng.random(self._size) < share
        self._move_numbers(trial, np.flatnonzero(numeric), rng)
        moves = tuple(ORDER_MUTATIONS.values())
        for i in np.flatnonzero(~numeric):
            variable, columns = self._orders[int(rng.integers(len(self._orders)))]
            order = variable.decode(trial[i : i + 1, columns])[0]
            trial[i, columns] = moves[int(rng.integers(len(moves)))](order, rng)
        return trial

    def _move_numbers(self, trial: Rows, chains: Array, rng: np.random.Generator) -> None:
        if not chains.size:
            return
        column = self._numbers[rng.integers(self._numbers.size, size=chains.size)]
        low, high = self.space.lower[column], self.space.upper[column]
        kinds = np.array(self.space.kinds)[column]
        step = self._step[chains] * (high - low) * rng.standard_cauchy(chains.size)
        # At least one value away where values are whole.
        step = np.where(kinds == "integer", np.sign(step) * np.maximum(np.abs(step), 0.5), step)
        value = trial[chains, column] + step
        span = high - low
        value = low + np.abs((value - low + span) % (2 * span) - span)  # mirrored at the walls
        drawn = low + rng.random(chains.size) * span
        value = np.where(kinds == "categorical", drawn, value)
        value = np.where(kinds == "binary", 1 - np.rint(trial[chains, column]), value)
        trial[chains, column] = np.clip(value, low, high)

    def _tell(self, x: Rows, f: Rows, violation: Rows | None) -> None:
        if self.generation == 0:
            self._select(x, f, violation)
            return
        self.constraints.adapt(f, violation)
        if violation is not None and self._violation is None:
            self._violation = np.zeros(self._size)
        mine, theirs = self._keys(), self.constraints.key(f, violation)
        rise = np.where(np.isfinite(mine), theirs - np.where(np.isfinite(mine), mine, 0), -math.inf)
        rise = np.where(np.isfinite(theirs), rise, math.inf)
        self._set_temperature(rise)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            chance = np.exp(-np.maximum(rise, 0) / self._temperature)
        accepted = (rise <= 0) | (self._rng("accept").random(self._size) < np.nan_to_num(chance))
        np.copyto(self._x, x, where=accepted[:, None])
        np.copyto(self._f, f, where=accepted)
        if self._violation is not None:
            told = np.zeros(self._size) if violation is None else violation
            np.copyto(self._violation, told, where=accepted)
        self._step = np.clip(self._step * np.exp(0.1 * (accepted - _ACCEPTED)), 1e-12, 1.0)
        self._after(accepted)

    def _set_temperature(self, rise: Rows) -> None:
        raise NotImplementedError

    def _after(self, accepted: Array) -> None:
        raise NotImplementedError

    def _start_temperature(self, rise: Rows, accepted: float) -> float:
        """Return the temperature at which so large a share of the rises is accepted.

        D. S. Johnson et al., "Optimization by simulated annealing: an experimental evaluation",
        Operations Research 37, 1989: from the mean rise of moves that were tried.
        """
        rises = rise[np.isfinite(rise) & (rise > 0) & (rise < 1e290)]
        if not rises.size:
            finite = self._f[np.isfinite(self._f)]
            rises = np.array([np.ptp(finite) / 10 if finite.size > 1 else 1.0])
        return float(max(rises.mean(), 1e-300) / -math.log(accepted))


@register("sa")
class SimulatedAnnealing(_Chains):
    """Independent chains that cool down together.

    Parameters
    ----------
    space, seed, population, constraints
        See `PopulationAlgorithm`; any number of chains.
    cooling : str
        ``geometric``; ``lundy-mees`` (M. Lundy and A. Mees, "Convergence of an annealing
        algorithm", Mathematical Programming 34, 1986), which stays longer at low
        temperatures; or ``adaptive`` (M. D. Huang, F. Romeo and A. Sangiovanni-Vincentelli, ICCAD
        1986), slower where the values of the chains differ less than the temperature.
    steps : int
        Generations until the end temperature; later ones stay there.
    start_temperature : float, optional
        By default, 80 % of the first moves that make worse are accepted.
    end_temperature : float, optional
        By default 1e-6 of the start.
    """

    def __init__(
        self,
        space: Space,
        *,
        seed: int = 0,
        population: int = 20,
        cooling: str = "geometric",
        steps: int = 2000,
        start_temperature: float | None = None,
        end_temperature: float | None = None,
        constraints: Constraints | None = None,
    ) -> None:
        super().__init__(space, seed=seed, population=population, constraints=constraints)
        if cooling not in COOLINGS:
            raise ConfigError(f"cooling must be one of {', '.join(COOLINGS)}, got {cooling!r}")
        if steps < 1:
            raise ConfigError(f"steps must be at least 1, got {steps}")
        for name, value in (("start", start_temperature), ("end", end_temperature)):
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name}_temperature must be above 0 and finite, got {value}")
        if end_temperature is not None and end_temperature > (start_temperature or math.inf):
            raise ConfigError(
                f"end_temperature must be at most the start's, {start_temperature}, "
                f"got {end_temperature}"
            )
        self._cooling, self._steps = cooling, steps
        self._start, self._end = start_temperature, end_temperature
        self._first = 0.0

    _state: ClassVar[tuple[str, ...]] = (*_Chains._state, "_first")

    def _set_temperature(self, rise: Rows) -> None:
        if self._first == 0:
            known = self._start is not None
            self._first = float(self._start) if known else self._start_temperature(rise, 0.8)  # type: ignore[arg-type]
            self._temperature = np.full(self._size, self._first)

    def _after(self, accepted: Array) -> None:
        last = self._end if self._end is not None else 1e-6 * self._first
        now = float(self._temperature[0])
        if self._cooling == "geometric":
            now *= (last / self._first) ** (1 / self._steps)
        elif self._cooling == "lundy-mees":
            now /= 1 + now * (1 / last - 1 / self._first) / self._steps
        else:
            finite = self._f[np.isfinite(self._f)]
            spread = float(finite.std()) if finite.size > 1 else now
            slowest = (last / self._first) ** (1 / self._steps)
            now *= min(slowest, max(0.5, math.exp(-0.7 * now / spread))) if spread else slowest
        self._temperature = np.full(self._size, max(now, last))


def exchange(f: Rows, temperature: Rows, odd: bool, rng: np.random.Generator) -> Array:
    """Decide which replicas exchange their points.

    C. J. Geyer 1991; K. Hukushima and K. Nemoto, "Exchange Monte Carlo method", Journal of the
    Physical Society of Japan 65, 1996. A pure function of all values, so that it has
    the same result wherever the replicas live.

    Parameters
    ----------
    f : ndarray, shape (n,)
        Values of the replicas, infinite where failed.
    temperature : ndarray, shape (n,)
        Rising.
    odd : bool
        Whether pairs start at the second replica.
    rng : numpy.random.Generator

    Returns
    -------
    ndarray, shape (n,), int
        Whose point each replica has afterwards.
    """
    source = np.arange(len(f))
    chance = rng.random(len(f))
    for i in range(int(odd), len(f) - 1, 2):
        colder, warmer = f[i], f[i + 1]
        if not np.isfinite(warmer):
            continue
        with np.errstate(over="ignore"):
            gain = (colder - warmer) * (1 / temperature[i] - 1 / temperature[i + 1])
        if gain >= 0 or chance[i] < math.exp(max(gain, -745.0)):
            source[i], source[i + 1] = i + 1, i
    return source


@register("tempering")
class ParallelTempering(_Chains):
    """Replicas at different temperatures that exchange their points.

    Parameters
    ----------
    space, seed, population, constraints
        See `PopulationAlgorithm`; at least 2 replicas.
    coldest, hottest : float, optional
        Ends of the geometric ladder; by default the hottest accepts 80 % of the first moves that
        make worse, and the coldest is 1e-4 of it.
    exchange_every : int
        Generations between exchanges of neighbours, at even and odd places by turns.
    """

    _least_population = 2

    def __init__(
        self,
        space: Space,
        *,
        seed: int = 0,
        population: int = 20,
        coldest: float | None = None,
        hottest: float | None = None,
        exchange_every: int = 10,
        constraints: Constraints | None = None,
    ) -> None:
        super().__init__(space, seed=seed, population=population, constraints=constraints)
        for name, value in (("coldest", coldest), ("hottest", hottest)):
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} must be above 0 and finite, got {value}")
        if coldest is not None and hottest is not None and not coldest < hottest:
            raise ConfigError(f"coldest must be below hottest, {hottest}, got {coldest}")
        if exchange_every < 1:
            raise ConfigError(f"exchange_every must be at least 1, got {exchange_every}")
        self._coldest, self._hottest, self._every = coldest, hottest, exchange_every

    def _set_temperature(self, rise: Rows) -> None:
        if self._temperature[0] == 0:
            hottest = self._hottest or self._start_temperature(rise, 0.8)
            coldest = self._coldest or 1e-4 * hottest
            self._temperature = np.geomspace(coldest, max(hottest, coldest), self._size)

    def _after(self, accepted: Array) -> None:
        if self.generation % self._every:
            return
        rng = philox(self.seed, f"{self.name} exchange", self.generation)
        odd = self.generation // self._every % 2 == 1
        source = exchange(self._keys(), self._temperature, odd, rng)
        self._x, self._f = self._x[source], self._f[source]
        if self._violation is not None:
            self._violation = self._violation[source]
