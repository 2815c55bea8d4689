import gzip

import numpy as np
import pytest

from paropt_hpc.errors import ConfigError, DataError
from paropt_hpc.train import (
    Config,
    Prefetch,
    Rows,
    Sparse,
    load_dataset,
    open_hdf5,
    open_npy,
    read_libsvm,
    readers,
)
from paropt_hpc.train.build import build_model
from paropt_hpc.train.config import DataConfig

GENERATOR = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    """So small that lines are longer, and files many blocks long."""
    monkeypatch.setattr(readers, "BLOCK", 16)


def sparse_matrix(rows=60, features=9):
    dense = GENERATOR.integers(0, 4, (rows, features)) * (GENERATOR.random((rows, features)) < 0.3)
    return dense.astype(np.float32)


def libsvm_text(dense, labels):
    lines = [
        " ".join([str(label), *(f"{j + 1}:{value:g}" for j, value in enumerate(row) if value)])
        for label, row in zip(labels, dense, strict=True)
    ]
    return "\n".join([*lines[:20], "# a comment: 1:2", "", *lines[20:]])  # no end of line


def test_rows_of_a_sparse_matrix():
    dense = sparse_matrix()
    row, column = np.nonzero(dense)
    ends = np.cumsum(np.count_nonzero(dense, axis=1))
    x = Sparse(ends, column.astype(np.int32), dense[row, column], dense.shape[1])
    assert x.shape == dense.shape
    for index in (slice(None), [], [0], [59, 0, 0, 7], np.arange(60) % 2 == 0, slice(50, 70)):
        assert np.array_equal(x[index], dense[index])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("parts", [1, 2, 3, 4, 7, 200])
def test_parts_of_a_file_are_its_lines_once_each(tmp_path, packed, parts):
    dense, labels = sparse_matrix(), np.arange(60)
    text = libsvm_text(dense, labels).encode()
    (tmp_path / "x").write_bytes(gzip.compress(text) if packed else text)
    found = [read_libsvm(tmp_path / "x", 9, (i, parts)) for i in range(parts)]
    assert np.array_equal(np.concatenate([y for _, y in found]), labels)
    assert np.array_equal(np.concatenate([x[:] for x, _ in found]), dense)


def test_arrays_are_as_long_as_they_must_be(tmp_path):
    (tmp_path / "x").write_text("1 1:2 # 3:4 5:6 : : :\n\n\n# 1:1\n0 2:2\n")
    x, y = read_libsvm(tmp_path / "x")
    assert (y.nbytes, x.nbytes) == (16, 2 * 8 + 2 * 8)


def test_faults_name_line_and_column_also_in_a_later_part(tmp_path):
    lines = [f"{i % 2} 1:1 2:2\n" for i in range(40)]
    lines[30] = "0 1:1 2:two 3:3\n"
    (tmp_path / "x").write_text("".join(lines))
    expected = r"x, line 31, column 9: expected a finite number after the colon, got 'two'"
    with pytest.raises(DataError, match=expected):
        read_libsvm(tmp_path / "x", part=(1, 2))
    read_libsvm(tmp_path / "x", part=(0, 2))


def test_a_line_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "LONGEST_LINE", 100)
    (tmp_path / "x").write_text("0 " + " " * 1000)
    with pytest.raises(DataError, match="a line of more than 100 bytes"):
        read_libsvm(tmp_path / "x")


@pytest.mark.parametrize("part", [(1, 1), (-1, 2), (0, 0)])
def test_parts_out_of_range(tmp_path, part):
    with pytest.raises(DataError, match="part must be"):
        read_libsvm(tmp_path / "x", part=part)


def files(tmp_path, x, y):
    h5py = pytest.importorskip("h5py")
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", y)
    with h5py.File(tmp_path / "xy.h5", "w") as file:
        file["x"], file["y"] = x, y
    np.savez(tmp_path / "xy.npz", x=x, y=y)
    return {
        "npy": {"train": str(tmp_path / "x.npy"), "train_labels": str(tmp_path / "y.npy")},
        "hdf5": {"train": str(tmp_path / "xy.h5")},
        "npz": {"train": str(tmp_path / "xy.npz")},
    }


@pytest.mark.parametrize("scale", ["none", "max", "standard"])
@pytest.mark.parametrize("kind", ["npy", "hdf5"])
def test_what_stays_on_the_disk_is_as_what_is_in_memory(tmp_path, kind, scale):
    x, y = 5 + GENERATOR.standard_normal((5000, 2, 3)), np.arange(5000) % 3
    named = files(tmp_path, x, y)
    far, near = (
        load_dataset(DataConfig(format=name, scale=scale, **named[name]), 0, "float64")
        for name in (kind, "npz")
    )
    assert isinstance(far.train.x, Rows)
    assert not isinstance(near.train.x, Rows)
    for one, other in ((far.train, near.train), (far.test, near.test)):
        assert one.x.shape == other.x.shape
        rows = GENERATOR.permutation(len(one.y))[:50]
        assert np.allclose(one.x[rows], other.x[rows], rtol=1e-12)
        assert np.allclose(one.x[10:20], other.x[10:20], rtol=1e-12)
        assert one.x[rows[:0]].shape == (0, 6)
        assert np.array_equal(one.y, other.y)
    assert far.train.x[:2].dtype == np.float64


def test_only_the_rows_that_are_asked_for_are_read():
    asked = []

    class Source:
        shape, dtype = (100, 2), np.dtype("float32")

        def __len__(self):
            return 100

        def __getitem__(self, rows):
            asked.append(list(rows))
            return np.zeros((len(rows), 2))

    x = Rows(Source(), np.arange(50, 100))
    assert x[[7, 3, 7]].shape == (3, 2)
    assert asked == [[53, 57]]


def test_files_that_are_missing_or_not_whole(tmp_path):
    named = files(tmp_path, np.ones((4, 2)), np.zeros(4))
    for path in (tmp_path / "x.npy", tmp_path / "xy.h5"):
        path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(DataError, match=r"x\.npy is not a whole \.npy file"):
        open_npy(named["npy"]["train"])
    with pytest.raises(DataError, match=r"xy\.h5 is not a whole HDF5 file"):
        open_hdf5(named["hdf5"]["train"])
    for reader in (open_npy, open_hdf5, read_libsvm):
        with pytest.raises(DataError, match="there is no file"):
            reader(tmp_path / "nowhere")


def test_features_that_are_not_finite_are_found_on_the_disk_too(tmp_path):
    x = np.ones((10, 2))
    x[:, 1] = np.nan
    named = files(tmp_path, x, np.arange(10) % 2)
    with pytest.raises(DataError, match="training sample 0 has a feature that is NaN"):
        load_dataset(DataConfig(format="npy", **named["npy"]), 0, "float32")


def test_ahead_of_time_is_the_same_in_the_same_order():
    with Prefetch(iter(range(50)), depth=3) as ahead:
        assert list(ahead) == list(range(50))
    assert not ahead._thread.is_alive()


def test_an_error_of_the_thread_comes_in_its_place():
    def items():
        yield 1
        raise OSError("the disk is gone")

    with Prefetch(items()) as ahead:
        found = iter(ahead)
        assert next(found) == 1
        with pytest.raises(OSError, match="the disk is gone"):
            next(found)
    assert not ahead._thread.is_alive()


def test_leaving_early_ends_the_thread():
    def endless():
        while True:
            yield 0

    with Prefetch(endless()) as ahead:
        for _ in ahead:
            break
    assert not ahead._thread.is_alive()


OWN = """
import numpy as np
from paropt_hpc.train import MLP

x = np.eye(4).repeat(5, axis=0)
y = np.arange(4).repeat(5)
def data(): return x, y
def both(n): return (x, y), (x[:n], y[:n])
def wrong(): return 3
def model(features, classes, width=2): return MLP(features, [width], classes)
def none(features, classes): return None
"""


@pytest.fixture
def own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own_things.py").write_text(OWN)
    (tmp_path / "own_broken.py").write_text("1 +")
    return "own_things"


def built(data, **model):
    sections = {"data": {"format": data}, "model": model}
    if data == "own_things:both":
        sections["data"]["options"] = {"n": 3}
    config = Config.model_validate(sections)
    dataset = load_dataset(config.data, 0, "float32")
    return dataset, build_model(config, dataset)


def test_data_and_model_of_ones_own(own):
    data, model = built("own_things:data", name="own_things:model", options={"width": 7})
    assert (data.features, data.classes, len(data.test.y)) == (4, 4, 4)
    assert model.widths == (4, 7, 4)
    data, _ = built("own_things:both", name="own_things:model")
    assert (len(data.train.y), len(data.test.y)) == (20, 3)


@pytest.mark.parametrize(
    ("data", "name", "said"),
    [
        ("digits", "nowhere:model", "cannot import nowhere: ModuleNotFoundError"),
        ("digits", "own_broken:model", "cannot import own_broken: SyntaxError"),
        ("digits", "own_things:mode", "has no callable 'mode'; it has data, both, wrong, model"),
        ("digits", "own_things:x", "has no callable 'x'"),
        ("digits", "own_things:data", "must take the keywords features, classes"),
        ("digits", "own_things:none", r"must return a paropt_hpc\.train\.Model, got NoneType"),
        ("own_things:wrong", "mlp", r"must return \(x, y\) or .* got int"),
        ("own_things:model", "mlp", "missing a required argument: 'features'"),
    ],
)
def test_what_does_not_keep_to_the_contract(own, data, name, said):
    with pytest.raises((ConfigError, DataError), match=said) as caught:
        built(data, name=name)
    assert "\n" not in str(caught.value)
