"""The few numbers that the advisor predicts from, measured here."""

import math
import re
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.comm import Communicator, SerialCommunicator, native
from paropt_hpc.comm.tuning import CostModel, Shape, Table, table_path
from paropt_hpc.compress import TopK
from paropt_hpc.errors import ConfigError
from paropt_hpc.experiments.advisor import DENSITY, Workload
from paropt_hpc.train import Config, Trainer
from paropt_hpc.train.samplers import Shard
from paropt_hpc.train.wire import MessageWire

__all__ = [
    "is_tuned",
    "measure_link",
    "measure_sparse",
    "measure_workload",
    "parse_bandwidth",
    "parse_memory",
]

_STATES = {"sgd": 1, "lars": 1, "adam": 2, "adamw": 2, "lamb": 2}
_REPEATS = 7
_ROW = 4
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}
_BINARY = {"": 1.0, "k": 2.0**10, "m": 2.0**20, "g": 2.0**30, "t": 2.0**40}
_NUMBER = r"\s*(\d+(?:\.\d+)?)\s*([kKmMgGtT]?)"
_BANDWIDTH = re.compile(_NUMBER + r"(bit|b|B)(?:/s|ps)?\s*")
_MEMORY = re.compile(_NUMBER + r"(i?)[bB]?\s*")


def measure_workload(config: Config) -> Workload:
    """Time steps of a configuration on two batch sizes, and what Top-k would cost; local."""
    trainer = _alone(config)
    gradient, samples = trainer.gradient, len(trainer.data.train.y)
    many = min(config.train.batch, samples)
    few = max(1, many // 4)
    slow, fast = (_step_seconds(trainer, count) for count in (many, few))
    per_sample = max(0.0, (slow - fast) / max(1, many - few))
    return Workload(
        parameters=trainer.model.size,
        itemsize=gradient.itemsize,
        states=_STATES[config.train.optimizer],
        batch=config.train.batch,
        samples=samples,
        step_seconds=max(0.0, slow - per_sample * many),
        sample_seconds=per_sample,
        sample_bytes=_activation_bytes(trainer, many),
        select_seconds=_select_seconds(gradient),
    )


def _alone(config: Config) -> Trainer:
    """Return the training of a configuration on one rank, dense, ready for its first step."""
    given = config.model_dump()
    # A rate at which even the same batch over and over diverges nowhere.
    given["train"] |= {"lr": 1e-30, "accumulate": 1}
    given |= {"strategy": {}, "compress": {}, "run": {"seed": config.run.seed}}
    trainer = Trainer(Config(**given), SerialCommunicator())
    trainer.gradient = np.empty(trainer.model.size, trainer.params.dtype)
    trainer.strategy.start(trainer.params)
    return trainer


def measure_link(comm: Communicator, nbytes: int) -> tuple[Shape, CostModel]:
    """Fit latency and bandwidth to an all-reduce of the ranks started; collective.

    To that by recursive doubling, which exchanges whole buffers, as most of what is predicted does;
    without the native module to the ring.
    """
    shape, costs = comm.shape, CostModel()
    if comm.size == 1:
        return shape, costs
    name = "ring" if native.select() is None else "recursive_doubling"
    size = comm.size
    small, large = np.zeros(size, np.float32), np.zeros(max(size, nbytes // 4), np.float32)
    times = [_collective_seconds(comm, buffer, name) for buffer in (small, large)]
    # Its time is linear in the latency and in the inverse bandwidth: the model with one of both.
    unit = CostModel(1.0, math.inf, 1.0, math.inf).seconds(name, 0, shape)
    latency = times[0] / unit
    unit = CostModel(0.0, 1.0, 0.0, 1.0).seconds(name, large.nbytes, shape)
    bandwidth = unit / max(1e-12, times[1] - times[0])
    if shape.nodes == 1:
        return shape, replace(costs, node_latency=latency, node_bandwidth=bandwidth)
    return shape, replace(costs, link_latency=latency, link_bandwidth=bandwidth)


def measure_sparse(comm: Communicator, work: Workload) -> float | None:
    """Time the exchange of Top-k as training carries it out, with its selection; collective.

    None on one rank. The gradients are random and differ from rank to rank, so that the messages
    have the indices of all.
    """
    if comm.size == 1:
        return None
    dtype = np.dtype(f"f{work.itemsize}")
    wire = MessageWire(comm, TopK(DENSITY))
    wire.start(work.parameters, dtype)
    fresh = np.random.default_rng(comm.rank).standard_normal(work.parameters).astype(dtype)
    gradient = fresh.copy()

    def once() -> None:
        np.copyto(gradient, fresh)
        wire.send(gradient, wire.buckets[0])
        wire.finish(gradient, check=False)

    return _in_a_row(comm, once)


def is_tuned(shape: Shape, nbytes: int) -> bool:
    """Say whether ``paropt tune-comm`` has measured all-reduces for ranks like these; local."""
    path = table_path()
    return path.exists() and Table.load(path).choose(nbytes, shape) is not None


def parse_bandwidth(text: str) -> float:
    """Return bytes per second of ``25Gbit``, ``100Mbit/s``, ``40Gbps`` or ``12.5GB/s``.

    Raises
    ------
    ConfigError
        When it cannot be read, or is 0.
    """
    match = _BANDWIDTH.fullmatch(text)
    amount = float(match[1]) * _UNITS[match[2].lower()] if match else 0.0
    if match is None or amount == 0:
        raise ConfigError(f"bandwidth {text!r} cannot be read; write 25Gbit, 100Mbit/s or 12.5GB/s")
    return amount if match[3] == "B" else amount / 8


def parse_memory(text: str) -> float:
    """Return the bytes of ``80GB``, ``512MB`` or ``64GiB``.

    Raises
    ------
    ConfigError
        When it cannot be read, or is 0.
    """
    match = _MEMORY.fullmatch(text)
    amount = 0.0
    if match is not None:
        amount = float(match[1]) * (_BINARY if match[3] else _UNITS)[match[2].lower()]
    if amount == 0:
        raise ConfigError(f"memory {text!r} cannot be read; write 80GB, 512MB or 64GiB")
    return amount


def _step_seconds(trainer: Trainer, count: int) -> float:
    shard = Shard(np.arange(count), count)
    return _median_seconds(lambda: trainer.step(shard, 0, 0))


def _activation_bytes(trainer: Trainer, count: int) -> float:
    """Return what a step allocates at its peak, per sample."""
    shard = Shard(np.arange(count), count)
    tracemalloc.start()
    try:
        trainer.step(shard, 0, 0)
        return tracemalloc.get_traced_memory()[1] / count
    finally:
        tracemalloc.stop()


def _select_seconds(gradient: NDArray[np.floating]) -> float:
    compressor = TopK(DENSITY)
    compressor.start(gradient.size, gradient.dtype)
    total = np.zeros_like(gradient)

    def once() -> None:
        compressor.decompress_add(compressor.compress(gradient), total)

    return _median_seconds(once)


def _collective_seconds(comm: Communicator, buffer: NDArray[np.floating], name: str) -> float:
    return _in_a_row(comm, lambda: comm.allreduce(buffer, "sum", name))


def _in_a_row(comm: Communicator, call: Callable[[], object]) -> float:
    """Return the seconds of one of several in a row, as steps follow one another."""

    def row() -> None:
        for _ in range(_ROW):
            call()

    comm.barrier()
    return float(comm.gather_scalars(_median_seconds(row)).max()) / _ROW


def _median_seconds(call: Callable[[], object]) -> float:
    call()
    times = []
    for _ in range(_REPEATS):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return median(times)
