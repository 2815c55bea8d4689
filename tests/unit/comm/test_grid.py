"""The arithmetic of process grids."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paropt_hpc.comm import ProcessGrid, SerialCommunicator, grid_shape
from paropt_hpc.errors import ConfigError


def test_fills_in_the_missing_axis():
    assert grid_shape(8) == (8, 1, 1)
    assert grid_shape(8, stage=2) == (4, 2, 1)
    assert grid_shape(12, 2, None, 3) == (2, 2, 3)
    assert grid_shape(12, 2, 2, 3) == (2, 2, 3)
    assert str(grid_shape(12, 2, 2, 3)) == "2 x 2 x 3"


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6), st.integers(0, 2))
def test_any_axis_can_be_inferred(data, stage, tensor, missing):
    axes = [data, stage, tensor]
    axes[missing] = None
    assert grid_shape(data * stage * tensor, *axes) == (data, stage, tensor)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((8, 3, 1, 1), r"8 ranks there are, got 3 x 1 x 1; possible are (?!.*\b3 x)"),
        ((8, 2, 2, 1), r"got 2 x 2 x 1; possible are 2 x 2 x 2, .*4 x 2 x 1"),
        ((6, None, 4, 1), r"got \? x 4 x 1; possible are 2 x 3 x 1"),
        ((8, 16, 1, 1), "possible are 8 x 1 x 1"),
        ((8, 0, 1, 1), "data must be at least 1, got 0"),
        ((8, None, 2, None), "only one axis can be inferred, got None for data and tensor"),
    ],
)
def test_refuses_what_does_not_fit(arguments, text):
    with pytest.raises(ConfigError, match=text):
        grid_shape(*arguments)


@given(st.integers(1, 60), st.integers(1, 9), st.integers(1, 9), st.integers(1, 9))
def test_the_shapes_it_names_are_possible(size, data, stage, tensor):
    if data * stage * tensor == size:
        return
    with pytest.raises(ConfigError) as caught:
        grid_shape(size, data, stage, tensor)
    named = str(caught.value).partition("possible are ")[2].split(", ")
    assert len(set(named)) == len(named)
    for shape in named:
        assert math.prod(map(int, shape.split(" x "))) == size


def test_of_one_rank():
    with ProcessGrid(SerialCommunicator()) as grid:
        assert grid.place == (0, 0, 0)
        assert (grid.data.size, grid.stage.size, grid.tensor.size) == (1, 1, 1)
        with pytest.raises(ValueError, match=r"tensor must be in \[0, 1\), got 1"):
            grid.rank_of(grid.place._replace(tensor=1))
        with pytest.raises(ValueError, match=r"rank must be in \[0, 1\), got 1"):
            grid.place_of(1)
