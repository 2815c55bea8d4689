"""Rows split over ranks or handed out by rank 0: the values are those of one rank, on all ranks."""

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi4py import MPI

from paropt_hpc.comm import Communicator
from paropt_hpc.errors import EvaluationError
from paropt_hpc.metaheuristics.evaluation import Scalar, Status, Vectorised
from paropt_hpc.metaheuristics.evaluators import RowSplit, Serial
from paropt_hpc.metaheuristics.manager import ManagerWorker


def faulty(row):
    """One in five NaN, one in twenty raises, and one is the best."""
    kind = int(row[0]) % 20
    if kind == 3:
        raise ValueError(f"row {row[0]:.0f}")
    return math.nan if kind % 5 == 1 else float(row @ row)


def rows_of(m, d=3):
    return np.column_stack([np.arange(m), *np.ones((d - 1, m))]).astype(float)


@pytest.fixture(params=["split", "replicated", "managed", "dedicated"])
def evaluator(request, comm):
    """Return what makes an evaluator of an objective."""
    made = []

    def make(objective):
        if request.param in ("split", "replicated"):
            how = {"split": "never", "replicated": "always"}[request.param]
            return RowSplit(comm, objective, replicate=how)
        made.append(ManagerWorker(comm, objective, dedicated=request.param == "dedicated"))
        return made[-1]

    yield make
    for manager in made:
        manager.free()


@pytest.mark.parametrize("m", [0, 1, 2, 3, 5, 100])
def test_values_and_causes_are_those_of_one_rank(evaluator, everywhere, comm, m):
    """Also with more ranks than rows."""
    x = rows_of(m)
    expected = Serial(faulty).evaluate(x)
    ours = evaluator(faulty)
    faults = []
    for _ in range(3):
        done = ours.evaluate(x)
        if not np.array_equal(done.f, expected.f, equal_nan=True):
            faults.append(f"values differ: {done.f}")
        if not np.array_equal(done.status, expected.status):
            faults.append(f"statuses differ: {done.status}")
        if any(expected.texts[row] != text for row, text in done.texts.items()):
            faults.append(f"causes differ: {done.texts}")
    everywhere(faults)
    heard = {row for texts in comm.gather_texts(",".join(map(str, done.texts))) for row in
             map(int, filter(None, texts.split(",")))}  # fmt: skip
    assert m > 50 or heard == set(expected.texts)


def test_several_objectives_and_violations(evaluator, everywhere):
    objective = Vectorised(lambda x: np.column_stack([x, x[:, :1]]), outputs=3, constrained=True)
    done = evaluator(objective).evaluate(rows_of(7))
    good = np.array_equal(done.f, rows_of(7)) and np.array_equal(done.violation, np.arange(7.0))
    everywhere([] if good else [f"{done}"])


def test_a_wish_of_one_rank_to_stop_reaches_all(evaluator, comm, everywhere):
    def slow(row):
        time.sleep(1e-3)
        return 0.0

    ours = evaluator(Scalar(slow, repeatable=False))
    answers = []
    for _ in range(3):
        done = ours.evaluate(rows_of(24), stop=comm.rank == comm.size - 1)
        answers.append(done.stop)
    everywhere([] if answers[-1] else [f"{answers}"])


def test_a_slow_row_does_not_hold_up_the_others(comm, everywhere):
    """Every rank evaluates; all rows come once, however long each takes."""
    seen = []

    def uneven(row):
        seen.append(row[0])
        time.sleep(0.02 if row[0] % 7 == 0 else 1e-4)
        return float(row[0])

    manager = ManagerWorker(comm, uneven)
    done = manager.evaluate(rows_of(60))
    shares = comm.gather_scalars(len(seen))
    manager.free()
    faults = [] if np.array_equal(done.f, np.arange(60.0)) else [f"{done.f}"]
    if shares.sum() != 60 or shares.min() == 0:
        faults.append(f"shares {shares}")
    everywhere(faults)


def test_a_stream_of_a_million_rows_stays_small(comm, everywhere):
    """The generator is read no faster than the ranks evaluate."""
    total, block = 1_000_000, 1000
    manager = ManagerWorker(comm, Vectorised(lambda x: x[:, 0]))
    read, done, furthest = 0, 0, 0
    checksum = 0.0

    def source():
        nonlocal read
        for first in range(0, total, block):
            read += block
            yield np.arange(first, first + block, dtype=float)[:, None]

    for chunk in manager.stream(source()):
        done += len(chunk.x)
        furthest = max(furthest, read - done)
        checksum += chunk.results.f.sum()
        if not np.array_equal(chunk.results.f, chunk.first + np.arange(len(chunk.x))):
            checksum = math.nan
    manager.free()
    faults = []
    if comm.rank == 0:
        if (done, checksum) != (total, total * (total - 1) / 2):
            faults.append(f"{done} rows, sum {checksum}")
        if furthest > 4096 * (2 * comm.size + 1) + 2 * block or manager.most_pending > furthest:
            faults.append(f"{furthest} rows pending")
    elif done:
        faults.append("rows on a rank that serves")
    everywhere(faults)


def test_a_stream_that_depends_on_its_results_and_one_left_early(comm, everywhere):
    manager = ManagerWorker(comm, lambda row: float(row[0]))
    told = []

    def walk():
        """Each row waits for the value of the one before."""
        for step in range(10):
            while len(told) < step:
                yield None
            yield np.array([float(step)])

    for chunk in manager.stream(walk()):
        told.extend(chunk.results.f)
    for chunk in manager.stream(iter([rows_of(50)])):
        told.append(float(chunk.first))
        break
    again = manager.evaluate(rows_of(9))  # nothing of the broken stream is left over
    manager.free()
    faults = [] if np.array_equal(again.f, np.arange(9.0)) else [f"{again.f}"]
    if comm.rank == 0 and told[:10] != list(range(10)):
        faults.append(f"{told}")
    everywhere(faults)


def test_cheap_objectives_are_replicated_and_dear_ones_split(comm, everywhere):
    calls = []

    def batch(x):
        calls.append(len(x))
        if pause:
            time.sleep(pause * len(x))
        return x[:, 0]

    pause = 0.0
    evaluator = RowSplit(comm, Vectorised(batch))
    for _ in range(20):
        assert np.array_equal(evaluator.evaluate(rows_of(12)).f, np.arange(12.0))
    pause = 2e-3
    for _ in range(300):
        evaluator.evaluate(rows_of(12))
        if calls[-1] < 12:
            break
        pause = 2e-4 if len(calls) < 270 else 2e-3
    everywhere([] if calls[-1] == 12 * (comm.rank + 1) // comm.size - 12 * comm.rank // comm.size
               else [f"{calls[-1]} rows"])  # fmt: skip


def test_a_random_objective_is_found_out(comm, everywhere):
    rng = np.random.default_rng(comm.rank)
    evaluator = RowSplit(comm, Vectorised(lambda x: rng.random(len(x))))
    for _ in range(40):
        done = evaluator.evaluate(rows_of(8))
        same = comm.gather_scalars(done.f.sum())
        everywhere([] if (same == same[0]).all() else [f"{same}"])


def test_different_populations_are_refused_on_all_ranks(comm):
    if comm.size == 1:
        return
    evaluator = RowSplit(comm, lambda row: 0.0, replicate="never")
    with pytest.raises(EvaluationError, match="different populations"):
        evaluator.evaluate(rows_of(4) + comm.rank)


@given(st.lists(st.sampled_from(list(Status)), max_size=12), st.integers(1, 3))
def test_any_mixture_of_failures(statuses, ahead):
    answers = {Status.OK: 1.0, Status.NAN: math.nan, Status.INFINITE: math.inf,
               Status.NONE: None, Status.SHAPE: [1.0, 2.0]}  # fmt: skip

    def function(row):
        status = statuses[int(row[0])]
        if status == Status.RAISED:
            raise RuntimeError("x" * 1000)
        if status == Status.TIMEOUT:
            raise TimeoutError
        return answers[status]

    with Communicator(MPI.COMM_WORLD) as comm:
        manager = ManagerWorker(comm, function, ahead=ahead)
        x = np.arange(len(statuses), dtype=float)[:, None]
        for evaluator in (manager, RowSplit(comm, function)):
            assert evaluator.evaluate(x).status.tolist() == statuses
        manager.free()
