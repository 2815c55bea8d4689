"""The latency-bandwidth model and the table that replaces it."""

import json
from itertools import pairwise

import pytest

from paropt_hpc.comm import tuning
from paropt_hpc.comm.tuning import CostModel, Link, Shape, Table, table_path
from paropt_hpc.errors import ConfigError


def shape(nodes, node_size=1, shares_memory=False):
    return Shape(nodes * node_size, nodes, node_size, 1, shares_memory)


MODEL = CostModel(link_latency=1e-5, link_bandwidth=1e9)


@pytest.mark.parametrize(
    ("ranks", "algorithm", "nbytes", "seconds"),
    [
        (4, "ring", 0, 6e-5),  # 2 (P-1) messages
        (4, "ring", 10**9, 6e-5 + 1.5),  # 2 (P-1)/P n
        (4, "recursive_doubling", 0, 2e-5),  # log2 P messages
        (4, "recursive_doubling", 10**9, 2e-5 + 2),
        (6, "recursive_doubling", 0, 4e-5),  # two steps among four, two messages of the pairs
        (2, "ring", 10**9, 2e-5 + 1),
        (2, "recursive_doubling", 10**9, 1e-5 + 1),
    ],
)
def test_formulas(ranks, algorithm, nbytes, seconds):
    assert MODEL.seconds(algorithm, nbytes, shape(ranks)) == pytest.approx(seconds)


def test_between_nodes_of_several_ranks():
    # Two nodes of four: messages of 1 us and 1e10 bytes/s inside, of 10 us and 1e9 between.
    model = CostModel(link_latency=1e-5, link_bandwidth=1e9, node_latency=1e-6, node_bandwidth=1e10)
    here = shape(2, 4)
    # Two of eight links are between nodes; the ring leaves each node once.
    assert model.seconds("ring", 0, here) == pytest.approx(14 * 3.25e-6)
    assert model.seconds("ring", 10**9, here) == pytest.approx(14 * 3.25e-6 + 1.75)
    # Two steps inside, one between, in which four ranks share the link.
    assert model.seconds("recursive_doubling", 0, here) == pytest.approx(1.2e-5)
    assert model.seconds("recursive_doubling", 10**9, here) == pytest.approx(1.2e-5 + 0.2 + 4)


@pytest.mark.parametrize("here", [shape(4), shape(1, 4), shape(2, 4), shape(3, 2), shape(1, 3)])
def test_a_link_is_found_in_the_times_that_it_gives(here):
    link = Link(3e-5, 2e8)
    model = CostModel(node_bandwidth=1e10).measured(link, here)
    found = {
        n: {name: model.seconds(name, n, here) for name in ("ring", "recursive_doubling")}
        for n in (4, 4**13)
    }
    fitted = tuning._fitted(found, here)
    assert fitted.latency == pytest.approx(link.latency, rel=0.01)
    assert fitted.bandwidth == pytest.approx(link.bandwidth, rel=0.01)


def test_short_vectors_are_doubled_and_long_ones_go_round():
    assert MODEL.choose(8, shape(16)) == "recursive_doubling"
    assert MODEL.choose(10**8, shape(16)) == "ring"
    choices = [MODEL.choose(2**power, shape(16)) for power in range(32)]
    changes = sum(a != b for a, b in pairwise(choices))
    assert changes == 1  # one threshold, not a patchwork


def test_one_node_reduces_in_its_memory():
    for nbytes in (8, 10**4, 10**6, 10**9):
        assert CostModel().choose(nbytes, shape(1, 4, shares_memory=True)) == "shared"
        assert CostModel().choose(nbytes, shape(1, 4)) != "shared"


def test_nodes_of_many_ranks_send_through_their_leaders():
    # Sixteen ranks that double would each send the whole vector through the one link of the node.
    for nbytes in (10**5, 10**8):
        assert CostModel().choose(nbytes, shape(8, 16, shares_memory=True)) == "hierarchical"


def test_algorithm_must_be_modelled():
    with pytest.raises(ValueError, match="got 'mpi'"):
        MODEL.seconds("mpi", 8, shape(2))


def test_table_chooses_by_size_and_only_for_its_shape(tmp_path):
    table = Table({"4 x 1 x 1": [(100, "shared"), (1000, "mpi"), (5000, "ring")]})
    path = tmp_path / "new" / "table.json"
    table.save(path)
    assert Table.load(path) == table
    assert [p.name for p in path.parent.iterdir()] == ["table.json"]
    here = shape(1, 4, shares_memory=True)
    chosen = [table.choose(n, here) for n in (0, 100, 101, 1000, 5000, 10**9)]
    assert chosen == ["shared", "shared", "mpi", "mpi", "ring", "ring"]
    assert table.choose(8, shape(1, 3, shares_memory=True)) is None
    # What was measured where memory was shared is of no use where it is not.
    assert table.choose(8, shape(1, 4)) is None


def test_how_far_an_algorithm_is_chosen():
    here = shape(1, 4, shares_memory=True)
    rows = [(10, "shared"), (100, "shared"), (1000, "ring"), (5000, "shared")]
    assert Table({"4 x 1 x 1": rows}).reach("shared", here) == 100
    assert Table({"4 x 1 x 1": rows}).reach("ring", here) == 0
    assert Table({"4 x 1 x 1": rows[:2]}).reach("shared", here) is None
    assert Table({}).reach("shared", here) is None


def test_what_was_measured_of_the_link_is_kept_and_used(tmp_path):
    table = Table({"4 x 4 x 1": [(1, "ring")]}, {"4 x 4 x 1": Link(1e-3, 1e6)})
    table.save(tmp_path / "table.json")
    link = Table.load(tmp_path / "table.json").link(shape(4))
    assert link == Link(1e-3, 1e6)
    assert Table({}).link(shape(4)) is None
    for here in (shape(4), shape(1, 4), shape(2, 2)):
        assert CostModel().measured(link, here).link(here) == link
    assert CostModel().measured(link, shape(4)).seconds("ring", 10**6, shape(4)) == (
        pytest.approx(6e-3 + 1.5)
    )


def test_merging_keeps_the_other_shapes():
    old = Table({"2 x 1 x 1": [(1, "ring")], "4 x 1 x 1": [(1, "ring")]})
    new = Table({"4 x 1 x 1": [(1, "shared")]})
    assert old.merged(new).choices == {"2 x 1 x 1": [(1, "ring")], "4 x 1 x 1": [(1, "shared")]}


@pytest.mark.parametrize(
    "content",
    [
        "not json",
        "[]",
        "{}",
        json.dumps({"version": 2, "choices": {}}),
        json.dumps({"version": 1, "choices": {"2 x 1 x 1": [[8, "tree"]]}}),
        json.dumps({"version": 1, "choices": {"2 x 1 x 1": [8]}}),
    ],
)
def test_a_bad_table_is_named(tmp_path, content):
    path = tmp_path / "table.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=r"table\.json is no table of collectives .*tune-comm"):
        Table.load(path)


def test_where_the_table_is(monkeypatch, tmp_path):
    monkeypatch.delenv("PAROPT_TUNING", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert table_path() == tmp_path / "paropt-hpc" / "collectives.json"
    monkeypatch.setenv("PAROPT_TUNING", str(tmp_path / "mine.json"))
    assert table_path() == tmp_path / "mine.json"
