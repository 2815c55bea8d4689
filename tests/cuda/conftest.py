"""The CUDA kernels on a GPU where there is one, and by emulation on every machine: once with the
blocks that ship and once with small ones."""

import os

import pytest
from emulated import emulated_module

from paropt_hpc.kernels import backend, device

# Threads of a block, and multiprocessors, which set the number of blocks.
EMULATED = [(256, 1), (64, 3)]


@pytest.fixture(scope="session", params=["gpu", *EMULATED], ids=str)
def module(request):
    """Return the module of CUDA kernels: the real one with a GPU, or an emulated one."""
    if request.param == "gpu":
        if device.count() == 0:
            pytest.skip("no GPU can be used here")
        return device.cuda_module()
    block, multiprocessors = request.param
    os.environ["EMULATED_MULTIPROCESSORS"] = str(multiprocessors)
    return emulated_module(block)


@pytest.fixture(autouse=True)
def environment_read_anew():
    """Let every test choose its PAROPT_BACKEND."""
    backend.implementation.cache_clear()
    yield
    backend.implementation.cache_clear()


@pytest.fixture
def gpu(module, monkeypatch):
    """Make the kernels use this module; arrays go to its memory by `device.as_device`."""
    monkeypatch.delenv("PAROPT_BACKEND", raising=False)
    monkeypatch.setattr(device, "cuda_module", lambda: module)
    device._workspaces.kept.clear()
    yield module
    device._workspaces.kept.clear()
