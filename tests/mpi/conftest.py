"""What every MPI test needs; all ranks run the same tests in the same order."""

import io
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
from mpi4py import MPI

from paropt_hpc.comm import Communicator
from paropt_hpc.kernels import backend

# Every rank must draw the same examples: no random seed, no database of past failures.
hypothesis.settings.register_profile(
    "ranks", derandomize=True, database=None, deadline=None, max_examples=25
)
hypothesis.settings.load_profile("ranks")

# A test that lets the ranks diverge fails, and says how, instead of hanging.
os.environ.setdefault("PAROPT_CHECK", "1")
os.environ.setdefault("PAROPT_TIMEOUT", "120")


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Let rank 0 speak for all; the others are heard when they have failed."""
    if MPI.COMM_WORLD.Get_rank() > 0:
        config.get_terminal_writer()._file = io.StringIO()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> Iterator[None]:
    yield
    kept = session.config.get_terminal_writer()._file
    if isinstance(kept, io.StringIO) and exitstatus:
        print(f"rank {MPI.COMM_WORLD.Get_rank()}:\n{kept.getvalue()}", flush=True)


@pytest.fixture(autouse=True)
def environment_read_anew() -> Iterator[None]:
    """Let every test choose its PAROPT_BACKEND."""
    backend.implementation.cache_clear()
    yield
    backend.implementation.cache_clear()


@pytest.fixture(autouse=True, scope="session")
def without_disk() -> Iterator[None]:
    """Wait for no disk: whether bytes have reached it no test can see."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture
def world() -> MPI.Intracomm:
    return MPI.COMM_WORLD


@pytest.fixture
def comm(world: MPI.Intracomm) -> Iterator[Communicator]:
    with Communicator(world) as made:
        yield made


@pytest.fixture
def folder(world: MPI.Intracomm) -> Iterator[Path]:
    """One folder for all ranks."""
    made = tempfile.TemporaryDirectory() if world.Get_rank() == 0 else None
    yield Path(world.bcast(made.name if made else None))
    world.Barrier()
    if made:
        made.cleanup()


@pytest.fixture
def everywhere(world: MPI.Intracomm) -> Callable[[list[str]], None]:
    """Fail on all ranks if one has found faults: one that stops alone leaves the others waiting."""

    def check(faults: list[str]) -> None:
        found = {rank: texts for rank, texts in enumerate(world.allgather(faults)) if texts}
        assert not found

    return check


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder of this rank's own: pytest's are numbered and cleaned by every rank at once."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
