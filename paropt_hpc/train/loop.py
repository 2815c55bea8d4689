"""The training loop: from a configuration to a trained model and its figures."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.comm import Communicator
from paropt_hpc.errors import DivergenceError, on_every_rank
from paropt_hpc.train.build import build_model, build_strategy
from paropt_hpc.train.config import Config
from paropt_hpc.train.data import load_dataset
from paropt_hpc.train.models import Batch
from paropt_hpc.train.run_folder import RunFolder
from paropt_hpc.train.samplers import Shard, ShardedSampler

__all__ = ["Summary", "Trainer", "train"]

# Called on rank 0 after every step with (steps done, steps in all, loss of the step).
Observer = Callable[[int, int, float], None]


@dataclass(frozen=True)
class Summary:
    """What a run came to; times in seconds, sizes in bytes."""

    ranks: int
    parameters: int
    steps: int
    epochs: int
    final_loss: float  # mean over the training part at the final parameters, nats
    test_accuracy: float  # share of the test part that is labelled correctly
    wall_s: float  # of the training steps, without reading data and evaluating
    samples_per_s: float  # over all ranks
    comm_share: float  # share of wall_s that rank 0 spent in communication, waiting included
    bytes_sent_per_rank: int  # all that rank 0 sent during the steps
    dense_bytes_per_rank: int  # what dense gradients would have sent: 2 (P-1)/P n per step


def train(config: Config, comm: Communicator, observer: Observer | None = None) -> Summary:
    """Train as the configuration says; collective, the same result on every rank.

    Parameters
    ----------
    config : Config
        Equal on all ranks.
    comm : Communicator
        The ranks that train together.
    observer : callable, optional
        Told of every step on rank 0, for a progress bar.

    Raises
    ------
    ConfigError, DataError
        On every rank, when any rank finds a fault before the first step.
    DivergenceError
        On every rank, when the loss of any rank is no longer finite.
    """
    with comm.together():
        trainer = Trainer(config, comm)
    return trainer.run(observer)


class Trainer:
    """One run: the parts that a configuration names, put together.

    Building it is local; `run` is collective.
    """

    def __init__(self, config: Config, comm: Communicator) -> None:
        self.config = config
        self.comm = comm
        settings = config.train
        self.data = load_dataset(config.data, config.run.seed, config.model.dtype)
        self.sampler = ShardedSampler(
            len(self.data.train.y), settings.batch, comm.rank, comm.size, config.run.seed
        )
        self.model = build_model(config, self.data)
        self.params = self.model.init(config.run.seed, config.model.dtype)
        self.gradient = np.empty_like(self.params)
        self.strategy = build_strategy(
            config, comm, self.model.layers, self.sampler.steps_per_epoch
        )
        self.folder = None
        if comm.rank == 0 and config.run.dir is not None:
            self.folder = RunFolder(Path(config.run.dir), config)

    def run(self, observer: Observer | None = None) -> Summary:
        """Train for all epochs and return the figures; collective."""
        self.strategy.start(self.params)
        self.comm.traffic.reset()
        meter = _Meter(self.comm, self.sampler.steps_per_epoch * self.config.train.epochs, observer)
        for epoch in range(self.config.train.epochs):
            # A diverging run is found by its loss; NumPy need not warn of it on every rank.
            with meter, np.errstate(over="ignore", invalid="ignore"):
                for shard in self.sampler.epoch(epoch):
                    meter.tick(self.step(shard, meter.steps, epoch))
                self.strategy.end_epoch(self.params)
            self._record(epoch, meter)
        self.strategy.finish(self.params)
        return self._summarise(meter)

    def step(self, shard: Shard, number: int, epoch: int) -> float:
        """Take one step on this rank's shard of a global batch and return the batch's loss."""
        train = self.data.train
        batch = Batch(train.x[shard.indices], train.y[shard.indices])
        loss, gradient = self.model.loss_and_grad(self.params, batch, out=self.gradient)
        losses = self.comm.gather_scalars(loss * len(batch.y) / shard.batch)
        _check_finite(losses, f"at step {number + 1} (epoch {epoch + 1})")
        self.strategy.step(self.params, gradient, (len(batch.y), shard.batch))
        return float(losses.sum())

    def evaluate(self, data: Batch) -> tuple[float, float]:
        """Return mean loss and accuracy over `data`, each rank taking a part; collective."""
        params = self.strategy.consensus(self.params)
        part = np.array_split(np.arange(len(data.y)), self.comm.size)[self.comm.rank]
        total = np.zeros(2)
        for first in range(0, part.size, 1024):  # bounded memory for any size
            rows = slice(part[first], part[min(first + 1024, part.size) - 1] + 1)
            total += self.model.evaluate(params, Batch(data.x[rows], data.y[rows]))
        losses, correct = (self.comm.gather_scalars(value) for value in total)
        _check_finite(losses, "in the evaluation after an epoch")
        count = max(1, len(data.y))
        return float(losses.sum() / count), float(correct.sum() / count)

    def _record(self, epoch: int, meter: "_Meter") -> None:
        _, accuracy = self.evaluate(self.data.test)
        said = self.strategy.metrics(self.params)
        if self.folder is not None:
            self.folder.add_metrics(
                {
                    "epoch": epoch + 1,
                    "step": meter.steps,
                    "loss": meter.epoch_loss(),
                    "test_accuracy": accuracy,
                    "lr": self.strategy.optimizer.lr,
                    "wall_s": meter.wall_s,
                    "comm_s": meter.comm_s,
                    "bytes_sent": meter.bytes_sent,
                    **said,
                }
            )

    def _summarise(self, meter: "_Meter") -> Summary:
        final_loss, _ = self.evaluate(self.data.train)
        _, test_accuracy = self.evaluate(self.data.test)
        size, n = self.comm.size, self.params.nbytes
        samples = self.config.train.epochs * self.sampler.n
        summary = Summary(
            ranks=size,
            parameters=self.model.size,
            steps=meter.steps,
            epochs=self.config.train.epochs,
            final_loss=final_loss,
            test_accuracy=test_accuracy,
            wall_s=meter.wall_s,
            samples_per_s=samples / meter.wall_s,
            comm_share=meter.comm_s / meter.wall_s,
            bytes_sent_per_rank=meter.bytes_sent,
            dense_bytes_per_rank=meter.steps * (2 * (size - 1) * n // size),
        )
        if self.folder is not None:
            self.folder.write_summary(asdict(summary))
        return summary


class _Meter:
    """Time, traffic and loss of the training steps; evaluation between epochs is left out."""

    def __init__(self, comm: Communicator, total: int, observer: Observer | None) -> None:
        self.steps = 0
        self.wall_s = 0.0
        self.comm_s = 0.0
        self.bytes_sent = 0
        self._comm = comm
        self._total = total
        self._observer = observer if comm.rank == 0 else None
        self._losses: list[float] = []

    def __enter__(self) -> None:
        self._losses.clear()
        self._comm.traffic.reset()
        self._started = time.perf_counter()

    def __exit__(self, *exception: object) -> None:
        self.wall_s += time.perf_counter() - self._started
        self.comm_s += self._comm.traffic.seconds
        self.bytes_sent += self._comm.traffic.bytes_sent

    def tick(self, loss: float) -> None:
        """Count a step that had this loss."""
        self.steps += 1
        self._losses.append(loss)
        if self._observer is not None:
            self._observer(self.steps, self._total, loss)

    def epoch_loss(self) -> float:
        """Return the mean loss of the steps of the last epoch."""
        return float(np.mean(self._losses))


def _check_finite(losses: NDArray[Any], when: str) -> None:
    """Raise on every rank, since all ranks see the same losses."""
    if np.isfinite(losses).all():
        return
    rank = int(np.nonzero(~np.isfinite(losses))[0][0])
    error = DivergenceError(
        f"the loss is {losses[rank]} on rank {rank} {when}; "
        "lower train.lr, or set train.warmup_epochs"
    )
    raise on_every_rank(error)
