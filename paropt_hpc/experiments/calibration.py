"""The few numbers that the advisor predicts from, measured here."""

import time
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.comm import Communicator
from paropt_hpc.comm.tuning import CostModel, Shape
from paropt_hpc.compress import TopK
from paropt_hpc.experiments.advisor import DENSITY, Workload
from paropt_hpc.train import Config, load_dataset
from paropt_hpc.train.build import build_model
from paropt_hpc.train.models import Batch, Model

__all__ = ["measure_link", "measure_workload", "parse_bandwidth", "parse_memory"]

_STATES = {"sgd": 1, "lars": 1, "adam": 2, "adamw": 2, "lamb": 2}
_REPEATS = 7
_UNITS = {"k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12}


def measure_workload(config: Config) -> Workload:
    """Time a configuration's model on two batch sizes, and what Top-k would cost; local."""
    data = load_dataset(config.data, config.run.seed, config.model.dtype)
    model = build_model(config, data)
    params = model.init(config.run.seed, config.model.dtype)
    gradient = np.empty_like(params)
    many = min(config.train.batch, len(data.train.y))
    few = max(1, many // 4)
    slow, fast = (_step_seconds(model, params, gradient, data.train, n) for n in (many, few))
    per_sample = max(0.0, (slow - fast) / max(1, many - few))
    return Workload(
        parameters=model.size,
        itemsize=params.itemsize,
        states=_STATES[config.train.optimizer],
        batch=config.train.batch,
        samples=len(data.train.y),
        step_seconds=max(0.0, slow - per_sample * many),
        sample_seconds=per_sample,
        sample_bytes=_activation_bytes(model, params, gradient, data.train, many),
        select_seconds=_select_seconds(gradient),
    )


def measure_link(comm: Communicator, nbytes: int) -> tuple[Shape, CostModel]:
    """Fit latency and bandwidth to the ring all-reduce of the ranks started; collective."""
    shape = comm.shape
    costs = CostModel()
    if comm.size == 1:
        return shape, costs
    size = comm.size
    small, large = np.zeros(size, np.float32), np.zeros(max(size, nbytes // 4), np.float32)
    times = [_collective_seconds(comm, buffer) for buffer in (small, large)]
    # The ring's formula (comm.tuning), solved for its latency and its bandwidth.
    latency = times[0] / (2 * (size - 1))
    rest = max(1e-12, times[1] / (2 * (size - 1)) - latency)
    bandwidth = large.nbytes / (size * rest)
    if shape.nodes == 1:
        return shape, replace(costs, node_latency=latency, node_bandwidth=bandwidth)
    return shape, replace(costs, link_latency=latency, link_bandwidth=bandwidth * shape.node_size)


def parse_bandwidth(text: str) -> float:
    """Return bytes per second of ``25Gbit``, ``100Mbit/s`` or ``12.5GB/s``.

    Raises
    ------
    ValueError
        When it cannot be read.
    """
    word = text.strip().removesuffix("/s")
    for suffix, bits in (("bit", 8), ("b", 8), ("B", 1)):
        if word.endswith(suffix):
            return _number(word.removesuffix(suffix)) / bits
    raise ValueError(f"bandwidth {text!r} cannot be read; write 25Gbit, 100Mbit/s or 12.5GB/s")


def parse_memory(text: str) -> float:
    """Return the bytes of ``80GB`` or ``512MB``.

    Raises
    ------
    ValueError
        When it cannot be read.
    """
    word = text.strip().upper()
    if not word.endswith("B"):
        raise ValueError(f"memory {text!r} cannot be read; write 80GB or 512MB")
    return _number(word[:-1].removesuffix("I"))


def _number(text: str) -> float:
    factor = _UNITS.get(text[-1:].lower(), 1.0)
    return float(text.rstrip("kKmMgGtT")) * factor


def _first(data: Batch, count: int) -> Batch:
    return Batch(data.x[:count], data.y[:count])


def _step_seconds(
    model: Model, params: NDArray[np.floating], out: NDArray[np.floating], data: Batch, count: int
) -> float:
    batch = _first(data, count)
    return _median_seconds(lambda: model.loss_and_grad(params, batch, out=out))


def _activation_bytes(
    model: Model, params: NDArray[np.floating], out: NDArray[np.floating], data: Batch, count: int
) -> float:
    """Return what a step allocates at its peak, per sample."""
    batch = _first(data, count)
    tracemalloc.start()
    try:
        model.loss_and_grad(params, batch, out=out)
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


def _collective_seconds(comm: Communicator, buffer: NDArray[np.floating]) -> float:
    def once() -> None:
        comm.barrier()
        comm.allreduce(buffer, "sum", "ring")

    return float(comm.gather_scalars(_median_seconds(once)).max())


def _median_seconds(call: Callable[[], object]) -> float:
    call()
    times = []
    for _ in range(_REPEATS):
        begun = time.perf_counter()
        call()
        times.append(time.perf_counter() - begun)
    return median(times)
