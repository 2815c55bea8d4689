"""Which all-reduce is the fastest: a model of the machine, or a table measured on it.

The model, with a latency ``a`` (seconds per message) and a bandwidth ``b`` (bytes per second) of
messages, P ranks on N nodes of up to R ranks, n bytes:

==================  ============================================================================
ring                ``2 (P-1) (a + n / (P b))``: ``a`` is the mean around the ring, which leaves
                    each node once, ``b`` that of the slowest link on the way
recursive_doubling  ``d (a + n / b)`` with ``d = floor(log2 P)``, plus ``2 (a + n / b)`` where P
                    is no power of two. The first ``log2 R`` steps stay inside a node; in those
                    between nodes its ranks share a link: ``n R`` for ``n``
shared              ``3 s + 4 n / m``: three waits, and four passes over memory
hierarchical        shared, and between N leaders the better of ring and recursive doubling
==================  ============================================================================

``s`` is the latency and ``m`` the bandwidth per rank of a node's shared memory. The formulas of the
first two are those of Thakur, Rabenseifner and Gropp (Int. J. High Perform. Comput. Appl. 19(1),
2005) without their term for arithmetic, which memory hides. The sparse all-reduce has a model of
its own on the same ``a`` and ``b``: :func:`paropt_hpc.comm.sparse_ranges.choose_scheme`.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from paropt_hpc.errors import ConfigError

if TYPE_CHECKING:
    from paropt_hpc.comm.communicator import Communicator

__all__ = ["ALGORITHMS", "CostModel", "Shape", "Table", "measure", "table_path"]

ALGORITHMS = ("mpi", "ring", "recursive_doubling", "shared", "hierarchical")

DEFAULT_SIZES = tuple([4**power for power in range(1, 14)])
"""Bytes that `measure` tries: 4 B to 64 MiB."""

_VERSION = 1


class Shape(NamedTuple):
    """What a choice depends on beside the size: it is the same on all ranks."""

    ranks: int
    nodes: int
    node_size: int  # of the fullest node
    leaders: int
    shares_memory: bool

    def algorithms(self) -> tuple[str, ...]:
        """Name those of ours that work here."""
        names = ["ring", "recursive_doubling"]
        if self.shares_memory:
            names.append("shared" if self.nodes == 1 else "hierarchical")
        return tuple(names)


class Link(NamedTuple):
    """What messages between all ranks meet."""

    latency: float  # seconds per message
    bandwidth: float  # bytes per second for each rank when all send


@dataclass(frozen=True)
class CostModel:
    """Latencies in seconds and bandwidths in bytes per second; see the module's formulas."""

    link_latency: float = 2e-6  # one message between nodes: 100 Gbit/s InfiniBand
    link_bandwidth: float = 12.5e9
    node_latency: float = 1e-6  # one MPI message inside a node
    node_bandwidth: float = 2e9
    memory_latency: float = 2e-7  # one cache line from core to core, with its wait
    memory_bandwidth: float = 6e10

    def seconds(self, algorithm: str, nbytes: int, shape: Shape) -> float:
        """Predict one all-reduce of `nbytes`; ValueError for an algorithm not modelled."""
        if algorithm == "ring":
            return self._ring(nbytes, shape)
        if algorithm == "recursive_doubling":
            return self._doubling(nbytes, shape)
        memory = 3 * self.memory_latency + 4 * nbytes / self.memory_bandwidth
        if algorithm == "shared":
            return memory
        if algorithm == "hierarchical":
            leaders = Shape(shape.nodes, shape.nodes, 1, 1, shares_memory=False)
            return memory + min(way(nbytes, leaders) for way in (self._ring, self._doubling))
        raise ValueError(f"algorithm must be one of ours, got {algorithm!r}")

    def _ring(self, nbytes: int, shape: Shape) -> float:
        # The steps of different ranks follow one another without a common pause, so that a chunk
        # meets every link in turn: their mean latency counts, and the least bandwidth.
        between = shape.nodes if shape.nodes > 1 else 0
        inside = shape.ranks - between
        latency = (between * self.link_latency + inside * self.node_latency) / shape.ranks
        slowest = self.node_bandwidth if inside else math.inf
        bandwidth = min(slowest, self.link_bandwidth if between else math.inf)
        return 2 * (shape.ranks - 1) * (latency + nbytes / (shape.ranks * bandwidth))

    def _doubling(self, nbytes: int, shape: Shape) -> float:
        steps = shape.ranks.bit_length() - 1
        if shape.ranks & (shape.ranks - 1):
            steps += 2  # an odd rank out sends its vector to a neighbour, and gets the result back
        inside = steps if shape.nodes == 1 else shape.node_size.bit_length() - 1
        step = self.node_latency + nbytes / self.node_bandwidth
        across = self.link_latency + nbytes * shape.node_size / self.link_bandwidth
        return inside * step + (steps - inside) * across

    def link(self, shape: Shape) -> Link:
        """Return what every rank has of the network when all send at once."""
        if shape.nodes == 1:
            return Link(self.node_latency, self.node_bandwidth)
        return Link(self.link_latency, self.link_bandwidth / shape.node_size)

    def measured(self, link: Link, shape: Shape) -> CostModel:
        """Return this model with what was measured of the network in place of the default."""
        if shape.nodes == 1:
            return replace(self, node_latency=link.latency, node_bandwidth=link.bandwidth)
        bandwidth = link.bandwidth * shape.node_size
        return replace(self, link_latency=link.latency, link_bandwidth=bandwidth)

    def choose(self, nbytes: int, shape: Shape) -> str:
        """Name the algorithm of the least predicted time."""
        return min(shape.algorithms(), key=lambda name: self.seconds(name, nbytes, shape))


@dataclass(frozen=True)
class Table:
    """What was measured to be the fastest, by shape and size."""

    # Shape as "ranks x nodes x leaders": (largest size in bytes, algorithm), sizes ascending.
    # Above the last size its algorithm holds too.
    choices: dict[str, list[tuple[int, str]]]
    # Shape: latency and bandwidth of its messages.
    links: dict[str, Link] = field(default_factory=dict)

    def link(self, shape: Shape) -> Link | None:
        """Return what was measured of the network; None where this shape was not."""
        return self.links.get(_key(shape))

    def choose(self, nbytes: int, shape: Shape) -> str | None:
        """Name the algorithm for a size; None where this shape was not measured."""
        rows = self.choices.get(_key(shape), [])
        name = next(
            (name for limit, name in rows if nbytes <= limit), rows[-1][1] if rows else None
        )
        return name if name in (*shape.algorithms(), "mpi") else None

    def reach(self, algorithm: str, shape: Shape) -> int | None:
        """Return the size up to which an algorithm is chosen; None if it always is."""
        rows = self.choices.get(_key(shape), [])
        limit = 0
        for upto, name in rows:
            if name != algorithm:
                return limit
            limit = upto
        return None

    def merged(self, other: Table) -> Table:
        """Return this table with the shapes of `other` put in."""
        return Table({**self.choices, **other.choices}, {**self.links, **other.links})

    def save(self, path: Path) -> None:
        """Write the table; a crash leaves the old file whole.

        Raises
        ------
        ConfigError
            When it cannot be written.
        """
        partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with partial.open("w") as file:
                json.dump({"version": _VERSION, **asdict(self)}, file, indent=1)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except OSError as error:
            raise ConfigError(
                f"cannot write the table of collectives {path}: {error.strerror}; let "
                "PAROPT_TUNING name another file"
            ) from None

    @classmethod
    def load(cls, path: Path) -> Table:
        """Read a table; :class:`ConfigError` names what is wrong with it."""
        try:
            content = json.loads(path.read_text())
            if content["version"] != _VERSION:
                raise ValueError(f"version {content['version']}, expected {_VERSION}")
            choices = {
                str(key): [(int(limit), _known(name)) for limit, name in rows]
                for key, rows in content["choices"].items()
            }
            links = {
                str(key): Link(float(latency), float(bandwidth))
                for key, (latency, bandwidth) in content.get("links", {}).items()
            }
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(
                f"{path} is no table of collectives ({type(error).__name__}: {error}); measure a "
                "new one with paropt tune-comm, or remove the file"
            ) from error
        return cls(choices, links)


def table_path() -> Path:
    """Return where the table of this machine is: ``PAROPT_TUNING``, else in the user's cache."""
    named = os.environ.get("PAROPT_TUNING")
    if named:
        return Path(named)
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "paropt-hpc" / "collectives.json"


def measure(
    comm: Communicator,
    sizes: Sequence[int] = DEFAULT_SIZES,
    repeats: int = 15,
    report: Callable[[int, dict[str, float]], None] | None = None,
) -> Table:
    """Time every algorithm that works on `comm` for sums of float32; collective.

    Parameters
    ----------
    comm : Communicator
        Of more than one rank, with the native module.
    sizes : sequence of int
        Bytes, multiples of 4.
    repeats : int
        Calls per size and algorithm, interleaved; the buffer is rewritten before each.
    report : callable, optional
        Given each size and the seconds of each algorithm, on every rank.

    Returns
    -------
    Table
        For the shape of `comm` alone, the same on all ranks.
    """
    names = ("mpi", *comm.shape.algorithms())
    rows = []
    found: dict[int, dict[str, float]] = {}
    for nbytes in sorted(sizes):
        times = found[nbytes] = _timed(comm, nbytes, names, repeats)
        if report is not None:
            report(nbytes, times)
        rows.append((nbytes, min(times, key=lambda name: times[name])))
    # A size between two measured ones takes the nearer one's choice: the limit is their mean.
    limits = [math.isqrt(a[0] * b[0]) for a, b in pairwise(rows)]
    limits.append(rows[-1][0])
    key = _key(comm.shape)
    choices = {key: [(n, row[1]) for n, row in zip(limits, rows, strict=True)]}
    return Table(choices, {key: _fitted(found, comm.shape)})


def _fitted(found: dict[int, dict[str, float]], shape: Shape) -> Link:
    """Solve the model for the link: the shortest vector has the latency, the longest the rest."""
    shortest, longest = min(found), max(found)
    # What the model does not explain by the inside of the nodes; it cannot be all of the time.
    none = CostModel().measured(Link(0.0, math.inf), shape)
    unit = CostModel().measured(Link(1.0, math.inf), shape)
    doubling, base = found[shortest]["recursive_doubling"], none._doubling(0, shape)
    latency = max(doubling - base, doubling / 10) / (unit._doubling(0, shape) - base)
    late = none.measured(Link(latency, math.inf), shape)
    ring = found[longest]["ring"]
    rest = max(ring - late._ring(0, shape), ring / 10)
    bandwidth = 2 * (shape.ranks - 1) * longest / (shape.ranks * rest)
    sharing = 1 if shape.nodes == 1 else shape.node_size  # the ring leaves a node once
    return Link(latency, bandwidth / sharing)


def _timed(comm: Communicator, nbytes: int, names: Sequence[str], repeats: int) -> dict[str, float]:
    """Return the median, over the calls, of the slowest rank's seconds, by algorithm."""
    values = np.arange(nbytes // 4, dtype=np.float32)
    buffer = np.empty_like(values)
    seconds = np.empty((len(names), repeats))
    for turn in range(-2, repeats):  # two turns to warm up
        for row, name in enumerate(names):
            buffer[:] = values
            comm.barrier()
            start = time.perf_counter()
            comm.allreduce(buffer, "sum", name)
            seconds[row, turn] = time.perf_counter() - start
    comm.allreduce(seconds, "max", "ring")
    return dict(zip(names, np.median(seconds, axis=1).tolist(), strict=True))


def _key(shape: Shape) -> str:
    return f"{shape.ranks} x {shape.nodes} x {shape.leaders}"


def _known(name: Any) -> str:
    if name not in ALGORITHMS:
        raise ValueError(f"unknown algorithm {name!r}")
    return str(name)
