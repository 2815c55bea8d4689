"""``paropt optimize`` and ``paropt tune`` as a person types them, alone and under mpiexec.

What they do with other settings is tested without starting processes, in tests/mpi.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from paropt_hpc.comm import SerialCommunicator
from paropt_hpc.errors import ConfigError, EvaluationError
from paropt_hpc.experiments import plot_search
from paropt_hpc.experiments.tune_training import load_tuning, tune_training
from paropt_hpc.metaheuristics.config import load_search
from paropt_hpc.metaheuristics.minimise import minimise
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
"""

MINE = """
def sphere(values):
    return (values["x"] - 1) ** 2 + values["n"] ** 2 + (values["mode"] == "bad")

def patchy(values):
    if values["x"] < 0:
        raise ValueError("x is negative")
    return sphere(values) if values["n"] else float("nan")

def two(values):
    return [values["x"] ** 2, (values["x"] - 2) ** 2]

def broken(values):
    raise RuntimeError("out of licences")

def wandering(values):
    import os

    os.chdir(os.path.dirname(__file__) + "/elsewhere")
    return sphere(values)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "sphere.toml").write_text(SPHERE)
    (tmp_path / "mine.py").write_text(MINE)
    yield tmp_path
    sys.modules.pop("mine", None)


def paropt(*arguments, ranks=1, timeout=100):
    """Run ``paropt`` and return the finished process."""
    launcher = [os.environ.get("PAROPT_MPIEXEC", "mpiexec"), "-n", str(ranks)]
    command = [*(launcher if ranks > 1 else []), sys.executable, "-m", "paropt_hpc", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def search_here(name, *assignments):
    """Do what the command does on one rank, in this process."""
    sets = [f'run.dir="runs/{name}"', *assignments]
    minimise(load_search(Path("sphere.toml"), sets), SerialCommunicator())
    return summary_of(name)


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
    target = "--set=budget.target=1e-6"
    done = paropt("optimize", "sphere.toml", target)
    assert done.returncode == 0, done.stderr
    assert "best value" in done.stdout
    alone = summary_of("sphere")
    assert alone["reason"] == "target"
    assert alone["best"]["mode"] == "good"
    assert alone["best"]["n"] == 0
    assert alone["best_f"] == (alone["best"]["x"] - 1) ** 2 <= 1e-6
    moments = (folder / "runs/sphere/metrics.jsonl").read_text().splitlines()
    assert len(moments) == alone["generations"]
    again = paropt("optimize", "runs/sphere/config.toml", "--set", "run.dir=runs/two", ranks=2)
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("results in runs/two") == 1
    two = summary_of("two")
    assert all(two[key] == alone[key] for key in ("best_f", "best_row", "evaluations", "failures"))


def test_a_search_is_gone_on_with(folder):
    whole = search_here("whole")
    search_here("sphere", "budget.generations=20")
    done = paropt("optimize", "sphere.toml", "--resume", ranks=2)
    assert done.returncode == 0, done.stderr
    resumed = summary_of("sphere")
    assert whole["best_row"] == resumed["best_row"]
    assert whole["evaluations"] == resumed["evaluations"] == 60 * 20
    metrics = [Path("runs", n, "metrics.jsonl").read_text() for n in ("whole", "sphere")]
    assert metrics[0] == metrics[1]


def test_only_the_same_search_is_gone_on_with(folder):
    search_here("it", "budget.generations=5", "run.checkpoint_every=5")
    settings = Path("runs/it/config.toml").read_text()
    for changed, said in (
        ("objective.function=mine:patchy", r"objective.function was 'mine:sphere'"),
        ("algorithm.weight=0.7", r"algorithm.weight was None"),
        ("algorithm.population=24", r"algorithm.population was 20"),
        ("run.seed=1", r"seeds was \[0\]"),
    ):
        with pytest.raises(ConfigError, match=f"cannot resume: {said}"):
            search_here("it", "run.resume=true", changed)
    assert Path("runs/it/config.toml").read_text() == settings
    assert summary_of("it")["generations"] == 5
    search_here("it", "run.resume=true", "budget.generations=7", "objective.retries=2")
    assert summary_of("it")["generations"] == 7


def test_a_run_that_failed_at_its_start_does_not_keep_its_folder(folder):
    for _ in range(2):
        with pytest.raises(EvaluationError, match="out of licences"):
            search_here("it", "objective.function=mine:broken", "run.max_failures=30")
    search_here("it")
    with pytest.raises(ConfigError, match="already holds the results"):
        search_here("it")


def test_failures_are_told_with_a_cause(folder):
    search_here("it", "objective.function=mine:patchy", "budget.generations=10")
    summary = summary_of("it")
    assert summary["failures"].keys() == summary["causes"].keys() == {"raised", "NaN"}
    assert summary["causes"]["raised"] == "ValueError: x is negative"


def test_an_objective_may_change_the_working_folder(folder):
    (folder / "elsewhere").mkdir()
    sets = ("objective.function=mine:wandering", "budget.generations=4", "run.checkpoint_every=2")
    done = paropt("optimize", "sphere.toml", *(f"--set={one}" for one in sets))
    assert done.returncode == 0, done.stderr
    assert summary_of("sphere")["generations"] == 4
    assert Path("runs/sphere/checkpoints").is_dir()
    assert list(Path("elsewhere").iterdir()) == []


def test_the_summary_is_json_also_without_a_best_point(folder):
    search_here("it", "objective.function=mine:broken", "budget.generations=2")

    def refuse(constant):
        raise AssertionError(constant)

    for name in ("summary.json", "metrics.jsonl"):
        for text in Path("runs/it", name).read_text().split("\n{" if name[0] == "m" else "\0"):
            json.loads(text if text.startswith("{") else "{" + text, parse_constant=refuse)
    assert summary_of("it")["best_f"] is None
    assert plot_search(Path("runs/it"))


def test_several_objectives_have_a_front(folder):
    several = ["objective.function=mine:two", "objective.outputs=2", "algorithm.name=nsga2"]
    for count in (1, 3):
        search_here(f"{count}", *several, f"islands.count={count}")
        front = summary_of(f"{count}")["front"]
        assert len(front) > 10
        firsts, seconds = ([point["f"][i] for point in front] for i in (0, 1))
        assert firsts == sorted(firsts)
        assert seconds == sorted(seconds, reverse=True)
        for point in front:
            assert point["f"] == [point["values"]["x"] ** 2, (point["values"]["x"] - 2) ** 2]
    with pytest.raises(ConfigError, match="'de' is for one objective, but the function has 2"):
        search_here("de", *several, "algorithm.name=de")
    with pytest.raises(ConfigError, match="'nsga2' is for several objectives, but the function h"):
        search_here("one", *several, "objective.outputs=1")
    with pytest.raises(ConfigError, match="made for 3 objectives, but the function has 2"):
        search_here("three", *several, "algorithm.objectives=3")


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("islands.topology=cube", "topology must be one of"),
        ("objective.functoin=x", "did you mean objective.function?"),
        ("objective.function=mine:broken", "out of licences"),
        ("budget.generations=1", "no evaluation has given a value: raised (RuntimeError: out of"),
    ],
)
def test_faults_on_two_ranks(folder, assignment, said):
    limit, broken = "--set=run.max_failures=30", "--set=objective.function=mine:broken"
    sets = ["--set", assignment, limit]
    assert_refused(paropt("optimize", "sphere.toml", broken, *sets, ranks=2), said)


TUNE = """
[tune]
train = "digits.toml"
sampler = "grid"
[space]
"train.lr" = { low = 1e-4, high = 1.0, log = true }
"""


def tune_here(*assignments):
    """Do what the command does on one rank, in this process."""
    return tune_training(load_tuning(Path("tune.toml"), assignments), SerialCommunicator())[1]


def test_tuning_finds_a_better_rate_than_the_worst_of_the_grid(folder):
    (folder / "digits.toml").write_text("[train]\nepochs = 3\nbatch = 64\n[model]\nhidden = [24]\n")
    (folder / "tune.toml").write_text(TUNE)
    grid = tune_here()
    assert len(grid) == 5
    worst = max(record.value for record in grid)
    sets = ["tune.dir=runs/tune", "tune.sampler=tpe", "tune.schedule=asha"]
    tune_here(*sets, "tune.trials=8")
    sets = [f"--set={assignment}" for assignment in (*sets, "tune.trials=14")]
    done = paropt("tune", "tune.toml", *sets, "--resume", ranks=2)
    assert done.returncode == 0, done.stderr
    assert "train.lr" in done.stdout
    records = TrialTable(Path("runs/tune/trials.jsonl"), resume=True).records
    assert sorted(record.number for record in records) == list(range(14))
    found = best_of(records)
    assert found.value < worst - 0.3
    assert found.value <= min(record.value for record in grid) + 0.05


def test_a_tuning_without_any_success_is_an_error(folder):
    (folder / "digits.toml").write_text("[train]\nepochs = 1\nbatch = 64\n[model]\nhidden = [8]\n")
    (folder / "tune.toml").write_text(TUNE.replace("1e-4", "1e37").replace("1.0", "1e38"))
    sets = ["--set=tune.sampler=random", "--set=tune.trials=2"]
    assert_refused(paropt("tune", "tune.toml", *sets), "no trial has succeeded", "the loss is nan")
