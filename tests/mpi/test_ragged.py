"""Training on samples of varying length: the result of one process, on any number of ranks."""

import json

import numpy as np
import pytest

from paropt_hpc.comm import SerialCommunicator
from paropt_hpc.train import Config, train


def config_for(folder, ways):
    generator = np.random.default_rng(5)
    lengths = generator.integers(1, 30, 120)
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    y = np.arange(120) % 2
    # A class has its own half of the tokens, so that there is something to learn.
    values = generator.integers(1, 11, offsets[-1]) + 10 * np.repeat(y, lengths)
    np.savez(folder / "text.npz", values=values, offsets=offsets, y=y)
    return Config(
        run={"dir": str(folder / "run")},
        data={"format": "npz", "train": str(folder / "text.npz"), "buckets": 4},
        model={"name": "embedding-bag", "embedding": 4, "hidden": [8], "dtype": "float64"},
        train={"epochs": 3, "batch": 12, "lr": 0.05},
        **ways,
    )


@pytest.mark.parametrize("strategy", ["allreduce", "parameter-server"])
def test_ranks_do_not_change_the_result(comm, tmp_path, strategy):
    ways = {"strategy": {"name": strategy}}
    if comm.size == 1 or (strategy == "parameter-server" and comm.size > 2):
        pytest.skip("one worker or all in step: otherwise the order is free")
    got = train(config_for(tmp_path, ways), comm)
    (tmp_path / "alone").mkdir()
    expected = train(config_for(tmp_path / "alone", ways), SerialCommunicator())
    assert got.final_loss == pytest.approx(expected.final_loss, rel=1e-10)
    assert got.final_loss < 0.6
    if comm.rank == 0:
        lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
        assert all(0 < json.loads(line)["padding"] < 0.3 for line in lines)
