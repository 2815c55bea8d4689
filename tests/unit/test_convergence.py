"""The arithmetic of the convergence benchmark: what it says must follow from what it measured."""

import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def bench():
    sys.path.insert(0, str(BENCHMARKS))
    try:
        import bench_convergence
    finally:
        sys.path.remove(str(BENCHMARKS))
    return bench_convergence


def epochs(*losses):
    return [{"epoch": n, "loss": loss, "wall_s": 2.0 * n} for n, loss in enumerate(losses, 1)]


def test_the_target_is_interpolated(bench):
    assert bench.to_target(epochs(1.0, 0.6, 0.2), 0.5) == pytest.approx((2.25, 4.5))
    assert bench.to_target(epochs(0.4, 0.2), 0.5) == (1.0, 2.0)
    assert bench.to_target(epochs(1.0, 0.6), 0.5) is None


def row(way, accuracy, **values):
    base = {"task": "t", "ranks": 4, "way": way, "accuracy": accuracy, "samples_per_s": 100.0}
    return base | {"epochs_to_target": 5.0, "started": "now"} | values


def test_verdicts(bench):
    rows = [
        row("all-reduce", 0.95),
        row("all-reduce, Top-k 1 %", 0.948, epochs_to_target=5.2),
        row("gossip, ring", 0.944),
        row("all-reduce, one slow rank", 0.95),
        row("parameter server, one slow rank", 0.951, samples_per_s=150.0),
    ]
    said = {(v.promise, v.found): v.holds for v in bench.verdicts(rows)}
    assert said == {
        ("Top-k 1 %: at most 2 % more epochs to the target", "+4.0 %"): False,
        ("Top-k 1 %: within 0.3 points of dense", "-0.20"): True,
        ("gossip, ring: within 0.5 points of all-reduce", "-0.60 points"): False,
        ("bounded server, one slow rank: within 0.5 points of all-reduce", "+0.10 points"): True,
        ("bounded server, one slow rank: higher throughput than all-reduce", "1.50 times"): True,
    }


def test_throughputs_of_other_times_are_not_compared(bench):
    server = row("parameter server, one slow rank", 0.95, samples_per_s=150.0)
    for started in ("then", None):
        base = row("all-reduce, one slow rank", 0.95, started=started)
        (verdict,) = bench.verdicts([base, server | ({} if started else {"started": None})])
        assert "within 0.5 points" in verdict.promise


def test_a_target_that_is_never_reached_does_not_hold(bench):
    rows = [row("all-reduce", 0.9), row("all-reduce, Top-k 1 %", 0.9, epochs_to_target=None)]
    assert [v.holds for v in bench.verdicts(rows)] == [False, True]


def test_all_strategies_take_the_same_global_batch(bench):
    (task,) = bench.tasks_of(None)
    for way in bench.WAYS:
        settings = bench.settings_for(task, way, 4, seed=1)
        batch = settings["train.batch"] * settings.get("train.accumulate", 1)
        assert batch == task.settings["train.batch"]
        if settings.get("strategy.name") == "parameter-server":
            assert settings["strategy.group"] == 3
