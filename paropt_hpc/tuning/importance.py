"""How much of the differences between trials each parameter explains by itself."""

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.metaheuristics import Space
from paropt_hpc.tuning.table import Record

__all__ = ["importance"]

_BINS = 8
_LEAST = 4  # trials in a bin, on average


def importance(space: Space, records: list[Record]) -> dict[str, float]:
    """Return for each variable the share of the values' variance that it explains alone.

    The values are ranked first, so that a trial that went astray does not outweigh all others.
    A variable's trials are put into bins of equal size, in the order of its scale; the share is
    the correlation ratio between bin and rank, less what as many bins of random numbers would
    explain (T. L. Kelley, "An unbiased correlation ratio measure", PNAS 21, 1935). What only a
    combination of variables explains is not counted.

    Parameters
    ----------
    space : Space
        With named variables.
    records : list of Record
        Failed ones are passed over; of several budgets only the smallest counts, which all
        trials had. Where some were pruned, the first value that each reported counts.

    Returns
    -------
    dict of str to float
        In [0, 1], the most important first; empty where there are fewer than 8 trials.
    """
    fit = [r for r in records if r.state != "failed" and r.value is not None]
    least = min((r.budget or 0 for r in fit), default=0)
    fit = [r for r in fit if (r.budget or 0) == least]
    if len(fit) < 2 * _LEAST:
        return {}
    ranks = _ranks(_comparable(fit))
    rows = np.array([space.encode(r.params) for r in fit])
    shares = {
        name: max(_explained(rows[:, i], ranks) for i in range(*columns.indices(rows.shape[1])))
        for name, columns in space.columns.items()
    }
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def _comparable(records: list[Record]) -> NDArray[np.float64]:
    """Return values of the same step: the first that was reported where trials were pruned."""
    first = {record.steps[0][0] if record.steps else None for record in records}
    if (
        any(record.state == "pruned" for record in records)
        and len(first) == 1
        and None not in first
    ):
        return np.array([record.steps[0][1] for record in records])
    return np.array([record.value for record in records], np.float64)


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ranks, equal values sharing their mean."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    means = ends - (counts + 1) / 2
    return np.asarray(means[inverse], np.float64)


def _explained(column: NDArray[np.float64], ranks: NDArray[np.float64]) -> float:
    n = len(column)
    distinct, bins = np.unique(column, return_inverse=True)
    count = min(_BINS, max(2, n // _LEAST))
    if len(distinct) > count:
        bins = np.minimum(_ranks(column) * count // n, count - 1).astype(np.int64)
    sizes = np.bincount(bins)
    kept = sizes > 0
    means = np.bincount(bins, ranks)[kept] / sizes[kept]
    total = ((ranks - ranks.mean()) ** 2).sum()
    k = int(kept.sum())
    if total == 0 or k < 2 or n <= k:
        return 0.0
    between = float((sizes[kept] * (means - ranks.mean()) ** 2).sum() / total)
    return max(0.0, 1 - (1 - between) * (n - 1) / (n - k))
