"""Whatever a function does, its rows have results, and the others keep theirs."""

import math
import threading
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paropt_hpc.errors import ConfigError, EvaluationError
from paropt_hpc.metaheuristics.evaluation import (
    Results,
    Scalar,
    Status,
    Tally,
    Vectorised,
    as_objective,
)

ROWS = np.arange(12.0).reshape(6, 2)


def misbehave(row):
    """Row by row: good, raises, NaN, inf, None, wrong shape."""
    kind = int(row[0]) // 2
    if kind == 1:
        raise ValueError("out of\nluck")
    return [row.sum(), None, math.nan, -math.inf, None, np.ones(3)][kind]


EXPECTED = [Status.OK, Status.RAISED, Status.NAN, Status.INFINITE, Status.NONE, Status.SHAPE]


def test_each_failure_has_its_cause():
    done = Scalar(misbehave)(ROWS)
    assert done.status.tolist() == EXPECTED
    assert done.f[0] == 1.0
    assert np.isnan(done.f[1:]).all()
    assert done.texts[1] == "ValueError: out of luck"
    assert done.texts[5] == "returned shape (3,), expected a number"


@pytest.mark.parametrize("value", [1, 1.5, np.float32(2), np.int8(3), np.array(4.0), True])
def test_every_kind_of_number_is_taken(value):
    done = Scalar(lambda row: value)(ROWS[:1])
    assert (done.f[0], done.status[0]) == (float(value), Status.OK)


@pytest.mark.parametrize("value", ["1", [1.0], 1j, {}, 10**400, np.array([1.0])])
def test_what_is_no_number_is_not(value):
    assert Scalar(lambda row: value)(ROWS[:1]).status[0] == Status.SHAPE


def test_a_function_may_change_its_row_and_exit():
    def greedy(row):
        row[:] = 0
        raise SystemExit(3)

    before = ROWS.copy()
    assert Scalar(greedy)(ROWS).status.tolist() == [Status.RAISED] * 6
    assert np.array_equal(ROWS, before)


def test_retries_help_against_failures_that_pass():
    calls = []

    def flaky(row):
        calls.append(row[0])
        return math.nan if len(calls) % 3 else row[0]

    assert Scalar(flaky, retries=2)(ROWS).f.tolist() == ROWS[:, 0].tolist()
    assert len(calls) == 18


def test_a_time_limit_interrupts_even_what_swallows_exceptions():
    def stubborn(row):
        if row[0] == 2:
            try:
                while True:
                    time.sleep(0.001)
            except Exception:
                return 0.0
        return row[0]

    done = Scalar(stubborn, time_limit=0.05)(ROWS[:3])
    assert done.status.tolist() == [Status.OK, Status.TIMEOUT, Status.OK]
    assert done.texts[1] == "took longer than 0.05 s"


def test_a_time_limit_needs_the_main_thread():
    caught = []

    def run():
        try:
            Scalar(lambda row: 0.0, time_limit=1)(ROWS)
        except ConfigError as error:
            caught.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "main thread" in caught[0]


def test_several_objectives_and_a_violation():
    done = Scalar(lambda row: [row[0], row[1], 0.5], outputs=2, constrained=True)(ROWS)
    assert np.array_equal(done.f, ROWS)
    assert done.violation.tolist() == [0.5] * 6
    one = Vectorised(lambda x: np.column_stack([x[:, 0], x[:, 1]]), constrained=True)(ROWS)
    assert np.array_equal(one.f, ROWS[:, 0])
    assert np.array_equal(one.violation, ROWS[:, 1])


def test_one_bad_row_of_a_batch_costs_only_itself():
    def batch(x):
        if (x[:, 0] == 4).any():
            raise ValueError("four")
        return np.where(x[:, 0] == 6, np.nan, x.sum(axis=1))

    done = Vectorised(batch)(ROWS)
    good = [0, 1, 4, 5]
    assert done.status[good].tolist() == [Status.OK] * 4
    assert np.array_equal(done.f[good], ROWS[good].sum(axis=1))
    assert (done.status[2], done.status[3]) == (Status.RAISED, Status.NAN)
    assert Vectorised(lambda x: np.zeros(3))(ROWS).status.tolist() == [Status.RAISED] * 6


def test_a_batch_cannot_change_the_population():
    def greedy(x):
        x[:] = 0
        return x[:, 0]

    before = ROWS.copy()
    Vectorised(greedy)(ROWS)
    assert np.array_equal(ROWS, before)


@given(st.lists(st.floats(), max_size=9))
def test_scalar_and_vectorised_agree(values):
    rows = np.array(values).reshape(-1, 1)
    one, many = Scalar(lambda row: row[0])(rows), Vectorised(lambda x: x[:, 0])(rows)
    assert np.array_equal(one.f, many.f, equal_nan=True)
    assert np.array_equal(one.status, many.status)
    assert np.array_equal(one.status > 0, ~np.isfinite(rows[:, 0]))


def test_a_plain_function_becomes_an_objective():
    assert as_objective(len).function is len
    scalar = Scalar(len)
    assert as_objective(scalar) is scalar
    with pytest.raises(TypeError, match="callable, got int"):
        as_objective(3)


@given(st.lists(st.lists(st.booleans(), max_size=6), max_size=6), st.integers(1, 5))
def test_the_tally_finds_the_longest_row_of_failures(batches, limit):
    tally = Tally(limit)
    for batch in batches:
        status = np.array(batch, np.uint8)  # 1 is RAISED
        tally.add(Results(np.zeros(len(batch)), status, {}, 0.0))
    flat = "".join("x" if failed else "." for batch in batches for failed in batch)
    longest = max((len(part) for part in flat.split(".")), default=0)
    assert tally.exhausted == (longest >= limit)
    assert tally.evaluations == len(flat)
    assert tally.failures.get("raised", 0) == flat.count("x")


def test_the_error_at_the_end_names_numbers_and_cause():
    tally = Tally(5)
    tally.add(Scalar(misbehave)(ROWS))
    assert tally.exhausted
    error = tally.error([*tally.examples.values()])
    assert isinstance(error, EvaluationError)
    assert "5 evaluations in a row have failed" in str(error)
    assert "ValueError: out of luck" in str(error)
    again = Tally(5)
    again.load_state_dict(tally.state_dict())
    assert again.failures == tally.failures
    assert again.exhausted
