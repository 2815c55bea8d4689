"""The share of BBOB targets that algorithms reach: 24 functions, budget 1000 D.

    python benchmarks/bench_bbob.py --peers PYTHON --json FILE

PYTHON is the interpreter of an environment that has coco-experiment and the peers (`make
bench-search`). Targets are 51 precisions from 1e2 to 1e-8, evenly spaced in the logarithm; a
problem counts the share of them that its run reached. No times are taken.

The settings of our algorithms were chosen on instances 1 to 5, so that others stand beside them:
6 to 10, which nothing was chosen on. Each chunk of work (`--instances`, `--dimensions`,
`--solvers`) adds to what the file has already.
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from paropt_hpc.metaheuristics import Space, make

TARGETS = 10.0 ** np.linspace(2, -8, 51)
BUDGET = 1000  # evaluations for each column
Solver = Callable[..., None]


def ours(name: str, **options: object) -> Solver:
    """Return a solver by one of our algorithms, started anew when it is done."""

    def solve(problem, budget: int, seed: int) -> None:
        d = problem.dimension
        # Unconstrained, as for the peers: the walls are far outside, the start is in [-4, 4].
        wall = 20.0 if name.endswith("cmaes") else 5.0
        space = Space.box(np.full(d, -wall), np.full(d, wall))
        given = {key: value(budget) if callable(value) else value for key, value in options.items()}
        if name.endswith("cmaes"):
            given |= {"start": np.array([[-4.0], [4.0]]).repeat(d, axis=1), "sigma": 2 / (2 * wall)}
        algorithm = make(name, space, seed=seed, **given)
        while problem.evaluations < budget and not problem.final_target_hit:
            x = algorithm.ask()
            algorithm.tell(x, [problem(row) for row in x])

    return solve


def pycma(problem, budget: int, seed: int) -> None:
    """Run pycma with restarts of twice the samples."""
    import cma

    rng, runs = np.random.default_rng(seed), 0
    while problem.evaluations < budget and not problem.final_target_hit:
        left = budget - problem.evaluations
        options = {"verbose": -9, "maxfevals": left, "seed": seed + 1 + 1000 * runs}
        options["popsize"] = (4 + int(3 * np.log(problem.dimension))) * 2**runs
        cma.fmin2(problem, rng.uniform(-4, 4, problem.dimension), 2.0, options)
        runs += 1


def pygmo_cmaes(problem, budget: int, seed: int) -> None:
    """Run pygmo's CMA-ES of 40 samples, started anew when it has converged."""
    import pygmo

    class Wrapped:
        def fitness(self, x):
            return [problem(x)]

        def get_bounds(self):
            return [-5.0] * problem.dimension, [5.0] * problem.dimension

    runs = 0
    while problem.evaluations < budget and not problem.final_target_hit:
        left = max(1, (budget - problem.evaluations) // 40)
        population = pygmo.population(pygmo.problem(Wrapped()), 40, seed=seed + runs)
        pygmo.algorithm(pygmo.cmaes(gen=left, seed=seed + runs)).evolve(population)
        runs += 1


OURS = {
    "paropt bipop-cmaes": ours("bipop-cmaes"),
    "paropt ipop-cmaes": ours("ipop-cmaes"),
    "paropt lshade": ours("lshade", budget=lambda budget: budget),
    "paropt jde": ours("jde", population=40),
    "paropt de": ours("de", population=40),
    "paropt pso": ours("pso", population=40),
}
PEERS = {"pycma ipop": pycma, "pygmo cmaes": pygmo_cmaes}


def optimum(problem) -> float:
    """Return the smallest value of a problem, which is spent by asking for it."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        problem._best_parameter("print")  # the only way that there is: into a file
        (written,) = Path(folder).iterdir()
        return float(problem(np.loadtxt(written)))


class Watched:
    """A problem that keeps the best value seen within the budget."""

    def __init__(self, problem, budget: int) -> None:
        self._problem, self._budget = problem, budget
        self.dimension = problem.dimension
        self.evaluations = 0
        self.final_target_hit = False
        self.best = np.inf

    def __call__(self, x) -> float:
        """Return the value of a point."""
        value = float(self._problem(x))
        if self.evaluations < self._budget:
            self.best = min(self.best, value)
        self.evaluations += 1
        self.final_target_hit = bool(self._problem.final_target_hit)
        return value


def measure(solvers: dict[str, Solver], instances: str, dimension: int) -> dict[str, float]:
    """Return the mean share of each solver over all functions in some instances."""
    import cocoex

    suite = "bbob", f"instances: {instances}", f"dimensions: {dimension}"
    smallest = [optimum(problem) for problem in cocoex.Suite(*suite)]
    shares: dict[str, list[float]] = {name: [] for name in solvers}
    for name, solve in solvers.items():
        for number, problem in enumerate(cocoex.Suite(*suite)):
            watched = Watched(problem, BUDGET * dimension)
            solve(watched, BUDGET * dimension, number)
            reached = np.mean(watched.best - smallest[number] <= TARGETS)
            shares[name].append(float(reached))
        mean = f"{np.mean(shares[name]):.3f} of {len(shares[name])} problems"
        print(f"{instances}, D = {dimension}: {name} {mean}", file=sys.stderr, flush=True)
    return {name: float(np.mean(values)) for name, values in shares.items()}


def keep(path: Path, shares: dict[str, dict[str, dict[str, float]]]) -> None:
    """Add shares, by instances, dimension and solver, to those of a file."""
    result = {"subject": "bbob", "budget": BUDGET, "peers": [*PEERS], "shares": {}}
    if path.exists():
        result["shares"] = json.loads(path.read_text(encoding="utf-8"))["shares"]
    for instances, by_dimension in shares.items():
        for dimension, row in by_dimension.items():
            table = result["shares"].setdefault(instances, {})
            table[dimension] = table.get(dimension, {}) | row
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="add the shares to this file")
    parser.add_argument("--peers", help="interpreter of the environment with the peers")
    parser.add_argument("--instances", nargs="+", default=["1-5", "6-10"])
    parser.add_argument("--dimensions", type=int, nargs="+", default=[5, 20])
    parser.add_argument("--solvers", nargs="+", choices=[*OURS, *PEERS], default=[*OURS, *PEERS])
    options = parser.parse_args()
    if options.peers:
        command = [options.peers, "-c", "import sysconfig; print(sysconfig.get_path('platlib'))"]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
        sys.path.append(found.stdout.strip())
    solvers = {name: {**OURS, **PEERS}[name] for name in options.solvers}
    for instances in options.instances:
        shares = {str(d): measure(solvers, instances, d) for d in options.dimensions}
        title = f"share of BBOB targets, instances {instances}, budget 1000 D"
        table = Table("", *(f"D = {d}" for d in shares), title=title)
        for name in solvers:
            table.add_row(name, *(f"{row[name]:.3f}" for row in shares.values()))
        Console().print(table)
        if options.json:
            keep(options.json, {instances: shares})


if __name__ == "__main__":
    main()
