import gzip
import struct

import numpy as np
import pytest

from paropt_hpc.errors import DataError
from paropt_hpc.train import load_dataset, read_libsvm
from paropt_hpc.train.config import DataConfig
from paropt_hpc.train.data import read_digits, read_idx, read_npz

LIBSVM = "1 1:0.5 3:2\n0 2:-1e3  # a comment\n\n1\n0 4:1\n"


def idx_bytes(array, code):
    header = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


@pytest.fixture
def idx_files(tmp_path):
    images = np.arange(40 * 6, dtype=np.uint8).reshape(40, 2, 3)
    labels = (np.arange(40) % 4).astype(np.uint8)
    (tmp_path / "images").write_bytes(idx_bytes(images, 0x08))
    (tmp_path / "labels").write_bytes(idx_bytes(labels, 0x08))
    return tmp_path, images, labels


def libsvm_file(tmp_path, text, name="data.txt"):
    path = tmp_path / name
    path.write_text(text)
    return path


def npz_config(tmp_path, x, y, **settings):
    np.savez(tmp_path / "data.npz", x=x, y=y)
    return DataConfig(format="npz", train=str(tmp_path / "data.npz"), **settings)


def test_libsvm(tmp_path):
    x, y = read_libsvm(libsvm_file(tmp_path, LIBSVM))
    assert x[:].tolist() == [[0.5, 0, 2, 0], [0, -1000, 0, 0], [0, 0, 0, 0], [0, 0, 0, 1]]
    assert y.tolist() == [1, 0, 1, 0]


def test_libsvm_packed_and_wider(tmp_path):
    (tmp_path / "data.gz").write_bytes(gzip.compress(LIBSVM.encode()))
    x, _ = read_libsvm(tmp_path / "data.gz", features=6)
    assert x.shape == (4, 6)
    with pytest.raises(DataError, match=r"index 4 is above data\.features = 3"):
        read_libsvm(tmp_path / "data.gz", features=3)


@pytest.mark.parametrize("line", ["1 1:x", "spam 1:2", "1 :2", "1 3"])
def test_libsvm_names_the_bad_line(tmp_path, line):
    with pytest.raises(DataError, match="line 2"):
        read_libsvm(libsvm_file(tmp_path, f"0 1:1\n{line}\n"))


def test_libsvm_counts_from_one(tmp_path):
    with pytest.raises(DataError, match="line 1, column 3: expected index:value with"):
        read_libsvm(libsvm_file(tmp_path, "1 0:3\n"))


def test_idx(idx_files):
    folder, images, labels = idx_files
    x, y = read_idx(folder / "images", folder / "labels")
    assert np.array_equal(x, images.reshape(40, 6))
    assert np.array_equal(y, labels)


@pytest.mark.parametrize(("dtype", "code"), [("int16", 0x0B), ("int32", 0x0C), ("float64", 0x0E)])
def test_idx_of_other_types(tmp_path, dtype, code):
    array = np.array([[1, -2], [3, 4]], dtype)
    (tmp_path / "x").write_bytes(idx_bytes(array, code))
    (tmp_path / "y").write_bytes(idx_bytes(array[:, 0].copy(), code))
    x, _ = read_idx(tmp_path / "x", tmp_path / "y")
    assert np.array_equal(x, array)


@pytest.mark.parametrize("keep", [0, 3, 9, 100, 239])
@pytest.mark.parametrize("packed", [False, True])
def test_idx_truncated(idx_files, keep, packed):
    folder, *_ = idx_files
    whole = (folder / "images").read_bytes()
    short = gzip.compress(whole)[: keep + 20] if packed else whole[:keep]
    (folder / "short").write_bytes(short)
    with pytest.raises(DataError, match="short"):
        read_idx(folder / "short", folder / "labels")


def test_npz(tmp_path):
    config = npz_config(tmp_path, np.ones((20, 3)), np.arange(20) % 2)
    assert load_dataset(config, 0, "float32").train.x.shape == (16, 3)
    np.savez(tmp_path / "other.npz", x=np.ones((2, 2)))
    with pytest.raises(DataError, match="has no array 'y'"):
        read_npz(tmp_path / "other.npz")
    (tmp_path / "short.npz").write_bytes((tmp_path / "data.npz").read_bytes()[:-50])
    with pytest.raises(DataError, match="not a whole"):
        read_npz(tmp_path / "short.npz")


def test_a_missing_file():
    with pytest.raises(DataError, match="there is no file nowhere"):
        read_libsvm("nowhere")


def test_digits_are_split_by_class_and_scaled():
    data = load_dataset(DataConfig(), 0, "float32")
    assert data.features == 64
    assert data.classes == 10
    assert len(data.train.y) + len(data.test.y) == len(read_digits()[1]) == 1797
    assert data.train.x.dtype == np.float32
    assert data.train.x.max() == 1
    share = np.bincount(data.test.y) / np.bincount(np.concatenate([data.train.y, data.test.y]))
    assert np.allclose(share, 0.2, atol=0.01)


def test_standard_scaling_uses_the_training_part_only():
    data = load_dataset(DataConfig(scale="standard"), 0, "float64")
    moving = data.train.x.std(axis=0) > 0
    assert np.allclose(data.train.x.mean(axis=0), 0, atol=1e-12)
    assert np.allclose(data.train.x.std(axis=0)[moving], 1)
    assert not np.allclose(data.test.x.mean(axis=0), 0, atol=1e-12)


def test_the_split_is_seeded():
    one, same, other = (load_dataset(DataConfig(), seed, "float32") for seed in (1, 1, 2))
    assert np.array_equal(one.test.x, same.test.x)
    assert not np.array_equal(one.test.x, other.test.x)


def test_own_test_file_may_show_fewer_features(tmp_path):
    train = libsvm_file(tmp_path, "-1 1:1 4:1\n1 2:1\n")
    test = libsvm_file(tmp_path, "1 2:1\n-1 1:1\n", "test.txt")
    config = DataConfig(format="libsvm", train=str(train), test=str(test))
    data = load_dataset(config, 0, "float32")
    assert data.test.x.shape == (2, 4)
    assert data.train.y.tolist() == [0, 1]
    assert data.test.y.tolist() == [1, 0]


def test_labels_out_of_range(tmp_path):
    config = npz_config(tmp_path, np.ones((10, 2)), np.arange(10) % 5, classes=3)
    with pytest.raises(DataError, match=r"label [34] is out of range: labels are 0 to 2"):
        load_dataset(config, 0, "float32")
    with pytest.raises(DataError, match="label -1 is out of range"):
        load_dataset(npz_config(tmp_path, np.ones((10, 2)), np.arange(10) - 1), 0, "float32")
    with pytest.raises(DataError, match="label 1000000000 is out of range"):
        load_dataset(npz_config(tmp_path, np.ones((2, 2)), np.array([0, 10**9])), 0, "float32")
    with pytest.raises(DataError, match="whole numbers"):
        load_dataset(npz_config(tmp_path, np.ones((10, 2)), np.full(10, 0.5)), 0, "float32")


def test_a_test_label_that_training_never_shows(tmp_path):
    train = libsvm_file(tmp_path, "-1 1:1\n1 2:1\n")
    test = libsvm_file(tmp_path, "5 2:1\n", "test.txt")
    config = DataConfig(format="libsvm", train=str(train), test=str(test))
    with pytest.raises(DataError, match="label 5 is out of range"):
        load_dataset(config, 0, "float32")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_features_that_are_not_finite(tmp_path, bad):
    x = np.ones((10, 2))
    x[:, 1] = bad
    with pytest.raises(DataError, match="NaN or infinite"):
        load_dataset(npz_config(tmp_path, x, np.arange(10) % 2), 0, "float32")


def test_as_many_labels_as_samples(tmp_path):
    with pytest.raises(DataError, match="10 samples and labels of shape"):
        load_dataset(npz_config(tmp_path, np.ones((10, 2)), np.zeros(9, int)), 0, "float32")
