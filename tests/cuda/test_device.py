"""Arrays on a GPU: what is read of their interface, and memory for them."""

import gc
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels import device, topk
from paropt_hpc.kernels.device import DeviceArray, as_device, as_host, view


class Array:
    """An array that says of itself what it is told to."""

    def __init__(self, **told):
        usual = {"shape": (4,), "typestr": "<f4", "data": (1024, False), "version": 3}
        self.__cuda_array_interface__ = usual | told


def test_what_an_array_says_of_itself():
    assert view(Array()) == (1024, (4,), np.dtype(np.float32), True, True, 0)
    told = view(Array(shape=(2, 3), strides=(12, 4), data=(64, True), stream=7))
    assert told == (64, (2, 3), np.dtype(np.float32), True, False, 7)
    assert told.size == 6
    assert not view(Array(shape=(4,), strides=(8,))).contiguous
    assert view(Array(typestr="<V2")).dtype == ml_dtypes.bfloat16
    assert view(Array(shape=(0,), data=(None, False))).pointer == 0


def test_who_is_an_array_on_a_gpu():
    assert device.is_device(Array())
    assert not device.is_device(np.zeros(3))
    assert not device.is_device([1.0])


def test_arguments_that_only_an_interface_can_have(gpu):
    strided = Array(strides=(8,))
    with pytest.raises(ValueError, match="gradient must be contiguous, got strides; pass a copy"):
        topk.select(strided, 1)
    with pytest.raises(ValueError, match="gradient must be aligned to 4 bytes; pass a copy"):
        topk.select(Array(data=(1026, False)), 1)
    with pytest.raises(ValueError, match="residual must be writable"):
        topk.select(Array(), 1, Array(data=(2048, True)))
    with pytest.raises(ValueError, match=r"gradient must have one dimension, got shape \(2, 2\)"):
        topk.select(Array(shape=(2, 2)), 1)


@pytest.mark.parametrize("dtype", [np.uint8, np.float64, ml_dtypes.bfloat16])
def test_there_and_back(gpu, dtype):
    here = np.arange(100).astype(dtype)
    there = as_device(here)
    assert (len(there), there.shape, there.dtype) == (100, (100,), np.dtype(dtype))
    np.testing.assert_array_equal(as_host(there), here)
    np.testing.assert_array_equal(as_host(there[10:20][5:]), here[15:20])
    np.testing.assert_array_equal(as_host(there.view(np.uint8)), here.view(np.uint8))
    assert as_host(there[7:3]).size == 0
    with pytest.raises(ValueError, match="got a step of 2"):
        there[::2]


def test_memory_lives_as_long_as_its_last_user(gpu, monkeypatch):
    freed = []

    class Counting:
        def __getattr__(self, name):
            return getattr(gpu, name)

        def deallocate(self, address):
            freed.append(address)
            gpu.deallocate(address)

    monkeypatch.setattr(device, "cuda_module", Counting)
    part = DeviceArray(100, np.float32)[50:]
    gc.collect()
    assert not freed
    del part
    gc.collect()
    assert len(freed) == 1


def test_a_workspace_is_kept_until_a_larger_one_is_needed(gpu):
    array = as_device(np.zeros(1, np.float32))
    near = view(array)
    first = device.workspace(100, near, 0)
    assert device.workspace(50, near, 0) == first
    large = device.workspace(10_000, near, 0)
    assert device.workspace(100, near, 0) == large


def test_pinned_memory(gpu):
    array = device.pinned(10, np.float32)
    array[:] = np.arange(10)
    np.testing.assert_array_equal(as_host(as_device(array)), np.arange(10, dtype=np.float32))


def test_new_arrays_are_of_the_library_of_the_others(gpu, monkeypatch):
    made = []

    def cupy_empty(size, dtype):
        made.append(("cupy", size, dtype))

    def torch_empty(size, dtype, device):
        made.append(("torch", size, dtype, device))

    fakes = {
        "cupy": SimpleNamespace(empty=cupy_empty),
        "torch": SimpleNamespace(empty=torch_empty, float32="torch.float32"),
    }
    for name, module in fakes.items():
        monkeypatch.setitem(sys.modules, name, module)
        like = type("ndarray", (Array,), {"__module__": f"{name}.core", "device": "cuda:1"})()
        device.empty(3, np.float32, like)
    assert made == [("cupy", 3, np.dtype(np.float32)), ("torch", 3, "torch.float32", "cuda:1")]


def test_without_a_gpu(monkeypatch):
    module = SimpleNamespace(device_count=lambda: 0, why_no_device=lambda: "no driver")
    monkeypatch.setattr(device, "cuda_module", lambda: module)
    assert device.count() == 0
    assert device.devices() == []
    with pytest.raises(ConfigError, match=r"^no GPU can .* counts 0 devices \(no driver\)$"):
        topk.select(Array(), 1)


def test_without_the_module(monkeypatch):
    monkeypatch.setattr(device, "cuda_module", lambda: None)
    assert device.count() == 0
    with pytest.raises(ConfigError, match=r"^the CUDA kernels were not built; put nvcc on PATH"):
        DeviceArray(3, np.float32)


@pytest.mark.skipif(device.count() > 0, reason="a GPU is here")
def test_the_benchmark_says_that_it_needs_a_gpu():
    benchmarks = Path(__file__).parents[2] / "benchmarks"
    done = subprocess.run(
        [sys.executable, "bench_cuda.py"],
        cwd=benchmarks,
        env={**os.environ, "PYTHONPATH": str(benchmarks)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout + done.stderr == (f"bench_cuda.py needs a GPU: {device.why_none()}\n")


def test_devices_are_listed(gpu):
    for one in device.devices():
        assert one.name
        assert (len(one.uuid), len(one.capability)) == (32, 2)
    assert len(device.devices()) == device.count()
    assert device.why_none() == ""


def test_copies_on_a_stream_of_their_own(gpu):
    here, there = device.pinned(100, np.float32), DeviceArray(100, np.float32)
    stream = device.Stream(gpu.current_device())
    here[:] = np.arange(100)
    stream.copy(view(there).pointer, here.ctypes.data, here.nbytes)
    stream.wait()
    here[:] = 0
    stream.copy(here.ctypes.data, view(there).pointer, here.nbytes)
    stream.wait()
    np.testing.assert_array_equal(here, np.arange(100))
