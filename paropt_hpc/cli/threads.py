"""How the ranks of a node share its cores, decided before BLAS and MPI read the environment."""

import os
from collections.abc import MutableMapping

__all__ = ["share_cores"]

# MPICH's ranks spin while they wait, unless told to sleep.
_YIELD = {"MPIR_CVAR_POLLS_BEFORE_YIELD": "1", "MPIR_CVAR_ENABLE_HEAVY_YIELD": "1"}
# How many ranks a launcher has started on this node.
_NODE_SIZES = ("MPI_LOCALNRANKS", "OMPI_COMM_WORLD_LOCAL_SIZE", "PALS_LOCAL_SIZE")


def share_cores(environ: MutableMapping[str, str]) -> None:
    """Give each rank of this node its share of the cores, unless the user has said otherwise.

    Without it every rank starts one thread per core, and ranks that share a node spend their
    time waiting for one another: many times slower, not a little. Where there are more ranks
    than cores, one that waits gives its core away.
    """
    if not hasattr(os, "sched_getaffinity"):
        return
    sizes = (environ.get(variable, "") for variable in _NODE_SIZES)
    ranks = next((int(size) for size in sizes if size.isdecimal() and int(size)), 1)
    bound = len(os.sched_getaffinity(0))
    cores = os.cpu_count() or 1
    if ranks > cores:
        for variable, value in _YIELD.items():
            environ.setdefault(variable, value)
    # A rank that the launcher has bound to some cores has them for itself.
    threads = bound if bound < cores else max(1, cores // ranks)
    environ.setdefault("OMP_NUM_THREADS", str(threads))
    # As many cores as srun was asked for: they are this rank's, and its threads need not wander.
    if "SLURM_PROCID" in environ and environ["OMP_NUM_THREADS"] == str(bound) and bound < cores:
        environ.setdefault("OMP_PROC_BIND", "close")
        environ.setdefault("OMP_PLACES", "cores")
