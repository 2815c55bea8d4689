"""From settings to results in a folder."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from paropt_hpc.comm import Communicator
from paropt_hpc.metaheuristics.asynchronous import MigrationLog
from paropt_hpc.metaheuristics.config import SearchConfig
from paropt_hpc.metaheuristics.evaluators import RowSplit
from paropt_hpc.metaheuristics.manager import ManagerWorker
from paropt_hpc.metaheuristics.progress import Moment, Outcome
from paropt_hpc.metaheuristics.search import Search
from paropt_hpc.metaheuristics.space import Space
from paropt_hpc.runs import Checkpoints, RunFolder

__all__ = ["minimise"]


def minimise(
    config: SearchConfig,
    comm: Communicator,
    observer: Callable[[Moment, float], object] | None = None,
) -> dict[str, Any]:
    """Search as the settings say; collective, the same result on every rank.

    With a ``run.dir`` its results are there: ``config.toml``, ``metrics.jsonl`` with the figures of
    the meetings, ``summary.json``, checkpoints, and for asynchronous islands ``migration.jsonl``.

    Returns
    -------
    dict
        The summary: best values, counts, seconds.

    Raises
    ------
    ConfigError, DataError, EvaluationError, StoppedError
        On every rank.
    """
    folder, checkpoints = None, None
    with comm.together():
        objective, algorithms = config.build()
        budget = config.limits()
        migration = config.migration()
        if config.run.dir is not None and comm.rank == 0:
            folder = RunFolder(Path(config.run.dir), config, config.run)
    if config.run.dir is not None:
        checkpoints = Checkpoints(Path(config.run.dir) / "checkpoints", comm)
    evaluator = ManagerWorker if config.run.evaluator == "manager" else RowSplit
    search = Search(
        comm,
        algorithms,
        objective,
        migration=migration,
        evaluator=evaluator,
        max_failures=config.run.max_failures,
    )
    if config.islands.asynchronous:
        outcome, log = search.run_asynchronous(budget, observer=observer)
        _keep_log(comm, config, log)
    else:
        outcome = search.run(
            budget,
            checkpoints=checkpoints,
            every=config.run.checkpoint_every,
            resume=config.run.resume,
            observer=observer,
        )
    search.free()
    summary = _summary(outcome, algorithms[0].space, comm.size)
    if folder is not None:
        folder.keep_metrics(0)
        for moment in outcome.history:
            folder.add_metrics(moment._asdict())
        folder.write_summary(summary)
    return summary


def _keep_log(comm: Communicator, config: SearchConfig, log: MigrationLog) -> None:
    with comm.together():
        if comm.rank == 0 and config.run.dir is not None:
            log.save(Path(config.run.dir) / "migration.jsonl")


def _summary(outcome: Outcome, space: Space, ranks: int) -> dict[str, Any]:
    best = None if outcome.best_x is None else space.decode(outcome.best_x)
    return {
        "ranks": ranks,
        "best_f": outcome.best_f,
        "best_violation": outcome.best_violation,
        "best": _plain(best),
        "best_row": _plain(outcome.best_x),
        "evaluations": outcome.evaluations,
        "generations": outcome.generations,
        "failures": outcome.failures,
        "reason": outcome.reason,
        "wall_s": outcome.seconds,
        "evaluations_per_s": outcome.evaluations / max(outcome.seconds, 1e-9),
        "cores": os.cpu_count(),
    }


def _plain(value: Any) -> Any:
    """Return what JSON can hold."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return value
