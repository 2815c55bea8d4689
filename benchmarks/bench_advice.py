"""What the advisor predicts for every way of running, beside what training in that way takes.

    sudo python benchmarks/bench_advice.py --json benchmarks/results/advice.json

Makes hosts from network namespaces, with links of a given rate, measures model and network there
as ``paropt advise`` does, and trains in every way with the settings that the advisor names. Prints
each prediction that is more than 25 % off, and whether the way it would choose is the fastest one.
With ``--json`` the rows replace those of the same hosts and rate in the file, and docs/advice.md is
written from it.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from network_namespaces import SlowNetwork, check_rights
from rich.console import Console
from rich.table import Table
from slow_network import mpiexec, read_epochs, training_command, training_config

LIMIT = 0.25  # of the measured time
# Mbit/s, and hidden units: gradients so long that the link, not the cores that all ranks share,
# is what is measured.
WIDTHS = {100: 128, 1000: 512}
BATCH = 12  # for any number of ranks, and for one less, as beside a server
PAGE = Path(__file__).parents[1] / "docs" / "advice.md"
INTRODUCTION = """# How well the advice predicts

Written by `benchmarks/bench_advice.py` from `benchmarks/results/advice.json`: what `paropt advise`
predicts for one batch of 12 samples of the digits, a network with two hidden layers, one rank on
each host, beside what training takes in each way, over links that are shaped to their rate. The
network is the larger the faster the link, since all ranks share the cores of one machine. A
prediction that is more than 25 % off is marked, as is every pair of ways that it puts in the wrong
order by more than that.
"""
Row = dict[str, object]


def main() -> None:
    """Predict, train, compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[2, 4], help="one rank on each")
    parser.add_argument(
        "--rate", type=int, nargs="+", choices=WIDTHS, default=list(WIDTHS), help="Mbit/s"
    )
    parser.add_argument("--epochs", type=int, default=2, help="the first is not counted")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--predict", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.predict:
        predict(*map(Path, options.predict))
        return
    check_rights()
    for hosts in options.hosts:
        for rate in options.rate:
            rows = compare(options, hosts, rate)
            tell(rows, f"{hosts} hosts, {rate:g} Mbit/s")
            if options.json is not None:
                keep(options.json, rows)


def compare(options: argparse.Namespace, hosts: int, rate: float) -> list[Row]:
    """Return prediction and measurement of every way on so many hosts."""
    with SlowNetwork(hosts, rate * 1e6) as network, tempfile.TemporaryDirectory() as folder:
        config, out = Path(folder) / "run.toml", Path(folder) / "ways.json"
        text = training_config(WIDTHS[rate], options.epochs, BATCH, 0.02)
        config.write_text(text)
        start = [sys.executable, "-m", "mpi4py", __file__]
        network.mpiexec(mpiexec(), 1, [*start, "--predict", str(config), str(out)], {})
        rows = json.loads(out.read_text())
        for number, row in enumerate(rows):
            run = Path(folder) / str(number)
            settings = row["settings"].replace(" = ", "=").splitlines()
            network.mpiexec(mpiexec(), 1, training_command(config, run, settings), {})
            row |= {"hosts": hosts, "rate_mbit": rate, "measured": batch_seconds(run)}
    return rows


def batch_seconds(run: Path) -> float:
    """Return the seconds of one batch, without the first epoch: connections are made there."""
    epochs = read_epochs(run)
    batches = json.loads((run / "summary.json").read_text())["samples_per_s"]
    batches *= epochs[-1]["wall_s"] / BATCH / len(epochs)
    return (epochs[-1]["wall_s"] - epochs[0]["wall_s"]) / (batches * (len(epochs) - 1))


def predict(config: Path, out: Path) -> None:
    """Write what the advisor expects here, as one of the ranks."""
    from paropt_hpc.comm import world
    from paropt_hpc.experiments import advisor, calibration
    from paropt_hpc.train import load_config

    with world() as comm:
        work = calibration.measure_workload(load_config(config))
        shape, costs = calibration.measure_link(comm, work.gradient_bytes)
        sparse = calibration.measure_sparse(comm, work)
        tuned = calibration.is_tuned(shape, work.gradient_bytes)
        machine = advisor.Machine(shape, costs, tuned=tuned, sparse_seconds=sparse)
        advice = advisor.advise(work, machine)
        if comm.rank == 0:
            rows = [
                {
                    "way": way.name,
                    "settings": way.settings,
                    "predicted": way.seconds,
                    "exact": way.converges,
                    "chosen": way == advice.chosen,
                }
                for way in advice.ways
            ]
            out.write_text(json.dumps(rows))


def tell(rows: list[Row], title: str) -> None:
    """Print the rows, every miss, and what following the advice would have cost."""
    table = Table("way", "predicted", "measured", "predicted / measured", "", title=title)
    for row in rows:
        ratio = row["predicted"] / row["measured"]
        off = abs(ratio - 1) > LIMIT
        times = (f"{1e3 * row[key]:.2f} ms" for key in ("predicted", "measured"))
        table.add_row(row["way"], *times, f"{ratio:.2f}", "MISS" if off else "")
    Console().print(table)
    print(*judged(rows), sep="\n")


def judged(rows: list[Row]) -> list[str]:
    """Say what following the advice would have cost, and which ways are in the wrong order."""
    exact = [row for row in rows if row["exact"]]
    best = min(exact, key=lambda row: row["measured"])
    (chosen,) = (row for row in rows if row["chosen"])
    lost = chosen["measured"] / best["measured"] - 1
    said = "the fastest" if chosen is best else f"{lost:.0%} slower than {best['way']}"
    turned = [
        f"{one['way']} before {two['way']}"
        for one in rows
        for two in rows
        if one["predicted"] < two["predicted"] and one["measured"] > two["measured"] * (1 + LIMIT)
    ]
    return [
        f"Advised: {chosen['way']}, {said} of the ways that follow the serial run.",
        f"In the wrong order by more than {LIMIT:.0%}: {', '.join(turned) or 'none'}.",
    ]


def keep(path: Path, rows: list[Row]) -> None:
    """Put the rows into the file, in place of those of the same hosts and rate."""
    known = json.loads(path.read_text())["rows"] if path.exists() else []
    same = (rows[0]["hosts"], rows[0]["rate_mbit"])
    others = [row for row in known if (row["hosts"], row["rate_mbit"]) != same]
    merged = sorted([*others, *rows], key=lambda row: (row["hosts"], row["rate_mbit"]))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"subject": "advice", "rows": merged}, indent=1) + "\n")
    PAGE.write_text(page(merged))


def page(rows: list[Row]) -> str:
    """Return the rows of all hosts and rates as Markdown."""
    lines = [INTRODUCTION]
    for hosts, rate in dict.fromkeys((row["hosts"], row["rate_mbit"]) for row in rows):
        part = [row for row in rows if (row["hosts"], row["rate_mbit"]) == (hosts, rate)]
        lines += [f"## {hosts} hosts, {rate:g} Mbit/s", ""]
        lines += ["| way | predicted | measured | ratio |", "|---|---:|---:|---:|"]
        for row in part:
            ratio = row["predicted"] / row["measured"]
            times = " | ".join(f"{1e3 * row[key]:.2f} ms" for key in ("predicted", "measured"))
            mark = " (off)" if abs(ratio - 1) > LIMIT else ""
            lines.append(f"| {row['way']} | {times} | {ratio:.2f}{mark} |")
        lines += ["", *judged(part), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error.cmd[0]} ended with status {error.returncode}")
    except KeyboardInterrupt:
        sys.exit("interrupted; the namespaces are removed")
