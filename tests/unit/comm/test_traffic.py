import pytest

from paropt_hpc.comm import OperationTraffic, Traffic


def test_counts_by_operation_and_in_total():
    traffic = Traffic()
    traffic.record("allreduce", 10, 20, 0.5)
    traffic.record("allreduce", 1, 2, 0.25)
    traffic.record("barrier", 0, 0, 0.125)
    assert traffic["allreduce"] == OperationTraffic(2, 11, 22, 0.75)
    assert (traffic.calls, traffic.bytes_sent, traffic.bytes_received) == (3, 11, 22)
    assert traffic.seconds == 0.875


def test_asking_does_not_count():
    traffic = Traffic()
    assert traffic["broadcast"] == OperationTraffic()
    assert not traffic.operations


def test_reset():
    traffic = Traffic()
    traffic.record("allreduce", 10, 20, 0.5)
    traffic.reset()
    assert traffic == Traffic()


def test_jitter_is_the_spread_over_the_mean_of_steps():
    traffic = Traffic()
    seconds = [1.0, 3.0, 1.0, 3.0]
    for value in seconds:
        traffic.record("allreduce", 1, 1, value / 2)
        traffic.record("barrier", 0, 0, value / 2, waiting=value / 4)
        traffic.end_step()
    assert traffic.step_times.mean == pytest.approx(2)
    assert traffic.jitter == pytest.approx(0.5)  # standard deviation 1
    assert traffic.waiting == pytest.approx(2)
    traffic.reset()
    assert (traffic.jitter, traffic.step_times.steps) == (0, 0)


@pytest.mark.parametrize(("spread", "warns"), [(0.25, False), (0.35, True)])
def test_warns_above_thirty_percent_and_says_where_to_look(spread, warns):
    traffic = Traffic()
    for step in range(20):
        traffic.record("allreduce", 1, 1, 1 + spread * (-1) ** step)
        traffic.end_step()
    if not warns:
        assert traffic.warn_of_jitter() is False
        return
    with pytest.warns(RuntimeWarning, match=r"varies by 35 % .* look at the links first"):
        assert traffic.warn_of_jitter() is True


def test_a_few_steps_are_no_reason_to_warn():
    traffic = Traffic()
    for step in range(9):
        traffic.record("allreduce", 1, 1, float(step))
        traffic.end_step()
    assert traffic.warn_of_jitter() is False


def test_a_step_that_is_not_counted_takes_its_time_with_it():
    traffic = Traffic()
    for seconds in (100, 1, 1):
        traffic.record("ring", 0, 0, seconds)
        traffic.end_step(counted=seconds < 100)
    assert (traffic.step_times.mean, traffic.jitter) == (1, 0)
