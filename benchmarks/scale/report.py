"""Turn the rows of scale.py into ``docs/scaling.md`` and its plot; no figure is typed by hand.

python benchmarks/scale/report.py benchmarks/results/scale.json
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import matplotlib
import scale
from matplotlib.axes import Axes

from paropt_hpc.comm.tuning import CostModel, Shape

matplotlib.use("svg")
from matplotlib import pyplot

DOCS = scale.ROOT / "docs"
PLOT = "_static/scaling.svg"
OURS = ("ring", "recursive-doubling", "hierarchical")
NEAR = 1.1  # a choice this near to the best one counts as right

PAGE = """<!-- written by benchmarks/scale/report.py -->
# Scaling to a thousand ranks

The sources of the collectives, compiled unchanged, run here on a simulated cluster: SimGrid's fat
tree of 1024 hosts with links of 10 or 100 Gbit/s and 1 us, where a message costs half a microsecond
of processor on either side and nothing else but the network takes time. The bound is what no
algorithm can beat between so many hosts: log2 of their number in latencies, and 2 (H-1)/H of the
buffer at the full rate of a link. For the sparse schemes it is that of the entries sent (density
{density:.0%}), for gossip one latency and one buffer.

![Time over the bound against the number of ranks]({plot})

## Which all-reduce wins

Times over the bound. The best of ours is in bold where all of them were simulated; an empty cell
was not, because it takes too long (a ring of 1024 ranks sends two million messages). The column
`mpi` is SimGrid's version of MPICH's own choice. One rank on each host, and eight.

{dense}

{choice}

## Sparse sums and gossip

Seconds of one step, one rank on each host. The best dense all-reduce stands beside the exact sparse
schemes, the re-selection (which is not exact: what it drops goes back into the residual) and a step
of gossip (which does not average over all ranks: see the spectral gap).

{sparse}

Every rank picks its indices at random here, so that the ranges of a split hold nearly as much as
was sent; where ranks agree on indices the split gains. Selection, coding and summing are not in
these times.

{missing}
"""


def main() -> None:
    """Read the rows, write the page and the plot."""
    rows = json.loads(Path(sys.argv[1]).read_text())["rows"]
    times = {tuple(row[key] for key in scale.CASE): row for row in rows if row["seconds"]}
    missing = [row for row in rows if not row["seconds"]]
    draw(times, DOCS / PLOT)
    page = PAGE.format(
        density=scale.DENSITY,
        plot=PLOT,
        dense=dense_table(times),
        choice=model_text(times),
        sparse=sparse_table(times),
        missing=missing_text(missing),
    )
    (DOCS / "scaling.md").write_text(page, encoding="utf-8")


def groups(times: dict, per_host: Iterable[int]) -> list[tuple]:
    """List the cases, without the scheme, that any dense all-reduce was simulated for."""
    found = {case[:4] for case in times if case[4] in scale.DENSE and case[2] in per_host}
    return sorted(found, key=lambda case: (case[2], case[3], case[0], case[1]))


def wanted(per_host: int) -> tuple[str, ...]:
    """Return those of our dense algorithms that there are for so many ranks on a host."""
    return OURS if per_host > 1 else OURS[:2]


def whole(found: Iterable[str], per_host: int) -> bool:
    """Say whether all of them were simulated."""
    return set(wanted(per_host)) <= set(found)


def dense_table(times: dict) -> str:
    """Return the table of times over the bound."""
    lines = [
        "| ranks | a host | floats | link | " + " | ".join(scale.DENSE) + " |",
        "|---:|---:|---:|---|" + "---:|" * len(scale.DENSE),
    ]
    for link, ranks, per_host, n in groups(times, scale.PER_HOST):
        found = {s: times.get((link, ranks, per_host, n, s)) for s in scale.DENSE}
        over = {s: row["seconds"] / row["bound_s"] for s, row in found.items() if row}
        best = min(wanted(per_host), key=over.__getitem__) if whole(over, per_host) else None
        cells = [f"{over[s]:.2f}" if s in over else "" for s in scale.DENSE]
        cells = [f"**{c}**" if s == best else c for s, c in zip(scale.DENSE, cells, strict=True)]
        lines.append(f"| {ranks} | {per_host} | {n:,} | {link} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def model_text(times: dict) -> str:
    """Say how often the model behind ``algorithm="auto"`` picks what wins here."""
    right, wrong = 0, []
    for link, ranks, per_host, n in groups(times, scale.PER_HOST):
        seconds = {
            s.replace("-", "_"): times[link, ranks, per_host, n, s]["seconds"]
            for s in OURS
            if (link, ranks, per_host, n, s) in times
        }
        if not whole({name.replace("_", "-") for name in seconds}, per_host):
            continue
        chosen = predicted(link, ranks, per_host, 4 * n, seconds)
        best = min(seconds, key=seconds.__getitem__)
        if seconds[chosen] <= NEAR * seconds[best]:
            right += 1
        else:
            wrong.append(
                f"- {ranks} ranks, {per_host} a host, {n:,} floats, {link}: it picks {chosen}, "
                f"{seconds[chosen] / seconds[best]:.2f} times the time of {best}"
            )
    text = (
        f'With the latency and bandwidth of these links, the model of `algorithm="auto"` picks the '
        f"fastest of ours, or one within {NEAR - 1:.0%} of it, in {right} of {right + len(wrong)} "
        "cases that were simulated with all of them."
    )
    return text + ("\n\n" + "\n".join(wrong) if wrong else "")


def predicted(link: str, ranks: int, per_host: int, nbytes: int, among: dict) -> str:
    """Return the choice of the model among the algorithms that were simulated."""
    model = CostModel(
        link_latency=4 * scale.LATENCY + 2 * scale.OVERHEAD,
        link_bandwidth=scale.RATES[link],
        memory_bandwidth=1e10,
    )
    shape = Shape(ranks, ranks // per_host, per_host, 1, shares_memory=per_host > 1)
    return min(among, key=lambda name: model.seconds(name, nbytes, shape))


def sparse_table(times: dict) -> str:
    """Return the table of seconds of the sparse schemes and of gossip."""
    shown = (*scale.SPARSE, *scale.GOSSIP)
    lines = [
        "| ranks | floats | link | best dense | " + " | ".join(shown) + " |",
        "|---:|---:|---|---:|" + "---:|" * len(shown),
    ]
    for link, ranks, per_host, n in groups(times, (1,)):
        case = (link, ranks, per_host, n)
        dense = [times[*case, s]["seconds"] for s in scale.DENSE if (*case, s) in times]
        least = _seconds(min(dense)) if (*case, "ring") in times else ""
        cells = [_seconds(times[*case, s]["seconds"]) if (*case, s) in times else "" for s in shown]
        lines.append(f"| {ranks} | {n:,} | {link} | {least} | {' | '.join(cells)} |")
    return "\n".join(lines)


def missing_text(missing: list[dict]) -> str:
    """Say which simulations took too long."""
    if not missing:
        return ""
    cases = sorted({f"{row['scheme']} on {row['ranks']} ranks" for row in missing})
    return f"Too long to simulate in the time given, for one length or more: {', '.join(cases)}."


def draw(times: dict, path: Path) -> None:
    """Draw time over the bound against the ranks: one panel for each link and length."""
    lengths = sorted({case[3] for case in times})
    figure, panels = pyplot.subplots(
        len(scale.RATES), len(lengths), figsize=(11, 6), sharex=True, squeeze=False
    )
    for row, link in zip(panels, scale.RATES, strict=True):
        for panel, n in zip(row, lengths, strict=True):
            draw_panel(panel, times, link, n)
            panel.set_title(f"{link}, {n:,} floats", fontsize=9)
    for panel in panels[-1]:
        panel.set_xlabel("ranks, one on each host")
    for row in panels:
        row[0].set_ylabel("time / bound")
    handles, labels = panels[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=4, frameon=False, fontsize=9)
    figure.tight_layout(rect=(0, 0.1, 1, 1))
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without a date or random names, so that equal rows give an equal file.
    matplotlib.rcParams["svg.hashsalt"] = "scaling"
    figure.savefig(path, metadata={"Date": None})


def draw_panel(panel: Axes, times: dict, link: str, n: int) -> None:
    """Draw the schemes of one link and length."""
    for scheme in scale.SCHEMES:
        points = [
            (ranks, row["seconds"] / row["bound_s"])
            for (rate, ranks, per_host, length, s), row in sorted(times.items())
            if (rate, per_host, length, s) == (link, 1, n, scheme)
        ]
        if points:
            dashed = "-" if scheme in scale.DENSE else "--"
            panel.plot(*zip(*points, strict=True), dashed, marker="o", ms=3, label=scheme)
    panel.set_xscale("log", base=2)
    panel.set_yscale("log")
    panel.axhline(1, color="grey", lw=0.6)
    panel.grid(alpha=0.3)


def _seconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.3g} us"


if __name__ == "__main__":
    main()
