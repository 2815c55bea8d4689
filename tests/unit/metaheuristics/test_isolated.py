import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

from paropt_hpc.errors import ConfigError
from paropt_hpc.metaheuristics.evaluation import Scalar, Status
from paropt_hpc.metaheuristics.isolated import Isolated


@pytest.fixture
def crashing(monkeypatch):
    """A module that the child process finds too."""
    folder = Path(__file__).parent
    monkeypatch.syspath_prepend(str(folder))
    spec = importlib.util.spec_from_file_location("crashing", folder / "crashing.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "crashing", module)
    spec.loader.exec_module(module)
    return module


def test_a_crash_or_a_hang_ends_the_child_only(crashing):
    isolated = Isolated(crashing.evaluate, time_limit=5)
    isolated(np.zeros(1))  # has started
    isolated.time_limit = 1.0
    done = Scalar(isolated)(np.array([[0.0], [1], [2], [4]]))
    assert done.status.tolist() == [Status.OK, *3 * [Status.RAISED]]
    assert "SIGABRT" in done.texts[1]
    assert "status 7" in done.texts[2]
    assert "ValueError: four" in done.texts[3]
    done = Scalar(isolated)(np.array([[3.0], [5]]))
    assert done.status.tolist() == [Status.TIMEOUT, Status.OK]
    assert done.f[1] == 5
    isolated.close()


def test_a_time_limit_must_be_positive(crashing):
    with pytest.raises(ConfigError, match="above 0"):
        Isolated(crashing.evaluate, time_limit=0)
