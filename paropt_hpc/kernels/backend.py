"""Which implementation of the kernels runs: native code, or its NumPy twin.

Two variables of the environment decide:

``PAROPT_BACKEND``
    ``native`` or ``reference`` forces one; unset takes native code where it was built.
``PAROPT_ISA``
    ``baseline``, ``avx2`` or ``avx512`` forces the instruction set of the native code; unset
    takes the best that the processor has. Read once, at the first kernel call.
"""

import functools
import os
from types import ModuleType

from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels import reference

__all__ = ["BACKENDS", "ISAS", "implementation", "name", "native_module"]

BACKENDS = ("native", "reference")
ISAS = ("baseline", "avx2", "avx512")


def implementation() -> ModuleType:
    """Return the module whose functions do the work: ``_native`` or ``reference``.

    Raises
    ------
    ConfigError
        If PAROPT_BACKEND or PAROPT_ISA has an unknown value or one that cannot be had here.
    """
    forced = os.environ.get("PAROPT_BACKEND", "")
    if forced not in ("", *BACKENDS):
        raise ConfigError(
            f"PAROPT_BACKEND must be native or reference, got {forced!r}; or unset it"
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


@functools.cache
def native_module() -> ModuleType | None:
    """Return the native module with PAROPT_ISA applied, or None if it was not built."""
    try:
        from paropt_hpc import _native
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
