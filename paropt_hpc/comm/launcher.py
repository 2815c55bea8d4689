"""The communicator of all ranks, and the guard against the trap that every rank is rank 0.

A process that cannot load MPI, or loads another one than the launcher's, sees itself alone. Four
such processes would train four times, and write the same files. The environment that a launcher
leaves behind tells them that they are not alone.
"""

import os
import sys
from collections.abc import Mapping
from typing import Any

from paropt_hpc.comm import native
from paropt_hpc.comm.communicator import Communicator, SerialCommunicator
from paropt_hpc.errors import MPIMismatchError, MPINotFoundError, on_every_rank

__all__ = ["abort", "finish", "launched_rank", "launched_size", "srun_plugin", "world"]

# What launchers tell the processes they start: how many there are. The nearest one first: an
# mpiexec inside a Slurm job leaves Slurm's own variables in place.
_SIZES = (
    "OMPI_COMM_WORLD_SIZE",  # Open MPI
    "PMI_SIZE",  # MPICH, Intel MPI, Cray MPICH
    "MV2_COMM_WORLD_SIZE",  # MVAPICH2
    "FLUX_JOB_SIZE",  # Flux
    "SLURM_STEP_NUM_TASKS",  # srun
)
# The plugin of `srun --mpi=` that each MPI library understands, by the start of its name.
_PLUGINS = {"MPICH": "pmi2", "Intel": "pmi2", "MVAPICH": "pmi2", "Open MPI": "pmix"}
# Which one it is: from rank 1 on that proves several. Not SLURM_NTASKS: a batch script, which
# runs alone, has it too, and is process 0.
_RANKS = ("PMIX_RANK", "SLURM_PROCID")
# Which one it is among those of the launcher itself, the nearest one first.
_OWN_RANKS = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK", "FLUX_TASK_RANK", *_RANKS)


def world() -> Communicator:
    """Return the communicator of all ranks; starts MPI.

    Collective over all ranks, each call makes a new duplicate. Without an MPI library it is
    a :class:`SerialCommunicator`, unless a launcher has started several processes.

    Raises
    ------
    MPINotFoundError
        Several processes were started, but there is no MPI library that they could use.
    MPIMismatchError
        Several processes were started, but each sees itself alone: the launcher belongs to
        another MPI. Or ``paropt_hpc._mpi`` was built against another one.
    """
    size, variable = launched_size(os.environ)
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        # mpi4py's wheels say RuntimeError where there is no libmpi.
        if isinstance(error, RuntimeError) and "cannot load MPI library" not in str(error):
            raise
        if size > 1:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            missing = MPINotFoundError(
                f"{variable} says that at least {size} processes were started, but mpi4py has "
                f"no MPI library ({reason}); install one (pip install mpich, or load your "
                f"cluster's MPI module), or unset {variable} to run each process alone"
            )
            raise on_every_rank(missing) from error
        return SerialCommunicator()
    if MPI.COMM_WORLD.Get_size() == 1 and size > 1:
        mismatch = MPIMismatchError(
            f"{variable} says that at least {size} processes were started, but {native.library()} "
            "sees one: the launcher belongs to another MPI; use that library's own mpiexec, or "
            f"srun --mpi={srun_plugin() or 'pmi2 or pmix'}, or unset {variable} to run each "
            "process alone"
        )
        raise on_every_rank(mismatch)
    return Communicator(MPI.COMM_WORLD)


def launched_size(environ: Mapping[str, str]) -> tuple[int, str]:
    """Tell how many processes a launcher has started, at least, and which variable says so.

    Local; does not need MPI.

    Parameters
    ----------
    environ : mapping
        As ``os.environ``.

    Returns
    -------
    size : int
        1 if there is no sign of a launcher.
    variable : str
        Empty then.
    """
    for variable in _SIZES:
        if environ.get(variable, "").isdecimal():
            return int(environ[variable]), variable
    for variable in _RANKS:
        if environ.get(variable, "").isdecimal():
            return int(environ[variable]) + 1, variable
    return 1, ""


def launched_rank(environ: Mapping[str, str]) -> int:
    """Tell which of the launcher's processes this is; 0 if there is no sign of a launcher.

    Local; does not need MPI. For what must happen once before MPI has started.
    """
    ranks = (environ.get(variable, "") for variable in _OWN_RANKS)
    return next((int(rank) for rank in ranks if rank.isdecimal()), 0)


def srun_plugin() -> str | None:
    """Name the plugin of ``srun --mpi=`` that fits the MPI library; None for an unknown one.

    Local.
    """
    try:
        library = native.library()
    except (ImportError, RuntimeError):  # there is none
        return None
    return next((plugin for start, plugin in _PLUGINS.items() if start in library), None)


def abort(status: int) -> None:
    """End all ranks at once, if MPI is running; local."""
    mpi = _running()
    if mpi is not None:
        mpi.COMM_WORLD.Abort(status)


def finish() -> bool:
    """End MPI, if it is running, so that the exit status of every rank is its own; collective.

    Returns whether it was running.

    ``python -m mpi4py`` otherwise answers a status other than 0 with ``MPI_Abort``, which kills
    the ranks that are a little later, and the launcher then reports the kill.
    """
    mpi = _running()
    if mpi is not None:
        mpi.Finalize()
    return mpi is not None


def _running() -> Any:
    """Return mpi4py's module while MPI is running, or None."""
    mpi = sys.modules.get("mpi4py.MPI")
    return mpi if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized() else None
