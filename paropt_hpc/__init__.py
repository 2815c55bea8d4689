"""Parallel optimisation on MPI clusters.

Importing this package does not start MPI: names that need it are reached
through their subpackages, ``paropt_hpc.comm`` and those above it.
"""

from importlib.metadata import version

__all__ = ["__version__"]

__version__ = version("paropt-hpc")
