"""A rank that does not come is named, and processes end, with or without each other."""

import time

import pytest

HEAD = """
import sys, time
import numpy as np
from mpi4py import MPI
from paropt_hpc import comm, errors
from paropt_hpc.kernels.message import encode
OPTIONS = {options}
ranks = comm.Communicator(MPI.COMM_WORLD, **OPTIONS)
def say(text):
    print(f"[{{MPI.COMM_WORLD.rank}}] {{text}}", flush=True)
"""

LATE = """
ranks.broadcast(np.zeros(3))
ranks.barrier()
if ranks.rank == 1:
    time.sleep(2.5)
    say("slept")
    sys.exit(0)
start = time.monotonic()
try:
    {call}
except errors.CollectiveTimeout as error:
    say(f"{{type(error).__name__}} after {{time.monotonic() - start:.1f}} s: {{error}}")
try:
    ranks.barrier()
except RuntimeError as error:
    say(f"then {{error}}")
try:
    ranks.allreduce(np.zeros(4), 'sum')
except RuntimeError as error:
    say(f"nor {{error}}")
ranks.free()
"""


def outcome(run_ranks, n, source, options="{}", **variables):
    start = time.monotonic()
    done = run_ranks(n, HEAD.format(options=options) + source, **variables)
    return done.returncode, done.stdout + done.stderr, time.monotonic() - start


@pytest.mark.parametrize(
    "call",
    [
        "ranks.allreduce(np.zeros(4), 'sum')",
        "ranks.allreduce(np.zeros(400_000), 'sum', 'shared')",
        "ranks.allreduce(np.zeros(400_000), 'sum', 'ring')",
        "ranks.allreduce(np.zeros(4), 'sum', 'recursive_doubling')",
        "ranks.allreduce(np.zeros(4), 'sum', 'mpi')",
        "ranks.barrier()",
        "ranks.gather_scalars(1.0)",
        "ranks.allgather_bytes(np.zeros(4, np.uint8))",
        "comm.sparse_allreduce(ranks, encode(None, np.ones(4), 4), np.zeros(4))",
        # The library makes and frees without a deadline, so the ranks meet before.
        "ranks.start(np.zeros(4), 'sum')",
        "ranks.empty(100)",
        "ranks.split(0)",
        "ranks.free()",
    ],
)
def test_the_missing_rank_is_named_with_where_it_was_last_seen(run_ranks, call):
    status, output, seconds = outcome(run_ranks, 2, LATE.format(call=call), PAROPT_TIMEOUT="1")
    assert status == 0, output
    assert "[0] CollectiveTimeout after 1." in output
    assert "not here: rank 1 (last seen after barrier, call 2)" in output
    assert "raise PAROPT_TIMEOUT" in output
    assert "[0] then a collective of this communicator has failed; make a new one" in output
    assert "[0] nor " in output
    assert seconds < 30


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_without_the_native_module_there_is_a_deadline_too(run_ranks, dtype):
    call = f"ranks.allreduce(np.zeros(400_000, '{dtype}'), 'sum')"
    status, output, seconds = outcome(
        run_ranks, 2, LATE.format(call=call), "{'backend': 'reference'}", PAROPT_TIMEOUT="1"
    )
    assert status == 0, output
    assert "[0] CollectiveTimeout after 1." in output
    assert "which rank is missing is not known" in output
    assert seconds < 30


def test_only_the_missing_of_three_is_named(run_ranks):
    call = "ranks.allreduce(np.zeros(4), 'sum')"
    _, output, _ = outcome(run_ranks, 3, LATE.format(call=call), PAROPT_TIMEOUT="1")
    for rank in (0, 2):
        assert f"[{rank}] CollectiveTimeout" in output
    assert output.count("not here: rank 1 (last seen after barrier, call 2); raise") == 2


def test_one_that_has_been_here_is_not_missing(run_ranks):
    """Rank 3 has no neighbour to wait for, and is in the barrier when its neighbours give up."""
    call = "comm.neighbor_exchange(ranks, np.zeros(4), comm.topology.ring(4)); ranks.barrier()"
    _, output, _ = outcome(run_ranks, 4, LATE.format(call=call), PAROPT_TIMEOUT="1")
    for rank in (0, 2):
        said = [line for line in output.splitlines() if f"[{rank}] CollectiveTimeout" in line]
        assert len(said) == 1
        assert "not here: rank 1 (last seen after barrier, call 2); raise" in said[0]


def test_of_other_nodes_only_the_ranks_are_known(run_ranks):
    call = "ranks.allreduce(np.zeros(4), 'sum', 'ring')"
    _, output, _ = outcome(
        run_ranks, 2, LATE.format(call=call), "{'node_size': 1}", PAROPT_TIMEOUT="1"
    )
    assert "all ranks of this node have arrived; not here: one or more of ranks 1" in output


def test_in_the_background_wait_raises_it(run_ranks):
    source = """
ranks.start(np.zeros(4), 'sum').wait()
if ranks.rank == 1:
    time.sleep(2.5)
    sys.exit(0)
try:
    ranks.start(np.zeros(400_000), 'sum', 'ring').wait()
except errors.CollectiveTimeout as error:
    say(f"{type(error).__name__}: {error}")
try:
    ranks.barrier()
except RuntimeError as error:
    say(f"then {error}")
ranks.free()  # does not wait for the one that is gone
say("freed")
"""
    status, output, seconds = outcome(run_ranks, 2, source, PAROPT_TIMEOUT="1")
    assert status == 0, output
    assert "[0] CollectiveTimeout: the all-reduce did not end within 1.0 s" in output
    assert "[0] then a collective of this communicator has failed; make a new one" in output
    assert "[0] freed" in output
    assert seconds < 20


def test_what_was_started_ends_with_a_communicator_that_has_failed(run_ranks):
    source = """
ranks.start(np.zeros(4), 'sum').wait()
if ranks.rank == 1:
    time.sleep(4)
    sys.exit(0)
left = ranks.start(np.zeros(400_000), 'sum', 'shared')
try:
    ranks.barrier()
except errors.CollectiveTimeout:
    say("timeout")
start = time.monotonic()
ranks.free()
assert left.done() and time.monotonic() - start < 0.5
try:
    left.wait()
except errors.CollectiveTimeout as error:
    say(f"left: {error}")
"""
    status, output, _ = outcome(run_ranks, 2, source, "{'timeout': 2}")
    assert status == 0, output
    assert "[0] timeout" in output
    assert "[0] left: the all-reduce did not end" in output


def test_timeout_must_be_seconds(run_python):
    for text in ("soon", "-1", "inf", "nan"):
        said = run_python(HEAD.format(options="{}"), PAROPT_TIMEOUT=text)
        assert f"PAROPT_TIMEOUT must be seconds, 0 for no limit, got '{text}'" in said.stderr


USED = """
shared = ranks.empty(100_000)
ranks.allreduce(shared, 'sum')
ranks.allreduce(np.zeros(100_000), 'sum', 'shared')
ranks.start(np.zeros(100_000), 'sum', 'ring').wait()
"""

ENDINGS = {
    "nothing is freed": ("say('end')", 0),
    "all is freed": ("ranks.free(); ranks.free(); say('end'); shared += 1", 0),
    "all raise": ("say('end'); raise ValueError('lost')", 1),
    "all exit": ("say('end'); sys.exit(3)", 3),
    "a request is left": ("ranks.start(shared, 'sum'); say('end')", 0),
    "exception in a with block": (
        "say('end')\nwith ranks:\n    raise ValueError('lost')",
        1,
    ),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_processes_end_whatever_was_shared(run_ranks, ending):
    source, want = ENDINGS[ending]
    status, output, seconds = outcome(run_ranks, 2, USED + source)
    assert ("[0] end" in output, "[1] end" in output) == (True, True), output
    assert (status == 0) == (want == 0), output
    assert "Segmentation" not in output
    assert seconds < 20


@pytest.mark.parametrize("call", ["allreduce(shared, 'sum')", "start(shared, 'sum').wait()"])
def test_one_rank_raises_while_the_other_waits(run_ranks, call):
    source = USED + f"if ranks.rank == 1: raise ValueError('lost')\nranks.{call}"
    status, output, seconds = outcome(run_ranks, 2, source)
    assert status != 0
    assert "ValueError: lost" in output
    assert seconds < 20


def test_one_rank_ends_in_peace_while_its_job_waits_for_the_other(run_ranks):
    # The job of rank 0 cannot end, since rank 1 never starts its own; both processes still end.
    source = USED + "if ranks.rank == 0: ranks.start(shared, 'sum')\nsay('end')"
    status, output, seconds = outcome(run_ranks, 2, source)
    assert status == 0, output
    assert output.count("end") == 2
    assert seconds < 20


def test_freeing_one_communicator_leaves_the_other_its_way_to_end(run_ranks):
    source = (
        USED
        + """
other = comm.Communicator(MPI.COMM_WORLD)
other.start(np.zeros(1), 'sum').wait()
other.free()
if ranks.rank == 0:
    ranks.start(shared, 'sum')
say('end')
"""
    )
    status, output, seconds = outcome(run_ranks, 2, source)
    assert status == 0, output
    assert output.count("end") == 2
    assert seconds < 20
