"""Arrays on a GPU: what is known of them, memory for them, copies of them.

Any object with ``__cuda_array_interface__`` is such an array: those of CuPy, PyTorch and Numba are,
and so is `DeviceArray`, for those who have none of these.
"""

import functools
import sys
import threading
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from paropt_hpc.errors import ConfigError

__all__ = [
    "Device",
    "DeviceArray",
    "Stream",
    "View",
    "array_module",
    "as_device",
    "as_host",
    "bring",
    "clear",
    "copy",
    "count",
    "cuda_module",
    "cupy",
    "devices",
    "divide",
    "empty",
    "is_device",
    "nccl",
    "pinned",
    "put",
    "required",
    "stream_of",
    "use",
    "vector",
    "view",
    "why_none",
    "workspace",
]

_BFLOAT16 = np.dtype(ml_dtypes.bfloat16)


@functools.cache
def cuda_module() -> ModuleType | None:
    """Return the module of CUDA kernels, or None if it was not built."""
    try:
        from paropt_hpc import _cuda
    except ImportError:
        return None
    return _cuda


def count() -> int:
    """Return how many GPUs this process can use; 0 where the kernels were not built."""
    module = cuda_module()
    return 0 if module is None else int(module.device_count())


class Device(NamedTuple):
    """A GPU that this process can use."""

    name: str
    #: compute capability: major and minor number
    capability: tuple[int, int]
    #: bytes of its memory
    memory: int
    #: which no other GPU has
    uuid: str


def devices() -> list[Device]:
    """Return the GPUs that this process can use, in the order of their numbers."""
    found = []
    for number in range(count()):
        name, major, minor, memory, uuid = required().device_info(number)
        found.append(Device(name, (major, minor), memory, uuid))
    return found


def why_none() -> str:
    """Say in a line why no GPU can be used, and what helps; empty where one can."""
    module = cuda_module()
    if module is None:
        return (
            "the CUDA kernels were not built; put nvcc on PATH or set CUDA_HOME, "
            "and reinstall paropt-hpc"
        )
    if module.device_count() > 0:
        return ""
    reason = module.why_no_device()
    return f"no GPU can be used here: the CUDA runtime counts 0 devices ({reason or 'none'})"


def required() -> ModuleType:
    """Return the module of CUDA kernels, or raise ConfigError if there is none or no GPU."""
    module = cuda_module()
    if module is None or module.device_count() == 0:
        raise ConfigError(why_none())
    return module


def cupy() -> Any:
    """Import CuPy: the library of arrays for what is more than a kernel.

    Raises
    ------
    ConfigError
        There is no GPU, or CuPy cannot be imported.
    """
    required()
    try:
        return import_module("cupy")
    except ImportError as error:
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(
            f"CuPy cannot be imported ({reason}); pip install 'paropt-hpc[cuda]'"
        ) from None


def nccl() -> Any:
    """Import CuPy's module of NCCL; its ``available`` tells whether the library is there."""
    cupy()
    return import_module("cupy.cuda.nccl")


def use(number: int) -> None:
    """Make a GPU the current one of this thread, here and for CuPy."""
    required().set_device(number)
    cupy().cuda.Device(number).use()


def array_module(array: Any) -> Any:
    """Return the module, ``numpy`` or ``cupy``, whose functions work on an array."""
    return sys.modules[type(array).__module__.partition(".")[0]]  # loaded, or there were no array


class View(NamedTuple):
    """What a kernel has to know of an array on a GPU."""

    #: address of the first entry
    pointer: int
    #: shape as the array says
    shape: tuple[int, ...]
    #: bfloat16 for entries of two bytes that are of no NumPy type
    dtype: np.dtype[Any]
    #: whether the entries follow one another
    contiguous: bool
    #: whether entries may be changed
    writable: bool
    #: handle of the stream that the array's owner works on; 0 for the default stream
    stream: int

    @property
    def size(self) -> int:
        """Number of entries."""
        return int(np.prod(self.shape, dtype=np.int64))


def is_device(array: Any) -> bool:
    """Say whether an object is an array on a GPU."""
    return not isinstance(array, np.ndarray) and hasattr(array, "__cuda_array_interface__")


def view(array: Any) -> View:
    """Return what `array` says of itself."""
    told = array.__cuda_array_interface__
    shape = tuple(map(int, told["shape"]))
    dtype = np.dtype(told["typestr"])
    if dtype == np.dtype("V2"):
        dtype = _BFLOAT16
    strides = told.get("strides")
    packed = strides is None or tuple(strides) == _packed(shape, dtype.itemsize)
    pointer, read_only = told["data"]
    return View(
        int(pointer or 0), shape, dtype, packed, not read_only, int(told.get("stream") or 0)
    )


def _packed(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    return tuple(itemsize * int(np.prod(shape[i + 1 :], dtype=np.int64)) for i in range(len(shape)))


class DeviceArray:
    """A vector in memory of a GPU, which is freed with it.

    Parameters
    ----------
    size : int
        Number of entries; they are anything at first.
    dtype : dtype
        Of the entries.
    device : int, optional
        Number of the GPU; default: the current one.

    Notes
    -----
    Others use the memory through ``__cuda_array_interface__``, for instance
    ``cupy.asarray(array)`` or ``torch.as_tensor(array)``, without a copy.
    """

    def __init__(self, size: int, dtype: Any, device: int | None = None) -> None:
        self.dtype = np.dtype(dtype)
        self.size = size
        self._owner: Any = _Memory(size * self.dtype.itemsize, device)
        self._pointer = self._owner.pointer
        self._stream = 0

    @property
    def shape(self) -> tuple[int]:
        """Shape: one dimension."""
        return (self.size,)

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": (self.size,),
            "typestr": self.dtype.str,
            "data": (self._pointer, False),
            "version": 3,
            "strides": None,
            "stream": self._stream or None,
        }

    @property
    def number(self) -> int:
        """Number of the GPU."""
        return int(required().device_of(self._pointer))

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, part: slice) -> "DeviceArray":
        """Return neighbouring entries, which share this array's memory."""
        start, stop, step = part.indices(self.size)
        if step != 1:
            raise ValueError(f"entries must be neighbours, got a step of {step}")
        return self._sharing(start, max(stop - start, 0), self.dtype)

    def view(self, dtype: Any) -> "DeviceArray":
        """Return the same memory as entries of another dtype."""
        dtype = np.dtype(dtype)
        return self._sharing(0, self.size * self.dtype.itemsize // dtype.itemsize, dtype)

    def _sharing(self, start: int, size: int, dtype: np.dtype[Any]) -> "DeviceArray":
        array = DeviceArray.__new__(DeviceArray)
        array.dtype, array.size, array._owner = dtype, size, self._owner
        array._pointer = self._pointer + start * self.dtype.itemsize
        array._stream = self._stream
        return array


def vector(array: Any) -> DeviceArray:
    """Return a contiguous array on a GPU as a plain vector on the same memory."""
    v = view(array)
    shared = DeviceArray.__new__(DeviceArray)
    shared.dtype, shared.size, shared._owner, shared._pointer = v.dtype, v.size, array, v.pointer
    shared._stream = v.stream
    return shared


def divide(array: Any, number: float) -> None:
    """Divide an array on a GPU in place, by the operator of its library or of CuPy."""
    if not hasattr(type(array), "__itruediv__"):
        array = cupy().asarray(array)
    array /= number
    required().synchronize(view(array).stream)


class _Memory:
    """Memory that is freed with its last user."""

    def __init__(self, size: int, device: int | None) -> None:
        self._module, self.size = required(), size
        device = self._module.current_device() if device is None else device
        self.pointer: int = self._module.allocate(max(size, 1), device)

    def __del__(self) -> None:
        pointer = getattr(self, "pointer", 0)
        if pointer:
            self._module.deallocate(pointer)


def as_device(array: NDArray[Any], stream: int = 0) -> DeviceArray:
    """Copy a contiguous vector to the current GPU."""
    copy = DeviceArray(array.size, array.dtype)
    required().copy_to_device(copy._pointer, array.view(np.uint8), stream)
    return copy


def as_host(array: Any, out: NDArray[Any] | None = None) -> NDArray[Any]:
    """Copy a contiguous array on a GPU to the host, once the work on its stream is done."""
    v = view(array)
    if out is None:
        out = np.empty(v.shape, v.dtype)
    required().copy_to_host(out.reshape(-1).view(np.uint8), v.pointer, v.stream)
    return out


def bring(array: NDArray[Any], like: Any) -> Any:
    """Return a copy of a vector of the host, on the GPU and of the library of `like`."""
    copy = empty(array.size, array.dtype, like)
    put(np.ascontiguousarray(array), copy)
    return copy


def put(array: NDArray[Any], target: Any) -> None:
    """Copy a contiguous vector of the host into a contiguous array on a GPU, and wait for it."""
    v = view(target)
    required().copy_to_device(v.pointer, array.view(np.uint8), v.stream)


def copy(source: View, target: View) -> None:
    """Copy a contiguous array to another one on the same GPU, and wait for it."""
    nbytes = source.size * source.dtype.itemsize
    required().copy(target.pointer, source.pointer, nbytes, source.stream)
    required().synchronize(source.stream)


def clear(array: Any) -> None:
    """Set all entries of a contiguous array on a GPU to 0."""
    v = view(array)
    required().fill(v.pointer, 0, v.size * v.dtype.itemsize, v.stream)


def pinned(size: int, dtype: Any) -> NDArray[Any]:
    """Return a new vector on the host that copies to and from a GPU are fastest with."""
    dtype = np.dtype(dtype)
    memory = required().PinnedMemory(size * dtype.itemsize)
    return np.frombuffer(memory, np.uint8).view(dtype)


def empty(size: int, dtype: Any, like: Any) -> Any:
    """Return a new vector on the GPU, of the library that the array `like` is of."""
    library = type(like).__module__.partition(".")[0]
    dtype = np.dtype(dtype)
    if library == "cupy":
        return cupy().empty(size, dtype)
    if library == "torch":
        torch = import_module("torch")
        return torch.empty(size, dtype=getattr(torch, dtype.name), device=like.device)
    if library == "numba":
        return import_module("numba.cuda").device_array(size, dtype)
    pointer = view(like).pointer
    return DeviceArray(size, dtype, required().device_of(pointer) if pointer else None)


class Stream:
    """A stream of a GPU that waits for no other one; copies on it go on beside kernels."""

    def __init__(self, number: int) -> None:
        self._module = required()
        self._handle: int = self._module.create_stream(number)

    def copy(self, to: int, address: int, nbytes: int) -> None:
        """Begin a copy from or to pinned memory, behind what was begun before."""
        self._module.begin_copy(to, address, nbytes, self._handle)

    def wait(self) -> None:
        """Wait for all that was begun."""
        self._module.synchronize(self._handle)

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None:
            self._module.destroy_stream(handle)


def stream_of(*views: View) -> int:
    """Return the stream of the first array, behind what the others' streams do now."""
    streams = {v.stream for v in views if v.pointer}
    stream = next((v.stream for v in views if v.pointer), 0)
    for other in streams - {stream}:
        required().synchronize(other)
    return stream


class _Workspaces(threading.local):
    def __init__(self) -> None:
        self.kept: dict[tuple[int, int], _Memory] = {}


_workspaces = _Workspaces()


def workspace(size: int, near: View, stream: int) -> int:
    """Return the address of memory for one kernel, on the GPU where an array is.

    It stays with the calling thread, the GPU and the stream, since the next kernel there will need
    it: whoever asks again for the same gets the same memory.
    """
    module = required()
    key = (module.device_of(near.pointer) if near.pointer else module.current_device(), stream)
    memory = _workspaces.kept.get(key)
    if memory is None or memory.size < size:
        module.synchronize(stream)  # the kernels before may still be at work with the old one
        memory = _workspaces.kept[key] = _Memory(size, key[0])
    return memory.pointer
