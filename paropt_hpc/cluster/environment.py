"""What this installation has, what is missing, and how to get it."""

import os
import platform
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import NamedTuple

from paropt_hpc import CORES, __version__
from paropt_hpc.comm import Communicator, gpu_mpi, native
from paropt_hpc.errors import ConfigError, ParoptError
from paropt_hpc.kernels import backend, device
from paropt_hpc.kernels.backend import import_extension

__all__ = ["Fact", "describe"]

# Builds the extension modules anew; in a clone the package is named by a dot.
REINSTALL = "pip install --force-reinstall --no-deps --no-cache-dir paropt-hpc (in a clone: .)"

# Optional packages, the extra that brings each, and what it is for.
OPTIONAL = {
    "scikit-learn": ("data", "the digits data set"),
    "cupy": ("cuda", "training on the GPU"),
}
# What a package is also installed as.
_WHEELS = {"cupy": ("cupy-cuda13x", "cupy-cuda12x", "cupy-cuda11x")}


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
        _mpi_of_gpus(),
        _cuda(),
        _devices(),
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
    try:
        module, runs = backend.native_module(), backend.name()
    except ConfigError as error:
        return Fact("CPU kernels", str(error), False)
    if module is None:
        return Fact(
            "CPU kernels",
            "not built; the NumPy twins are used",
            False,
            f"install a C++ compiler, then: {REINSTALL}",
        )
    if runs == "reference":
        return Fact("CPU kernels", "the NumPy twins, as PAROPT_BACKEND says")
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


def _mpi_of_gpus() -> Fact:
    """Say how arrays on a GPU go to other ranks."""
    try:
        direct, (aware, reason) = gpu_mpi.through_mpi(), gpu_mpi.awareness()
    except ParoptError as error:
        return Fact("MPI and GPUs", str(error), False)
    except (ImportError, RuntimeError):
        return Fact("MPI and GPUs", "none without an MPI library", False)
    told = f"{'' if aware else 'not '}CUDA-aware ({reason})"
    way = "gives" if direct else "does not give"
    if direct != aware:
        told += f", but {gpu_mpi.VARIABLE} {way} it arrays on a GPU"
    elif not direct:
        told += "; arrays on a GPU go through pinned memory of the host"
    return Fact("MPI and GPUs", told)


def _cuda() -> Fact:
    if _module("_cuda") is None:
        return Fact(
            "CUDA kernels",
            "not built",
            False,
            f"with nvcc on PATH or CUDA_HOME set: {REINSTALL}",
        )
    return Fact("CUDA kernels", "native")


def _devices() -> Fact:
    """List the GPUs, or say in a line why there is none."""
    try:
        found = device.devices()
    except RuntimeError as error:  # a driver that is there and does not work
        return Fact("GPU devices", str(error).splitlines()[0], False)
    if not found:
        return Fact("GPU devices", f"0; {device.why_none()}", False)
    lines = [
        f"{number}: {one.name}, compute capability {'.'.join(map(str, one.capability))}, "
        f"{one.memory / 2**30:.1f} GiB"
        for number, one in enumerate(found)
    ]
    return Fact("GPU devices", "\n".join([str(len(found)), *lines]))


def _optional(name: str) -> Fact:
    for wheel in (name, *_WHEELS.get(name, ())):
        with suppress(PackageNotFoundError):
            return Fact(name, version(wheel))
    extra, purpose = OPTIONAL[name]
    remedy = f"for {purpose}: pip install 'paropt-hpc[{extra}]'"
    return Fact(name, "not installed", False, remedy)


def _module(name: str) -> ModuleType | None:
    try:
        return import_extension(name)
    except ImportError:
        return None
