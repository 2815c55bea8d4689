"""Searches and tunings by their settings, as the command makes them, on all ranks."""

import sys
from pathlib import Path

import pytest

from paropt_hpc.experiments.tune_training import load_tuning, tune_training
from paropt_hpc.metaheuristics.config import load_search
from paropt_hpc.metaheuristics.minimise import minimise

SPHERE = """
[objective]
function = "mine_of_ranks:sphere"
[space]
x = { low = -5.0, high = 5.0 }
n = { kind = "integer", low = -3, high = 3 }
mode = { kind = "categorical", choices = ["good", "bad"] }
[algorithm]
name = "de"
population = 20
[budget]
generations = 60
target = 1e-6
"""

MINE = """
def sphere(values):
    return (values["x"] - 1) ** 2 + values["n"] ** 2 + (values["mode"] == "bad")

def compiled(row):
    return (row[0] - 1) ** 2 + row[1] ** 2 + row[2] ** 2
"""


@pytest.fixture
def here(comm, folder, monkeypatch):
    """The folder of all ranks, in which they work."""
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(str(folder))
    if comm.rank == 0:
        Path("sphere.toml").write_text(SPHERE)
        Path("mine_of_ranks.py").write_text(MINE)
    comm.barrier()
    yield
    sys.modules.pop("mine_of_ranks", None)
    monkeypatch.undo()  # nobody stays in a folder that goes


@pytest.mark.parametrize(
    "settings",
    [
        ["objective.kind=vectorised", "islands.count=3"],
        pytest.param(
            ["objective.isolate=true", "objective.time_limit=20.0", "run.evaluator=manager"],
            marks=pytest.mark.mpi(min_size=2),
        ),
        pytest.param(
            [
                "objective.function=mine_of_ranks:compiled",
                "objective.kind=compiled",
                "objective.rows=true",
            ],
            marks=pytest.mark.mpi(min_size=2),
        ),
        ["islands.count=4", "islands.asynchronous=true", "islands.topology=complete"],
    ],
)
def test_ways_to_evaluate(comm, here, everywhere, settings):
    summary = minimise(load_search(Path("sphere.toml"), ["run.dir=runs/it", *settings]), comm)
    asynchronous = Path("runs/it/migration.jsonl").exists()
    faults = [] if summary["best_f"] < 0.1 else [f"{summary}"]
    if asynchronous != ("islands.asynchronous=true" in settings):
        faults.append("a migration log, or none")
    everywhere(faults)


@pytest.mark.mpi(min_size=3)
def test_halving_of_trainings_on_two_ranks_each(comm, here, everywhere):
    if comm.rank == 0:
        Path("digits.toml").write_text("[train]\nepochs = 3\nbatch = 64\n[model]\nhidden = [24]\n")
        Path("tune.toml").write_text(
            '[tune]\ntrain = "digits.toml"\nsampler = "halton"\nschedule = "halving"\ntrials = 6\n'
            'ranks_per_trial = 2\n[space]\n"train.lr" = { low = 1e-4, high = 1.0, log = true }\n'
        )
    comm.barrier()
    _, records = tune_training(load_tuning(Path("tune.toml")), comm)
    faults = []
    if sorted(record.budget for record in records) != [1] * 6 + [3] * 2:
        faults.append(f"budgets of {records}")
    first = sorted((r for r in records if r.budget == 1), key=lambda r: (r.value, r.number))
    again = {record.params["train.lr"] for record in records if record.budget == 3}
    if again != {record.params["train.lr"] for record in first[:2]}:
        faults.append(f"promoted others: {records}")
    everywhere(faults)
