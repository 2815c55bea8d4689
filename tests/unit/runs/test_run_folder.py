import json
import tomllib

import pytest

from paropt_hpc.errors import ConfigError
from paropt_hpc.runs import RunFolder, read_summary
from paropt_hpc.train import Config
from paropt_hpc.train.config import RunConfig


def folder_of(path, config):
    return RunFolder(path, config, config.run)


def test_files_of_a_run(tmp_path):
    folder = folder_of(tmp_path / "a" / "run", Config())
    folder.add_metrics({"epoch": 1})
    folder.add_metrics({"epoch": 2})
    folder.write_summary({"steps": 3})
    lines = (tmp_path / "a" / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [1, 2]
    assert read_summary(tmp_path / "a" / "run") == {"steps": 3}
    assert tomllib.loads((tmp_path / "a" / "run" / "config.toml").read_text())["train"]
    assert not list((tmp_path / "a" / "run").glob(".*"))


def test_results_are_not_overwritten_unasked(tmp_path):
    folder_of(tmp_path, Config()).write_summary({"steps": 3})
    with pytest.raises(ConfigError, match="already holds the results"):
        folder_of(tmp_path, Config())
    assert read_summary(tmp_path) == {"steps": 3}
    folder_of(tmp_path, Config(run=RunConfig(overwrite=True)))
    with pytest.raises(ConfigError, match="no finished run"):
        read_summary(tmp_path)


def test_checkpoints_stay_when_a_run_goes_on(tmp_path):
    saved = tmp_path / "checkpoints" / "step-00000001"
    saved.mkdir(parents=True)
    folder = folder_of(tmp_path, Config(run=RunConfig(resume=True)))  # its metrics were lost
    folder.keep_metrics(3)
    folder.add_metrics({"epoch": 4})
    assert saved.is_dir()
    folder_of(tmp_path, Config(run=RunConfig(overwrite=True)))
    assert not saved.exists()


def test_a_run_that_cannot_go_on_leaves_the_folder_as_it_is(tmp_path):
    first = folder_of(tmp_path, Config())
    first.add_metrics({"epoch": 1})
    first.write_summary({"steps": 3})
    settings = (tmp_path / "config.toml").read_text()
    again = folder_of(tmp_path, Config(run=RunConfig(resume=True, seed=5)))
    assert read_summary(tmp_path) == {"steps": 3}
    assert (tmp_path / "config.toml").read_text() == settings
    again.keep_metrics(1)  # it can
    assert "seed = 5" in (tmp_path / "config.toml").read_text()
    assert not (tmp_path / "summary.json").exists()
    assert (tmp_path / "metrics.jsonl").read_text() == '{"epoch": 1}\n'


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="cannot write the run folder"):
        folder_of(tmp_path / "file" / "run", Config())


def test_a_damaged_summary(tmp_path):
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(ConfigError, match="damaged"):
        read_summary(tmp_path)
