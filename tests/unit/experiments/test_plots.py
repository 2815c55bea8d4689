"""Plots are drawn from what runs leave, whatever that is."""

import json
import math

import pytest

from paropt_hpc.experiments import plot_search, plot_trials
from paropt_hpc.tuning import Record

pytest.importorskip("matplotlib")


@pytest.mark.parametrize("best", [[3.0, 0.1, 0.0], [3.0, 2.9, 2.9], [-1.0, -5.0, -5.0]])
def test_a_search_is_drawn(tmp_path, best):
    moments = [
        {"evaluations": i, "best_f": f, "median_f": math.nan if i else f, "diversity": 1 - i / 2}
        for i, f in enumerate(best)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(m) + "\n" for m in moments))
    assert plot_search(tmp_path).read_bytes().startswith(b"\x89PNG")
    (tmp_path / "metrics.jsonl").write_text("")
    assert plot_search(tmp_path) is None


def test_trials_are_drawn(tmp_path):
    records = [
        Record(0, {"x": 1.0}, "pruned", 3.0),
        Record(1, {"x": 1.0}, "complete", 2.0),
        Record(2, {"x": 1.0}, "failed", None),
    ]
    assert plot_trials(tmp_path, records, {"x": 0.5}).read_bytes().startswith(b"\x89PNG")
    assert plot_trials(tmp_path, records[2:], {}) is None
