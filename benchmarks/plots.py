"""One plot per subject of benchmarks/report.py, from the rows and ratios of its JSON.

Small SVG files whose text stays text; the same figures give the same file.
"""

import itertools
import re
from pathlib import Path
from typing import Any

__all__ = ["TITLES", "draw"]

#: what each subject's plot shows
TITLES = {
    "allreduce": "times faster than the best peer, by size",
    "index_codec": "bits per index against indices per second",
    "quantize": "GB/s of float32 input beside the best peer and a plain read",
    "topk": "share of the read bandwidth, by density",
}
OURS, PEER = "tab:blue", "tab:gray"


def draw(result: dict[str, Any], folder: Path) -> str | None:
    """Draw a subject into ``folder/performance-SUBJECT.svg`` and return the file's name.

    None where there is nothing to draw, or no matplotlib.
    """
    draws = {"allreduce": allreduce, "index_codec": codec, "quantize": quantize, "topk": topk}
    try:
        import matplotlib as mpl
    except ImportError:
        return None
    if result["subject"] not in draws or not result["rows"]:
        return None
    mpl.use("svg")
    mpl.rcParams |= {"svg.hashsalt": "paropt", "svg.fonttype": "none", "font.size": 9}
    import matplotlib.pyplot as plt

    figure = draws[result["subject"]](result, plt)
    figure.tight_layout()
    name = f"performance-{result['subject']}.svg"
    folder.mkdir(exist_ok=True)
    figure.savefig(folder / name, metadata={"Date": None})
    plt.close(figure)
    return name


def codec(result: dict[str, Any], plt: Any) -> Any:
    """Both axes of a codec, how small and how fast; one panel each way."""
    cases = ("encode, 1.0%", "decode, 1.0%")
    figure, axes = plt.subplots(1, 2, figsize=(10, 4))
    for axis, case in zip(axes, cases, strict=True):
        marks = {False: itertools.cycle("sP*h"), True: itertools.cycle("ov^<>DpX")}
        for row in (row for row in result["rows"] if row["case"] == case):
            speed = row["bytes"] / 4 / row["median_s"] / 1e6
            look = {"marker": next(marks[row["peer"]]), "color": PEER if row["peer"] else OURS}
            axis.plot(speed, row["bits_per_index"], ls="", ms=7, label=row["candidate"], **look)
        axis.set(title=case, xlabel="million indices per second", ylabel="bits per index")
        axis.set(xscale="log", yscale="log")
        label(axis.xaxis, {x: f"{x:,}" for x in (10, 100, 1000, 10_000)})
        label(axis.yaxis, {y: f"{y}" for y in (8, 10, 16, 32, 64, 100)})
    axes[1].legend(fontsize=8, bbox_to_anchor=(1.02, 0.5), loc="center left")
    return figure


def label(axis: Any, names: dict[float, str]) -> None:
    """Name these places of a logarithmic axis, and no others."""
    low, high = axis.get_view_interval()
    names = {place: name for place, name in names.items() if low <= place <= high}
    axis.set_ticks([*names], [*names.values()])
    axis.set_ticks([], minor=True)


def topk(result: dict[str, Any], plt: Any) -> Any:
    """Each candidate's share of a plain read against the density, n = 1e7."""
    lines: dict[str, list[tuple[float, float]]] = {}
    peers = {row["candidate"] for row in result["rows"] if row["peer"]}
    for row in result["rows"]:
        found = re.fullmatch(r"n=1e7, ([\d.]+)%", row["case"])
        if found and row["share_of_limit"]:
            point = (float(found[1]), 100 * row["share_of_limit"])
            lines.setdefault(row["candidate"], []).append(point)
    figure, axis = plt.subplots(figsize=(8, 3.5))
    marks = itertools.cycle("ov^<>DpX")
    for name, points in lines.items():
        style = {"color": PEER, "lw": 1} if name in peers else {"color": OURS, "lw": 2}
        axis.plot(*zip(*sorted(points), strict=True), next(marks) + "-", label=name, **style)
    axis.set(xscale="log", yscale="log", xlabel="density, %", ylabel="% of read bandwidth")
    label(axis.xaxis, {x: f"{x:g}" for x in (0.1, 1, 10)})
    label(axis.yaxis, {y: f"{y:g}" for y in (1, 2, 5, 10, 20, 50, 100)})
    axis.legend(fontsize=8, bbox_to_anchor=(1.02, 0.5), loc="center left")
    return figure


def quantize(result: dict[str, Any], plt: Any) -> Any:
    """Bars for the largest size: ours, the best peer, and the limit."""
    cases = [r for r in result["ratios"] if re.fullmatch(r"\w+, n=1e\+07", r["case"])]
    times = {(row["case"], row["candidate"]): row for row in result["rows"]}
    figure, axis = plt.subplots(figsize=(6.5, 3.5))
    for at, ratio in enumerate(cases):
        ours = times[ratio["case"], ratio["ours"]]
        peer = times[ratio["case"], ratio["best_peer"]]
        speed = ours["bytes"] / ours["median_s"] / 1e9
        mine = axis.bar(at - 0.2, speed, 0.4, color=OURS)
        best = axis.bar(at + 0.2, peer["bytes"] / peer["median_s"] / 1e9, 0.4, color=PEER)
        axis.annotate(ratio["best_peer"], (at + 0.2, 0.5), rotation=90, ha="center", fontsize=7)
        if ours["share_of_limit"]:
            limit = speed / ours["share_of_limit"]
            read = axis.hlines(limit, at - 0.4, at + 0.4, color="black", ls=":")
    axis.set_xticks(range(len(cases)), [case["case"].partition(",")[0] for case in cases])
    axis.set(ylabel="GB/s of input", ylim=(0, 1.25 * axis.get_ylim()[1]))
    labels = ("ours", "best peer", "a plain read of the input")
    axis.legend((mine, best, read), labels, fontsize=7, ncols=3, loc="upper center")
    return figure


def allreduce(result: dict[str, Any], plt: Any) -> Any:
    """How many times faster than the best peer of the size."""
    lines: dict[str, list[tuple[float, float]]] = {}
    for ratio in result["ratios"]:
        if ratio["case"].isdigit():
            lines.setdefault(ratio["ours"], []).append((int(ratio["case"]), ratio["ratio"]))
    figure, axis = plt.subplots(figsize=(6.5, 3.5))
    for name, points in lines.items():
        axis.plot(*zip(*sorted(points), strict=True), "o-", label=name)
    axis.axhline(1, color=PEER, ls=":")
    axis.set(xscale="log", xlabel="size of the buffer", ylabel="times the best peer")
    label(axis.xaxis, {size: size_text(size) for points in lines.values() for size, _ in points})
    if lines:
        axis.legend(fontsize=8)
    return figure


def size_text(size: int) -> str:
    """Return a number of bytes as people say it."""
    for unit, name in ((10**6, "MB"), (2**10, "KB")):
        if size >= unit:
            return f"{size // unit} {name}"
    return f"{size} B"
