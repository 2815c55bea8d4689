"""What the compiler reports of every kernel, from the last build of this checkout."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path.name for path in (ROOT / "csrc").glob("*.cu"))


def reports():
    """Return the newest report of each source."""
    found = {}
    for folder in [*ROOT.glob(".venv-*/build"), ROOT / "build"]:
        for path in folder.glob("temp.*/csrc/*.resources"):
            if path.stem not in found or path.stat().st_mtime > found[path.stem].stat().st_mtime:
                found[path.stem] = path
    if not found:
        pytest.skip("nvcc has compiled nothing here")
    return {stem: path.read_text() for stem, path in found.items()}


def test_all_that_a_kernel_works_with_is_in_registers():
    kernels = 0
    for source, text in reports().items():
        for told in re.findall(r"\d+ bytes stack frame.*", text):
            assert told == "0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads", source
            kernels += 1
    assert kernels > 40


def test_every_kernel_leaves_room_for_a_second_block():
    """At most 128 registers: two blocks of 256 threads share a multiprocessor's 65536."""
    for source, text in reports().items():
        for registers in map(int, re.findall(r"Used (\d+) registers", text)):
            assert registers <= 128, source


def test_every_source_is_reported():
    assert sorted(reports()) == SOURCES
