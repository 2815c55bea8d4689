"""Load ``paropt_hpc._mpi`` and make sure that it speaks to the MPI that mpi4py has started.

A handle of one MPI library given to another one crashes the process. The module is therefore
asked first which MPI it was compiled against, which needs no call into MPI, and then whether
MPI is running as it sees it; only then does it get a communicator.
"""

import functools
import importlib.util
import os
from types import ModuleType

import ml_dtypes
import numpy as np

from paropt_hpc.errors import ConfigError, MPIMismatchError
from paropt_hpc.kernels.backend import import_extension

__all__ = ["library", "load", "select"]

_MODULE = "paropt_hpc._mpi"
_BACKENDS = ("auto", "native", "reference")


def select(backend: str | None = None) -> ModuleType | None:
    """Choose who carries out the collectives: the native module or the Python twin.

    Local, but every rank must come to the same choice.

    Parameters
    ----------
    backend : {"auto", "native", "reference"}, optional
        Default: the environment variable ``PAROPT_BACKEND``, else ``"auto"``, which takes the
        native module where it was built. ``cuda`` in that variable is a word for the kernels.

    Returns
    -------
    module or None
        ``paropt_hpc._mpi``; None stands for the twin.

    Raises
    ------
    ConfigError
        Unknown backend, or ``"native"`` where the module was not built.
    MPIMismatchError
        The module was built against another MPI than mpi4py has loaded.
    """
    chosen = backend or os.environ.get("PAROPT_BACKEND") or "auto"
    if backend is None and chosen == "cuda":
        chosen = "auto"
    if chosen not in _BACKENDS:
        source = "PAROPT_BACKEND" if backend is None else "backend"
        raise ConfigError(f"{source} must be one of {', '.join(_BACKENDS)}, got {chosen!r}")
    module = None if chosen == "reference" else load()
    if chosen == "native" and module is None:
        raise ConfigError(
            f"backend 'native' asked for, but {_MODULE} was not built; reinstall with "
            "PAROPT_BUILD_MPI=1 and an mpicxx on PATH, or set PAROPT_BACKEND=reference"
        )
    return module


@functools.cache
def load() -> ModuleType | None:
    """Return ``paropt_hpc._mpi``, or None where it was not built; starts MPI.

    Raises
    ------
    MPIMismatchError
        The module was built against another MPI than mpi4py has loaded, or that other MPI
        cannot be loaded at all.
    """
    from mpi4py import MPI

    if importlib.util.find_spec(_MODULE) is None:
        return None
    try:
        module = import_extension("_mpi")
    except ImportError as error:
        raise _mismatch(f"an MPI that cannot be loaded ({error})") from error
    built = module.built_with()
    # The order matters: a module of another family must not be asked anything about MPI.
    if _family(built) != _loaded_family() or (
        MPI.Is_initialized() and not module.mpi_initialized()
    ):
        raise _mismatch(built)
    module.set_bfloat16(np.dtype(ml_dtypes.bfloat16))
    return module


def library() -> str:
    """Name the MPI library that mpi4py has loaded, with its version; starts MPI."""
    from mpi4py import MPI

    first_line = MPI.Get_library_version().splitlines()[0]
    words = first_line.replace("\0", "").split(",")[0].split()
    return " ".join(word for word in words if word != "Version:")


def _mismatch(built: str) -> MPIMismatchError:
    return MPIMismatchError(
        f"{_MODULE} was built with {built}, but mpi4py has loaded {library()}; rebuild with "
        "MPICXX=<mpicxx of that library> pip install --force-reinstall --no-deps --no-cache-dir "
        "paropt-hpc (in a clone: .), or set PAROPT_BACKEND=reference to do without the native "
        "collectives"
    )


def _loaded_family() -> str:
    from mpi4py import MPI

    # (-1, -1) unless mpi4py itself was built against the standard ABI of MPI 5.
    return "MPI ABI" if MPI.Get_abi_version()[0] > 0 else _family(library())


def _family(name: str) -> str:
    """Reduce a library's name to the binary interface it has; unknown ones stay themselves."""
    lower = name.lower()
    if "mpi abi" in lower:
        return "MPI ABI"
    if "open mpi" in lower or "spectrum mpi" in lower:
        return "Open MPI"
    # Intel MPI, MVAPICH and Cray MPICH share MPICH's binary interface.
    if any(vendor in lower for vendor in ("mpich", "intel(r) mpi", "mvapich")):
        return "MPICH"
    return name
