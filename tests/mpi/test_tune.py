"""Trials on groups of ranks: the same trials for any number of ranks, whatever happens to some."""

import math
import time

import pytest

from paropt_hpc.comm import Communicator
from paropt_hpc.errors import ConfigError, EvaluationError, is_on_every_rank
from paropt_hpc.metaheuristics import Integer, Real, Space
from paropt_hpc.tuning import (
    ASHA,
    Halton,
    Random,
    SuccessiveHalving,
    TrialPruned,
    TrialTable,
    make_sampler,
    tune,
)
from paropt_hpc.tuning.table import best_of

SPACE = Space({"x": Real(-1, 1), "n": Integer(1, 4)})


def bowl(trial):
    if trial.number % 5 == 3:
        raise ValueError("no luck")
    if trial.number % 5 == 4:
        return math.nan
    return trial.params["x"] ** 2 + 0.1 * trial.params["n"]


def plain(records):
    kept = [(r.number, r.params, r.state, r.value, r.budget, r.steps) for r in records]
    return sorted(kept, key=lambda record: record[0])


@pytest.mark.parametrize("kind", ["random", "halton", "grid", "halving"])
def test_the_ranks_do_not_change_the_trials(comm, world, everywhere, kind):
    def sampler():
        if kind == "halving":
            return SuccessiveHalving(Random(SPACE, 1), trials=9)
        return make_sampler(kind, SPACE, 1)

    ours = plain(tune(comm, bowl, sampler(), trials=13))
    with Communicator(world.Split(comm.rank)) as alone:
        expected = plain(tune(alone, bowl, sampler(), trials=13))
    everywhere([] if ours == expected else [f"{ours} is not {expected}"])
    assert [record[2] for record in ours[:5]] == [*3 * ["complete"], "failed", "failed"]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_trial_is_an_mpi_run_of_its_own(comm, everywhere, ranks):
    def objective(trial):
        ids = trial.comm.gather_scalars(comm.rank)
        trial.report(1, ids.sum())
        return len(ids) + (0.5 if comm.size > 1 and 0 in ids else 0.0)

    if comm.size > 1 and ranks >= comm.size:
        with pytest.raises(ConfigError, match="rank 0 only manages"):
            tune(comm, objective, Random(SPACE), trials=4, ranks_per_trial=ranks)
        return
    records = tune(comm, objective, Random(SPACE), trials=6, ranks_per_trial=ranks)
    workers = comm.size - 1
    sizes = {1.0} if comm.size == 1 else {float(ranks), float(ranks + workers % ranks)}
    faults = [] if {record.value for record in records} <= sizes else [f"{records}"]
    everywhere(faults)
    assert len(records) == 6


def test_asha_ends_bad_trials_early(comm, everywhere):
    def objective(trial):
        for step in range(1, 10):
            time.sleep(1e-3)
            trial.report(step, trial.params["x"] ** 2 + 1 / step)
        return trial.params["x"] ** 2

    records = tune(comm, objective, Halton(SPACE, 0), trials=24, pruner=ASHA(1, 3))
    pruned = [record for record in records if record.state == "pruned"]
    faults = []
    if not len(pruned) >= 8 or any(record.steps[-1][0] not in (1, 3, 9) for record in pruned):
        faults.append(f"{records}")
    if abs(best_of(records).params["x"]) > 0.3:
        faults.append(f"the best is {best_of(records)}")
    everywhere(faults)


def test_a_table_is_gone_on_with(comm, tmp_path, everywhere):
    path = tmp_path / "trials.jsonl"
    expected = plain(tune(comm, bowl, Random(SPACE, 2), trials=10))

    def table():
        return TrialTable(path, resume=True) if comm.rank == 0 else None

    tune(comm, bowl, Random(SPACE, 2), trials=4, table=table())
    if comm.rank == 0:
        lines = path.read_text().splitlines(keepends=True)
        path.write_text("".join([*lines[:2], lines[3][:20]]))  # one lost, one cut short
    tried = []
    ours = plain(tune(comm, lambda t: tried.append(t.number) or bowl(t), Random(SPACE, 2),
                      trials=10, table=table()))  # fmt: skip
    everywhere([] if ours == expected else [f"{ours} is not {expected}"])
    assert sum(map(int, comm.gather_scalars(len(tried)))) == 8


def test_parts_share_the_trials_of_one_search(comm, tmp_path, everywhere):
    expected = plain(tune(comm, bowl, Random(SPACE, 2), trials=10))
    for part in (0, 1):
        path, shared = tmp_path / f"trials-{part}.jsonl", "trials*.jsonl"
        table = TrialTable(path, resume=True, shared=shared) if comm.rank == 0 else None
        ours = plain(tune(comm, bowl, Random(SPACE, 2), trials=10, table=table, part=(part, 2)))
    everywhere([] if ours == expected else [f"{ours} is not {expected}"])
    if comm.rank == 0:
        assert len(path.read_text().splitlines()) == 5


def test_tpe_on_all_ranks(comm, everywhere):
    records = tune(comm, lambda t: (t.params["x"] - 0.5) ** 2, make_sampler("tpe", SPACE, 0),
                   trials=40)  # fmt: skip
    good = len(records) == 40 and abs(best_of(records).params["x"] - 0.5) < 0.1
    everywhere([] if good else [f"{records}"])


def test_failures_without_end_end_the_search_on_all_ranks(comm):
    def hopeless(trial):
        trial.report(1, 0.0)
        raise OSError("the disk is full")

    said = r"\d trials in a row .*disk is full; none has"
    with pytest.raises(EvaluationError, match=said) as caught:
        tune(comm, hopeless, Random(SPACE), trials=1000, max_failures=5)
    assert is_on_every_rank(caught.value)


def test_a_manager_that_fails_ends_the_trials_that_are_running(comm):
    def objective(trial):
        for step in range(1, 200 if trial.number else 2):
            time.sleep(1e-3)
            trial.report(step, 0.0)
        return 0.0

    def full(records, running):
        raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        tune(comm, objective, Random(SPACE), trials=50, observer=full)


def test_pruning_by_hand_and_bad_settings(comm):
    def objective(trial):
        trial.report(1, 7.0)
        raise TrialPruned

    records = tune(comm, objective, Random(SPACE), trials=3)
    assert {(r.state, r.value) for r in records} == {("pruned", 7.0)}
    with pytest.raises(ConfigError, match="at least 1"):
        tune(comm, objective, Random(SPACE), trials=0)
    with pytest.raises(ConfigError, match="0 <= k < n"):
        tune(comm, objective, Random(SPACE), trials=2, part=(2, 2))
