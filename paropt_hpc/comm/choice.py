"""Which algorithm carries out an all-reduce: the measured table's choice, else the model's."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from paropt_hpc.comm.tuning import ALGORITHMS, CostModel, Link, Shape, Table, table_path
from paropt_hpc.errors import ConfigError, on_every_rank

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Choice", "agreed_table"]


class Choice:
    """Names the algorithm for each size on one communicator; local, the same on all ranks.

    Parameters
    ----------
    shape : Shape
    table : Table, optional
        What was measured, on any shapes.
    native : bool
        Whether the native module is there: without it there are the ring and the library's own.
    """

    def __init__(self, shape: Shape, table: Table | None = None, *, native: bool = True) -> None:
        self._shape = shape
        self._table = table
        self._native = native
        measured = None if table is None else table.link(shape)
        model = CostModel()
        self._model = model if measured is None else model.measured(measured, shape)

    def choose(self, algorithm: str, nbytes: int) -> str:
        """Return `algorithm`, or for ``"auto"`` the fastest for a buffer of that size.

        Raises
        ------
        ValueError
            There is no such algorithm.
        ConfigError
            It cannot be used here.
        """
        if algorithm == "nccl":
            raise ConfigError(
                "algorithm 'nccl' is for arrays on a GPU, got one of the host; use 'auto'"
            )
        if algorithm not in ("auto", *ALGORITHMS):
            raise ValueError(
                f"algorithm must be one of auto, {', '.join(ALGORITHMS)}, got {algorithm!r}"
            )
        if self._shape.ranks == 1:
            return algorithm
        if algorithm == "auto":
            if not self._native:
                return "ring"
            measured = self._table.choose(nbytes, self._shape) if self._table else None
            return measured or self._model.choose(nbytes, self._shape)
        self._check(algorithm)
        return algorithm

    def ours(self, nbytes: int) -> str:
        """Choose among our algorithms, which give the same bits on all ranks."""
        chosen = self.choose("auto", nbytes)
        return self._model.choose(nbytes, self._shape) if chosen == "mpi" else chosen

    def predicted(self, nbytes: int) -> tuple[Link, float]:
        """Return what messages meet here, and the seconds of a dense all-reduce of ours."""
        name = self._model.choose(nbytes, self._shape) if self._native else "ring"
        return self._model.link(self._shape), self._model.seconds(name, nbytes, self._shape)

    def shared_reach(self) -> int:
        """Return the bytes up to which ``"auto"`` is ``"shared"`` inside a node."""
        reach = None if self._table is None else self._table.reach("shared", self._shape)
        return sys.maxsize if reach is None else reach

    def _check(self, algorithm: str) -> None:
        if algorithm in ("mpi", "ring"):
            return
        if not self._native:
            raise ConfigError(f"algorithm {algorithm!r} needs the native module; use 'ring'")
        if algorithm != "recursive_doubling" and not self._shape.shares_memory:
            raise ConfigError(f"algorithm {algorithm!r} needs shared memory; use 'ring'")
        if algorithm == "shared" and self._shape.nodes > 1:
            raise ConfigError("algorithm 'shared' works inside one node; use 'hierarchical'")


def agreed_table(comm: MPI.Intracomm) -> Table | None:
    """Let rank 0 read the measured table, so that all ranks choose alike; collective.

    Raises
    ------
    ConfigError
        It cannot be used, on every rank.
    """
    found: Table | Exception | None = None
    if comm.Get_rank() == 0:
        try:
            path = table_path()
            found = Table.load(path) if path.exists() else None
        except Exception as error:
            found = error
    found = comm.bcast(found)
    if isinstance(found, Exception):
        raise on_every_rank(found)
    return found
