"""Data sets: readers for common files, the split into training and test, the scaling."""

import functools
import gzip
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.comm import Communicator
from paropt_hpc.errors import DataError
from paropt_hpc.kernels import rng
from paropt_hpc.train.config import DataConfig
from paropt_hpc.train.custom import call
from paropt_hpc.train.models import Batch
from paropt_hpc.train.ragged import Ragged, bucket_edges
from paropt_hpc.train.readers import (
    Rows,
    Sparse,
    open_hdf5,
    open_npy,
    read_libsvm,
    read_libsvm_together,
)

__all__ = ["Dataset", "load_dataset", "load_together", "read_digits", "read_idx", "read_npz"]

Samples = tuple[Any, NDArray[Any]]  # what is indexed like an array, and labels

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
    return _prepared(config, seed, dtype, *_read(config))


def load_together(comm: Communicator, config: DataConfig, seed: int, dtype: str) -> Dataset:
    """Do what `load_dataset` does, with ranks that share the work of reading text; collective.

    Raises
    ------
    DataError
        On every rank.
    """
    found: tuple[Samples, Samples | None] | None = None
    if config.format == "libsvm":
        found = _read_libsvm(config, functools.partial(read_libsvm_together, comm))
    with comm.together():
        return _prepared(config, seed, dtype, *(found or _read(config)))


def _prepared(
    config: DataConfig, seed: int, dtype: str, train: Samples, test: Samples | None
) -> Dataset:
    """Split, check and scale what has been read."""
    x, y = train
    _check_lengths(x, y)
    if test is None:
        rows, test_rows = _split(y, config.test_fraction, seed)
        x, x_test = _part(x, rows), _part(x, test_rows)
        y, y_test = y[rows], y[test_rows]
    else:
        x_test, y_test = test
        _check_lengths(x_test, y_test)
        x, x_test = _part(x), _part(x_test)
    if not x.shape[0]:
        raise DataError("there are no training samples; check data.train")
    if isinstance(x, Ragged) != isinstance(x_test, Ragged):
        raise DataError("training and test samples must both have one length, or both lengths")
    if isinstance(x, Ragged):
        x, x_test = _bucketed(x, x_test, config.buckets)
    else:
        _check_features(x, x_test)
    y, y_test, classes = _number_labels(config, y, y_test)
    x, x_test = _scaled(config.scale, _typed(x, dtype), _typed(x_test, dtype))
    return Dataset(Batch(x, y), Batch(x_test, y_test), classes)


def _bucketed(x: Ragged, x_test: Ragged, buckets: int) -> tuple[Ragged, Ragged]:
    """Pad both parts to the buckets of the training part, with tokens for both."""
    edges, tokens = bucket_edges(x.lengths, buckets), max(x.shape[1], x_test.shape[1])
    parts = x.widened(tokens), x_test.widened(tokens)
    for part in parts:
        part.edges = edges
    return parts


def _part(x: Any, rows: NDArray[np.int64] | None = None) -> Any:
    """Return some rows, all by default: a copy in memory, or a view of what is elsewhere."""
    if isinstance(x, Ragged):
        return x if rows is None else x.take(rows)
    if isinstance(x, np.ndarray) and not isinstance(x, np.memmap):
        return x if rows is None else x[rows]
    return Rows(x, rows)


def _typed(x: Any, dtype: str) -> Any:
    if isinstance(x, Ragged):
        return x  # tokens are numbers of vectors
    if isinstance(x, Rows):
        x.dtype = np.dtype(dtype)
        return x
    return x.astype(dtype)


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
    """Return the arrays ``x`` (samples, features) and ``y`` (samples,) of an .npz file.

    Instead of ``x`` it may have ``values`` (tokens,) and ``offsets`` (samples + 1,): then the
    samples are sequences of tokens, a `Ragged`.
    """
    try:
        with _existing(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            if {"values", "offsets", "y"} <= set(file.files):
                return Ragged(file["values"], file["offsets"]), file["y"]
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


def _read(config: DataConfig) -> tuple[Samples, Samples | None]:
    """Read the training file, and the test file where one is named."""
    if config.format == "digits":
        return read_digits(), None
    if ":" in config.format:
        return _own(config)
    train, test = str(config.train), config.test
    if config.format in ("npz", "hdf5"):
        reader = read_npz if config.format == "npz" else open_hdf5
        return reader(train), reader(test) if test else None
    if config.format in ("idx", "npy"):
        pair = read_idx if config.format == "idx" else _read_npy
        return (
            pair(train, str(config.train_labels)),
            pair(test, str(config.test_labels)) if test else None,
        )
    return _read_libsvm(config, read_libsvm)


def _read_libsvm(
    config: DataConfig, read: Callable[[str, int | None], tuple[Sparse, NDArray[Any]]]
) -> tuple[Samples, Samples | None]:
    """Read the training file, and the test file where one is named."""
    x, y = read(str(config.train), config.features)
    if not config.test:
        return (x, y), None
    # The test file need not show every feature, nor the training file: take the wider.
    x_test, y_test = read(config.test, config.features)
    width = max(x.shape[1], x_test.shape[1])
    return (x.widened(width), y), (x_test.widened(width), y_test)


def _read_npy(samples: str | Path, labels: str | Path) -> Samples:
    """Map samples, shape (samples, ...), and read labels, shape (samples,), of .npy files."""
    x = open_npy(samples)
    if x.ndim < 2:
        raise DataError(f"{samples}: samples must have at least 2 axes, got shape {x.shape}")
    return x, np.array(open_npy(labels))


def _own(config: DataConfig) -> tuple[Samples, Samples | None]:
    """Return what the user's callable returns: (x, y), or ((x, y), (x_test, y_test))."""
    found = call("data.format", config.format, **config.options)
    try:
        first, second = found
        if isinstance(first, tuple):
            (x, y), (x_test, y_test) = first, second
            return (_flat(config.format, x), np.asarray(y)), (
                _flat(config.format, x_test),
                np.asarray(y_test),
            )
        return (_flat(config.format, first), np.asarray(second)), None
    except (TypeError, ValueError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(
            f"data.format = {config.format!r} must return (x, y) or ((x, y), (x_test, y_test)), "
            f"got {type(found).__name__}: {error}"
        ) from None


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
    y: NDArray[Any], fraction: float, seed: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of training and test: a seeded share of every class is for the test."""
    order = rng.philox(seed, "split").permutation(len(y))
    is_test = np.zeros(len(y), bool)
    for label in np.unique(y):
        members = order[y[order] == label]
        is_test[members[: round(fraction * members.size)]] = True
    return np.flatnonzero(~is_test), np.flatnonzero(is_test)


def _check_lengths(x: Any, y: NDArray[Any]) -> None:
    if y.ndim != 1 or len(x) != len(y):
        raise DataError(
            f"every sample needs one label, got {len(x)} samples and labels of shape {y.shape}"
        )


def _check_features(x: Any, x_test: Any) -> None:
    if x.shape[1] != x_test.shape[1]:
        raise DataError(
            f"training samples have {x.shape[1]} features and test samples {x_test.shape[1]}; "
            "check data.train and data.test"
        )
    for name, part in (("training", x), ("test", x_test)):
        dtype = part.source.dtype if isinstance(part, Rows) else part.dtype
        if dtype.kind not in "biuf":
            raise DataError(f"{name} samples must be numbers, got dtype {dtype}")
        if not isinstance(part, Rows):
            _check_finite(name, part)


def _check_finite(name: str, part: NDArray[Any], first: int = 0) -> None:
    if not np.isfinite(part).all():
        row = first + int(np.nonzero(~np.isfinite(part).all(axis=1))[0][0])
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


def _scaled(how: str, x: Any, x_test: Any) -> tuple[Any, Any]:
    """Scale by what the training part shows; the test part never leaks into it."""
    if isinstance(x, Ragged):
        return x, x_test
    shift, factor = _scale(how, x)
    if isinstance(x, Rows):
        for part in (x, x_test):
            part.shift, part.factor = shift, factor
        return x, x_test
    if how == "none":
        return x, x_test
    return (x - shift) * factor, (x_test - shift) * factor


def _scale(how: str, x: Any) -> tuple[Any, Any]:
    """Return what to subtract from features, and then to multiply them by.

    What is not in memory is read once for it, some rows at a time.
    """
    if how == "none":
        return 0, 1
    blocks = x.blocks() if isinstance(x, Rows) else [x]
    largest, count, mean, squares = 0.0, 0, np.zeros(x.shape[1]), np.zeros(x.shape[1])
    for block in blocks:
        _check_finite("training", block, count)
        largest = max(largest, float(np.abs(block).max(initial=0)))
        if how == "standard":  # merged as by Chan, Golub and LeVeque (1983), equation 2.1
            own = block.mean(axis=0, dtype=np.float64)
            total = count + len(block)
            squares += np.square(block - own).sum(axis=0)
            squares += (own - mean) ** 2 * (count * len(block) / total)
            mean += (own - mean) * (len(block) / total)
        count += len(block)
    if how == "max":
        return 0, 1 / (largest or 1)
    deviation = np.sqrt(squares / count)
    deviation[deviation == 0] = 1
    return mean.astype(x.dtype), (1 / deviation).astype(x.dtype)
