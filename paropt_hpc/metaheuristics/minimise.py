"""From settings to results in a folder."""

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from paropt_hpc.comm import Communicator
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
        The summary: best values, or a front of several objectives, counts, seconds. There is None
        for a number that is not finite, such as the best value where all evaluations have failed.

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
    evaluator = ManagerWorker if config.run.evaluator == "manager" else RowSplit
    search = Search(
        comm,
        algorithms,
        objective,
        migration=migration,
        evaluator=evaluator,
        max_failures=config.run.max_failures,
        settings=config.identity(),
    )
    # Absolute, for an objective may change the working folder.
    place = None if config.run.dir is None else Path(config.run.dir).absolute()
    if place is not None:
        checkpoints = Checkpoints(place / "checkpoints", comm)
        if config.run.resume:  # what is another search's stays as it is
            search.resume(checkpoints)
        with comm.together():
            if comm.rank == 0:
                folder = RunFolder(place, config, config.run)
                folder.begin()
    if config.islands.asynchronous:
        outcome, log = search.run_asynchronous(budget, observer=observer)
        with comm.together():
            if comm.rank == 0 and place is not None:
                log.save(place / "migration.jsonl")
    else:
        outcome = search.run(
            budget,
            checkpoints=checkpoints,
            every=config.run.checkpoint_every,
            observer=observer,
        )
    search.free()
    summary = _summary(outcome, algorithms[0].space, comm.size)
    if folder is not None:
        folder.keep_metrics(0)
        for moment in outcome.history:
            folder.add_metrics(_plain(moment._asdict()))
        folder.write_summary(summary)
    return summary


def _summary(outcome: Outcome, space: Space, ranks: int) -> dict[str, Any]:
    best = None if outcome.best_x is None else space.decode(outcome.best_x)
    front = None
    if outcome.front is not None:
        front = [{"f": f, "values": space.decode(row), "row": row}
                 for row, f in zip(*outcome.front, strict=True)]  # fmt: skip
    summary = {
        "ranks": ranks,
        "best_f": outcome.best_f,
        "best_violation": outcome.best_violation,
        "best": best,
        "best_row": outcome.best_x,
        "front": front,
        "evaluations": outcome.evaluations,
        "generations": outcome.generations,
        "failures": outcome.failures,
        "causes": outcome.causes,
        "reason": outcome.reason,
        "wall_s": outcome.seconds,
        "evaluations_per_s": outcome.evaluations / max(outcome.seconds, 1e-9),
        "cores": os.cpu_count(),
    }
    plain: dict[str, Any] = _plain(summary)
    return plain


def _plain(value: Any) -> Any:
    """Return what JSON can hold."""
    if isinstance(value, dict):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_plain(entry) for entry in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return None if isinstance(value, float) and not math.isfinite(value) else value
