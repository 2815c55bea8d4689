"""Training takes parameters, gradient, what the optimizer and error feedback keep, and no more."""

import importlib.util
from pathlib import Path

import pytest

from paropt_hpc.comm import Communicator

pytestmark = pytest.mark.mpi

FILE = Path(__file__).parents[2] / "benchmarks" / "step_memory.py"
spec = importlib.util.spec_from_file_location("step_memory", FILE)
step_memory = importlib.util.module_from_spec(spec)
spec.loader.exec_module(step_memory)


@pytest.mark.parametrize("way", ["adam", "buckets", "topk corrected", "float16", "accumulated"])
def test_peak(world, everywhere, way):
    """A vector is longer than the slack, so that a single one too many is found."""
    with Communicator(world) as comm:
        found = step_memory.peak(comm, way)
    assert found.vector > step_memory.SLACK_BYTES
    check(found, everywhere)


@pytest.mark.parametrize("way", ["adam", "topk corrected"])
def test_peak_with_a_checkpoint(world, folder, everywhere, way):
    with Communicator(world) as comm:
        found = step_memory.peak(comm, way, folder=folder)
    check(found, everywhere)


def check(found, everywhere):
    faults = [] if found.peak <= found.allowed else [f"took {found}"]
    everywhere(faults)
    assert found.peak > 2 * found.vector  # at least parameters and gradient were counted
