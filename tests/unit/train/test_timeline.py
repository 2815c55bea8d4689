import json

import pytest

from paropt_hpc.comm import SerialCommunicator
from paropt_hpc.errors import ConfigError
from paropt_hpc.train.timeline import Timeline, find_straggler


class Worker:
    def work(self, number):
        return 2 * number

    def fail(self):
        raise ValueError("no")


def test_what_is_watched_does_what_it_did_and_is_counted():
    timeline, worker = Timeline(SerialCommunicator()), Worker()
    timeline.watch(worker, "work", "compute")
    timeline.watch(worker, "fail", "compute")
    assert worker.work(4) == 8
    with pytest.raises(ValueError, match="no"):
        worker.fail()
    assert timeline.calls["compute"] == 2
    assert timeline.seconds["compute"] > 0
    assert Worker().work(1) == 2  # others are not watched
    assert timeline.calls["compute"] == 2


def test_the_trace_holds_every_span_in_order(tmp_path):
    path = tmp_path / "trace.json"
    timeline, worker = Timeline(SerialCommunicator(), path), Worker()
    timeline.watch(worker, "work", "update")
    for number in range(5):
        worker.work(number)
    timeline.write()
    trace = json.loads(path.read_text())
    name, *spans = trace["traceEvents"]
    assert name["ph"] == "M"
    assert name["args"] == {"name": "rank 0"}
    assert [span["name"] for span in spans] == 5 * ["work"]
    ends = [0.0] + [span["ts"] + span["dur"] for span in spans]
    for end, span in zip(ends, spans, strict=False):
        assert (span["ph"], span["cat"], span["pid"], span["tid"]) == ("X", "update", 0, 0)
        assert span["ts"] >= end - 1e-6


def test_a_trace_without_a_folder_is_refused_before_the_run(tmp_path):
    with pytest.raises(ConfigError, match="there is no folder"):
        Timeline(SerialCommunicator(), tmp_path / "none" / "trace.json")
    with pytest.raises(ConfigError, match="it is a folder; name a file"):
        Timeline(SerialCommunicator(), tmp_path)


@pytest.mark.parametrize(
    ("seconds", "steps", "rank"),
    [
        ([1.0, 1.0, 3.0], [10, 10, 10], 2),
        ([1.0, 1.1, 1.2], [10, 10, 10], None),
        ([1.0, 1.0, 1.0], [10, 4, 10], 1),  # as long for fewer steps
        ([1.0, 3.0, 0.0], [10, 10, 0], 1),  # the last one serves
        ([1.0], [10], None),
        ([0.0, 0.0], [0, 0], None),
    ],
)
def test_the_straggler_is_the_rank_whose_steps_take_much_longer(seconds, steps, rank):
    found = find_straggler(seconds, steps)
    assert (found.rank if found else None) == rank
    if rank == 2:
        assert found.factor == pytest.approx(3)
