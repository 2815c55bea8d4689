"""CMA-ES: a normal distribution that learns where, how far and in which directions to search.

Equation numbers are those of N. Hansen, "The CMA evolution strategy: a tutorial", arXiv:1604.00772,
2016. Instead of the square root of the covariance matrix its Cholesky factor is used, which costs a
tenth (O. Krause, D. R. Arbones and C. Igel, "CMA-ES with optimal covariance update and storage
complexity", NIPS 2016), so that the factor is never out of date.

The search happens in the unit cube. A sample outside is mirrored at the wall it has crossed.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels.backend import implementation
from paropt_hpc.kernels.rng import philox
from paropt_hpc.metaheuristics.algorithm import Algorithm, Rows, blocks, numbers, register
from paropt_hpc.metaheuristics.constraints import Constraints, worth_migrating
from paropt_hpc.metaheuristics.evaluation import read_only
from paropt_hpc.metaheuristics.space import Space

__all__ = ["CMAES", "RESTARTS", "BipopCMAES", "IpopCMAES", "SeparableCMAES"]

RESTARTS = ("none", "ipop", "bipop")


@dataclass(frozen=True)
class _Rates:
    """The constants of a run: table 1 of the tutorial."""

    weights: Rows  # (samples,), negative for the worse half
    mu: int
    mass: float  # mu_eff
    path: float  # c_c
    path_sigma: float  # c_sigma
    damping: float  # d_sigma
    rank_one: float  # c_1
    rank_mu: float  # c_mu
    length: float  # expected length of a standard normal vector

    @classmethod
    def of(cls, n: int, samples: int, separable: bool) -> "_Rates":
        raw = math.log((samples + 1) / 2) - np.log(np.arange(1, samples + 1))  # (49)
        mu = samples // 2
        mass = raw[:mu].sum() ** 2 / (raw[:mu] ** 2).sum()
        mass_minus = raw[mu:].sum() ** 2 / (raw[mu:] ** 2).sum()
        speedup = (n + 2) / 3 if separable else 1.0  # R. Ros and N. Hansen, PPSN 2008
        one = speedup * 2 / ((n + 1.3) ** 2 + mass)
        many = 2 * (0.25 + mass + 1 / mass - 2) / ((n + 2) ** 2 + mass)
        one = min(one, 0.5)
        many = min(1 - one, speedup * many)
        bound = min(1 + one / many, 1 + 2 * mass_minus / (mass + 2))  # (50), (51)
        bound = min(bound, max(0.0, 1 - one - many) / (n * many))  # (52)
        weights = np.where(
            raw >= 0, raw / raw[raw > 0].sum(), bound * raw / -raw[raw < 0].sum()
        )  # (53)
        sigma = (mass + 2) / (n + mass + 5)  # (55)
        return cls(
            weights=weights,
            mu=mu,
            mass=float(mass),
            path=(4 + mass / n) / (n + 4 + 2 * mass / n),  # (56)
            path_sigma=sigma,
            damping=1 + 2 * max(0.0, math.sqrt((mass - 1) / (n + 1)) - 1) + sigma,  # (55)
            rank_one=one,
            rank_mu=many,
            length=math.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n * n)),
        )


@register("cmaes")
class CMAES(Algorithm):
    """CMA-ES, by default without restarts.

    Parameters
    ----------
    space, seed, constraints
        See `Algorithm`.
    population : int, optional
        Samples of a generation, at least 4; by default 4 + floor(3 log n), equation 48, and half as
        many more with restarts.
    sigma : float
        First standard deviation, as a share of the range of a column.
    start : array_like, shape (dimension,) or (2, dimension), optional
        Row of the first mean, or two corners between which the mean of every run is drawn; by
        default drawn from the middle 80 % of the range. After a single row, restarts draw theirs.
    restarts : str
        What happens when a run has converged or stagnates. ``none``: the algorithm is done.
        ``ipop``: a new run with twice the samples (A. Auger and N. Hansen, CEC 2005). ``bipop``: by
        turns such a run and short ones with few samples and a small sigma, with the same share of
        the evaluations each (N. Hansen, GECCO workshop on BBOB 2009).
    tolerance : float, optional
        A run ends when values have changed by no more than this for some generations; by default
        1e-9 with restarts, where another run is worth more than digits, and 0 without.
    """

    _state: ClassVar[tuple[str, ...]] = (
        "_mean",
        "_sigma",
        "_c",
        "_path",
        "_path_sigma",
        "_samples",
        "_age",
        "_run",
        "_first_sigma",
        "_recent",
        "_x",
        "_f",
        "_guests",
        "_large",
        "_spent",
        "_small_run",
        "_run_budget",
        "_stopped",
    )
    _separable: ClassVar[bool] = False

    def __init__(
        self,
        space: Space,
        *,
        seed: int = 0,
        population: int | None = None,
        sigma: float = 0.2,
        start: ArrayLike | None = None,
        restarts: str = "none",
        tolerance: float | None = None,
        constraints: Constraints | None = None,
    ) -> None:
        super().__init__(space, seed=seed, constraints=constraints)
        n = space.dimension
        usual = 4 + int(3 * math.log(n))
        usual += usual // 2 if restarts != "none" else 0
        self._default = usual if population is None else int(population)
        self._tolerance = (1e-9 if restarts != "none" else 0.0) if tolerance is None else tolerance
        if self._default < 4:
            raise ConfigError(f"population must be at least 4, got {population}")
        if not self._tolerance >= 0:
            raise ConfigError(f"tolerance must be at least 0, got {tolerance}")
        if not 0 < sigma <= 10:
            raise ConfigError(f"sigma must be in (0, 10], got {sigma}")
        if restarts not in RESTARTS:
            raise ConfigError(f"restarts must be one of {', '.join(RESTARTS)}, got {restarts!r}")
        self._restarts = restarts
        self._sigma0 = float(sigma)
        self._start = None if start is None else numbers("start", start)
        if self._start is not None and self._start.shape not in ((n,), (2, n)):
            raise ConfigError(f"start must be 1 or 2 rows of {n} columns, got {self._start.shape}")
        self._range = space.upper - space.lower
        self._streams = self._key()
        self._run = -1
        self._large = self._default
        self._spent = np.zeros(2, np.int64)  # evaluations of large and of small runs
        self._guests = np.empty((0, n))
        self._stopped = False
        self._x, self._f = np.empty((0, n)), np.empty(0)
        self._begin(self._default, self._sigma0, small=False, budget=0)

    # ---- runs ----------------------------------------------------------------------------------

    def _begin(self, samples: int, sigma: float, *, small: bool, budget: int) -> None:
        """Start a run; a budget of 0 is none."""
        n = self.space.dimension
        self._run += 1
        self._samples, self._small_run, self._run_budget = samples, small, budget
        self._mean = self._first_mean()
        self._sigma = self._first_sigma = sigma
        self._c = np.ones(n) if self._separable else np.eye(n)
        self._path, self._path_sigma = np.zeros(n), np.zeros(n)
        self._age = 0
        self._recent = np.full((2, 120 + math.ceil(30 * n / samples)), math.nan)
        self._loaded()

    def _first_mean(self) -> Rows:
        """Return where a run starts, in the unit cube."""
        drawn = philox(self.seed, f"{self.name} start", self._run).random(self.space.dimension)
        if self._start is None or (self._start.ndim == 1 and self._run > 0):
            return 0.1 + 0.8 * drawn
        corners = (self.space.clip(self._start) - self.space.lower) / self._range
        return corners if self._start.ndim == 1 else corners[0] + (corners[1] - corners[0]) * drawn

    def _loaded(self) -> None:
        self._rates = _Rates.of(self.space.dimension, self._samples, self._separable)
        self._factor: Rows | None = None
        self._z: Rows | None = None  # the samples as standard normal vectors

    def _restart(self) -> None:
        """Start the next run, or be done."""
        if self._restarts == "none":
            self._stopped = True
        elif self._restarts == "ipop":
            self._begin(2 * self._samples, self._sigma0, small=False, budget=0)
        elif self._spent[1] < self._spent[0]:
            u = philox(self.seed, f"{self.name} small run", self._run).random(2)
            half = 0.5 * self._large / self._default
            samples = max(4, int(self._default * half ** (u[0] ** 2)))
            sigma = self._sigma0 * 10 ** (-2 * u[1])
            self._begin(samples, sigma, small=True, budget=int(self._spent[0] // 2))
        else:
            self._large *= 2
            self._begin(self._large, self._sigma0, small=False, budget=0)

    @property
    def done(self) -> bool:
        """Say that the run has ended and none follows."""
        return self._stopped

    @property
    def population_size(self) -> int:
        """Return the number of samples of this generation."""
        return self._samples

    # ---- ask -----------------------------------------------------------------------------------

    def _ask(self) -> Rows:
        n, kernel = self.space.dimension, implementation()
        self._z = None  # memory for those to come
        self._z = z = np.empty((self._samples, n))
        kernel.normals(kernel.generation_key(self._streams, self.generation), z)
        count = min(len(self._guests), self._samples // 2)
        if count:
            z[-count:] = self._whiten(self._steps_of(self._guests[:count]))
        x = self._colour(z)  # (39)
        x *= self._sigma
        x += self._mean  # (40), in the unit cube
        if x.min() < 0 or x.max() > 1:
            for rows in blocks(x):
                np.abs(rows - 2 * np.rint(rows / 2), out=rows)  # mirrored: the triangle wave
        x *= self._range
        x += self.space.lower
        np.clip(x, self.space.lower, self.space.upper, out=x)
        if count:
            x[-count:] = self._guests[:count]
        return x

    def _root(self) -> Rows:
        """Return the Cholesky factor of the covariance matrix, or the roots of its diagonal."""
        if self._factor is None:
            if self._separable:
                self._factor = np.sqrt(self._c)
            else:
                self._factor = np.asarray(np.linalg.cholesky(self._c), np.float64)
        return self._factor

    def _colour(self, z: Rows) -> Rows:
        """Return standard normal vectors as the steps that they make."""
        root = self._root()
        return z * root if self._separable else np.asarray(z @ root.T, np.float64)

    def _whiten(self, y: Rows) -> Rows:
        """Return steps as the standard normal vectors that would make them."""
        root = self._root()
        return y / root if self._separable else np.asarray(np.linalg.solve(root, y.T).T, np.float64)

    def _steps_of(self, x: Rows) -> Rows:
        """Return the steps that lead to rows from elsewhere, not longer than usual ones.

        N. Hansen, "Injecting external solutions into CMA-ES", arXiv:1110.4181, 2011.
        """
        n = self.space.dimension
        y = ((x - self.space.lower) / self._range - self._mean) / self._sigma
        length = np.linalg.norm(self._whiten(y), axis=1)
        longest = math.sqrt(n) + 2 * n / (n + 2)
        short: Rows = y * np.minimum(1, longest / np.maximum(length, 1e-300))[:, None]
        return short

    # ---- tell ----------------------------------------------------------------------------------

    def _tell(self, x: Rows, f: Rows, violation: Rows | None) -> None:
        asked = self.ask()
        self.constraints.adapt(f, violation)
        keys = self.constraints.key(f, violation)
        if x is not asked:
            changed = (x != asked).any(axis=1)
            if changed.any():
                assert self._z is not None
                self._z[changed] = self._whiten(self._steps_of(x[changed]))
        self._x, self._f = x if x is asked else x.copy(), worth_migrating(f, violation)
        self._guests = self._guests[len(asked) // 2 :]
        order = np.argsort(keys, kind="stable")
        succeeded = int(np.isfinite(keys).sum())
        if succeeded:
            self._update(order, succeeded)
        self._age += 1
        self._spent[int(self._small_run)] += len(x)
        self._recent[:, :-1] = self._recent[:, 1:]
        middle = keys[order[min(len(order) // 2, max(succeeded - 1, 0))]]
        self._recent[:, -1] = keys[order[0]], middle
        if self._has_ended(keys[order]):
            self._restart()

    def _update(self, order: NDArray[np.intp], succeeded: int) -> None:
        """Learn from the samples, the best first, of which only so many have a value."""
        r, n = self._rates, self.space.dimension
        weights = r.weights
        if succeeded < len(weights):
            weights = np.where(np.arange(len(weights)) < succeeded, weights, 0.0)
            weights[: r.mu] /= weights[: r.mu].sum()
        middle, moments = self._moments(order, weights)
        step = self._colour(middle)  # (41)
        self._mean = self._mean + self._sigma * step  # (42)
        keep = 1 - r.path_sigma
        self._path_sigma = (
            keep * self._path_sigma + math.sqrt(r.path_sigma * (2 - r.path_sigma) * r.mass) * middle
        )  # (43)
        length = float(np.linalg.norm(self._path_sigma))
        steady = math.sqrt(1 - keep ** (2 * (self._age + 1)))
        onward = length / steady < (1.4 + 2 / (n + 1)) * r.length
        self._path = (1 - r.path) * self._path
        if onward:
            self._path += math.sqrt(r.path * (2 - r.path) * r.mass) * step  # (45)
        self._adapt(moments, float(weights.sum()), onward)
        growth = r.path_sigma / r.damping * (length / r.length - 1)
        self._sigma = float(self._sigma * math.exp(min(1.0, growth)))  # (44)

    def _moments(self, order: NDArray[np.intp], weights: Rows) -> tuple[Rows, Rows]:
        """Return the weighted mean of the best samples and the weighted sum of all their squares.

        Both of standard normal vectors, the squares being outer products, or those of each column
        where the covariance matrix is diagonal.
        """
        assert self._z is not None
        n = self.space.dimension
        middle = np.zeros(n)
        moments = np.zeros(n if self._separable else (n, n))
        for places, weighs in zip(blocks(order), blocks(weights), strict=True):
            z = self._z[places]
            middle += np.maximum(weighs, 0) @ z
            lengths = np.maximum(np.einsum("ij,ij->i", z, z), 1e-300)
            scaled = np.where(weighs < 0, weighs * n / lengths, weighs)  # (46)
            moments += scaled @ (z * z) if self._separable else (z.T * scaled) @ z
        return middle, moments

    def _adapt(self, moments: Rows, mass: float, onward: bool) -> None:
        """Adapt the covariance matrix, A being its factor: that of the steps is A M A^T."""
        r, root = self._rates, self._root()
        missing = 0.0 if onward else r.path * (2 - r.path)
        decay = 1 + r.rank_one * missing - r.rank_one - r.rank_mu * mass
        if self._separable:
            many, one = self._c * moments, self._path * self._path
        else:
            many, one = root @ moments @ root.T, self._path[:, None] * self._path
        self._c = decay * self._c + r.rank_one * one + r.rank_mu * many  # (47)
        self._factor = None

    def _has_ended(self, keys: Rows) -> bool:
        """Say whether the run has converged, stagnates, or is broken: the criteria of BIPOP."""
        n, r = self.space.dimension, self._recent
        try:
            root = self._root()
        except np.linalg.LinAlgError:
            return True
        spread = np.sqrt(self._c if self._separable else np.diag(self._c))
        size = self._sigma * max(float(spread.max()), float(np.abs(self._path).max()))
        edges = np.abs(root if self._separable else np.diag(root))
        if not (np.isfinite(size) and edges.min() > 1e-7 * edges.max()):  # condition of 1e14
            return True
        if size < 1e-15 * self._first_sigma or size > 1e4 * max(self._first_sigma, 0.01):
            return True
        if (self._mean == self._mean + 0.2 * self._sigma * spread).any():
            return True
        if self._run_budget and self._age * self._samples >= self._run_budget:
            return True
        if self._age > 100 + 50 * (n + 3) ** 2 / math.sqrt(self._samples):
            return True
        return self._is_flat(keys) or (self._age % 10 == 0 and self._stagnates(r))

    def _is_flat(self, keys: Rows) -> bool:
        """Say whether the best values of late and the better half of these, sorted, are one."""
        window = 10 + math.ceil(30 * self.space.dimension / self._samples)
        if self._age <= window:
            return False
        recent = self._recent[0, -window:]
        low = min(float(recent.min()), float(keys[0]))
        high = max(float(recent.max()), float(keys[min(self._rates.mu, len(keys) - 1)]))
        if not math.isfinite(high - low):
            return False
        return high - low <= max(self._tolerance, 1e-15 * max(abs(low), abs(high)))

    def _stagnates(self, recent: Rows) -> bool:
        window = recent.shape[1]
        if self._age <= window or not np.isfinite(recent).all():
            return False
        part = max(1, int(0.3 * window))
        first, last = recent[:, :part], recent[:, -part:]
        return bool((np.median(last, axis=1) >= np.median(first, axis=1)).all())

    # ---- migration and state -------------------------------------------------------------------

    def population(self) -> tuple[Rows, Rows]:
        """Return read-only views of the samples told last and their values."""
        if len(self._x) == self._samples:
            return read_only(self._x), read_only(self._f)
        return read_only(self.ask()), np.full(self._samples, math.inf)

    def inject(self, x: Rows, f: ArrayLike, where: ArrayLike | None = None) -> None:
        """Take immigrants: they will be among the next samples, up to half of them."""
        x, values, _ = self._checked(x, f, None)
        self._note_best(x, np.where(np.isfinite(values), values, math.inf), None)
        fine = np.isfinite(values)
        best_first = np.argsort(values[fine], kind="stable")
        guests = self.space.clip(x[fine][best_first])
        self._guests = np.concatenate([guests, self._guests])[: self._samples]
        self._asked = None

    def _check_state(self, name: str, value: Any) -> None:
        if name in ("_mean", "_c") and value.shape != getattr(self, name).shape:
            super()._check_state(name, value)


@register("ipop-cmaes")
class IpopCMAES(CMAES):
    """CMA-ES restarted with twice the samples.

    Parameters
    ----------
    space, seed, population, sigma, start, tolerance, constraints
        See `CMAES`.
    """

    _restart_rule: ClassVar[str] = "ipop"

    def __init__(
        self,
        space: Space,
        *,
        seed: int = 0,
        population: int | None = None,
        sigma: float = 0.2,
        start: ArrayLike | None = None,
        tolerance: float | None = None,
        constraints: Constraints | None = None,
    ) -> None:
        super().__init__(
            space,
            seed=seed,
            population=population,
            sigma=sigma,
            start=start,
            restarts=self._restart_rule,
            tolerance=tolerance,
            constraints=constraints,
        )


@register("bipop-cmaes")
class BipopCMAES(IpopCMAES):
    """CMA-ES restarted by turns with many and with few samples.

    Parameters
    ----------
    space, seed, population, sigma, start, tolerance, constraints
        See `CMAES`.
    """

    _restart_rule: ClassVar[str] = "bipop"


@register("sep-cmaes")
class SeparableCMAES(CMAES):
    """CMA-ES with a diagonal covariance matrix: linear time and memory, for large dimensions.

    R. Ros and N. Hansen, "A simple modification in CMA-ES achieving linear time and space
    complexity", PPSN 2008. The options are those of `CMAES`.
    """

    _separable: ClassVar[bool] = True
