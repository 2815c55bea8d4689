"""Sparse all-reduce: the sum over all ranks of vectors that are mostly zero, sent as messages.

Three schemes over the messages of :mod:`paropt_hpc.kernels.message`, for P ranks and k entries on
each. Volumes are entries sent per rank:

=============  ===================================================  ===========================
scheme         what is done                                         volume
=============  ===================================================  ===========================
``allgather``  every rank gets and adds up all messages             (P-1) k
``split``      every rank gets and sums one range of indices, the   (P-1)/P (k + union)
               sums are gathered
``reselect``   as split, but of a range's sums only the largest     2 (P-1)/P k
               k/P are gathered, the others are dropped
=============  ===================================================  ===========================

The first two are exact. The third has the volume law of Ok-Topk (S. Li and T. Hoefler,
"Near-optimal sparse allreduce for distributed deep learning", PPoPP 2022), whose bound is
6 (P-1)/P k, and keeps k/P of each range where Ok-Topk keeps what a global threshold passes.
TopkA and the split are described by C. Renggli et al., "SparCML", SC 2019. Entries are added in the
order of the ranks in all of them, so that every rank ends with the same bits.

Messages travel from host to host. Of a vector on a GPU its message comes down, and what is to be
added to the result goes up as messages, which are decoded there: never a dense vector.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.comm import sparse_ranges
from paropt_hpc.comm.buffers import grown
from paropt_hpc.comm.communicator import Communicator
from paropt_hpc.comm.gpu_allreduce import Gpu
from paropt_hpc.comm.transport import Transport
from paropt_hpc.errors import MessageError, on_every_rank
from paropt_hpc.kernels import device, topk
from paropt_hpc.kernels import message as messages
from paropt_hpc.kernels.index_codec import index_dtype
from paropt_hpc.kernels.memory import memory_of

__all__ = [
    "SCHEMES",
    "SparseResult",
    "remember_ranges",
    "remembered_ranges",
    "sparse_allreduce",
]

SCHEMES = ("auto", "allgather", "split", "reselect", "dense")

_TAG = 7304
_FAILED = -1
_FULL = 8
"""Messages that hold more than 1/8 of the vector are added one by one: decoding writes as much."""

_WHOLE = slice(None)

_IMBALANCE = 1.05
"""A range with more than this times its share has the ranges cut anew at the next call."""


class SparseResult(NamedTuple):
    """What a sparse all-reduce has done."""

    #: the scheme that was used
    scheme: str
    #: indices of sums that this rank had to drop, ascending, dtype ``index_dtype(n)``
    dropped_indices: NDArray[Any]
    #: those sums, before any division
    dropped_values: NDArray[Any]
    #: entries summed by the busiest rank over the mean; 1 where no ranges are made
    imbalance: float


class _Entries(NamedTuple):
    """Some entries of a vector, by ascending index."""

    indices: NDArray[Any]
    values: NDArray[Any]


@dataclass
class _Ranges:
    """What is known about one vector from the last call."""

    bounds: NDArray[np.int64] | None = None
    union: float | None = None


@dataclass
class _Workspace:
    """What a communicator keeps for this function from call to call."""

    buffers: dict[str, NDArray[np.uint8]] = field(default_factory=dict)
    ranges: dict[tuple[int, int], _Ranges] = field(default_factory=dict)

    def take(self, name: str, dtype: Any, count: int) -> NDArray[Any]:
        """Return `count` entries of the buffer of that name; what was in it is lost."""
        dtype = np.dtype(dtype)
        nbytes = count * dtype.itemsize
        kept = grown(self.buffers.get(name, np.empty(0, dtype=np.uint8)), nbytes)
        self.buffers[name] = kept
        return kept[:nbytes].view(dtype)


@dataclass
class _Call:
    """One sparse all-reduce on its way: its arguments, and what all ranks have agreed on."""

    comm: Communicator
    message: NDArray[np.uint8]
    head: messages.Header
    dense: NDArray[Any]
    scale: float
    kept: int  # entries that "reselect" keeps over all ranks
    work: _Workspace
    ranges: _Ranges
    counts: NDArray[np.int64]  # entries of every rank's message
    nbytes: NDArray[np.int64]  # its size
    start: float  # as of `Transport.begin`
    sent: int = 0
    received: int = 0
    finished: bool = False

    @property
    def transport(self) -> Transport:
        """What the call goes through."""
        return self.comm._transport

    def finish(self) -> None:
        """End the call, and count it; a second time does nothing."""
        if not self.finished:
            self.transport.finish("sparse_allreduce", self.start, self.sent, self.received)
        self.finished = True

    def swapped(self, nbytes: int) -> None:
        """Count what every rank has sent to every other one."""
        self.sent += nbytes * (self.comm.size - 1)
        self.received += nbytes * (self.comm.size - 1)

    def part(self, part: slice = _WHOLE) -> Any:
        """Return a part of the dense vector."""
        dense = device.vector(self.dense) if device.is_device(self.dense) else self.dense
        return dense[part]

    def put(self, views: Sequence[Any], entries: int, part: slice = _WHOLE) -> None:
        """Overwrite a part of the dense vector with the sum of messages of so many entries.

        In one pass where they are sparse.
        """
        dense = self.part(part)
        if _FULL * entries > dense.size or device.is_device(dense):
            memory_of(dense).clear(dense)
            for view in views:
                self._add(view, dense)
            return
        workspace = self.take_entries(entries, dense.size)
        messages.decode_sum(views, dense, self.scale, workspace)

    def take_entries(
        self, count: int, n: int, names: tuple[str, str] = ("indices", "values")
    ) -> _Entries:
        """Return buffers for entries of a vector of length n; what was in them is lost."""
        indices = self.work.take(names[0], index_dtype(n), count)
        return _Entries(indices, self.work.take(names[1], self.head.dtype, count))

    def _add(self, message: Any, dense: Any) -> None:
        above = device.is_device(dense) and not device.is_device(message)
        if above and message.size:
            message = self.transport.keep(Gpu).bring_up(message, device.view(self.dense))
        messages.decode_add(message, dense, self.scale)


def sparse_allreduce(
    comm: Communicator,
    message: NDArray[np.uint8],
    dense_out: NDArray[Any],
    scheme: str = "auto",
    *,
    op: str = "sum",
    keep: int | None = None,
    bucket: int = 0,
) -> SparseResult:
    """Sum the sparse vectors of all ranks into a dense one.

    Collective: every rank passes a message for a vector of the same length and dtype, and the
    same `scheme`, `op`, `keep` and `bucket`. All ranks get the same bits.

    Parameters
    ----------
    comm : Communicator
    message : ndarray, shape (m,), uint8
        As :func:`paropt_hpc.kernels.message.encode` makes it; the number of entries may differ
        between ranks and be 0.
    dense_out : ndarray, shape (n,), float32 or float64, contiguous, aligned, writable
        Overwritten with the result; of the message's length and dtype. Or an array on a GPU, then
        on all ranks, and the message too.
    scheme : {"auto", "allgather", "split", "reselect", "dense"}
        ``"auto"`` takes the exact one of the least predicted time, see
        :func:`paropt_hpc.comm.sparse_ranges.choose_scheme`; ``"dense"`` is an all-reduce of the
        decoded vector.
    op : {"sum", "mean"}
        The mean is the sum times the rounded value of 1/P.
    keep : int, optional
        For ``"reselect"``: how many entries the result keeps, k/P of each range. Default: as
        many as the longest message has.
    bucket : int
        Tells vectors of equal length apart when several take turns: the ranges of the split
        are remembered from call to call.

    Returns
    -------
    SparseResult
        With ``"reselect"`` it holds the sums of this rank's range that were dropped: add them to
        the residual. Nothing is lost then: ``result + all ranks' dropped`` is, bit for bit, the
        sum of all messages with its entries added in the order of the ranks. Where these
        additions are exact, it is what the ranks have put in.

    Raises
    ------
    TypeError, ValueError
        An argument is not as above; nothing has been sent then. Or the ranks passed arguments
        that differ; every rank raises then and the text names the ranks.
    CollectiveTimeout
        A rank did not arrive.
    MessageError
        A message is damaged; every rank raises. `dense_out` is then undefined.
    """
    transport = comm._transport
    start = transport.begin()
    if scheme not in SCHEMES:
        raise ValueError(f"scheme must be one of {', '.join(SCHEMES)}, got {scheme!r}")
    if op not in ("sum", "mean"):
        raise ValueError(f"op must be sum or mean, got {op!r}")
    head = _checked_header(message, dense_out)
    if keep is not None and not 0 <= keep <= head.n:
        raise ValueError(f"keep must be in [0, {head.n}], got {keep}")
    transport.agree("sparse_allreduce", f"{op} of {head.n} {head.dtype}, {scheme}, bucket {bucket}")
    work = transport.keep(_Workspace)
    records = _agree(comm, head, message, scheme, op, keep)
    leaves = device.is_device(message) and comm.size > 1
    below = transport.keep(Gpu).bring_down(message) if leaves else message
    call = _Call(
        comm=comm,
        message=below,
        head=head,
        dense=dense_out,
        scale=1 if op == "sum" else 1 / comm.size,
        kept=int(records[:, 0].max()) if keep is None else keep,
        work=work,
        ranges=work.ranges.setdefault((bucket, head.n), _Ranges()),
        counts=records[:, 0],
        nbytes=records[:, 1],
        start=start,
    )
    call.swapped(records[0].nbytes)
    result = _run(call, message, scheme)
    if device.is_device(dense_out):
        result = result._replace(
            dropped_indices=device.bring(result.dropped_indices, dense_out),
            dropped_values=device.bring(result.dropped_values, dense_out),
        )
    call.finish()
    return result


def remembered_ranges(comm: Communicator, n: int, bucket: int = 0) -> NDArray[np.int64] | None:
    """Return where the next split cuts a vector of `n` entries; None if it is to find out; local.

    What ``"reselect"`` drops depends on it.
    """
    return comm._transport.keep(_Workspace).ranges.get((bucket, n), _Ranges()).bounds


def remember_ranges(
    comm: Communicator, n: int, bounds: NDArray[np.int64] | None, bucket: int = 0
) -> None:
    """Let the next split cut a vector of `n` entries as `remembered_ranges` has told; local.

    The same on all ranks.
    """
    comm._transport.keep(_Workspace).ranges[bucket, n] = _Ranges(bounds)


def _checked_header(message: NDArray[np.uint8], dense_out: NDArray[Any]) -> messages.Header:
    head = messages.header(message)
    memory = memory_of(dense_out)
    memory.check_array("message", message, (np.dtype(np.uint8),))
    memory.check_array("dense_out", dense_out, (head.dtype,), writable=True, length=head.n)
    memory.check_separate("message", message, "dense_out", dense_out)
    return head


def _agree(
    comm: Communicator,
    head: messages.Header,
    message: NDArray[np.uint8],
    scheme: str,
    op: str,
    keep: int | None,
) -> NDArray[np.int64]:
    """Gather entries and bytes of all messages; raise on every rank unless the rest is equal."""
    common = (
        head.n,
        head.dtype.itemsize,
        SCHEMES.index(scheme),
        op == "mean",
        -1 if keep is None else keep,
    )
    own = np.array([head.k, message.size, *common], dtype=np.int64)
    records = comm._transport.share_rows(own, "sparse_allreduce")
    if not (records[:, 2:] == own[2:]).all():
        raise on_every_rank(ValueError(_difference(records[:, 2:])))
    return records


def _difference(common: NDArray[np.int64]) -> str:
    """Say what the ranks, a row each, should have passed alike and did not."""
    names = ("length", "bytes per value", "scheme", "op", "keep")
    differs = common != common[0]
    column = int(np.flatnonzero(differs.any(axis=0))[0])
    shown = ", ".join(map(str, np.flatnonzero(differs[:, column])[:8].tolist()))
    return (
        f"sparse all-reduce: all ranks must pass the same {names[column]}, but rank {shown} "
        "passed another one than rank 0"
    )


def _run(call: _Call, message: Any, scheme: str) -> SparseResult:
    if call.comm.size == 1:
        call.put([message], call.head.k)
        return _exact(call, "allgather" if scheme == "auto" else scheme)
    if scheme == "auto":
        union = call.ranges.union
        if union is None:
            union = sparse_ranges.expected_union(call.head.n, call.counts)
        load = sparse_ranges.Load(call.counts, call.nbytes, union)
        nbytes = call.head.n * call.head.dtype.itemsize
        link, dense = call.comm._choice.predicted(nbytes)
        if device.is_device(call.dense):
            dense = math.inf  # all of it would have to pass the host
        scheme = sparse_ranges.choose_scheme(load, link, dense, sparse_ranges.Work())
    if scheme == "allgather":
        return _allgather(call)
    if scheme == "dense":
        return _dense(call, message)
    return _split(call, reselect=scheme == "reselect")


def _exact(call: _Call, scheme: str) -> SparseResult:
    return SparseResult(scheme, *_nothing(call), imbalance=1.0)


def _nothing(call: _Call) -> _Entries:
    return _Entries(np.empty(0, index_dtype(call.head.n)), np.empty(0, call.head.dtype))


def _allgather(call: _Call) -> SparseResult:
    views = call.transport.share_messages(call.message, call.nbytes, "sparse_allreduce")
    call.sent += (call.comm.size - 1) * call.message.size
    call.received += int(call.nbytes.sum()) - call.message.size
    call.put(views, int(call.counts.sum()))  # all ranks see the same bytes: all fail or none does
    return _exact(call, "allgather")


def _dense(call: _Call, message: Any) -> SparseResult:
    with call.comm._together(counted=False):
        call.put([message], call.head.k)
    call.swapped(8)
    call.finish()  # what follows counts itself
    call.comm.allreduce(
        call.dense, "sum", call.comm._choice.ours(call.head.n * call.head.dtype.itemsize)
    )
    return _exact(call, "dense")


def _split(call: _Call, *, reselect: bool) -> SparseResult:
    own = _decode_own(call)
    if call.ranges.bounds is None:
        call.ranges.bounds = _cut_ranges(call, own.indices)
    bounds = call.ranges.bounds
    arrived = _exchange(call, _encode_parts(call, bounds, own))
    low, high = bounds[call.comm.rank : call.comm.rank + 2].tolist()
    load, sums, failure = 0, _nothing(call), None
    try:
        load, sums = _sum_range(call, arrived, high - low)
    except MessageError as error:  # the others are told in place of the sums
        failure = error
    union, dropped = sums.indices.size, _nothing(call)
    if reselect and failure is None:
        sums, dropped = _select(call, sums, low)
    loads = _gather_sums(call, bounds, sums, (load, union), failure)
    imbalance = float(loads.max() / max(1.0, loads.mean()))
    if imbalance > _IMBALANCE:
        call.ranges.bounds = None
    return SparseResult("reselect" if reselect else "split", *dropped, imbalance)


def _decode_own(call: _Call) -> _Entries:
    """Decode this rank's message; a damaged one is noticed on all ranks."""
    head = call.head
    own = call.take_entries(head.k, head.n)
    with call.comm._together(counted=False):
        messages.decode(call.message, out=own)
    call.swapped(8)
    return own


def _cut_ranges(call: _Call, indices: NDArray[Any]) -> NDArray[np.int64]:
    count = sparse_ranges.sample_count(call.counts)
    own = np.zeros(count, dtype=indices.dtype)
    if indices.size:
        own[:] = indices[sparse_ranges.sample_positions(indices.size, count)]
    samples = call.transport.gather_rows(own, "sparse_allreduce")
    call.swapped(own.nbytes)
    return sparse_ranges.range_bounds(call.head.n, samples, call.counts)


def _encode_parts(call: _Call, bounds: NDArray[np.int64], own: _Entries) -> list[NDArray[np.uint8]]:
    """Make one message for each range, its indices counted from where the range begins."""
    cuts = np.searchsorted(own.indices, bounds[1:-1].astype(own.indices.dtype))
    ends = [0, *cuts.tolist(), own.indices.size]
    parts = [slice(begin, end) for begin, end in itertools.pairwise(ends)]
    widths = np.diff(bounds).tolist()
    sizes = [
        messages.max_bytes(width, part.stop - part.start, own.values.dtype)
        for part, width in zip(parts, widths, strict=True)
    ]
    out = call.work.take("parts", np.uint8, sum(sizes))
    encoded = []
    for part, low, width, size in zip(parts, bounds.tolist(), widths, sizes, strict=False):
        relative = _relative(call, own.indices[part], low, width)
        encoded.append(messages.encode(relative, own.values[part], width, out=out[:size]))
        out = out[size:]
    return encoded


def _relative(call: _Call, indices: NDArray[Any], low: int, width: int) -> NDArray[Any]:
    relative = call.work.take("relative", index_dtype(width), indices.size)
    np.subtract(indices, indices.dtype.type(low), out=relative, casting="unsafe")
    return relative


def _exchange(call: _Call, parts: list[NDArray[np.uint8]]) -> list[NDArray[np.uint8]]:
    """Give each rank its part, and return those for this rank in the order of the ranks."""
    transport, rank, size = call.transport, call.comm.rank, call.comm.size
    sizes = np.array([part.size for part in parts], dtype=np.int64)
    lengths = np.empty_like(sizes)
    transport.complete([transport.mpi.Ialltoall(sizes, lengths)], "sparse_allreduce")
    ends = np.cumsum(lengths)
    out = call.work.take("arrived", np.uint8, int(ends[-1]))
    arrived = [out[end - length : end] for end, length in zip(ends, lengths, strict=True)]
    arrived[rank][:] = parts[rank]
    requests = []
    # Rank by rank from the own one on, so that not all send to the same one first.
    mpi, step = transport.mpi, transport.options.max_count
    for shift in range(1, size):
        source, target = (rank - shift) % size, (rank + shift) % size
        requests += [mpi.Irecv(piece, source, _TAG) for piece in _pieces(arrived[source], step)]
        requests += [mpi.Isend(piece, target, _TAG) for piece in _pieces(parts[target], step)]
    transport.complete(requests, "sparse_allreduce")
    call.swapped(8)
    call.sent += int(sizes.sum() - sizes[rank])
    call.received += int(lengths.sum() - lengths[rank])
    return arrived


def _pieces(data: NDArray[np.uint8], step: int) -> list[NDArray[np.uint8]]:
    return [data[at : at + step] for at in range(0, data.size, step)]


def _sum_range(call: _Call, arrived: list[NDArray[np.uint8]], width: int) -> tuple[int, _Entries]:
    """Add the parts of a range up; return the entries added, and the sums that are not zero.

    A sum that is zero needs no place in a message, whatever it came from.
    """
    load = sum(messages.header(part).k for part in arrived)
    out = call.take_entries(load, width, ("found", "sums"))
    found = messages.decode_merge(arrived, width, out, call.take_entries(load, width))
    return load, _Entries(found.indices, found.values)


def _select(call: _Call, sums: _Entries, low: int) -> tuple[_Entries, _Entries]:
    """Keep this rank's share of the largest sums; return those, then the others.

    The others are counted from the beginning of the vector, not of the range.
    """
    rank, size = call.comm.rank, call.comm.size
    share = (rank + 1) * call.kept // size - rank * call.kept // size
    if share >= sums.indices.size:
        return sums, _nothing(call)
    chosen = topk.select(sums.values, share)
    others = np.ones(sums.indices.size, dtype=bool)
    others[chosen.indices] = False
    dropped = sums.indices[others].astype(index_dtype(call.head.n))
    dropped += dropped.dtype.type(low)
    kept = _Entries(sums.indices[chosen.indices], chosen.values)
    return kept, _Entries(dropped, sums.values[others])


def _gather_sums(
    call: _Call,
    bounds: NDArray[np.int64],
    sums: _Entries,
    counts: tuple[int, int],
    failure: MessageError | None,
) -> NDArray[np.int64]:
    """Gather the sums of all ranges into the dense vector; return the entries added for each."""
    comm = call.comm
    width = int(bounds[comm.rank + 1] - bounds[comm.rank])
    nbytes = messages.max_bytes(width, sums.indices.size, sums.values.dtype)
    out = call.work.take("own sums", np.uint8, nbytes)
    own = messages.encode(
        sums.indices.astype(index_dtype(width), copy=False), sums.values, width, out
    )
    length = own.size if failure is None else _FAILED
    record = np.array([length, *counts], dtype=np.int64)
    records = call.transport.gather_rows(record, "sparse_allreduce")
    call.swapped(records[0].nbytes)
    _raise_failures(records[:, 0], failure)
    views = call.transport.gather_messages(own, records[:, 0], "sparse_allreduce")
    call.sent += (comm.size - 1) * own.size
    call.received += int(records[:, 0].sum()) - own.size
    for view, low, high in zip(views, bounds, bounds[1:], strict=False):
        call.put([view], messages.header(view).k, slice(low, high))
    call.ranges.union = float(records[:, 2].sum())
    return records[:, 1]


def _raise_failures(lengths: NDArray[np.int64], failure: MessageError | None) -> None:
    failed = np.flatnonzero(lengths == _FAILED)
    if failed.size:
        raise on_every_rank(
            failure or MessageError(f"rank {failed[0]} received a damaged part of a message")
        )
