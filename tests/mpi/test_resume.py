"""A run that was stopped and resumed is the run that never stopped."""

import itertools
import os
import signal

import numpy as np
import pytest
from mpi4py import MPI

from paropt_hpc.comm import Communicator
from paropt_hpc.errors import ConfigError, DataError, StoppedError
from paropt_hpc.train import Config, Trainer

pytestmark = pytest.mark.mpi

WAYS = {
    "dense": {},
    "accumulated": {"train": {"accumulate": 4, "schedule": "cosine", "warmup_epochs": 0.5}},
    "adamw": {"train": {"optimizer": "adamw", "lr": 0.01, "weight_decay": 0.01}},
    "topk": {"compress": {"method": "topk", "momentum_correction": True, "warmup_epochs": 1.0}},
    "float16": {"strategy": {"wire": "float16", "loss_scale": 1e9, "loss_scale_period": 3}},
    "bfloat16": {"train": {"accumulate": 3}, "strategy": {"wire": "bfloat16"}},
    "buckets": {"strategy": {"overlap": True, "bucket_mb": 0.001}},
    "randomk": {
        "compress": {"method": "randomk", "density": 0.5, "momentum_correction": True},
        "train": {"accumulate": 2},
    },
    "threshold": {"compress": {"method": "threshold", "threshold": 0.01, "values": "float16"}},
    "qsgd": {"compress": {"method": "quantize", "values": "qsgd4", "clip_norm": 1.0}},
    "topk sign": {"compress": {"method": "topk", "density": 0.1, "values": "sign"}},
    "reselect": {
        "compress": {"method": "topk", "density": 0.1},
        "strategy": {"sparse_scheme": "reselect"},
    },
    "localsgd": {"strategy": {"name": "localsgd", "period": 5, "outer_momentum": 0.3}},
    "gossip": {"strategy": {"name": "gossip", "topology": "one-peer-exponential"}},
    "tracking": {"strategy": {"name": "gossip", "tracking": True}},
    "push-sum": {"strategy": {"name": "push-sum"}},
    "batch norm": {"model": {"hidden": [8], "norm": "batch"}},
    "virtual batches": {"model": {"hidden": [8], "norm": "virtual"}},
    "choco": {"strategy": {"name": "choco"}, "compress": {"method": "topk", "density": 0.1}},
    "choco random": {
        "strategy": {"name": "choco", "gamma": 0.2},
        "compress": {"method": "randomk", "density": 0.2, "values": "qsgd4"},
    },
    # With one worker, and so deterministic.
    "one worker": {
        "strategy": {
            "name": "parameter-server",
            "servers": max(1, MPI.COMM_WORLD.Get_size() - 1),
            "group": 2,
        },
        "compress": {"method": "topk", "density": 0.1},
    },
}
# Not deterministic on more than two ranks.
LOOSE = {
    "async-gossip": {"strategy": {"name": "async-gossip", "lead": 2}},
    "server": {"strategy": {"name": "parameter-server", "staleness_policy": "wait"}},
    "server, topk": {
        "strategy": {"name": "parameter-server"},
        "compress": {"method": "topk", "density": 0.1},
    },
}


def config_of(way, **run):
    sections = {name: dict(values) for name, values in (WAYS | LOOSE)[way].items()}
    sections["train"] = {"epochs": 3, "batch": 120, "lr": 0.05} | sections.get("train", {})
    sections.setdefault("model", {"hidden": [8]})
    sections["run"] = {name: str(v) if name == "dir" else v for name, v in run.items()}
    sections["checkpoint"] = {"every_steps": 5}
    return Config.model_validate(sections)


def stop_at(step):
    """An observer, so on rank 0 only, that sends its own process a signal."""

    def observe(done, total, loss):
        if done >= step:  # a rank of an asynchronous strategy may have no part in a batch
            os.kill(os.getpid(), signal.SIGUSR1)

    return observe


def interrupted(config, comm, step):
    trainer = Trainer(config, comm)
    with pytest.raises(StoppedError, match=r"stopped by SIGUSR1 at step \d+: checkpoint in"):
        trainer.run(stop_at(step))
    return trainer


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("step", [7, 11])  # in an epoch of 12 steps, and before its end
def test_resume_is_bitwise(comm, folder, way, step):
    whole = Trainer(config_of(way), comm)
    summary = whole.run()
    config = config_of(way, dir=folder / "run", resume=True)
    interrupted(config, comm, step)
    resumed = Trainer(config, comm)
    again = resumed.run()
    assert np.array_equal(resumed.params, whole.params)
    assert (again.final_loss, again.test_accuracy) == (summary.final_loss, summary.test_accuracy)
    assert again.steps == summary.steps
    # The counters that are saved are those of rank 0. A sparse all-reduce learns from call to
    # call which of its exact schemes is the shortest, and begins to learn anew.
    if comm.rank == 0 and "compress" not in WAYS[way]:
        assert again.bytes_sent_per_rank == summary.bytes_sent_per_rank
        assert len((folder / "run" / "metrics.jsonl").read_text().splitlines()) == 3


def test_resume_from_an_older_checkpoint_when_the_newest_is_damaged(comm, folder):
    whole = Trainer(config_of("topk"), comm)
    whole.run()
    config = config_of("topk", dir=folder / "run", resume=True)
    interrupted(config, comm, 13)
    if comm.rank == 0:
        newest = max((folder / "run" / "checkpoints").glob("step-*"))
        path = newest / f"rank-{comm.size - 1:05d}.npz"
        path.write_bytes(path.read_bytes()[:-9])
    comm.barrier()
    resumed = Trainer(config, comm)
    if comm.rank == 0:
        with pytest.warns(UserWarning, match="is damaged"):
            resumed.run()
    else:
        resumed.run()
    assert np.array_equal(resumed.params, whole.params)


@pytest.mark.parametrize("way", ["dense", "accumulated", "adamw", "buckets", "batch norm"])
def test_resume_on_one_rank(comm, folder, way):
    """What the batches hold does not depend on the ranks, so that the end is the same."""
    whole = Trainer(config_of(way), comm)
    whole.run()
    config = config_of(way, dir=folder / "run", resume=True)
    interrupted(config, comm, 7)
    if comm.rank == 0:
        with Communicator(MPI.COMM_SELF) as alone:
            resumed = Trainer(config, alone)
            resumed.run()
            assert np.allclose(resumed.params, whole.params, rtol=1e-4, atol=1e-6)
    comm.barrier()


@pytest.mark.parametrize(
    "way",
    [
        *("topk", "threshold", "qsgd", "localsgd", "gossip", "tracking", "push-sum", "choco"),
        "virtual batches",
        *LOOSE,
    ],
)
def test_resume_on_one_rank_still_learns(comm, folder, way):
    config = config_of(way, dir=folder / "run", resume=True)
    interrupted(config, comm, 7)
    if comm.rank == 0:
        with Communicator(MPI.COMM_SELF) as alone:
            summary = Trainer(config, alone).run()
        assert summary.steps == 36
        assert summary.test_accuracy > 0.3  # ten classes
    comm.barrier()


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_residuals_are_dealt_out_without_loss(comm, size):
    trainer = Trainer(config_of("topk"), comm)
    trainer.strategy.start(trainer.params)
    states = []
    for rank in range(3):
        state = {"params": trainer.params, "strategy": trainer.strategy.state_dict()}
        compressor = state["strategy"]["compressor"]
        compressor["residual"] = np.full_like(trainer.params, 2.0**rank)
        compressor["velocity"] = np.full_like(trainer.params, 10.0**rank)
        states.append(state)
    dealt = [trainer.strategy.reshard(states, rank, size) for rank in range(size)]
    for name, mean in (("residual", 7 / 3), ("velocity", 111 / 3)):
        total = sum(state["strategy"]["compressor"][name] for state in dealt)
        assert np.allclose(total / size, mean)
    assert all(np.array_equal(state["params"], trainer.params) for state in dealt)


class Recorder(Trainer):
    """Remembers the samples of every gradient."""

    def __init__(self, config, comm):
        super().__init__(config, comm)
        self.seen = []

    def _gradient(self, shard, batch=None):
        self.seen += shard.indices.tolist()
        return super()._gradient(shard, batch)


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("way", ["dense", "topk", "server", "async-gossip"])
def test_another_number_of_ranks_takes_each_remaining_sample_once(comm, folder, way, size):
    config = config_of(way, dir=folder / "run", resume=True)
    first = Recorder(config, comm)
    with pytest.raises(StoppedError):
        first.run(stop_at(16))
    seen = first.seen
    with comm.split(int(comm.rank < size)) as part:
        if comm.rank < size:
            resumed = Recorder(config, part)
            resumed.run()
            seen = seen + resumed.seen
    everything = sorted(itertools.chain(*MPI.COMM_WORLD.allgather(seen)))
    assert everything == sorted(3 * list(range(first.sampler.n)))


def test_a_model_that_is_not_the_one_that_was_saved_is_refused(comm, folder):
    config = config_of("topk", dir=folder / "run", resume=True)
    interrupted(config, comm, 7)
    resumed = Trainer(config, comm)
    resumed.data.train.x[:] *= 1.01  # as if the file had changed
    with pytest.raises(DataError, match=r"the model restored from .* has loss .* was stored"):
        resumed.run()


def test_a_checkpoint_that_is_due_at_the_end_of_an_epoch_is_made(comm, folder):
    config = config_of("dense", dir=folder / "run")
    saving = config.checkpoint.model_copy(update={"every_steps": 12})  # as many as in an epoch
    Trainer(config.model_copy(update={"checkpoint": saving}), comm).run()
    made = sorted(path.name for path in (folder / "run" / "checkpoints").iterdir())
    assert made == ["step-00000024", "step-00000036"]


def test_another_run_is_not_resumed(comm, folder):
    interrupted(config_of("dense", dir=folder / "run", resume=True), comm, 7)
    other = config_of("dense", dir=folder / "run", resume=True, seed=5)
    with pytest.raises(ConfigError, match=r"cannot resume: run\.seed was 0 .* and is 5 now"):
        Trainer(other, comm).run()
    slower = config_of("dense", dir=folder / "run", resume=True)
    slower = slower.model_copy(update={"train": slower.train.model_copy(update={"lr": 0.01})})
    with pytest.raises(ConfigError, match=r"train\.lr was 0\.05"):
        Trainer(slower, comm).run()


def test_resume_without_a_checkpoint_starts_anew(comm, folder):
    config = config_of("dense", dir=folder / "run", resume=True)
    whole = Trainer(config_of("dense"), comm)
    whole.run()
    fresh = Trainer(config, comm)
    fresh.run()
    assert np.array_equal(fresh.params, whole.params)
