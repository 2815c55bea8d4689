"""The plots of an experiment, each an SVG text that stands alone."""

import io
import itertools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from paropt_hpc.experiments.analysis import Analysis, Point

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["draw"]

COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444")
MARKERS = "osD^vP*"


def draw(analysis: Analysis) -> dict[str, str]:
    """Return title and SVG of every plot; empty without matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return {}
    shown = [point for point in analysis.points if point.runs]
    if not shown:
        return {}
    plots: dict[str, Callable[[Axes], None]] = {
        "Loss against time": lambda axes: _losses(axes, shown, "wall_s", "seconds of training"),
        "Loss against epochs": lambda axes: _losses(axes, shown, "epoch", "epochs"),
        "Where the time goes": lambda axes: _time_split(axes, shown),
        "Bytes a rank sends in a step": lambda axes: _bytes(axes, shown),
    }
    if len({point.ranks for point in shown}) > 1:
        plots["Speed-up to the target"] = lambda axes: _scaling(axes, analysis, shown)
    return {title: _svg(plot) for title, plot in plots.items()}


def _svg(plot: Callable[["Axes"], None]) -> str:
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    settings: Any = {"svg.hashsalt": "paropt", "font.size": 9, "axes.spines.top": False}
    settings |= {"axes.spines.right": False, "svg.fonttype": "none", "savefig.transparent": True}
    with rc_context(settings):
        figure = Figure(figsize=(6.4, 3.4), layout="constrained")
        plot(figure.add_subplot())
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()[text.getvalue().index("<svg") :]
    # What is black takes the colour of the text around it, on light paper as on dark.
    return svg.replace("#000000", "currentColor").replace("<text", '<text fill="currentColor"')


def _losses(axes: "Axes", points: list[Point], key: str, label: str) -> None:
    """Draw the mean loss of every epoch: all repeats, one colour a point."""
    for point, color in zip(points, itertools.cycle(COLORS), strict=False):
        for number, run in enumerate(point.runs):
            x = [record[key] for record in run.records]
            y = [record["loss"] for record in run.records]
            name = point.name if number == 0 else None
            axes.plot(x, y, color=color, linewidth=1, alpha=0.8, label=name)
    axes.set(xlabel=label, ylabel="training loss (nats)", yscale="log")
    axes.legend(frameon=False, fontsize=7)


def _time_split(axes: "Axes", points: list[Point]) -> None:
    names = [point.name for point in points]
    steps = [max(1, point.runs[0].summary["steps"]) for point in points]
    walls = [1e3 * p.spread("wall_s").median / n for p, n in zip(points, steps, strict=True)]
    talks = [w * p.spread("comm_share").median for p, w in zip(points, walls, strict=True)]
    works = [wall - talk for wall, talk in zip(walls, talks, strict=True)]
    axes.barh(names, works, color=COLORS[0], label="computing")
    axes.barh(names, talks, left=works, color=COLORS[1], label="communicating")
    axes.invert_yaxis()
    axes.set(xlabel="milliseconds a step")
    axes.legend(frameon=False, fontsize=7)


def _bytes(axes: "Axes", points: list[Point]) -> None:
    axes.barh([p.name for p in points], [p.bytes_per_step.median for p in points], color=COLORS[2])
    axes.invert_yaxis()
    axes.set(xlabel="bytes", xscale="symlog")


def _scaling(axes: "Axes", analysis: Analysis, points: list[Point]) -> None:
    groups: dict[tuple[tuple[str, str], ...], list[Point]] = {}
    for point in points:
        groups.setdefault(point.others, []).append(point)
    most = max(point.ranks for point in points)
    axes.plot([1, most], [1, most], color="#bbbbbb", linestyle="--", label="linear")
    styles = zip(itertools.cycle(COLORS), itertools.cycle(MARKERS), strict=False)
    for (others, group), (color, marker) in zip(groups.items(), styles, strict=False):
        known = [
            (p.ranks, analysis.speedup(p).median) for p in sorted(group, key=lambda p: p.ranks)
        ]
        known = [(ranks, ratio) for ranks, ratio in known if math.isfinite(ratio)]
        if known:
            name = ", ".join(label for _, label in others) or "all"
            axes.plot(*zip(*known, strict=True), color=color, marker=marker, label=name)
    ticks = sorted({1, *(point.ranks for point in points)})
    axes.set(xlabel="ranks", ylabel="times as fast to the target", xticks=ticks)
    axes.legend(frameon=False, fontsize=7)
