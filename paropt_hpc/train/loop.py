"""The training loop: from a configuration to a trained model and its figures."""

import math
import signal as signals
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.comm import Communicator
from paropt_hpc.comm.gpu_mpi import local_device
from paropt_hpc.errors import ConfigError, DataError, DivergenceError, StoppedError, on_every_rank
from paropt_hpc.kernels import device
from paropt_hpc.runs import Checkpoint, Checkpoints, RunFolder, StopRequest, rank_part
from paropt_hpc.runs.checkpoint import merge, only, without
from paropt_hpc.train.arrays import like, placed, to_host
from paropt_hpc.train.asynchronous import Asynchronous
from paropt_hpc.train.build import (
    build_early_stopping,
    build_model,
    build_strategy,
    worker_count,
)
from paropt_hpc.train.config import Config, check_identity, identity
from paropt_hpc.train.data import Dataset, load_dataset, load_together
from paropt_hpc.train.meter import Meter, Observer
from paropt_hpc.train.models import Batch
from paropt_hpc.train.prefetch import Prefetch
from paropt_hpc.train.ragged import BucketSampler, Ragged
from paropt_hpc.train.samplers import Shard, ShardedSampler
from paropt_hpc.train.strategies import combine
from paropt_hpc.train.timeline import Timeline

__all__ = ["Summary", "Trainer", "train"]

ROWS = 256  # that are evaluated at once
MEET_EVERY = 8
"""Steps after which ranks tell one another their losses, at the latest: so much later than the
step they come from may the end of a diverging run be, or the checkpoint that a signal asks for."""


class Position(NamedTuple):
    """Where a run stands: in which epoch, with how many of its batches done."""

    epoch: int
    batch: int


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
    comm_jitter: float  # standard deviation over mean of the communication time of a step
    bytes_sent_per_rank: int  # all that rank 0 sent during the steps
    dense_bytes_per_rank: int  # what dense gradients would have sent: 2 (P-1)/P n per step
    seconds: dict[str, float]  # mean over ranks, by kind: compute, compress, ..., other
    straggler: int  # rank whose steps take much longer to compute than the others', else -1
    straggler_factor: float  # by how much; 1 without a straggler


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
    StoppedError
        On every rank, after SIGTERM or SIGUSR1 to any of them and a checkpoint.
    """
    data = load_together(comm, config.data, config.run.seed, config.model.dtype)
    with comm.together():
        trainer = Trainer(config, comm, data)
    return trainer.run(observer)


class Trainer:
    """One run: the parts that a configuration names, put together.

    Building it is local; `run` is collective. Without `data` it reads what the configuration
    names.
    """

    def __init__(self, config: Config, comm: Communicator, data: Dataset | None = None) -> None:
        self.config = config
        self.comm = comm
        settings = config.train
        self.data = data or load_dataset(config.data, config.run.seed, config.model.dtype)
        x = self.data.train.x
        ranks = comm.rank, worker_count(config, comm.size)
        self.sampler = (
            BucketSampler(x, settings.batch, *ranks, config.run.seed)
            if isinstance(x, Ragged)
            else ShardedSampler(len(x), settings.batch, *ranks, config.run.seed)
        )
        self.model = build_model(config, self.data)
        self._tells_progress = "ready" in signature(self.model.loss_and_grad).parameters
        self._xp = _array_module(config, comm)
        self.params = self._xp.asarray(self.model.init(config.run.seed, config.model.dtype))
        self.gradient = np.empty(0)  # until `run`
        debug = config.debug
        if debug.slow_rank is not None and debug.slow_rank >= comm.size:
            raise ConfigError(
                f"debug.slow_rank must be one of {comm.size} ranks, 0 to {comm.size - 1}, "
                f"got {debug.slow_rank}"
            )
        self._slowness = debug.slow_factor - 1 if debug.slow_rank == comm.rank else 0.0
        self._untold: list[float] = []  # this rank's shares of the losses since ranks last met
        self.strategy = build_strategy(
            config, comm, self.model.layers, self.sampler.steps_per_epoch
        )
        self.early = build_early_stopping(config)
        self.timeline = Timeline(comm, Path(config.run.trace) if config.run.trace else None)
        self.model.connect(self.timeline.apart(lambda sums: comm.allreduce(sums, "sum")))
        self.timeline.watch(self, "_gradient", "compute")
        self.timeline.watch(self.strategy.optimizer, "update", "update")
        self.checkpoints: Checkpoints | None = None
        if config.run.dir is not None:
            folder = Path(config.run.dir) / "checkpoints"
            self.checkpoints = Checkpoints(folder, comm, config.checkpoint.keep)
        self.folder: RunFolder | None = None
        if comm.rank == 0 and config.run.dir is not None:
            self.folder = RunFolder(
                Path(config.run.dir), config, config.run, tensorboard=config.run.tensorboard
            )

    def run(self, observer: Observer | None = None) -> Summary:
        """Train for all epochs and return the figures; collective.

        Raises
        ------
        StoppedError
            On every rank, after SIGTERM or SIGUSR1 to any of them and a checkpoint.
        """
        settings = self.config.train
        # In memory that the ranks of a node share, its reduction there needs no copy.
        if self._xp is np:
            self.gradient = self.comm.empty(self.model.size, self.params.dtype)
        else:
            self.gradient = self._xp.zeros_like(self.params)
        self.strategy.start(self.params)
        for compressor in self.strategy.compressors:
            for method in ("compress", "take"):  # whichever the wire calls
                if hasattr(compressor, method):
                    self.timeline.watch(compressor, method, "compress")
        total = self.sampler.steps_per_epoch * settings.epochs
        meter = Meter(self.comm, self.timeline, total, observer)
        position = self._resume(meter) if self.config.run.resume else Position(0, 0)
        # A diverging run is found by its loss; NumPy need not warn of it on every rank.
        try:
            with StopRequest() as stop, np.errstate(over="ignore", invalid="ignore"):
                epochs = self._run_epochs(position, meter, stop)
            self.strategy.finish(self.params)
        except StoppedError:
            with suppress(ConfigError):  # which would hide that the run can go on
                self.timeline.write()
            raise
        summary = self._summarise(meter, epochs)
        self.timeline.write()
        return summary

    def _run_epochs(self, position: Position, meter: Meter, stop: StopRequest) -> int:
        """Train from a position on; return the number of epochs that are done then."""
        for epoch in range(position.epoch, self.config.train.epochs):
            if self.early is not None and self.early.stopped:
                return epoch
            first = position.batch if epoch == position.epoch else 0
            if isinstance(self.strategy, Asynchronous):
                self._run_freely(self.strategy, epoch, first, meter, stop)
            else:
                self._run_epoch(epoch, first, meter, stop)
        return max(position.epoch, self.config.train.epochs)

    def _run_epoch(self, epoch: int, first: int, meter: Meter, stop: StopRequest) -> None:
        """Take the steps of an epoch from batch `first` on, with checkpoints between them."""
        saving = self.config.checkpoint
        meter.start()
        with self._fetched(self.sampler.epoch(epoch, first)) as shards:
            for number, (shard, batch) in enumerate(shards, first + 1):
                last = number == self.sampler.steps_per_epoch
                done = meter.steps + 1
                due = saving.every_steps is not None and done % saving.every_steps == 0
                losses, signal = self.step(
                    shard, meter.steps, epoch, stop.number, batch, meet=last or due
                )
                meter.tick(losses)
                if not last and (due or signal):
                    meter.stop()
                    self._save(Position(epoch, number), meter, signal)
                    meter.start()
        self.strategy.end_epoch(self.params)
        self.model.end_epoch()
        meter.stop()
        self._record(epoch, meter)
        meter.losses.clear()
        # What was due at the last step has waited for the end of the epoch.
        due = due or (saving.every_epochs is not None and (epoch + 1) % saving.every_epochs == 0)
        if due or signal:
            self._save(Position(epoch + 1, 0), meter, signal)

    def _run_freely(
        self, strategy: Asynchronous, epoch: int, first: int, meter: Meter, stop: StopRequest
    ) -> None:
        """Do what `_run_epoch` does with ranks that meet only where a checkpoint is due."""
        steps = self.sampler.steps_per_epoch
        every = self.config.checkpoint.every_steps or steps
        strategy.signal = lambda: stop.number
        while first < steps:
            pause = min(steps, first + every - meter.steps % every)
            tasks, losses = self.sampler.tasks(first, pause), list(meter.losses)
            meter.start()
            for task in strategy.phase(self.params, tasks, pause == steps):
                shard = self.sampler.part(epoch, task)
                loss, gradient = self._gradient(shard)
                strategy.tell(loss)
                strategy.step(self.params, gradient, (len(shard.indices), shard.batch))
                meter.tick([loss], epoch * steps + task // strategy.workers + 1)
            meter.stop()
            done = strategy.outcome
            _check_finite_everywhere(done.faulty, epoch)
            reached = -(-done.reached // strategy.workers)
            meter.steps = epoch * steps + reached
            meter.losses = losses + [done.loss] * (reached - first)
            first = reached
            due = meter.steps % every == 0 and self.config.checkpoint.every_steps is not None
            if first < steps and (due or done.signal):
                self._save(Position(epoch, first), meter, done.signal)
        self.model.end_epoch()
        self._record(epoch, meter)
        meter.losses.clear()
        every_epochs = self.config.checkpoint.every_epochs
        due = due or (every_epochs is not None and (epoch + 1) % every_epochs == 0)
        if due or done.signal:
            self._save(Position(epoch + 1, 0), meter, done.signal)

    @contextmanager
    def _fetched(self, shards: Iterable[Shard]) -> Iterator[Iterable[tuple[Shard, Batch]]]:
        """Give each shard its samples, read ahead by a thread if the configuration says so."""
        found = ((shard, self._samples(shard)) for shard in shards)
        if not self.config.data.prefetch:
            yield found
            return
        with Prefetch(found, self.config.data.prefetch) as ahead:
            yield ahead

    def _samples(self, shard: Shard) -> Batch:
        (x, y), rows = self.data.train, shard.indices
        # `take` copies rows a third faster than an index does.
        return Batch(x.take(rows, axis=0) if type(x) is np.ndarray else x[rows], y[rows])

    def _placed(self, batch: Batch) -> Batch:
        """Return samples where the parameters are."""
        if self._xp is np:
            return batch
        return Batch(self._xp.asarray(batch.x), self._xp.asarray(batch.y))

    def step(
        self,
        shard: Shard,
        number: int,
        epoch: int,
        signal: int = 0,
        batch: Batch | None = None,
        *,
        meet: bool = False,
    ) -> tuple[list[float], int]:
        """Take one step on this rank's shard of a global batch; collective.

        Parameters
        ----------
        shard : Shard
        number, epoch : int
            Of the step and the epoch, from 0.
        signal : int
            What has been told to this rank.
        batch : Batch, optional
            The samples of the shard, if they have been fetched already.
        meet : bool
            Tell the losses in this step, whether or not the strategy lets ranks meet in it; the
            same on all ranks.

        Returns
        -------
        losses : list of float
            Of the global batches since ranks last told one another; empty where they did not.
        signal : int
            The highest that any rank passed, as far as has been told.
        """
        meet = meet or self.strategy.meets or len(self._untold) + 1 == MEET_EVERY
        loss, gradient = self._gradient(shard, batch)
        samples = len(shard.indices)
        self._untold.append(loss * samples / shard.batch)
        told = self._tell(signal, number, epoch) if meet else ([], 0)
        self.strategy.step(self.params, gradient, (samples, shard.batch))
        return told

    def _tell(self, signal: int, number: int, epoch: int) -> tuple[list[float], int]:
        """Exchange what ranks have not told one another yet; collective."""
        told = self.comm.gather_vectors([*self._untold, signal])
        *losses, signals = np.add.reduce(told).tolist()
        if not (math.isfinite(sum(losses)) or self.strategy.skip_nonfinite):
            for step, shares in enumerate(told[:, :-1].T, number + 2 - len(self._untold)):
                _check_finite(shares, f"at step {step} (epoch {epoch + 1})")
        self._untold.clear()
        return losses, int(told[:, -1].max()) if signals else 0

    def _gradient(self, shard: Shard, batch: Batch | None = None) -> tuple[float, NDArray[Any]]:
        """Return loss and gradient on this rank's part of a global batch."""
        begun = time.perf_counter() if self._slowness else 0.0
        batch = self._placed(batch or self._samples(shard))
        samples = len(batch.y), shard.batch
        ready = self.strategy.begin(self.params, self.gradient, samples)
        # A custom model need not know of `ready`.
        extra = {}
        if ready is not None and self._tells_progress:
            extra["ready"] = self.timeline.apart(ready)
        loss, gradient = self.model.loss_and_grad(self.params, batch, out=self.gradient, **extra)
        if gradient is not self.gradient:
            self.gradient[:] = gradient
        if self._slowness:
            time.sleep(self._slowness * (time.perf_counter() - begun))
        return loss, self.gradient

    def evaluate(self, data: Batch) -> tuple[float, float]:
        """Return mean loss and accuracy over `data`, each rank taking a part; collective."""
        params = self.strategy.consensus(self.params)
        part = np.array_split(np.arange(len(data.y)), self.comm.size)[self.comm.rank]
        total = np.zeros(2)
        for first in range(0, part.size, ROWS):  # bounded memory for any size
            rows = slice(part[first], part[min(first + ROWS, part.size) - 1] + 1)
            batch = self._placed(Batch(data.x[rows], data.y[rows]))
            total += self.model.evaluate(params, batch)
        losses, correct = self.comm.gather_vectors(total.tolist()).T
        _check_finite(losses, "in the evaluation after an epoch")
        count = max(1, len(data.y))
        return float(losses.sum() / count), float(correct.sum() / count)

    def _save(self, position: Position, meter: Meter, signal: int) -> None:
        """Write a checkpoint, and stop after it when there was a signal."""
        if self.checkpoints is not None:
            state = {
                "params": self.params,
                "model": self.model.state_dict(),
                "strategy": self.strategy.state_dict(),
                "probe": self._probe(),
            }
            state = placed(state, to_host)
            if self.comm.rank > 0:
                state = without(state, self.strategy.shared)
            about = position._asdict() | {"meter": meter.state(), "config": identity(self.config)}
            if self.early is not None:
                about["early_stopping"] = self.early.state_dict()
            self.checkpoints.save(meter.steps, about, {rank_part(self.comm.rank): state})
        if signal:
            place = "no checkpoint, for want of a run.dir"
            if self.checkpoints is not None:
                place = f"checkpoint in {self.checkpoints.folder}; go on with --resume"
            name = signals.Signals(signal).name
            raise on_every_rank(StoppedError(f"stopped by {name} at step {meter.steps}: {place}"))

    def _resume(self, meter: Meter) -> Position:
        """Take over the newest whole checkpoint: model, optimizer, place in the data."""
        found = self.checkpoints.load() if self.checkpoints is not None else None
        if found is None:
            if self.folder is not None:
                self.folder.keep_metrics(0)
            return Position(0, 0)
        with self.comm.together():
            check_identity(found.position["config"], self.config)
            state = self._saved_state(found)
            self.params[:] = like(state["params"], self.params)
            self.model.load_state_dict(state.get("model", {}))
            there = placed(state["strategy"], lambda host: like(host, self.params))
            self.strategy.load_state_dict(there)
            same = "params" in self.strategy.shared and not state.get("model")
            if found.parts == self.comm.size or same:
                self._check_probe(found, state["probe"])
            meter.load_state(found.position["meter"])
            if self.early is not None and "early_stopping" in found.position:
                self.early.load_state_dict(found.position["early_stopping"])
            if self.folder is not None:
                self.folder.keep_metrics(found.position["epoch"])
        return Position(found.position["epoch"], found.position["batch"])

    def _saved_state(self, found: Checkpoint) -> dict[str, Any]:
        """Return this rank's state, from as many ranks as have saved."""
        shared = found.state(rank_part(0))
        if found.parts == self.comm.size:
            own = shared if self.comm.rank == 0 else found.state(rank_part(self.comm.rank))
            return merge(only(shared, self.strategy.shared), own)
        states = [found.state(rank_part(rank)) for rank in range(found.parts)]
        probe = {"probe": states[0]["probe"]}
        models = [{"model": state.pop("model", {})} for state in states]
        state = self.strategy.reshard(states, self.comm.rank, self.comm.size) | probe
        return merge(state, combine(models, lambda vectors: np.mean(vectors, axis=0)))

    def _probe(self) -> float:
        """Return the loss on a few samples: what a restored model must give again."""
        rows = slice(0, 64)
        batch = Batch(self.data.train.x[rows], self.data.train.y[rows])
        return self.model.evaluate(self.params, self._placed(batch))[0]

    def _check_probe(self, found: Checkpoint, expected: float) -> None:
        got = self._probe()
        if not np.isclose(got, expected, rtol=1e-5, atol=0):
            why = found.updated or "the data or the program has changed since"
            raise DataError(
                f"the model restored from {found.folder} has loss {got} on a few samples where "
                f"{expected} was stored; {why}"
            )

    def _record(self, epoch: int, meter: Meter) -> None:
        _, accuracy = self.evaluate(self.data.test)
        record = {
            "epoch": epoch + 1,
            "step": meter.steps,
            "loss": _mean_of_finite(meter.losses),
            "test_accuracy": accuracy,
            "lr": self.strategy.optimizer.lr,
            "wall_s": meter.wall_s,
            "comm_s": meter.comm_s,
            "bytes_sent": meter.bytes_sent,
            "seconds": meter.gather(),
            **self.strategy.metrics(self.params),
        }
        if isinstance(self.sampler, BucketSampler):
            record["padding"] = self.sampler.padding(epoch)
        if meter.straggler is not None:
            record["straggler"] = meter.straggler._asdict()
        if self.folder is not None:
            self.folder.add_metrics(record)
        if self.early is not None:
            # Equal on all ranks but for rounding; rank 0 decides.
            watched = np.array([record[self.config.early_stopping.metric or "loss"]], np.float64)
            self.comm.broadcast(watched)
            self.early.update(float(watched[0]))

    def _summarise(self, meter: Meter, epochs: int) -> Summary:
        final_loss, _ = self.evaluate(self.data.train)
        _, test_accuracy = self.evaluate(self.data.test)
        size, n = self.comm.size, self.params.nbytes
        seconds = meter.gather()
        summary = Summary(
            ranks=size,
            parameters=self.model.size,
            steps=meter.steps,
            epochs=epochs,
            final_loss=final_loss,
            test_accuracy=test_accuracy,
            wall_s=meter.wall_s,
            samples_per_s=epochs * self.sampler.n / meter.wall_s,
            comm_share=meter.comm_s / meter.wall_s,
            comm_jitter=self.comm.traffic.jitter,
            bytes_sent_per_rank=meter.bytes_sent,
            dense_bytes_per_rank=meter.steps * (2 * (size - 1) * n // size),
            seconds=seconds,
            straggler=meter.straggler.rank if meter.straggler else -1,
            straggler_factor=meter.straggler.factor if meter.straggler else 1.0,
        )
        if self.folder is not None:
            self.folder.write_summary(asdict(summary))
        # Inside one node it is other programs that make it vary, and no link to look at.
        if self.comm.rank == 0 and self.comm.node_size < size:
            self.comm.traffic.warn_of_jitter()
        return summary


def _array_module(config: Config, comm: Communicator) -> Any:
    """Return the module of the arrays to train on; for a GPU, make that of this rank current."""
    if config.train.device == "cpu":
        return np
    try:
        cupy = device.cupy()
    except ConfigError as error:
        raise ConfigError(f"train.device = 'gpu': {error}; or set train.device = 'cpu'") from None
    device.use(local_device(comm, device.count()))
    return cupy


def _check_finite_everywhere(faulty: int, epoch: int) -> None:
    """Raise on every rank if one had a loss that is not finite."""
    if faulty >= 0:
        losses = np.zeros(faulty + 1)
        losses[faulty] = np.nan
        _check_finite(losses, f"in epoch {epoch + 1}")


def _mean_of_finite(losses: list[float]) -> float | None:
    """Return the mean, without the losses of steps that were skipped; None if all were."""
    finite = [loss for loss in losses if math.isfinite(loss)]
    return float(np.mean(finite)) if finite else None


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
