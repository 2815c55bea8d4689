"""A measured table: the same on all ranks, and what auto then uses."""

import numpy as np
import pytest

from paropt_hpc.comm import Communicator
from paropt_hpc.comm.tuning import ALGORITHMS, CostModel, Table, measure
from paropt_hpc.errors import ConfigError
from paropt_hpc.experiments.advisor import Workload
from paropt_hpc.experiments.calibration import measure_link, measure_sparse

pytestmark = pytest.mark.mpi(min_size=2)


def test_measure(world, everywhere):
    seen = []
    with Communicator(world) as comm:
        table = measure(comm, (64, 4096), 3, lambda nbytes, times: seen.append((nbytes, times)))
        chosen = [table.choose(n, comm.shape) for n in (8, 64, 4096, 10**6)]
        names = ("mpi", *comm.shape.algorithms())
    faults = [] if all(name in ALGORITHMS for name in chosen) else [f"chose {chosen}"]
    link = table.link(comm.shape)
    if link is None or not (1e-8 < link.latency < 10 and 1e3 < link.bandwidth < 1e13):
        faults.append(f"a link of {link}")
    if any(other != table for other in world.allgather(table)):
        faults.append("another table on another rank")
    if [nbytes for nbytes, _ in seen] != [64, 4096] or any(set(t) != set(names) for _, t in seen):
        faults.append(f"reported {seen}")
    if any(not 0 < seconds < 10 for _, times in seen for seconds in times.values()):
        faults.append("times out of all proportion")
    everywhere(faults)


def test_auto_uses_the_table_that_rank_0_finds(world, everywhere, tmp_path, monkeypatch):
    # Every rank has a folder of its own here: only rank 0's file may count.
    key = f"{world.size} x 1 x 1"
    name = "recursive_doubling" if world.rank == 0 else "ring"
    Table({key: [(10**9, name)]}).save(tmp_path / "table.json")
    monkeypatch.setenv("PAROPT_TUNING", str(tmp_path / "table.json"))
    with Communicator(world) as comm:
        chosen = comm._choice.choose("auto", 4_000_000)
    everywhere([] if chosen == "recursive_doubling" else [f"chose {chosen}"])


def test_a_table_holds_for_the_short_way_too(world, everywhere, tmp_path, monkeypatch):
    rows = [(2000, "shared"), (10**9, "recursive_doubling")]
    Table({f"{world.size} x 1 x 1": rows}).save(tmp_path / "table.json")
    monkeypatch.setenv("PAROPT_TUNING", str(tmp_path / "table.json"))
    faults = []
    with Communicator(world, check=False) as comm:
        for n in (1000, 1001):
            before = comm.memory_bytes
            comm.allreduce(np.zeros(n, np.float16), "sum")
            # Only recursive doubling takes memory, to widen what it sends.
            if (comm.memory_bytes > before) != (n > 1000):
                faults.append(f"{n} floats: not what the table says")
    everywhere(faults)


def test_a_bad_table_is_an_error_on_every_rank(world, tmp_path, monkeypatch):
    (tmp_path / "table.json").write_text("not json")
    monkeypatch.setenv("PAROPT_TUNING", str(tmp_path / "table.json"))
    with pytest.raises(ConfigError, match="is no table of collectives"):
        Communicator(world)


def test_the_advisor_measures_the_link(world):
    with Communicator(world) as comm:
        shape, costs = measure_link(comm, 40_000)
        assert shape == comm.shape
        if comm.size == 1:
            assert costs == CostModel()
        else:  # all ranks are on one node
            assert 0 < costs.node_latency < 1
            assert costs.node_bandwidth > 1e3


def test_the_advisor_measures_top_k(world):
    with Communicator(world) as comm:
        work = Workload(5000, 4, 1, 8, 100, 0.0, 0.0, 0.0, 0.0)
        seconds = measure_sparse(comm, work)
        assert seconds is None if comm.size == 1 else 0 < seconds < 10
        assert comm.traffic["sparse_allreduce"].calls > 0 or comm.size == 1
