"""Below MPI_THREAD_MULTIPLE everything works, and the background becomes the foreground."""

import re

import pytest

SOURCE = """
import numpy as np
from mpi4py import MPI
from paropt_hpc import comm
from paropt_hpc.comm import topology
from paropt_hpc.kernels import message

LEVELS = ["SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE"]
level = [getattr(MPI, f"THREAD_{name}") for name in LEVELS].index(MPI.Query_thread())
with comm.Communicator(MPI.COMM_WORLD) as ranks:
    for algorithm in ("auto", "shared", "hierarchical", "ring", "recursive_doubling", "mpi"):
        for n in (3, 1000, 300_000):
            values = np.full(n, ranks.rank + 1, np.float32)
            ranks.allreduce(values, "sum", algorithm)
            assert (values == 3).all(), (algorithm, n)
            values[:] = ranks.rank + 1
            requests = [ranks.start(v, "sum", algorithm) for v in (values[:1], values[1:])]
            if level < 3 and algorithm not in ("auto", "shared"):
                assert all(request.done() for request in requests), algorithm
            for request in requests:
                request.wait()
            assert (values == 3).all(), ("start", algorithm, n)
    shared = ranks.empty(100_000)
    shared[:] = ranks.rank + 1
    ranks.allreduce(shared, "sum")
    assert (shared == 3).all()
    comm.neighbor_exchange(ranks, values, topology.ring(2))
    dense = np.empty(10, np.float32)
    encoded = message.encode(np.array([ranks.rank], np.uint32), np.ones(1, np.float32), 10)
    comm.sparse_allreduce(ranks, encoded, dense)
    assert dense.tolist() == [1, 1] + 8 * [0]
    print(f"rank {ranks.rank} done at {LEVELS[level]}", flush=True)
"""


@pytest.mark.parametrize("level", ["single", "funneled", "serialized", "multiple"])
def test_every_collective_at_every_thread_level(run_ranks, level):
    done = run_ranks(2, SOURCE, MPI4PY_RC_THREAD_LEVEL=level)
    assert done.returncode == 0, done.stdout + done.stderr
    # A library may give more than was asked for; less would be a fault of this test.
    names = ["SINGLE", "FUNNELED", "SERIALIZED", "MULTIPLE"]
    reached = re.findall("done at (" + "|".join(names) + ")", done.stdout)
    assert len(reached) == 2
    assert all(names.index(name) >= names.index(level.upper()) for name in reached)
