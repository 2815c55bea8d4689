"""Samples of varying length, padded only to the length of their bucket.

Samples are grouped by length into buckets, and a batch comes from one bucket: it then has one of a
few fixed shapes, and little padding. What is left over of the buckets makes a few mixed batches,
neighbours in length together.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.errors import DataError
from paropt_hpc.kernels import rng
from paropt_hpc.train.samplers import ShardedSampler

__all__ = ["BucketSampler", "Ragged", "bucket_edges"]


class Ragged:
    """Samples that are sequences of tokens; indexing gives padded rows.

    Parameters
    ----------
    values : ndarray, shape (tokens,), integers from 1
        All samples one after the other; 0 is padding.
    offsets : ndarray, shape (samples + 1,), int64
        Where each sample begins, and where the last ends.
    edges : ndarray of int64, optional
        The lengths that rows are padded to, ascending; by default the largest length only.

    Attributes
    ----------
    lengths : ndarray, shape (samples,), int64
    shape : tuple
        Number of samples, and the largest token.

    Raises
    ------
    DataError
        The offsets do not fit the values, or a token is not a whole number from 1.
    """

    def __init__(
        self,
        values: NDArray[Any],
        offsets: NDArray[Any],
        edges: NDArray[np.int64] | None = None,
    ) -> None:
        _check(values, offsets)
        self.values = values
        self._begins = offsets[:-1].astype(np.int64)
        self.lengths = np.diff(offsets).astype(np.int64)
        self.edges = bucket_edges(self.lengths, 1) if edges is None else edges
        self.shape = (len(self.lengths), int(values.max(initial=1)))

    def __len__(self) -> int:
        return self.shape[0]

    def take(self, rows: NDArray[np.int64]) -> "Ragged":
        """Return some samples; the values are shared."""
        part = object.__new__(Ragged)
        part.values, part.edges = self.values, self.edges
        part._begins, part.lengths = self._begins[rows], self.lengths[rows]
        part.shape = (len(rows), self.shape[1])
        return part

    def widened(self, tokens: int) -> "Ragged":
        """Return the same samples for a larger number of different tokens."""
        part = self.take(np.arange(len(self)))
        part.shape = (len(self), tokens)
        return part

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        """Return padded rows, shape (rows, width), with the width of their longest's bucket."""
        lengths, begins = self.lengths[rows], self._begins[rows]
        places = np.arange(padded_lengths(lengths.max(initial=0), self.edges))
        real = places < lengths[:, None]
        padded = np.zeros(real.shape, self.values.dtype)
        padded[real] = self.values[(begins[:, None] + places)[real]]
        return padded


def bucket_edges(lengths: NDArray[np.int64], buckets: int) -> NDArray[np.int64]:
    """Return the largest length of each bucket, for buckets of about equally many samples; pure."""
    ordered = np.sort(lengths)
    if not ordered.size:
        return np.zeros(1, np.int64)
    last = np.ceil(np.arange(1, buckets + 1) * ordered.size / buckets).astype(np.int64) - 1
    return np.unique(ordered[np.maximum(last, 0)])


def padded_lengths(longest: Any, edges: NDArray[np.int64]) -> Any:
    """Return the edge that each length is padded to; above the last edge, the length itself."""
    place = np.searchsorted(edges, longest)
    return np.where(place < edges.size, edges[np.minimum(place, edges.size - 1)], longest)


class BucketSampler(ShardedSampler):
    """Batches of samples of about the same length; otherwise as `ShardedSampler`.

    The order of the batches of an epoch is drawn anew, and so is what each batch holds.

    Parameters
    ----------
    x : Ragged
        The samples; its edges are the buckets.
    batch, rank, size, seed : int
        As for `ShardedSampler`.
    """

    def __init__(self, x: Ragged, batch: int, rank: int, size: int, seed: int) -> None:
        super().__init__(len(x), batch, rank, size, seed)
        self._lengths, self._edges = x.lengths, x.edges
        self._buckets = np.searchsorted(x.edges, x.lengths)

    def padding(self, epoch: int) -> float:
        """Return the share of an epoch's entries that is padding, over all ranks; local."""
        order = self._permutation(epoch)
        entries = sum(
            part.size * int(padded_lengths(self._lengths[part].max(), self._edges))
            for batch in self._batches(order)
            for part in np.array_split(batch, self._size)
            if part.size
        )
        return 1 - float(self._lengths.sum()) / entries if entries else 0.0

    def _permutation(self, epoch: int) -> NDArray[np.int64]:
        generator = rng.philox(self._seed, "sampler", epoch)
        order = generator.permutation(self.n)
        order = order[np.argsort(self._buckets[order], kind="stable")]
        ends = np.cumsum(np.bincount(self._buckets, minlength=self._edges.size))
        whole, rest = [], []
        for begin, end in pairwise([0, *ends.tolist()]):
            cut = end - (end - begin) % self.batch
            whole.append(order[begin:cut])
            rest.append(order[cut:end])
        joined = np.concatenate([*whole, *rest])
        batches = list(self._batches(joined))
        # The incomplete batch stays the last one.
        count = self.n // self.batch
        drawn = [batches[i] for i in generator.permutation(count)]
        return np.concatenate([*drawn, *batches[count:]])

    def _batches(self, order: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        for begin in range(0, self.n, self.batch):
            yield order[begin : begin + self.batch]


def _check(values: NDArray[Any], offsets: NDArray[Any]) -> None:
    if values.ndim != 1 or values.dtype.kind not in "iu" or values.min(initial=1) < 1:
        raise DataError("tokens must be whole numbers from 1 in one axis; 0 is padding")
    if (
        offsets.ndim != 1
        or offsets.dtype.kind not in "iu"
        or not offsets.size
        or offsets[0] != 0
        or offsets[-1] != values.size
        or (np.diff(offsets.astype(np.int64)) < 0).any()
    ):
        raise DataError(
            f"offsets must ascend from 0 to the number of tokens, {values.size}, with one more "
            "entry than there are samples"
        )
