"""Two ranks against one, and the price of failing evaluations, beside mpi4py.futures and scipy.

    mpiexec -n 2 python -m mpi4py benchmarks/bench_evaluators.py --json FILE

A candidate evaluates a population of 100 rows in 30 dimensions so often that a call takes some
tens of milliseconds. Objectives spin on the clock, so that they need a core and not only time.
Every candidate of a case does the same work; the serial one, on rank 0 while the others wait
asleep, is what one rank needs. Each rank has a core of its own where there are enough.
"""

import argparse
import math
import multiprocessing
import os
import time
from collections.abc import Callable

import numpy as np
from harness import Bench, Seconds, arguments
from mpi4py import MPI
from mpi4py.futures import MPICommExecutor
from scipy.optimize import differential_evolution

from paropt_hpc.comm import Communicator
from paropt_hpc.metaheuristics import (
    Budget,
    ManagerWorker,
    RowSplit,
    Scalar,
    Search,
    Serial,
    Space,
    Vectorised,
    make,
)

ROWS, DIMENSION = 100, 30
CORES = os.sched_getaffinity(0)


class Spin:
    """A function of one row that keeps a core busy; may fail."""

    def __init__(self, seconds: float, nan: float = 0.0, raising: float = 0.0) -> None:
        self.seconds, self.nan, self.raising = seconds, nan, raising

    def __call__(self, row: np.ndarray) -> float:
        """Return a sum of squares after some time."""
        end = time.perf_counter() + self.seconds
        while time.perf_counter() < end:
            pass
        place = row[0] % 1.0
        if place < self.raising:
            raise ValueError("this one fails")
        return math.nan if place < self.raising + self.nan else float(row @ row)


def rastrigin(x: np.ndarray) -> np.ndarray:
    """Return the values of all rows: the free objective."""
    return 10 * x.shape[1] + (x * x - 10 * np.cos(2 * np.pi * x)).sum(axis=1)


def on_rank_0(comm: Communicator, call: Callable[[], object]) -> Callable[[], Seconds]:
    """Return a call that works on rank 0, and is timed there, while the others sleep."""

    def run() -> Seconds:
        start = time.perf_counter()
        if comm.rank == 0:
            call()
        taken = time.perf_counter() - start
        request = MPI.COMM_WORLD.Ibarrier()
        while not request.Test():
            time.sleep(1e-3)
        return Seconds(taken if comm.rank == 0 else 0.0)

    return run


def futures(
    comm: Communicator, objective: Scalar, x: np.ndarray, repeat: int, chunk: int
) -> Callable[[], None]:
    """Return a call by which mpi4py.futures evaluates: rank 0 hands out, the others work."""

    def run() -> None:
        with MPICommExecutor(MPI.COMM_WORLD, root=0) as executor:
            for _ in range(repeat if executor is not None else 0):
                list(executor.map(objective.function, x, chunksize=chunk))

    return run


def scaling(bench: Bench, comm: Communicator, name: str, objective: object, repeat: int) -> None:
    """Time a population on one rank and on all."""
    x = np.random.default_rng(0).uniform(0, 1, (ROWS, DIMENSION))
    serial, rows, manager = (
        Serial(objective), RowSplit(comm, objective), ManagerWorker(comm, objective),
    )  # fmt: skip

    def times(evaluator: object) -> Callable[[], None]:
        def run() -> None:
            for _ in range(repeat):
                evaluator.evaluate(x)

        return run

    ours = {
        "one rank": on_rank_0(comm, times(serial)),
        f"rows, {comm.size} ranks": times(rows),
        f"manager, {comm.size} ranks": times(manager),
    }
    peers = {}
    if isinstance(objective, Scalar):
        peers = {
            f"mpi4py.futures, {comm.size} ranks, chunks of {chunk}": futures(
                comm, objective, x, repeat, chunk
            )
            for chunk in ((1, 25) if objective.function.seconds else (25,))
        }
    table = bench.case(name, ours, peers, moved=repeat * x.nbytes)
    manager.free()
    one = table["one rank"].median_s
    for candidate, row in table.items():
        if candidate != "one rank" and not row.peer:
            bench.ratios.append(
                {"case": f"{name}, speed-up", "ours": candidate, "best_peer": "one rank",
                 "ratio": one / row.median_s}
            )  # fmt: skip
            if not bench.quiet:
                print(f"  {candidate}: {one / row.median_s:.3f} x one rank")


def whole_runs(bench: Bench, comm: Communicator, seconds: float, generations: int) -> None:
    """Time differential evolution from start to end: ours on all ranks, scipy's with workers."""
    objective = Spin(seconds)
    space = Space.box(-np.ones(DIMENSION), np.ones(DIMENSION))
    start = space.sample(ROWS, np.random.default_rng(0))

    def ours() -> None:
        search = Search(comm, make("de", space, population=ROWS), objective)
        search.run(Budget(generations=generations))
        search.free()

    # Children of fork, which never touch MPI; spawned ones would start it again.
    pool = None
    if comm.rank == 0:
        fork = multiprocessing.get_context("fork")
        pool = fork.Pool(comm.size, os.sched_setaffinity, (0, CORES))

    def scipys(workers: object) -> Callable[[], None]:
        def run() -> None:
            differential_evolution(
                objective, [(-1, 1)] * DIMENSION, init=start, maxiter=generations - 1, tol=0,
                polish=False, updating="deferred", workers=workers,
            )  # fmt: skip

        return on_rank_0(comm, run)

    name = f"{generations} generations of DE, {seconds * 1e3:g} ms"
    peers = {
        "scipy, one process": scipys(1),
        f"scipy, pool of {comm.size}": scipys(pool.map if pool is not None else 1),
    }
    bench.case(name, {f"search, {comm.size} ranks": ours}, peers, moved=8 * ROWS * DIMENSION)
    if pool is not None:
        pool.terminate()


def failures(bench: Bench, comm: Communicator, seconds: float, repeat: int) -> None:
    """Time the same population without failures and with 20 % NaN and 5 % raising."""
    x = np.random.default_rng(0).uniform(0, 1, (ROWS, DIMENSION))
    clean, faulty = Spin(seconds), Spin(seconds, nan=0.2, raising=0.05)
    evaluators = {"no failures": RowSplit(comm, clean), "25 % failures": RowSplit(comm, faulty)}

    def times(evaluator: RowSplit) -> Callable[[], None]:
        def run() -> None:
            for _ in range(repeat):
                evaluator.evaluate(x)

        return run

    name = f"failing evaluations, {seconds * 1e3:g} ms, {comm.size} ranks"
    table = bench.case(name, {k: times(e) for k, e in evaluators.items()}, {}, moved=x.nbytes)
    share = float((evaluators["25 % failures"].evaluate(x).status > 0).mean())
    ratio = table["no failures"].median_s / table["25 % failures"].median_s
    bench.ratios.append(
        {"case": f"{name}: throughput kept, {share:.0%} having failed", "ours": "25 % failures",
         "best_peer": "no failures", "ratio": ratio}
    )  # fmt: skip
    space = Space.box(-np.ones(DIMENSION), np.ones(DIMENSION))
    seen = [math.inf]

    def watched(row: np.ndarray) -> float:
        value = faulty(row)
        seen[0] = min(seen[0], value if value == value else math.inf)
        return value

    search = Search(comm, make("de", space, population=ROWS), watched)
    outcome = search.run(Budget(generations=10))
    search.free()
    best = float(comm.gather_scalars(seen[0]).min())
    if outcome.best_f != best:
        raise SystemExit(f"the best value seen was {best}, but {outcome.best_f} was returned")
    if not bench.quiet:
        print(f"  {share:.0%} failed, {ratio:.3f} of the throughput kept, the best point returned")


def main() -> None:
    """Measure all cases."""
    parser: argparse.ArgumentParser = arguments(__doc__)
    parser.set_defaults(repeats=7)
    options = parser.parse_args()
    with Communicator(MPI.COMM_WORLD) as comm:
        if comm.size <= len(CORES):  # as the launchers of clusters do
            os.sched_setaffinity(0, {sorted(CORES)[comm.rank]})
        bench = Bench(
            "evaluators",
            options.repeats,
            synchronise=MPI.COMM_WORLD.Barrier,
            slowest=lambda seconds: MPI.COMM_WORLD.allreduce(seconds, MPI.MAX),
            quiet=comm.rank > 0,
        )
        scaling(bench, comm, "100 evaluations of 1 ms", Scalar(Spin(1e-3)), 2)
        scaling(bench, comm, "100 evaluations of 0.1 ms", Scalar(Spin(1e-4)), 10)
        scaling(bench, comm, "100 free evaluations, row by row", Scalar(Spin(0.0)), 100)
        scaling(bench, comm, "100 free evaluations, all at once", Vectorised(rastrigin), 600)
        whole_runs(bench, comm, 1e-4, 20)
        failures(bench, comm, 1e-4, 10)
        failures(bench, comm, 0.0, 300)
        bench.finish(options)


if __name__ == "__main__":
    main()
