"""Measure candidates side by side in one run, and tell the result without flattery.

Candidates of a case take turns: each is timed once, then each again, so that whatever else
the machine does falls on all of them alike. Inputs are rewritten before every timed call.
Figures are medians, with the minimum beside them, and a ratio is always taken within one run.
Where the machine's own limit for the same bytes is known, every figure is a share of it.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table
from worker import Seconds

__all__ = ["Bench", "Row", "Seconds", "copy_seconds", "hot", "read_seconds", "time_text"]

Call = Callable[[], object]


def hot(call: Call, times: int = 7) -> Callable[[], Seconds]:
    """Return a call that measures itself in the cache: the median of several in a row."""

    def run() -> Seconds:
        taken = []
        for _ in range(times):
            started = time.perf_counter()
            call()
            taken.append(time.perf_counter() - started)
        return Seconds(statistics.median(taken))

    return run


@dataclass
class Row:
    """One candidate in one case."""

    subject: str
    case: str
    candidate: str
    peer: bool  # somebody else's
    median_s: float
    min_s: float
    bytes: int  # that the task must move, or the size of its input
    share_of_limit: float | None = None  # limit's time over ours; None where no limit is known
    bits_per_index: float | None = None


@dataclass
class Bench:
    """The rows and ratios of one subject.

    Parameters
    ----------
    subject : str
        The stem of what is measured.
    repeats : int
        Timed calls of every candidate of a case.
    synchronise : callable, optional
        Called before every timed call: a barrier.
    slowest : callable, optional
        Turns this rank's seconds into those of the slowest rank; collective.
    quiet : bool
        Print nothing: ranks above 0.
    extra : dict
        What else goes into the file.
    """

    subject: str
    repeats: int = 21
    synchronise: Call = lambda: None
    slowest: Callable[[float], float] = lambda seconds: seconds
    quiet: bool = False
    rows: list[Row] = field(default_factory=list)
    ratios: list[dict[str, object]] = field(default_factory=list)
    extra: dict[str, object] = field(default_factory=dict)

    def case(
        self,
        name: str,
        ours: Mapping[str, Call],
        peers: Mapping[str, Call],
        *,
        moved: int,
        limit_s: float | None = None,
        limit: Call | None = None,
        before: Call = lambda: None,
        bits: Mapping[str, float] | None = None,
    ) -> dict[str, Row]:
        """Time all candidates of a case in turns.

        Parameters
        ----------
        ours, peers : mapping of str to callable
            The candidates. The best of each side, by median, makes the ratio. One that returns
            `Seconds` has measured itself, perhaps in another process.
        moved : int
            Bytes that the task must move.
        limit_s : float, optional
            What the machine needs for the same bytes, measured in this run.
        limit : callable, optional
            The same as a call, which then takes turns with the candidates.
        before : callable
            Rewrites the inputs before every timed call; not timed.
        bits : mapping of str to float, optional
            Bits per index of candidates that encode.
        """
        floor = {"limit": limit} if limit is not None else {}
        seconds = self._measure({**ours, **peers, **floor}, before)
        if floor:
            limit_s = statistics.median(seconds.pop("limit"))
        rows = {}
        for candidate, times in seconds.items():
            median = statistics.median(times)
            rows[candidate] = Row(
                subject=self.subject,
                case=name,
                candidate=candidate,
                peer=candidate in peers,
                median_s=median,
                min_s=min(times),
                bytes=moved,
                share_of_limit=limit_s / median if limit_s else None,
                bits_per_index=(bits or {}).get(candidate),
            )
        self.rows += rows.values()
        if ours and peers:
            self._compare(name, rows, ours, peers)
        self._print(name, list(rows.values()))
        return rows

    def _measure(self, calls: Mapping[str, Call], before: Call) -> dict[str, list[float]]:
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(self.repeats + 1):
            for name, call in calls.items():
                before()
                self.synchronise()
                started = time.perf_counter()
                returned = call()
                taken = time.perf_counter() - started
                taken = self.slowest(returned if isinstance(returned, Seconds) else taken)
                if turn:  # the first turn warms up
                    seconds[name].append(taken)
        return seconds

    def _compare(
        self,
        name: str,
        rows: Mapping[str, Row],
        ours: Mapping[str, Call],
        peers: Mapping[str, Call],
    ) -> None:
        own = min((rows[c] for c in ours), key=lambda row: row.median_s)
        self.beside(name, own, min((rows[c] for c in peers), key=lambda row: row.median_s))

    def beside(self, name: str, own: Row, peer: Row) -> None:
        """Add the ratio to one peer of a case, whether it is the best or not."""
        self.ratios.append(
            {
                "case": name,
                "ours": own.candidate,
                "best_peer": peer.candidate,
                "ratio": peer.median_s / own.median_s,
            }
        )

    def note(self, text: str) -> None:
        """Print what the figures mean, and keep it for the page."""
        self.extra.setdefault("notes", []).append(text)  # type: ignore[attr-defined]
        if not self.quiet:
            print(f"  {text}\n")

    def _print(self, name: str, rows: list[Row]) -> None:
        if self.quiet:
            return
        table = Table("", "median", "min", "GB/s", "of limit", "bits/index", title=name)
        for row in rows:
            table.add_row(
                row.candidate + (" (peer)" if row.peer else ""),
                time_text(row.median_s),
                time_text(row.min_s),
                f"{row.bytes / row.median_s / 1e9:.2f}",
                "" if row.share_of_limit is None else f"{row.share_of_limit:.0%}",
                "" if row.bits_per_index is None else f"{row.bits_per_index:.2f}",
            )
        console = Console()
        console.print(table)
        if self.ratios and self.ratios[-1]["case"] == name:
            last = self.ratios[-1]
            console.print(f"  {last['ours']}: {last['ratio']:.2f} x {last['best_peer']}\n")

    def finish(self, arguments: argparse.Namespace) -> None:
        """Write the JSON file that ``--json`` names."""
        if self.quiet or arguments.json is None:
            return
        kept: dict[str, list[dict[str, object]]] = {"rows": [], "ratios": []}
        if arguments.add and arguments.json.exists():
            kept = json.loads(arguments.json.read_text(encoding="utf-8"))
        new = {row.case for row in self.rows} | {ratio["case"] for ratio in self.ratios}
        rows = [asdict(row) for row in self.rows]
        result = {
            "subject": self.subject,
            "machine": machine(),
            "rows": [*(row for row in kept["rows"] if row["case"] not in new), *rows],
            "ratios": [*(r for r in kept["ratios"] if r["case"] not in new), *self.ratios],
            **self.extra,
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return the parser that all benchmarks share: ``--json FILE``, ``--add``, ``--repeats N``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", type=Path, help="write rows and ratios to this file")
    parser.add_argument("--add", action="store_true", help="keep its cases that are not measured")
    parser.add_argument("--repeats", type=int, default=21, help="timed calls per candidate")
    return parser


def machine() -> dict[str, object]:
    """Return what the figures were measured on."""
    model = platform.processor() or platform.machine()
    for line in _lines(Path("/proc/cpuinfo")):
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "numpy": np.__version__,
        "command": " ".join(Path(word).name for word in sys.argv),
    }


def read_seconds(nbytes: int, repeats: int = 9) -> float:
    """Measure how long one thread needs to read this many bytes: the floor of a selection."""
    from paropt_hpc.kernels.backend import implementation

    data = np.ones(max(1, nbytes // 4), np.float32)
    return _best(lambda: implementation().read_all(data), repeats)


def copy_seconds(nbytes: int, repeats: int = 9) -> float:
    """Measure how long one thread needs to copy this many bytes."""
    source = np.ones(max(1, nbytes), np.uint8)
    target = np.zeros_like(source)
    return _best(lambda: np.copyto(target, source), repeats)


def _best(call: Call, repeats: int) -> float:
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return statistics.median(times)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def time_text(seconds: float) -> str:
    """Return a time with three digits and its unit."""
    for unit, factor in (("s", 1), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
