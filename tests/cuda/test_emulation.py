"""The emulation finds what is wrong with a kernel, and nothing is wrong with those that ship."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from emulated import CXX, FLAGS, SOURCES, compile_all, compiler_or_skip, folder_for

KERNELS = [source for source in SOURCES if source.suffix == ".cu"]
CHECK = Path(__file__).parent / "race_check.cpp"


@pytest.fixture(scope="module")
def checked():
    """Return a function that runs the program under ThreadSanitizer, alignment checked."""
    compiler_or_skip()
    flags = ["-fsanitize=thread,alignment", "-fno-sanitize-recover=alignment", "-pthread"]
    probe = [CXX, *flags, "-x", "c++", "-", "-o", str(folder_for("probe", flags) / "probe")]
    done = subprocess.run(probe, input="int main() {}", capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"{CXX} has no ThreadSanitizer here")
    flags = [*FLAGS, *flags, "-g", "-DPAROPT_CUDA_BLOCK=64"]
    path = folder_for(flags, CHECK.read_bytes()) / "race_check"
    compile_all([*KERNELS, CHECK], flags, path)

    def run(*arguments):
        # Address space randomisation of some kernels is too much for ThreadSanitizer.
        command = ["setarch", "-R", path, *arguments]
        environment = {**os.environ, "TSAN_OPTIONS": "exitcode=66"}
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=120, env=environment
        )
        return done.returncode, done.stdout + done.stderr

    return run


def test_no_kernel_has_a_race_or_a_misaligned_access(checked):
    status, said = checked()
    assert status == 0, said


@pytest.mark.parametrize("broken", ["no barrier", "no warp barrier", "across blocks"])
def test_a_race_is_found(checked, broken):
    status, said = checked(broken)
    assert status == 66
    assert re.search(r"data race.*kernel", said, re.DOTALL)
    assert checked(broken, "mended")[0] == 0


def test_threads_that_wait_for_one_another_forever_are_found(checked):
    status, said = checked("divergent")
    assert status == 1
    assert "threads wait for one another forever (block 0, thread" in said
    assert checked("divergent", "mended")[0] == 0
