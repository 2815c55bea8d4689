"""Speed and quality of the metaheuristics beside their peers.

    python benchmarks/bench_metaheuristics.py --peers PYTHON --json FILE
    python benchmarks/bench_metaheuristics.py --peers PYTHON --quality 15 --json FILE

PYTHON is the interpreter of an environment that has the peers (`make bench-search`). Every
candidate makes 500 generations of 100 points in 30 columns, 50,000 evaluations, on one core;
*native* objectives are compiled on both sides, *batch* ones are NumPy functions of all points. With
`--quality`, the medians of the best values over so many seeds are compared instead of times.
"""

import json
import statistics
import subprocess
from collections.abc import Callable
from pathlib import Path

import harness
from rich.console import Console
from rich.table import Table
from search_worker import BATCH, GENERATIONS, SIZE, D
from worker import Worker

from paropt_hpc.metaheuristics import function, make

# Which of ours stands beside which peers, for the native and for the batch objective.
FAMILIES = {
    "pso": ("native", {"paropt pso": ("pso", {})}, ["pygmo pso native"]),
    "de": ("native", {"paropt de": ("de", {})}, ["pygmo de native", "pygmo sade native"]),
    "ga": ("native", {"paropt ga": ("ga", {})}, ["pygmo sga native"]),
    "cma-es": (
        "native",
        {"paropt cmaes": ("cmaes", {"population": SIZE})},
        ["pygmo cmaes native", "pycma cmaes batch"],
    ),
    "pso batch": (
        "batch",
        {"paropt pso": ("pso", {})},
        ["pyswarms pso batch", "pymoo pso batch"],
    ),
    "de batch": ("batch", {"paropt de": ("de", {})}, ["scipy de batch", "pymoo de batch"]),
}
# The set whose best one is compared in quality.
SET = {
    "paropt pso": ("pso", {}),
    "paropt de": ("de", {}),
    "paropt de, CR 0, 20 members": ("de", {"population": 20, "crossover": 0.0}),
    "paropt jde, 40 members": ("jde", {"population": 40}),
    "paropt lshade": ("lshade", {"budget": SIZE * GENERATIONS, "population": SIZE}),
    "paropt ga": ("ga", {}),
    "paropt cmaes": ("cmaes", {"population": SIZE}),
    "paropt cmaes, default population": ("cmaes", {}),
    "paropt ipop-cmaes": ("ipop-cmaes", {}),
    "paropt sa": ("sa", {"population": 10, "steps": SIZE * GENERATIONS // 10}),
}


def timed(name: str, options: dict[str, object], on: str, kind: str) -> Callable[[], object]:
    """Return a call that makes all generations."""
    objective = function(on)
    space = objective.space(D)
    called = objective if kind == "native" else BATCH[on]

    def run() -> None:
        left, seed = GENERATIONS, 1
        while left > 0:  # started anew where it has converged: as many evaluations as the peers
            algorithm = make(name, space, seed=seed, **options)
            algorithm.advance(called, left)
            left, seed = left - algorithm.generation, seed + 1

    return run


def speed(bench: harness.Bench, worker: Worker, families: list[str], functions: list[str]) -> None:
    """Time families on functions."""
    for family in families:
        kind, mine, peers = FAMILIES[family]
        for on in functions:
            ours = {label: timed(*candidate, on, kind) for label, candidate in mine.items()}
            calls = {
                peer: worker.call(f"{peer} {on}")
                for peer in peers
                if f"{peer} {on}" in worker.offers
            }
            moved = SIZE * GENERATIONS * D * 8
            rows = bench.case(f"{family}, {on}", ours, calls, moved=moved)
            compare_all(bench, f"{family}, {on}", rows)


def compare_all(bench: harness.Bench, case: str, rows: dict[str, harness.Row]) -> None:
    """Add the ratios to the peers that are not the best one, too."""
    told = {ratio["best_peer"] for ratio in bench.ratios if ratio["case"] == case}
    (mine,) = (row for row in rows.values() if not row.peer)
    for peer in rows.values():
        if peer.peer and peer.candidate not in told:
            ratio = peer.median_s / mine.median_s
            bench.ratios.append({"case": case, "ours": mine.candidate,
                                 "best_peer": peer.candidate, "ratio": ratio})  # fmt: skip
            print(f"  {mine.candidate}: {ratio:.2f} x {peer.candidate}")


def quality(seeds: int, on: str) -> dict[str, float]:
    """Return the medians of our best values on a function."""
    objective, found = function(on), {}
    for label, (name, options) in SET.items():
        best = []
        for seed in range(seeds):
            algorithm = make(name, objective.space(D), seed=seed, **options)
            while algorithm.evaluations < SIZE * GENERATIONS and not algorithm.done:
                algorithm.advance(objective, 1)
            # By the same formula as the peers' values.
            best.append(float(BATCH[on](algorithm.best_x[None])[0]))
        found[label] = statistics.median(best)
    return found


def compare_quality(seeds: int, functions: list[str], python: str, out: Path | None) -> None:
    """Print and write the medians of ours and of the peers, beside those of other functions."""
    script = Path(__file__).with_name("search_worker.py")
    result = {"subject": "metaheuristics_quality", "seeds": seeds, "ours": {}, "peers": {}}
    if out and out.exists():
        result |= json.loads(out.read_text(encoding="utf-8"))
    for on in functions:
        command = [python, str(script), "--quality", str(seeds), on]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        result["peers"][on] = json.loads(printed)
        result["ours"][on] = quality(seeds, on)
        table = Table("", on, title=f"best value after 50,000 evaluations, median of {seeds} seeds")
        for side, mark in (("ours", ""), ("peers", " (peer)")):
            for name, value in sorted(result[side][on].items(), key=lambda item: item[1]):
                table.add_row(name + mark, f"{value:.3g}")
        Console().print(table)
    if out:
        out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


def main() -> None:
    """Measure what the arguments say."""
    parser = harness.arguments(__doc__.splitlines()[0])
    parser.add_argument("--peers", required=True, help="interpreter of the environment with peers")
    parser.add_argument("--quality", type=int, metavar="SEEDS", help="compare best values")
    parser.add_argument("--families", nargs="+", choices=[*FAMILIES], default=[*FAMILIES])
    parser.add_argument("--functions", nargs="+", choices=[*BATCH], default=[*BATCH])
    options = parser.parse_args()
    if options.quality:
        compare_quality(options.quality, options.functions, options.peers, options.json)
        return
    bench = harness.Bench("metaheuristics", repeats=options.repeats)
    script = Path(__file__).with_name("search_worker.py")
    worker = Worker(script, python=options.peers, environment={"OMP_NUM_THREADS": "1"})
    speed(bench, worker, options.families, options.functions)
    worker.close()
    bench.finish(options)


if __name__ == "__main__":
    main()
