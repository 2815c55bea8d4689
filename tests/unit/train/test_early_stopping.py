import math

import pytest

from paropt_hpc.errors import ConfigError
from paropt_hpc.train.early_stopping import EarlyStopping


def stopped_after(watch, values):
    for epoch, value in enumerate(values, 1):
        watch.update(value)
        if watch.stopped:
            return epoch
    return None


@pytest.mark.parametrize(
    ("watch", "values", "expected"),
    [
        (EarlyStopping(2), [3.0, 2.0, 1.0, 0.5], None),
        (EarlyStopping(2), [3.0, 3.0, 3.0, 0.5], 3),
        (EarlyStopping(2), [3.0, 4.0, 2.0, 4.0, 4.0], 5),
        (EarlyStopping(1, min_delta=0.5), [3.0, 2.4, 2.0], 3),  # 0.4 better is not enough
        (EarlyStopping(2, mode="max"), [0.1, 0.2, 0.2, 0.1], 4),
        (EarlyStopping(2), [math.nan, math.nan, 1.0], 2),
    ],
)
def test_stops_when_the_patience_is_at_its_end(watch, values, expected):
    assert stopped_after(watch, values) == expected


def test_small_steps_that_add_up_are_an_improvement():
    watch = EarlyStopping(3, min_delta=0.5)
    assert stopped_after(watch, [3.0, 2.7, 2.4, 2.1, 1.8]) is None


def test_state_comes_back():
    watch, copy = EarlyStopping(2, mode="max"), EarlyStopping(2, mode="max")
    watch.update(0.5)
    watch.update(0.4)
    copy.load_state_dict(watch.state_dict())
    assert (copy.best, copy.waited) == (0.5, 1)
    copy.update(0.45)
    assert copy.stopped


@pytest.mark.parametrize("arguments", [(0,), (1, -0.1), (1, math.nan), (1, 0.0, "up")])
def test_errors(arguments):
    with pytest.raises(ConfigError, match="must be"):
        EarlyStopping(*arguments)
