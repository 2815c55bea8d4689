"""Builds the CUDA kernels for the CPU, for the tests.

The sources are those of the package; the header of the CUDA runtime is the one beside this file.
What is built stays in build/emulated until a source changes.
"""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

EMULATION = Path(__file__).parent
ROOT = EMULATION.parents[2]
SOURCES = [*sorted((ROOT / "csrc").glob("*.cu")), ROOT / "csrc" / "bindings" / "cuda.cpp"]
CXX = os.environ.get("CXX", "g++")
FLAGS = ["-std=c++17", "-O1", "-ffp-contract=off", "-fno-strict-aliasing", "-Wno-unknown-pragmas"]
FLAGS += [f"-I{EMULATION}", f"-I{ROOT / 'csrc'}"]


def compiler_or_skip():
    if shutil.which(CXX) is None:
        pytest.skip(f"the emulation needs a C++ compiler, and {CXX} is none here")


def folder_for(*what):
    """Return a folder for what is built from these flags and the sources as they are now."""
    digest = hashlib.sha256(repr(what).encode())
    for path in sorted([*(ROOT / "csrc").rglob("*.*"), *EMULATION.glob("*.*")]):
        digest.update(path.read_bytes())
    folder = ROOT / "build" / "emulated" / digest.hexdigest()[:16]
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def compile_all(sources, flags, target):
    """Compile and link the sources, two at a time, unless that has been done; others wait."""
    with target.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.exists():
            _compile_all(sources, flags, target)


def _compile_all(sources, flags, target):
    objects = [target.parent / f"{source.stem}.o" for source in sources]

    def compile_one(source, made):
        language = ["-x", "c++"] if source.suffix == ".cu" else []
        subprocess.run([CXX, *flags, *language, "-c", source, "-o", made], check=True)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(compile_one, sources, objects))
    made = target.with_suffix(".new")
    subprocess.run([CXX, *flags, *objects, "-o", made], check=True)
    made.rename(target)


def emulated_module(block):
    """Build and load the module of CUDA kernels for the CPU."""
    import pybind11

    compiler_or_skip()
    flags = [*FLAGS, "-shared", "-fPIC", "-fvisibility=hidden", "-fno-gnu-unique"]
    flags += [f"-DPAROPT_CUDA_BLOCK={block}", f"-I{pybind11.get_include()}"]
    flags += [f"-I{sysconfig.get_path('include')}"]
    path = folder_for(flags) / "_cuda.so"
    compile_all(SOURCES, flags, path)
    spec = importlib.util.spec_from_file_location("_cuda", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
