"""A GPU that is none, for tests of what goes on around the kernels.

`install` puts a module ``cupy`` in place whose arrays are NumPy's in a wrapper. What it is for:

- An array never becomes one of the host by itself: whoever mixes the two, or passes one to NumPy,
  gets a TypeError, also where CuPy would copy without a word.
- Copies on a stream are made when somebody waits for it, and not before: who does not wait reads
  what was there before.
- The kernels are those of the reference.
"""

import ctypes
import sys
from collections import defaultdict
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from paropt_hpc.kernels import device, memory, reference

GPUS = 2


def on_host(pointer, shape, dtype):
    """Return what is at an address as an array of NumPy's."""
    nbytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
    raw = (ctypes.c_uint8 * nbytes).from_address(pointer) if nbytes else bytearray()
    return np.frombuffer(raw, np.uint8).view(dtype).reshape(shape)


def unwrap(given):
    """Return arguments for NumPy; an array of the host has no place among those of a GPU."""
    if isinstance(given, ndarray):
        return given._host
    if isinstance(given, np.ndarray) and given.ndim:
        raise TypeError("an array of the host was passed to one on the GPU")
    if isinstance(given, tuple | list):
        return type(given)(unwrap(one) for one in given)
    if isinstance(given, dict):
        return {name: unwrap(one) for name, one in given.items()}
    return given


def wrap(result):
    if isinstance(result, tuple | list):
        return type(result)(wrap(one) for one in result)
    # As with CuPy, what sums up is an array without dimensions: to read it copies it.
    return ndarray(np.asarray(result)) if isinstance(result, np.ndarray | np.generic) else result


def lifted(function):
    def call(*arguments, **options):
        return wrap(function(*unwrap(arguments), **unwrap(options)))

    return call


class ndarray:
    """An array on the GPU."""

    __module__ = "cupy"
    __array_ufunc__ = None

    def __init__(self, host):
        self._host = host

    def __array__(self, *_, **__):
        raise TypeError("Implicit conversion to a NumPy array is not allowed.")

    @property
    def __cuda_array_interface__(self):
        host = self._host
        strides = None if host.flags.c_contiguous else host.strides
        told = {"shape": host.shape, "typestr": host.dtype.str, "version": 3, "strides": strides}
        return told | {"data": (host.ctypes.data, not host.flags.writeable), "stream": 1}

    def get(self):
        return self._host.copy()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        found = getattr(self._host, name)
        return lifted(found) if callable(found) else wrap(found)

    def __getitem__(self, key):
        return wrap(self._host[unwrap(key)])

    def __setitem__(self, key, value):
        self._host[unwrap(key)] = unwrap(value)

    def __len__(self):
        return len(self._host)

    def __float__(self):
        return float(self._host)

    def __int__(self):
        return int(self._host)

    def __bool__(self):
        return bool(self._host)


def _operator(name):
    def apply(self, *others):
        # NumPy's own would ask the other first.
        result = getattr(self._host, name)(*map(unwrap, others))
        if name.startswith("__i") and name != "__invert__":
            assert result is self._host
            return self
        return wrap(result)

    return apply


for _name in ("add", "sub", "mul", "truediv", "pow", "mod", "matmul", "and", "or", "xor"):
    for _kind in ("", "r", "i"):
        setattr(ndarray, f"__{_kind}{_name}__", _operator(f"__{_kind}{_name}__"))
for _name in ("neg", "abs", "invert", "lt", "le", "gt", "ge", "eq", "ne"):
    setattr(ndarray, f"__{_name}__", _operator(f"__{_name}__"))
ndarray.__hash__ = None


class Cuda:
    """The module ``_cuda``, without kernels."""

    def __init__(self):
        self.memory, self.queues, self.log = {}, defaultdict(list), []
        self.device, self.streams = 0, 100

    PinnedMemory = staticmethod(bytearray)

    def device_count(self):
        return GPUS

    def device_info(self, number):
        return "fake", 9, 0, 1 << 30, f"{self.device_uuid + number:032x}"

    device_uuid = 0

    def current_device(self):
        return self.device

    def set_device(self, number):
        self.device = number

    def device_of(self, address):
        return self.device

    def allocate(self, nbytes, number):
        made = np.empty(nbytes, np.uint8)
        self.memory[made.ctypes.data] = made
        return made.ctypes.data

    def deallocate(self, address):
        del self.memory[address]

    def create_stream(self, number):
        self.streams += 1
        return self.streams

    def destroy_stream(self, stream):
        self.synchronize(stream)

    def synchronize(self, stream):
        queue = self.queues.pop(stream, [])
        for move in queue:
            ctypes.memmove(*move)

    def begin_copy(self, to, address, nbytes, stream):
        self.log.append(nbytes)
        self.queues[stream].append((to, address, nbytes))

    def copy_to_device(self, to, array, stream):
        self.log.append(array.nbytes)
        ctypes.memmove(to, array.ctypes.data, array.nbytes)

    def copy_to_host(self, array, address, stream):
        self.log.append(array.nbytes)
        ctypes.memmove(array.ctypes.data, address, array.nbytes)

    def copy(self, to, address, nbytes, stream):
        ctypes.memmove(to, address, nbytes)

    def fill(self, to, value, nbytes, stream):
        ctypes.memset(to, value, nbytes)


class Kernels:
    """The kernels of the reference, for arrays on the GPU."""

    _as_bytes = ("encode_message", "encode_full_message")

    def __getattr__(self, name):
        kernel = getattr(reference, name)

        def call(*arguments):
            given = [self._host(name, one) for one in arguments]
            if name == "scatter_add":
                assert (np.diff(given[1].astype(np.int64)) > 0).all(), "indices must ascend"
            return wrap_arrays(kernel(*given))

        return call

    def _host(self, name, given):
        if isinstance(given, np.ndarray) and given.dtype != np.uint64:  # the words of a hint
            raise TypeError(f"{name} got an array of the host")
        if not device.is_device(given):
            return given
        view = device.view(given)
        host = on_host(view.pointer, view.shape, view.dtype)
        plain = name in self._as_bytes and host.dtype.kind == "f"
        return host.view(np.uint8) if plain else host


def wrap_arrays(result):
    if isinstance(result, tuple):
        return tuple(ndarray(one) if isinstance(one, np.ndarray) else one for one in result)
    return result


class Nccl(SimpleNamespace):
    """All-reduce by MPI, in place of NCCL's."""

    available = True
    NCCL_SUM, NCCL_MIN, NCCL_MAX = "SUM", "MIN", "MAX"
    NCCL_FLOAT32, NCCL_FLOAT64, NCCL_INT32, NCCL_INT64 = "f4", "f8", "i4", "i8"

    @staticmethod
    def get_unique_id():
        return ("name", 1)

    class NcclCommunicator:
        def __init__(self, size, name, rank):
            assert name == ("name", 1)

        def allReduce(self, source, target, count, kind, op, stream):
            from mpi4py import MPI

            values = on_host(target, (count,), kind)
            MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, values, getattr(MPI, op))


class Device:
    used = None

    def __init__(self, number):
        self.number = number

    def use(self):
        Device.used = self.number

    def __enter__(self):
        return self

    def __exit__(self, *_):
        return None


def _proxy(of):
    class Proxy:
        def __getattr__(self, name):
            found = getattr(of, name)
            if isinstance(found, ModuleType):
                return _proxy(found)
            if isinstance(found, np.ufunc):
                function = lifted(found)
                function.at = lifted(found.at)
                return function
            return found if isinstance(found, type) or not callable(found) else lifted(found)

    return Proxy()


def _module():
    cupy = ModuleType("cupy")
    names = _proxy(np)
    cupy.__getattr__ = lambda name: getattr(names, name)
    cupy.ndarray = ndarray
    cupy.asnumpy = lambda array: array.get() if isinstance(array, ndarray) else np.asarray(array)
    cupy.asarray = _asarray
    cupy.array = lambda given, dtype=None: _asarray(given, dtype).copy()
    cupy.cuda = SimpleNamespace(Device=Device)
    return cupy


def _asarray(given, dtype=None):
    if isinstance(given, ndarray):
        return given if dtype is None else given.astype(dtype)
    if device.is_device(given):
        view = device.view(given)
        return ndarray(on_host(view.pointer, view.shape, view.dtype))
    return ndarray(np.array(given, dtype))


def install(monkeypatch, uuid=0):
    """Put the GPU in place for a test; return its module ``cupy``, with ``fake`` for `Cuda`."""
    cupy, cuda = _module(), Cuda()
    cuda.device_uuid = uuid
    cupy.fake = cuda
    monkeypatch.delenv("PAROPT_BACKEND", raising=False)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    monkeypatch.setitem(sys.modules, "cupy.cuda.nccl", Nccl())
    monkeypatch.setattr(device, "cuda_module", lambda: cuda)
    monkeypatch.setattr(memory._Device, "kernels", lambda self: Kernels())
    return cupy


def real_or_fake(kind, monkeypatch):
    """Return the module of arrays that a test is to use: CuPy where there is a GPU, or this one."""
    if kind == "fake":
        return install(monkeypatch)
    if device.count() == 0:
        pytest.skip(device.why_none())
    return pytest.importorskip("cupy", reason="CuPy is not installed")
