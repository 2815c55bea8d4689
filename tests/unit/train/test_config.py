import tomllib

import pytest

from paropt_hpc.errors import ConfigError
from paropt_hpc.runs.settings import to_toml
from paropt_hpc.train import Config, load_config


@pytest.fixture
def config_file(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("[train]\nlr = 0.2\n")
    return path


def test_file_and_assignments(config_file):
    config = load_config(config_file, ["train.epochs=3", "compress.method=topk", "train.lr=1"])
    assert config.train.epochs == 3
    assert config.compress.method == "topk"
    assert config.train.lr == 1


def test_an_empty_file_is_the_defaults(tmp_path):
    (tmp_path / "empty.toml").write_text("")
    assert load_config(tmp_path / "empty.toml") == Config()


@pytest.mark.parametrize("assignments", [[], ["model.hidden=[7, 5]", "data.scale=standard"]])
def test_what_is_written_reads_back_the_same(config_file, tmp_path, assignments):
    config = load_config(config_file, assignments)
    written = tmp_path / "written.toml"
    written.write_text(to_toml(config))
    assert load_config(written) == config
    tables = tomllib.loads(to_toml(config))
    assert set(tables) == set(Config.model_fields)
    assert tables["train"]["nesterov"] is False


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("train.learning_rate=1", "unknown key train.learning_rate"),
        ("train.momentun=0.9", "did you mean train.momentum?"),
        ("trian.lr=0.1", "did you mean train"),
        ("model.lr=0.1", "did you mean train.lr?"),
        ("compress.densty=0.1", "did you mean compress.density?"),
        ("train.lr=fast", "train.lr should be a valid number, got 'fast'"),
        ("train.epochs=2.5", "train.epochs should be a valid integer"),
        ("train.epochs=0", "train.epochs should be greater than or equal to 1, got 0"),
        ("train.lr=nan", "train.lr should be"),
        ("compress.density=0", "compress.density should be greater than 0, got 0"),
        ("compress.density=1.5", "compress.density should be less than or equal to 1, got 1.5"),
        ("compress.method=top", "compress.method should be 'none', 'topk', 'randomk', 'thr"),
        ("compress.method=threshold", "compress.threshold and compress.method = 'threshold' go"),
        ("compress.threshold=0.1", "go together, got 0.1 and 'none'"),
        ("compress.method=quantize", "needs compress.values, such as 'int8'"),
        ("compress.values=int8", "needs a compress.method; 'quantize' sends all entries"),
        ("compress.momentum_correction=true", "is for methods that leave entries out"),
        ("compress.clip_norm=1", "train.clip_norm is for dense gradients"),
        ("compress.warmup_epochs=1", "compress.warmup_epochs is for method 'topk', got 'none'"),
        ("compress.overshoot=1.5", "compress.overshoot is for method 'topk', got 'none'"),
        ("model.hidden=[8, 0]", "model.hidden.1 should be greater than or equal to 1"),
        ("data.format=npz", "data.train must name a file"),
        ("train.lr", "--set takes SECTION.KEY=VALUE"),
        ("lr=0.1", "--set takes SECTION.KEY=VALUE"),
    ],
)
def test_bad_settings_name_key_and_remedy(config_file, assignment, said):
    with pytest.raises(ConfigError) as caught:
        load_config(config_file, [assignment])
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_key_outside_any_table(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("lr = 0.1\n")
    with pytest.raises(ConfigError, match=r"unknown key lr; did you mean train\.lr\?"):
        load_config(path)


def test_a_table_that_is_a_value(tmp_path):
    (tmp_path / "run.toml").write_text("train = 3\n")
    for assignments in ([], ["train.lr=1"]):
        with pytest.raises(ConfigError, match="train should be a table, got 3"):
            load_config(tmp_path / "run.toml", assignments)


def test_missing_and_broken_files(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*none\.toml: No such file"):
        load_config(tmp_path / "none.toml")
    (tmp_path / "broken.toml").write_text("[train\n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(tmp_path / "broken.toml")
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(tmp_path / "binary.toml")
