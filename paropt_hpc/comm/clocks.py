"""How the clocks of the ranks stand to one another."""

import time

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.comm.communicator import Communicator

__all__ = ["clock_offsets"]

_TAG = 7421


def clock_offsets(comm: Communicator, rounds: int = 20) -> NDArray[np.float64]:
    """Return what to add to each rank's ``time.perf_counter()`` to get that of rank 0; collective.

    Rank 0 asks every other rank for the time; of several rounds the one with the shortest way
    there and back counts, and the answer is taken for the middle of it (D. Mills, "Internet time
    synchronization: the network time protocol", IEEE Transactions on Communications 39(10),
    1991). The error is at most half of that way.

    Returns
    -------
    ndarray, shape (size,)
        Seconds, on every rank.
    """
    offsets = np.zeros(comm.size)
    if comm.size == 1:
        return offsets
    for rank in range(1, comm.size):
        if comm.rank == 0:
            offsets[rank] = min(_ask(comm, rank) for _ in range(rounds))[1]
        elif comm.rank == rank:
            for _ in range(rounds):
                _answer(comm)
    comm.broadcast(offsets)
    return offsets


def _ask(comm: Communicator, rank: int) -> tuple[float, float]:
    """Return the seconds of a way there and back, and the offset it tells."""
    theirs = np.empty(1)
    transport = comm._transport
    answer = transport.mpi.Irecv(theirs, rank, _TAG)
    begun = time.perf_counter()
    question = transport.mpi.Isend(np.zeros(1), rank, _TAG)
    transport.complete([question, answer], "clock_offsets")
    end = time.perf_counter()
    return end - begun, (begun + end) / 2 - float(theirs[0])


def _answer(comm: Communicator) -> None:
    transport = comm._transport
    transport.complete([transport.mpi.Irecv(np.empty(1), 0, _TAG)], "clock_offsets")
    now = np.array([time.perf_counter()])
    transport.complete([transport.mpi.Isend(now, 0, _TAG)], "clock_offsets")
