"""A training step: our own overhead, steps per second beside DistributedDataParallel, memory.

    python benchmarks/bench_step.py --mpiexec .venv-mpich/bin/mpiexec --torch .venv-mpich

Both train the same perceptron on the same batches with SGD and momentum, on two ranks, each on a
core of its own, with one thread. Two libraries that each spin while they wait cannot take turns
call by call in one process, so every candidate is a job, and the jobs take turns for several
rounds. A step counts from batch to updated parameters; its time is the median over blocks of 20
steps.

Ours is `paropt_hpc.train.Trainer` as `paropt train` runs it: it also gathers the loss of every
step, which the peer's loop leaves out. The parts of a step are read off inside it: the model's
``loss_and_grad``, the collectives, and the rest, which is our own overhead. Of that, two parts move
memory and are given apart: gathering the samples of the batch, and the optimizer's pass over three
vectors of the size of the model. The peer runs at its
default and at what its manual offers: buckets, gradients as views of them, a static graph, and
torch's fused SGD.

Memory is the peak of NumPy's allocations, as tracemalloc counts them, with what the ranks share,
in a process that only trains.
"""

import argparse
import functools
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import Bench, Row, arguments

FEATURES, HIDDEN, CLASSES, SAMPLES = 784, 128, 10, 4096
PARAMETERS = (FEATURES + 1) * HIDDEN + (HIDDEN + 1) * CLASSES
BATCHES = (16, 64, 256)  # over both ranks
BLOCK = 20
OWN_PARTS = ("own: gathering the batch", "own: update")

SETTINGS: dict[str, dict[str, Any]] = {
    "DDP default": {},
    "DDP bucket view": {"gradient_as_bucket_view": True},
    "DDP bucket view, static graph": {"gradient_as_bucket_view": True, "static_graph": True},
    "DDP bucket view, static graph, 1 MB": {
        "gradient_as_bucket_view": True,
        "static_graph": True,
        "bucket_cap_mb": 1,
    },
    "DDP bucket view, static graph, 100 MB": {
        "gradient_as_bucket_view": True,
        "static_graph": True,
        "bucket_cap_mb": 100,
    },
}


def pin(rank: int) -> None:
    """Give this rank a core of its own."""
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})


def samples() -> tuple[np.ndarray, np.ndarray]:
    """Return the same random samples everywhere."""
    generator = np.random.default_rng(0)
    x = generator.standard_normal((SAMPLES, FEATURES)).astype(np.float32)
    return x, generator.integers(0, CLASSES, SAMPLES)


def per_step(blocks: list[float]) -> dict[str, float]:
    """Return median and minimum of the time of a step."""
    times = [seconds / BLOCK for seconds in blocks]
    return {"median_s": statistics.median(times), "min_s": min(times)}


class Stopwatch:
    """Add up the time inside some methods."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def watch(self, owner: Any, name: str) -> None:
        """Put a method of an object under the watch."""
        method = getattr(owner, name)

        @functools.wraps(method)
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            result = method(*args, **kwargs)
            self.seconds += time.perf_counter() - started
            return result

        setattr(owner, name, timed)


def our_worker(options: argparse.Namespace) -> None:
    """Be one rank of ours: steps of every batch size, then those of each compressor."""
    from mpi4py import MPI

    from paropt_hpc.comm import Communicator

    pin(MPI.COMM_WORLD.rank)
    with Communicator(MPI.COMM_WORLD, check=False) as comm:
        for batch in BATCHES:
            for name, figures in our_steps(comm, options, batch).items():
                if comm.rank == 0:
                    told = {"case": f"batch {batch}", "name": name, **figures}
                    print(json.dumps(told), flush=True)


def our_steps(comm: Any, options: argparse.Namespace, batch: int) -> dict[str, dict[str, float]]:
    """Time the steps of one batch size, or their parts."""
    from paropt_hpc.train import Config, Trainer
    from paropt_hpc.train.meter import Meter

    config = Config.model_validate(
        {
            "data": {"format": "npz", "train": options.data, "test_fraction": 0.01},
            "model": {"hidden": [HIDDEN]},
            "train": {"batch": batch, "lr": 0.01, "momentum": 0.9},
        }
    )
    trainer = Trainer(config, comm)
    trainer.gradient = comm.empty(trainer.model.size, trainer.params.dtype)
    trainer.strategy.start(trainer.params)
    meter = Meter(comm, trainer.timeline, options.steps, None)
    watches = {name: Stopwatch() for name in ("model", "wire", *OWN_PARTS)}
    if options.parts:
        watches["model"].watch(trainer.model, "loss_and_grad")
        watches["own: gathering the batch"].watch(trainer, "_samples")
        watches["own: update"].watch(trainer.strategy.optimizer, "update")
        for name in ("allreduce", "gather_vectors"):
            watches["wire"].watch(comm, name)
    blocks: dict[str, list[float]] = {name: [] for name in ("paropt", "own overhead", *OWN_PARTS)}
    shards = itertools.chain.from_iterable(trainer.sampler.epoch(e) for e in itertools.count())
    for block in range(options.steps // BLOCK + 1):
        comm.barrier()
        for watch in watches.values():
            watch.seconds = 0.0
        started = time.perf_counter()
        for shard in itertools.islice(shards, BLOCK):
            losses, _ = trainer.step(shard, meter.steps, 0)
            meter.tick(losses)
        taken = time.perf_counter() - started
        if block:
            blocks["paropt"].append(taken)
            others = watches["model"].seconds + watches["wire"].seconds
            blocks["own overhead"].append(taken - others)
            for name in OWN_PARTS:
                blocks[name].append(watches[name].seconds)
    names = ("own overhead", *OWN_PARTS) if options.parts else ("paropt",)
    return {name: per_step(blocks[name]) for name in names}


def ddp_worker(options: argparse.Namespace) -> None:
    """Be one process of the peer, started with RANK and WORLD_SIZE set."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    pin(dist.get_rank())
    for batch in BATCHES:
        figures = ddp_steps(options, batch)
        if dist.get_rank() == 0:
            print(json.dumps({"case": f"batch {batch}", **figures}), flush=True)
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)  # on a busy machine, gloo's threads can outlive their group, and abort the process


def ddp_steps(options: argparse.Namespace, batch: int) -> dict[str, float]:
    """Time the peer's steps of one batch size."""
    import torch
    import torch.distributed as dist
    from torch import nn

    rank, x_y = dist.get_rank(), samples()
    x, y = (torch.from_numpy(array) for array in x_y)
    torch.manual_seed(0)
    layers = [nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CLASSES)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), **SETTINGS[options.setting])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    blocks = []
    for block in range(options.steps // BLOCK + 1):
        dist.barrier()
        started = time.perf_counter()
        for _ in range(BLOCK):
            rows = torch.randint(SAMPLES, (batch,))[rank::2]
            optimizer.zero_grad(set_to_none=not options.setting.startswith("DDP bucket view"))
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
        if block:
            blocks.append(time.perf_counter() - started)
    return per_step(blocks)


def run_job(command: list[str], variables: dict[str, str]) -> list[dict[str, Any]]:
    """Run one job and return what it has printed."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", **variables}
    done = subprocess.run(command, env=env, stdout=subprocess.PIPE, text=True, check=True)
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def run_ours(options: argparse.Namespace, data: str, *extra: str) -> list[dict[str, Any]]:
    """Run our job on two ranks."""
    command = [options.mpiexec, "-n", "2", sys.executable, "-m", "mpi4py", __file__, "--worker"]
    return run_job([*command, "--data", data, "--steps", str(options.steps), *extra], {})


def run_ddp(options: argparse.Namespace, setting: str) -> list[dict[str, Any]]:
    """Run two processes of the peer."""
    command = [str(options.torch / "bin" / "python"), __file__, "--ddp-worker"]
    command += ["--setting", setting, "--steps", str(options.steps)]
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517", "WORLD_SIZE": "2"}
    other = subprocess.Popen(
        command, env={**os.environ, "OMP_NUM_THREADS": "1", **group, "RANK": "1"}
    )
    figures = run_job(command, {**group, "RANK": "0"})
    other.wait()
    return figures


def steps(bench: Bench, options: argparse.Namespace) -> None:
    """Time ours and the peer in turns."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = str(Path(folder) / "data.npz")
        x, y = samples()
        np.savez(data, x=x, y=y)
        for number in range(options.rounds):
            print(f"round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
            jobs = {
                "paropt": lambda: run_ours(options, data),
                "parts": lambda: run_ours(options, data, "--parts"),
            }
            if options.torch is not None:
                jobs |= {name: lambda name=name: run_ddp(options, name) for name in SETTINGS}
            for name, job in jobs.items():
                for figures in job():
                    key = figures["case"], figures.get("name", name)
                    found.setdefault(key, []).append(figures)
    for case in (f"batch {batch}" for batch in BATCHES):
        compare(bench, case, {name: f for (where, name), f in found.items() if where == case})


def compare(bench: Bench, case: str, found: dict[str, list[dict[str, Any]]]) -> None:
    """Turn the rounds of one case into rows, and ours and the best peer into a ratio."""
    rows = {}
    for name, rounds in found.items():
        rows[name] = Row(
            subject="step",
            case=case,
            candidate=name,
            peer=name.startswith("DDP"),
            median_s=statistics.median(figures["median_s"] for figures in rounds),
            min_s=min(figures["min_s"] for figures in rounds),
            bytes=4 * PARAMETERS,
        )
    bench.rows += rows.values()
    for row in rows.values():
        median, least = row.median_s * 1e6, row.min_s * 1e6
        print(f"{case:>10}  {row.candidate:<38} {median:8.1f} us ({least:.1f})")
    peers = [row for row in rows.values() if row.peer]
    if peers:
        best = min(peers, key=lambda row: row.median_s)
        ratio = best.median_s / rows["paropt"].median_s
        bench.ratios.append(
            {"case": case, "ours": "paropt", "best_peer": best.candidate, "ratio": ratio}
        )
        print(f"{case:>10}  paropt makes {ratio:.2f} x the steps of {best.candidate}")


def memory_worker() -> None:
    """Be one rank that counts its memory, every way to train in turn."""
    from mpi4py import MPI
    from step_memory import WAYS, peak

    from paropt_hpc.comm import Communicator

    with Communicator(MPI.COMM_WORLD, check=False) as comm:
        for way in WAYS:
            figures = peak(comm, way)
            if comm.rank == 0:
                print(json.dumps({"way": way, **figures._asdict()}), flush=True)


def memory(bench: Bench, options: argparse.Namespace) -> None:
    """Print the peak of every way to train, and what it may be."""
    command = [options.mpiexec, "-n", "2", sys.executable, "-m", "mpi4py", __file__]
    told = bench.extra["memory"] = []
    for found in run_job([*command, "--memory-worker"], {}):
        vectors = {name: found[name] / found["vector"] for name in ("peak", "allowed")}
        told.append({"way": found["way"], "bytes": found["peak"], **vectors})
        print(
            f"memory, {found['way']:<16} {found['peak'] / 2**20:7.1f} MiB, {vectors['peak']:.2f} "
            f"vectors; allowed are {vectors['allowed']:.2f}, 16 MiB and activations included"
        )


def main() -> None:
    """Run the jobs, or be one of their processes."""
    parser = arguments(__doc__)
    parser.add_argument("--mpiexec", default="mpiexec")
    parser.add_argument("--torch", type=Path, metavar="VENV", help="one with torch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=600)
    for hidden in ("--worker", "--parts", "--ddp-worker", "--memory-worker"):
        parser.add_argument(hidden, action="store_true", help=argparse.SUPPRESS)
    for hidden in ("--data", "--setting"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    for mode, work in (("worker", our_worker), ("ddp_worker", ddp_worker)):
        if getattr(options, mode):
            return work(options)
    if options.memory_worker:
        return memory_worker()
    bench = Bench("step")
    steps(bench, options)
    memory(bench, options)
    bench.finish(options)
    return None


if __name__ == "__main__":
    main()
