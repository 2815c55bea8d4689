"""Reductions in the background: right, in order, and really under way."""

import time
import weakref

import numpy as np
import pytest

from paropt_hpc.comm import Communicator

pytestmark = pytest.mark.mpi

ALGORITHMS = ["auto", "shared", "ring", "recursive_doubling", "hierarchical", "mpi"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_many_buckets_at_once(world, everywhere, algorithm):
    faults = []
    with Communicator(world) as comm:
        for _ in range(3):
            buckets = [np.full(n, comm.rank + n, np.float32) for n in (0, 1, 500, 60_000, 7)]
            requests = [comm.start(bucket, "sum", algorithm) for bucket in buckets]
            meanwhile = np.full(1000, comm.rank, dtype=np.float64)
            comm.allreduce(meanwhile, "sum")  # does not meet those in the background
            for request in reversed(requests):
                request.wait()
                request.wait()
            ranks = sum(range(comm.size))
            for bucket in buckets:
                if (bucket != bucket.size * comm.size + ranks).any():
                    faults.append(f"wrong sum of {bucket.size}")
            if (meanwhile != ranks).any():
                faults.append("wrong sum in the foreground")
            if not all(request.done() for request in requests):
                faults.append("not done after wait")
        counted = comm.traffic["start"]
        if counted.calls != 15 or counted.waiting > counted.seconds:
            faults.append(f"counted {counted}")
    everywhere(faults)


def test_into_out(world, everywhere):
    with Communicator(world) as comm:
        source, out = np.full(100, 2.0), np.empty(100)
        comm.start(source, "sum", out=out).wait()
        right = (out == 2 * comm.size).all() and (source == 2).all()
    everywhere([] if right else ["wrong"])


def test_what_was_not_waited_for_ends_before_free(world, everywhere):
    buffer = np.ones(50_000, dtype=np.float32)
    with Communicator(world) as comm:
        comm.start(buffer, "sum", "ring")
    everywhere([] if (buffer == world.size).all() else ["not reduced"])


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("algorithm", ["ring", "recursive_doubling", "hierarchical", "shared"])
def test_counts_the_bytes_that_were_sent(world, everywhere, algorithm):
    with Communicator(world) as comm:
        buffer = np.ones(1000 * comm.size, np.float32)
        comm.allreduce(buffer, "sum", algorithm)
        comm.start(buffer, "sum", algorithm).wait()
        here, there = (comm.traffic[name] for name in ("allreduce", "start"))
    same = (here.bytes_sent, here.bytes_received) == (there.bytes_sent, there.bytes_received)
    everywhere([] if same else [f"{there} where {here} was counted in the foreground"])


@pytest.mark.mpi(min_size=2)
def test_a_buffer_lives_as_long_as_the_thread_may_write_it(world, everywhere):
    """Its caller may have been thrown out between `start` and `wait`, and have forgotten both."""
    with Communicator(world, check=False) as comm:
        comm.start(np.zeros(1), "sum").wait()
        buffer = np.ones(1000)
        known = weakref.ref(buffer)
        if comm.rank > 0:
            comm.start(buffer, "sum")
        world.Barrier()
        if comm.rank == 0:
            comm.start(buffer, "sum")
        else:
            del buffer  # the others cannot be done without rank 0
        faults = [] if known() is not None else ["gone while it was reduced"]
        for _ in range(2):  # the second one finds the first one done
            comm.start(np.zeros(1), "sum").wait()
        buffer = None
        if known() is not None:
            faults.append("kept for nothing")
    everywhere(faults)


def compute(seconds):
    """Work in pure Python, which holds the interpreter's lock, for so long by the clock."""
    end, total = time.perf_counter() + seconds, 0
    while time.perf_counter() < end:
        total += sum(range(100))
    return total


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("algorithm", ["shared", "ring", "recursive_doubling", "hierarchical"])
def test_goes_on_while_a_rank_computes(world, everywhere, algorithm):
    """Rank 0 starts, and computes for a second without a call; the others must not wait for it.

    Without a thread the message of rank 0 would move on only in its wait, after its computing.
    """
    buffer = np.full(400_000, world.rank + 1, dtype=np.float32)
    with Communicator(world) as comm:
        comm.start(np.zeros(1), "sum").wait()
        comm.barrier()
        begin = time.perf_counter()
        request = comm.start(buffer, "sum", algorithm)
        if comm.rank == 0:
            compute(1.0)
        request.wait()
        took = time.perf_counter() - begin
        comm.barrier()
    faults = [] if world.rank == 0 or took < 0.7 else [f"waited {took:.2f} s for rank 0"]
    if (buffer != sum(range(1, world.size + 1))).any():
        faults.append("wrong sum")
    everywhere(faults)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("algorithm", ["shared", "ring"])
def test_total_is_well_below_compute_and_communication(world, everywhere, algorithm):
    """Communication takes long because the last rank is late, as over a slow link.

    Then the core is free, so that compute and communication can run at the same time even where
    there are more ranks than cores: what one after the other takes 0.8 s must take about 0.4 s.
    """
    late, work = 0.4, 0.4
    buffer = np.ones(100_000, dtype=np.float32)
    with Communicator(world, check=False) as comm:  # whose comparison would wait for the late one
        comm.start(np.zeros(1), "sum").wait()

        def turn(overlapped):
            comm.barrier()
            begin = time.perf_counter()
            if comm.rank == comm.size - 1:
                time.sleep(late)
                comm.start(buffer, "sum", algorithm).wait()
                return 0.0
            request = comm.start(buffer, "sum", algorithm)
            if not overlapped:
                request.wait()
            if comm.rank == 0:  # the others only wait: two cores for four ranks are enough so
                compute(work)
            request.wait()
            return time.perf_counter() - begin

        one_after_the_other, overlapped = turn(False), turn(True)
    faults = []
    if world.rank == 0 and not (one_after_the_other > 0.78 and overlapped < 0.65):
        faults.append(f"{one_after_the_other:.2f} s, overlapped {overlapped:.2f} s")
    everywhere(faults)
