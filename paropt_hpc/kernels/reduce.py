"""Sums of dense and of sparse vectors, in place."""

from typing import Any

from numpy.typing import NDArray

from paropt_hpc.kernels.backend import implementation
from paropt_hpc.kernels.checks import FLOATS, check_array, check_separate
from paropt_hpc.kernels.index_codec import index_dtype

__all__ = ["add", "scatter_add"]


def add(out: NDArray[Any], array: NDArray[Any]) -> None:
    """Add `array` to `out` in place.

    Parameters
    ----------
    out : ndarray, shape (n,), float32 or float64
        Overwritten with the sum.
    array : ndarray, shape (n,), dtype of out
        Separate from `out`, or the same array.

    Raises
    ------
    TypeError, ValueError
        If an array has the wrong dtype, shape or layout, or overlaps the other in part.
    """
    check_array("out", out, FLOATS, writable=True)
    check_array("array", array, (out.dtype,), length=out.size)
    if out.ctypes.data != array.ctypes.data:
        check_separate("out", out, "array", array)
    implementation().add(out, array)


def scatter_add(
    dense: NDArray[Any], indices: NDArray[Any], values: NDArray[Any], scale: float = 1
) -> None:
    """Add ``scale * values`` to ``dense[indices]`` in place, in the order given.

    Parameters
    ----------
    dense : ndarray, shape (n,), float32 or float64
        Overwritten with the sum.
    indices : ndarray, shape (k,), dtype ``index_dtype(n)``
        In any order; an index that occurs repeatedly is added repeatedly.
    values : ndarray, shape (k,), dtype of dense
        Added after multiplication by `scale`.
    scale : float
        Taken in the dtype of `dense`; the product is rounded before the sum.

    Raises
    ------
    TypeError, ValueError
        If an array has the wrong dtype, shape or layout, or an index is not below n. Nothing has
        been written then.
    """
    check_array("dense", dense, FLOATS, writable=True)
    check_array("indices", indices, (index_dtype(dense.size),))
    check_array("values", values, (dense.dtype,), length=indices.size)
    check_separate("dense", dense, "indices", indices)
    check_separate("dense", dense, "values", values)
    implementation().scatter_add(dense, indices, values, float(scale))
