import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from paropt_hpc.kernels import backend, reduce

BLOCK = 65536
DTYPES = [np.float32, np.float64]


def bits(array):
    return array.view(f"u{array.itemsize}")


def check_add(out, array):
    with np.errstate(all="ignore"):
        expected = out + array
    reduce.add(out, array)
    np.testing.assert_array_equal(bits(out), bits(expected))


def check_scatter_add(dense, indices, values, scale):
    expected = dense.copy()
    with np.errstate(all="ignore"):
        for index, value in zip(indices, values, strict=True):
            expected[index] += dense.dtype.type(scale) * value
    reduce.scatter_add(dense, indices, values, scale)
    np.testing.assert_array_equal(bits(dense), bits(expected))


def numbers(dtype):
    # A NaN meets only numbers, since which of two NaNs a sum keeps is up to the processor.
    return st.floats(width=8 * np.dtype(dtype).itemsize, allow_nan=False)


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_add_any_values(path, dtype, data):
    n = data.draw(st.integers(0, 40))
    out = data.draw(hnp.arrays(dtype, n, elements=numbers(dtype)))
    check_add(out, data.draw(hnp.arrays(dtype, n, elements=numbers(dtype))))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 4 * BLOCK + 3])
def test_add_sizes(path, dtype, n):
    rng = np.random.default_rng(n)
    check_add(rng.standard_normal(n).astype(dtype), rng.standard_normal(n).astype(dtype))


def test_add_to_itself(path):
    x = np.array([1, 2], np.float32)
    reduce.add(x, x)
    np.testing.assert_array_equal(x, [2, 4])


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_scatter_add_any_values(path, dtype, data):
    n, k = data.draw(st.integers(1, 20)), data.draw(st.integers(0, 40))
    dense = data.draw(hnp.arrays(dtype, n, elements=numbers(dtype)))
    indices = data.draw(hnp.arrays(np.uint32, k, elements=st.integers(0, n - 1)))
    values = data.draw(hnp.arrays(dtype, k, elements=numbers(dtype)))
    scale = data.draw(st.sampled_from([1, -0.5, 0.1, 1e300]))
    check_scatter_add(dense, indices, values, scale)


def test_scatter_add_rounds_the_product_first(path):
    x = np.float32(1 + 2**-12)
    dense = np.array([-x * x], np.float32)  # a fused multiply-add would leave the rounding error
    reduce.scatter_add(dense, np.zeros(1, np.uint32), np.array([x]), float(x))
    assert dense[0] == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_scatter_add_with_wide_indices(path, dtype):
    # Vectors above 2**32 entries do not fit in a test, their index type does.
    dense, values = np.zeros(4, dtype), np.array([1, 2, 3], dtype)
    backend.implementation().scatter_add(dense, np.array([3, 0, 3], np.uint64), values, 2)
    np.testing.assert_array_equal(dense, [4, 0, 0, 8])


X = np.zeros(4, np.float32)


def u32(*values):
    return np.array(values, np.uint32)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: reduce.add(X, np.zeros(3, np.float32)), ValueError, "array must have 4 entries"),
        (lambda: reduce.add(X, np.zeros(4)), TypeError, "array must be float32, got float64"),
        (lambda: reduce.add(np.zeros(4, int), X), TypeError, "out must be float32 or float64"),
        (lambda: reduce.add(np.zeros(9, np.float32)[:4], X[::-1]), ValueError, "contiguous"),
        (lambda: reduce.scatter_add(X, u32(1), np.zeros(2, np.float32)), ValueError, "1 entries"),
        (lambda: reduce.scatter_add(X, u32(1).astype(int), X[:1]), TypeError, "uint32, got int64"),
        (lambda: reduce.scatter_add(X, u32(1), X[:1]), ValueError, "must not overlap"),
    ],
)
def test_errors(path, call, error, text):
    with pytest.raises(error, match=text):
        call()


def test_overlap_in_part(path):
    x = np.zeros(5, np.float32)
    with pytest.raises(ValueError, match="must not overlap"):
        reduce.add(x[:4], x[1:])


def test_bad_index_changes_nothing(path):
    dense, values = np.zeros(4, np.float32), np.ones(2, np.float32)
    with pytest.raises(ValueError, match="below the length of dense, 4, got 4"):
        reduce.scatter_add(dense, u32(0, 4), values)
    assert not dense.any()
