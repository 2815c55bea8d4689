import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from paropt_hpc.errors import ConfigError
from paropt_hpc.metaheuristics import Binary, Categorical, Integer, Permutation, Real, Space

MIXED = {
    "rate": Real(1e-5, 1, log=True),
    "weights": Real(-1, 2, size=3),
    "batch": Integer(1, 4096, log=True),
    "layers": Integer(-2, 3),
    "optimizer": Categorical(["sgd", None, 3.5]),
    "mask": Binary(size=4),
    "flag": Binary(),
    "order": Permutation(5),
}


def values_of_mixed():
    return st.fixed_dictionaries(
        {
            "rate": st.floats(1e-5, 1),
            "weights": hnp.arrays(np.float64, 3, elements=st.floats(-1, 2)),
            "batch": st.integers(1, 4096),
            "layers": st.integers(-2, 3),
            "optimizer": st.sampled_from(["sgd", None, 3.5]),
            "mask": hnp.arrays(bool, 4),
            "flag": st.booleans(),
            "order": st.permutations(range(5)),
        }
    )


@given(value=values_of_mixed())
def test_what_is_encoded_decodes_to_itself(value):
    space = Space(MIXED)
    row = space.encode(value)
    assert row.shape == (space.dimension,) == (17,)
    assert ((row >= space.lower) & (row <= space.upper)).all()
    decoded = space.decode(row)
    assert list(decoded) == list(MIXED)
    assert decoded["rate"] == pytest.approx(value["rate"], rel=1e-12)
    for name in set(MIXED) - {"rate"}:
        np.testing.assert_array_equal(decoded[name], value[name])
    assert type(decoded["layers"]) is int
    assert type(decoded["flag"]) is bool


@given(row=hnp.arrays(np.float64, 17, elements=st.floats(-100, 100)))
def test_every_row_decodes_to_a_value_within_bounds(row):
    value = Space(MIXED).decode(row)
    assert 1e-5 <= value["rate"] <= 1
    assert ((value["weights"] >= -1) & (value["weights"] <= 2)).all()
    assert 1 <= value["batch"] <= 4096
    assert -2 <= value["layers"] <= 3
    assert value["optimizer"] in ("sgd", None, 3.5)
    np.testing.assert_array_equal(np.sort(value["order"]), np.arange(5))


def test_batch_equals_rows_one_by_one():
    space = Space(MIXED)
    rows = space.sample(50, np.random.default_rng(0))
    batch = space.decode_batch(rows)
    for at, row in enumerate(rows):
        for name, value in space.decode(row).items():
            np.testing.assert_array_equal(batch[name][at], value)


def test_samples_are_uniform_over_the_values():
    space = Space(
        {"integer": Integer(0, 2), "choice": Categorical("ab"), "rate": Real(1, 100, True)}
    )
    batch = space.decode_batch(space.sample(30000, np.random.default_rng(1)))
    np.testing.assert_allclose(np.bincount(batch["integer"]) / 30000, 1 / 3, atol=0.02)
    assert np.mean(batch["choice"] == "a") == pytest.approx(0.5, abs=0.02)
    assert np.mean(batch["rate"] < 10) == pytest.approx(0.5, abs=0.02)


def test_a_single_variable_is_its_own_value():
    assert Space(Integer(0, 9)).decode(np.array([3.4])) == 3
    box = Space.box([-1, 0], [1, 5])
    np.testing.assert_array_equal(box.decode(np.array([-2.0, 7.0])), [-1, 5])
    np.testing.assert_array_equal(box.encode([0.5, 4]), [0.5, 4])
    assert box.decode_batch(np.zeros((3, 2))).shape == (3, 2)
    assert Space(Real(0, 1, size=1)).decode(np.array([0.5])).shape == (1,)


@given(rank=st.permutations(range(6)))
def test_a_permutation_is_a_key_of_itself(rank):
    space = Space(Permutation(6))
    row = np.array(rank, float)
    np.testing.assert_array_equal(space.decode(row), rank)
    np.testing.assert_array_equal(space.decode(row * 0.1 + 3), rank)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Real(1, 1), "low < high"),
        (lambda: Real(0, float("inf")), "finite"),
        (lambda: Real(0, 1, log=True), "above 0"),
        (lambda: Real(0, 1, size=0), "at least 1"),
        (lambda: Integer(0.5, 3), "whole"),
        (lambda: Categorical(["a"]), "2 choices"),
        (lambda: Permutation(1), "at least 2"),
        (lambda: Space({"x": 3}), "'x' must be one of Real"),
        (lambda: Space({}), "at least one variable"),
        (lambda: Space.box([0, 1], [1, 1]), "lower < upper"),
    ],
)
def test_wrong_spaces_are_refused(make, text):
    with pytest.raises(ConfigError, match=text):
        make()


def test_values_that_cannot_be_encoded_are_refused():
    space = Space(MIXED)
    value = space.decode(space.sample(1, np.random.default_rng(0))[0])
    for name, wrong in [("optimizer", "adam"), ("order", [0, 0, 1, 2, 3]), ("rate", float("nan"))]:
        with pytest.raises(ValueError, match="value must be"):
            space.encode({**value, name: wrong})
    with pytest.raises(ValueError, match="must have the variables"):
        space.encode({"rate": 1})
    with pytest.raises(ValueError, match="must have shape"):
        space.decode(np.zeros(3))
