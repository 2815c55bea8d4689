"""What this installation has, what is missing, and how to get it."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import NamedTuple

from paropt_hpc import CORES, __version__
from paropt_hpc.comm import Communicator, native
from paropt_hpc.errors import ParoptError
from paropt_hpc.kernels.backend import import_extension

__all__ = ["Fact", "describe"]

# Builds the extension modules anew; in a clone the package is named by a dot.
REINSTALL = "pip install --force-reinstall --no-deps --no-cache-dir paropt-hpc (in a clone: .)"

# Optional packages, the extra that brings each, and what it is for.
OPTIONAL = {
    "scikit-learn": ("data", "the digits data set"),
    "cupy": ("cuda", "arrays on the GPU"),
}


class Fact(NamedTuple):
    """One line about the installation."""

    name: str
    value: str
    ok: bool = True
    remedy: str = ""  # how to get what is missing


def describe(comm: Communicator) -> list[Fact]:
    """Return what is installed and where the ranks are; collective, complete on rank 0."""
    hosts = comm.gather_texts(platform.node())
    return [
        Fact("paropt-hpc", f"{__version__}, Python {platform.python_version()}"),
        _ranks(comm, hosts),
        _cores(comm),
        _native(),
        _mpi_library(),
        _mpi_module(),
        _cuda(),
        *(_optional(name) for name in OPTIONAL),
    ]


def _ranks(comm: Communicator, hosts: list[str]) -> Fact:
    names = sorted(set(hosts), key=hosts.index)
    where = ", ".join(f"{name}: {hosts.count(name)}" for name in names[:8])
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return Fact("ranks", f"{comm.size} on {len(names)} node(s) ({where}{more})")


def _cores(comm: Communicator) -> Fact:
    cores = len(CORES)
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    asked = comm.node_size * (int(threads) if threads.isdecimal() else 1)
    remedy = ""
    if asked > cores:
        remedy = "more ranks times threads than cores: start fewer, or lower OMP_NUM_THREADS"
    return Fact("cores", f"{cores} for this rank, OMP_NUM_THREADS {threads}", not remedy, remedy)


def _native() -> Fact:
    module = _module("_native")
    if module is None:
        return Fact(
            "CPU kernels",
            "not built; the NumPy twins are used",
            False,
            f"install a C++ compiler, then: {REINSTALL}",
        )
    threads = module.openmp_threads()
    openmp = f"OpenMP, {threads} thread(s)" if threads else "without OpenMP"
    others = ", ".join(module.isas())
    return Fact("CPU kernels", f"native, {module.isa()} (of {others}), {openmp}")


def _mpi_library() -> Fact:
    try:
        import mpi4py.MPI  # noqa: F401
    except (ImportError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        return Fact(
            "MPI library",
            f"none can be loaded ({reason})",
            False,
            "pip install mpich, or load your cluster's MPI module and: "
            "pip install --no-binary=mpi4py --force-reinstall mpi4py",
        )
    return Fact("MPI library", f"{native.library()}, mpi4py {version('mpi4py')}")


def _mpi_module() -> Fact:
    try:
        module = native.load()
    except ParoptError as error:
        return Fact("MPI collectives", str(error), False)
    except (ImportError, RuntimeError):
        return Fact("MPI collectives", "none without an MPI library", False)
    if module is None:
        return Fact(
            "MPI collectives",
            "not built; the mpi4py twins are used",
            False,
            f"with an mpicxx on PATH, or named by MPICXX: {REINSTALL}",
        )
    return Fact("MPI collectives", f"native, built with {module.built_with()}")


def _cuda() -> Fact:
    module = _module("_cuda")
    if module is None:
        return Fact(
            "CUDA kernels",
            "not built",
            False,
            f"with nvcc on PATH or CUDA_HOME set: {REINSTALL}",
        )
    return Fact("CUDA kernels", f"native, {module.device_count()} device(s)")


def _optional(name: str) -> Fact:
    extra, purpose = OPTIONAL[name]
    try:
        return Fact(name, version(name))
    except PackageNotFoundError:
        remedy = f"for {purpose}: pip install 'paropt-hpc[{extra}]'"
        return Fact(name, "not installed", False, remedy)


def _module(name: str) -> ModuleType | None:
    try:
        return import_extension(name)
    except ImportError:
        return None
