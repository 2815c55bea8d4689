import numpy as np
import pytest

from paropt_hpc.errors import ConfigError
from paropt_hpc.metaheuristics import FUNCTIONS, function


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_minimum_is_zero_where_it_should_be(name):
    one = function(name)
    at = np.full((1, 5), one.at)
    assert one(at)[0] == pytest.approx(0, abs=1e-9)
    rng = np.random.default_rng(0)
    around = np.clip(at + rng.normal(0, 0.1, (200, 5)), one.low, one.high)
    assert (one(around) > 0).all()
    assert (one(one.space(5).sample(200, rng)) > 0).all()


def test_an_unknown_function_is_refused():
    with pytest.raises(ConfigError, match="function must be one of sphere"):
        function("ackly")
