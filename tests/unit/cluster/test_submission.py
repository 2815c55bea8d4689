"""What is checked before a job goes to Slurm, with clients that only pretend."""

import json
from pathlib import Path

import pytest

from paropt_hpc.cluster import submission
from paropt_hpc.cluster.sbatch import Array, Job
from paropt_hpc.cluster.submission import Partition
from paropt_hpc.errors import ConfigError

CPU = Partition("cpu", default=True, nodes=4, cpus=64, gpus=0, seconds=86400)
GPU = Partition("gpu", default=False, nodes=2, cpus=32, gpus=8, seconds=None)


def job(**changes):
    return Job(**({"config": Path("run.toml"), "folder": Path("runs/run")} | changes))


@pytest.fixture
def pretend(tmp_path, monkeypatch):
    """Put a program on PATH that prints and does what it is told."""
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=":")
    (tmp_path / "bin").mkdir()

    def make(name, script):
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/bash\n{script}\n")
        program.chmod(0o755)

    return make


def test_sinfo_is_read(pretend):
    lines = (
        "cpu|cpu*|4|64|(null)|1-00:00:00",
        "gpu|gpu|1|32|gpu:a100:8(S:0-1)|infinite",
        "gpu|gpu|1|16+|gpu:4|infinite",
    )
    pretend("sinfo", "\n".join(f"echo '{line}'" for line in lines))
    assert submission.partitions() == [CPU, GPU]


def test_no_cluster_means_nothing_is_known(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert submission.partitions() == []


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"nodes": 0}, "--nodes must be at least 1, got 0"),
        ({"cpus_per_task": -1}, "--cpus-per-task must be at least 1, got -1"),
        ({"template": "gpu"}, "--gpus-per-node must be at least 1"),
        ({"array": Array((), 4)}, "--array %4 names no elements; write 0-15%4"),
        ({"array": Array((1, 2)), "template": "tune"}, "their numbers must be 0-1"),
        ({"site": {"mem": "8G\n#SBATCH --x"}}, "--mem must be one line"),
        ({"signal_seconds": 0}, "--signal-before must be in 1..65535, got 0"),
        ({"seconds": 60}, "is over before the ranks are told to save"),
        ({"ntasks_per_node": 65}, "65 cpus, but a node of partition cpu has 64"),
        ({"ntasks_per_node": 33, "cpus_per_task": 2}, "are 66 cpus"),
        ({"nodes": 5}, "partition cpu has 4"),
        ({"seconds": 90000}, "above the limit of partition cpu, 1-00:00:00"),
        ({"gpus_per_node": 1}, "a node of partition cpu has 0"),
        ({"site": {"partition": "fast"}}, "no partition 'fast'; sinfo knows cpu, gpu"),
        ({"site": {"partition": "gpu"}, "ntasks_per_node": 33}, "partition gpu has 32"),
    ],
)
def test_what_cannot_run_is_refused(changes, said):
    with pytest.raises(ConfigError) as raised:
        submission.check(job(**changes), [CPU, GPU])
    assert said in str(raised.value)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"ntasks_per_node": 64, "nodes": 4, "seconds": 86400},
        {"site": {"partition": "gpu"}, "gpus_per_node": 8, "template": "gpu", "seconds": 900000},
        {"site": {"partition": "cpu,gpu"}, "ntasks_per_node": 64},  # one of them suffices
        {"array": Array((0, 1, 2), 4)},
        {"array": Array((0, 1, 2)), "template": "tune"},
    ],
)
def test_what_can_run_is_not(changes):
    submission.check(job(**changes), [CPU, GPU])
    submission.check(job(**changes), [])


def test_a_submitted_job_leaves_script_and_number(pretend, tmp_path):
    pretend("sbatch", 'echo "1234;cluster"; env > "$(dirname "$2")/environment"')
    task = job(folder=tmp_path / "run")
    script = submission.write(task, tmp_path)
    assert submission.submit(task, script) == "1234"
    assert json.loads((tmp_path / "run/job.json").read_text())["job_id"] == "1234"
    assert script.read_text().startswith("#!/usr/bin/env bash")


def test_a_job_inside_a_job_starts_clean(pretend, tmp_path, monkeypatch):
    pretend("sbatch", 'env > "${@: -1}.environment"; echo 1')
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CONF", "/etc/some.conf")
    task = job(folder=tmp_path / "run")
    submission.submit(task, submission.write(task, tmp_path))
    seen = (tmp_path / "run/job.sbatch.environment").read_text()
    assert "SLURM_JOB_ID" not in seen
    assert "SLURM_CONF=/etc/some.conf" in seen


def test_a_folder_of_a_job_that_has_not_ended(pretend, tmp_path):
    pretend("sbatch", "echo 7")
    pretend("squeue", f"cat {tmp_path}/queue")
    task = job(folder=tmp_path / "run")
    submission.submit(task, submission.write(task, tmp_path))
    (tmp_path / "queue").write_text("7 low run root PD\n")
    with pytest.raises(ConfigError, match="job 7 has not ended, and writes into"):
        submission.check_folder(tmp_path / "run")
    (tmp_path / "queue").write_text("")
    submission.check_folder(tmp_path / "run")


def test_results_are_not_replaced_unasked(tmp_path):
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(ConfigError, match="already holds the results of a run; name another"):
        submission.check_folder(tmp_path)
    (tmp_path / "checkpoints" / "step-00000010").mkdir(parents=True)
    submission.check_folder(tmp_path)


def test_slurms_refusal_is_passed_on(pretend, tmp_path):
    pretend("sbatch", "echo 'sbatch: error: Invalid account' >&2; exit 1")
    task = job(folder=tmp_path / "run")
    with pytest.raises(ConfigError, match=r"sbatch refused .*Invalid account"):
        submission.submit(task, submission.write(task, tmp_path))


def test_without_sbatch(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="sbatch is not on PATH"):
        submission.submit(job(), Path("job.sbatch"))


def test_following_shows_states_and_the_log_once(pretend, tmp_path):
    log = tmp_path / "run-9.out"
    pretend(
        "scontrol",
        f"""
count=$(($(cat {tmp_path}/count 2>/dev/null || echo 0) + 1)); echo $count > {tmp_path}/count
case $count in
  1) echo JobState=PENDING Reason=Priority ;;
  2) printf 'first\\nhalf' > {log}; echo JobState=RUNNING Reason=None ;;
  *) printf ' line\\n' >> {log}; echo JobState=COMPLETED Reason=None ExitCode=0:0 ;;
esac""",
    )
    shown = []
    ended = submission.follow(job(folder=tmp_path), "9", shown.append, pause=0)
    assert ended == ("COMPLETED", "0:0")
    assert shown == [
        "job 9: PENDING (Priority)",
        "job 9: RUNNING",
        "first",
        "half line",
        "job 9: COMPLETED",
    ]


def test_following_an_array_counts_its_elements(pretend, tmp_path):
    pretend(
        "scontrol",
        f"""
count=$(($(cat {tmp_path}/count 2>/dev/null || echo 0) + 1)); echo $count > {tmp_path}/count
case $count in
  1) echo ArrayTaskId=0-2 JobState=PENDING ;;
  2) echo ArrayTaskId=1-2 JobState=PENDING; echo ArrayTaskId=0 JobState=RUNNING ;;
  *) for i in 0 1; do echo ArrayTaskId=$i JobState=COMPLETED; done
     echo ArrayTaskId=2 JobState=FAILED ;;
esac""",
    )
    shown = []
    ended = submission.follow_arrays({"9": Array((0, 1, 2))}, shown.append, pause=0)
    assert ended == {"COMPLETED": 2, "FAILED": 1}
    assert shown == ["3 PENDING", "2 PENDING, 1 RUNNING", "2 COMPLETED, 1 FAILED"]
