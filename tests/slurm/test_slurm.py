"""Jobs on a real Slurm: submitted, followed, stopped, preempted, and left alone by a dead node."""

import json
import sys

import numpy as np
import pytest

pytestmark = pytest.mark.timeout(280)

SHORT = "[train]\nepochs = 3\nbatch = 64\n"
# Goes on until something stops it, and saves only when it is told to.
LONG = "[train]\nepochs = 100000\nbatch = 64\n[model]\nhidden = [16]\n"
HELLO = "from mpi4py import MPI; w = MPI.COMM_WORLD; print('rank', w.rank, 'of', w.size)"


def submit(slurm, folder, text, *options, name="run"):
    """Submit a training job and return its number."""
    (folder / f"{name}.toml").write_text(text)
    done = slurm.run(sys.executable, "-m", "paropt_hpc", "submit", f"{name}.toml", *options)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()[1].rstrip(":")


def log_of(folder, name="run"):
    (log,) = (folder / "runs" / name).glob("*.out")
    return log.read_text()


def summary_of(folder, name="run"):
    return json.loads((folder / "runs" / name / "summary.json").read_text())


def records(folder, name="run"):
    lines = (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()
    timed = ("wall_s", "comm_s", "seconds", "straggler")
    return [{k: v for k, v in json.loads(x).items() if k not in timed} for x in lines]


def await_training(slurm, folder, number, name="run"):
    """Wait until a job has trained for an epoch."""
    from cluster import _until

    slurm.wait(number, "RUNNING")
    metrics = folder / "runs" / name / "metrics.jsonl"
    _until(lambda: metrics.exists() and metrics.read_text(), "the first epoch", 60)


def test_srun_starts_one_world(slurm, mpi):
    done = slurm.run(
        "srun", f"--mpi={mpi}", "-N2", "--ntasks-per-node=1", sys.executable, "-c", HELLO
    )
    assert sorted(done.stdout.split("\n")) == ["", "rank 0 of 2", "rank 1 of 2"], done.stderr


def test_the_wrong_plugin_is_named(slurm, folder):
    (folder / "run.toml").write_text(SHORT)
    done = slurm.run(
        "srun", "--mpi=none", "-n2", sys.executable, "-m", "paropt_hpc", "train", "run.toml"
    )
    assert done.returncode != 0
    assert "srun --mpi=pmi2 or pmix" in done.stderr
    assert not (folder / "runs").exists()


def test_submit_and_follow(slurm, folder):
    (folder / "run.toml").write_text(SHORT)
    command = (sys.executable, "-m", "paropt_hpc", "submit", "run.toml", "--follow")
    done = slurm.run(*command, "--nodes", "2", "--time", "10m", timeout=120)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "RUNNING" in done.stdout
    assert "results in runs/run" in done.stdout
    assert done.stdout.rstrip().endswith("COMPLETED")
    assert summary_of(folder)["ranks"] == 2
    assert json.loads((folder / "runs/run/job.json").read_text())["job_id"] in done.stdout


@pytest.mark.parametrize(
    ("template", "text", "options"),
    [
        ("gpu", SHORT, ("--gpus-per-node", "2")),
        ("gossip", SHORT + '[strategy]\nname = "gossip"\n', ()),
    ],
)
def test_a_template_runs(slurm, folder, template, text, options):
    number = submit(slurm, folder, text, "--nodes", "2", "--time", "10m", *options)
    ended = slurm.wait(number, "COMPLETED", "FAILED", seconds=100)
    assert ended["JobState"] == "COMPLETED", log_of(folder)
    script = (folder / "runs/run/job.sbatch").read_text()
    assert {"gpu": "on GPUs", "gossip": "by gossip"}[template] in script
    assert summary_of(folder)["ranks"] == 2


def test_a_failed_job_says_so(slurm, folder):
    (folder / "run.toml").write_text(SHORT + "lr = 1e30\n")
    command = (sys.executable, "-m", "paropt_hpc", "submit", "run.toml", "--follow")
    done = slurm.run(*command, "--time", "10m", timeout=120)
    assert done.returncode == 2
    assert "ended as FAILED" in done.stderr
    assert "the loss is" in done.stdout


def test_more_than_a_node_has(slurm, folder):
    (folder / "run.toml").write_text(SHORT)
    done = slurm.run(
        sys.executable, "-m", "paropt_hpc", "submit", "run.toml", "--ntasks-per-node", "5"
    )
    assert done.returncode == 2
    assert "a node of partition low has 4" in done.stderr
    assert not (folder / "runs").exists()


def test_a_preempted_job_goes_on_as_if_nothing_had_happened(slurm, folder):
    text = LONG.replace("100000", "{epochs}")
    number = submit(slurm, folder, text.format(epochs=1500), "--nodes", "2", "--time", "10m")
    await_training(slurm, folder, number)
    urgent = slurm.run("sbatch", "--parsable", "-phigh", "-N2", "--exclusive", "--wrap=sleep 1")
    slurm.wait(urgent.stdout.strip(), "COMPLETED")
    ended = slurm.wait(number, "COMPLETED", "FAILED", "CANCELLED", seconds=150)
    assert ended["JobState"] == "COMPLETED", log_of(folder)
    assert int(ended["Restarts"]) >= 1
    assert "stopped by SIGTERM" in log_of(folder)
    # The same run, never stopped: equal in every recorded figure.
    whole = submit(
        slurm, folder, text.format(epochs=1500), "--nodes", "2", "--time", "10m", name="whole"
    )
    assert slurm.wait(whole, "COMPLETED", "FAILED", seconds=150)["JobState"] == "COMPLETED"
    assert records(folder) == records(folder, "whole")


def test_a_job_whose_time_is_nearly_up_is_requeued(slurm, folder):
    # Slurm may send the signal up to a minute early, so that here it comes at once.
    number = submit(slurm, folder, LONG, "--nodes", "2", "--time", "2m", "--signal-before", "110")
    await_training(slurm, folder, number)
    requeued = slurm.wait(number, "PENDING", "FAILED", "TIMEOUT", "COMPLETED", seconds=100)
    assert requeued["JobState"] == "PENDING", log_of(folder)
    assert list((folder / "runs/run/checkpoints").iterdir())
    slurm.run("scancel", number)
    slurm.wait(number, "CANCELLED")


def test_a_cancelled_job_stays_cancelled(slurm, folder):
    number = submit(slurm, folder, LONG, "--nodes", "2", "--time", "10m")
    await_training(slurm, folder, number)
    slurm.run("scancel", number)
    assert slurm.wait(number, "CANCELLED", "PENDING", "FAILED")["JobState"] == "CANCELLED"


def test_an_exception_on_one_rank_ends_the_job(slurm, folder, mpi):
    (folder / "fails.py").write_text(
        "from mpi4py import MPI\n"
        "if MPI.COMM_WORLD.rank == 1:\n    raise ValueError('no luck')\n"
        "MPI.COMM_WORLD.Barrier()\n"
    )
    command = ("srun", f"--mpi={mpi}", "-N2", "--ntasks-per-node=1", "--kill-on-bad-exit=1")
    done = slurm.run(*command, sys.executable, "-m", "mpi4py", "fails.py", timeout=60)
    assert done.returncode != 0
    assert "no luck" in done.stderr


def test_every_rank_has_its_own_gpu(slurm, folder, mpi):
    (folder / "devices.py").write_text(
        "import os, sys\n"
        "from paropt_hpc.comm import world\n"
        "from paropt_hpc.cluster import local_device\n"
        "from paropt_hpc.cluster.inspection import visible_devices\n"
        "with world() as comm:\n"
        "    count = visible_devices(os.environ)\n"
        "    line = f'{comm.rank} of {comm.size}: {local_device(comm, count)} of {count}'\n"
        "    if comm.rank == 0: print(*sorted(comm.gather_texts(line)), sep='\\n')\n"
        "    else: comm.gather_texts(line)\n"
    )
    command = ("srun", f"--mpi={mpi}", "-N1", "-n2", "--gpus-per-node=2")
    done = slurm.run(*command, sys.executable, "-m", "mpi4py", "devices.py")
    assert done.stdout.split("\n")[:2] == ["0 of 2: 0 of 2", "1 of 2: 1 of 2"], done.stderr


def test_an_array_runs_every_element(slurm, folder):
    script = folder / "array.sbatch"
    script.write_text(
        "#!/bin/bash\n#SBATCH --array=0-3%2\n"
        f"cd {folder}\nexport PYTHONSAFEPATH=1\n"
        f"{sys.executable} -m paropt_hpc train run.toml "
        "--set run.dir=runs/$SLURM_ARRAY_TASK_ID --set run.seed=$SLURM_ARRAY_TASK_ID\n"
    )
    (folder / "run.toml").write_text(SHORT)
    done = slurm.run("sbatch", "--wait", script, timeout=150)
    assert done.returncode == 0, done.stderr
    losses = {summary_of(folder, str(seed))["final_loss"] for seed in range(4)}
    assert len(losses) == 4
    assert np.isfinite(list(losses)).all()


def test_a_job_outlives_its_node(slurm, folder):
    text = LONG + "[checkpoint]\nevery_epochs = 20\n"
    number = submit(slurm, folder, text, "--nodes", "1", "--time", "10m")
    await_training(slurm, folder, number)
    first = slurm.job(number)["NodeList"]
    slurm.kill_node(first)
    try:
        slurm.wait(number, "PENDING", seconds=90)
        slurm.run("scontrol", "update", f"JobId={number}", "StartTime=now")
        second = slurm.wait(number, "RUNNING", seconds=60)
        assert second["NodeList"] != first
        assert int(second["Restarts"]) == 1
    finally:
        slurm.run("scancel", number)
        slurm.start_node(first)
