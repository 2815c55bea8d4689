"""The settings of a search: a TOML file, and what it builds."""

import importlib
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import ConfigDict, Field, model_validator

from paropt_hpc.errors import ConfigError
from paropt_hpc.metaheuristics.algorithm import Algorithm
from paropt_hpc.metaheuristics.compiled import Compiled
from paropt_hpc.metaheuristics.constraints import AdaptivePenalty
from paropt_hpc.metaheuristics.evaluation import Objective, Scalar, Vectorised
from paropt_hpc.metaheuristics.functions import function
from paropt_hpc.metaheuristics.island import Budget
from paropt_hpc.metaheuristics.isolated import Isolated
from paropt_hpc.metaheuristics.migration import Migration, make_islands
from paropt_hpc.metaheuristics.program import Program
from paropt_hpc.metaheuristics.space import (
    Binary,
    Categorical,
    Integer,
    Permutation,
    Real,
    Space,
    Variable,
)
from paropt_hpc.metaheuristics.tsplib import Tour, read_tsplib
from paropt_hpc.runs import Section, load

__all__ = ["SearchConfig", "build_space", "load_function", "load_search"]

# How evaluations are made, but not what they give.
_MAY_CHANGE = ("objective.keep", "objective.retries", "objective.time_limit", "objective.isolate")

Positive = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]


# What each way to give an objective understands.
_OF_OBJECTIVE = {
    "function": (
        "function", "kind", "rows", "outputs", "constrained", "retries", "time_limit", "isolate",
    ),
    "benchmark": ("benchmark", "dimension"),
    "tsplib": ("tsplib",),
    "command": (
        "command", "inputs", "output", "keep", "outputs", "constrained", "retries", "time_limit",
    ),
}  # fmt: skip
_OF_VARIABLE = {
    "real": ("kind", "low", "high", "log", "size"),
    "integer": ("kind", "low", "high", "log", "size"),
    "categorical": ("kind", "choices"),
    "binary": ("kind", "size"),
    "permutation": ("kind", "size"),
}


def _idle(section: Section, known: Sequence[str]) -> str | None:
    """Return a setting that differs from its default and would do nothing."""
    fields = type(section).model_fields
    return next(
        (
            name
            for name in fields
            if name not in known and getattr(section, name) != fields[name].default
        ),
        None,
    )


class ObjectiveConfig(Section):
    """What to minimise: one of function, benchmark, tsplib and command."""

    function: str | None = None  # "module:callable"; gets the values of the variables as a dict
    benchmark: str | None = None  # a named function with its own box, such as "rastrigin"
    dimension: Positive = 30  # of a benchmark
    tsplib: str | None = None  # a file of cities
    command: str | None = None  # a program with variables in braces: "./simulate {rate} {size}"
    inputs: dict[str, str] = Field(default={})  # command: files for its folder
    output: str | None = None  # command: a file to read, instead of what is printed
    keep: Literal["failed", "all", "none"] = "failed"  # command: which folders stay
    kind: Literal["scalar", "vectorised", "compiled"] = "scalar"  # function: of one point, or all
    rows: bool = False  # function: gets the row of numbers instead of a dict
    outputs: Positive = 1  # numbers returned: several objectives
    constrained: bool = False  # one number more is returned, the total constraint violation
    retries: Annotated[int, Field(ge=0)] = 0  # after a failure
    time_limit: PositiveFloat | None = None  # seconds for one evaluation
    isolate: bool = False  # function: in a process of its own, which may crash or be killed

    @model_validator(mode="after")
    def _is_one(self) -> "ObjectiveConfig":
        names = ("function", "benchmark", "tsplib", "command")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"objective.{given[0]} and objective.{given[1]} exclude each other")
        if self.kind != "scalar" and (self.time_limit or self.retries or self.isolate):
            raise ValueError(
                "objective.time_limit, retries and isolate work with objective.kind = 'scalar'"
            )
        if self.kind == "compiled" and not self.rows:
            raise ValueError("objective.kind = 'compiled' needs objective.rows = true")
        if self.kind == "compiled" and (self.outputs > 1 or self.constrained):
            raise ValueError("objective.kind = 'compiled' is for functions of one number")
        if given and (idle := _idle(self, _OF_OBJECTIVE[given[0]])):
            raise ValueError(f"objective.{idle} does nothing with objective.{given[0]}; remove it")
        return self


class VariableConfig(Section):
    """One variable."""

    kind: Literal["real", "integer", "categorical", "binary", "permutation"] = "real"
    low: float | None = None
    high: float | None = None
    log: bool = False  # search the logarithm
    size: Positive | None = None  # a vector of so many
    choices: list[Any] | None = None  # of a categorical one

    def build(self, name: str) -> Variable:
        """Return the variable."""
        try:
            return self._build()
        except ConfigError as error:
            raise ConfigError(f"space.{name}: {error}") from None

    def _build(self) -> Variable:
        if idle := _idle(self, _OF_VARIABLE[self.kind]):
            raise ConfigError(f"{idle} does nothing with kind = {self.kind!r}")
        if self.kind in ("real", "integer"):
            if self.low is None or self.high is None:
                raise ConfigError("low and high must be set")
            if self.kind == "real":
                return Real(self.low, self.high, self.log, self.size)
            if not (self.low.is_integer() and self.high.is_integer()):
                raise ConfigError(f"bounds must be whole numbers, got {self.low} and {self.high}")
            return Integer(int(self.low), int(self.high), self.log, self.size)
        if self.kind == "categorical":
            return Categorical(self.choices or [])
        if self.kind == "binary":
            return Binary(self.size)
        return Permutation(self.size or 0)


class AlgorithmConfig(Section):
    """Which algorithm, with its own options beside the name: ``population = 50``."""

    model_config = ConfigDict(extra="allow")

    name: str | list[str] = "de"  # several take turns on the islands
    constraints: Literal["rules", "penalty"] = "rules"  # Deb's, or an adaptive penalty

    def options(self) -> dict[str, Any]:
        """Return what algorithms are made with."""
        options = dict(self.model_extra or {})
        for name in ("seed", "space", "names", "count"):
            if name in options:
                raise ConfigError(f"algorithm.{name} is no option; the seed is run.seed")
        if self.constraints == "penalty":
            options["constraints"] = AdaptivePenalty()
        return options


class IslandsConfig(Section):
    """How many populations, and how they exchange members."""

    count: Positive = 1
    topology: str = "ring"
    interval: Positive = 10  # generations between two migrations
    size: Positive = 2  # emigrants of an island
    selection: Literal["best", "random", "tournament"] = "best"
    replacement: Literal["worse", "worst", "random", "nearest"] = "worse"
    asynchronous: bool = False


class BudgetConfig(Section):
    """When to end: the first that is reached."""

    evaluations: Positive | None = None
    generations: Positive | None = None
    target: float | None = None
    seconds: PositiveFloat | None = None


class SearchRunConfig(Section):
    """Where results go, and how to spread the work."""

    dir: str | None = None  # run folder; by default runs/<name of the file>
    seed: Annotated[int, Field(ge=0)] = 0
    evaluator: Literal["rows", "manager"] = "rows"  # manager: for evaluations of unequal length
    max_failures: Positive = 1000  # in a row, after which the run ends with an error
    checkpoint_every: Positive | None = None  # generations
    overwrite: bool = False  # replace the results in a run folder that has some
    resume: bool = False  # go on from the newest checkpoint, if there is one
    plots: bool = True  # draw convergence and diversity, where matplotlib is installed


class SearchConfig(Section):
    """All settings of a search."""

    objective: ObjectiveConfig = ObjectiveConfig()
    space: dict[str, VariableConfig] = Field(default={})
    algorithm: AlgorithmConfig = AlgorithmConfig()
    islands: IslandsConfig = IslandsConfig()
    budget: BudgetConfig = BudgetConfig()
    run: SearchRunConfig = SearchRunConfig()

    @model_validator(mode="after")
    def _is_possible(self) -> "SearchConfig":
        if self.islands.asynchronous and self.islands.count < 2:
            raise ValueError("islands.asynchronous needs islands.count of at least 2")
        if self.islands.asynchronous and (self.run.resume or self.run.checkpoint_every):
            raise ValueError(
                "islands.asynchronous has no checkpoints: run.resume and run.checkpoint_every need "
                "islands that meet"
            )
        return self

    def build(self) -> tuple[Objective, list[Algorithm]]:
        """Return the objective and an algorithm for each island; local."""
        objective, space = self._objective()
        options, name = self.algorithm.options(), self.algorithm.name
        tour = getattr(objective, "function", None)
        if isinstance(tour, Tour) and name in ("mmas", ["mmas"]):
            options.setdefault("distances", tour.distances)
        if name in ("nsga2", ["nsga2"]) and objective.outputs > 1:
            options.setdefault("objectives", objective.outputs)
        islands = make_islands(name, space, self.islands.count, seed=self.run.seed, **options)
        return objective, islands

    def identity(self) -> dict[str, Any]:
        """Return what must be the same for a run to be gone on with, by the names of settings."""
        sections = self.model_dump(mode="json", include={"objective", "space", "algorithm"})
        return {
            f"{section}.{key}": value
            for section, values in sections.items()
            for key, value in values.items()
            if f"{section}.{key}" not in _MAY_CHANGE
        }

    def migration(self) -> Migration:
        """Return how islands exchange members."""
        i = self.islands
        return Migration(i.topology, i.interval, i.size, i.selection, i.replacement)

    def limits(self) -> Budget:
        """Return when to end."""
        return Budget(**self.budget.model_dump())

    def _objective(self) -> tuple[Objective, Space]:
        about = self.objective
        if about.benchmark is not None:
            named = function(about.benchmark)
            self._check_no_space("benchmark")
            return Vectorised(named), named.space(about.dimension)
        if about.tsplib is not None:
            tour = read_tsplib(Path(about.tsplib))
            self._check_no_space("tsplib")
            return Vectorised(tour), tour.space
        if not self.space:
            raise ConfigError("there are no variables; add a table [space.NAME] for each")
        space = build_space(self.space)
        if about.command is not None:
            return self._scalar(self._program(about.command, space), space, rows=True), space
        if about.function is None:
            raise ConfigError(
                "there is nothing to minimise; set one of objective.function, benchmark, tsplib "
                "and command"
            )
        called = load_function(about.function)
        if about.kind == "compiled":
            return Compiled(called), space
        if about.kind == "vectorised":
            batch = called if about.rows else lambda x: called(space.decode_batch(x))
            shape = {"outputs": about.outputs, "constrained": about.constrained}
            return Vectorised(batch, **shape), space  # type: ignore[arg-type]
        if about.isolate:
            child = Isolated(_OnValues(called, None if about.rows else space), about.time_limit)
            return self._scalar(child, space, rows=True), space
        return self._scalar(called, space, rows=about.rows), space

    def _check_no_space(self, given: str) -> None:
        if self.space:
            raise ConfigError(f"objective.{given} has a space of its own; remove [space]")

    def _program(self, command: str, space: Space) -> Program:
        about = self.objective
        program = Program(
            command,
            inputs=about.inputs,
            output=about.output,
            outputs=about.outputs + about.constrained,
            time_limit=about.time_limit,
            folder=None if self.run.dir is None else Path(self.run.dir) / "evaluations",
            keep=about.keep,
            decode=space.decode,
        )
        program.check(space.lower)
        return program

    def _scalar(self, called: Callable[[Any], Any], space: Space, *, rows: bool) -> Scalar:
        about = self.objective
        own_limit = isinstance(called, Program | Isolated)
        return Scalar(
            called if rows else lambda row: called(space.decode(row)),
            outputs=about.outputs,
            constrained=about.constrained,
            retries=about.retries,
            time_limit=None if own_limit else about.time_limit,
            repeatable=False if own_limit else None,
        )


class _OnValues:
    """A function of values as one of a row; for another process, so not a lambda."""

    def __init__(self, called: Callable[[Any], Any], space: Space | None) -> None:
        self.called, self.space = called, space

    def __call__(self, row: Any) -> Any:
        return self.called(row if self.space is None else self.space.decode(np.asarray(row)))


def load_search(path: Path, assignments: Iterable[str] = ()) -> SearchConfig:
    """Read the settings of a search, and apply ``section.key=value`` assignments; local.

    Raises
    ------
    ConfigError
        Naming the key, what was expected, and what was found.
    """
    return load(SearchConfig, path, assignments)


def build_space(variables: dict[str, VariableConfig]) -> Space:
    """Return the space of named variables."""
    return Space({name: variable.build(name) for name, variable in variables.items()})


def load_function(name: str) -> Callable[[Any], Any]:
    """Import ``module:callable``; modules in the current folder are found too.

    Raises
    ------
    ConfigError
        Naming what cannot be imported.
    """
    module_name, colon, attribute = name.partition(":")
    if not (colon and module_name and attribute):
        raise ConfigError(f"a function is given as module:callable, got {name!r}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found = importlib.import_module(module_name)
    except (ImportError, SyntaxError) as error:
        raise ConfigError(f"cannot import {module_name!r}: {error}") from None
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ConfigError(f"{module_name!r} has no {attribute!r}")
        found = getattr(found, part)
    if not callable(found):
        raise ConfigError(f"{name!r} is no function, but {type(found).__name__}")
    return found
