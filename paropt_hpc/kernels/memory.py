"""Where arrays live, on the host or on a GPU, and what that means for a kernel's arguments.

Every kernel asks `memory_of` its first array and takes all else from there: the checks, memory for
results, and the module whose functions do the work.
"""

import os
from types import ModuleType
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels import backend, checks, device

__all__ = ["HOST", "Memory", "memory_of"]


class Memory(Protocol):
    """What a kernel needs of the place where its arrays are."""

    def check_array(
        self,
        name: str,
        array: Any,
        dtypes: tuple[np.dtype[Any], ...],
        *,
        writable: bool = False,
        length: int | None = None,
    ) -> Any:
        """Raise as `checks.check_array`; return what has the dtype and size of the array."""

    def check_separate(self, name: str, array: Any, other: str, array2: Any) -> None:
        """Raise ValueError if two arrays share memory."""

    def to_bytes(self, name: str, data: Any) -> Any:
        """Return encoded bytes as an array of this memory."""

    def bytes_of(self, array: Any) -> Any:
        """Return the same memory as bytes, or what the kernels take for these."""

    def address(self, array: Any) -> int:
        """Return the address of the first entry."""

    def empty(self, size: int, dtype: Any) -> Any:
        """Return a new vector."""

    def zeros(self, size: int, dtype: Any) -> Any:
        """Return a new vector of zeros."""

    def clear(self, array: Any) -> None:
        """Set all entries of a contiguous array to 0."""

    def bring(self, array: Any) -> Any:
        """Return a vector of the host as one of this memory."""

    def kernels(self) -> Any:
        """Return the module whose functions do the work."""


class _Host:
    """Memory of the host: NumPy's arrays."""

    def check_array(
        self,
        name: str,
        array: NDArray[Any],
        dtypes: tuple[np.dtype[Any], ...],
        *,
        writable: bool = False,
        length: int | None = None,
    ) -> NDArray[Any]:
        checks.check_array(name, array, dtypes, writable=writable, length=length)
        return array

    def check_separate(self, name: str, array: Any, other: str, array2: Any) -> None:
        checks.check_separate(name, array, other, array2)

    def to_bytes(self, name: str, data: Any) -> NDArray[np.uint8]:
        return checks.to_bytes(name, data)

    def bytes_of(self, array: NDArray[Any]) -> NDArray[np.uint8]:
        return array.view(np.uint8)

    def address(self, array: NDArray[Any]) -> int:
        return array.ctypes.data

    def empty(self, size: int, dtype: Any) -> NDArray[Any]:
        return np.empty(size, dtype)

    def zeros(self, size: int, dtype: Any) -> NDArray[Any]:
        return np.zeros(size, dtype)

    def clear(self, array: NDArray[Any]) -> None:
        array[...] = 0

    def bring(self, array: NDArray[Any]) -> NDArray[Any]:
        return array

    def kernels(self) -> ModuleType:
        return backend.implementation(for_arrays=True)


class _Device:
    """Memory of a GPU: arrays of the library that one of them is of."""

    def __init__(self, like: Any) -> None:
        self._like = like

    def check_array(
        self,
        name: str,
        array: Any,
        dtypes: tuple[np.dtype[Any], ...],
        *,
        writable: bool = False,
        length: int | None = None,
    ) -> device.View:
        if not device.is_device(array):
            raise TypeError(
                f"{name} must be on the GPU as the other arrays are, got {type(array).__name__}"
            )
        view = device.view(array)
        if view.dtype not in dtypes:
            wanted = " or ".join(str(dtype) for dtype in dtypes)
            raise TypeError(f"{name} must be {wanted}, got {view.dtype}; convert it with astype")
        if len(view.shape) != 1:
            raise ValueError(
                f"{name} must have one dimension, got shape {view.shape}; pass {name}.reshape(-1)"
            )
        if not view.contiguous:
            raise ValueError(f"{name} must be contiguous, got strides; pass a copy")
        # What is encoded is read and written by words.
        alignment = 8 if view.dtype == np.uint8 else view.dtype.alignment
        if view.pointer % alignment:
            raise ValueError(f"{name} must be aligned to {alignment} bytes; pass a copy")
        if writable and not view.writable:
            raise ValueError(f"{name} must be writable, got a read-only array; pass a copy")
        if length is not None and view.size != length:
            raise ValueError(f"{name} must have {length} entries, got {view.size}")
        return view

    def check_separate(self, name: str, array: Any, other: str, array2: Any) -> None:
        first, second = (_extent(device.view(a)) for a in (array, array2))
        if first[0] < second[1] and second[0] < first[1]:
            raise ValueError(f"{name} and {other} must not overlap; pass a copy")

    def to_bytes(self, name: str, data: Any) -> Any:
        if device.is_device(data):
            self.check_array(name, data, (np.dtype(np.uint8),))
            return data
        return device.as_device(checks.to_bytes(name, data))

    def bytes_of(self, array: Any) -> Any:
        return array

    def address(self, array: Any) -> int:
        return device.view(array).pointer

    def empty(self, size: int, dtype: Any) -> Any:
        return device.empty(size, dtype, self._like)

    def zeros(self, size: int, dtype: Any) -> Any:
        array = self.empty(size, dtype)
        device.clear(array)
        return array

    def clear(self, array: Any) -> None:
        device.clear(array)

    def bring(self, array: Any) -> Any:
        return array if device.is_device(array) else device.as_device(array)

    def kernels(self) -> ModuleType:
        from paropt_hpc.kernels import cuda

        forced = os.environ.get("PAROPT_BACKEND", "")
        if forced not in ("", "cuda"):
            raise ConfigError(
                f"PAROPT_BACKEND is {forced}, but the arrays are on the GPU; "
                "unset it, or copy them to the host"
            )
        device.required()
        return cuda


def _extent(view: device.View) -> tuple[int, int]:
    return view.pointer, view.pointer + view.size * view.dtype.itemsize


HOST = _Host()


def memory_of(array: Any) -> Memory:
    """Return the memory that an array is in; that of the host for whatever is no array."""
    if type(array) is np.ndarray or not device.is_device(array):
        return HOST
    return _Device(array)
