"""The pure part of the sparse all-reduce: which scheme, and who sums which range of indices.

A range is ``[bounds[c], bounds[c + 1])``, owned by rank c. Ranges of equal width would leave one
rank with most of the work where the entries are clustered, as they are when one layer has the
large gradients; so their ends are quantiles of the indices that are there, estimated from regular
samples of all ranks (H. Shi and J. Schaeffer, "Parallel sorting by regular sampling", J. Parallel
Distrib. Comput. 14(4), 1992).
"""

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.comm.tuning import Link

__all__ = [
    "Load",
    "Work",
    "choose_scheme",
    "expected_union",
    "range_bounds",
    "sample_count",
    "sample_positions",
]

_SAMPLES_PER_RANK = 24
_MAX_SAMPLES = 1024
_ENTRIES_PER_SAMPLE = 16  # samples of a short message must not outweigh it
_LONG_GATHER = 512 * 1024  # bytes in all, MPIR_CVAR_ALLGATHER_LONG_MSG_SIZE of MPICH


class Load(NamedTuple):
    """What the ranks want to sum: the same on all of them."""

    counts: NDArray[np.int64]  # entries of every rank's message, shape (P,)
    nbytes: NDArray[np.int64]  # its size
    union: float  # indices that occur in any message, as far as is known


class Work(NamedTuple):
    """Seconds of a core for one entry; measured at 1 % on a core of 2 GHz."""

    code: float = 0.7e-9  # to encode or decode it
    add: float = 1.5e-9  # to add it to those of other ranks


def choose_scheme(load: Load, link: Link, dense_seconds: float, work: Work) -> str:
    """Choose the exact scheme of the least predicted time.

    With a latency ``a`` and a bandwidth ``b`` of the link, m bytes and k entries in a rank's
    message, u bytes and v entries for the union of all, ``c`` seconds to code an entry and ``d`` to
    decode and add it:

    ===========  ==================================================================
    all-gather   ``g(P m) + P k d`` with ``g(n) = G a + (P-1)/P n / b``. MPI
                 libraries gather less than 512 KiB in ``G = L = ceil(log2 P)``
                 rounds, more in P-1
    split        ``(P-1 + 2 L) a + (P-1)/P m / b + g(u)``: lengths, parts, what became
                 of them, and the sums; with ``2 k c + k d + v/P c + v d``
    dense        what :class:`paropt_hpc.comm.tuning.CostModel` says, and ``k d``
    ===========  ==================================================================

    All of them write the dense result once.

    Parameters
    ----------
    load : Load
    link : Link
    dense_seconds : float
        Of an all-reduce of the whole vector.
    work : Work

    Returns
    -------
    {"allgather", "split", "dense"}
    """
    ranks, total = len(load.counts), int(load.nbytes.sum())
    rounds, others = math.ceil(math.log2(ranks)), (ranks - 1) / ranks
    entries = int(load.counts.sum())
    union = load.union * total / max(1, entries)
    own, put = entries / ranks, work.code + work.add

    def gather(nbytes: float) -> float:
        latencies = rounds if nbytes < _LONG_GATHER else ranks - 1
        return latencies * link.latency + others * nbytes / link.bandwidth

    parts = (ranks - 1 + 2 * rounds) * link.latency + others * total / ranks / link.bandwidth
    summing = own * (2 * work.code + put) + load.union * (work.code / ranks + put)
    seconds = {
        "dense": dense_seconds + own * put,
        "allgather": gather(total) + entries * put,
        "split": parts + gather(union) + summing,
    }
    return min(seconds, key=lambda scheme: seconds[scheme])


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
