"""``paropt optimize`` and ``paropt tune`` as a person types them, alone and under mpiexec."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paropt_hpc.tuning import TrialTable
from paropt_hpc.tuning.table import best_of

pytestmark = pytest.mark.timeout(240)

SPHERE = """
[objective]
function = "mine:sphere"
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
import numpy as np

def sphere(values):
    return (values["x"] - 1) ** 2 + values["n"] ** 2 + (values["mode"] == "bad")

def batch(values):
    return (values["x"] - 1) ** 2 + values["n"] ** 2 + (values["mode"] == "bad")

def broken(values):
    raise RuntimeError("out of licences")

def compiled(row):
    return (row[0] - 1) ** 2 + row[1] ** 2 + row[2] ** 2

number = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sphere.toml").write_text(SPHERE)
    (tmp_path / "mine.py").write_text(MINE)
    return tmp_path


def paropt(*arguments, ranks=1, timeout=100):
    """Run ``paropt`` and return the finished process."""
    launcher = [os.environ.get("PAROPT_MPIEXEC", "mpiexec"), "-n", str(ranks)]
    command = [*(launcher if ranks > 1 else []), sys.executable, "-m", "paropt_hpc", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def assert_refused(done, *said):
    assert done.returncode == 2, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if "paropt: error:" in line]
    assert len(lines) == 1, done.stderr
    for text in said:
        assert text in lines[0]
    assert "Traceback" not in done.stderr


def summary_of(name):
    return json.loads(Path("runs", name, "summary.json").read_text())


def test_a_search_leaves_its_results_and_ranks_do_not_matter(folder):
    done = paropt("optimize", "sphere.toml")
    assert done.returncode == 0, done.stderr
    assert "best value" in done.stdout
    alone = summary_of("sphere")
    assert alone["reason"] == "target"
    assert alone["best"]["mode"] == "good"
    assert alone["best"]["n"] == 0
    assert alone["best_f"] == (alone["best"]["x"] - 1) ** 2 <= 1e-6
    moments = (folder / "runs/sphere/metrics.jsonl").read_text().splitlines()
    assert len(moments) == alone["generations"]
    assert_refused(paropt("optimize", "sphere.toml"), "already holds the results")
    again = paropt("optimize", "runs/sphere/config.toml", "--set", "run.dir=runs/two", ranks=2)
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("results in runs/two") == 1
    two = summary_of("two")
    assert all(two[key] == alone[key] for key in ("best_f", "best_row", "evaluations", "failures"))


@pytest.mark.parametrize(
    "settings",
    [
        ["objective.function=mine:batch", "objective.kind=vectorised", "islands.count=3"],
        ["objective.isolate=true", "objective.time_limit=20.0", "run.evaluator=manager"],
        ["objective.function=mine:compiled", "objective.kind=compiled", "objective.rows=true"],
        ["islands.count=4", "islands.asynchronous=true", "islands.topology=complete"],
    ],
)
def test_other_ways_to_evaluate(folder, settings):
    done = paropt("optimize", "sphere.toml", *(f"--set={s}" for s in settings), ranks=2)
    assert done.returncode == 0, done.stderr
    assert summary_of("sphere")["best_f"] < 0.1
    asynchronous = (folder / "runs/sphere/migration.jsonl").exists()
    assert asynchronous == ("islands.asynchronous=true" in settings)


def test_a_search_is_gone_on_with(folder):
    sets = ("--set", "budget.target=0.0")
    paropt("optimize", "sphere.toml", "--set", "run.dir=runs/whole", *sets)
    paropt("optimize", "sphere.toml", *sets, "--set", "budget.generations=20")
    done = paropt("optimize", "sphere.toml", *sets, "--resume", ranks=2)
    assert done.returncode == 0, done.stderr
    whole, resumed = summary_of("whole"), summary_of("sphere")
    assert whole["best_row"] == resumed["best_row"]
    assert whole["evaluations"] == resumed["evaluations"] == 60 * 20
    metrics = [Path("runs", n, "metrics.jsonl").read_text() for n in ("whole", "sphere")]
    assert metrics[0] == metrics[1]


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("objective.functoin=x", "did you mean objective.function?"),
        ("objective.function=mine:broken", "out of licences"),
    ],
)
def test_faults_on_two_ranks(folder, assignment, said):
    limit = "--set=run.max_failures=30"
    assert_refused(paropt("optimize", "sphere.toml", "--set", assignment, limit, ranks=2), said)


TUNE = """
[tune]
train = "digits.toml"
sampler = "grid"
[space]
"train.lr" = { low = 1e-4, high = 1.0, log = true }
"""
DIGITS = "[train]\nepochs = 3\nbatch = 64\n[model]\nhidden = [24]\n"


def trials_of(name):
    return TrialTable(Path("runs", name, "trials.jsonl"), resume=True).records


def test_tuning_finds_a_better_rate_than_the_worst_of_the_grid(folder):
    (folder / "digits.toml").write_text(DIGITS)
    (folder / "tune.toml").write_text(TUNE)
    done = paropt("tune", "tune.toml", ranks=3)
    assert done.returncode == 0, done.stderr
    grid = trials_of("tune")
    assert len(grid) == 5
    worst = max(record.value for record in grid)
    sets = ["--set=tune.sampler=tpe", "--set=tune.trials=12", "--set=tune.schedule=asha"]
    done = paropt("tune", "tune.toml", "--set=tune.dir=runs/tpe", *sets, ranks=2)
    assert done.returncode == 0, done.stderr
    assert "train.lr" in done.stdout
    found = best_of(trials_of("tpe"))
    assert found.value < worst - 0.3
    assert found.value <= min(record.value for record in grid) + 0.05
    assert_refused(paropt("tune", "tune.toml"), "go on with --resume")
    done = paropt("tune", "tune.toml", "--resume", "--set=tune.dir=runs/tpe", *sets[:1],
                  "--set=tune.trials=14")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert sorted(record.number for record in trials_of("tpe")) == list(range(14))


def test_halving_of_trainings_on_two_ranks_each(folder):
    (folder / "digits.toml").write_text(DIGITS)
    (folder / "tune.toml").write_text(TUNE)
    sets = [
        "tune.sampler=halton",
        "tune.schedule=halving",
        "tune.trials=6",
        "tune.ranks_per_trial=2",
    ]
    done = paropt("tune", "tune.toml", *(f"--set={s}" for s in sets), ranks=3)
    assert done.returncode == 0, done.stderr
    records = trials_of("tune")
    assert sorted(r.budget for r in records) == [1] * 6 + [3] * 2
    best = sorted((r.value, r.number) for r in records if r.budget == 1)[:2]
    again = {r.params["train.lr"] for r in records if r.budget == 3}
    assert again == {records_by_number(records)[number].params["train.lr"] for _, number in best}


def records_by_number(records):
    return {record.number: record for record in records}
