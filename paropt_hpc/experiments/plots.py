"""Plots of searches and tunings, from the files they leave; need matplotlib."""

import json
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from paropt_hpc.tuning import Record

__all__ = ["plot_search", "plot_trials"]


def plot_search(folder: Path) -> Path | None:
    """Draw how a search has converged and how diverse it stayed.

    Parameters
    ----------
    folder : Path
        A run folder with ``metrics.jsonl``; the plot is ``convergence.png`` there.

    Returns
    -------
    Path or None
        The plot; None without matplotlib, or with nothing to draw.
    """
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    moments = [json.loads(line) for line in lines]
    if not moments or (plt := _pyplot()) is None:
        return None
    evaluations = [moment["evaluations"] for moment in moments]
    figure, (above, below) = plt.subplots(2, sharex=True, figsize=(7, 6))
    # None, where there was none yet, becomes NaN, which is not drawn.
    best = np.array([moment["best_f"] for moment in moments], np.float64)
    median = np.array([moment["median_f"] for moment in moments], np.float64)
    above.plot(evaluations, best, label="best so far")
    above.plot(evaluations, median, ":", label="median of the generation")
    positive = best[best > 0]
    if not (best < 0).any() and positive.size and positive.max() > 10 * positive.min():
        above.set_yscale("log")
    above.set_ylabel("value")
    above.legend()
    below.plot(evaluations, [moment["diversity"] for moment in moments], color="tab:green")
    below.set(xlabel="evaluations", ylabel="diversity (uniform = 1)", yscale="log")
    return _saved(plt, figure, folder / "convergence.png")


def plot_trials(folder: Path, records: list[Record], shares: dict[str, float]) -> Path | None:
    """Draw the best value so far over the trials, and what each parameter explains alone.

    Returns
    -------
    Path or None
        ``trials.png`` in the folder; None without matplotlib, or with nothing to draw.
    """
    done = [record for record in records if record.value is not None]
    if not done or (plt := _pyplot()) is None:
        return None
    figure, axes = plt.subplots(1, 2, figsize=(10, 4), width_ratios=(2, 1))
    for state, mark in (("complete", "o"), ("pruned", "x")):
        points = [(i, r.value) for i, r in enumerate(done, 1) if r.state == state]
        if points:
            axes[0].plot(*zip(*points, strict=True), mark, label=state, markersize=4)
    complete = [r.value if r.state == "complete" else np.inf for r in done]
    best = np.minimum.accumulate(np.array(complete, np.float64))
    axes[0].step(range(1, len(done) + 1), best, where="post", label="best so far")
    axes[0].set(xlabel="trials, in the order of their end", ylabel="value")
    axes[0].legend()
    axes[1].barh(list(shares)[::-1], list(shares.values())[::-1])
    axes[1].set(xlabel="variance explained alone", xlim=(0, 1))
    return _saved(plt, figure, folder / "trials.png")


def _pyplot() -> Any:
    try:
        import matplotlib as mpl
    except ImportError:
        return None
    mpl.use("agg")
    import matplotlib.pyplot as plt

    return plt


def _saved(plt: Any, figure: Any, path: Path) -> Path:
    figure.tight_layout()
    # Searches that share a folder may draw at the same time.
    temporary = path.with_name(f".{path.stem}-{uuid4().hex}{path.suffix}")
    figure.savefig(temporary, dpi=120, format="png")
    plt.close(figure)
    temporary.replace(path)
    return path
