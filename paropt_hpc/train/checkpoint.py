"""Checkpoints: everything a run needs to go on as if it had never stopped.

A checkpoint is a folder ``step-00000120`` with one file of arrays per rank and a manifest. It
is made under a temporary name; the manifest, with size and checksum of every file, is written
last, and then the folder gets its name. So a folder with that name is whole, unless the disk
has damaged it later, which the checksums tell.
"""

import json
import os
import shutil
import warnings
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paropt_hpc.comm import Communicator
from paropt_hpc.errors import DataError

__all__ = ["Checkpoint", "Checkpoints"]

VERSION = 1
State = dict[str, Any]  # nested; the leaves are arrays and numbers


class Checkpoint(NamedTuple):
    """A checkpoint that was found whole."""

    folder: Path
    step: int  # steps done
    position: dict[str, Any]  # where the run stood, as it was saved
    ranks: int  # how many have saved

    def state(self, rank: int) -> State:
        """Read what a rank has saved; local."""
        with np.load(self.folder / _file_name(rank), allow_pickle=False) as file:
            return unflatten(file.items())


class Checkpoints:
    """The checkpoints of one run.

    Parameters
    ----------
    folder : Path
        Where they are; made when the first one is saved.
    comm : Communicator
        The ranks of the run. All methods are collective.
    keep : int
        How many to keep; older ones are removed once a newer one is whole.
    """

    def __init__(self, folder: Path, comm: Communicator, keep: int = 2) -> None:
        self.folder = folder
        self.comm = comm
        self.keep = keep

    def save(self, step: int, position: dict[str, Any], state: State) -> None:
        """Write a checkpoint: `position` once, from rank 0, and every rank's `state`.

        Raises
        ------
        DataError
            On every rank, when any rank could not write; older checkpoints stay.
        """
        final = self.folder / f"step-{step:08d}"
        temporary = self.folder / f".{final.name}.tmp"
        with self.comm.together():
            if self.comm.rank == 0:
                shutil.rmtree(temporary, ignore_errors=True)
                _make_folder(temporary)
        checksum = 0
        with self.comm.together():
            checksum = _write_arrays(temporary / _file_name(self.comm.rank), state)
        checksums = self.comm.gather_scalars(checksum)
        with self.comm.together():
            if self.comm.rank == 0:
                _write_manifest(temporary, step, position, checksums.astype(int).tolist())
                shutil.rmtree(final, ignore_errors=True)
                temporary.replace(final)
                self._remove_old(final)

    def load(self) -> Checkpoint | None:
        """Return the newest checkpoint that is whole, on every rank; None if there is none.

        A damaged one is passed over with a warning. The ranks share the work of checking.
        """
        for folder in sorted(self.folder.glob("step-*"), reverse=True):
            found, fault = None, ""
            try:
                found = _checked(folder, self.comm.rank, self.comm.size)
            except (OSError, ValueError, KeyError) as error:
                fault = str(error) or type(error).__name__
            if self.comm.gather_scalars(found is not None).all():
                return found
            if self.comm.rank == 0:
                reason = fault or "another rank could not read it"
                warnings.warn(f"checkpoint {folder} is damaged: {reason}", stacklevel=2)
        return None

    def _remove_old(self, newest: Path) -> None:
        whole = sorted(self.folder.glob("step-*"))
        whole.remove(newest)
        for folder in whole[: max(0, len(whole) - self.keep + 1)]:
            shutil.rmtree(folder, ignore_errors=True)


def flatten(state: State, prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a nested state under names like ``optimizer/velocity``."""
    leaves: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, dict):
            leaves |= flatten(value, f"{prefix}{key}/")
        else:
            leaves[f"{prefix}{key}"] = value
    return leaves


def unflatten(leaves: Iterable[tuple[str, Any]]) -> State:
    """Undo `flatten`; arrays without axes become numbers again."""
    state: State = {}
    for name, value in leaves:
        *path, key = name.split("/")
        table = state
        for part in path:
            table = table.setdefault(part, {})
        table[key] = value.item() if value.ndim == 0 else value
    return state


def only(state: State, names: Iterable[str]) -> State:
    """Return the parts of a state with these names, such as ``strategy/optimizer``."""
    names = tuple(names)
    leaves = flatten(state).items()
    return unflatten((k, np.asarray(v)) for k, v in leaves if _is_within(k, names))


def without(state: State, names: Iterable[str]) -> State:
    """Return a state but for the parts with these names."""
    names = tuple(names)
    leaves = flatten(state).items()
    return unflatten((k, np.asarray(v)) for k, v in leaves if not _is_within(k, names))


def merge(first: State, second: State) -> State:
    """Return the leaves of both states; those of the second win."""
    leaves = flatten(first) | flatten(second)
    return unflatten((k, np.asarray(v)) for k, v in leaves.items())


def _is_within(leaf: str, names: tuple[str, ...]) -> bool:
    return any(leaf == name or leaf.startswith(f"{name}/") for name in names)


def _file_name(rank: int) -> str:
    return f"rank-{rank:05d}.npz"


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise DataError(f"cannot make the checkpoint {folder}: {error.strerror}") from None


def _write_arrays(path: Path, state: State) -> int:
    """Write a state and return the checksum of the file."""
    try:
        with path.open("wb") as file:
            np.savez(file, **flatten(state))
            file.flush()
            os.fsync(file.fileno())
        return zlib.crc32(path.read_bytes())
    except OSError as error:
        raise DataError(
            f"cannot write the checkpoint {path}: {error.strerror}; the last one stays valid"
        ) from None


def _write_manifest(
    folder: Path, step: int, position: dict[str, Any], checksums: list[int]
) -> None:
    files = {
        _file_name(rank): {"bytes": (folder / _file_name(rank)).stat().st_size, "crc32": checksum}
        for rank, checksum in enumerate(checksums)
    }
    manifest = {"version": VERSION, "step": step, "position": position, "files": files}
    with (folder / "manifest.json").open("w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=1)
        file.flush()
        os.fsync(file.fileno())


def _checked(folder: Path, rank: int, size: int) -> Checkpoint:
    """Check the manifest and this rank's share of the files, or raise what is wrong."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    if manifest["version"] != VERSION:
        raise ValueError(f"version {manifest['version']}, this program reads {VERSION}")
    files = manifest["files"]
    for number in range(rank, len(files), size):
        name = _file_name(number)
        content = (folder / name).read_bytes()
        expected = files[name]
        if len(content) != expected["bytes"] or zlib.crc32(content) != expected["crc32"]:
            raise ValueError(f"{name} is not the file that was written")
    return Checkpoint(folder, manifest["step"], manifest["position"], len(files))
