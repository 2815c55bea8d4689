"""Tune the settings of a training."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from paropt_hpc.comm import Communicator
from paropt_hpc.errors import ConfigError
from paropt_hpc.metaheuristics import Space
from paropt_hpc.metaheuristics.config import VariableConfig, build_space
from paropt_hpc.runs import Section, load
from paropt_hpc.train import Config, Trainer, load_config
from paropt_hpc.train.meter import Meter
from paropt_hpc.tuning import (
    ASHA,
    Pruner,
    Random,
    Record,
    Sampler,
    SuccessiveHalving,
    Trial,
    TrialTable,
    make_sampler,
    tune,
)

__all__ = ["TuneConfig", "load_tuning", "tune_training"]

Positive = Annotated[int, Field(ge=1)]


class TuneSection(Section):
    """What to train, and how to search."""

    train: str = ""  # settings of the training, a TOML file
    objective: Literal["test_error", "final_loss"] = "test_error"  # what to make small
    sampler: Literal["random", "halton", "grid", "tpe", "gp"] = "tpe"
    trials: Positive | None = None  # by default 20, or all of a grid; halving: of the first rung
    schedule: Literal["none", "asha", "halving"] = "none"  # end bad trials early
    factor: Annotated[int, Field(ge=2)] = 3  # of asha and halving
    first: Positive = 1  # epochs of the first rung
    ranks_per_trial: Positive = 1
    max_failures: Positive = 20  # trials in a row
    seed: Annotated[int, Field(ge=0)] = 0
    dir: str | None = None  # folder of the results; by default runs/<name of the file>
    resume: bool = False  # go on with the trials that are there
    parts: Positive = 1  # searches that share the folder and the trials, such as those of an array
    part: Annotated[int, Field(ge=0)] = 0  # which of them this one is


class TuneConfig(Section):
    """All settings of a tuning."""

    tune: TuneSection = TuneSection()
    space: dict[str, VariableConfig] = Field(default={})


def load_tuning(path: Path, assignments: Iterable[str] = ()) -> TuneConfig:
    """Read the settings of a tuning; local.

    Raises
    ------
    ConfigError
        Naming the key, what was expected, and what was found.
    """
    config = load(TuneConfig, path, assignments)
    if not config.space:
        raise ConfigError(f'{path}: there is nothing to tune; add a table [space."train.lr"]')
    return config


def tune_training(
    config: TuneConfig,
    comm: Communicator,
    observer: Callable[[list[Record], int], object] | None = None,
) -> tuple[Space, list[Record]]:
    """Try settings of a training; collective, the same result on every rank.

    Every trial trains from the same seed. Its value is the share of the test part that is labelled
    wrongly, or the final loss. Trials whose loss is no longer finite have failed.

    Returns
    -------
    space : Space
    records : list of Record
    """
    settings = config.tune
    table: TrialTable | None = None
    with comm.together():
        space = build_space(config.space)
        if not settings.train:
            raise ConfigError("tune.train must name a file, the settings of the training to tune")
        base = Path(settings.train)
        epochs = _trained(base, {}).train.epochs
        _check_space(space, base)
        sampler = _sampler(settings, space, epochs)
        if comm.rank == 0:
            table = _table(settings, space)

    def objective(trial: Trial) -> float:
        given = dict(trial.params)
        if trial.budget is not None:
            given["train.epochs"] = min(trial.budget, epochs)
        return _Run(_trained(base, given), trial, settings.objective).value()

    pruner: Pruner | None = None
    if settings.schedule == "asha":
        pruner = ASHA(settings.first, settings.factor)
    trials = None if settings.schedule == "halving" else settings.trials
    if trials is None and sampler.limit is None:
        trials = 20
    records = tune(
        comm,
        objective,
        sampler,
        trials=trials,
        pruner=pruner,
        table=table,
        part=(settings.part, settings.parts),
        ranks_per_trial=settings.ranks_per_trial,
        max_failures=settings.max_failures,
        observer=observer,
    )
    return space, records


def _check_space(space: Space, base: Path) -> None:
    """Raise unless the variables are settings of a training that take such values."""
    for name in space.variables:
        section, _, key = name.partition(".")
        if section not in Config.model_fields or not key:
            raise ConfigError(f"space.{name!r} is no setting of a training, such as train.lr")
    faults = []
    for number in range(20):  # some combinations may be refused, but not all
        try:
            _trained(base, Random(space).suggest(number).params)
            return
        except ConfigError as error:
            faults.append(error)
    raise faults[0]


def _table(settings: TuneSection, space: Space) -> TrialTable:
    """Return the table of the trials; that of a part has a file of its own beside the others'."""
    if settings.dir is None:
        return TrialTable()
    name = "trials.jsonl" if settings.parts == 1 else f"trials-{settings.part}.jsonl"
    path = Path(settings.dir) / name
    table = TrialTable(path, resume=settings.resume, shared="trials*.jsonl")
    for record in table.records:
        try:
            space.encode(record.params)
        except ValueError as error:
            raise ConfigError(
                f"cannot go on: {settings.dir} holds trials of another space ({error}); restore "
                "it, or name another tune.dir"
            ) from None
    return table


def _sampler(settings: TuneSection, space: Space, epochs: int) -> Sampler:
    if settings.part >= settings.parts:
        raise ConfigError(
            f"tune.part must be below tune.parts, got {settings.part} of {settings.parts}"
        )
    # The others draw by the number of the trial; the models would all draw the same at first.
    own = settings.part if settings.sampler in ("tpe", "gp") else 0
    sampler = make_sampler(settings.sampler, space, settings.seed + own)
    if settings.schedule != "halving":
        return sampler
    if settings.parts > 1:
        raise ConfigError(
            "tune.schedule = 'halving' compares all trials of a rung, which parts cannot; "
            "use 'asha', or leave tune.parts at 1"
        )
    if settings.sampler not in ("random", "halton"):
        raise ConfigError("tune.schedule = 'halving' needs tune.sampler = 'random' or 'halton'")
    trials, rungs = settings.trials or 27, 1
    while settings.first * settings.factor**rungs <= epochs and trials >= settings.factor**rungs:
        rungs += 1
    return SuccessiveHalving(sampler, trials, settings.first, settings.factor, rungs=rungs)


def _trained(path: Path, params: dict[str, Any]) -> Config:
    """Return the settings of a trial; it leaves no files."""
    assignments = [f"{name}={_toml(value)}" for name, value in params.items()]
    config = load_config(path, assignments)
    return config.model_copy(
        update={"run": config.run.model_copy(update={"dir": None, "resume": False})}
    )


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return json.dumps(value) if isinstance(value, str | list) else repr(value)


class _Run(Trainer):
    """A training that reports after each epoch."""

    def __init__(self, config: Config, trial: Trial, objective: str) -> None:
        super().__init__(config, trial.comm)
        self._trial = trial
        self._objective = objective

    def value(self) -> float:
        """Train, and return the value of the trial."""
        summary = self.run()
        return summary.final_loss if self._objective == "final_loss" else 1 - summary.test_accuracy

    def _record(self, epoch: int, meter: Meter) -> None:
        super()._record(epoch, meter)
        if epoch + 1 == self.config.train.epochs:
            return
        if self._objective == "final_loss":
            loss, _ = self.evaluate(self.data.train)
            self._trial.report(epoch + 1, loss)
        else:
            _, accuracy = self.evaluate(self.data.test)
            self._trial.report(epoch + 1, 1 - accuracy)
