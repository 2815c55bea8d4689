"""Ranks that diverge are told so, all of them, and can go on."""

import numpy as np
import pytest

from paropt_hpc.comm import Communicator
from paropt_hpc.errors import CollectiveMismatch, ParoptError, is_on_every_rank

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.fixture
def comm(world):
    with Communicator(world, check=True) as made:
        yield made


def reduce_of(n, dtype=np.float32, op="sum", algorithm="auto"):
    return lambda comm: comm.allreduce(np.zeros(n, dtype=dtype), op, algorithm)


DIVERGING = {
    "operation": (lambda comm: comm.barrier(), reduce_of(4), "barrier", "allreduce"),
    "size": (reduce_of(4), reduce_of(5), "sum of 4 float32", "sum of 5 float32"),
    "long size": (reduce_of(99_999), reduce_of(99_998), "of 99999", "of 99998"),
    "dtype": (reduce_of(4), reduce_of(4, np.int32), "4 float32", "4 int32"),
    "op": (reduce_of(4, op="min"), reduce_of(4, op="max"), "min of 4", "max of 4"),
    "algorithm": (reduce_of(4, algorithm="ring"), reduce_of(4), "ring", "auto"),
    "root": (
        lambda comm: comm.broadcast(np.zeros(2), 0),
        lambda comm: comm.broadcast(np.zeros(2), 1),
        "16 bytes from 0",
        "16 bytes from 1",
    ),
    "length": (
        lambda comm: comm.broadcast(np.zeros(2)),
        lambda comm: comm.broadcast(np.zeros(3)),
        "16 bytes",
        "24 bytes",
    ),
    "gather": (
        lambda comm: comm.gather_scalars(1.0),
        lambda comm: comm.allgather_bytes(np.zeros(3, dtype=np.uint8)),
        "gather_scalars",
        "allgather_bytes",
    ),
    "empty": (lambda comm: comm.empty(3), lambda comm: comm.empty(4), "3 float32", "4 float32"),
    "start": (reduce_of(4), lambda comm: comm.start(np.zeros(4), "sum"), "allreduce", "start"),
}


@pytest.mark.parametrize("case", DIVERGING)
def test_in_checking_mode_every_rank_learns_who_differs_and_how(comm, everywhere, case):
    usual, other, usual_text, other_text = DIVERGING[case]
    last = comm.size - 1
    with pytest.raises(CollectiveMismatch) as caught:
        (other if comm.rank == last else usual)(comm)
    text, faults = str(caught.value), []
    usual_ranks = "rank 0" if last == 1 else f"ranks {', '.join(map(str, range(last)))}"
    if f"{usual_ranks}: call 1, " not in text or f"rank {last}: call 1, " not in text:
        faults.append(f"does not name the ranks: {text}")
    if usual_text not in text or other_text not in text:
        faults.append(f"does not say how they differ: {text}")
    if not is_on_every_rank(caught.value) or not isinstance(caught.value, ParoptError):
        faults.append("not marked as raised by every rank")
    buffer = np.ones(3)
    comm.allreduce(buffer, "sum")
    if not (buffer == comm.size).all():
        faults.append("the communicator is of no use afterwards")
    everywhere(faults)


def test_a_call_too_many_is_found(comm):
    if comm.rank == 0:
        with pytest.raises(CollectiveMismatch, match=r"call 1, barrier.*call 1, allreduce"):
            comm.barrier()
    else:
        with pytest.raises(CollectiveMismatch, match=r"call 1, barrier.*call 1, allreduce"):
            comm.allreduce(np.zeros(3), "sum")


@pytest.mark.parametrize("algorithm", ["auto", "shared", "hierarchical"])
@pytest.mark.parametrize(("n", "other"), [(4, 5), (4, 90_000), (90_000, 90_001)])
def test_shared_memory_finds_other_sizes_without_checking_mode(
    world, everywhere, n, other, algorithm
):
    with Communicator(world, check=False) as comm:
        buffer = np.full(other if comm.rank == 1 else n, 3.0)
        with pytest.raises(CollectiveMismatch) as caught:
            comm.allreduce(buffer, "sum", algorithm)
        text = str(caught.value)
        faults = [] if f"rank 1 passed sum of {other} float64" in text else [text]
        if f"rank 0 passed sum of {n} float64" not in text or not is_on_every_rank(caught.value):
            faults.append(text)
        if (buffer != 3).any():
            faults.append("the buffer was written before the ranks had agreed")
        again = np.ones(3)
        comm.allreduce(again, "sum", algorithm)
        if not (again == comm.size).all():
            faults.append("the communicator is of no use afterwards")
    everywhere(faults)
