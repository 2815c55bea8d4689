"""Who gossips with whom at each step, and with which weights; pure functions, no MPI.

The words:

edge
    (source, target): in one step `target` receives the buffer of `source`.
degree
    the edges that end at a rank in one step; its own buffer does not count.
period
    steps after which a time-varying topology starts again; 1 for all others.
mixing matrix
    row i holds the weights with which rank i mixes the buffers of all ranks. Rows sum to one. Where
    the columns do too (doubly stochastic) mixing keeps the mean over the ranks, so that gossip
    converges to it.

The weights follow from the edges. Undirected: Metropolis weights (L. Xiao and S. Boyd, "Fast linear
iterations for distributed averaging", Systems & Control Letters 53(1), 2004). Directed, but as many
edges end at each rank as begin there: uniform ones, as in the exponential graphs (M. Assran et al.,
"Stochastic gradient push for distributed deep learning", ICML 2019; B. Ying et al., "Exponential
graph is provably efficient for decentralized deep training", NeurIPS 2021). Both are doubly
stochastic. Other edge lists get rows only that sum to one, and so drift from the mean.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.errors import ConfigError

__all__ = [
    "TOPOLOGIES",
    "Neighbors",
    "PushTopology",
    "Topology",
    "complete",
    "exponential",
    "from_edges",
    "hypercube",
    "is_connected",
    "is_doubly_stochastic",
    "make",
    "mixing_matrix",
    "one_peer_exponential",
    "pairwise_matrix",
    "period_matrix",
    "ring",
    "spectral_gap",
    "star",
    "torus",
]


class Neighbors(NamedTuple):
    """What one rank does in one step; ranks ascend."""

    #: ranks that receive this rank's buffer
    targets: tuple[int, ...]
    #: ranks whose buffers this rank receives
    sources: tuple[int, ...]
    #: weight of this rank's own buffer
    own_weight: float
    #: weights of the sources' buffers; with `own_weight` they sum to one
    weights: tuple[float, ...]


class Topology:
    """Edges between `size` ranks for each step of a period.

    Local; immutable; the same on every rank that makes it from the same arguments.

    Parameters
    ----------
    name : str
        For error texts.
    size : int
        Number of ranks, at least 1.
    steps : iterable of iterables of (source, target)
        The edges of each step of the period. An edge given twice counts once.

    Raises
    ------
    ConfigError
        A rank is out of range, an edge joins a rank to itself, or information cannot get from
        every rank to every other one within the steps of the period, repeated.
    """

    def __init__(self, name: str, size: int, steps: Iterable[Iterable[tuple[int, int]]]) -> None:
        _check_size(size)
        self.name = name
        self.size = size
        edges = [frozenset(step) for step in steps]
        union = list(frozenset[tuple[int, int]]().union(*edges))
        for source, target in union:
            _check_edge(source, target, size)
        self._sources = [_neighbor_lists(size, step) for step in edges]
        self._targets = [
            _neighbor_lists(size, [(target, source) for source, target in step]) for step in edges
        ]
        self._uniform = [
            _uniform_weight(*lists) for lists in zip(self._sources, self._targets, strict=True)
        ]
        unreached = _unreached(size, union)
        if unreached:
            raise ConfigError(
                f"topology {name} of {size} ranks must be connected, but nothing from rank "
                f"{unreached[0]} ever reaches rank {unreached[1]}; add edges"
            )

    @property
    def period(self) -> int:
        """Steps after which it starts again."""
        return len(self._sources)

    def neighbors(self, rank: int, step: int = 0) -> Neighbors:
        """Return whom a rank sends to and receives from at a step, with the weights.

        Parameters
        ----------
        rank : int
            In [0, size).
        step : int
            Counts on over periods, from 0.
        """
        if not 0 <= rank < self.size:
            raise ValueError(f"rank must be in [0, {self.size}), got {rank}")
        if step < 0:
            raise ValueError(f"step must be at least 0, got {step}")
        at = step % self.period
        sources, targets = self._sources[at][rank], self._targets[at][rank]
        uniform = self._uniform[at]
        if uniform is not None:
            weights = (uniform,) * len(sources)
        elif self._is_undirected(at):
            degrees = (len(self._sources[at][source]) for source in sources)
            weights = tuple(1 / (1 + max(len(sources), degree)) for degree in degrees)
        else:
            weights = (1 / (1 + len(sources)),) * len(sources)
        return Neighbors(targets, sources, 1 - math.fsum(weights), weights)

    def __repr__(self) -> str:
        return f"<Topology {self.name} of {self.size} ranks, period {self.period}>"

    def max_degree(self, step: int = 0) -> int:
        """Return the largest number of sources that a rank has at a step."""
        return max(len(sources) for sources in self._sources[step % self.period])

    def _is_undirected(self, at: int) -> bool:
        return self._sources[at] == self._targets[at]


def ring(size: int) -> Topology:
    """Join each rank to the one before and the one behind it."""
    return _make("ring", size, lambda rank: ((rank - 1) % size, (rank + 1) % size))


def torus(size: int, shape: tuple[int, int] | None = None) -> Topology:
    """Join each rank to its four neighbours on a grid whose edges are glued together.

    Parameters
    ----------
    size : int
    shape : (rows, columns), optional
        Their product is `size`, rank r stands in row ``r // columns``. Default: the most square
        one; a size above 1 without a divisor but itself has none, and needs ``(1, size)``.
    """
    _check_size(size)
    rows, columns = _torus_shape(size) if shape is None else shape
    if rows < 1 or columns < 1 or rows * columns != size:
        valid = ", ".join(f"{d} x {size // d}" for d in divisors(size))
        raise ConfigError(
            f"shape of a torus of {size} ranks must be one of {valid}, got {rows} x {columns}"
        )

    def neighbors(rank: int) -> Iterable[int]:
        row, column = divmod(rank, columns)
        for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            yield (row + down) % rows * columns + (column + right) % columns

    return _make("torus", size, neighbors)


def hypercube(size: int) -> Topology:
    """Join the ranks whose numbers differ in one bit; the size must be a power of two."""
    _check_size(size)
    bits = size.bit_length() - 1
    if size != 1 << bits:
        raise ConfigError(
            f"size of a hypercube must be a power of two, got {size}; the nearest are "
            f"{1 << bits} and {2 << bits}"
        )
    return _make("hypercube", size, lambda rank: (rank ^ 1 << bit for bit in range(bits)))


def exponential(size: int) -> Topology:
    """Send to the ranks 1, 2, 4, 8 ... places behind, all in one step (Ying et al., eq. 5)."""
    _check_size(size)
    hops = [1 << bit for bit in range((size - 1).bit_length())]
    edges = ((rank, (rank + hop) % size) for rank in range(size) for hop in hops)
    return Topology("exponential", size, [edges])


def one_peer_exponential(size: int) -> Topology:
    """Send to the rank 2^t places behind in step t, then start again (Ying et al., eq. 7).

    One message out and one in per step. Over a period a size that is a power of two averages
    exactly (Ying et al., lemma 1).
    """
    _check_size(size)
    hops = [1 << bit for bit in range((size - 1).bit_length())] or [0]
    return Topology(
        "one-peer-exponential",
        size,
        [[(rank, (rank + hop) % size) for rank in range(size) if hop] for hop in hops],
    )


def star(size: int) -> Topology:
    """Join rank 0 to all others."""
    return _make("star", size, lambda rank: range(1, size) if rank == 0 else (0,))


def complete(size: int) -> Topology:
    """Join every rank to every other one; one step is an all-reduce of the mean."""
    return _make("complete", size, lambda rank: range(size))


def from_edges(size: int, edges: Iterable[tuple[int, int]], *, directed: bool = False) -> Topology:
    """Make a topology from a list of edges.

    Parameters
    ----------
    size : int
    edges : iterable of (source, target)
    directed : bool
        False: what flows along an edge also flows back.

    Raises
    ------
    ConfigError
        See :class:`Topology`.
    """
    listed = list(edges)
    if not directed:
        listed += [(target, source) for source, target in listed]
    return Topology("edge list", size, [listed])


TOPOLOGIES: dict[str, Callable[[int], Topology]] = {
    "ring": ring,
    "torus": torus,
    "hypercube": hypercube,
    "exponential": exponential,
    "one-peer-exponential": one_peer_exponential,
    "star": star,
    "complete": complete,
}
"""The topologies that need no more than a size, by name."""


def make(name: str, size: int) -> Topology:
    """Make one of `TOPOLOGIES` by its name."""
    if name not in TOPOLOGIES:
        raise ConfigError(f"topology must be one of {', '.join(TOPOLOGIES)}, got {name!r}")
    return TOPOLOGIES[name](size)


def mixing_matrix(topology: Topology, step: int = 0) -> NDArray[np.float64]:
    """Return the mixing matrix of one step, shape (size, size); row i is that of rank i."""
    matrix = np.zeros((topology.size, topology.size))
    for rank in range(topology.size):
        neighbors = topology.neighbors(rank, step)
        matrix[rank, rank] = neighbors.own_weight
        matrix[rank, list(neighbors.sources)] = neighbors.weights
    return matrix


def pairwise_matrix(topology: Topology) -> NDArray[np.float64]:
    """Return the expected mixing matrix of one average of a random pair.

    A rank drawn uniformly, at a uniform step of the period, averages with one of its targets,
    drawn uniformly. Each such average is a projection, so the expected square of the distance
    from the mean falls by the matrix's second eigenvalue at least (S. Boyd, A. Ghosh,
    B. Prabhakar, D. Shah, "Randomized gossip algorithms", IEEE Trans. Inf. Theory 52(6), 2006,
    eq. 16).

    Returns
    -------
    ndarray, shape (size, size)
    """
    matrix = np.eye(topology.size)
    for step in range(topology.period):
        for rank in range(topology.size):
            targets = topology.neighbors(rank, step).targets
            for target in targets:
                share = 0.5 / (topology.size * topology.period * len(targets))
                matrix[[rank, target], [rank, target]] -= share
                matrix[[rank, target], [target, rank]] += share
    return matrix


def period_matrix(topology: Topology) -> NDArray[np.float64]:
    """Return the product of the mixing matrices of one period, the last step leftmost."""
    product = np.eye(topology.size)
    for step in range(topology.period):
        product = mixing_matrix(topology, step) @ product
    return product


def is_doubly_stochastic(matrix: NDArray[Any]) -> bool:
    """Say whether rows and columns sum to one, up to rounding, and no entry is negative."""
    ones = np.ones(len(matrix))
    return bool(
        (matrix >= 0).all()
        and np.allclose(matrix @ ones, ones, rtol=0, atol=1e-12)
        and np.allclose(ones @ matrix, ones, rtol=0, atol=1e-12)
    )


def spectral_gap(matrix: NDArray[Any]) -> float:
    """Return 1 minus the modulus of the second largest eigenvalue of a mixing matrix.

    The nearer to 1, the faster gossip forgets how the ranks differ; 0 means that it never does.
    For a time-varying topology take :func:`period_matrix`: the gap is then that of a period.

    Parameters
    ----------
    matrix : ndarray, shape (size, size)
        Rows sum to one.

    Raises
    ------
    ValueError
        Not square, or a row that does not sum to one.
    """
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        raise ValueError(f"matrix must be square and not empty, got shape {matrix.shape}")
    sums = matrix.sum(axis=1)
    worst = int(np.argmax(np.abs(sums - 1)))
    if not abs(sums[worst] - 1) <= 1e-9:
        raise ValueError(f"rows of matrix must sum to one, got {sums[worst]} in row {worst}")
    # The eigenvalue 1 belongs to the vector of ones; taking that part away leaves the others.
    rest = matrix - 1 / len(matrix)
    symmetric = np.array_equal(rest, rest.T)
    eigenvalues = np.linalg.eigvalsh(rest) if symmetric else np.linalg.eigvals(rest)
    return float(1 - np.abs(eigenvalues).max())


class PushTopology:
    """The edges of a topology with the weights of its senders, for push-sum.

    Rank j gives every target, and itself, the same share of its buffer: columns of the mixing
    matrix sum to one, for any directed edges. The sum over the ranks is kept then, but not the
    mean: a scalar that is mixed along tells each rank what to divide by (A. Nedic and
    A. Olshevsky, "Distributed optimization over time-varying directed graphs", IEEE TAC 60(3),
    2015, eq. 4).
    """

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.name = f"push over {topology.name}"
        self.size = topology.size
        self.period = topology.period

    def neighbors(self, rank: int, step: int = 0) -> Neighbors:
        """Return whom a rank sends to and receives from at a step, with the weights."""
        own = self.topology.neighbors(rank, step)
        sources = (self.topology.neighbors(source, step) for source in own.sources)
        weights = tuple(1 / (1 + len(source.targets)) for source in sources)
        return Neighbors(own.targets, own.sources, 1 / (1 + len(own.targets)), weights)

    def max_degree(self, step: int = 0) -> int:
        """Return the largest number of sources that a rank has at a step."""
        return self.topology.max_degree(step)


def is_connected(size: int, edges: Iterable[tuple[int, int]]) -> bool:
    """Say whether directed edges lead from every rank to every other one."""
    return _unreached(size, list(edges)) is None


def divisors(size: int) -> list[int]:
    """Return the divisors of a number, ascending."""
    small = [d for d in range(1, math.isqrt(size) + 1) if size % d == 0]
    return small + [size // d for d in reversed(small) if d * d != size]


def _make(name: str, size: int, neighbors: Callable[[int], Iterable[int]]) -> Topology:
    """Make a topology from the neighbours of each rank; a rank itself among them is skipped."""
    _check_size(size)
    edges = ((rank, other) for rank in range(size) for other in neighbors(rank) if other != rank)
    return Topology(name, size, [edges])


def _check_size(size: int) -> None:
    if size < 1:
        raise ConfigError(f"size of a topology must be at least 1, got {size}")


def _check_edge(source: int, target: int, size: int) -> None:
    if not (0 <= source < size and 0 <= target < size):
        raise ConfigError(
            f"edges must join ranks in [0, {size}), got ({source}, {target}); "
            "drop it or give a larger size"
        )
    if source == target:
        raise ConfigError(
            f"edges must join different ranks, got ({source}, {target}); a rank always keeps a "
            "share of its own buffer, so drop it"
        )


def _torus_shape(size: int) -> tuple[int, int]:
    rows = max(d for d in divisors(size) if d * d <= size)
    if rows == 1 and size > 1:
        below = next((s for s in range(size - 1, 3, -1) if len(divisors(s)) > 2), None)
        above = next(s for s in range(size + 1, 2 * size + 4) if len(divisors(s)) > 2)
        nearest = f"{below} and {above}" if below else f"{above}"
        raise ConfigError(
            f"size of a torus must be a product of two numbers above 1, got {size}; the nearest "
            f"are {nearest}, or pass shape=(1, {size})"
        )
    return rows, size // rows


def _neighbor_lists(size: int, edges: Iterable[tuple[int, int]]) -> list[tuple[int, ...]]:
    """List for each rank the sources of the edges that end there, ascending."""
    lists: list[list[int]] = [[] for _ in range(size)]
    for source, target in edges:
        lists[target].append(source)
    return [tuple(sorted(ranks)) for ranks in lists]


def _uniform_weight(sources: list[tuple[int, ...]], targets: list[tuple[int, ...]]) -> float | None:
    """Return the weight of a directed step that is balanced, None for any other one."""
    if sources == targets or any(len(a) != len(b) for a, b in zip(sources, targets, strict=True)):
        return None
    return 1 / (1 + max(len(ranks) for ranks in sources))


def _unreached(size: int, edges: list[tuple[int, int]]) -> tuple[int, int] | None:
    """Find two ranks of which the second never hears of the first, or return None."""
    backwards = [(target, source) for source, target in edges]
    everyone = set(range(size))
    # _neighbor_lists lists sources, so that edges the wrong way round lead forwards.
    missing = everyone - _reached(_neighbor_lists(size, backwards))
    if missing:
        return 0, min(missing)
    missing = everyone - _reached(_neighbor_lists(size, edges))
    return (min(missing), 0) if missing else None


def _reached(lists: list[tuple[int, ...]]) -> set[int]:
    """Return the ranks that a walk from rank 0 along the lists comes to."""
    seen, waiting = {0}, [0]
    while waiting:
        new = set(lists[waiting.pop()]) - seen
        seen |= new
        waiting += new
    return seen
