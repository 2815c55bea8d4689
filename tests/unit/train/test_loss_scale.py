import pytest

from paropt_hpc.errors import ConfigError
from paropt_hpc.train import LossScale


def test_halves_at_once_and_doubles_after_a_while():
    scale, seen = LossScale(8.0, period=3), []
    for finite in [False, True, True, True, True, True, False, True, True, True]:
        scale.update(finite)
        seen.append(scale.scale)
    assert seen == [4, 4, 4, 8, 8, 8, 4, 4, 4, 8]


def test_a_period_of_zero_never_changes_it():
    scale = LossScale(8.0, period=0)
    for finite in (False, True, False):
        scale.update(finite)
    assert scale.scale == 8


def test_goes_on_from_a_saved_state():
    first, second = LossScale(8.0, period=3), LossScale()
    for finite in (False, True, True):
        first.update(finite)
    second.load_state_dict(first.state_dict())
    second.period = 3
    second.update(True)
    assert second.scale == 8


@pytest.mark.parametrize("settings", [{"scale": 0}, {"scale": float("inf")}, {"period": -1}])
def test_settings_out_of_range(settings):
    with pytest.raises(ConfigError, match="loss scale must be"):
        LossScale(**settings)
