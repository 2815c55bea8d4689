"""Settings of searches and tunings: what is wrong is named before anything runs."""

import re
from pathlib import Path

import numpy as np
import pytest

from paropt_hpc.comm import SerialCommunicator
from paropt_hpc.errors import ConfigError, DataError
from paropt_hpc.experiments import load_tuning, tune_training
from paropt_hpc.metaheuristics import AdaptivePenalty
from paropt_hpc.metaheuristics.config import load_search
from paropt_hpc.runs import to_toml

SPHERE = """
[objective]
function = "mine:sphere"
[space]
x = { low = -5.0, high = 5.0 }
[budget]
generations = 60
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "search.toml").write_text(SPHERE)
    (tmp_path / "mine.py").write_text("number = 3\n\ndef sphere(v):\n    return v['x'] ** 2\n")
    return tmp_path


def build(folder, *assignments):
    config = load_search(folder / "search.toml", assignments)
    config.limits()
    config.migration()
    return config.build()


def test_the_written_settings_are_the_same(folder):
    config = load_search(folder / "search.toml", ["algorithm.population=7"])
    (folder / "again.toml").write_text(to_toml(config))
    assert load_search(folder / "again.toml") == config
    objective, (algorithm,) = config.build()
    assert algorithm.population_size == 7
    assert objective(algorithm.ask()).f.shape == (7,)


BAD = [
    ("objective.function=mine", "module:callable"),
    ("objective.function=yours:sphere", "cannot import 'yours'"),
    ("objective.function=mine:cube", "'mine' has no 'cube'"),
    ("objective.function=mine:number", "is no function, but int"),
    ("objective.command=./none {x}", "exclude each other"),
    ("objective.tsplib=none.tsp", "exclude each other"),
    ("algorithm.name=magic", "algorithm must be one of"),
    ("algorithm.popluation=3", "has no option 'popluation'"),
    ("budget.generations=0", "greater than or equal to 1"),
    ("islands.count=0", "greater than or equal to 1"),
    ("algorithm.population=many", "population of algorithm 'de' must be int, got 'many'"),
    ("algorithm.seed=3", "the seed is run.seed"),
    ("algorithm.name=[]", "algorithm must be one of"),
    ('algorithm.name=["de", "magic"]', "got 'magic'"),
    ("budget.target=nan", "must be a number, got NaN"),
    ('space.x={ kind = "integer", low = 0, high = 1e300 }', "must be within 2**53"),
    ("space.x.low=7", "space.x: a real needs finite bounds with low < high, got 7.0 and 5.0"),
    ('space.x={ kind = "integer", low = 0, high = inf }', "space.x: bounds must be whole numbers"),
    ("space.y.low=7", "space.y.low should be a table, got 7"),
    ("algorithm.constraints=magic", "'rules' or 'penalty'"),
    ("objective.dimension=3", "objective.dimension does nothing with objective.function"),
    ("objective.keep=all", "objective.keep does nothing with objective.function"),
    ('space.x={ kind = "binary", low = 1 }', "space.x: low does nothing with kind = 'binary'"),
    ("islands.asynchronous=true", "islands.asynchronous needs islands.count of at least 2"),
]


@pytest.mark.parametrize(("assignment", "said"), BAD)
def test_bad_settings(folder, assignment, said):
    with pytest.raises(ConfigError, match=re.escape(said)):
        build(folder, assignment)


def test_settings_that_exclude_each_other(folder):
    both = ["islands.asynchronous=true", "islands.count=2", "run.resume=true"]
    with pytest.raises(ConfigError, match="has no checkpoints"):
        build(folder, *both)
    with pytest.raises(ConfigError, match="start must be made of numbers, got 'x'"):
        build(folder, "algorithm.name=cmaes", "algorithm.start=x")
    (folder / "half.py").write_text("def sphere(v)\n")
    with pytest.raises(ConfigError, match=r"cannot import 'half': .*half.py, line 1"):
        build(folder, "objective.function=half:sphere")
    text = "[objective]\nbenchmark = 'sphere'\n[space]\nx = { low = 0, high = 1 }\n"
    (folder / "search.toml").write_text(text + "[budget]\ngenerations = 1\n")
    with pytest.raises(ConfigError, match="has a space of its own"):
        build(folder)


def test_constraints_by_a_penalty(folder):
    sets = ["objective.constrained=true", "algorithm.constraints=penalty"]
    _, (algorithm,) = build(folder, *sets)
    assert isinstance(algorithm.constraints, AdaptivePenalty)


def test_what_is_missing(folder):
    (folder / "search.toml").write_text("[budget]\ngenerations = 1\n")
    with pytest.raises(ConfigError, match="there are no variables"):
        build(folder)
    (folder / "search.toml").write_text("[space]\nx = { low = 1 }\n")
    with pytest.raises(ConfigError, match="a budget needs one of"):
        build(folder)
    with pytest.raises(ConfigError, match=r"space.x: low and high must be set"):
        build(folder, "budget.seconds=1.0")
    (folder / "search.toml").write_text("[space]\nx = { low = 1, high = 2 }\n")
    with pytest.raises(ConfigError, match="nothing to minimise"):
        build(folder, "budget.seconds=1.0")
    with pytest.raises(ConfigError, match=r"no program './none'"):
        build(folder, "budget.seconds=1.0", "objective.command=./none {x}")
    for command in ("true {y}", "true {x:d}"):
        with pytest.raises(
            ConfigError, match=r"cannot fill '{[xy:d]+}': .*(none of x|format code)"
        ):
            build(folder, "budget.seconds=1.0", f"objective.command={command}")
    with pytest.raises(DataError, match=r"cannot read none\.tsp"):
        build(folder, "budget.seconds=1.0", "objective.tsplib=none.tsp")


def test_benchmarks_and_tours(folder):
    text = "[objective]\nbenchmark = 'rastrigin'\ndimension = 7\n[budget]\ngenerations = 5\n"
    (folder / "search.toml").write_text(text)
    objective, islands = build(folder, "islands.count=3", 'algorithm.name=["de", "pso"]')
    assert [one.name for one in islands] == ["de", "pso", "de"]
    assert islands[0].space.dimension == 7
    assert objective(np.zeros((2, 7))).f.tolist() == [0.0, 0.0]
    (folder / "search.toml").write_text("[budget]\ngenerations = 5\n")
    cities = Path(__file__).parents[3] / "examples" / "circle24.tsp"
    for name in ("ga", "mmas"):
        tour = f"objective.tsplib={cities}"
        objective, (algorithm,) = build(folder, tour, f"algorithm.name={name}")
        assert (objective(algorithm.ask()).f >= 6264).all()


TUNE = """
[tune]
train = "digits.toml"
sampler = "grid"
[space]
"train.lr" = { low = 1e-4, high = 1.0, log = true }
"""


def test_bad_tunings(folder):
    (folder / "digits.toml").write_text("[train]\nepochs = 1\n")
    path = folder / "tune.toml"
    path.write_text(TUNE)
    for assignment, said in (
        ("tune.train=none.toml", "cannot read none.toml"),
        ("tune.sampler=best", "tune.sampler should be"),
        ("tune.schedule=halving", "needs tune.sampler"),
        ('tune.train=""', "tune.train must name a file"),
        ("space.train.lrr={ low = 1e-4, high = 1.0 }", "unknown key train.lrr"),
        ("space.train.batch={ low = 1.0, high = 9.0 }", "train.batch should be"),
    ):
        with pytest.raises(ConfigError, match=said):
            tune_training(load_tuning(path, [assignment]), SerialCommunicator())
    path.write_text(TUNE.replace("train.lr", "learning"))
    with pytest.raises(ConfigError, match="is no setting of a training"):
        tune_training(load_tuning(path), SerialCommunicator())
    path.write_text("[tune]\ntrain = 'digits.toml'\n")
    with pytest.raises(ConfigError, match="there is nothing to tune"):
        load_tuning(path)
