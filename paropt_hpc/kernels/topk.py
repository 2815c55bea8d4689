"""Select the entries of a gradient that are sent, and keep the rest as the residual.

`select` takes the k largest magnitudes, exactly; `threshold` all that reach a bound; `random` draws
positions that all ranks agree on without a word.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.kernels.checks import ALL_FLOATS, check_counts
from paropt_hpc.kernels.index_codec import index_dtype
from paropt_hpc.kernels.memory import Memory, memory_of
from paropt_hpc.kernels.reference import keys
from paropt_hpc.kernels.rng import philox

__all__ = ["Hint", "Selection", "random", "select", "threshold"]


class Selection(NamedTuple):
    """What was selected."""

    #: positions, shape (k,), strictly ascending, uint32 for n <= 2**32, else uint64
    indices: NDArray[Any]
    #: the entries there, shape (k,), dtype of the gradient
    values: NDArray[Any]
    #: how many of all n entries are infinite or NaN
    nonfinite: int


class Hint:
    """Where the last selection ended, so that the next one over a similar vector starts there.

    Gradients change little from step to step, and so does the magnitude that their k-th largest
    entry has. A hint that is passed to every `select` of one gradient buffer saves the search for
    it. The result never depends on a hint, which is why a checkpoint does not hold it: one that
    misleads costs time only, and one of another length, k or dtype is not used. On a GPU it is
    neither read nor written: a sample of 32 KB gives the bound there.
    """

    __slots__ = ("words",)

    def __init__(self) -> None:
        self.words = np.zeros(5, np.uint64)  # Hint of csrc/topk.hpp


def select(
    gradient: NDArray[Any],
    k: int,
    residual: NDArray[Any] | None = None,
    *,
    out: tuple[NDArray[Any], NDArray[Any]] | None = None,
    hint: Hint | None = None,
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
    gradient : ndarray, shape (n,), float32, float64, float16 or bfloat16
        Never modified.
    k : int
        Number of entries to select, 0 to n.
    residual : ndarray, shape (n,), dtype of gradient, optional
        Overwritten. Must not overlap gradient.
    out : (indices, values), optional
        Arrays of at least k entries to write to; the result then holds views of their first k.
    hint : Hint, optional
        What the last call for this gradient buffer left; overwritten for the next one.

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
    The input is read once: a sample, or the hint, gives a bound that a little more than k entries
    reach, and the exact choice is made among those. Ties, constant vectors and bounds that mislead
    cost speed, never exactness. Beyond the arrays it takes memory for 2k entries and 1 MB per
    thread, which the calling thread keeps for its next call.
    """
    memory = memory_of(gradient)
    view = memory.check_array("gradient", gradient, ALL_FLOATS)
    n, k = check_counts(view.size, k)
    dtype = view.dtype
    if residual is not None:
        memory.check_array("residual", residual, (dtype,), writable=True, length=n)
        memory.check_separate("residual", residual, "gradient", gradient)
    if out is None:
        indices, values = memory.empty(k, index_dtype(n)), memory.empty(k, dtype)
    else:
        indices, values = _checked_out(memory, out, dtype, n, k, gradient, residual)
    if hint is not None and not isinstance(hint, Hint):
        raise TypeError(f"hint must be a Hint, got {type(hint).__name__}")
    words = None if hint is None else hint.words
    nonfinite = memory.kernels().topk(gradient, residual, k, indices, values, words)
    return Selection(indices, values, nonfinite)


def threshold(
    gradient: NDArray[Any], threshold: float, residual: NDArray[Any] | None = None
) -> Selection:
    """Select all entries of gradient, or of gradient + residual, of at least this magnitude.

    Parameters
    ----------
    gradient : ndarray, shape (n,), float32, float64, float16 or bfloat16
        Never modified.
    threshold : float
        At least 0; taken in the dtype of gradient. NaN entries reach every threshold.
    residual : ndarray, shape (n,), dtype of gradient, optional
        Overwritten as by `select`.

    Returns
    -------
    Selection
        Indices, values, and the count of non-finite entries.

    Raises
    ------
    TypeError, ValueError
        As for `select`. Nothing has been written then.
    """
    memory = memory_of(gradient)
    view = memory.check_array("gradient", gradient, ALL_FLOATS)
    n, _ = check_counts(view.size)
    if not threshold >= 0:
        raise ValueError(f"threshold must be at least 0, got {threshold}")
    dtype = view.dtype
    if residual is not None:
        memory.check_array("residual", residual, (dtype,), writable=True, length=n)
        memory.check_separate("residual", residual, "gradient", gradient)
    with np.errstate(over="ignore"):
        key = int(keys(np.array([threshold], dtype))[0])
    return Selection(*memory.kernels().reach(gradient, residual, key))


def random(n: int, k: int, seed: int, *ids: int) -> NDArray[Any]:
    """Draw k of n positions, each subset as likely as any other.

    The same arguments give the same positions on every rank and machine, so that they need not be
    sent.

    Parameters
    ----------
    n, k : int
        Length of the vector, and the number of positions.
    seed, ids : int
        Name the draw, for instance by the step: see `paropt_hpc.kernels.rng.philox`.

    Returns
    -------
    ndarray, shape (k,), dtype ``index_dtype(n)``
        Strictly ascending.
    """
    n, k = check_counts(n, k)
    words = philox(seed, "random-k", *ids).bit_generator
    wanted = min(k, n - k)  # the fewer of those that are in and those that are out
    drawn = np.empty(0, np.uint64)
    while True:
        distinct, first = np.unique(drawn, return_index=True)
        if distinct.size >= wanted:
            break
        # A remainder is uneven by n / 2**64 at most. Raw words never change with the version.
        more = words.random_raw(wanted - distinct.size + 16)
        drawn = np.concatenate([drawn, more % np.uint64(n)])
    chosen = np.sort(drawn[np.sort(first)[:wanted]]).astype(index_dtype(n))
    if wanted == k:
        return chosen
    return np.setdiff1d(np.arange(n, dtype=chosen.dtype), chosen, assume_unique=True)


def _checked_out(
    memory: Memory,
    out: tuple[NDArray[Any], NDArray[Any]],
    dtype: np.dtype[Any],
    n: int,
    k: int,
    gradient: NDArray[Any],
    residual: NDArray[Any] | None,
) -> tuple[NDArray[Any], NDArray[Any]]:
    indices, values = out
    dtypes = {"out indices": index_dtype(n), "out values": dtype}
    for (name, wanted), array in zip(dtypes.items(), out, strict=True):
        size = memory.check_array(name, array, (wanted,), writable=True).size
        if size < k:
            raise ValueError(f"{name} must have at least {k} entries, got {size}")
        memory.check_separate(name, array, "gradient", gradient)
        if residual is not None:
            memory.check_separate(name, array, "residual", residual)
    memory.check_separate("out indices", indices, "out values", values)
    return indices[:k], values[:k]
