import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paropt_hpc.train.arrays import BLOCK, Scratch, add_scaled, all_finite, blocks, norm

SIZES = [0, 1, 2, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 7]


def vector(n, dtype="float32"):
    return np.random.default_rng(n).standard_normal(n).astype(dtype)


@pytest.mark.parametrize("n", SIZES)
def test_blocks_cover_a_vector_once(n):
    count = np.zeros(n, int)
    for part in blocks(count):
        count[part] += 1
        assert part.stop - part.start <= BLOCK
    assert (count == 1).all()


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_add_scaled_is_the_plain_formula(n, dtype):
    out, other = vector(n, dtype), vector(n, dtype)[::-1].copy()
    expected = out + other * np.dtype(dtype).type(0.3)
    add_scaled(out, other, 0.3, Scratch())
    assert np.array_equal(out, expected)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_norm(n, dtype):
    values = vector(n, dtype)
    exact = math.sqrt(math.fsum(float(v) ** 2 for v in values[:200_000]))
    assert norm(values) == pytest.approx(exact, rel=1e-6 if dtype == "float32" else 1e-13)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=20))
def test_norm_where_squares_overflow(values):
    exact = math.sqrt(math.fsum(float(v) ** 2 for v in values))
    found = norm(np.array(values, np.float32))
    assert found == pytest.approx(exact, rel=1e-6, abs=1e-22)  # smaller squares are zero


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("n", [1, BLOCK, BLOCK + 1])
def test_all_finite_finds_a_bad_entry_at_either_end(n, bad):
    for place in (0, n - 1):
        values = vector(n)
        assert all_finite(values)
        values[place] = bad
        assert not all_finite(values)
        assert not math.isfinite(norm(values))


def test_large_entries_are_finite():
    assert all_finite(np.full(5, 3e38, np.float32))
    assert all_finite(np.empty(0, np.float32))
    assert norm(np.full(4, 3e38, np.float32)) == pytest.approx(6e38)


def test_scratch_serves_several_types():
    scratch = Scratch()
    for dtype, n in (("float32", 3), ("float64", 2), ("float32", 5)):
        found = scratch.like(np.empty(n, dtype))
        assert (found.dtype, found.size) == (dtype, n)
