"""What was recorded of a thousand simulated ranks, against the model that chooses an algorithm."""

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RECORDED = BENCHMARKS / "results" / "scale.json"


@pytest.fixture(scope="module")
def agreement():
    folder = str(BENCHMARKS / "scale")
    sys.path.insert(0, folder)
    try:
        import agreement
    finally:
        sys.path.remove(folder)
    return agreement


@pytest.fixture(scope="module")
def times():
    rows = json.loads(RECORDED.read_text())["rows"]
    keys = ("link", "ranks", "per_host", "n", "scheme")
    return {tuple(row[key] for key in keys): row for row in rows if row["seconds"]}


def check(compared):
    """Nine choices of ten are within a tenth of the best, and none is far from it."""
    assert len(compared) >= 16
    near = sum(case.ratio <= 1.1 for case in compared)
    assert near >= 0.9 * len(compared), [case for case in compared if case.ratio > 1.1]
    assert max(case.ratio for case in compared) < 1.3


def test_the_model_picks_what_wins(agreement, times):
    check(list(agreement.compare(times)))


def test_the_model_of_sparse_sums_picks_what_wins(agreement, times):
    compared = list(agreement.compare_sparse(times))
    check(compared)
    assert {case.chosen for case in compared} == {"sparse-allgather", "sparse-split", "dense"}


def test_both_ways_win_somewhere(agreement, times):
    # A model that always said the same would be of no use.
    chosen = {case.chosen for case in agreement.compare(times)}
    assert chosen == {"ring", "recursive-doubling", "hierarchical"}


def test_nothing_beats_the_bound(times):
    dense = ("ring", "recursive-doubling", "hierarchical", "mpi")
    over = [row["seconds"] / row["bound_s"] for case, row in times.items() if case[4] in dense]
    assert min(over) >= 1
