"""Which implementation of the kernels runs: native code, or its NumPy twin.

Arrays on a GPU go to the CUDA kernels, see `paropt_hpc.kernels.memory`. For all others two
variables of the environment decide:

``PAROPT_BACKEND``
    ``native`` or ``reference`` forces one; unset takes native code where it was built. ``cuda``
    refuses arrays that are not on a GPU.
``PAROPT_ISA``
    ``baseline``, ``avx2`` or ``avx512`` forces the instruction set of the native code; unset
    takes the best that the processor has.

Both are read once, at the first kernel call: where the caches are cold, a look at the environment
takes longer than a small kernel does. ``implementation.cache_clear()`` has them read again.
"""

import functools
import importlib
import os
from types import ModuleType

from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels import reference

__all__ = ["BACKENDS", "ISAS", "implementation", "import_extension", "name", "native_module"]

BACKENDS = ("native", "reference", "cuda")
ISAS = ("baseline", "avx2", "avx512")


@functools.cache
def implementation(*, for_arrays: bool = False) -> ModuleType:
    """Return the module whose functions do the work: ``_native`` or ``reference``.

    With `for_arrays`, which are on the host, a backend of the GPU may not be forced.

    Raises
    ------
    ConfigError
        If PAROPT_BACKEND or PAROPT_ISA has an unknown value or one that cannot be had here.
    """
    forced = os.environ.get("PAROPT_BACKEND", "")
    if forced not in ("", *BACKENDS):
        raise ConfigError(
            f"PAROPT_BACKEND must be native, reference or cuda, got {forced!r}; or unset it"
        )
    if forced == "cuda" and for_arrays:
        raise ConfigError(
            "PAROPT_BACKEND is cuda, but the arrays are not on a GPU; unset it, or copy them there"
        )
    if forced == "reference":
        return reference
    native = native_module()
    if native is None and forced == "native":
        raise ConfigError(
            "PAROPT_BACKEND is native, but the native kernels were not built; "
            "unset it, or install a C++17 compiler and reinstall paropt-hpc"
        )
    return native or reference


def name() -> str:
    """Return ``native`` or ``reference``, whichever runs."""
    return "reference" if implementation() is reference else "native"


def import_extension(module: str) -> ModuleType:
    """Import ``paropt_hpc.<module>``, with OpenMP threads that sleep while they wait.

    By default they spin for a while, which takes the core from a rank that has work to do. OpenMP
    asks for its policy once, when the first extension module loads it; a user's own
    ``OMP_WAIT_POLICY`` holds. Other packages bring OpenMP libraries of their own, and do not see
    what is set here.
    """
    unset = "OMP_WAIT_POLICY" not in os.environ
    if unset:
        os.environ["OMP_WAIT_POLICY"] = "passive"
    try:
        return importlib.import_module(f"paropt_hpc.{module}")
    finally:
        if unset:
            del os.environ["OMP_WAIT_POLICY"]


@functools.cache
def native_module() -> ModuleType | None:
    """Return the native module with PAROPT_ISA applied, or None if it was not built."""
    try:
        _native = import_extension("_native")
    except ImportError:
        return None
    forced = os.environ.get("PAROPT_ISA", "")
    if forced not in ("", *ISAS):
        raise ConfigError(f"PAROPT_ISA must be one of {', '.join(ISAS)}, got {forced!r}")
    if forced and forced not in _native.isas():
        raise ConfigError(
            f"PAROPT_ISA is {forced}, but this processor has only {', '.join(_native.isas())}"
        )
    if forced:
        _native.set_isa(forced)
    return _native
