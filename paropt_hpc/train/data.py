"""Data sets: readers for common files, the split into training and test, the scaling."""

import gzip
import zipfile
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.errors import DataError
from paropt_hpc.kernels import rng
from paropt_hpc.train.config import DataConfig
from paropt_hpc.train.models import Batch

__all__ = ["Dataset", "load_dataset", "read_digits", "read_idx", "read_libsvm", "read_npz"]

Samples = tuple[NDArray[Any], NDArray[Any]]

# A label above this is taken for damage unless data.classes says that it is meant.
MOST_CLASSES = 100_000

# IDX type codes (third byte of the magic number), big-endian.
IDX_TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


class Dataset(NamedTuple):
    """Everything a run trains and tests on."""

    train: Batch
    test: Batch
    classes: int

    @property
    def features(self) -> int:
        """Number of features of a sample."""
        return int(self.train.x.shape[1])


def load_dataset(config: DataConfig, seed: int, dtype: str) -> Dataset:
    """Read, split, check and scale the data that a configuration names; local.

    Raises
    ------
    DataError
        Naming the file and what is wrong with it.
    """
    (x, y), test = _read(config)
    if test is None:
        x, y, x_test, y_test = _split(x, y, config.test_fraction, seed)
    else:
        x_test, y_test = test
    if not x.shape[0]:
        raise DataError("there are no training samples; check data.train")
    _check_features(x, x_test)
    y, y_test, classes = _number_labels(config, y, y_test)
    x, x_test = _scale(config.scale, x.astype(dtype), x_test.astype(dtype))
    return Dataset(Batch(x, y), Batch(x_test, y_test), classes)


def read_digits() -> Samples:
    """Return scikit-learn's 1,797 digits of 8 x 8 pixels: x (1797, 64), y (1797,)."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise DataError(
            "the digits data set comes with scikit-learn, which is not installed; "
            "pip install 'paropt-hpc[data]'"
        ) from None
    x, y = load_digits(return_X_y=True)
    return x, y


def read_npz(path: str | Path) -> Samples:
    """Return the arrays ``x`` (samples, features) and ``y`` (samples,) of an .npz file."""
    try:
        with _existing(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            missing = {"x", "y"} - set(file.files)
            if missing:
                raise DataError(
                    f"{path} has no array {sorted(missing)[0]!r}; it needs x (samples, features) "
                    f"and y (samples,), and has {', '.join(file.files) or 'none'}"
                )
            x, y = file["x"], file["y"]
    except (OSError, EOFError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is not a whole .npz file: {error}") from None
    return _flat(path, x), y


def read_idx(images: str | Path, labels: str | Path) -> Samples:
    """Return the samples of a pair of IDX files, plain or gzipped, as MNIST comes.

    Returns
    -------
    x : ndarray, shape (samples, features)
        The trailing axes of the images flattened.
    y : ndarray, shape (samples,)
    """
    return _flat(images, _read_idx_array(images)), _read_idx_array(labels)


def read_libsvm(path: str | Path, features: int | None = None) -> Samples:
    """Return the samples of a LIBSVM text file, plain or gzipped.

    A line is ``label index:value index:value ...`` with indices from 1; ``#`` starts a
    comment.

    Returns
    -------
    x : ndarray, shape (samples, features), float32
        Dense; `features` is the largest index unless given.
    y : ndarray, shape (samples,), float64
    """
    labels: list[float] = []
    rows: list[int] = []
    columns: list[int] = []
    values: list[float] = []
    for number, line in enumerate(_contents(path).decode("ascii", "replace").splitlines(), 1):
        label, *entries = line.partition("#")[0].split() or [""]
        if not label:
            continue
        try:
            for entry in entries:
                index, _, value = entry.partition(":")
                columns.append(int(index) - 1)
                values.append(float(value))
            rows.extend([len(labels)] * len(entries))
            labels.append(float(label))
        except ValueError:
            raise DataError(
                f"{path}, line {number}: expected 'label index:value ...', got {line[:40]!r}"
            ) from None
    return _dense(path, len(labels), rows, columns, values, features), np.array(labels)


def _dense(
    path: str | Path,
    samples: int,
    rows: list[int],
    columns: list[int],
    values: list[float],
    features: int | None,
) -> NDArray[np.float32]:
    if min(columns, default=0) < 0:
        raise DataError(f"{path}: indices start at 1, got {min(columns) + 1}")
    largest = max(columns, default=-1) + 1
    if features is not None and largest > features:
        raise DataError(
            f"{path}: index {largest} is above data.features = {features}; raise data.features"
        )
    x = np.zeros((samples, features or largest), np.float32)
    x[rows, columns] = values
    return x


def _read(config: DataConfig) -> tuple[Samples, Samples | None]:
    """Read the training file, and the test file where one is named."""
    if config.format == "digits":
        return read_digits(), None
    train, test = str(config.train), config.test
    if config.format == "npz":
        return read_npz(train), read_npz(test) if test else None
    if config.format == "idx":
        return (
            read_idx(train, str(config.train_labels)),
            read_idx(test, str(config.test_labels)) if test else None,
        )
    x, y = read_libsvm(train, config.features)
    if not test:
        return (x, y), None
    # The test file need not show every feature, nor the training file: take the wider.
    x_test, y_test = read_libsvm(test, config.features)
    width = max(x.shape[1], x_test.shape[1])
    return (_widen(x, width), y), (_widen(x_test, width), y_test)


def _widen(x: NDArray[Any], width: int) -> NDArray[Any]:
    return np.pad(x, ((0, 0), (0, width - x.shape[1])))


def _read_idx_array(path: str | Path) -> NDArray[Any]:
    content = _contents(path)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in IDX_TYPES:
        raise DataError(f"{path} is not an IDX file: it starts with {content[:4].hex()!r}")
    dtype, axes = np.dtype(IDX_TYPES[content[2]]), content[3]
    start = 4 + 4 * axes
    shape = np.frombuffer(content[4:start].ljust(4 * axes, b"\0"), ">u4").astype(int)
    expected = start + int(shape.prod()) * dtype.itemsize
    if len(content) != expected:
        raise DataError(
            f"{path} has {len(content)} bytes, its header of shape {tuple(map(int, shape))} "
            f"asks for {expected}; the file is truncated or damaged, fetch it again"
        )
    return np.frombuffer(content, dtype, offset=start).reshape(shape)


def _contents(path: str | Path) -> bytes:
    """Return the bytes of a file, unpacked when they are gzip."""
    raw = _existing(path).read_bytes()
    if raw[:2] != b"\x1f\x8b":
        return raw
    try:
        return gzip.decompress(raw)
    except (EOFError, OSError, zlib.error) as error:
        raise DataError(f"{path} is truncated or damaged: {error}; fetch it again") from None


def _existing(path: str | Path) -> Path:
    file = Path(path)
    if not file.is_file():
        raise DataError(f"there is no file {path} (looked from {Path.cwd()})")
    return file


def _flat(path: str | Path, x: NDArray[Any]) -> NDArray[Any]:
    if x.ndim < 2:
        raise DataError(f"{path}: samples must have at least 2 axes, got shape {x.shape}")
    return x.reshape(x.shape[0], -1)


def _split(
    x: NDArray[Any], y: NDArray[Any], fraction: float, seed: int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Set a seeded share of every class apart for the test, so that none goes missing."""
    _check_lengths(x, y)
    order = rng.philox(seed, "split").permutation(len(y))
    is_test = np.zeros(len(y), bool)
    for label in np.unique(y):
        members = order[y[order] == label]
        is_test[members[: round(fraction * members.size)]] = True
    return x[~is_test], y[~is_test], x[is_test], y[is_test]


def _check_lengths(x: NDArray[Any], y: NDArray[Any]) -> None:
    if y.ndim != 1 or len(x) != len(y):
        raise DataError(
            f"every sample needs one label, got {len(x)} samples and labels of shape {y.shape}"
        )


def _check_features(x: NDArray[Any], x_test: NDArray[Any]) -> None:
    if x.shape[1] != x_test.shape[1]:
        raise DataError(
            f"training samples have {x.shape[1]} features and test samples {x_test.shape[1]}; "
            "check data.train and data.test"
        )
    for name, part in (("training", x), ("test", x_test)):
        if part.dtype.kind not in "biuf":
            raise DataError(f"{name} samples must be numbers, got dtype {part.dtype}")
        if not np.isfinite(part).all():
            row = int(np.nonzero(~np.isfinite(part).all(axis=1))[0][0])
            raise DataError(f"{name} sample {row} has a feature that is NaN or infinite")


def _number_labels(
    config: DataConfig, y: NDArray[Any], y_test: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Turn labels into 0 .. classes-1.

    Whole numbers from 0 stay as they are. Where LIBSVM files start elsewhere, such as the
    -1 and 1 of two classes, the labels of the training part are numbered in ascending order.
    """
    for part in (y, y_test):
        if part.size and (part.dtype.kind not in "iuf" or (part != np.floor(part)).any()):
            raise DataError("labels must be whole numbers; regression targets are not supported")
    names = np.unique(y)
    if config.format == "libsvm" and names[0] != 0:
        classes = config.classes or names.size
        _check_labels(y, np.isin(y, names[:classes]), names[:classes])
        _check_labels(y_test, np.isin(y_test, names), names)
        return np.searchsorted(names, y), np.searchsorted(names, y_test), classes
    classes = config.classes or min(int(names[-1]) + 1, MOST_CLASSES)
    for part in (y, y_test):
        _check_labels(part, (part >= 0) & (part < classes), np.array([0, classes - 1]))
    return y.astype(np.int64), y_test.astype(np.int64), classes


def _check_labels(y: NDArray[Any], valid: NDArray[np.bool_], names: NDArray[Any]) -> None:
    if not valid.all():
        raise DataError(
            f"label {int(y[~valid][0])} is out of range: labels are {int(names[0])} to "
            f"{int(names[-1])}, as data.classes or the training part says; "
            "set data.classes or check the labels"
        )


def _scale(how: str, x: NDArray[Any], x_test: NDArray[Any]) -> Samples:
    """Scale by what the training part shows; the test part never leaks into it."""
    if how == "max":
        largest = np.abs(x).max(initial=0) or 1
        return x / largest, x_test / largest
    if how == "standard":
        mean, deviation = x.mean(axis=0), x.std(axis=0)
        deviation[deviation == 0] = 1
        return (x - mean) / deviation, (x_test - mean) / deviation
    return x, x_test
