"""The choice of an algorithm: refused where it cannot work, the table's before the model's."""

import pytest

from paropt_hpc.comm.choice import Choice
from paropt_hpc.comm.tuning import Link, Shape, Table
from paropt_hpc.errors import ConfigError

ALONE = Shape(1, 1, 1, 1, shares_memory=False)
NODE = Shape(4, 1, 4, 1, shares_memory=True)
NODES = Shape(8, 2, 4, 1, shares_memory=True)
APART = Shape(4, 1, 4, 1, shares_memory=False)


@pytest.mark.parametrize(
    ("shape", "native", "algorithm", "text"),
    [
        (NODE, False, "shared", "needs the native module"),
        (NODE, False, "recursive_doubling", "needs the native module"),
        (APART, True, "hierarchical", "needs shared memory"),
        (NODES, True, "shared", "works inside one node"),
    ],
)
def test_what_cannot_work_is_refused_with_a_remedy(shape, native, algorithm, text):
    with pytest.raises(ConfigError, match=rf"'{algorithm}' {text}.*; use '|works inside"):
        Choice(shape, native=native).choose(algorithm, 8)


@pytest.mark.parametrize("shape", [ALONE, NODE])
def test_an_unknown_algorithm_is_refused_on_any_number_of_ranks(shape):
    with pytest.raises(ValueError, match=r"must be one of auto, .*, got 'tree'"):
        Choice(shape).choose("tree", 8)


def test_auto_takes_what_the_table_says_and_else_what_the_model_says():
    table = Table({"4 x 1 x 1": [(100, "mpi"), (10**9, "recursive_doubling")]})
    here = Choice(NODE, table)
    assert [here.choose("auto", n) for n in (8, 1000)] == ["mpi", "recursive_doubling"]
    assert Choice(NODE).choose("auto", 8) == "shared"
    assert Choice(NODES, table).choose("auto", 10**8) == "hierarchical"  # not measured
    assert Choice(NODE, table, native=False).choose("auto", 8) == "ring"


def test_ours_never_is_the_librarys():
    table = Table({"4 x 1 x 1": [(10**9, "mpi")]})
    assert Choice(NODE, table).ours(8) == "shared"


def test_how_far_shared_memory_reaches():
    rows = [(4000, "shared"), (10**9, "ring")]
    assert Choice(NODE, Table({"4 x 1 x 1": rows})).shared_reach() == 4000
    assert Choice(NODE).shared_reach() > 2**40


def test_a_measured_link_is_what_is_predicted_with():
    link = Link(1e-3, 1e6)
    table = Table({}, {"4 x 1 x 1": link})
    found, seconds = Choice(APART, table).predicted(10**6)
    assert found == link
    assert seconds > 1  # a second per megabyte
    assert Choice(APART).predicted(10**6)[1] < 0.1
