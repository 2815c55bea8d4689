"""Which samples a rank trains on in each step."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels import rng

__all__ = ["Shard", "ShardedSampler"]


class Shard(NamedTuple):
    """One rank's part of one global batch."""

    indices: NDArray[np.int64]  # sample numbers, shape (local,); empty for some ranks of a tail
    batch: int  # samples in the global batch, over all ranks


class ShardedSampler:
    """Cut every epoch into global batches, and every batch into one shard per rank.

    All ranks draw the same permutation of the epoch, so that the shards are disjoint,
    every sample counts once per epoch, and a global batch holds the same samples for any
    number of ranks. The last batch of an epoch may be smaller: then some shards have one
    sample less, or none, and all ranks still take the same number of steps.

    Parameters
    ----------
    n : int
        Samples in the data set; at least `size`.
    batch : int
        Samples in a global batch; a multiple of `size`.
    rank, size : int
        As in MPI.
    seed : int
        Of the permutations.
    """

    def __init__(self, n: int, batch: int, rank: int, size: int, seed: int) -> None:
        if n < size:
            raise ConfigError(
                f"{n} samples are fewer than {size} ranks; start at most {n} ranks or add data"
            )
        if batch < 1 or batch % size:
            lower = batch // size * size
            values = f"{lower} or {lower + size}" if lower > 0 else f"{size}"
            raise ConfigError(
                f"the global batch {batch} is not a multiple of {size} ranks; use {values}"
            )
        self.n = n
        self.batch = batch
        self.steps_per_epoch = -(-n // batch)
        self._rank = rank
        self._size = size
        self._seed = seed
        self._drawn = -1  # epoch whose permutation `part` has kept
        self._order = np.empty(0, np.int64)

    def epoch(self, number: int, first: int = 0) -> Iterator[Shard]:
        """Yield this rank's shards of epoch `number` from batch `first` on; local.

        Both count from 0. The batches of an epoch do not depend on the number of ranks, so
        that a run may go on with another one in the middle.
        """
        order, size = self._permutation(number), self.batch
        whole = order[: self.n // size * size].reshape(-1, size)
        local = size // self._size
        for own in whole[first:, self._rank * local : (self._rank + 1) * local]:
            yield Shard(own, size)
        tail = order[whole.size :]
        if tail.size and first <= len(whole):
            yield Shard(_share(tail, self._rank, self._size), tail.size)

    def tasks(self, first: int, last: int) -> range:
        """Return numbers for all shards of batches `first` to `last - 1` that are not empty."""
        tail = self.n - (self.steps_per_epoch - 1) * self.batch
        missing = max(0, self._size - tail) if last == self.steps_per_epoch else 0
        return range(first * self._size, max(first, last) * self._size - missing)

    def part(self, epoch: int, task: int) -> Shard:
        """Return the shard of a task: part ``task % size`` of batch ``task // size``."""
        batch, rank = divmod(task, self._size)
        if epoch != self._drawn:
            self._drawn, self._order = epoch, self._permutation(epoch)
        samples = self._order[batch * self.batch : (batch + 1) * self.batch]
        return Shard(_share(samples, rank, self._size), samples.size)

    def _permutation(self, epoch: int) -> NDArray[np.int64]:
        return rng.philox(self._seed, "sampler", epoch).permutation(self.n)


def _share(samples: NDArray[np.int64], rank: int, size: int) -> NDArray[np.int64]:
    """Return one of `size` parts that differ by one sample at most, the longer ones first."""
    least, longer = divmod(samples.size, size)
    begin = rank * least + min(rank, longer)
    return samples[begin : begin + least + (rank < longer)]
