"""An exception on one rank, or abort(), ends all of them, whose waits have no deadline here."""

HEAD = """
import numpy as np
from paropt_hpc import comm
ranks = comm.world()
"""


def ended(run_ranks, source, n=2):
    done = run_ranks(n, HEAD + source, PAROPT_TIMEOUT="0")
    return done.returncode, done.stdout + done.stderr


def test_exception_while_others_wait_in_the_ring(run_ranks):
    status, output = ended(
        run_ranks,
        "if ranks.rank == 1: raise ValueError('the data are gone')\nranks.allreduce(np.ones(9))",
    )
    assert status != 0
    assert "ValueError: the data are gone" in output


def test_exception_within_a_with_block(run_ranks):
    # Leaving the block must not wait for the others to free the communicator too.
    status, output = ended(
        run_ranks,
        "with ranks:\n    if ranks.rank == 1: raise ValueError('lost')\n    ranks.barrier()",
    )
    assert status != 0
    assert "ValueError: lost" in output


def test_abort(run_ranks):
    status, output = ended(
        run_ranks, "ranks.rank == 1 and ranks.abort('no space left', 7)\nranks.barrier()"
    )
    assert status == 7
    assert "rank 1: no space left" in output
    assert "Traceback" not in output


def test_together_ends_all_ranks_alike(run_ranks):
    status, output = ended(
        run_ranks,
        """
from paropt_hpc.errors import DataError
try:
    with ranks.together():
        if ranks.rank == 1: raise DataError('line 4 is cut off')
except DataError as error:
    print(f"[{ranks.rank}] {error}", flush=True)
ranks.allreduce(np.ones(9))
""",
    )
    assert status == 0
    assert "[0] rank 1: line 4 is cut off" in output
    assert "[1] rank 1: line 4 is cut off" in output
