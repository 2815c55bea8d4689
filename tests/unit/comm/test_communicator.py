"""One rank without MPI: the same interface and the same errors."""

import numpy as np
import pytest

from paropt_hpc.comm import SerialCommunicator
from paropt_hpc.errors import DataError


@pytest.fixture
def comm():
    return SerialCommunicator()


def test_place(comm):
    assert (comm.rank, comm.size, comm.node_rank, comm.node_size) == (0, 1, 0, 1)


@pytest.mark.parametrize("algorithm", ["ring", "mpi"])
@pytest.mark.parametrize("op", ["sum", "mean", "min", "max"])
def test_collectives_keep_the_values(comm, op, algorithm):
    buffer = np.arange(5.0)
    comm.allreduce(buffer, op, algorithm)
    comm.broadcast(buffer)
    comm.barrier()
    assert np.array_equal(buffer, np.arange(5.0))
    assert comm.gather_scalars(2.5).tolist() == [2.5]
    assert [view.tolist() for view in comm.allgather_bytes(np.arange(3, dtype=np.uint8))] == [
        [0, 1, 2]
    ]


def test_arguments_are_checked_all_the_same(comm):
    with pytest.raises(ValueError, match="op must be one of"):
        comm.allreduce(np.zeros(3), "product")
    with pytest.raises(ValueError, match="contiguous"):
        comm.allreduce(np.zeros(6)[::2])
    with pytest.raises(ValueError, match=r"root must be in \[0, 1\), got 1"):
        comm.broadcast(np.zeros(3), 1)


def test_calls_are_counted_without_bytes(comm):
    comm.allreduce(np.zeros(100))
    comm.allgather_bytes(np.zeros(9, dtype=np.uint8))
    comm.gather_scalars(1)
    comm.broadcast(np.zeros(100))
    with comm.together():
        pass
    assert (comm.traffic.calls, comm.traffic.bytes_sent, comm.traffic.bytes_received) == (5, 0, 0)


def test_together_passes_the_error_on(comm):
    error = DataError("cut off")
    with pytest.raises(DataError, match=r"^cut off$") as caught, comm.together():
        raise error
    assert caught.value is error


def test_abort_ends_the_process(comm, capsys):
    with pytest.raises(SystemExit) as ended:
        comm.abort("no space left", 7)
    assert ended.value.code == 7
    assert capsys.readouterr().err == "no space left\n"


def test_free_twice_and_use_afterwards(comm):
    with comm:
        comm.free()
    with pytest.raises(ValueError, match="communicator is freed"):
        comm.barrier()
