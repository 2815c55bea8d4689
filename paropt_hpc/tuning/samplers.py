"""What to try next.

A sampler is asked for the trial of a number and told how trials have ended. Those of the first
kind (grid, random, Halton) give a number the same parameters whatever happens, so that a search is
the same on any number of ranks; the others learn from what has been told, and know what is running.
"""

import importlib.util
import itertools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels.rng import philox
from paropt_hpc.metaheuristics import Categorical, Integer, Real, Space
from paropt_hpc.metaheuristics.space import Variable
from paropt_hpc.tuning.table import Record

__all__ = [
    "SAMPLERS",
    "Bayesian",
    "Grid",
    "Halton",
    "Random",
    "Sampler",
    "SuccessiveHalving",
    "Suggestion",
    "make_sampler",
]


class Suggestion(NamedTuple):
    """Parameters to try, and what to spend on them."""

    params: dict[str, Any]
    budget: int | None = None


class Sampler(ABC):
    """Suggests trials; on rank 0 only.

    Attributes
    ----------
    space : Space
        With named variables.
    limit : int or None
        Trials after which there is nothing left to suggest.
    """

    limit: int | None = None

    def __init__(self, space: Space) -> None:
        if not space.named:
            raise ConfigError("a space to tune needs names: Space({'rate': Real(0.1, 1)})")
        self.space = space

    @abstractmethod
    def suggest(self, number: int) -> Suggestion | None:
        """Return what trial `number` tries; None while that depends on trials still running."""

    def tell(self, record: Record) -> None:  # noqa: B027 -- nothing to learn unless overridden
        """Take what became of a trial, also of one from an earlier run."""


class Random(Sampler):
    """Draws uniformly (on a variable's own scale)."""

    def __init__(self, space: Space, seed: int = 0) -> None:
        super().__init__(space)
        self.seed = seed

    def suggest(self, number: int) -> Suggestion:
        """Return the trial of this number."""
        row = self.space.sample(1, philox(self.seed, "trial", number))[0]
        return Suggestion(_params(self.space, row))


class Halton(Sampler):
    """Fills the space evenly: a Halton sequence, shifted at random.

    J. H. Halton, "On the efficiency of certain quasi-random sequences of points in evaluating
    multi-dimensional integrals", Numerische Mathematik 2, 1960; the shift modulo 1 is that of R.
    Cranley and T. N. L. Patterson, SIAM Journal on Numerical Analysis 13, 1976. For up to about
    ten columns: in more, neighbouring ones run in step at first.
    """

    def __init__(self, space: Space, seed: int = 0) -> None:
        super().__init__(space)
        self._shift = philox(seed, "Halton shift").random(space.dimension)
        self._bases = list(itertools.islice(_primes(), space.dimension))

    def suggest(self, number: int) -> Suggestion:
        """Return the trial of this number."""
        point = [_radical_inverse(number + 1, base) for base in self._bases]
        unit = (np.array(point) + self._shift) % 1.0
        row = self.space.lower + unit * (self.space.upper - self.space.lower)
        return Suggestion(_params(self.space, row))


class Grid(Sampler):
    """Tries all combinations.

    Parameters
    ----------
    space : Space
        Of single variables, not vectors.
    points : int
        Values of a real or integer variable, at equal distances on its scale; the bounds are
        among them. Categorical and binary ones have all their values.
    """

    def __init__(self, space: Space, points: int = 5) -> None:
        super().__init__(space)
        if points < 2:
            raise ConfigError(f"a grid needs at least 2 points a variable, got {points}")
        axes = {name: _axis(name, v, points) for name, v in space.variables.items()}
        self._trials = [dict(zip(axes, p, strict=True)) for p in itertools.product(*axes.values())]
        self.limit = len(self._trials)

    def suggest(self, number: int) -> Suggestion:
        """Return the trial of this number; the last variable changes fastest."""
        return Suggestion(self._trials[number])


class Bayesian(Sampler):
    """Optuna's samplers, which model what has been told.

    Running trials are known to the model, so that those suggested at the same time differ: the
    estimators take them for bad ones, the process for places that are about to be known.

    Parameters
    ----------
    space : Space
        Of single variables, not vectors.
    method : {"tpe", "gp"}
        Tree-structured Parzen estimators, for many trials and categorical variables; a Gaussian
        process, for few dear trials (needs torch).
    startup : int
        Trials drawn at random before the model is used.

    Raises
    ------
    ConfigError
        Without Optuna, or torch for ``"gp"``.
    """

    def __init__(self, space: Space, seed: int = 0, method: str = "tpe", startup: int = 10) -> None:
        super().__init__(space)
        try:
            import optuna
        except ImportError:
            raise ConfigError(
                "Bayesian search needs Optuna: pip install 'paropt-hpc[tuning]'"
            ) from None
        self._optuna = optuna
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._distributions = {
            name: _distribution(optuna.distributions, name, v)
            for name, v in space.variables.items()
        }
        self._study = optuna.create_study(sampler=_optuna_sampler(optuna, method, seed, startup))
        self._asked: dict[int, Any] = {}

    def suggest(self, number: int) -> Suggestion:
        """Return what the model finds promising, given what is running."""
        trial = self._study.ask(self._distributions)
        self._asked[number] = trial
        params = dict(trial.params)
        for name, variable in self.space.variables.items():
            if isinstance(variable, Categorical):
                params[name] = variable.choices[params[name]]
        return Suggestion(params)

    def tell(self, record: Record) -> None:
        """Take a value; a pruned trial counts with its last one, a failed one as bad."""
        states = self._optuna.trial.TrialState
        value = record.value
        failed = record.state == "failed" or value is None or not math.isfinite(value)
        state = states.FAIL if failed else states.COMPLETE
        trial = self._asked.pop(record.number, None)
        if trial is not None:
            self._study.tell(trial, None if failed else value, state)
            return
        try:
            params = {
                name: v.choices.index(record.params[name]) if isinstance(v, Categorical)
                else record.params[name]
                for name, v in self.space.variables.items()
            }  # fmt: skip
            trial = self._optuna.trial.create_trial(
                state=state,
                value=None if failed else value,
                params=params,
                distributions=self._distributions,
            )
        except ValueError:
            return  # outside the space as it is now
        self._study.add_trial(trial)


class SuccessiveHalving(Sampler):
    """Many trials with a small budget, the best of them again with a larger one, and so on.

    K. Jamieson and A. Talwalkar, "Non-stochastic best arm identification and hyperparameter
    optimization", AISTATS 2016. A rung is complete before the next one begins, so the result does
    not depend on the number of ranks.

    Parameters
    ----------
    first : Sampler
        Suggests the trials of the first rung; one that does not need to be told anything.
    trials : int
        In the first rung.
    budget : int
        Of a trial of the first rung.
    factor : int
        By which there are fewer trials and more budget from rung to rung.
    rungs : int, optional
        How many there are at most; by default until one trial is left.
    """

    def __init__(
        self,
        first: Sampler,
        trials: int = 27,
        budget: int = 1,
        factor: int = 3,
        rungs: int | None = None,
    ) -> None:
        super().__init__(first.space)
        if factor < 2 or trials < 1 or budget < 1:
            raise ConfigError(
                "factor must be at least 2, trials and budget at least 1, "
                f"got {factor}, {trials}, {budget}"
            )
        self._first, self._factor, self._budget = first, factor, budget
        self._sizes = [trials]
        while self._sizes[-1] >= factor and (rungs is None or len(self._sizes) < rungs):
            self._sizes.append(self._sizes[-1] // factor)
        self.limit = sum(self._sizes)
        self._told: dict[int, Record] = {}

    def suggest(self, number: int) -> Suggestion | None:
        """Return a trial of the first rung, or one of the best of the rung before."""
        rung, begin = 0, 0
        while number >= begin + self._sizes[rung]:
            begin += self._sizes[rung]
            rung += 1
        budget = self._budget * self._factor**rung
        if rung == 0:
            first = self._first.suggest(number)
            return first and Suggestion(first.params, budget)
        before = range(begin - self._sizes[rung - 1], begin)
        if not all(n in self._told for n in before):
            return None
        ranked = sorted(before, key=lambda n: (_value(self._told[n]), n))
        return Suggestion(self._told[ranked[number - begin]].params, budget)

    def tell(self, record: Record) -> None:
        """Take a value."""
        self._told[record.number] = record


def _value(record: Record) -> float:
    good = record.state != "failed" and record.value is not None and record.value == record.value
    return record.value if good and record.value is not None else math.inf


SAMPLERS: dict[str, Callable[[Space, int], Sampler]] = {
    "random": Random,
    "halton": Halton,
    "grid": lambda space, seed: Grid(space),
    "tpe": lambda space, seed: Bayesian(space, seed, "tpe"),
    "gp": lambda space, seed: Bayesian(space, seed, "gp"),
}
"""Samplers by name, made from a space and a seed."""


def make_sampler(name: str, space: Space, seed: int = 0) -> Sampler:
    """Return a sampler by its name.

    Raises
    ------
    ConfigError
        If the name is not one of `SAMPLERS`.
    """
    if name not in SAMPLERS:
        raise ConfigError(f"sampler must be one of {', '.join(SAMPLERS)}, got {name!r}")
    return SAMPLERS[name](space, seed)


def _params(space: Space, row: NDArray[np.float64]) -> dict[str, Any]:
    """Return the values of a row, vectors as lists: a table of trials holds what JSON can."""
    values = space.decode(row)
    return {n: v.tolist() if isinstance(v, np.ndarray) else v for n, v in values.items()}


def _axis(name: str, variable: Variable, points: int) -> list[Any]:
    """Return the values of a variable in a grid."""
    if variable.size is not None:
        raise ConfigError(f"a grid needs single variables, {name} is a vector")
    if isinstance(variable, Categorical):
        return list(variable.choices)
    if isinstance(variable, Real):
        rows = np.linspace(*variable.bounds(), points)
        return [float(value) for value in variable.decode(rows)]
    if isinstance(variable, Integer):
        scale = np.geomspace if variable.log else np.linspace
        count = min(points, variable.high - variable.low + 1)
        values = np.rint(scale(variable.low, variable.high, count)).astype(int)
        return sorted({int(value) for value in values})
    return [False, True]


def _distribution(distributions: Any, name: str, variable: Variable) -> Any:
    """Return a variable in Optuna's words."""
    if variable.size is not None:
        raise ConfigError(f"Bayesian search needs single variables, {name} is a vector")
    if isinstance(variable, Real):
        return distributions.FloatDistribution(variable.low, variable.high, log=variable.log)
    if isinstance(variable, Integer):
        return distributions.IntDistribution(variable.low, variable.high, log=variable.log)
    if isinstance(variable, Categorical):
        # By place, for Optuna knows plain choices only.
        return distributions.CategoricalDistribution(tuple(range(len(variable.choices))))
    return distributions.CategoricalDistribution((False, True))


def _optuna_sampler(optuna: Any, method: str, seed: int, startup: int) -> Any:
    if method == "tpe":
        return optuna.samplers.TPESampler(
            seed=seed % (1 << 32), n_startup_trials=startup, constant_liar=True
        )
    if method != "gp":
        raise ConfigError(f"method must be tpe or gp, got {method!r}")
    if importlib.util.find_spec("torch") is None:
        raise ConfigError("sampler 'gp' needs torch: pip install torch; or use 'tpe'")
    return optuna.samplers.GPSampler(seed=seed % (1 << 32), n_startup_trials=startup)


def _primes() -> Any:
    found: list[int] = []
    for number in itertools.count(2):
        if all(number % prime for prime in found):
            found.append(number)
            yield number


def _radical_inverse(number: int, base: int) -> float:
    inverse, digit = 0.0, 1.0 / base
    while number:
        number, rest = divmod(number, base)
        inverse += rest * digit
        digit /= base
    return inverse
