"""What a person sees: lines, tables, the progress bar, errors."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from paropt_hpc.cluster import Check, Fact
from paropt_hpc.experiments import comparison as compare_runs
from paropt_hpc.experiments import figures
from paropt_hpc.metaheuristics import Moment
from paropt_hpc.train.meter import Observer
from paropt_hpc.tuning import Record
from paropt_hpc.tuning.table import best_of

__all__ = [
    "checks",
    "comparison",
    "error",
    "facts",
    "line",
    "progress",
    "search",
    "search_progress",
    "summary",
    "table",
    "timings",
    "trials",
    "tuning_progress",
    "warning",
]

LAUNCHERS = ("mpiexec", "mpirun", "hydra", "prterun", "prted", "orted", "srun")


def line(text: str) -> None:
    """Print one line of output."""
    _out().print(escape(text), highlight=False, soft_wrap=True)


def error(text: str) -> None:
    """Print a fault on standard error, in one line where it has one."""
    _err().print(f"[red]paropt: error:[/] {escape(text)}", highlight=False, soft_wrap=True)


def warning(text: str) -> None:
    """Print what does not stop a run but should be known, on standard error."""
    _err().print(f"[yellow]paropt: warning:[/] {escape(text)}", highlight=False, soft_wrap=True)


def summary(values: Mapping[str, Any]) -> None:
    """Print the figures of one run."""
    table(["", "result"], [[label, text] for label, text in figures(values).items()])


def comparison(summaries: Mapping[str, Mapping[str, Any]]) -> None:
    """Print the figures of several runs side by side."""
    header, *rows = compare_runs(summaries)
    table(header, rows)


def facts(found: list[Fact]) -> None:
    """Print what this installation has; what is missing comes with its remedy."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for fact in found:
        mark = "[green]ok[/]" if fact.ok else "[yellow]--[/]"
        text = escape(fact.value) + (f"\n[dim]{escape(fact.remedy)}[/]" if fact.remedy else "")
        table.add_row(mark, fact.name, text)
    _out().print(table, highlight=False)


def checks(done: list[Check]) -> None:
    """Print the outcome of every selftest."""
    table = Table(box=None, pad_edge=False)
    for column in ("check", "result", "seconds"):
        table.add_column(column, justify="right" if column == "seconds" else "left")
    for check in done:
        result = f"[red]{escape(check.fault)}[/]" if check.fault else "[green]ok[/]"
        table.add_row(check.name, result, f"{check.seconds:.2f}")
    _out().print(table, highlight=False)


def timings(rows: list[tuple[int, dict[str, float]]]) -> None:
    """Print the microseconds of every algorithm by size, the fastest in colour."""
    table = Table("bytes", *rows[0][1], box=box.SIMPLE_HEAD)
    for nbytes, times in rows:
        best = min(times.values())
        cells = (
            f"[green]{1e6 * t:,.1f} us[/]" if t == best else f"{1e6 * t:,.1f} us"
            for t in times.values()
        )
        table.add_row(f"{nbytes:,}", *cells)
    _out().print(table, highlight=False)


@contextmanager
def progress(rank: int) -> Iterator[Observer | None]:
    """Show a progress bar on rank 0 while the block runs, and only on a terminal."""
    if rank != 0 or not _on_terminal(2):
        yield None
        return
    bar = Progress(
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[loss]}"),
        TimeRemainingColumn(),
        console=_err(),
        transient=True,
    )
    with bar:
        task = bar.add_task("training", total=None, loss="")
        yield lambda step, total, loss: bar.update(
            task, completed=step, total=total, loss=f"loss {loss:.4f}"
        )


@contextmanager
def search_progress(rank: int) -> Iterator[Callable[[Moment, float], object] | None]:
    """Show the best value and the speed of a search on rank 0, and only on a terminal."""
    if rank != 0 or not _on_terminal(2):
        yield None
        return
    columns = (TextColumn("searching"), TextColumn("{task.fields[said]}"), TimeElapsedColumn())
    with Progress(*columns, console=_err(), transient=True) as bar:
        task = bar.add_task("searching", total=None, said="")

        def tell(moment: Moment, seconds: float) -> None:
            speed = moment.evaluations / max(seconds, 1e-9)
            bar.update(
                task,
                said=f"generation {moment.generation:,}  best {moment.best_f:.6g}  "
                f"{moment.evaluations:,} evaluations, {speed:,.0f}/s  "
                f"diversity {moment.diversity:.3f}",
            )

        yield tell


def search(values: Mapping[str, Any]) -> None:
    """Print what a search came to."""
    failed = ", ".join(f"{count:,} {cause}" for cause, count in values["failures"].items())
    best_f, best, front = values["best_f"], values["best"], values["front"]
    if front is not None:
        rows = [["front", f"{len(front):,} points, in summary.json"]]
    else:
        rows = [["best value", "none" if best_f is None else f"{best_f:.10g}"]]
    if values["best_violation"]:
        rows.append(["constraint violation", f"{values['best_violation']:.4g}"])
    rows += [
        ["evaluations", f"{values['evaluations']:,}"],
        ["generations", f"{values['generations']:,}"],
        ["failed", failed or "none"],
        *([f"{cause}, for instance", _short(text)] for cause, text in values["causes"].items()),
        ["ended by", values["reason"]],
        ["time", f"{values['wall_s']:.2f} s"],
        ["evaluations/s", f"{values['evaluations_per_s']:,.0f}"],
        ["ranks", f"{values['ranks']}"],
        *(
            [name, _short(value)]
            for name, value in (best if isinstance(best, dict) else {}).items()
        ),
    ]
    table(["", "result"], rows)


@contextmanager
def tuning_progress(rank: int) -> Iterator[Callable[[list[Record], int], object] | None]:
    """Show trials done and running and the best value, on rank 0 and only on a terminal."""
    if rank != 0 or not _on_terminal(2):
        yield None
        return
    columns = (TextColumn("tuning"), TextColumn("{task.fields[said]}"), TimeElapsedColumn())
    with Progress(*columns, console=_err(), transient=True) as bar:
        task = bar.add_task("tuning", total=None, said="")

        def tell(records: list[Record], running: int) -> None:
            best = best_of(records)
            value = "none yet" if best is None else f"{best.value:.6g}"
            bar.update(task, said=f"{len(records)} done, {running} running, best {value}")

        yield tell


def trials(records: list[Record], shares: Mapping[str, float], most: int = 10) -> None:
    """Print the best trials, and what each parameter explains."""
    done = [record for record in records if record.value is not None]
    done.sort(key=lambda record: (-(record.budget or 0), record.state != "complete", record.value))
    names = list(done[0].params) if done else []
    rows = [
        [str(r.number), f"{r.value:.6g}", r.state, *(_short(r.params[name]) for name in names)]
        for r in done[:most]
    ]
    table(["trial", "value", "state", *names], rows)
    if shares:
        table(["parameter", "explains alone"], [[name, f"{s:.0%}"] for name, s in shares.items()])


def _short(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _on_terminal(stream: int) -> bool:
    """Say whether a standard stream ends at a terminal, directly or through an MPI launcher.

    A launcher hands its ranks a pipe, or a terminal of its own making, and copies what comes
    to its own stream; so where the parents are launchers, the outermost one of them decides.
    """
    terminal = os.isatty(stream)
    process = os.getppid()
    while process > 1 and _name(process).startswith(LAUNCHERS):
        terminal = _is_terminal(process, stream)
        process = _parent(process)
    return terminal


def _name(process: int) -> str:
    try:
        return Path(f"/proc/{process}/comm").read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _is_terminal(process: int, stream: int) -> bool:
    try:
        target = str(Path(f"/proc/{process}/fd/{stream}").readlink())
        return target.startswith(("/dev/pts/", "/dev/tty"))
    except OSError:
        return False


def _parent(process: int) -> int:
    try:
        status = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
    except OSError:
        return 0
    return int(status.rpartition(")")[2].split()[1])


def table(header: Sequence[str], rows: list[list[str]]) -> None:
    """Print rows below a header, the first column to the left."""
    printed = Table(box=box.SIMPLE_HEAD)
    for number, title in enumerate(header):
        printed.add_column(escape(title), justify="right" if number else "left")
    for row in rows:
        printed.add_row(*(escape(cell) for cell in row))
    _out().print(printed, highlight=False)


def _out() -> Console:
    return Console(force_terminal=_on_terminal(1))


def _err() -> Console:
    return Console(stderr=True, force_terminal=_on_terminal(2))
