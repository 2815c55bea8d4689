"""Which array library an array belongs to: NumPy, or CuPy on a GPU."""

from importlib import import_module
from typing import Any

__all__ = ["Array", "namespace"]

# NumPy and CuPy arrays share the operations used here, but no common type.
Array = Any


def namespace(array: Array) -> Any:
    """Return the module, ``numpy`` or ``cupy``, whose functions work on `array`."""
    return import_module(type(array).__module__.partition(".")[0])
