"""What a run tells of itself: the split of its time, a trace of all ranks, early stopping."""

import json
import struct

import numpy as np
import pytest
from mpi4py import MPI

from paropt_hpc.comm.clocks import clock_offsets
from paropt_hpc.train import Config, Trainer
from paropt_hpc.train.timeline import KINDS

pytestmark = pytest.mark.mpi


def config_of(folder, **sections):
    base = {
        "train": {"epochs": 3, "batch": 120, "lr": 0.05},
        "model": {"hidden": [8]},
        "run": {"dir": str(folder / "run")},
    }
    return Config.model_validate(
        {name: base.get(name, {}) | sections.get(name, {}) for name in {*base, *sections}}
    )


def metrics(folder):
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_clocks_of_one_machine_are_one_clock(comm):
    offsets = clock_offsets(comm)
    assert offsets[0] == 0
    assert np.abs(offsets).max() < 0.05
    assert len({offsets.tobytes() for offsets in MPI.COMM_WORLD.allgather(offsets)}) == 1


def assert_nested(spans):
    """Of a row, as the viewers demand: a span is inside another one or beside it."""
    open_until = []
    for span in sorted(spans, key=lambda span: (span["ts"], -span["dur"])):
        end = span["ts"] + span["dur"]
        while open_until and open_until[-1] <= span["ts"] + 1e-3:
            open_until.pop()
        assert not open_until or end <= open_until[-1] + 1e-3, span
        open_until.append(end)


def test_a_trace_of_buckets_on_their_way_is_nested(comm, folder):
    strategy = {"overlap": True, "bucket_mb": 0.001}
    run = {"dir": str(folder / "run"), "trace": str(folder / "trace.json")}
    Trainer(config_of(folder, strategy=strategy, run=run), comm).run()
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    for rank in range(comm.size):
        spans = [event for event in events if event["ph"] == "X" and event["tid"] == rank]
        assert_nested(spans)
        assert any(span["name"] == "start" for span in spans) == (comm.size > 1)


@pytest.mark.parametrize("strategy", ["allreduce", "parameter-server", "async-gossip"])
def test_a_trace_shows_every_step_of_every_rank(comm, folder, strategy):
    path = folder / "trace.json"
    compress = {"method": "none" if strategy == "async-gossip" else "topk"}
    run = {"dir": str(folder / "run"), "trace": str(path)}
    config = config_of(folder, strategy={"name": strategy}, run=run, compress=compress)
    summary = Trainer(config, comm).run()
    events = json.loads(path.read_text())["traceEvents"]
    named = {event["tid"]: event["args"]["name"] for event in events if event["ph"] == "M"}
    assert named == {rank: f"rank {rank}" for rank in range(comm.size)}
    spans = [event for event in events if event["ph"] == "X"]
    assert {span["cat"] for span in spans} <= set(KINDS)
    assert all(span["ts"] >= 0 and span["dur"] >= 0 for span in spans)
    for rank in range(comm.size):
        assert_nested([span for span in spans if span["tid"] == rank])
    computed = np.bincount([span["tid"] for span in spans if span["cat"] == "compute"])
    if strategy == "parameter-server":
        assert computed.sum() >= summary.steps * max(1, comm.size - 1)
    else:
        assert computed.tolist() == comm.size * [summary.steps]
    if comm.size > 1:
        assert any(span["cat"] == "communicate" for span in spans)
    if compress["method"] == "topk":
        assert any(span["cat"] == "compress" for span in spans)
    comm.allreduce(np.zeros(3))  # goes on as before


def test_the_time_of_the_steps_is_split(comm, folder):
    summary = Trainer(config_of(folder), comm).run()
    if comm.rank == 0:
        for record in metrics(folder):
            assert set(record["seconds"]) == {*KINDS, "other"}
            assert all(seconds >= 0 for seconds in record["seconds"].values())
    assert summary.seconds["compute"] > 0
    assert summary.seconds["update"] > 0
    assert summary.seconds["compress"] == 0


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize(
    ("strategy", "norm"),
    [("allreduce", "none"), ("allreduce", "batch"), ("parameter-server", "none")],
)
def test_a_slow_rank_is_named(comm, folder, strategy, norm):
    if strategy == "parameter-server" and comm.size == 2:
        return  # one worker has nobody to be slower than
    slow = {"slow_rank": 1, "slow_factor": 20.0}
    model = {"hidden": [64], "norm": norm}  # the others wait for it inside theirs
    config = config_of(folder, debug=slow, model=model, strategy={"name": strategy})
    summary = Trainer(config, comm).run()
    assert summary.straggler == 1
    assert summary.straggler_factor > 2
    if comm.rank == 0:
        assert metrics(folder)[-1]["straggler"]["rank"] == 1


@pytest.mark.parametrize("strategy", ["allreduce", "gossip", "parameter-server"])
def test_early_stopping_ends_all_ranks_alike_and_stays_when_resumed(comm, folder, strategy):
    train = {"epochs": 40, "batch": 120, "lr": 1e-9}  # which improves nothing
    sections = {
        "train": train,
        "strategy": {"name": strategy},
        "early_stopping": {"metric": "loss", "patience": 2, "min_delta": 0.1},
        "checkpoint": {"every_epochs": 1},
    }
    summary = Trainer(config_of(folder, **sections), comm).run()
    assert summary.epochs == 3
    resumed = config_of(folder, **sections, run={"dir": str(folder / "run"), "resume": True})
    assert Trainer(resumed, comm).run().epochs == 3
    longer = resumed.early_stopping.model_copy(update={"patience": 4})
    resumed = resumed.model_copy(update={"early_stopping": longer})
    assert Trainer(resumed, comm).run().epochs == 5


def test_tensorboard_gets_what_the_metrics_hold(comm, folder):
    event = pytest.importorskip("tensorboardX.proto.event_pb2").Event
    run = {"dir": str(folder / "run"), "tensorboard": True}
    Trainer(config_of(folder, run=run), comm).run()
    if comm.rank > 0:
        return
    (path,) = (folder / "run" / "tensorboard").iterdir()
    content, scalars, at = path.read_bytes(), {}, 0
    while at < len(content):  # length, its checksum, an event, its checksum
        (length,) = struct.unpack_from("<Q", content, at)
        read = event.FromString(content[at + 12 : at + 12 + length])
        scalars |= {(value.tag, read.step): value.simple_value for value in read.summary.value}
        at += 16 + length
    for record in metrics(folder):
        for name in ("loss", "test_accuracy", "bytes_sent"):
            assert scalars[name, record["step"]] == pytest.approx(record[name])
        assert scalars["seconds/compute", record["step"]] > 0
