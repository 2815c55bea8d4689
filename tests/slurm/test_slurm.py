"""Jobs on a real Slurm: submitted, followed, stopped, preempted, and left alone by a dead node."""

import json
import os
import socket
import sys

import pytest

pytestmark = pytest.mark.timeout(280)

SHORT = "[train]\nepochs = 3\nbatch = 64\n"
# Goes on until something stops it, and saves only when it is told to.
LONG = "[train]\nepochs = 100000\nbatch = 64\n[model]\nhidden = [16]\n"
STOPPABLE = LONG.replace("100000", "400")
TINY = "[train]\nepochs = 2\nbatch = 64\n[model]\nhidden = [16]\n"
SEARCH = '[objective]\nbenchmark = "sphere"\n[budget]\ngenerations = 20\n'
TUNING = """
[tune]
train = "base.toml"
sampler = "halton"
trials = 6
[space."train.lr"]
low = 0.01
high = 0.3
"""
# The first rate trains, the second diverges.
MATRIX = """
base = "base.toml"
target.value = 0.3
repeats = 2
[axes]
"train.lr" = [0.1, 1e30]
ranks = [1, 2]
"""
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

    slurm.wait(number, "RUNNING", "COMPLETED")
    metrics = folder / "runs" / name / "metrics.jsonl"
    _until(lambda: metrics.exists() and metrics.read_text(), "the first epoch", 60)


def await_array(slurm, number):
    """Wait until all elements of an array have ended well."""
    from cluster import _until

    def ended():
        states = slurm.run("squeue", "-h", "-r", "-j", number, "-o", "%T").stdout.split()
        return not set(states) - {"COMPLETED"}

    _until(ended, f"array {number}", 150)
    shown = slurm.run("scontrol", "show", "job", "-o", number).stdout
    assert shown.count("JobState=COMPLETED") == shown.count("JobState="), shown


def test_srun_starts_one_world(slurm, mpi):
    done = slurm.run(
        "srun", f"--mpi={mpi}", "-N2", "--ntasks-per-node=1", sys.executable, "-c", HELLO
    )
    assert sorted(done.stdout.split("\n")) == ["", "rank 0 of 2", "rank 1 of 2"], done.stderr


@pytest.mark.parametrize("wrong", ["none", "other"])
def test_the_wrong_plugin_is_named(slurm, folder, mpi, wrong):
    """Every process would be rank 0 of 1; only MPICH notices by itself that it is not."""
    plugin = {"pmi2": "pmix", "pmix": "pmi2"}[mpi] if wrong == "other" else wrong
    number = submit(slurm, folder, SHORT, "--nodes", "2", "--mpi", plugin, "--time", "10m")
    assert slurm.wait(number, "COMPLETED", "FAILED")["JobState"] == "FAILED"
    itself = (mpi, plugin) == ("pmi2", "pmix")
    assert ("unsupported PMI version" if itself else f"srun --mpi={mpi}") in log_of(folder)
    assert not (folder / "runs/run/metrics.jsonl").exists()


def test_mpiexec_inside_a_job(slurm, folder):
    (folder / "run.toml").write_text(SHORT)
    script = folder / "job.sbatch"
    script.write_text(
        "#!/bin/bash\n#SBATCH --nodes=2 --ntasks-per-node=2 --output=job.out\n"
        f"mpiexec -n 4 {sys.executable} -m paropt_hpc train run.toml\n"
    )
    done = slurm.run("sbatch", "--wait", script, timeout=100)
    assert done.returncode == 0, (folder / "job.out").read_text()
    assert summary_of(folder)["ranks"] == 4


def test_submit_and_follow(slurm, folder):
    (folder / "run.toml").write_text(SHORT)
    command = (sys.executable, "-m", "paropt_hpc", "submit", "run.toml", "--follow")
    done = slurm.run(*command, "--nodes", "2", "--time", "10m", timeout=120)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "RUNNING" in done.stdout
    assert f"results in {folder}/runs/run" in done.stdout
    assert done.stdout.rstrip().endswith("COMPLETED")
    assert summary_of(folder)["ranks"] == 2
    assert json.loads((folder / "runs/run/job.json").read_text())["job_id"] in done.stdout


@pytest.mark.parametrize(
    ("template", "title", "text", "options"),
    [
        ("gpu", "on GPUs", SHORT, ("--gpus-per-node", "2")),
        ("gossip", "by gossip", SHORT + '[strategy]\nname = "gossip"\n', ()),
        (
            "parameter-server",
            "with a parameter server",
            SHORT + '[strategy]\nname = "parameter-server"\n',
            (),
        ),
        ("islands", "islands", SEARCH, ()),
    ],
)
def test_a_template_runs(slurm, folder, template, title, text, options):
    number = submit(slurm, folder, text, "--nodes", "2", "--time", "10m", *options)
    ended = slurm.wait(number, "COMPLETED", "FAILED", seconds=100)
    assert ended["JobState"] == "COMPLETED", log_of(folder)
    assert title in (folder / "runs/run/job.sbatch").read_text().splitlines()[1]
    assert summary_of(folder)["ranks"] == 2


def test_the_elements_of_a_tuning_share_its_trials(slurm, folder):
    (folder / "base.toml").write_text(TINY)
    number = submit(slurm, folder, TUNING, "--array", "0-2", "--nodes", "2", "--time", "10m")
    await_array(slurm, number)
    trials = [
        json.loads(line)["number"]
        for part in range(3)
        for line in (folder / f"runs/run/trials-{part}.jsonl").read_text().splitlines()
    ]
    assert trials == [0, 3, 1, 4, 2, 5]
    # The whole search has nothing left to try, and shows them all.
    done = slurm.run(sys.executable, "-m", "paropt_hpc", "tune", "run.toml", "--resume")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("complete") == 6
    assert not (folder / "runs/run/trials.jsonl").read_text()


def test_an_element_of_an_array_has_its_own_seed_folder_and_end(slurm, folder):
    """One is told that its time is up: it alone saves and is requeued, also the last one."""
    number = submit(slurm, folder, LONG, "--array", "3,4", "--time", "10m")
    for element in ("3", "4"):
        await_training(slurm, folder, f"{number}_{element}", f"run/{element}")
    slurm.run("scancel", "--batch", "--signal=USR1", f"{number}_4")
    assert slurm.wait(f"{number}_4", "PENDING", "FAILED", "COMPLETED")["JobState"] == "PENDING"
    assert slurm.job(f"{number}_3")["JobState"] == "RUNNING"
    assert list((folder / "runs/run/4/checkpoints").iterdir())
    assert not list((folder / "runs/run/3/checkpoints").glob("step-*"))
    slurm.run("scancel", number)
    slurm.wait(f"{number}_3", "CANCELLED")
    seeds = {(folder / f"runs/run/{e}/config.toml").read_text().count(f"seed = {e}") for e in "34"}
    assert seeds == {1}


def test_an_experiment_runs_as_jobs_and_loses_no_cell(slurm, folder):
    (folder / "base.toml").write_text(TINY)
    (folder / "run.toml").write_text(MATRIX)
    command = (sys.executable, "-m", "paropt_hpc", "submit", "run.toml", "--nodes", "2")
    # Two of the eight cells first; the others then go on where these have ended.
    done = slurm.run(*command, "--array", "0,6", "--follow", "--time", "10m", timeout=150)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "1 FAILED" in done.stderr
    done = slurm.run(*command, "--follow", "--time", "10m", timeout=250)
    assert "3 COMPLETED, 3 FAILED" in done.stdout, done.stdout + done.stderr
    done = slurm.run(sys.executable, "-m", "paropt_hpc", "experiment", "run.toml", "--report")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("2 of 2") == 2
    assert done.stdout.count("the loss is") == 4
    done = slurm.run(*command)
    assert "no cell is without a result" in done.stdout


def test_more_threads_than_the_node_really_has(slurm, folder):
    """The nodes claim four cores; what counts is where the ranks may run."""
    cores = len(os.sched_getaffinity(0))
    if cores >= 8:
        pytest.skip("two ranks of four threads each have a core for every thread here")
    number = submit(slurm, folder, SHORT, "--nodes", "2", "--cpus-per-task", "4", "--time", "10m")
    assert slurm.wait(number, "COMPLETED", "FAILED")["JobState"] == "FAILED"
    assert f"2 ranks on {socket.gethostname()} start 8 threads on {cores} cores" in log_of(folder)


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


@pytest.fixture(scope="module")
def never_stopped(slurm, tmp_path_factory):
    """The figures of a run that nothing has stopped."""
    folder = tmp_path_factory.mktemp("whole")
    (folder / "run.toml").write_text(STOPPABLE)
    command = (sys.executable, "-m", "paropt_hpc", "submit", folder / "run.toml")
    done = slurm.run(*command, "--nodes", "2", "--time", "10m", "--run-dir", folder / "runs/run")
    number = done.stdout.split()[1].rstrip(":")
    assert slurm.wait(number, "COMPLETED", "FAILED", seconds=150)["JobState"] == "COMPLETED"
    return records(folder)


@pytest.mark.parametrize("how", ["preempted", "out of time"])
def test_a_stopped_job_goes_on_as_if_nothing_had_happened(slurm, folder, never_stopped, how):
    number = submit(slurm, folder, STOPPABLE, "--nodes", "2", "--time", "10m")
    await_training(slurm, folder, number)
    if how == "preempted":
        urgent = slurm.run("sbatch", "--parsable", "-phigh", "-N2", "--exclusive", "--wrap=sleep 1")
        slurm.wait(urgent.stdout.strip(), "COMPLETED")
    else:  # what Slurm sends before the end of the time, and to the script alone
        slurm.run("scancel", "--batch", "--signal=USR1", number)
    ended = slurm.wait(number, "COMPLETED", "FAILED", "CANCELLED", seconds=150)
    assert ended["JobState"] == "COMPLETED", log_of(folder)
    assert int(ended["Restarts"]) >= 1
    assert "stopped by SIGTERM" in log_of(folder)
    assert records(folder) == never_stopped


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
    assert "Traceback" in done.stderr  # Slurm kills before it has read the last words


def test_every_rank_has_its_own_gpu(slurm, folder, mpi):
    (folder / "devices.py").write_text(
        "import os, sys\n"
        "from paropt_hpc.comm import world\n"
        "from paropt_hpc.cluster import local_device\n"
        "from paropt_hpc.cluster.inspection import visible_devices\n"
        "with world() as comm:\n"
        "    count = len(visible_devices(os.environ))\n"
        "    line = f'{comm.rank} of {comm.size}: {local_device(comm, count)} of {count}'\n"
        "    if comm.rank == 0: print(*sorted(comm.gather_texts(line)), sep='\\n')\n"
        "    else: comm.gather_texts(line)\n"
    )
    command = ("srun", f"--mpi={mpi}", "-N1", "-n2", "--gpus-per-node=2")
    done = slurm.run(*command, sys.executable, "-m", "mpi4py", "devices.py")
    assert done.stdout.split("\n")[:2] == ["0 of 2: 0 of 2", "1 of 2: 1 of 2"], done.stderr


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
