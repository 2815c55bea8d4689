"""The contract of every algorithm: ask for points, tell what they are worth.

::

    algorithm = make("de", space, seed=1)
    while not algorithm.done and algorithm.evaluations < budget:
        x = algorithm.ask()
        algorithm.tell(x, objective(x))
    algorithm.best_x, algorithm.best_f

An algorithm minimises. It knows nothing of MPI, files or time. What `ask` returns depends only on
the state, so that asking twice returns the same, and a state that was saved and loaded goes on to
the bit as if nothing had happened. All randomness comes from the seed and the number of the
generation.

An evaluation has failed when its value is NaN or infinite. It counts as an evaluation, ranks behind
every other one, and never becomes the best.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from inspect import signature
from numbers import Integral, Real
from types import NoneType
from typing import Any, ClassVar, TypeAlias, TypeVar, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels.backend import implementation
from paropt_hpc.kernels.rng import philox
from paropt_hpc.metaheuristics.constraints import Constraints, FeasibilityRules
from paropt_hpc.metaheuristics.evaluation import read_only
from paropt_hpc.metaheuristics.space import Space

__all__ = ["ALGORITHMS", "Algorithm", "PopulationAlgorithm", "make", "register"]

Array: TypeAlias = NDArray[Any]
Rows: TypeAlias = NDArray[np.float64]
State: TypeAlias = dict[str, Any]


class Algorithm(ABC):
    """What all algorithms have in common.

    Parameters
    ----------
    space : Space
        What to search.
    seed : int
        Names the random stream.
    constraints : Constraints, optional
        How values and violations make an order; by default Deb's feasibility rules. Copied, so
        that algorithms given the same one do not learn from each other.

    Attributes
    ----------
    best_x : ndarray, shape (dimension,), float64, or None
        The best row told so far, feasible where any was.
    best_f : float
        Its value; infinity before the first success.
    best_violation : float
        Its constraint violation, 0 when feasible.
    evaluations, failures, generation : int
        Points told, how many of them failed, and calls of `tell`.
    """

    name: ClassVar[str] = ""
    objectives: ClassVar[int | None] = 1  # None: more than one
    # Attributes that make the state: arrays and plain values.
    _state: ClassVar[tuple[str, ...]] = ()
    _base_state: ClassVar[tuple[str, ...]] = (
        "best_x",
        "best_f",
        "best_violation",
        "evaluations",
        "failures",
        "generation",
    )

    def __init__(
        self, space: Space, *, seed: int = 0, constraints: Constraints | None = None
    ) -> None:
        self.space = space
        self.seed = seed
        self.constraints = FeasibilityRules() if constraints is None else deepcopy(constraints)
        self.best_x: Rows | None = None
        self.best_f = math.inf
        self.best_violation = math.inf
        self.evaluations = 0
        self.failures = 0
        self.generation = 0
        self._asked: Rows | None = None  # what `ask` returned since the last `tell`

    @property
    def done(self) -> bool:
        """Say that the algorithm has nothing left to try; a budget is the caller's business."""
        return False

    @property
    @abstractmethod
    def population_size(self) -> int:
        """Return how many members `population` has."""

    def ask(self) -> Rows:
        """Return the points to evaluate next.

        Returns
        -------
        ndarray, shape (m, dimension), float64
            Rows of `space` within its bounds; read it, or copy it before changing it. The same
            until `tell`.
        """
        if self._asked is None:
            self._asked = self._ask()
        return self._asked

    def advance(
        self,
        objective: Callable[[Rows], ArrayLike],
        generations: int,
        *,
        evaluations: int | None = None,
        target: float | None = None,
    ) -> None:
        """Run generations on an objective that takes rows and never fails.

        Where both the algorithm and the objective are native (see `is_native`), the generations
        run without returning to Python; the result is the same to the bit.

        Parameters
        ----------
        objective : callable
            Rows of shape (m, dimension) to values of shape (m,).
        generations : int
            How often to ask and tell; fewer if the algorithm is done before.
        evaluations : int, optional
            Stop when as many points have been told, from the very first on.
        target : float, optional
            Stop when a feasible point has this value or a smaller one.
        """
        last = self.generation + generations
        native = self.is_native(objective)
        while self.generation < last and not self._is_over(evaluations, target):
            if native and self.generation > 0:
                count = last - self.generation
                if evaluations is not None:
                    left = evaluations - self.evaluations
                    count = min(count, -(-left // self._asked_size))
                self._run_native(objective.native, count, target)  # type: ignore[attr-defined]
            else:  # the first generation evaluates the start
                x = self.ask()
                self.tell(x, objective(x))

    def is_native(self, objective: Any) -> bool:
        """Say whether `advance` runs its generations on an objective natively.

        Some algorithms do on real columns without a logarithm or constraints, and on objectives
        that are native, as some of :data:`.FUNCTIONS` are.
        """
        return False

    @property
    def _asked_size(self) -> int:
        """Return how many points each generation after the first asks for."""
        return self.population_size

    def _is_over(self, evaluations: int | None, target: float | None) -> bool:
        reached = target is not None and self.best_violation == 0 and self.best_f <= target
        return self.done or reached or (evaluations is not None and self.evaluations >= evaluations)

    def _run_native(self, objective: int, generations: int, target: float | None) -> None:
        """Run generations on a native objective until the target, where `is_native` says so."""
        raise NotImplementedError

    def tell(self, x: Rows, f: ArrayLike, violation: ArrayLike | None = None) -> None:
        """Take the values of the points asked for.

        Parameters
        ----------
        x : ndarray, shape (m, dimension), float64
            What `ask` returned, or the same number of other rows, e.g. after a repair.
        f : array_like, shape (m,), or (m, objectives) where there are several
            Smaller is better; NaN or infinite where the evaluation failed.
        violation : array_like, shape (m,), optional
            How much constraints are violated in total, 0 where feasible.

        Raises
        ------
        ValueError
            If a shape is wrong. Nothing has changed then.
        """
        x, f, violation = self._checked(x, f, violation)
        if len(x) != len(self.ask()):
            raise ValueError(
                f"x must have the {len(self.ask())} rows that ask returned, got {len(x)}"
            )
        finite = np.isfinite(f)
        failed = ~(finite if f.ndim == 1 else finite.all(axis=1))
        if failed.any():
            f = f.copy()
            f[failed] = math.inf
        self._note_best(x, f, violation)
        self._tell(x, f, violation)
        self.evaluations += len(x)
        self.failures += int(np.count_nonzero(failed))
        self.generation += 1
        self._asked = None

    @abstractmethod
    def _ask(self) -> Rows:
        """Return the points to evaluate next, as a function of the state alone."""

    @abstractmethod
    def _tell(self, x: Rows, f: Rows, violation: Rows | None) -> None:
        """Take checked values; failures are infinite."""

    @abstractmethod
    def population(self) -> tuple[Rows, Rows]:
        """Return the members that are worth migrating, and their values.

        Read-only views, which hold until the algorithm is told or given something.

        Returns
        -------
        x : ndarray, shape (n, dimension), float64
        f : ndarray, shape (n,) or (n, objectives), float64
            Infinite where never told or failed, and for algorithms that keep no violations where
            infeasible.
        """

    @abstractmethod
    def inject(self, x: Rows, f: ArrayLike, where: ArrayLike | None = None) -> None:
        """Take immigrants: feasible points that were evaluated elsewhere.

        Parameters
        ----------
        x : ndarray, shape (m, dimension), float64
        f : array_like, shape (m,) or (m, objectives)
        where : array_like of int, shape (m,), optional
            The members that they replace in any case. By default each replaces one of the m
            worst, if it is better.
        """

    def _checked(
        self, x: Rows, f: ArrayLike, violation: ArrayLike | None
    ) -> tuple[Rows, Rows, Rows | None]:
        x = np.ascontiguousarray(x, np.float64)
        if x.ndim != 2 or x.shape[1] != self.space.dimension:
            raise ValueError(f"x must have shape (m, {self.space.dimension}), got {x.shape}")
        values = np.ascontiguousarray(f, np.float64)
        if values.shape[:1] != x.shape[:1] or (values.ndim != 1) != (self.objectives is None):
            wanted = f"({len(x)},)" if self.objectives else f"({len(x)}, objectives)"
            raise ValueError(f"f must have shape {wanted}, got {values.shape}")
        if violation is None:
            return x, values, None
        violated = np.asarray(violation, np.float64)
        if violated.shape != (len(x),):
            raise ValueError(f"violation must have shape ({len(x)},), got {violated.shape}")
        return x, values, np.where(violated > 0, violated, np.where(violated <= 0, 0.0, math.inf))

    def _note_best(self, x: Rows, f: Rows, violation: Rows | None) -> None:
        """Keep the best point ever told: feasible before infeasible, then by value."""
        if f.ndim != 1 or f.size == 0:
            return
        if violation is None:
            at = int(f.argmin())
            violated = 0.0
        else:
            at = int(np.lexsort((f, violation, ~np.isfinite(f)))[0])
            violated = float(violation[at])
        value = float(f[at])
        if value < math.inf and (violated, value) < (self.best_violation, self.best_f):
            self.best_x = x[at].copy()
            self.best_f, self.best_violation = value, violated

    def _key(self, purpose: str = "") -> int:
        """Return the key of the native random streams for a purpose, of all generations."""
        return int(philox(self.seed, f"{self.name} {purpose}").integers(2**64, dtype=np.uint64))

    def _rng(self, purpose: str = "") -> np.random.Generator:
        """Return this generation's generator for a purpose."""
        return philox(self.seed, f"{self.name} {purpose}", self.generation)

    def state_dict(self, *, copy: bool = True) -> State:
        """Return the state as arrays and plain values: all that a resumed run needs to go on.

        Settings are not part of it: load it into an algorithm made with the same ones.

        Parameters
        ----------
        copy : bool
            False: the arrays are those of the algorithm, which change when it goes on.
        """
        state: State = {"algorithm": self.name, "constraints": self.constraints.state_dict()}
        for name in (*self._base_state, *self._state):
            value = getattr(self, name)
            state[name] = value.copy() if copy and isinstance(value, np.ndarray) else value
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state.

        Raises
        ------
        ValueError
            If it is of another algorithm, or of other sizes.
        """
        names = (*self._base_state, *self._state)
        if state.get("algorithm") != self.name or not set(names) <= set(state):
            raise ValueError(
                f"state must be of {self.name!r}, got one of {state.get('algorithm')!r}; "
                "make the algorithm that was saved"
            )
        for name in names:
            self._check_state(name, state[name])
        for name in names:
            value = state[name]
            setattr(self, name, value.copy() if isinstance(value, np.ndarray) else value)
        self.constraints.load_state_dict(state["constraints"])
        self._asked = None
        self._loaded()

    def _check_state(self, name: str, value: Any) -> None:
        mine = getattr(self, name)
        if (
            isinstance(mine, np.ndarray)
            and isinstance(value, np.ndarray)
            and (mine.shape[1:] != value.shape[1:] or (mine.shape != value.shape and mine.size))
        ):
            raise ValueError(
                f"{name} of the state has shape {value.shape}, expected {mine.shape}; "
                "make the algorithm with the settings it was saved with"
            )

    def _loaded(self) -> None:  # noqa: B027 -- nothing to do unless overridden
        """Make anew what is not part of the state."""


class PopulationAlgorithm(Algorithm):
    """An algorithm whose state holds members with a value each: ``_x``, ``_f``, ``_violation``.

    Parameters
    ----------
    population : int
        Members.
    """

    _state: ClassVar[tuple[str, ...]] = ("_x", "_f", "_violation")
    _least_population: ClassVar[int] = 2

    def __init__(
        self,
        space: Space,
        *,
        seed: int = 0,
        population: int = 100,
        constraints: Constraints | None = None,
    ) -> None:
        super().__init__(space, seed=seed, constraints=constraints)
        if population < self._least_population:
            raise ConfigError(
                f"the population of {self.name!r} must be at least {self._least_population}, "
                f"got {population}"
            )
        self._size = int(population)
        self._x: Rows = space.sample(self._size, philox(seed, f"{self.name} start"))
        self._f: Rows = np.full(self._size, math.inf)
        self._violation: Rows | None = None

    @property
    def population_size(self) -> int:
        """Return how many members `population` has."""
        return self._size

    def population(self) -> tuple[Rows, Rows]:
        """Return read-only views of the members and their values."""
        return read_only(self._x), read_only(self._f)

    def inject(self, x: Rows, f: ArrayLike, where: ArrayLike | None = None) -> None:
        """Take immigrants; see `Algorithm.inject`."""
        x, values, _ = self._checked(x, f, None)
        values = np.where(np.isfinite(values), values, math.inf)
        self._note_best(x, values, None)
        places, taken = self._places(values, where)
        self._x[places] = self.space.clip(x[taken])
        self._f[places] = values[taken]
        if self._violation is not None:
            self._violation[places] = 0
        self._replaced(places)
        self._asked = None

    def _places(self, f: Rows, where: ArrayLike | None) -> tuple[Array, Array]:
        """Return which members are replaced, and by which immigrants."""
        if where is not None:
            places = np.asarray(where, np.intp)
            if places.shape != f.shape or ((places < 0) | (places >= self._size)).any():
                raise ValueError(f"where must be {len(f)} members below {self._size}, got {where}")
            return places, np.arange(len(f))
        best_first = np.argsort(f, kind="stable")[: self._size]
        keys = self._keys()
        worst_first = np.argsort(keys, kind="stable")[::-1][: len(best_first)]
        better = self.constraints.key(f[best_first], None) < keys[worst_first]
        return worst_first[better], best_first[better]

    def _replaced(self, places: Array) -> None:
        """Adapt what belongs to members that were replaced."""

    def _keys(self) -> Rows:
        """Return the numbers that order the members."""
        return self.constraints.key(self._f, self._violation)

    def _select(self, x: Rows, f: Rows, violation: Rows | None, strict: bool = False) -> None:
        """Replace each member by its rival where that one is better, or not worse.

        Of equal ones the rival stays, unless `strict`, which lets a population cross a plateau.
        """
        if violation is None and self._violation is None:
            implementation().take_better(self._x, self._f, x, f, strict)
            return
        self.constraints.adapt(f, violation)
        if violation is not None and self._violation is None:
            self._violation = np.zeros(self._size)
        mine, theirs = self._keys(), self.constraints.key(f, violation)
        taken = theirs < mine if strict else theirs <= mine
        np.copyto(self._x, x, where=taken[:, None])
        np.copyto(self._f, f, where=taken)
        if self._violation is not None:
            rival = np.zeros(self._size) if violation is None else violation
            np.copyto(self._violation, rival, where=taken)

    def _is_plain(self, objective: Any) -> bool:
        """Say whether values alone order the members, and a native objective takes them as is."""
        numbers = all(
            not getattr(variable, "log", False) for variable in self.space.variables.values()
        )
        native = getattr(objective, "native", None) is not None
        return native and self._violation is None and numbers and self.space.is_only("real")

    def _run_native(self, objective: int, generations: int, target: float | None) -> None:
        best_x = np.zeros(self.space.dimension) if self.best_x is None else self.best_x
        best_f = np.array([self.best_f])
        best = best_x, best_f, -math.inf if target is None else target
        done = self._run_kernel(objective, generations, best)
        if math.isfinite(best_f[0]):
            self.best_x, self.best_f, self.best_violation = best_x, float(best_f[0]), 0.0
        self.evaluations += done * self._asked_size
        self.generation += done
        self._asked = None

    def _run_kernel(self, objective: int, generations: int, best: tuple[Rows, Rows, float]) -> int:
        """Run the algorithm's kernel, which keeps the best row; return the generations done."""
        raise NotImplementedError


ALGORITHMS: dict[str, Callable[..., Algorithm]] = {}
_A = TypeVar("_A", bound=type[Algorithm])


def register(name: str) -> Callable[[_A], _A]:
    """Return a class decorator that makes an algorithm known to `make` by this name."""

    def add(kind: _A) -> _A:
        kind.name = name
        ALGORITHMS[name] = kind
        return kind

    return add


def make(name: str, space: Space, *, seed: int = 0, **options: Any) -> Algorithm:
    """Return a new algorithm.

    Parameters
    ----------
    name : str
        One of `ALGORITHMS`.
    space : Space
        What to search.
    seed : int
        Names the random stream: the same seed, space and options give the same run.
    options
        The keyword arguments of that algorithm, e.g. ``population=50``.

    Raises
    ------
    ConfigError
        If the name or an option is unknown or out of its range.
    """
    if name not in ALGORITHMS:
        raise ConfigError(f"algorithm must be one of {', '.join(sorted(ALGORITHMS))}, got {name!r}")
    _check_types(name, options)
    try:
        return ALGORITHMS[name](space, seed=seed, **options)
    except TypeError as error:
        if "unexpected keyword argument" not in str(error):
            raise
        unknown = str(error).rpartition(" ")[2]
        raise ConfigError(f"algorithm {name!r} has no option {unknown}") from None


def numbers(option: str, value: ArrayLike) -> Rows:
    """Return an option that is made of finite numbers as float64."""
    try:
        array = np.asarray(value, np.float64)
    except (TypeError, ValueError):
        raise ConfigError(f"{option} must be made of numbers, got {value!r}") from None
    if not np.isfinite(array).all():
        raise ConfigError(f"{option} must be finite")
    return array


_BLOCK = 1024  # rows; even, so that pairs stay together


def blocks(array: Array) -> Iterator[Array]:
    """Return views of some rows each, so that what is made of them takes little memory."""
    return (array[first : first + _BLOCK] for first in range(0, len(array), _BLOCK))


def take_rows(source: Array, places: Array, out: Array) -> None:
    """Put rows of `source` into the first ones of `out`, which may be `source` if places ascend."""
    for rows, chosen in zip(blocks(out), blocks(places), strict=False):
        rows[: len(chosen)] = source[chosen]


_KINDS: dict[Any, type] = {int: Integral, float: Real, str: str, bool: bool, NoneType: NoneType}


def _check_types(name: str, options: Mapping[str, Any]) -> None:
    """Raise where an option is no number, truth value or text as its annotation says."""
    known = signature(ALGORITHMS[name], eval_str=True).parameters
    for option, value in options.items():
        hint = known[option].annotation if option in known else None
        kinds = get_args(hint) or (hint,)
        if not set(kinds) <= set(_KINDS):
            continue
        fits = isinstance(value, tuple(_KINDS[kind] for kind in kinds))
        if not fits or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join(kind.__name__ for kind in kinds if kind is not NoneType)
            raise ConfigError(f"{option} of algorithm {name!r} must be {wanted}, got {value!r}")
