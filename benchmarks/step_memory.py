"""The peak memory of training steps, counted and not sampled.

NumPy tells tracemalloc of every array; what the ranks of a node share is counted beside it. Held by
a test, printed by bench_step.py.
"""

import tracemalloc
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paropt_hpc.comm import Communicator
from paropt_hpc.compress import TopK
from paropt_hpc.runs import Checkpoints, rank_part
from paropt_hpc.train import MLP, SGD, Adam, AllReduce, Batch

__all__ = ["SLACK_BYTES", "WAYS", "Peak", "peak"]

SLACK_BYTES = 16 << 20

#: settings of AllReduce, and the vectors that it may take beside parameters and gradient
WAYS: dict[str, tuple[Any, float]] = {
    "sgd": (lambda: {"optimizer": SGD(0.1)}, 0),
    "momentum": (lambda: {"optimizer": SGD(0.1, 0.9, weight_decay=0.01)}, 1),
    "adam": (lambda: {"optimizer": Adam(0.1, weight_decay=0.01), "clip_norm": 1.0}, 2),
    "buckets": (lambda: {"optimizer": SGD(0.1, 0.9), "overlap": True}, 1),
    "topk": (lambda: {"optimizer": SGD(0.1, 0.9), "compressor": TopK(0.01)}, 2),
    "topk corrected": (
        lambda: {
            "optimizer": SGD(0.1),
            "compressor": TopK(0.01, momentum=0.9),
            "local_clip_norm": 1.0,
            "weight_decay": 0.01,
        },
        2,  # the momentum is the compressor's
    ),
    "float16": (lambda: {"optimizer": SGD(0.1, 0.9), "wire": "float16"}, 1),
    "accumulated": (lambda: {"optimizer": SGD(0.1, 0.9), "accumulate": 2}, 2),
}


class Peak(NamedTuple):
    """What a way to train has taken, in bytes."""

    peak: int
    allowed: int  # vectors, activations, and SLACK_BYTES
    vector: int  # of a vector as long as the parameters


def peak(
    comm: Communicator,
    way: str,
    widths: tuple[int, int, int] = (2000, 3000, 10),
    folder: Path | None = None,
) -> Peak:
    """Train for three steps and return the peak of this rank; collective.

    With a folder, the same on all ranks, a checkpoint is written there after the last step.
    """
    make, vectors = WAYS[way]
    model, rows = MLP(widths[0], [widths[1]], widths[2]), 8
    batch = Batch(np.ones((rows, widths[0]), np.float32), np.zeros(rows, int))
    shared = _Shared(comm)
    before = comm.memory_bytes
    tracemalloc.start()
    try:
        params = model.init(0)
        gradient = shared.empty(model.size, params.dtype)
        strategy = AllReduce(comm, **make())
        strategy.start(params)
        for _ in range(3):
            ready = strategy.begin(params, gradient)
            model.loss_and_grad(params, batch, gradient, ready)
            strategy.step(params, gradient)
        if folder is not None:
            state = {"params": params, "strategy": strategy.state_dict()}
            Checkpoints(folder, comm).save(3, {}, {rank_part(comm.rank): state})
        strategy.finish(params)
        taken = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        shared.stop()
    taken += shared.nbytes + comm.memory_bytes - before
    activations = 4 * 4 * rows * sum(widths)
    allowed = int((2 + vectors) * params.nbytes) + activations + SLACK_BYTES
    return Peak(taken, allowed, params.nbytes)


class _Shared:
    """Counts the arrays of `Communicator.empty` that are not NumPy's own memory."""

    def __init__(self, comm: Communicator) -> None:
        self.nbytes = 0
        self._comm = comm
        self._make = comm.empty
        comm.empty = self.empty  # type: ignore[method-assign]

    def empty(self, n: int, dtype: Any = np.float32) -> Any:
        array = self._make(n, dtype)
        if self._comm.size > 1 and self._comm.shape.shares_memory:
            self.nbytes += array.nbytes
        return array

    def stop(self) -> None:
        del self._comm.empty
