"""Checkpoints: everything a run needs to go on as if it had never stopped.

A checkpoint is a folder ``step-00000120`` with files of arrays and a manifest. Each file is a
*part*: what one rank of a training holds, or one island of a search, which is free to move to
another rank. The folder is made under a temporary name; the manifest, with size and checksum of
every file, is written last, and then the folder gets its name. So a folder with that name is whole,
unless the disk has damaged it later, which the checksums tell.
"""

import json
import os
import platform
import shutil
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paropt_hpc import __version__
from paropt_hpc.comm import Communicator
from paropt_hpc.errors import DataError

__all__ = ["Checkpoint", "Checkpoints", "rank_part"]

VERSION = 1
_BLOCK = 1 << 20  # bytes that are written or read at once
State = dict[str, Any]  # nested; the leaves are arrays, numbers, and what JSON can hold
_JSON = ".json"  # ends the names of leaves that are stored as text


class Checkpoint(NamedTuple):
    """A checkpoint that was found whole."""

    folder: Path
    step: int  # steps done
    position: dict[str, Any]  # where the run stood, as it was saved
    parts: int  # how many there are
    versions: dict[str, str]  # of what has written it

    @property
    def updated(self) -> str:
        """What is of another version here than it was there; empty if nothing is."""
        now = _versions()
        changed = [name for name, then in self.versions.items() if now.get(name, then) != then]
        return ", ".join(f"{name} was {self.versions[name]} and is {now[name]}" for name in changed)

    def state(self, part: str) -> State:
        """Read a part; local."""
        with np.load(self.folder / f"{part}.npz", allow_pickle=False) as file:
            return unflatten(_restored(name, value) for name, value in file.items())


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

    def save(self, step: int, position: dict[str, Any], parts: Mapping[str, State]) -> None:
        """Write a checkpoint: `position` once, from rank 0, and the parts that each rank has.

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
        checksums = {}
        with self.comm.together():
            for part, state in parts.items():
                checksums[part] = _write_arrays(temporary / f"{part}.npz", state)
        gathered = self.comm.gather_texts(json.dumps(checksums))
        with self.comm.together():
            if self.comm.rank == 0:
                _write_manifest(temporary, step, position, gathered)
                shutil.rmtree(final, ignore_errors=True)
                temporary.replace(final)
                self._remove_old(final)

    def load(self) -> Checkpoint | None:
        """Return the newest checkpoint that is whole, on every rank; None if there is none.

        A damaged one is passed over with a warning. The ranks share the work of checking.
        """
        for folder in reversed(self._all()):
            found, fault = None, ""
            try:
                found = _checked(folder, self.comm.rank, self.comm.size)
            except (OSError, ValueError, KeyError) as error:
                fault = str(error) or type(error).__name__
            faults = [told for told in self.comm.gather_texts(fault) if told]
            if not faults:
                return found
            if self.comm.rank == 0:
                warnings.warn(f"checkpoint {folder} is damaged: {faults[0]}", stacklevel=2)
        return None

    def _all(self) -> list[Path]:
        """Return the folders of all checkpoints by step, of which a long run has nine digits."""
        return sorted(self.folder.glob("step-*"), key=lambda folder: (len(folder.name), folder))

    def _remove_old(self, newest: Path) -> None:
        whole = self._all()
        whole.remove(newest)
        for folder in whole[: max(0, len(whole) - self.keep + 1)]:
            shutil.rmtree(folder, ignore_errors=True)


def flatten(state: State, prefix: str = "", *, empty: bool = False) -> dict[str, Any]:
    """Return the leaves of a nested state under names like ``optimizer/velocity``.

    States without leaves are left out, or are leaves themselves if `empty`.
    """
    leaves: dict[str, Any] = {}
    for key, value in state.items():
        if isinstance(value, dict) and (value or not empty):
            leaves |= flatten(value, f"{prefix}{key}/", empty=empty)
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


def rank_part(rank: int) -> str:
    """Return the name of the part that a rank has saved."""
    return f"rank-{rank:05d}"


def _stored(name: str, value: Any) -> tuple[str, Any]:
    """Return a leaf as an array, under a name that says how to read it."""
    if isinstance(value, np.ndarray | np.generic | bool | float):
        return name, value
    if isinstance(value, int) and abs(value) < 1 << 63:
        return name, value
    return name + _JSON, np.frombuffer(json.dumps(value).encode(), np.uint8)


def _restored(name: str, value: Any) -> tuple[str, Any]:
    if not name.endswith(_JSON):
        return name, value
    leaf = np.empty((), object)
    leaf[()] = json.loads(value.tobytes())
    return name.removesuffix(_JSON), leaf


def _versions() -> dict[str, str]:
    own = {"paropt-hpc": __version__, "numpy": np.__version__}
    return own | {"python": platform.python_version()}


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise DataError(f"cannot make the checkpoint {folder}: {error.strerror}") from None


def _write_arrays(path: Path, state: State) -> int:
    """Write a state and return the checksum of the file."""
    try:
        with path.open("wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                for leaf in flatten(state, empty=True).items():
                    _write_array(archive, *_stored(*leaf))
            file.flush()
            os.fsync(file.fileno())
        return _checksum(path)
    except OSError as error:
        raise DataError(
            f"cannot write the checkpoint {path}: {error.strerror}; the last one stays valid"
        ) from None


def _write_array(archive: zipfile.ZipFile, name: str, value: Any) -> None:
    """Add what `numpy.savez` would, block by block: NumPy makes copies of 16 MB."""
    array = np.ascontiguousarray(value)
    with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
        header = np.lib.format.header_data_from_array_1_0(array)
        header["shape"] = np.shape(value)  # of a number: none
        np.lib.format.write_array_header_1_0(file, header)
        content = array.reshape(-1).view(np.uint8).data
        for first in range(0, len(content), _BLOCK):
            file.write(content[first : first + _BLOCK])


def _checksum(path: Path) -> int:
    """Return the CRC-32 of a file, read block by block."""
    checksum = 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            checksum = zlib.crc32(block, checksum)
    return checksum


def _write_manifest(folder: Path, step: int, position: dict[str, Any], gathered: list[str]) -> None:
    checksums = {part: crc for text in gathered for part, crc in json.loads(text).items()}
    files = {
        f"{part}.npz": {"bytes": (folder / f"{part}.npz").stat().st_size, "crc32": checksum}
        for part, checksum in sorted(checksums.items())
    }
    manifest = {"version": VERSION, "step": step, "position": position, "files": files}
    manifest["versions"] = _versions()
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
    for name in sorted(files)[rank::size]:
        path, expected = folder / name, files[name]
        if path.stat().st_size != expected["bytes"] or _checksum(path) != expected["crc32"]:
            raise ValueError(f"{name} is not the file that was written")
    versions = manifest.get("versions", {})  # older ones do not say
    return Checkpoint(folder, manifest["step"], manifest["position"], len(files), versions)
