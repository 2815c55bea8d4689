"""Every algorithm has a page in the documentation, whose example runs."""

import re
from pathlib import Path

import pytest

from paropt_hpc.metaheuristics import ALGORITHMS

ROOT = Path(__file__).parents[3]
PAGES = {page.stem: page for page in (ROOT / "docs/algorithms").glob("*.md")}
TOUR = ROOT / "examples/circle24.tsp"


def test_every_algorithm_has_a_page():
    assert set(PAGES) == set(ALGORITHMS)


@pytest.mark.parametrize("name", sorted(PAGES))
def test_its_example_runs(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "berlin52.tsp").write_text(TOUR.read_text())
    (code,) = re.findall(r"```python\n(.*?)```", PAGES[name].read_text(), flags=re.DOTALL)
    scope = {}
    exec(code, scope)
    algorithm = scope["algorithm"]
    assert algorithm.name == name
    assert algorithm.evaluations > 0
