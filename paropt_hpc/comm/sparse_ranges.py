"""The pure part of the sparse all-reduce: which scheme, and who sums which range of indices.

A range is ``[bounds[c], bounds[c + 1])``, owned by rank c. Ranges of equal width would leave one
rank with most of the work where the entries are clustered, as they are when one layer has the
large gradients; so their ends are quantiles of the indices that are there, estimated from regular
samples of all ranks (H. Shi and J. Schaeffer, "Parallel sorting by regular sampling", J. Parallel
Distrib. Comput. 14(4), 1992).
"""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["choose_scheme", "expected_union", "range_bounds", "sample_count", "sample_positions"]

_SAMPLES_PER_RANK = 24
_MAX_SAMPLES = 1024
_ENTRIES_PER_SAMPLE = 16  # samples of a short message must not outweigh it

_SPLIT_GAIN = 0.8
"""Splitting takes two rounds of messages more, and must save this much to be worth it."""


def choose_scheme(
    n: int, counts: NDArray[np.int64], nbytes: NDArray[np.int64], itemsize: int, union: float
) -> str:
    """Choose the exact scheme that sends the fewest bytes per rank.

    All-gather sends each message to P-1 ranks. A split sends (P-1)/P of it, then the sums of one
    range, 1/P of the union, to P-1 ranks. A dense ring sends 2(P-1)/P of the vector.

    Parameters
    ----------
    n : int
        Length of the vector.
    counts, nbytes : ndarray, shape (P,)
        Entries and size in bytes of every rank's message.
    itemsize : int
        Bytes of one value.
    union : float
        Indices that occur in any message, as far as is known.

    Returns
    -------
    {"allgather", "split", "dense"}
    """
    ranks, total = len(counts), int(nbytes.sum())
    entry = total / max(1, int(counts.sum()))
    gathered = total / ranks * (ranks - 1)
    split = (ranks - 1) / ranks * (total / ranks + union * entry)
    dense = 2 * (ranks - 1) / ranks * n * itemsize
    best, scheme = (split, "split") if split < _SPLIT_GAIN * gathered else (gathered, "allgather")
    return "dense" if dense <= best else scheme


def expected_union(n: int, counts: NDArray[np.int64]) -> float:
    """Return how many indices occur anywhere if every rank picks its own at random."""
    if n == 0:
        return 0.0
    absent: float = math.prod(1 - min(1.0, count / n) for count in counts.tolist())
    return n * (1 - absent)


def sample_count(counts: NDArray[np.int64]) -> int:
    """Return the samples that each rank contributes; 0 if nobody has an entry.

    With s samples of each of P ranks a range holds at most 1 + 2P/s times its share (Shi and
    Schaeffer); the excess seen is about 1/P of that.
    """
    longest = int(counts.max())
    fair = max(min(1, longest), longest // _ENTRIES_PER_SAMPLE)
    return min(_SAMPLES_PER_RANK * len(counts), _MAX_SAMPLES, fair)


def sample_positions(count: int, samples: int) -> NDArray[np.int64]:
    """Return where in a list of `count` entries samples stand: mid-way in equal parts of it."""
    return (2 * np.arange(samples) + 1) * count // (2 * samples)


def range_bounds(n: int, samples: NDArray[Any], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cut [0, n) where the entries of all ranks together reach 1/P, 2/P ... of their number.

    Parameters
    ----------
    n : int
    samples : ndarray, shape (P, s)
        Row r: indices that cut the entries of rank r into parts of equal number; of a rank
        without entries anything.
    counts : ndarray, shape (P,)
        Entries of each rank.

    Returns
    -------
    ndarray, shape (P + 1,)
        Ascending, from 0 to n.
    """
    ranks, columns = samples.shape
    bounds = np.linspace(0, n, ranks + 1).astype(np.int64)  # equal widths, if nothing is known
    bounds[-1] = n
    if columns == 0 or counts.sum() == 0:
        return bounds
    order = np.argsort(samples, axis=None, kind="stable")
    weights = np.repeat(counts / columns, columns)[order]
    # A sample stands in the middle of the entries that it speaks for.
    reached = np.cumsum(weights) - weights / 2
    shares = counts.sum() * np.arange(1, ranks) / ranks
    cuts = np.minimum(np.searchsorted(reached, shares), order.size - 1)
    bounds[1:-1] = samples.reshape(-1)[order[cuts]]
    return bounds
