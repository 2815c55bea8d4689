"""What holds for the package as a whole."""

import os
import re
import shutil
import subprocess
import sys

import pytest


def run_python(code):
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("module", ["", ".kernels", ".compress", ".comm", ".train", ".cli"])
def test_importing_does_not_start_mpi(module):
    done = run_python(
        f"import sys, paropt_hpc{module}\n"
        "sys.exit('MPI was started' if 'mpi4py.MPI' in sys.modules else 0)"
    )
    assert done.returncode == 0, done.stderr


def test_the_cpu_kernels_are_built():
    assert run_python("import paropt_hpc._native").returncode == 0


@pytest.mark.skipif(
    shutil.which("nvcc") is None or os.environ.get("PAROPT_BUILD_CUDA") == "0",
    reason="no CUDA module is built without nvcc, or where it is left out",
)
def test_the_cuda_module_imports_without_a_gpu():
    done = run_python("from paropt_hpc import _cuda; print(_cuda.device_count())")
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(r"\d+", done.stdout.strip())
