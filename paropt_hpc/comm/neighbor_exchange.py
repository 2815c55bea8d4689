"""Neighbour exchange: the step of gossip, for float buffers and for opaque bytes.

Who exchanges with whom, and the weights, come from a :class:`~paropt_hpc.comm.topology.Topology`.
The native module and the Python twin below send the same segments and add in the same order, so
that their results have the same bits. What is on a GPU passes the host, buffers in segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.comm.buffers import (
    FLOATS,
    as_bytes,
    as_floats,
    grown,
    numbers_on_gpu,
    pair_on_gpu,
)
from paropt_hpc.comm.communicator import Communicator
from paropt_hpc.comm.gpu_allreduce import Gpu
from paropt_hpc.comm.lanes import LaneOptions
from paropt_hpc.comm.topology import Neighbors, PushTopology, Topology
from paropt_hpc.comm.transport import Transport
from paropt_hpc.errors import CollectiveTimeout
from paropt_hpc.kernels import device

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["NeighborMessage", "neighbor_exchange", "neighbor_exchange_bytes"]

_TAG = 7305
_BYTES_TAG = 7303
_MAX_WORKSPACE_BYTES = 8 * 1024 * 1024


class NeighborMessage(NamedTuple):
    """What one neighbour has sent."""

    #: the neighbour
    rank: int
    #: the weight of its message in the mixing matrix
    weight: float
    #: its message, shape (n,), uint8; a view that the next exchange of bytes overwrites
    payload: NDArray[np.uint8]


@dataclass
class _Workspace:
    """What a communicator keeps for these functions from call to call."""

    segments: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, dtype=np.uint8))
    payloads: list[NDArray[np.uint8]] = field(default_factory=list)  # one for every source


def neighbor_exchange(
    comm: Communicator,
    buffer: NDArray[Any],
    topology: Topology | PushTopology,
    step: int = 0,
    out: NDArray[Any] | None = None,
) -> NDArray[Any]:
    """Mix a buffer with those of the neighbours, by the weights of a topology.

    Collective: every rank passes the same size, dtype, topology and step. Rank i gets
    ``sum over j of mixing_matrix(topology, step)[i, j] * (buffer of rank j)``: its own share
    first, then those of its neighbours by rank, every product rounded before it is added.
    Deterministic. After the first call of a size nothing is allocated; the working memory is at
    most 8 MiB, or two elements for every neighbour where that is more.

    Parameters
    ----------
    comm : Communicator
    buffer : ndarray, any shape, float32 or float64, contiguous, aligned, writable
        Or an array on a GPU, then on all ranks.
    topology : Topology or PushTopology
        Of `comm.size` ranks.
    step : int
        Counts on over the periods of a time-varying topology, from 0.
    out : ndarray, size and dtype of buffer, optional
        Overwritten with the result, `buffer` is then left alone. Default: in place. Must be
        `buffer` itself or not share memory with it.

    Returns
    -------
    ndarray
        `out`, or `buffer` where there is none.

    Raises
    ------
    TypeError, ValueError
        An argument is not as above; nothing has been sent then.
    CollectiveTimeout
        A neighbour did not arrive.
    RuntimeError
        MPI failed, or a neighbour passed another size; the result is then undefined.

    Notes
    -----
    As in D-PSGD: X. Lian et al., "Can decentralized algorithms outperform centralized
    algorithms?", NeurIPS 2017.
    """
    transport = comm._transport
    start = transport.begin()
    on_gpu = device.is_device(buffer)
    pair: tuple[Any, Any] = pair_on_gpu(buffer, out, FLOATS) if on_gpu else _pair(buffer, out)
    source, target = pair
    neighbors = _checked_neighbors(comm, topology, step)
    place = " on a GPU" if on_gpu else ""
    detail = f"{source.size} {source.dtype}{place}, {topology.name}, step {step}"
    transport.agree("neighbor_exchange", detail)
    degree = topology.max_degree(step)
    if not neighbors.sources and not neighbors.targets:
        _copy(source, target)
    elif on_gpu:
        transport.keep(Gpu).staging.run(
            source, target, lambda part: _mix(transport, part, part, neighbors, degree)
        )
    else:
        _mix(transport, source, target, neighbors, degree)
    nbytes = source.size * source.dtype.itemsize
    volumes = (nbytes * len(ranks) for ranks in (neighbors.targets, neighbors.sources))
    transport.finish("neighbor_exchange", start, *volumes)
    return buffer if out is None else out


def neighbor_exchange_bytes(
    comm: Communicator,
    payload: NDArray[np.uint8],
    topology: Topology | PushTopology,
    step: int = 0,
) -> list[NeighborMessage]:
    """Send one message to all neighbours and return theirs, which may differ in length.

    Collective: every rank passes the same topology and step. What the bytes mean, and how the
    weights are applied to it, is the caller's affair; the weight of the own message is
    ``topology.neighbors(comm.rank, step).own_weight``.

    Parameters
    ----------
    comm : Communicator
    payload : ndarray, shape (n,), uint8, contiguous
        This rank's message; n may be 0 and differ between ranks. Where it is on a GPU, so are those
        that are returned.
    topology : Topology
        Of `comm.size` ranks.
    step : int
        As in :func:`neighbor_exchange`.

    Returns
    -------
    list of NeighborMessage
        By rank. Their payloads are views of buffers that the next call overwrites.

    Raises
    ------
    TypeError, ValueError
        An argument is not as above; nothing has been sent then.
    """
    transport = comm._transport
    start = transport.begin()
    view = _checked_payload(payload)
    neighbors = _checked_neighbors(comm, topology, step)
    transport.agree("neighbor_exchange_bytes", f"{topology.name}, step {step}")
    gpu = transport.keep(Gpu)
    own = payload if view is None else gpu.bring_down(payload)
    kept = transport.keep(_Workspace).payloads
    while len(kept) < len(neighbors.sources):
        kept.append(np.empty(0, dtype=np.uint8))
    sends = [
        request for target in neighbors.targets for request in _send_pieces(transport, own, target)
    ]
    messages = []
    for slot, (rank, weight) in enumerate(zip(neighbors.sources, neighbors.weights, strict=True)):
        kept[slot], length = _receive_pieces(transport, kept[slot], rank, sends)
        found: Any = kept[slot][:length]
        if view is not None:
            found = gpu.bring_up(found, view, slot)
        messages.append(NeighborMessage(rank, weight, found))
    transport.complete(sends, "neighbor_exchange_bytes")
    received = sum(message.payload.size for message in messages)
    transport.finish("neighbor_exchange_bytes", start, own.size * len(neighbors.targets), received)
    return messages


def _checked_payload(payload: Any) -> device.View | None:
    """Check a message; return what one on a GPU says of itself."""
    if device.is_device(payload):
        return numbers_on_gpu(payload, "payload", writable=False, dtypes=(np.dtype(np.uint8),))
    as_bytes(payload, "payload", writable=False)
    if payload.dtype != np.uint8 or payload.ndim != 1:
        raise TypeError(f"payload must be a vector of uint8, got {payload.ndim}-d {payload.dtype}")
    return None


def _pair(buffer: NDArray[Any], out: NDArray[Any] | None) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return what is read and what is written, as vectors."""
    flat = as_floats(buffer)
    return flat, flat if out is None else _checked_out(flat, out)


def _checked_out(flat: NDArray[Any], out: NDArray[Any]) -> NDArray[Any]:
    target = as_floats(out)
    if target.dtype != flat.dtype or target.size != flat.size:
        raise ValueError(
            f"out must have {flat.size} elements of {flat.dtype} as buffer has, "
            f"got {target.size} of {target.dtype}"
        )
    same = target.ctypes.data == flat.ctypes.data
    if not same and np.may_share_memory(target, flat):
        raise ValueError("out must be buffer itself or not overlap it; pass a copy")
    return flat if same else target


def _checked_neighbors(
    comm: Communicator, topology: Topology | PushTopology, step: int
) -> Neighbors:
    if topology.size != comm.size:
        raise ValueError(
            f"topology must be one of {comm.size} ranks as the communicator is, "
            f"got {topology.name} of {topology.size}"
        )
    return topology.neighbors(comm.rank, step)


def _segment(options: LaneOptions, flat: NDArray[Any], degree: int) -> int:
    """Return the elements in one message: the same on all ranks, whatever their degrees."""
    nbytes = min(options.segment_bytes, _MAX_WORKSPACE_BYTES // (2 * degree))
    return max(1, min(nbytes // flat.itemsize, options.max_count))


def _copy(source: Any, target: Any) -> None:
    """Do what an exchange with nobody does."""
    if target is source:
        return
    if not isinstance(source, device.View):
        target[:] = source
    elif target.pointer != source.pointer:
        device.copy(source, target)


def _mix(
    transport: Transport,
    flat: NDArray[Any],
    target: NDArray[Any],
    neighbors: Neighbors,
    degree: int,
) -> None:
    segment = _segment(transport.options, flat, degree)
    workspace = transport.keep(_Workspace)
    nbytes = 2 * len(neighbors.sources) * min(segment, flat.size) * flat.itemsize
    workspace.segments = grown(workspace.segments, nbytes)
    scratch = workspace.segments[:nbytes].view(flat.dtype)
    if transport.module is None:
        _twin(transport, flat, target, neighbors, segment, scratch)
        return
    try:
        transport.waited += transport.module.neighbor_exchange(
            transport.mpi.handle,
            flat,
            target,
            neighbors.targets,
            neighbors.sources,
            neighbors.own_weight,
            neighbors.weights,
            segment,
            scratch,
            transport.options.timeout,
        )
    except CollectiveTimeout as error:
        transport.fail()
        raise CollectiveTimeout(transport.explain("neighbor_exchange did not end")) from error


def _twin(
    transport: Transport,
    flat: NDArray[Any],
    target: NDArray[Any],
    neighbors: Neighbors,
    segment: int,
    scratch: NDArray[Any],
) -> None:
    """Do what the native module does, in the same order."""
    from mpi4py import MPI

    status = MPI.Status()
    pieces = [slice(at, min(at + segment, flat.size)) for at in range(0, flat.size, segment)]
    rows = scratch.reshape(2, len(neighbors.sources), min(segment, flat.size))

    def start(item: int) -> list[MPI.Request]:
        if item == len(pieces):
            return []
        part = flat[pieces[item]]
        places = rows[item % 2, :, : part.size]
        receives = [
            transport.mpi.Irecv(place, source, _TAG)
            for place, source in zip(places, neighbors.sources, strict=True)
        ]
        return receives + [transport.mpi.Isend(part, rank, _TAG) for rank in neighbors.targets]

    requests = start(0)
    for item, piece in enumerate(pieces):
        following = start(item + 1)
        received = rows[item % 2, :, : piece.stop - piece.start]
        for number, request in enumerate(requests):
            transport.wait("neighbor_exchange", request, status, [*requests, *following])
            if number < len(received):
                _check_length(status.Get_count() // flat.itemsize, received)
        _add_up(flat[piece], target[piece], neighbors, received)
        requests = following


def _check_length(count: int, received: NDArray[Any]) -> None:
    if count != received.shape[1]:
        raise RuntimeError(
            f"neighbour exchange: a segment of {count} elements arrived where "
            f"{received.shape[1]} were expected; all ranks must pass the same size, dtype, "
            "segment_bytes and max_count"
        )


def _add_up(
    own: NDArray[Any], target: NDArray[Any], neighbors: Neighbors, received: NDArray[Any]
) -> None:
    # A caller may have turned NumPy's warnings into errors: one rank must not stop half way.
    with np.errstate(all="ignore"):
        np.multiply(own, own.dtype.type(neighbors.own_weight), out=target)
        for row, weight in zip(received, neighbors.weights, strict=True):
            row *= own.dtype.type(weight)
            target += row


def _send_pieces(transport: Transport, own: NDArray[np.uint8], rank: int) -> list[MPI.Request]:
    """Send a message in pieces of at most the largest count; a shorter one, perhaps empty, ends it.

    The receiver needs no length in advance then, which would cost a message of its own.
    """
    step = transport.options.max_count
    return [
        transport.mpi.Isend(own[begin : begin + step], rank, _BYTES_TAG)
        for begin in range(0, own.size + 1, step)
    ]


class _Probe:
    """Looks for a message of a rank, which is taken off the queue once it is there."""

    def __init__(self, transport: Transport, rank: int) -> None:
        from mpi4py import MPI

        self._comm, self._rank = transport.mpi, rank
        self.status = MPI.Status()
        self.message: MPI.Message | None = None

    def Test(self) -> bool:
        if self.message is None:
            self.message = self._comm.Improbe(self._rank, _BYTES_TAG, self.status)
        return self.message is not None


def _receive_pieces(
    transport: Transport, kept: NDArray[np.uint8], rank: int, sends: Sequence[MPI.Request]
) -> tuple[NDArray[np.uint8], int]:
    """Receive such a message into `kept` or, where it is too short, a longer copy of it.

    `sends` are under way meanwhile.
    """
    length, count = 0, transport.options.max_count
    while count == transport.options.max_count:
        probe = _Probe(transport, rank)
        transport.complete([probe], "neighbor_exchange_bytes", sends)
        assert probe.message is not None
        count = probe.status.Get_count()
        larger = grown(kept, length + count)
        if larger is not kept:
            larger[:length] = kept[:length]
            kept = larger
        probe.message.Recv(kept[length : length + count])
        length += count
    return kept, length
