"""The machine under the ranks: what is installed, where the ranks are, whether it works."""

from paropt_hpc.cluster.environment import Fact, describe
from paropt_hpc.cluster.inspection import in_job, inspect, local_device, preflight
from paropt_hpc.cluster.selftest import Check, run_selftest

__all__ = [
    "Check",
    "Fact",
    "describe",
    "in_job",
    "inspect",
    "local_device",
    "preflight",
    "run_selftest",
]
