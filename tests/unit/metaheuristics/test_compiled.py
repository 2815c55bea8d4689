import numpy as np
import pytest

from paropt_hpc.metaheuristics.compiled import Compiled
from paropt_hpc.metaheuristics.evaluation import Status

pytest.importorskip("numba")


def sphere(row):
    total = 0.0
    for value in row:
        total += value * value
    if total > 100:
        raise ValueError
    return total if total > 1e-3 else np.nan


@pytest.mark.parametrize("threads", [1, 2])
def test_the_values_are_those_of_the_function(threads):
    rows = np.random.default_rng(0).random((500, 3))
    objective = Compiled(sphere, threads=threads)
    objective(rows)
    objective._mean = 1.0  # worth threads
    done = objective(rows)
    assert np.array_equal(done.f, [sphere(row) for row in rows])
    rows[3], rows[5] = 0.0, 100.0
    done = objective(rows)
    assert np.flatnonzero(done.status).tolist() == [3, 5]
    assert done.status[3] == Status.NAN
    assert done.status[5] == Status.RAISED
