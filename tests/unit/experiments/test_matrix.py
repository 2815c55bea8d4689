import pytest

from paropt_hpc.errors import ConfigError
from paropt_hpc.experiments import check_settings, load_matrix
from paropt_hpc.experiments.matrix import config_of
from paropt_hpc.runs.settings import to_toml

MATRIX = """
base = "base.toml"
repeats = 2
seed = 5
target.value = 0.9
[axes]
ranks = [1, 4]
method = [
  { label = "dense" },
  { label = "top-k 1 %", "compress.method" = "topk", "compress.density" = 0.01 },
]
"train.nesterov" = [true, false]
"""


@pytest.fixture
def write(tmp_path):
    (tmp_path / "base.toml").write_text("[train]\nepochs = 3\n")

    def make(text):
        path = tmp_path / "matrix.toml"
        path.write_text(text)
        return path

    return make


def test_every_combination_runs_as_often_as_asked(write):
    cells = load_matrix(write(MATRIX)).cells()
    assert [cell.number for cell in cells] == list(range(2 * 2 * 2 * 2))
    assert {(c.ranks, *c.settings.items(), c.seed) for c in cells} == {
        (ranks, *settings, seed)
        for ranks in (1, 4)
        for settings in (
            (("train.nesterov", True),),
            (("train.nesterov", False),),
            (("compress.method", "topk"), ("compress.density", 0.01), ("train.nesterov", True)),
            (("compress.method", "topk"), ("compress.density", 0.01), ("train.nesterov", False)),
        )
        for seed in (5, 6)
    }
    assert len({cell.name for cell in cells}) == len(cells)


def test_a_cell_is_what_set_takes(write, tmp_path):
    cell = load_matrix(write(MATRIX)).cells()[4]
    assert cell.assignments(tmp_path) == [
        'compress.method="topk"',
        "compress.density=0.01",
        "train.nesterov=true",
        "run.seed=5",
        f'run.dir="{tmp_path}/{cell.name}"',
    ]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("repeats = 2", "repeats = 1", "repeats should be greater than or equal to 2, got 1"),
        ("ranks = [1, 4]", "ranks = [0]", "axis 'ranks' must hold numbers of at least 1"),
        ("ranks = [1, 4]", "ranks = []", "axis 'ranks' has no values"),
        ('label = "dense"', '"train.lr" = 0.1', "a table on axis 'method' needs a label"),
        ("0.01", "7", "compress.density should be less than or equal to 1, got 7"),
        ("train.nesterov", "train.nestrov", r"did you mean train\.nesterov"),
        ("[1, 4]", "[1, 4, 1]", "axis 'ranks' has '1' twice"),
        ("[1, 4]", "[true]", "axis 'ranks' must hold numbers"),
        ('"train.nesterov" = [true', '"run.seed" = [1', "cannot be on an axis: repeats differ"),
        ("target.value = 0.9", "", "target Field required"),
        ("repeats = 2", "repeat = 2", "unknown key repeat; did you mean repeats"),
        ("base.toml", "none.toml", "none.toml: No such file"),
    ],
)
def test_a_wrong_matrix_is_refused_before_the_first_run(write, before, after, said):
    with pytest.raises(ConfigError, match=said):
        load_matrix(write(MATRIX.replace(before, after)))


def test_a_matrix_that_grows_keeps_its_runs(write):
    names = {cell.name for cell in load_matrix(write(MATRIX)).cells()}
    grown = MATRIX.replace("repeats = 2", "repeats = 3").replace("[1, 4]", "[1, 2, 4]")
    assert names < {cell.name for cell in load_matrix(write(grown)).cells()}


def test_runs_of_other_settings_are_not_taken_over(write, tmp_path):
    path = write(MATRIX)
    matrix = load_matrix(path)
    cell = matrix.cells()[0]
    check_settings(matrix, path, tmp_path)
    (tmp_path / cell.name).mkdir()
    kept = config_of(matrix, path, cell, tmp_path)
    (tmp_path / cell.name / "config.toml").write_text(to_toml(kept))
    check_settings(matrix, path, tmp_path)
    (tmp_path / "base.toml").write_text("[train]\nepochs = 4\n")
    with pytest.raises(ConfigError, match=r"made when train\.epochs was 3, and it is 4 now"):
        check_settings(matrix, path, tmp_path)
    (tmp_path / "base.toml").write_text("[train]\nepochs = 3\nlr = 0.5\n")
    with pytest.raises(ConfigError, match=r"made when train\.lr was .*, and it is 0\.5 now"):
        check_settings(matrix, path, tmp_path)
