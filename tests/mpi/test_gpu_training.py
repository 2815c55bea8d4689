"""Runs on a GPU, that of ``tests/fake``, beside the same runs on the host."""

import fake_gpu
import numpy as np
import pytest

from paropt_hpc.comm import gpu_allreduce
from paropt_hpc.kernels import device
from paropt_hpc.train import SGD, AllReduce, Config, Trainer

pytestmark = pytest.mark.mpi

WAYS = {
    "dense": {},
    "nccl": {"strategy": {"algorithm": "nccl"}},
    "accumulated": {"train": {"accumulate": 3, "optimizer": "adam", "lr": 0.01, "clip_norm": 1.0}},
    "float16": {"strategy": {"wire": "float16"}},
    "bfloat16": {"strategy": {"wire": "bfloat16"}, "train": {"accumulate": 2}},
    "topk": {"compress": {"method": "topk", "density": 0.1, "momentum_correction": True}},
    "topk, split": {
        "compress": {"method": "topk", "density": 0.1, "values": "float16"},
        "strategy": {"sparse_scheme": "reselect"},
    },
    "randomk": {"compress": {"method": "randomk", "density": 0.3}},
    "quantize": {"compress": {"method": "quantize", "values": "int8"}},
    "localsgd": {"strategy": {"name": "localsgd", "period": 5, "outer_momentum": 0.3}},
    "batch norm": {"model": {"hidden": [8], "norm": "batch"}},
    "gossip": {"strategy": {"name": "gossip", "topology": "one-peer-exponential"}},
    "tracking": {"strategy": {"name": "gossip", "tracking": True, "order": "combine-then-adapt"}},
    "push-sum": {"strategy": {"name": "push-sum", "topology": "exponential"}},
    "choco": {"strategy": {"name": "choco"}, "compress": {"method": "topk", "density": 0.2}},
}
# Not deterministic on more than two ranks.
LOOSE = {
    "server": {"strategy": {"name": "parameter-server", "staleness_policy": "wait"}},
    "server, topk": {
        "strategy": {"name": "parameter-server", "servers": 1, "group": 2},
        "compress": {"method": "topk", "density": 0.2},
    },
    "async-gossip": {"strategy": {"name": "async-gossip", "lead": 2}},
}


def config_of(way, on, **run):
    sections = {name: dict(values) for name, values in (WAYS | LOOSE)[way].items()}
    if on == "cpu" and way == "nccl":
        del sections["strategy"]
    usual = {"epochs": 2, "batch": 360, "lr": 0.05, "device": on}
    sections["train"] = usual | sections.get("train", {})
    sections.setdefault("model", {"hidden": [8]})
    sections["checkpoint"] = {"every_epochs": 1}
    sections["run"] = {name: str(v) if name == "dir" else v for name, v in run.items()}
    return Config.model_validate(sections)


@pytest.fixture
def cupy(world, monkeypatch):
    monkeypatch.setattr(gpu_allreduce, "STAGE_BYTES", 1000)
    return fake_gpu.install(monkeypatch, uuid=10 * world.Get_rank())


@pytest.mark.parametrize("way", WAYS)
def test_a_run_on_a_gpu_comes_to_what_one_on_the_host_does(way, comm, cupy):
    there = Trainer(config_of(way, "gpu"), comm)
    found = there.run()
    assert isinstance(there.params, cupy.ndarray)
    assert isinstance(there.gradient, cupy.ndarray)
    assert fake_gpu.Device.used == comm.node_rank % fake_gpu.GPUS == cupy.fake.device
    bits = comm.allgather_bytes(there.params.get().view(np.uint8))
    assert all(other.tobytes() == bits[0].tobytes() for other in bits)
    expected = Trainer(config_of(way, "cpu"), comm).run()
    assert found.final_loss == pytest.approx(expected.final_loss, rel=0.02)
    assert found.test_accuracy == pytest.approx(expected.test_accuracy, abs=0.02)


@pytest.mark.parametrize("wire", ["float16", "bfloat16"])
def test_what_overflows_on_its_way_is_skipped_by_all(wire, comm, cupy):
    strategy = AllReduce(comm, SGD(1.0), wire=wire, skip_nonfinite=True)
    params = cupy.zeros(20, np.float32)
    strategy.start(params)
    largest = 3.4e38 if comm.rank == comm.size - 1 else 1.0  # finite as float32
    strategy.step(params, cupy.asarray(np.full(20, largest, np.float32)))
    assert strategy.skipped == 1
    assert not params.get().any()
    strategy.step(params, cupy.asarray(np.full(20, 0.5, np.float32)))
    np.testing.assert_array_equal(params.get(), np.full(20, -0.5))


@pytest.mark.parametrize("way", LOOSE)
def test_ranks_that_do_not_keep_step_learn_there_too(way, comm, cupy):
    config = config_of(way, "gpu")
    train = {"epochs": 8, "batch": 60, "lr": 0.1, "momentum": 0.5}
    updated = {
        "train": config.train.model_copy(update=train),
        "model": config.model.model_copy(update={"hidden": [32]}),
    }
    trainer = Trainer(config.model_copy(update=updated), comm)
    assert trainer.run().test_accuracy > 0.85
    bits = comm.allgather_bytes(trainer.params.get().view(np.uint8))
    assert all(other.tobytes() == bits[0].tobytes() for other in bits)


@pytest.mark.parametrize("way", ["topk", "batch norm", "push-sum", "server, topk"])
@pytest.mark.parametrize(("first", "second"), [("gpu", "cpu"), ("cpu", "gpu")])
def test_a_run_goes_on_on_the_other_kind(way, first, second, comm, cupy, folder):
    whole = config_of(way, second)
    half = config_of(way, first, dir=folder)
    half = half.model_copy(update={"train": half.train.model_copy(update={"epochs": 1})})
    Trainer(half, comm).run()
    trainer = Trainer(config_of(way, second, dir=folder, resume=True, overwrite=True), comm)
    found = trainer.run()
    assert device.is_device(trainer.params) == (second == "gpu")
    assert found.final_loss == pytest.approx(Trainer(whole, comm).run().final_loss, rel=0.02)
