"""Every example runs, and the README shows it as it is."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
README = (ROOT / "README.md").read_text(encoding="utf-8")


def mpiexec(ranks, *command):
    launcher = [os.environ.get("PAROPT_MPIEXEC", "mpiexec"), "-n", str(ranks), sys.executable]
    done = subprocess.run(
        [*launcher, *command], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def block_after(marker):
    """The first code block of the README after a marker."""
    return re.search(r"```\w*\n(.*?)```", README[README.index(marker) :], re.DOTALL)[1]


@pytest.mark.parametrize("name", ["library.py", "torch_loop.py"])
def test_the_readme_shows_the_example(name):
    shown = block_after(f"<!-- example: examples/{name} -->")
    assert shown == (EXAMPLES / name).read_text(encoding="utf-8")


def test_the_readme_shows_its_real_output():
    command, *shown = block_after("<!-- output of examples/library.py -->").splitlines()
    assert command == "$ mpiexec -n 4 python -m mpi4py examples/library.py"
    assert mpiexec(4, "-m", "mpi4py", EXAMPLES / "library.py").splitlines() == shown


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_loop_of_ones_own_in_numpy(ranks):
    said = mpiexec(ranks, "-m", "mpi4py", EXAMPLES / "own_loop.py")
    assert said == f"{ranks} ranks, weights [1. 0. 0.]\n"


def test_a_loop_of_ones_own_in_torch():
    pytest.importorskip("torch")
    said = mpiexec(2, "-m", "mpi4py", EXAMPLES / "torch_loop.py")
    assert float(re.fullmatch(r"2 ranks, loss (\d\.\d\d)\n", said)[1]) < 0.1


def test_a_model_of_ones_own_is_shown_and_trains(tmp_path, monkeypatch):
    monkeypatch.chdir(EXAMPLES)
    guide = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    shown = re.search(r"own_model.py -->\n```python\n(.*?)```", guide, re.DOTALL)[1]
    assert shown == (EXAMPLES / "own_model.py").read_text(encoding="utf-8")
    options = ["--set", "model.name=own_model:make", "--set", "model.options={width = 64}"]
    options += ["--set", f"run.dir={tmp_path / 'run'}", "--set", "train.epochs=3"]
    mpiexec(2, "-m", "mpi4py", "-m", "paropt_hpc", "train", "digits_dense.toml", *options)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text(encoding="utf-8"))
    assert summary["parameters"] == 64 * 64 + 2 * 64 + 64 * 10 + 10
    assert summary["test_accuracy"] > 0.9


@pytest.mark.parametrize("name", ["dense", "topk"])
def test_the_digits_configurations_differ_in_compression_only(name):
    text = (EXAMPLES / f"digits_{name}.toml").read_text(encoding="utf-8")
    other = (EXAMPLES / "digits_dense.toml").read_text(encoding="utf-8")
    settings = text.partition("[model]")[2].partition("\n[compress]")[0]
    assert settings == other.partition("[model]")[2]


def test_the_demonstration_keeps_its_promise(tmp_path, monkeypatch):
    """Within one point of accuracy, at or above 0.96, at least 40 times fewer bytes."""
    monkeypatch.chdir(tmp_path)
    launcher = os.environ.get("PAROPT_MPIEXEC", "mpiexec")
    done = subprocess.run(
        [sys.executable, EXAMPLES / "demo.py", "--mpiexec", launcher],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "times fewer bytes" in done.stdout


def paropt(*arguments, ranks=1):
    """Run ``paropt`` where the examples are, its results in `tmp_path`."""
    launcher = [os.environ.get("PAROPT_MPIEXEC", "mpiexec"), "-n", str(ranks)] * (ranks > 1)
    done = subprocess.run(
        [*launcher, sys.executable, "-m", "paropt_hpc", *arguments],
        capture_output=True, text=True, timeout=200, check=False, cwd=ROOT,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_program_is_calibrated(tmp_path, monkeypatch):
    """Each evaluation starts Python, so only a few: enough to come near."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    few = ["budget.evaluations=96", f"run.dir={tmp_path}/run", "run.plots=false"]
    paropt("optimize", "examples/calibrate.toml", *(f"--set={s}" for s in few), ranks=2)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["failures"] == {}
    assert abs(summary["best"]["rate"] - 0.35) < 0.15


def test_the_example_of_tuning(tmp_path):
    few = ["tune.trials=4", f"tune.dir={tmp_path}/run"]
    said = paropt("tune", "examples/tune_digits.toml", *(f"--set={s}" for s in few), ranks=3)
    assert "train.batch" in said
    assert len((tmp_path / "run" / "trials.jsonl").read_text().splitlines()) == 4


def test_a_salesman_goes_round_the_circle(tmp_path):
    few = [f"run.dir={tmp_path}/run", "run.plots=false"]
    paropt("optimize", "examples/salesman.toml", *(f"--set={s}" for s in few), ranks=2)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["best_f"], summary["reason"]) == (6264, "target")


def test_thresholds_are_those_of_trying_all():
    found, exact = mpiexec(2, "-m", "mpi4py", EXAMPLES / "thresholds.py").splitlines()
    assert found.removeprefix("thresholds ") == exact.removeprefix("exhaustive ")


@pytest.mark.parametrize("algorithm", ["binary-pso", "ga"])
def test_some_features_are_better_than_all(algorithm):
    few = ["--algorithm", algorithm, "--generations", "4"]
    said = mpiexec(2, "-m", "mpi4py", EXAMPLES / "feature_selection.py", *few).splitlines()
    everything, chosen = (float(line.rpartition(" ")[2]) for line in said[:2])
    assert chosen < everything
