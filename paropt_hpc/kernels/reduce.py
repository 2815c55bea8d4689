"""Sums of dense and of sparse vectors, in place."""

from typing import Any

from numpy.typing import NDArray

from paropt_hpc.kernels.checks import FLOATS
from paropt_hpc.kernels.index_codec import index_dtype
from paropt_hpc.kernels.memory import Memory, memory_of

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
    memory = memory_of(out)
    view = memory.check_array("out", out, FLOATS, writable=True)
    memory.check_array("array", array, (view.dtype,), length=view.size)
    if memory.address(out) != memory.address(array):
        memory.check_separate("out", out, "array", array)
    memory.kernels().add(out, array)


def scatter_add(
    dense: NDArray[Any], indices: NDArray[Any], values: NDArray[Any], scale: float = 1
) -> None:
    """Add ``scale * values`` to ``dense[indices]`` in place, in the order given.

    Parameters
    ----------
    dense : ndarray, shape (n,), float32 or float64
        Overwritten with the sum.
    indices : ndarray, shape (k,), dtype ``index_dtype(n)``
        In any order; an index that occurs repeatedly is added repeatedly. For arrays on the GPU
        they must be strictly ascending.
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
    memory = memory_of(dense)
    view = memory.check_array("dense", dense, FLOATS, writable=True)
    _check_sparse(memory, dense, view, indices, values)
    memory.kernels().scatter_add(dense, indices, values, float(scale))


def _check_sparse(memory: Memory, dense: Any, view: Any, indices: Any, values: Any) -> None:
    k = memory.check_array("indices", indices, (index_dtype(view.size),)).size
    memory.check_array("values", values, (view.dtype,), length=k)
    memory.check_separate("dense", dense, "indices", indices)
    memory.check_separate("dense", dense, "values", values)
