"""Whether the MPI library reads and writes the memory of a GPU, and which GPU is this rank's."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from paropt_hpc.comm import native
from paropt_hpc.errors import ConfigError

if TYPE_CHECKING:
    from paropt_hpc.comm.communicator import Communicator

__all__ = ["VARIABLE", "Awareness", "awareness", "local_device", "through_mpi"]

VARIABLE = "PAROPT_GPU_MPI"

# Libraries that can do it only where a variable says so, by a word of their name.
_SWITCHES = {"CRAY": "MPICH_GPU_SUPPORT_ENABLED", "MVAPICH": "MV2_USE_CUDA"}
_SWITCHES |= {"Intel": "I_MPI_OFFLOAD"}
_QUERY = "MPIX_Query_cuda_support"


class Awareness(NamedTuple):
    """Whether the MPI library takes addresses of a GPU's memory, and who says so."""

    aware: bool
    reason: str


@functools.cache
def awareness() -> Awareness:
    """Ask the MPI library that is loaded; False where it does not say. Starts MPI."""
    name = native.library()
    switch = next((v for word, v in _SWITCHES.items() if word.lower() in name.lower()), None)
    if switch is not None:
        value = os.environ.get(switch, "")
        told = f"{switch} is {value}" if value else f"{switch} is not set"
        return Awareness(value not in ("", "0"), told)
    path = _loaded_library()
    answer = None if path is None else _query(path)
    if answer is None:
        return Awareness(False, f"it has no {_QUERY}")
    return Awareness(answer != 0, f"{_QUERY} is {answer}")


def through_mpi(environ: Mapping[str, str] | None = None) -> bool:
    """Say whether MPI is to be given arrays on a GPU: as PAROPT_GPU_MPI says, else if it can.

    Raises
    ------
    ConfigError
        PAROPT_GPU_MPI is none of 0, 1 and auto.
    """
    asked = (os.environ if environ is None else environ).get(VARIABLE, "") or "auto"
    if asked not in ("0", "1", "auto"):
        raise ConfigError(f"{VARIABLE} must be 0, 1 or auto, got {asked!r}; or unset it")
    return awareness().aware if asked == "auto" else asked == "1"


def local_device(comm: Communicator, count: int) -> int:
    """Return the device of this rank among the `count` that it sees; local.

    By the rank's place among the ranks that share its memory: under an ``mpiexec`` inside a Slurm
    job, ``SLURM_LOCALID`` is 0 for each of them. Only where the library sees no neighbours, as Open
    MPI under some of Slurm's PMIx plugins, it is all there is to go by.
    """
    place = comm.node_rank
    if comm.node_size == 1 and os.environ.get("SLURM_LOCALID", "").isdecimal():
        place = int(os.environ["SLURM_LOCALID"])
    return place % count


def _loaded_library() -> str | None:
    """Return the file of the MPI library in this process; None where that cannot be seen."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    files = {line.split(maxsplit=5)[5] for line in maps.splitlines() if "/libmpi" in line}
    exact = sorted(file for file in files if Path(file).name.startswith("libmpi.so"))
    return exact[0] if exact else None


def _query(path: str) -> int | None:
    """Call the library's own query; None where it has none. Loads nothing that is not loaded."""
    try:
        library = ctypes.CDLL(path, mode=os.RTLD_LAZY | os.RTLD_NOLOAD)
        query = getattr(library, _QUERY)
    except (OSError, AttributeError):
        return None
    query.argtypes, query.restype = [], ctypes.c_int
    return int(query())
