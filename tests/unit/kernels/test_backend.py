import subprocess
import sys

import numpy as np
import pytest

from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels import backend, reference, topk


def test_native_kernels_are_built_and_preferred(monkeypatch):
    monkeypatch.delenv("PAROPT_BACKEND", raising=False)
    assert backend.name() == "native"


@pytest.mark.parametrize("name", ["native", "reference"])
def test_backend_can_be_forced(monkeypatch, name):
    monkeypatch.setenv("PAROPT_BACKEND", name)
    assert backend.name() == name


def test_unknown_backend(monkeypatch):
    monkeypatch.setenv("PAROPT_BACKEND", "mmx")
    with pytest.raises(ConfigError, match="must be native, reference or cuda, got 'mmx'"):
        topk.select(np.zeros(1, np.float32), 1)


def test_arrays_of_the_host_where_a_gpu_is_forced(monkeypatch):
    monkeypatch.setenv("PAROPT_BACKEND", "cuda")
    with pytest.raises(ConfigError, match="cuda, but the arrays are not on a GPU"):
        topk.select(np.zeros(1, np.float32), 1)


def test_missing_native_kernels(monkeypatch):
    monkeypatch.setattr(backend, "native_module", lambda: None)
    monkeypatch.delenv("PAROPT_BACKEND", raising=False)
    assert backend.implementation() is reference
    backend.implementation.cache_clear()
    monkeypatch.setenv("PAROPT_BACKEND", "native")
    with pytest.raises(ConfigError, match="were not built"):
        backend.implementation()


def in_new_process(isa):
    program = (
        "from paropt_hpc.errors import ConfigError\n"
        "from paropt_hpc.kernels import backend\n"
        "try: print(backend.native_module().isa())\n"
        "except ConfigError as error: print(error)\n"
    )
    environment = {"PAROPT_ISA": isa, "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.mark.parametrize("isa", backend.ISAS)
def test_isa_can_be_forced(isa):
    said = in_new_process(isa)
    if isa not in backend.native_module().isas():
        assert "this processor has only baseline" in said
    else:
        assert said == isa


def test_unknown_isa():
    expected = "PAROPT_ISA must be one of baseline, avx2, avx512, got 'sse9'"
    assert in_new_process("sse9") == expected


def test_isa_of_another_processor(monkeypatch):
    class Old:
        @staticmethod
        def isas():
            return ["baseline"]

    monkeypatch.setitem(sys.modules, "paropt_hpc._native", Old)
    monkeypatch.setattr("paropt_hpc._native", Old)
    monkeypatch.setenv("PAROPT_ISA", "avx512")
    with pytest.raises(ConfigError, match="avx512, but this processor has only baseline"):
        backend.native_module.__wrapped__()


def test_native_rejects_unknown_isa():
    with pytest.raises(ValueError, match="baseline, avx2 or avx512, got mmx"):
        backend.native_module().set_isa("mmx")


@pytest.mark.parametrize(
    ("own", "used"), [({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "active"}, "ACTIVE")]
)
def test_threads_that_wait_sleep(own, used):
    program = (
        "import os\n"
        "before = dict(os.environ)\n"
        "from paropt_hpc.kernels import backend\n"
        "backend.native_module()\n"
        "assert dict(os.environ) == before\n"
    )
    environment = {"OMP_DISPLAY_ENV": "true", "PYTHONSAFEPATH": "1", **own}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert f"OMP_WAIT_POLICY = '{used}'" in done.stderr
