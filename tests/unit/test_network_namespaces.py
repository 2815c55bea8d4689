"""The slow networks of the benchmarks: made, shaped, gone afterwards; root and iproute2 only."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"

MAKE = """
import os, signal, subprocess, sys, time
sys.path.insert(0, {folder!r})
from network_namespaces import SlowNetwork

def names():
    return subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout

# A shell starts what runs in the background with SIGINT ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
prefix = f"paropt-{{os.getpid()}}-"
try:
    with SlowNetwork(2, 1e8) as network:
        inside = ["ip", "netns", "exec", prefix + network.addresses[0]]
        assert names().count(prefix) == 3
        limits = subprocess.run([*inside, "tc", "qdisc"], capture_output=True, text=True).stdout
        assert "tbf" in limits and "rate 100Mbit" in limits, limits
        subprocess.Popen([*inside, "sleep", "60"], stdout=subprocess.DEVNULL)
        while not subprocess.check_output(["ip", "netns", "pids", inside[3]]):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.{signal})
        time.sleep(30)
        raise AssertionError("not interrupted")
except (KeyboardInterrupt, SystemExit):
    pass
assert prefix not in names()
print("gone")
"""


def can_make_namespaces():
    if os.geteuid() != 0 or not (shutil.which("ip") and shutil.which("tc")):
        return False
    name = f"paropt-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)
    return made.returncode == 0


@pytest.mark.skipif(not can_make_namespaces(), reason="needs root, iproute2 and namespaces")
@pytest.mark.parametrize("signal", ["SIGINT", "SIGTERM"])
def test_everything_is_gone_after_a_signal(signal):
    script = MAKE.format(folder=str(BENCHMARKS), signal=signal)
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "gone\n", done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="changes the user, which needs root")
def test_says_that_it_needs_root():
    source = (BENCHMARKS / "network_namespaces.py").read_text()
    script = f"import os; exec({source!r}); os.setuid(65534); check_rights()"
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "need root: start it again with sudo" in done.stderr or "not found" in done.stderr
