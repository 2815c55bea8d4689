"""The command as a person types it, alone and under mpiexec."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.timeout(240)

SMALL = "[train]\nepochs = 2\nbatch = 48\n[model]\nhidden = [16]\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path


def paropt(*arguments, ranks=1, timeout=60):
    """Run ``paropt`` and return the finished process."""
    launcher = [os.environ.get("PAROPT_MPIEXEC", "mpiexec"), "-n", str(ranks)]
    command = [*(launcher if ranks > 1 else []), sys.executable, "-m", "paropt_hpc", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def assert_refused(done, *said):
    """One line that says what is wrong, status 2, no traceback."""
    assert done.returncode == 2, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if "paropt: error:" in line]
    assert len(lines) == 1, done.stderr
    for text in said:
        assert text in lines[0]
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("PAROPT_ISA=baseline", "native, baseline (of"),
        ("PAROPT_BACKEND=reference", "the NumPy twins, as PAROPT_BACKEND says"),
        ("PAROPT_ISA=mmx", "PAROPT_ISA must be one of baseline"),
    ],
)
def test_info_shows_what_runs(folder, monkeypatch, setting, said):
    monkeypatch.setenv(*setting.split("="))
    done = paropt("info")
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if "CPU kernels" in line)
    assert said in line


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_leaves_its_results(folder, ranks):
    done = paropt("train", "small.toml", ranks=ranks)
    assert done.returncode == 0, done.stderr
    assert "test accuracy" in done.stdout
    assert done.stdout.count("results in runs/small") == 1
    summary = json.loads((folder / "runs/small/summary.json").read_text())
    wanted = (
        "ranks, steps, epochs, final_loss, test_accuracy, wall_s, samples_per_s, comm_share, "
        "bytes_sent_per_rank, dense_bytes_per_rank"
    )
    assert set(wanted.split(", ")) <= set(summary)
    assert summary["ranks"] == ranks
    assert "loss" not in done.stderr  # no progress bar without a terminal


def test_the_written_configuration_repeats_the_run(folder):
    assert paropt("train", "small.toml", "--set", "run.dir=first").returncode == 0
    again = paropt("train", "first/config.toml", "--set", "run.dir=second")
    assert again.returncode == 0, again.stderr
    one, two = (json.loads((folder / d / "summary.json").read_text()) for d in ("first", "second"))
    assert one["final_loss"] == two["final_loss"]


def test_compare_shows_runs_side_by_side(folder):
    for name in ("one", "two"):
        paropt("train", "small.toml", "--set", f"run.dir={name}")
    done = paropt("compare", "one", "two")
    assert done.returncode == 0
    assert "one" in done.stdout
    assert "two" in done.stdout
    assert_refused(paropt("compare", "three"), "three holds no finished run")
    Path("again").mkdir()
    shutil.copytree("one", "again/one")
    both = paropt("compare", "one", "again/one").stdout.splitlines()
    assert any(line.split() == ["one", "again/one"] for line in both)
    Path("again/one/summary.json").write_text('{"best_f": 0.5}')  # of a search
    assert_refused(paropt("compare", "again/one"), "one holds no finished training")


BAD_SETTINGS = [
    ("train.learning_rate=1", "unknown key train.learning_rate"),
    ("train.momentun=0.9", "did you mean train.momentum?"),
    ("train.lr=fast", "train.lr should be a valid number"),
    ("compress.density=0", "compress.density should be greater than 0"),
    ("model.hidden=[99999999999]", "not enough memory: Unable to allocate"),
    ("debug.slow_rank=2", "debug.slow_rank must be one of 2 ranks, 0 to 1, got 2"),
    ("train.batch=49", "the global batch 49 is not a multiple of 2 ranks; use 48 or 50"),
    ("data.format=libsvm", "data.train must name a file"),
]


@pytest.mark.parametrize(("assignment", "said"), BAD_SETTINGS)
def test_bad_settings_on_two_ranks(folder, assignment, said):
    assert_refused(paropt("train", "small.toml", "--set", assignment, ranks=2), said)


def test_bad_data_on_two_ranks(folder):
    def train_on(path):
        settings = ("data.format=npz", f"data.train={path}")
        return paropt("train", "small.toml", *(f"--set={s}" for s in settings), ranks=2)

    assert_refused(train_on("none.npz"), "there is no file none.npz")
    np.savez(folder / "data.npz", x=np.ones((9, 2)), y=np.arange(9) % 3 - 1)
    assert_refused(train_on("data.npz"), "label -1 is out of range")
    (folder / "short.npz").write_bytes((folder / "data.npz").read_bytes()[:-40])
    assert_refused(train_on("short.npz"), "short.npz is not a whole .npz file")
    np.savez(folder / "few.npz", x=np.ones((3, 2)), y=np.array([0, 1, 0]))
    few = paropt(
        "train", "small.toml", "--set=data.format=npz", "--set=data.train=few.npz", ranks=4
    )
    assert_refused(few, "samples are fewer than 4 ranks")


def test_a_loss_that_diverges_names_step_and_rank(folder):
    done = paropt("train", "small.toml", "--set", "train.lr=1e30", ranks=2)
    assert_refused(done, "on rank", "at step", "lower train.lr")
    assert "Warning" not in done.stderr


def test_results_are_kept(folder):
    assert paropt("train", "small.toml").returncode == 0
    assert_refused(paropt("train", "small.toml", ranks=2), "already holds the results")
    assert paropt("train", "small.toml", "--set", "run.overwrite=true").returncode == 0


@pytest.mark.parametrize("arguments", [["trian"], ["train"], ["train", "x.toml", "--sett", "a=1"]])
def test_wrong_usage(folder, arguments):
    assert_refused(paropt(*arguments, ranks=2), "see paropt --help")


def test_help_and_version():
    done = paropt("--help", ranks=2)
    assert done.returncode == 0
    assert done.stdout.count("Usage:") == 1
    assert paropt().stdout == paropt("--help").stdout
    for word in ("train", "info", "selftest", "compare", "tune-comm", "mpiexec"):
        assert word in done.stdout
    assert paropt("train", "--help").stdout.count("--set") >= 1
    assert paropt("--version").stdout.startswith("paropt-hpc ")


@pytest.mark.parametrize("ranks", [1, 3])
def test_selftest(ranks):
    done = paropt("selftest", ranks=ranks, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("allreduce ring") == 1
    assert "allreduce shared" in done.stdout
    assert done.stdout.count(" ok ") >= 15


def test_tuning_keeps_a_table(folder, monkeypatch):
    monkeypatch.setenv("PAROPT_TUNING", str(folder / "table.json"))
    done = paropt("tune-comm", ranks=2, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "recursive_doubling" in done.stdout
    assert json.loads((folder / "table.json").read_text())["choices"]
    assert paropt("train", "small.toml", ranks=2).returncode == 0
    assert_refused(paropt("tune-comm"), "nothing to tune on one rank")
    monkeypatch.setenv("PAROPT_TUNING", str(folder / "small.toml" / "table.json"))
    assert_refused(paropt("tune-comm", ranks=2), "cannot write the table of collectives")


def test_info_says_what_is_there():
    done = paropt("info", ranks=2)
    assert done.returncode == 0, done.stderr
    assert "2 on 1 node(s)" in done.stdout
    assert "MPI library" in done.stdout
    assert "CUDA-aware" in done.stdout
    assert "GPU devices" in done.stdout


def test_a_signal_leaves_a_checkpoint_and_its_own_status(folder):
    """The launcher passes SIGUSR1 on; the run stops with status 75 and goes on with --resume."""
    long = ["--set", "train.epochs=100000", "--set", "model.hidden=[256]"]
    command = [os.environ.get("PAROPT_MPIEXEC", "mpiexec"), "-n", "2", sys.executable]
    command += ["-m", "paropt_hpc", "train", "small.toml", *long, "--resume"]
    run = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    metrics = folder / "runs/small/metrics.jsonl"
    deadline = time.monotonic() + 60
    while not (metrics.exists() and metrics.read_text()) and time.monotonic() < deadline:
        time.sleep(0.05)
    run.send_signal(signal.SIGUSR1)
    _, said = run.communicate(timeout=60)
    assert "stopped by SIGUSR1 at step" in said
    assert run.returncode == 75, said
    steps = sorted((folder / "runs/small/checkpoints").glob("step-*"))
    assert len(steps) == 1
    done = paropt("train", "small.toml", *long, "--resume", "--set", "train.epochs=1")
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "runs/small/summary.json").read_text())["steps"] > 0


@pytest.mark.parametrize(
    "error", ["ValueError('this rank has lost its mind')", "KeyboardInterrupt"]
)
def test_an_error_on_one_rank_ends_all(folder, error):
    """A fault that only one rank has, or Ctrl-C, while the others wait for it in a collective."""
    (folder / "sitecustomize.py").write_text(
        "import os\n"
        "if os.environ.get('PMI_RANK', os.environ.get('OMPI_COMM_WORLD_RANK')) == '1':\n"
        "    from paropt_hpc.train.models import MLP\n"
        "    def broken(*args, **kwargs):\n"
        f"        raise {error}\n"
        "    MLP.loss_and_grad = broken\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(folder), "PAROPT_TIMEOUT": "0"}
    command = [os.environ.get("PAROPT_MPIEXEC", "mpiexec"), "-n", "3", sys.executable]
    done = subprocess.run(
        [*command, "-m", "paropt_hpc", "train", "small.toml"],
        capture_output=True, text=True, timeout=60, env=environment, check=False,
    )  # fmt: skip
    if error == "KeyboardInterrupt":
        assert done.returncode == 130
        return
    assert done.returncode != 0
    assert "rank 1: " in done.stderr
    assert "this rank has lost its mind" in done.stderr


def test_a_damaged_checkpoint_is_told_in_one_line(folder):
    """The checkpoint before it is used; here there is none, and the run starts anew."""
    saving = ("--set", "checkpoint.every_epochs=1")
    assert paropt("train", "small.toml", *saving).returncode == 0
    for state in (folder / "runs/small/checkpoints").glob("*/rank-00000.npz"):
        state.write_bytes(b"damage")
    done = paropt("train", "small.toml", *saving, "--resume")
    assert done.returncode == 0, done.stderr
    assert "paropt: warning: checkpoint" in done.stderr
    assert "UserWarning" not in done.stderr
