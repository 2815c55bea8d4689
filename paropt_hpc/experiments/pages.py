"""The report of an experiment: Markdown for a repository, one HTML file for people."""

import math
from collections.abc import Callable
from pathlib import Path

import jinja2

from paropt_hpc.experiments.analysis import Analysis, Point, Spread
from paropt_hpc.experiments.charts import draw
from paropt_hpc.experiments.report import data_size
from paropt_hpc.experiments.verdicts import verdicts

__all__ = ["HEADER", "markdown", "overview", "table", "write_report"]

HEADER = (
    "run",
    "reached the target",
    "time to target",
    "speed-up",
    "epochs to target",
    "test accuracy",
    "samples/s",
    "time of an epoch",
    "communication",
    "jitter",
    "sent a step",
)


# What of it fits on a terminal.
_BRIEF = (
    "run",
    "reached the target",
    "time to target",
    "speed-up",
    "epochs to target",
    "test accuracy",
)


def overview(analysis: Analysis) -> tuple[list[str], list[list[str]]]:
    """Return header and rows of the most important figures, medians alone."""
    columns = [HEADER.index(name) for name in _BRIEF]
    rows = [[row[i].split(" (")[0] for i in columns] for row in table(analysis)]
    return ["run", "reached", "time", "speed-up", "epochs", "accuracy"], rows


def table(analysis: Analysis) -> list[list[str]]:
    """Return one row of figures for every point, as `HEADER` names them; medians with extremes."""
    return [_row(analysis, point) for point in analysis.points]


def _row(analysis: Analysis, point: Point) -> list[str]:
    return [
        point.name,
        f"{point.arrived} of {len(point.runs)}",
        _written(point.seconds_to_target, lambda value: f"{value:.3g} s"),
        _written(analysis.speedup(point), lambda value: f"{value:.2f}"),
        _written(point.epochs_to_target, lambda value: f"{value:g}"),
        _written(point.spread("test_accuracy"), lambda value: f"{value:.4f}"),
        _written(point.spread("samples_per_s"), lambda value: f"{value:,.0f}"),
        _written(point.epoch_seconds, lambda value: f"{value:.3g} s"),
        _written(point.spread("comm_share"), lambda value: f"{value:.0%}"),
        _written(point.spread("comm_jitter"), lambda value: f"{value:.0%}"),
        _written(point.bytes_per_step, data_size),
    ]


def _written(spread: Spread, form: Callable[[float], str]) -> str:
    """Write a median, with the extremes where they differ from it."""
    if not math.isfinite(spread.median):
        return "-"
    median, low, high = map(form, spread)
    return median if low == high else f"{median} ({low} to {high})"


def markdown(analysis: Analysis) -> str:
    """Return the report as Markdown: the table, and what it means."""
    lines = [f"# {analysis.title}", "", _preamble(analysis), ""]
    lines += [f"| {' | '.join(HEADER)} |", f"|{'---|' * len(HEADER)}"]
    lines += [f"| {' | '.join(row)} |" for row in table(analysis)]
    lines += ["", "## What it means", "", *(f"- {text}" for text in verdicts(analysis))]
    return "\n".join(lines) + "\n"


def write_report(analysis: Analysis, folder: Path) -> list[Path]:
    """Write ``report.md`` and ``report.html`` into a folder; return their paths."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("paropt_hpc.experiments", "."),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html.j2").render(
        title=analysis.title,
        preamble=_preamble(analysis),
        header=HEADER,
        rows=table(analysis),
        verdicts=verdicts(analysis),
        plots=draw(analysis),
    )
    written = []
    for name, text in (("report.md", markdown(analysis)), ("report.html", page)):
        path = folder / name
        temporary = path.with_name(f".{name}.tmp")
        temporary.write_text(text, encoding="utf-8")
        temporary.replace(path)
        written.append(path)
    return written


def _preamble(analysis: Analysis) -> str:
    target = analysis.target
    relation = "at most" if target.metric == "loss" else "at least"
    metric = target.metric.replace("_", " ")
    return (
        f"The target is a {metric} of {relation} {target.value:g}. Medians, with the extremes of "
        "the repeats in brackets. Speed-up is the ratio of the times to the target, against the "
        "same settings on the fewest ranks."
    )
