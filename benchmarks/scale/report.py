"""Turn the rows of scale.py into ``docs/scaling.md`` and its plot; no figure is typed by hand.

python benchmarks/scale/report.py benchmarks/results/scale.json
"""

import json
import sys
from pathlib import Path

import agreement
import matplotlib
import scale
from matplotlib.axes import Axes

matplotlib.use("svg")
from matplotlib import pyplot

DOCS = scale.ROOT / "docs"
PLOT = "_static/scaling.svg"
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

The fastest of ours by length, where all of them were simulated:

{winners}

Short vectors are doubled and long ones go round; where hosts hold several ranks, short and middling
ones are reduced inside the host first. The more ranks, the longer a vector must be for the ring to
pay, since its latencies grow with their number and those of the others with its logarithm. Inside a
host messages at 10 GB/s stand for its shared memory here, which on real hosts is faster by several
times: there the hierarchical one wins for longer vectors than in this table.

{choice}

Times over the bound, the best of ours in bold where all of them were simulated; an empty cell was
not: with one rank on a host nothing is hierarchical. The column `mpi` is SimGrid's version of
MPICH's own choice.

{dense}

## Sparse sums and gossip

Seconds of one step, one rank on each host. The best dense all-reduce stands beside the exact sparse
schemes, the re-selection (which is not exact: what it drops goes back into the residual) and a step
of gossip (which does not average over all ranks: see the spectral gap).

{sparse}

{sparse_choice}

Every rank picks its indices at random here, so that the ranges of a split hold nearly as much as
was sent; where ranks agree on indices the split gains. Selection, coding and summing are not in
these times. A run counts coding and summing too when it chooses: on fast links they take longer
than the bytes, and dense wins earlier.

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
        winners=winners_table(times),
        choice=model_text(list(agreement.compare(times)), 'the model of `algorithm="auto"`'),
        sparse_choice=model_text(
            list(agreement.compare_sparse(times)), "the model of the sparse sum"
        ),
        sparse=sparse_table(times),
        missing=missing_text(missing),
    )
    (DOCS / "scaling.md").write_text(page.rstrip() + "\n", encoding="utf-8")


def dense_table(times: dict) -> str:
    """Return the table of times over the bound."""
    lines = [
        "| ranks | a host | floats | link | " + " | ".join(scale.DENSE) + " |",
        "|---:|---:|---:|---|" + "---:|" * len(scale.DENSE),
    ]
    for link, ranks, per_host, n in agreement.groups(times):
        found = {s: times.get((link, ranks, per_host, n, s)) for s in scale.DENSE}
        over = {s: row["seconds"] / row["bound_s"] for s, row in found.items() if row}
        ours = agreement.wanted(per_host)
        best = min(ours, key=over.__getitem__) if set(ours) <= set(over) else None
        cells = [f"{over[s]:.2f}" if s in over else "" for s in scale.DENSE]
        cells = [f"**{c}**" if s == best else c for s, c in zip(scale.DENSE, cells, strict=True)]
        lines.append(f"| {ranks} | {per_host} | {n:,} | {link} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def winners_table(times: dict) -> str:
    """Return the table of the fastest of ours: a row for each shape, a column for each length."""
    best = {tuple(case[:4]): case.best for case in agreement.compare(times)}
    lengths = sorted({n for *_, n in best})
    lines = [
        "| ranks | a host | link | " + " | ".join(f"{n:,} floats" for n in lengths) + " |",
        "|---:|---:|---|" + "---|" * len(lengths),
    ]
    for per_host, link, ranks in sorted({(p, link, r) for link, r, p, _ in best}):
        cells = [best.get((link, ranks, per_host, n), "") for n in lengths]
        lines.append(f"| {ranks} | {per_host} | {link} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def model_text(compared: list[agreement.Compared], of: str) -> str:
    """Say how often a model picks what wins here."""
    wrong = [case for case in compared if case.ratio > NEAR]
    text = (
        f"With the latency and bandwidth of these links and hosts, {of} picks the fastest of ours, "
        f"or one within {NEAR - 1:.0%} of it, in {len(compared) - len(wrong)} of {len(compared)} "
        "cases that were simulated with all of them."
    )
    lines = [
        f"- {case.ranks} ranks, {case.per_host} a host, {case.n:,} floats, {case.link}: it picks "
        f"{case.chosen}, {case.ratio:.2f} times the time of {case.best}"
        for case in wrong
    ]
    return "\n\n".join([text, "\n".join(lines)]) if lines else text


def sparse_table(times: dict) -> str:
    """Return the table of seconds of the sparse schemes and of gossip."""
    shown = (*scale.SPARSE, *scale.GOSSIP)
    lines = [
        "| ranks | floats | link | best dense | " + " | ".join(shown) + " |",
        "|---:|---:|---|---:|" + "---:|" * len(shown),
    ]
    for link, ranks, per_host, n in agreement.groups(times, (1,)):
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
