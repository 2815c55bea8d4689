import pytest

from paropt_hpc.errors import ConfigError
from paropt_hpc.train import (
    Cosine,
    Exponential,
    LinearScaling,
    Polynomial,
    StepDecay,
    WarmRestarts,
)


def rates(schedule, steps):
    return [schedule(step) for step in steps]


def test_step_decay():
    assert rates(StepDecay(1.0, 3, 0.5), range(7)) == [1, 1, 1, 0.5, 0.5, 0.5, 0.25]


def test_exponential_meets_step_decay_at_whole_periods():
    smooth = Exponential(1.0, 3, 0.5)
    assert rates(smooth, [0, 3, 6]) == pytest.approx([1, 0.5, 0.25])
    assert 0.5 < smooth(1) < 1


def test_polynomial():
    assert rates(Polynomial(1.0, 4), range(6)) == pytest.approx([1, 0.75, 0.5, 0.25, 0, 0])
    assert Polynomial(1.0, 4, power=2, end=0.1)(2) == pytest.approx(0.1 + 0.9 * 0.25)


def test_cosine():
    assert rates(Cosine(1.0, 4, 0.2), [0, 2, 4, 9]) == pytest.approx([1, 0.6, 0.2, 0.2])


def test_warm_restarts_return_to_the_top_after_ever_longer_periods():
    schedule = WarmRestarts(1.0, 2, growth=2)
    assert [step for step in range(20) if schedule(step) == 1] == [0, 2, 6, 14]
    assert rates(schedule, [2, 3, 4, 5]) == pytest.approx(rates(Cosine(1.0, 4), range(4)))


def test_warm_up_rises_linearly_to_the_scaled_rate():
    schedule = LinearScaling(0.1, factor=8, warmup_steps=4)
    assert rates(schedule, range(6)) == pytest.approx([0.2, 0.4, 0.6, 0.8, 0.8, 0.8])
    assert LinearScaling(0.1)(0) == 0.1


def test_warm_up_stands_around_any_schedule():
    schedule = LinearScaling(StepDecay(0.1, 2, 0.5), factor=2, warmup_steps=2)
    assert rates(schedule, range(4)) == pytest.approx([0.1, 0.2, 0.1, 0.1])


@pytest.mark.parametrize(
    "make",
    [
        lambda: StepDecay(1, 0),
        lambda: Exponential(1, 0),
        lambda: Polynomial(1, 0),
        lambda: Cosine(1, 0),
        lambda: WarmRestarts(1, 0),
        lambda: WarmRestarts(1, 2, growth=0),
        lambda: LinearScaling(1, warmup_steps=-1),
    ],
)
def test_settings_out_of_range(make):
    with pytest.raises(ConfigError):
        make()
