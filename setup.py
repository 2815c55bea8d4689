"""The extension modules of paropt-hpc; all metadata is in pyproject.toml.

Each module is optional: one that cannot be built is left out with a one-line
reason, and the package falls back to its NumPy or mpi4py twin.

Environment
-----------
PAROPT_BUILD_MPICXX, MPICXX : MPI compiler wrapper for ``_mpi`` (else ``mpicxx`` on PATH)
PAROPT_BUILD_MPI, PAROPT_BUILD_CUDA : ``auto`` (default), ``0`` leave out, ``1`` must build
PAROPT_CUDA_ARCH : compute capabilities for ``_cuda``, of which the last one is also left as PTX for
    newer devices (default ``75,80,90``); or a value of nvcc's ``-arch`` such as ``native``
PAROPT_BUILD_ONLY : the one module to build, e.g. ``_mpi`` (default: all)
PAROPT_BUILD_BASE : folder of the object files (default ``build``)
PAROPT_BUILD_FLAGS : extra compiler and linker flags, e.g. ``-fsanitize=address``
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from glob import glob
from pathlib import Path

from pybind11.setup_helpers import ParallelCompile, Pybind11Extension
from setuptools import setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

HEADERS = sorted(glob("csrc/*.hpp") + glob("csrc/bindings/*.hpp") + glob("csrc/*.cuh"))
NATIVE = ["common", "topk", "index_codec", "quantize", "reduce", "message", "population", "tour"]
NATIVE += ["libsvm", "sgd"]
MPI = ["common", "fold", "huge_pages", "shared_segment", "shared_group", "shared_allreduce"]
MPI += ["ring_allreduce", "recursive_doubling", "lane", "neighbor_exchange"]
CUDA_SOURCES = sorted(glob("csrc/*.cu"))
EXTRA_FLAGS = shlex.split(os.environ.get("PAROPT_BUILD_FLAGS", ""))


def native_extension() -> Pybind11Extension:
    """Kernels for the CPU: no MPI, no required dependency, portable."""
    sources = ["csrc/bindings/native.cpp", "csrc/bindings/population.cpp"]
    sources += [f"csrc/{stem}.cpp" for stem in NATIVE]
    return extension("_native", sources)


def mpi_extension() -> Pybind11Extension | None:
    """Collectives, built against the MPI whose compiler wrapper is found."""
    wrapper = find_mpicxx()
    if not wanted("MPI", wrapper, "no mpicxx found; set MPICXX or install an MPI library"):
        return None
    shown = subprocess.run([wrapper, "-show"], capture_output=True, text=True, check=True)
    flags = shlex.split(shown.stdout)[1:]
    linking = [f for f in flags if f.startswith(("-L", "-l", "-Wl,"))]
    ext = extension("_mpi", ["csrc/bindings/mpi.cpp", *(f"csrc/{stem}.cpp" for stem in MPI)])
    ext.define_macros += [("OMPI_SKIP_MPICXX", "1"), ("MPICH_SKIP_MPICXX", "1")]
    # Before setuptools' own: a virtual environment's include folder may hold another mpi.h.
    ext.include_dirs += [f[2:] for f in flags if f.startswith("-I")]
    ext.extra_compile_args += [f for f in flags if f not in linking and not f.startswith("-I")]
    ext.extra_link_args += linking
    ext.optional = os.environ.get("PAROPT_BUILD_MPI") != "1"
    return ext


def cuda_extension() -> Pybind11Extension | None:
    """Kernels for the GPU, cudart linked statically so that no driver is needed to import."""
    nvcc = find_nvcc()
    if not wanted("CUDA", nvcc, "no nvcc found; set CUDA_HOME or install the CUDA toolkit"):
        return None
    # What nvcc itself would use; its own place says little, since it may be a wrapper.
    command = [nvcc, "--dryrun", CUDA_SOURCES[0]]
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    paths = dict(re.findall(r"^#\$ (INCLUDES|LIBRARIES)=(.*)$", shown, flags=re.MULTILINE))
    ext = extension("_cuda", ["csrc/bindings/cuda.cpp", *CUDA_SOURCES])
    ext.include_dirs += [flag[2:] for flag in shlex.split(paths["INCLUDES"])]
    ext.library_dirs += [flag[2:] for flag in shlex.split(paths["LIBRARIES"])]
    ext.libraries += ["cudart_static", "dl", "rt", "pthread"]
    ext.optional = os.environ.get("PAROPT_BUILD_CUDA") != "1"
    return ext


def extension(name: str, sources: list[str]) -> Pybind11Extension:
    ext = Pybind11Extension(
        f"paropt_hpc.{name}",
        sources,
        include_dirs=["csrc"],
        cxx_std=17,
        depends=[*HEADERS, __file__],
    )
    # Fused multiply-adds would round differently from the NumPy twins.
    ext.extra_compile_args += ["-O3", "-ffp-contract=off", "-Wall", "-Wextra", *EXTRA_FLAGS]
    ext.extra_link_args += EXTRA_FLAGS
    return ext


def find_mpicxx() -> str | None:
    for variable in ("PAROPT_BUILD_MPICXX", "MPICXX"):
        if os.environ.get(variable):
            found = shutil.which(os.environ[variable])
            if found is None:
                sys.exit(f"{variable}={os.environ[variable]} is not an executable compiler wrapper")
            return found
    return shutil.which("mpicxx")


def find_nvcc() -> str | None:
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        if os.environ.get(variable):
            return shutil.which("nvcc", path=os.path.join(os.environ[variable], "bin"))
    return shutil.which("nvcc") or shutil.which("nvcc", path="/usr/local/cuda/bin")


def wanted(what: str, tool: str | None, missing: str) -> bool:
    """Decide from PAROPT_BUILD_<what> and the tool found whether to build a module."""
    mode = os.environ.get(f"PAROPT_BUILD_{what}", "auto")
    if mode not in ("auto", "0", "1"):
        sys.exit(f"PAROPT_BUILD_{what} must be auto, 0 or 1, got {mode!r}")
    if mode == "1" and tool is None:
        sys.exit(f"PAROPT_BUILD_{what}=1: {missing}")
    if mode == "auto" and tool is None:
        print(f"paropt-hpc: the {what} module is left out: {missing}", file=sys.stderr)
    return mode != "0" and tool is not None


class BuildExt(build_ext):
    """Probe OpenMP, teach setuptools .cu files, link anew when only an option changed."""

    def build_extensions(self) -> None:
        openmp = self.openmp_flags()
        for ext in self.extensions:
            if not ext.name.endswith("_cuda"):  # the two others share objects of csrc/common.cpp
                ext.extra_compile_args += openmp
                ext.extra_link_args += openmp
        super().build_extensions()

    def build_extension(self, ext: Pybind11Extension) -> None:
        cuda_sources = [source for source in ext.sources if source.endswith(".cu")]
        ext.sources = [source for source in ext.sources if source not in cuda_sources]
        ext.extra_objects += [self.compile_cuda(source) for source in cuda_sources]
        ext.depends += cuda_sources
        super().build_extension(ext)

    def compile_cuda(self, source: str) -> str:
        target = Path(self.build_temp) / f"{source}.o"  # topk.cpp has a topk.o
        if not needs_recompile(str(target), source):
            return str(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        command = [find_nvcc(), "-std=c++17", "-O3", "-fmad=false", *cuda_arch_flags(), "-t0"]
        command += ["-Xcompiler=-fPIC", "-Xptxas=-v", "-Icsrc", "-c", source, "-o", str(target)]
        print(shlex.join(command))
        done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            raise CompileError(f"nvcc failed on {source}:\n{done.stderr}")
        # What every kernel takes of registers and memory: a test reads it.
        target.with_suffix(".resources").write_text(done.stderr)
        return str(target)

    def openmp_flags(self) -> list[str]:
        """Return the flags with which an OpenMP program compiles and links, or none."""
        program = "#include <omp.h>\nint main() { return omp_get_max_threads() < 1; }\n"
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "probe.cpp"
            source.write_text(program)
            for flags in (["-fopenmp"], ["-Xpreprocessor", "-fopenmp", "-lomp"]):
                command = [
                    *self.compiler.compiler_cxx,
                    str(source),
                    "-o",
                    f"{folder}/probe",
                    *flags,
                ]
                if subprocess.run(command, capture_output=True, check=False).returncode == 0:
                    return flags
        print("paropt-hpc: no OpenMP; the kernels will use one thread", file=sys.stderr)
        return []


def cuda_arch_flags() -> list[str]:
    """Return nvcc's options for what PAROPT_CUDA_ARCH names."""
    wanted = os.environ.get("PAROPT_CUDA_ARCH", "75,80,90")
    parts = wanted.split(",")
    if not all(part.isdigit() for part in parts):
        return [f"-arch={wanted}"]
    flags = [f"-gencode=arch=compute_{part},code=sm_{part}" for part in parts]
    return [*flags, f"-gencode=arch=compute_{parts[-1]},code=compute_{parts[-1]}"]


def needs_recompile(target: str, source: str) -> bool:
    """Say whether an object is older than its source, any header, or this build script."""
    if not os.path.exists(target):
        return True
    built = os.path.getmtime(target)
    return any(os.path.getmtime(name) > built for name in [source, "setup.py", *HEADERS])


ParallelCompile("PAROPT_BUILD_JOBS", default=0, needs_recompile=needs_recompile).install()
ONLY = os.environ.get("PAROPT_BUILD_ONLY")
setup(
    ext_modules=[
        ext
        for ext in (native_extension(), mpi_extension(), cuda_extension())
        if ext is not None and ONLY in (None, "", ext.name.rpartition(".")[2])
    ],
    cmdclass={"build_ext": BuildExt},
    options={"build": {"build_base": os.environ.get("PAROPT_BUILD_BASE", "build")}},
)
