import numpy as np
import pytest

from paropt_hpc.errors import DataError
from paropt_hpc.metaheuristics import Categorical, Real, Space
from paropt_hpc.tuning import Record, TrialTable, importance
from paropt_hpc.tuning.table import best_of

RECORDS = [
    Record(0, {"x": 0.1}, "complete", 2.0, steps=[(1, 3.0), (2, 2.0)], seconds=0.5),
    Record(2, {"x": 0.7}, "failed", None, cause="ValueError: no\nluck"),
    Record(1, {"x": 1e-300}, "pruned", 4.0),
]


def test_records_come_back(tmp_path):
    path = tmp_path / "new" / "trials.jsonl"
    table = TrialTable(path)
    for record in RECORDS:
        table.add(record)
    assert TrialTable(path, resume=True).records == RECORDS
    with pytest.raises(DataError, match="already holds 3 trials; go on with --resume"):
        TrialTable(path)


def test_half_a_line_costs_its_own_trial_only(tmp_path):
    path = tmp_path / "trials.jsonl"
    table = TrialTable(path)
    for record in RECORDS[:2]:
        table.add(record)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    again = TrialTable(path, resume=True)
    assert again.records == RECORDS[:1]
    again.add(RECORDS[2])
    assert TrialTable(path, resume=True).records == [RECORDS[0], RECORDS[2]]


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "trials.jsonl"
    path.write_text('{"a": 1}\n')
    with pytest.raises(DataError, match=r"line 1 of .* is no trial"):
        TrialTable(path, resume=True)


def test_a_table_that_cannot_be_kept_is_refused_before_any_trial(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="cannot write the trials to"):
        TrialTable(tmp_path / "file" / "trials.jsonl")


def test_the_best_is_complete_and_of_the_largest_budget():
    assert best_of(RECORDS) == RECORDS[0]
    assert best_of(RECORDS[1:]) is None
    rungs = [Record(n, {}, "complete", v, budget=b) for n, v, b in
             ((0, 1.0, 1), (1, 2.0, 1), (2, 1.5, 3), (3, 1.5, 3))]  # fmt: skip
    assert best_of(rungs).number == 2


def test_importance_finds_what_matters():
    space = Space({"much": Real(0, 1), "some": Categorical(["a", "b"]), "none": Real(0, 1)})
    rng = np.random.default_rng(0)
    records = []
    for number in range(200):
        params = {"much": rng.random(), "some": rng.choice(["a", "b"]).item(), "none": rng.random()}
        value = 10 * (params["much"] - 0.3) ** 2 + (params["some"] == "b")
        records.append(Record(number, params, "complete", value))
    shares = importance(space, records)
    assert list(shares) == ["much", "some", "none"]
    assert shares["much"] > 0.4 > shares["some"] > 0.05 > shares["none"]
    assert importance(space, records[:7]) == {}


def test_searches_share_their_trials(tmp_path):
    one = TrialTable(tmp_path / "trials-0.jsonl", shared="trials*.jsonl")
    two = TrialTable(tmp_path / "trials-1.jsonl", shared="trials*.jsonl")
    one.add(RECORDS[0])
    assert two.refresh() == [RECORDS[0]]
    assert two.refresh() == []
    two.add(RECORDS[1])
    assert two.records == [RECORDS[0], RECORDS[1]]
    assert one.refresh() == [RECORDS[1]]
    whole = TrialTable(tmp_path / "trials.jsonl", resume=True, shared="trials*.jsonl")
    assert whole.records == [RECORDS[0], RECORDS[1]]
    with pytest.raises(DataError, match=r"trials\*\.jsonl already holds 2 trials"):
        TrialTable(tmp_path / "trials.jsonl", shared="trials*.jsonl")


def test_a_line_that_is_being_written_is_passed_over(tmp_path):
    path = tmp_path / "trials.jsonl"
    TrialTable(path).add(RECORDS[0])
    with path.open("a") as file:
        file.write('{"number": 1, "params": {"x": 1}')
    assert TrialTable(path, resume=True).records == [RECORDS[0]]
