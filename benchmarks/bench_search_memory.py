"""How often a population of a million is in memory while it is searched, saved, and migrates.

    python benchmarks/bench_search_memory.py --json FILE

Each algorithm runs in a process of its own, whose largest resident size is compared with that
before the algorithm was made. The objective is native, so that what it needs does not count.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from paropt_hpc.comm import SerialCommunicator
from paropt_hpc.kernels.rng import philox
from paropt_hpc.metaheuristics import Budget, Search, Vectorised, function, make
from paropt_hpc.metaheuristics.migration import Migration, admit, emigrants
from paropt_hpc.runs import Checkpoints

ONE = ("de", "jde", "lshade", "ga", "pso", "cmaes", "sep-cmaes", "sa", "tempering")
ALGORITHMS = (*ONE, "nsga2")  # for one objective, and for two
D = 30
ALLOWED = 4.0


def resident() -> int:
    """Return the largest resident size of this process so far, bytes."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def both(x: np.ndarray) -> np.ndarray:
    """Return the squared distances to the origin and to (1, ..., 1)."""
    near = function("sphere")(x)
    return np.column_stack([near, near - 2 * x.sum(axis=1) + x.shape[1]])


def copies(name: str, members: int) -> float:
    """Search for some generations and return the peak as a multiple of the population."""
    sphere, comm = function("sphere"), SerialCommunicator()
    objective = Vectorised(both, outputs=2) if name == "nsga2" else Vectorised(sphere)
    before = resident()
    algorithm = make(name, sphere.space(D), seed=1, population=members)
    with tempfile.TemporaryDirectory() as folder:
        search = Search(comm, algorithm, objective)
        search.run(Budget(generations=4), checkpoints=Checkpoints(Path(folder), comm), every=2)
    leaving = emigrants(algorithm, Migration(), philox(1, "emigrants"))
    admit(algorithm, leaving, Migration(), philox(1, "immigrants"))
    return (resident() - before) / (members * D * 8)


def main() -> None:
    """Measure all algorithms, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write the multiples to this file")
    parser.add_argument("--members", type=int, default=1_000_000)
    parser.add_argument("--algorithms", nargs="+", default=[*ALGORITHMS], choices=ALGORITHMS)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(copies(options.one, options.members))
        return
    told = {}
    for name in options.algorithms:
        command = [sys.executable, __file__, "--one", name, "--members", str(options.members)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        told[name] = float(done.stdout)
    table = Table("", "copies", title=f"{options.members} x {D} float64, allowed {ALLOWED:g}")
    for name, count in told.items():
        table.add_row(name, f"{count:.2f}")
    Console().print(table)
    if options.json is not None:
        result = {"subject": "search_memory", "members": options.members, "columns": D}
        result |= {"allowed": ALLOWED, "copies": told}
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
