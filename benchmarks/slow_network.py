"""Dense and sparse all-reduce, and a whole training, over links that are slow for real.

    sudo python benchmarks/slow_network.py --json benchmarks/results/slow_network.json

Makes four hosts from network namespaces, with links of 100 Mbit/s, 1 Gbit/s and 10 Gbit/s one after
the other, and runs MPICH over TCP in them: one rank on each; then two hosts as nodes of two ranks.
A dense row's limit is what the link needs for 2(H-1)/H of the buffer between H hosts, a sparse
row's what it needs for the bytes that were counted. Frames, IP and TCP take 4.5 % of a link off.
Removes all that it made, also after Ctrl-C.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from harness import Bench, arguments
from network_namespaces import SlowNetwork, check_rights
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from paropt_hpc.comm import Communicator, sparse_allreduce
from paropt_hpc.kernels import message
from paropt_hpc.kernels.index_codec import index_dtype

# Vectors long enough that the link, not the start of a message, is what is measured.
RATES = {"100 Mbit/s": (1e8, 500_000), "1 Gbit/s": (1e9, 5_000_000), "10 Gbit/s": (1e10, 10**7)}
# No network at all: the bandwidth beyond every link that can be made here.
MEMORY = "shared memory"
DENSITIES = (0.01, 0.001)
DENSE = ("ring", "recursive_doubling", "hierarchical")
SPARSE = ("allgather", "split", "reselect")
# A compressed epoch costs little and may do less: it gets more of them to reach the same accuracy.
MORE_EPOCHS = 3
LIMIT_OF_LOSS = 0.003  # of the test accuracy, for a compressed training to count


def main() -> None:
    """Make the networks, run the ranks in them, and tell what came out."""
    parser = arguments(__doc__)
    parser.add_argument("--rates", nargs="+", choices=RATES, default=list(RATES))
    parser.add_argument("--width", type=int, default=1024, help="hidden layers of the training")
    parser.add_argument("--epochs", type=int, default=4, help="of the training; 0 leaves it out")
    parser.add_argument("--worker", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        name, rate, hosts, n = options.worker
        worker(options, name, float(rate), int(hosts), int(n))
        return
    check_rights()
    result: dict[str, list[dict[str, object]]] = {"rows": [], "ratios": [], "training": []}
    for name in options.rates:
        for hosts in (4, 2):
            measured = collectives(options, name, hosts)
            result["rows"] += measured["rows"]
            result["ratios"] += measured["ratios"]
        if options.epochs:
            result["training"] += training(options, name)
    if options.epochs:
        result["training"] += training(options, MEMORY)
        tell_crossover(result["training"])
    if options.json is not None:
        whole = {"subject": "slow_network", "machine": measured["machine"], **result}
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")


def mpiexec() -> Path:
    """Return the launcher beside this Python, which must be MPICH's."""
    beside = Path(sys.executable).parent / "mpiexec"
    if not beside.exists() or not (beside.parent / "mpichversion").exists():
        sys.exit(f"{beside} is not MPICH's: run it with the Python of .venv-mpich")
    return beside


def training_config(width: int, epochs: int, batch: int, lr: float, more: str = "") -> str:
    """Return a training of the digits with two hidden layers; `more` lines go below [train]."""
    return f"""
[data]
format = "digits"
[model]
hidden = [{width}, {width}]
[train]
epochs = {epochs}
batch = {batch}
lr = {lr}
{more}
"""


def training_command(config: Path, run: Path, settings: Iterable[str]) -> list[str]:
    """Return the command of a training as one of the ranks, its results in the folder `run`."""
    command = [sys.executable, "-m", "mpi4py", "-m", "paropt_hpc", "train", str(config)]
    for setting in (f"run.dir={run}", *settings):
        command += ["--set", setting]
    return command


def read_epochs(run: Path) -> list[dict[str, Any]]:
    """Return what a training has written about each epoch."""
    with (run / "metrics.jsonl").open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def collectives(options: argparse.Namespace, name: str, hosts: int) -> dict[str, object]:
    """Measure the collectives of four ranks on so many hosts."""
    rate, n = RATES[name]
    with SlowNetwork(hosts, rate) as network, tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "result.json"
        command = [sys.executable, "-m", "mpi4py", __file__, "--json", str(out)]
        command += ["--repeats", str(options.repeats)]
        command += ["--worker", name, str(rate), str(hosts), str(n)]
        folders = [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]
        path = {"PYTHONPATH": os.pathsep.join(filter(None, folders))}
        network.mpiexec(mpiexec(), 4 // hosts, command, path)
        return json.loads(out.read_text())


def worker(options: argparse.Namespace, name: str, rate: float, hosts: int, n: int) -> None:
    """Measure as one of the ranks."""
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    with Communicator(world) as comm:
        bench = Bench(
            "slow_network",
            options.repeats,
            synchronise=world.Barrier,
            slowest=lambda seconds: world.allreduce(seconds, MPI.MAX),
            quiet=comm.rank > 0,
        )
        fresh = np.random.default_rng(comm.rank).standard_normal(n, dtype=np.float32)
        buffer = fresh.copy()
        place = f"{name}, {hosts} hosts x {comm.size // hosts} ranks"
        moved = 2 * (hosts - 1) * 4 * n // hosts
        bench.case(
            f"{place}: dense, {n:.0e} floats",
            {a: (lambda a=a: comm.allreduce(buffer, "sum", algorithm=a)) for a in known(comm)},
            {"mpi": lambda: world.Allreduce(MPI.IN_PLACE, buffer)},
            moved=moved,
            limit_s=8 * moved / rate,
            before=lambda: np.copyto(buffer, fresh),
        )
        for density in DENSITIES if hosts == 4 else ():
            measure_sparse(bench, comm, f"{place}: sparse {density:.1%}", fresh, density, rate)
        bench.finish(options)


def measure_sparse(
    bench: Bench,
    comm: Communicator,
    title: str,
    vector: NDArray[np.float32],
    density: float,
    rate: float,
) -> None:
    """Measure the schemes, each against the time that its counted bytes need on the link."""
    n, result = vector.size, np.empty_like(vector)
    chosen = np.random.default_rng(comm.rank).choice(n, int(n * density), replace=False)
    indices = np.sort(chosen).astype(index_dtype(n))
    encoded = message.encode(indices, vector[indices], n)
    for scheme in SPARSE:
        call = partial(sparse_allreduce, comm, encoded, result, scheme)
        call()
        comm.traffic.reset()
        call()
        own = max(comm.traffic.bytes_sent, comm.traffic.bytes_received)
        counted = int(comm.gather_scalars(own).max())
        case = f"{title} of {n:.0e} floats, {scheme}"
        bench.case(case, {scheme: call}, {}, moved=counted, limit_s=8 * counted / rate)


def known(comm: Communicator) -> list[str]:
    """Return the dense algorithms that there are."""
    found = []
    for algorithm in DENSE:
        try:
            comm.allreduce(np.zeros(4, np.float32), "sum", algorithm=algorithm)
        except ValueError:
            continue
        found.append(algorithm)
    return found


def training(options: argparse.Namespace, name: str) -> list[dict[str, object]]:
    """Train dense and with Top-k of 1 % and 0.1 %, and return what each came to."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "train.toml"
        text = training_config(options.width, options.epochs, 32, 0.05, "warmup_epochs = 1.0")
        config.write_text(text)
        for density in (None, *DENSITIES):
            run, settings = Path(folder) / f"run-{density}", []
            if density is not None:
                settings = ["compress.method=topk", f"compress.density={density}"]
                settings.append(f"train.epochs={MORE_EPOCHS * options.epochs}")
            run_on_four(name, training_command(config, run, settings))
            rows.append({"link": name, "density": density, "epochs": read_epochs(run)})
    return compare(rows)


def run_on_four(name: str, command: list[str]) -> None:
    """Run a command on four hosts of a network, or on four ranks of this machine."""
    if name == MEMORY:
        threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        subprocess.run([mpiexec(), "-n", "4", *command], env=os.environ | threads, check=True)
        return
    with SlowNetwork(4, RATES[name][0]) as network:
        network.mpiexec(mpiexec(), 1, command, {})


def compare(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Add to each run its time to the accuracy that the dense one ends with, less the loss."""
    goal = rows[0]["epochs"][-1]["test_accuracy"] - LIMIT_OF_LOSS
    table = Table("link", "density", "test accuracy", f"time to {goal:.4f}", "times faster")
    for row in rows:
        row["goal"] = goal
        row["test_accuracy"] = row["epochs"][-1]["test_accuracy"]
        reached = (epoch["wall_s"] for epoch in row["epochs"] if epoch["test_accuracy"] >= goal)
        row["seconds"] = next(reached, None)
        dense = rows[0]["seconds"]
        row["speedup"] = dense / row["seconds"] if row["seconds"] else None
        table.add_row(
            row["link"],
            "dense" if row["density"] is None else f"{row['density']:.1%}",
            f"{row['test_accuracy']:.4f}",
            f"{row['seconds']:.2f} s" if row["seconds"] else "not reached",
            f"{row['speedup']:.2f}" if row["speedup"] else "",
        )
    Console().print(table)
    return rows


def tell_crossover(rows: list[dict[str, object]]) -> None:
    """Say from which of the links on compression no longer pays."""
    paying = [r["link"] for r in rows if r["density"] is not None and (r["speedup"] or 0) > 1]
    links = list(dict.fromkeys(row["link"] for row in rows))
    lost = [link for link in links if link not in paying]
    print(
        f"compression pays at {', '.join(dict.fromkeys(paying)) or 'none of the links'}", end="; "
    )
    print(f"no longer at {', '.join(lost)}" if lost else "no link was tried where it does not")


if __name__ == "__main__":
    try:
        main()
    except subprocess.CalledProcessError as error:
        sys.exit(f"{error.cmd[0]} ended with status {error.returncode}")
    except KeyboardInterrupt:
        sys.exit("interrupted; the namespaces are removed")
