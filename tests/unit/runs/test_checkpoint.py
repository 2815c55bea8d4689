import json

import numpy as np
import pytest

from paropt_hpc.comm import SerialCommunicator
from paropt_hpc.errors import DataError
from paropt_hpc.runs.checkpoint import Checkpoints, flatten, unflatten


def state_of(step):
    return {
        "params": np.arange(5.0) + step,
        "strategy": {"steps": step, "optimizer": {"velocity": np.full(3, step, np.float32)}},
        "lr": 0.1 * step,
    }


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path / "checkpoints", SerialCommunicator(), keep=2)


def assert_same(state, expected):
    got, wanted = flatten(state), flatten(expected)
    assert got.keys() == wanted.keys()
    for name, value in wanted.items():
        assert np.array_equal(got[name], value)
        assert np.asarray(got[name]).dtype == np.asarray(value).dtype


def test_a_state_comes_back_as_it_was(checkpoints):
    checkpoints.save(7, {"epoch": 1, "batch": 3}, {"rank-00000": state_of(7)})
    found = checkpoints.load()
    assert found.step == 7
    assert found.position == {"epoch": 1, "batch": 3}
    assert_same(found.state("rank-00000"), state_of(7))
    assert isinstance(found.state("rank-00000")["strategy"]["steps"], int)


def test_flatten_and_back():
    leaves = ((name, np.asarray(value)) for name, value in flatten(state_of(2)).items())
    assert_same(unflatten(leaves), state_of(2))


def test_parts_with_leaves_that_are_no_arrays(checkpoints):
    state = {"name": "de", "best": None, "recent": [True, False], "big": 1 << 100, "empty": {}}
    state |= {"inf": float("inf"), "deep": {"x": np.zeros(0), "empty": {}}}
    checkpoints.save(1, {}, {"island-00000": state, "island-00001": {"a": 1}})
    found = checkpoints.load()
    assert found.parts == 2
    back = found.state("island-00000")
    assert back["deep"].pop("x").shape == (0,)
    del state["deep"]["x"]
    assert back == state
    assert found.state("island-00001") == {"a": 1}


def test_nothing_there(checkpoints):
    assert checkpoints.load() is None


def test_the_newest_is_found_and_old_ones_go(checkpoints):
    for step in (1, 5, 30, 200):
        checkpoints.save(step, {}, {"rank-00000": state_of(step)})
    assert checkpoints.load().step == 200
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == [
        "step-00000030",
        "step-00000200",
    ]


def test_the_newest_of_a_long_run_is_found(checkpoints):
    for step in (99_999_998, 99_999_999, 100_000_000):
        checkpoints.save(step, {}, {"rank-00000": state_of(7)})
    assert checkpoints.load().step == 100_000_000
    assert len(list(checkpoints.folder.iterdir())) == 2


def test_what_has_written_it_is_known(checkpoints):
    checkpoints.save(1, {}, {"rank-00000": state_of(1)})
    found = checkpoints.load()
    assert found.versions["numpy"] == np.__version__
    assert found.updated == ""
    manifest = checkpoints.folder / "step-00000001" / "manifest.json"
    content = json.loads(manifest.read_text())
    content["versions"] |= {"numpy": "1.0", "pigeons": "3"}
    manifest.write_text(json.dumps(content))
    assert checkpoints.load().updated == f"numpy was 1.0 and is {np.__version__}"
    del content["versions"]
    manifest.write_text(json.dumps(content))
    assert checkpoints.load().updated == ""


def flip_a_bit(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


DAMAGE = {
    "flipped": lambda folder: flip_a_bit(folder / "rank-00000.npz"),
    "short": lambda folder: (folder / "rank-00000.npz").write_bytes(b"PK"),
    "missing": lambda folder: (folder / "rank-00000.npz").unlink(),
    "no manifest": lambda folder: (folder / "manifest.json").unlink(),
    "half a manifest": lambda folder: (folder / "manifest.json").write_text('{"version": 1'),
    "empty manifest": lambda folder: (folder / "manifest.json").write_text("{}"),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_one_is_passed_over(checkpoints, damage):
    checkpoints.save(1, {}, {"rank-00000": state_of(1)})
    checkpoints.save(2, {}, {"rank-00000": state_of(2)})
    damage(checkpoints.folder / "step-00000002")
    with pytest.warns(UserWarning, match="step-00000002 is damaged"):
        found = checkpoints.load()
    assert found.step == 1
    assert_same(found.state("rank-00000"), state_of(1))


def test_another_version_is_passed_over(checkpoints):
    checkpoints.save(1, {}, {"rank-00000": state_of(1)})
    manifest = checkpoints.folder / "step-00000001" / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"version": 99}))
    with pytest.warns(UserWarning, match="version 99"):
        assert checkpoints.load() is None


def test_what_a_crash_left_behind_is_no_checkpoint(checkpoints):
    checkpoints.save(1, {}, {"rank-00000": state_of(1)})
    half = checkpoints.folder / ".step-00000002.tmp"
    half.mkdir()
    (half / "rank-00000.npz").write_bytes(b"half")
    assert checkpoints.load().step == 1
    checkpoints.save(2, {}, {"rank-00000": state_of(2)})
    assert checkpoints.load().step == 2
    assert not half.exists()


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    checkpoints = Checkpoints(tmp_path / "file" / "in", SerialCommunicator())
    with pytest.raises(DataError, match="cannot make the checkpoint"):
        checkpoints.save(1, {}, {"rank-00000": state_of(1)})
