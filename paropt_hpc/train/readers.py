"""Readers of data that is sparse, or larger than memory, and of one rank's part of a file.

What they return is indexed like an array and gives dense rows, so that a batch is dense and the
rest stays as it is: compressed in memory, or on the disk.
"""

import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.comm import Communicator
from paropt_hpc.errors import DataError
from paropt_hpc.kernels import libsvm

__all__ = ["Rows", "Sparse", "open_hdf5", "open_npy", "read_libsvm", "read_libsvm_together"]

BLOCK = 1 << 22  # bytes of text that are in memory at once
LONGEST_LINE = 1 << 30


class Sparse:
    """A sparse matrix by rows; indexing gives dense rows.

    Parameters
    ----------
    ends : ndarray, shape (rows,), int64
        Where the entries of each row end.
    columns : ndarray, shape (entries,), int32
        Ascending in a row.
    values : ndarray, shape (entries,), float32
    features : int
        Number of columns.
    """

    dtype = np.dtype(np.float32)

    def __init__(
        self,
        ends: NDArray[np.int64],
        columns: NDArray[np.int32],
        values: NDArray[np.float32],
        features: int,
    ) -> None:
        self.ends, self.columns, self.values = ends, columns, values
        self.shape = (len(ends), features)

    def widened(self, features: int) -> "Sparse":
        """Return the same matrix with more columns; nothing is copied."""
        return Sparse(self.ends, self.columns, self.values, features)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self.ends.nbytes + self.columns.nbytes + self.values.nbytes

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> NDArray[np.float32]:
        """Return dense rows, shape (rows, features), float32; new."""
        rows = np.arange(len(self))[rows]
        ends = self.ends[rows]
        begins = np.where(rows > 0, self.ends[rows - 1], 0)
        counts = ends - begins
        # Entry j of the selection is entry j - (entries selected before its row) of its row.
        places = np.arange(counts.sum()) + np.repeat(ends - np.cumsum(counts), counts)
        dense = np.zeros((len(rows), self.shape[1]), np.float32)
        dense[np.repeat(np.arange(len(rows)), counts), self.columns[places]] = self.values[places]
        return dense


class Rows:
    """Some rows of a source, each scaled when it is read.

    Parameters
    ----------
    source : object
        Indexed by ascending row numbers, with a shape: `Sparse`, a memory map, a data set of HDF5.
    rows : ndarray of int, optional
        Which rows; by default all.
    dtype : dtype
        Of what indexing returns.
    """

    def __init__(
        self, source: Any, rows: NDArray[np.int64] | None = None, dtype: Any = "float32"
    ) -> None:
        self.source = source
        self.rows = np.arange(len(source)) if rows is None else rows
        self.dtype = np.dtype(dtype)
        self.shape = (len(self.rows), int(np.prod(source.shape[1:])))
        self.shift: Any = 0
        self.factor: Any = 1

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> NDArray[Any]:
        """Return ``(rows - shift) * factor``, shape (rows, features); new."""
        wanted = self.rows[index]
        # Files are read front to back, and each row once.
        ascending, inverse = np.unique(wanted, return_inverse=True)
        if not len(ascending):  # which HDF5 does not take
            return np.empty((0, self.shape[1]), self.dtype)
        found = np.asarray(self.source[ascending]).reshape(len(ascending), -1)
        out = found[inverse].astype(self.dtype)
        out -= np.asarray(self.shift, self.dtype)
        out *= np.asarray(self.factor, self.dtype)
        return out

    def blocks(self, rows: int = 4096) -> Iterator[NDArray[Any]]:
        """Yield everything, some rows at a time."""
        for first in range(0, len(self), rows):
            yield self[first : first + rows]


class _Range(NamedTuple):
    """A part of a text, in bytes of the unpacked text; `end` is None where nobody knows."""

    begin: int
    end: int | None


def read_libsvm(
    path: str | Path, features: int | None = None, part: tuple[int, int] = (0, 1)
) -> tuple[Sparse, NDArray[np.float64]]:
    """Return the samples of a LIBSVM text file, or of one part of it; local.

    The file is read twice, in blocks: to count, and to parse into arrays that fit. So the memory
    is that of the result and of a block.

    Parameters
    ----------
    path : path
        Plain or gzipped. Gzip cannot be entered in the middle: every reader of a part unpacks it
        from the start, which takes longer than parsing; unpack large files first.
    features : int, optional
        Number of columns; by default the largest index (of this part).
    part : (int, int)
        Which part, and of how many: the lines that begin in an equal share of the bytes. Ranks
        read each their own with ``(comm.rank, comm.size)``.

    Returns
    -------
    x : Sparse
    y : ndarray, shape (rows,), float64

    Raises
    ------
    DataError
        Naming file, line and column of what is wrong.

    Examples
    --------
    >>> x, y = read_libsvm("a9a", part=(comm.rank, comm.size))  # doctest: +SKIP
    """
    path, (number, parts) = Path(path), part
    if not 0 <= number < parts:
        raise DataError(f"part must be (number, parts) with 0 <= number < parts, got {part}")
    try:
        text = _Range(0, None)
        if parts > 1:
            size = _unpacked_size(path)
            text = _Range(size * number // parts, size * (number + 1) // parts)
        lines = entries = 0
        for _, block in _whole_lines(path, text):
            count = libsvm.count(block)
            lines, entries = lines + count.lines, entries + count.entries
        x, y = _parse(path, text, lines, entries)
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, FileNotFoundError | IsADirectoryError):
            raise DataError(f"there is no file {path} (looked from {Path.cwd()})") from None
        raise DataError(f"{path} is truncated or damaged: {error}; fetch it again") from None
    return _with_features(path, x, features), y


def read_libsvm_together(
    comm: Communicator, path: str | Path, features: int | None = None
) -> tuple[Sparse, NDArray[np.float64]]:
    """Return what `read_libsvm` does, each rank having parsed an equal share of the bytes.

    Collective. A rank then hands its samples to all others, so that each has all of them, as a
    sampler that shuffles them needs; it takes the memory of its part beside that of the whole.
    Every rank reads all of a gzipped file, which cannot be entered in the middle.

    Parameters
    ----------
    comm : Communicator
    path, features
        As in `read_libsvm`; the same file on all ranks.

    Raises
    ------
    DataError
        On every rank, when any finds a fault.
    """
    with comm.together():
        packed = Path(path).is_file() and _is_packed(Path(path))
    part = (0, 1) if comm.gather_scalars(packed).any() else (comm.rank, comm.size)
    with comm.together():
        x, y = read_libsvm(path, features, part)
    return (x, y) if part == (0, 1) else _gathered(comm, x, y)


def _gathered(
    comm: Communicator, x: Sparse, y: NDArray[np.float64]
) -> tuple[Sparse, NDArray[np.float64]]:
    """Return the samples of all ranks, one behind the other."""
    told = comm.gather_vectors([len(y), x.values.size, x.shape[1]]).astype(np.int64)
    (rows, entries), features = np.cumsum(told[:, :2], axis=0).T, int(told[:, 2].max())
    x.ends += entries[comm.rank] - x.values.size

    def whole(own: NDArray[Any], ends: NDArray[np.int64]) -> NDArray[Any]:
        array = np.empty(int(ends[-1]), own.dtype)
        array[ends[comm.rank] - own.size : ends[comm.rank]] = own
        for root, part in enumerate(np.split(array, ends[:-1])):
            comm.broadcast(part, root)
        return array

    columns, values = whole(x.columns, entries), whole(x.values, entries)
    return Sparse(whole(x.ends, rows), columns, values, features), whole(y, rows)


def _parse(
    path: Path, text: _Range, lines: int, entries: int
) -> tuple[Sparse, NDArray[np.float64]]:
    y, ends = np.empty(lines), np.empty(lines, np.int64)
    columns, values = np.empty(entries, np.int32), np.empty(entries, np.float32)
    row = entry = 0
    for offset, block in _whole_lines(path, text):
        try:
            count = libsvm.parse(block, y[row:], ends[row:], columns[entry:], values[entry:], entry)
        except libsvm.LibsvmError as error:
            line, column, word = _place(path, offset + error.offset)
            raise DataError(
                f"{path}, line {line}, column {column}: {error}, got {word!r}"
            ) from None
        row, entry = row + count.lines, entry + count.entries
    # Room for blank lines and comments was never touched, so giving it back copies nothing.
    for array, used in ((y, row), (ends, row), (columns, entry), (values, entry)):
        array.resize(used, refcheck=False)
    return Sparse(ends, columns, values, int(columns.max(initial=-1)) + 1), y


def _with_features(path: Path, x: Sparse, features: int | None) -> Sparse:
    largest = x.shape[1]
    if features is not None and largest > features:
        raise DataError(
            f"{path}: index {largest} is above data.features = {features}; raise data.features"
        )
    return x.widened(features or largest)


def _open(path: Path) -> BinaryIO:
    """Open a file, unpacked when it is gzip."""
    return gzip.open(path, "rb") if _is_packed(path) else path.open("rb")  # type: ignore[return-value]


def _is_packed(path: Path) -> bool:
    with path.open("rb") as raw:
        return raw.read(2) == b"\x1f\x8b"


def _unpacked_size(path: Path) -> int:
    with _open(path) as file:
        if not isinstance(file, gzip.GzipFile):
            return path.stat().st_size
        while file.read(BLOCK):
            pass
        return file.tell()


def _whole_lines(path: Path, text: _Range) -> Iterator[tuple[int, memoryview]]:
    """Yield offset and bytes of blocks of whole lines: those that begin in the range."""
    with _open(path) as file:
        begin = text.begin
        if begin > 0:  # the line that begins before it belongs to the part before
            file.seek(begin - 1)
            begin += len(file.readline(LONGEST_LINE)) - 1
        buffer, kept = bytearray(BLOCK), 0
        while text.end is None or begin < text.end:
            got = file.readinto(memoryview(buffer)[kept:])  # type: ignore[attr-defined]
            filled = kept + got
            end = _end_of_lines(buffer, filled, begin, text.end, last=not got)
            if end:
                yield begin, memoryview(buffer)[:end]
            if not got:
                return
            begin, kept = begin + end, filled - end
            rest = buffer[end:filled]
            if kept == len(buffer):  # one line fills it
                if kept > LONGEST_LINE:
                    raise DataError(f"{path} has a line of more than {LONGEST_LINE} bytes")
                buffer = bytearray(2 * kept)
            buffer[:kept] = rest


def _end_of_lines(buffer: bytearray, filled: int, begin: int, stop: int | None, last: bool) -> int:
    """Return where the last whole line ends that begins before the text position `stop`."""
    limit = filled
    if stop is not None and begin + filled > stop:
        # The line that holds the byte before `stop` is the last one.
        found = buffer.find(b"\n", max(0, stop - 1 - begin), filled)
        limit = found + 1 if found >= 0 else filled
    return limit if last else buffer.rfind(b"\n", 0, limit) + 1


def _place(path: Path, offset: int) -> tuple[int, int, str]:
    """Return line, column and word of a position in a text."""
    line, begin = 1, 0
    with _open(path) as file:
        for content in file:
            if begin + len(content) > offset:
                break
            begin += len(content)
            line += 1
        word = content[offset - begin :].split(None, 1)
    return line, offset - begin + 1, (word[0] if word else b"")[:40].decode("ascii", "replace")


def open_npy(path: str | Path) -> NDArray[Any]:
    """Map the array of an .npy file into memory: only rows that are used are read; local."""
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)  # type: ignore[no-any-return]
    except FileNotFoundError:
        raise DataError(f"there is no file {path} (looked from {Path.cwd()})") from None
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{path} is not a whole .npy file: {error}") from None


def open_hdf5(path: str | Path) -> tuple[Any, NDArray[Any]]:
    """Open the data sets ``x`` (samples, ...) and ``y`` (samples,) of an HDF5 file; local.

    Returns
    -------
    x : h5py.Dataset
        Stays on the disk; rows are read when they are used.
    y : ndarray, shape (samples,)
    """
    try:
        import h5py
    except ImportError:
        raise DataError(
            "HDF5 needs h5py, which is not installed; pip install 'paropt-hpc[hdf5]'"
        ) from None
    if not Path(path).is_file():
        raise DataError(f"there is no file {path} (looked from {Path.cwd()})")
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise DataError(f"{path} is not a whole HDF5 file: {error}") from None
    missing = {"x", "y"} - set(file)
    if missing:
        raise DataError(
            f"{path} has no data set {min(missing)!r}; it needs x (samples, ...) and y (samples,), "
            f"and has {', '.join(file) or 'none'}"
        )
    return file["x"], file["y"][:]
