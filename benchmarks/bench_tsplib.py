"""Tours of TSPLIB instances beside their optima: ants with a native local search on two islands.

    mpiexec -n 2 python -m mpi4py benchmarks/bench_tsplib.py --data FOLDER --json FILE

FOLDER holds the ``.tsp`` files. A run ends at the optimum, or when its time is up; every seed is a
run of its own. Optima are those that TSPLIB publishes.
"""

import argparse
import json
import statistics
from pathlib import Path

from harness import machine
from mpi4py import MPI
from rich.console import Console
from rich.table import Table

from paropt_hpc.comm import Communicator
from paropt_hpc.metaheuristics import Budget, Migration, Search, Vectorised, make_islands
from paropt_hpc.metaheuristics.tsplib import read_tsplib

OPTIMA = {"berlin52": 7542, "eil101": 629, "ch150": 6528, "d198": 15780, "rd400": 15281}


def best_tour(comm: Communicator, path: Path, seed: int, seconds: float) -> tuple[float, float]:
    """Return the length of the best tour that a run finds, and the seconds that it took."""
    tour = read_tsplib(path)
    islands = make_islands("mmas", tour.space, comm.size, seed=seed, distances=tour.distances)
    search = Search(comm, islands, Vectorised(tour), migration=Migration("complete", interval=5))
    outcome = search.run(Budget(target=OPTIMA[path.stem], seconds=seconds))
    search.free()
    return outcome.best_f, outcome.seconds


def main() -> None:
    """Measure all instances that are there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the .tsp files")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=60.0, help="at most, of one run")
    parser.add_argument("--instances", nargs="+", choices=[*OPTIMA], default=[*OPTIMA])
    parser.add_argument("--json", type=Path, help="add the lengths to this file")
    options = parser.parse_args()
    result = {"subject": "tsplib", "ranks": MPI.COMM_WORLD.size, "about": machine(), "runs": {}}
    if options.json is not None and options.json.exists():
        result["runs"] = json.loads(options.json.read_text(encoding="utf-8"))["runs"]
    table = Table("", "optimum", "best", "median", "worst", "excess", "longest run")
    with Communicator(MPI.COMM_WORLD) as comm:
        for name in options.instances:
            path = options.data / f"{name}.tsp"
            runs = [best_tour(comm, path, s, options.seconds) for s in range(options.seeds)]
            lengths, seconds = ([*column] for column in zip(*runs, strict=True))
            result["runs"][name] = {
                "optimum": OPTIMA[name], "lengths": lengths, "seconds": seconds,
                "limit": options.seconds,
            }  # fmt: skip
            figures = (OPTIMA[name], min(lengths), statistics.median(lengths), max(lengths))
            excess = max(lengths) / OPTIMA[name] - 1
            row = [f"{length:.0f}" for length in figures]
            table.add_row(name, *row, f"{excess:.2%}", f"{max(seconds):.1f} s")
        if comm.rank == 0:
            Console().print(table)
            if options.json is not None:
                options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
