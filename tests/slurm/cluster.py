"""A real Slurm of two nodes on this machine: munge, one controller, two node daemons.

Everything lives in one folder, with its own ports and sockets. Processes are ended by the pids
that were started here, and by those of the job steps that a killed node leaves behind.
"""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch")
PACKAGES = "slurmctld slurmd slurm-client munge libpmix-dev"

SLURM_CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/munge.sock,cred_expire=5
CredType=cred/munge
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
TmpFS={folder}/tmp/%n
MailProg=/bin/true
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1
SlurmdParameters=config_overrides
MpiDefault=none
JobRequeue=1
KillWait=10
SlurmctldTimeout=30
SlurmdTimeout=10
ReturnToService=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
NodeName=n[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{node_ports}] CPUs=4 \
RealMemory=2000 Gres=gpu:2 State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=15 \
MaxTime=120 State=UP
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF MaxTime=INFINITE State=UP
"""


def why_not():
    """Say what keeps a cluster from starting here; empty when nothing does."""
    missing = [program for program in PROGRAMS if shutil.which(program, path=search_path()) is None]
    if missing:
        return f"{', '.join(missing)} not found: apt-get install {PACKAGES}"
    if os.geteuid() != 0:
        return "starting Slurm's daemons needs root"
    return ""


def search_path():
    """Debian keeps daemons in sbin, which is not on everybody's PATH."""
    return f"{os.environ['PATH']}:/usr/sbin:/sbin"


class Cluster:
    """Two nodes of four (imagined) cores and two fake GPUs each; a context manager."""

    def __init__(self):
        # munge refuses a socket that others cannot reach, so not in a folder of pytest's.
        self.folder = Path(tempfile.mkdtemp(prefix="paropt-slurm-"))
        self.processes = {}
        self.environ = os.environ | {
            "SLURM_CONF": str(self.folder / "slurm.conf"),
            "PATH": search_path(),
            # Jobs share the cores of this machine: a rank that waits gives its core away.
            "MPIR_CVAR_POLLS_BEFORE_YIELD": "1",
            "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1",
        }

    def __enter__(self):
        try:
            self._write()
            self._start()
            self._await_nodes()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_):
        self.stop()

    def _write(self):
        for name in ("state", "spool/n1", "spool/n2", "run", "log", "munge", "tmp/n1", "tmp/n2"):
            (self.folder / name).mkdir(parents=True)
        self.folder.chmod(0o755)
        (self.folder / "munge").chmod(0o711)
        key = self.folder / "munge" / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(1024))
        port, first, second = _free_ports(3)
        conf = SLURM_CONF.format(
            host=socket.gethostname().split(".")[0],
            folder=self.folder,
            port=port,
            node_ports=f"{first},{second}",
        )
        (self.folder / "slurm.conf").write_text(conf)
        for number in (0, 1):  # a character device is all that Slurm asks of a GPU
            os.mknod(self.folder / f"gpu{number}", 0o20666, os.makedev(1, 3))
        gres = f"NodeName=n[1-2] Name=gpu File={self.folder}/gpu[0-1]\n"
        (self.folder / "gres.conf").write_text(gres)

    def _start(self):
        munge = self.folder / "munge"
        files = {"key": "munge.key", "socket": "munge.sock", "pid": "munged.pid", "seed": "seed"}
        options = [
            f"--{name}{'' if name == 'socket' else '-file'}={munge / file}"
            for name, file in (files | {"log": "log"}).items()
        ]
        self._spawn("munged", "munged", "-F", "--num-threads=2", *options)
        _until(lambda: (munge / "munge.sock").exists(), "munge's socket")
        conf = self.environ["SLURM_CONF"]
        self._spawn("slurmctld", "slurmctld", "-D", "-f", conf)
        for node in ("n1", "n2"):
            self.start_node(node)

    def start_node(self, node):
        self._spawn(node, "slurmd", "-D", "-N", node, "-f", self.environ["SLURM_CONF"])

    def kill_node(self, node):
        """Let a node fail: its daemon is gone at once, and so is what it had started."""
        daemon = self.processes.pop(node)
        started = _started_by(self._log(node)) - {daemon.pid}
        daemon.kill()
        daemon.wait()
        _kill(started)

    def _log(self, node):
        return self.folder / "log" / f"slurmd.{node}.log"

    def _spawn(self, name, *command):
        with (self.folder / "log" / f"{name}.out").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.environ,
                start_new_session=True,
            )

    def _await_nodes(self):
        states = ("sinfo", "-h", "-p", "low", "-N", "-o", "%T")
        _until(lambda: self.run(*states).stdout.split() == ["idle", "idle"], "two idle nodes")

    def run(self, *command, timeout=60, **environ):
        """Run a client of Slurm's, or anything else that asks it."""
        return subprocess.run(
            [str(part) for part in command],
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env=self.environ | environ,
        )

    def job(self, number):
        """Return what the controller knows of a job."""
        shown = self.run("scontrol", "show", "job", "-o", str(number)).stdout
        return dict(field.split("=", 1) for field in shown.split() if "=" in field)

    def wait(self, number, *states, seconds=60):
        """Wait until a job is in one of the states; return its description."""
        found = {}

        def arrived():
            found.update(self.job(number))
            return found.get("JobState") in states

        _until(arrived, f"job {number} to be {' or '.join(states)}", seconds, lambda: found)
        return found

    def stop(self):
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.run("scancel", "--user=root", timeout=10)
        started = set()
        for node in ("n1", "n2"):
            started |= _started_by(self._log(node))
        started -= {process.pid for process in self.processes.values()}
        for process in reversed(list(self.processes.values())):
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        _kill(started)
        shutil.rmtree(self.folder, ignore_errors=True)


def _free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _until(condition, what, seconds=30, explain=lambda: ""):
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds} s for {what} {explain()}")
        time.sleep(0.1)


def _parents():
    """Map every process to its parent."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            with contextlib.suppress(OSError, IndexError, ValueError):
                stat = (entry / "stat").read_text()
                parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    return parents


def _descendants(pid):
    parents = _parents()
    found, new = set(), {pid}
    while new:
        new = {child for child, parent in parents.items() if parent in new} - found
        found |= new
    return found


def _started_by(log):
    """The step daemons of a node, known by the log that they have open, and all they started."""
    trees = set()
    for pid in _parents():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/fd/3").readlink() == log:
                trees |= {pid} | _descendants(pid)
    return trees


def _kill(pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
