"""Experiments, and the jobs they become, as a person types them."""

import subprocess
import sys

import pytest

MATRIX = """
base = "base.toml"
target.value = 0.3
repeats = 2
[axes]
"train.lr" = [0.1, 1e30]
ranks = [1, 2]
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "base.toml").write_text("[train]\nepochs = 1\nbatch = 64\n[model]\nhidden = [8]\n")
    (tmp_path / "matrix.toml").write_text(MATRIX)
    return tmp_path


def paropt(*arguments):
    command = [sys.executable, "-m", "paropt_hpc", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_a_cell_that_fails_is_kept_with_its_reason(folder):
    assert paropt("experiment", "matrix.toml", "--cell", "0").returncode == 0
    assert paropt("experiment", "matrix.toml", "--cell", "4").returncode == 2
    (reason,) = folder.glob("runs/matrix/*/failed.txt")
    assert reason.parent.name == "lr-1e+30-ranks-1-seed-0"
    assert "the loss is" in reason.read_text()
    done = paropt("experiment", "matrix.toml", "--report")
    assert done.returncode == 0, done.stderr
    assert "lr-1e+30-ranks-1-seed-0 failed: the loss is" in done.stdout
    assert "6 runs have not been made" in done.stdout
    # What has a result or has failed is not submitted once more.
    options = ("--ntasks-per-node", "2", "--mpi", "pmix", "--dry-run")
    done = paropt("submit", "matrix.toml", *options)
    assert done.returncode == 0, done.stderr
    assert [
        [
            line
            for line in (folder / f"runs/matrix/job-{n}.sbatch").read_text().split("\n")
            if "--array" in line
        ]
        for n in (1, 2)
    ] == [["#SBATCH --array=1,5"], ["#SBATCH --array=2,3,6,7"]]


def test_a_cell_wants_its_ranks(folder):
    done = paropt("experiment", "matrix.toml", "--cell", "2")
    assert done.returncode == 2
    assert "cell 2 wants 2 ranks, but 1 were started" in done.stderr
