"""Parallel optimisation on MPI clusters.

Importing this package does not start MPI: names that need it are reached
through their subpackages, ``paropt_hpc.comm`` and those above it.
"""

import os
from importlib.metadata import version

__all__ = ["CORES", "__version__"]

#: Processors that this process may use, asked before OpenMP pins its first thread to one of them.
CORES = frozenset(
    os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
)

__version__ = version("paropt-hpc")
