"""A LIBSVM file that all ranks read together: each parses a part, all have the whole."""

import gzip

import numpy as np
import pytest

from paropt_hpc.comm import Communicator
from paropt_hpc.errors import DataError
from paropt_hpc.train import Config, read_libsvm, readers, train

pytestmark = pytest.mark.mpi


def text_of(lines):
    generator = np.random.default_rng(lines)
    rows = []
    for line in range(lines):
        columns = np.flatnonzero(generator.random(9) < 0.3)
        entries = " ".join(f"{c + 1}:{generator.integers(1, 9)}" for c in columns)
        rows += [f"{line % 3} {entries}", *([] if line % 4 else ["# a comment: 1:2", ""])]
    return "\n".join(rows).encode()


def parsed(monkeypatch):
    """Return a list that will have the number of lines of every part that is parsed."""
    found, real = [], readers._parse

    def parse(path, text, lines, entries):
        found.append(lines)
        return real(path, text, lines, entries)

    monkeypatch.setattr(readers, "_parse", parse)
    return found


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("lines", [1, 3, 60])
def test_all_ranks_have_all_samples(world, folder, everywhere, monkeypatch, lines, packed):
    text, path = text_of(lines), folder / "x"
    if world.Get_rank() == 0:
        path.write_bytes(gzip.compress(text) if packed else text)
    world.Barrier()
    x, y = read_libsvm(path)
    counts = parsed(monkeypatch)
    with Communicator(world) as comm:
        got_x, got_y = readers.read_libsvm_together(comm, path)
        total = comm.gather_scalars(counts[0]).sum()
        shares = comm.size if packed else 1
    faults = [] if total == shares * len(text.splitlines()) else [f"parsed {total} lines"]
    same = got_x.shape == x.shape and np.array_equal(got_x[:], x[:]) and np.array_equal(got_y, y)
    everywhere(faults if same else [*faults, "other samples"])


def test_a_fault_in_one_part_reaches_all_ranks(world, folder, everywhere):
    path = folder / "x"
    if world.Get_rank() == 0:
        path.write_bytes(text_of(60) + b"\n1 3:x")
    world.Barrier()
    with Communicator(world) as comm:
        said = ""
        try:
            readers.read_libsvm_together(comm, path)
        except DataError as error:
            said = str(error)
        missing = ""
        try:
            readers.read_libsvm_together(comm, folder / "nothing")
        except DataError as error:
            missing = str(error)
    faults = [] if "got '3:x'" in said or "line 91" in said else [said]
    everywhere(faults if "there is no file" in missing else [*faults, missing])


def test_training_reads_so(world, folder, everywhere, monkeypatch):
    path = folder / "x"
    if world.Get_rank() == 0:
        path.write_bytes(text_of(60))
    world.Barrier()
    counts = parsed(monkeypatch)
    config = Config.model_validate(
        {
            "data": {"format": "libsvm", "train": str(path)},
            "model": {"name": "softmax"},
            "train": {"batch": 12, "epochs": 1},
        }
    )
    with Communicator(world) as comm:
        assert train(config, comm).steps == 4
    everywhere([] if counts[0] <= 90 // world.Get_size() + 3 else [f"parsed {counts}"])
