"""Process grids: the ranks of a communicator as data x stage x tensor axes.

Ranks that differ only in `tensor` follow each other, since they talk most and should share a node;
then come the stages, then the data axis, as in Megatron-LM (D. Narayanan et al., "Efficient
large-scale language model training on GPU clusters using Megatron-LM", SC 2021):

    rank = (data * stages + stage) * tensors + tensor
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import TracebackType
from typing import NamedTuple, Self

from paropt_hpc.comm.communicator import Communicator
from paropt_hpc.comm.topology import divisors
from paropt_hpc.errors import ConfigError

__all__ = ["GridShape", "ProcessGrid", "grid_shape"]

_SHOWN = 6  # valid factorizations in an error text


class GridShape(NamedTuple):
    """The length of each axis of a grid, or the place of a rank along each."""

    #: replicas that average their gradients
    data: int
    #: stages of the pipeline
    stage: int
    #: parts of one layer
    tensor: int

    def __str__(self) -> str:
        return " x ".join(map(str, self))


class ProcessGrid:
    """A communicator of all ranks, and for each axis one of the ranks along it.

    Collective: every rank makes it with the same arguments. ``grid.data`` joins the ranks that
    agree in stage and tensor, and so on; the rank within it is the place along the axis.

    Parameters
    ----------
    comm : Communicator
        Stays the caller's; its settings are those of the axes.
    data, stage, tensor : int, optional
        Lengths of the axes. One may be None, and is then what the others leave; by default
        that is `data`.

    Attributes
    ----------
    shape : GridShape
        The lengths.
    place : GridShape
        Where this rank stands.
    data, stage, tensor : Communicator
        The ranks along each axis.

    Raises
    ------
    ConfigError
        The lengths do not multiply to the size of `comm`; the text names some that do.
    """

    def __init__(
        self,
        comm: Communicator,
        data: int | None = None,
        stage: int | None = 1,
        tensor: int | None = 1,
    ) -> None:
        self.shape = grid_shape(comm.size, data, stage, tensor)
        self.place = self.place_of(comm.rank)
        axes = [self._split(comm, axis) for axis in range(3)]
        self.data, self.stage, self.tensor = axes

    def rank_of(self, place: GridShape) -> int:
        """Return the rank, in the communicator of all, that stands at a place."""
        for name, length, at in zip(self.shape._fields, self.shape, place, strict=True):
            if not 0 <= at < length:
                raise ValueError(f"{name} must be in [0, {length}), got {at}")
        return (place.data * self.shape.stage + place.stage) * self.shape.tensor + place.tensor

    def place_of(self, rank: int) -> GridShape:
        """Return where a rank stands."""
        if not 0 <= rank < math.prod(self.shape):
            raise ValueError(f"rank must be in [0, {math.prod(self.shape)}), got {rank}")
        rest, tensor = divmod(rank, self.shape.tensor)
        data, stage = divmod(rest, self.shape.stage)
        return GridShape(data, stage, tensor)

    def free(self) -> None:
        """Free the communicators of the axes; collective. A second call does nothing."""
        for axis in (self.data, self.stage, self.tensor):
            axis.free()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        # Freeing is collective. After an exception the others may never come to it.
        if error is None:
            self.free()

    def __repr__(self) -> str:
        return f"<ProcessGrid {self.shape}, place {self.place}>"

    def _split(self, comm: Communicator, axis: int) -> Communicator:
        # Ranks along an axis differ in it alone; they are named by the first of them.
        first = self.place._replace(**{self.shape._fields[axis]: 0})
        return comm.split(self.rank_of(first))


def grid_shape(
    size: int, data: int | None = None, stage: int | None = 1, tensor: int | None = 1
) -> GridShape:
    """Check the axes of a grid of `size` ranks, and fill in the one that is None; local.

    Raises
    ------
    ConfigError
        An axis is shorter than 1, more than one is None, or they do not multiply to `size`.
    """
    axes = {"data": data, "stage": stage, "tensor": tensor}
    for name, length in axes.items():
        if length is not None and length < 1:
            raise ConfigError(f"{name} must be at least 1, got {length}")
    given = math.prod(length for length in axes.values() if length is not None)
    missing = [name for name, length in axes.items() if length is None]
    if len(missing) > 1:
        raise ConfigError(f"only one axis can be inferred, got None for {' and '.join(missing)}")
    if size % given or (given != size and not missing):
        asked = " x ".join("?" if length is None else str(length) for length in axes.values())
        raise ConfigError(
            f"data x stage x tensor must multiply to the {size} ranks there are, got {asked}; "
            f"possible are {', '.join(map(str, _nearest(size, axes)))}"
        )
    return GridShape(*(size // given if length is None else length for length in axes.values()))


def _nearest(size: int, axes: dict[str, int | None]) -> list[GridShape]:
    """List a few valid shapes: those that change the fewest axes, and these the least, first."""

    def distance(shape: GridShape) -> tuple[int, float]:
        ratios = [
            abs(math.log(length / asked))
            for length, asked in zip(shape, axes.values(), strict=True)
            if asked is not None
        ]
        return sum(ratio > 0 for ratio in ratios), sum(ratios)

    return sorted(_factorizations(size), key=distance)[:_SHOWN]


def _factorizations(size: int) -> Iterator[GridShape]:
    for data in divisors(size):
        for stage in divisors(size // data):
            yield GridShape(data, stage, size // data // stage)
