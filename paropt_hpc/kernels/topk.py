"""Select the k entries of largest magnitude, exactly, and keep the rest as the residual."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.kernels.backend import implementation
from paropt_hpc.kernels.checks import FLOATS, check_array, check_counts, check_separate
from paropt_hpc.kernels.index_codec import index_dtype

__all__ = ["Selection", "select"]


class Selection(NamedTuple):
    """The result of `select`."""

    #: positions, shape (k,), strictly ascending, uint32 for n <= 2**32, else uint64
    indices: NDArray[Any]
    #: the entries there, shape (k,), dtype of the gradient
    values: NDArray[Any]
    #: how many of all n entries are infinite or NaN
    nonfinite: int


def select(
    gradient: NDArray[Any],
    k: int,
    residual: NDArray[Any] | None = None,
    *,
    out: tuple[NDArray[Any], NDArray[Any]] | None = None,
) -> Selection:
    """Select the k entries of largest magnitude of a gradient, or of gradient + residual.

    With a residual, error feedback is part of the same pass: ``acc = residual + gradient`` is
    selected from, and the residual is overwritten by acc with 0 at the selected entries. Scattering
    the result onto it gives acc again, bit for bit (a residual that starts at 0 never gets -0).

    Magnitudes are ordered by the bit pattern without its sign, read as an unsigned integer: NaN
    stands above infinity, infinity above every number, and -0 equals 0. The lowest index wins a
    tie. Result and residual do not depend on backend, instruction set or number of threads, but for
    one thing: which bit pattern a sum keeps where residual and gradient are both NaN.

    Parameters
    ----------
    gradient : ndarray, shape (n,), float32 or float64
        Never modified.
    k : int
        Number of entries to select, 0 to n.
    residual : ndarray, shape (n,), dtype of gradient, optional
        Overwritten. Must not overlap gradient.
    out : (indices, values), optional
        Arrays of at least k entries to write to; the result then holds views of their first k.

    Returns
    -------
    Selection
        Indices, values, and the count of non-finite entries.

    Raises
    ------
    TypeError
        If an array has another dtype than it must.
    ValueError
        If k is out of range, or an array is strided, misaligned, read-only, overlapping, or of
        the wrong length. Nothing has been written then.

    Notes
    -----
    The input is read once: a sample gives a bound that a little more than k entries reach, and the
    exact choice is made among those. Ties, constant vectors and samples that mislead cost speed,
    never exactness.
    """
    check_array("gradient", gradient, FLOATS)
    n, k = check_counts(gradient.size, k)
    dtype = gradient.dtype
    if residual is not None:
        check_array("residual", residual, (dtype,), writable=True, length=n)
        check_separate("residual", residual, "gradient", gradient)
    if out is None:
        indices, values = np.empty(k, index_dtype(n)), np.empty(k, dtype)
    else:
        indices, values = _checked_out(out, n, k, gradient, residual)
    nonfinite = implementation().topk(gradient, residual, k, indices, values)
    return Selection(indices, values, nonfinite)


def _checked_out(
    out: tuple[NDArray[Any], NDArray[Any]],
    n: int,
    k: int,
    gradient: NDArray[Any],
    residual: NDArray[Any] | None,
) -> tuple[NDArray[Any], NDArray[Any]]:
    indices, values = out
    check_array("out indices", indices, (index_dtype(n),), writable=True)
    check_array("out values", values, (gradient.dtype,), writable=True)
    for name, array in (("out indices", indices), ("out values", values)):
        if array.size < k:
            raise ValueError(f"{name} must have at least {k} entries, got {array.size}")
        check_separate(name, array, "gradient", gradient)
        if residual is not None:
            check_separate(name, array, "residual", residual)
    check_separate("out indices", indices, "out values", values)
    return indices[:k], values[:k]
