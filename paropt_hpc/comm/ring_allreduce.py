"""Ring all-reduce: the bandwidth-optimal sum of a long vector over all ranks.

After Patarasuk and Yuan (J. Parallel Distrib. Comput. 69(2), 2009). The words:

chunk
    the part of the buffer that one rank owns; chunk c ends where chunk c+1 begins.
segment
    the piece in flight: a chunk travels as segments of equal length, the last one shorter.
step
    every rank sends one chunk to its right neighbour and receives one from its left.

Reduce-scatter, then all-gather, P-1 steps each: see ``csrc/ring_allreduce.hpp``. The Python
twin below takes the same steps on the same pieces in the same order, so that its results have
the same bits; it serves where the native module was not built, and as the oracle in the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.comm import native
from paropt_hpc.comm.buffers import as_numbers
from paropt_hpc.kernels import device
from paropt_hpc.kernels.reduce import add

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["DEFAULT_SEGMENT_BYTES", "MAX_COUNT", "OPS", "ring_allreduce", "ring_volume"]

OPS = ("sum", "mean", "min", "max")

DEFAULT_SEGMENT_BYTES = 1024 * 1024

MAX_COUNT = 2**31 - 1
"""The largest count given to one MPI call; MPI's own counts are C ints."""

_TAG = 7301

Wait = Callable[..., None]
"""How to wait for a request: given it, a status to fill, and what is under way beside it."""


def ring_allreduce(
    comm: MPI.Intracomm,
    buffer: NDArray[Any],
    op: str = "mean",
    *,
    segment_bytes: int = DEFAULT_SEGMENT_BYTES,
    max_count: int = MAX_COUNT,
    backend: str | None = None,
) -> int:
    """Reduce a buffer over all ranks, in place.

    Collective: every rank passes the same size, dtype, `op`, `segment_bytes` and `max_count`.
    Arguments are checked before the first message. All ranks end with the same bits, the same
    in every run on the same number of ranks, and the same from the native module and the twin
    (but for the payload of a NaN that a sum of two NaNs gives).

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        Tag 7301 is used on it.
    buffer : ndarray, any shape, contiguous, aligned, writable
        Overwritten with the result; may be empty or shorter than the number of ranks. The
        dtypes are those of :func:`paropt_hpc.comm.buffers.as_numbers`.
    op : {"mean", "sum", "min", "max"}
        A NaN on any rank gives NaN in every one of them.
    segment_bytes : int
        Size in bytes of one message, two of which are on their way at a time; of 16-bit floats
        half of it.
    max_count : int
        Upper limit on the elements of one message, at most 2**31 - 1.
    backend : {"auto", "native", "reference"}, optional
        See :func:`paropt_hpc.comm.native.select`.

    Returns
    -------
    int
        Bytes that this rank has sent: about 2 (P-1)/P of the buffer's, the lower bound.

    Raises
    ------
    TypeError, ValueError
        An argument is not as above.
    MPIMismatchError
        The native module was built against another MPI than mpi4py has loaded.
    RuntimeError
        MPI failed, or a neighbour passed another size; `buffer` is then undefined.
    """
    flat = as_numbers(buffer)
    check_op(op, flat.dtype)
    segment_length(flat.itemsize, segment_bytes, max_count)
    check_communicator(comm)
    module = native.select(backend)
    if module is not None:
        lane = module.Lane(
            comm.handle, None, None, segment_bytes, max_count, 0.0, 1, "", background=False
        )
        return int(lane.allreduce("ring", flat, flat, op))
    return run_twin(comm, flat, op, segment_bytes, max_count)


def wait_for_ever(
    request: MPI.Request,
    status: MPI.Status | None = None,
    others: Sequence[MPI.Request] = (),
) -> None:
    """Wait as the library does."""
    request.Wait(status)


def run_twin(
    comm: MPI.Intracomm,
    flat: NDArray[Any],
    op: str,
    segment_bytes: int,
    max_count: int,
    wait: Wait = wait_for_ever,
) -> int:
    """Carry out :func:`ring_allreduce` without the native module, on checked arguments."""
    if comm.Get_size() == 1:
        return 0
    segment = segment_length(max(4, flat.itemsize), segment_bytes, max_count)
    # A caller may have turned NumPy's warnings into errors: one rank must not stop half way.
    with np.errstate(all="ignore"):
        if flat.itemsize == 2:
            return _narrow_twin(comm, flat, op, segment, wait)
        return _twin(comm, flat, op, segment, wait)


def ring_volume(n: int, itemsize: int, rank: int, size: int) -> tuple[int, int]:
    """Compute the bytes that one rank sends and receives in a ring all-reduce.

    Parameters
    ----------
    n : int
        Elements in the buffer, of `itemsize` bytes each.
    rank, size : int

    Returns
    -------
    sent, received : int
        Twice the buffer but for two chunks: a rank never sends its own chunk in the first
        phase nor its right neighbour's in the second.
    """
    if size == 1:
        return 0, 0
    own, right, left = (
        chunk_begin(n, size, chunk + 1) - chunk_begin(n, size, chunk)
        for chunk in (rank, (rank + 1) % size, (rank - 1) % size)
    )
    return (2 * n - own - right) * itemsize, (2 * n - own - left) * itemsize


def check_op(op: str, dtype: np.dtype[Any]) -> None:
    """Raise ValueError unless `op` is one of OPS, TypeError for a mean of integers."""
    if op not in OPS:
        raise ValueError(f"op must be one of {', '.join(OPS)}, got {op!r}")
    if op == "mean" and dtype.kind == "i":
        raise TypeError(
            f"op 'mean' needs floats, got {dtype}; take the sum, or convert with astype"
        )


def check_communicator(comm: MPI.Intracomm) -> None:
    """Raise ValueError for a null communicator and for one between two groups."""
    if not comm or comm.Is_inter():
        raise ValueError(f"comm must be an intra-communicator that is not freed, got {comm!r}")


def chunk_begin(n: int, size: int, chunk: int) -> int:
    """Return where a chunk begins: lengths differ by at most one, the longer ones first."""
    return chunk * (n // size) + min(chunk, n % size)


def segment_length(itemsize: int, segment_bytes: int, max_count: int) -> int:
    """Return the elements in one segment, at least 1."""
    if segment_bytes < 1:
        raise ValueError(f"segment_bytes must be at least 1, got {segment_bytes}")
    if not 1 <= max_count <= MAX_COUNT:
        raise ValueError(f"max_count must be in [1, {MAX_COUNT}], got {max_count}")
    return max(1, min(segment_bytes // itemsize, max_count))


def workspace_length(n: int, size: int, segment: int) -> int:
    """Return the elements of workspace: two segments, never more than two chunks."""
    return 0 if size == 1 else 2 * min(segment, chunk_begin(n, size, 1))


class Item(NamedTuple):
    """One move of a phase: the pieces of the buffer that a rank sends and receives."""

    number: int
    outgoing: slice
    incoming: slice
    last_step: bool


def schedule(n: int, rank: int, size: int, segment: int, lag: int) -> Iterator[Item]:
    """Walk one phase: the reduce-scatter with `lag` 1, the all-gather with `lag` 0.

    In step s the rank sends the chunk `lag` + s places behind it and receives the one behind
    that. A chunk shorter than the longest ends with an empty piece, which is not sent.
    """
    segments = -(-chunk_begin(n, size, 1) // segment)

    def piece(step: int, number: int, lag: int) -> slice:
        chunk = (rank - lag - step) % size
        end = chunk_begin(n, size, chunk + 1)
        begin = min(end, chunk_begin(n, size, chunk) + number * segment)
        return slice(begin, min(end, begin + segment))

    for step in range(size - 1):
        for number in range(segments):
            yield Item(
                step * segments + number,
                piece(step, number, lag),
                piece(step, number, lag + 1),
                step == size - 2,
            )


def ring_sum(comm: MPI.Intracomm, flat: Any, segment: int, wait: Wait) -> int:
    """Add up `device.DeviceArray`s of floats, by an MPI that is given their addresses.

    Every entry is summed in the order of the other rings. Returns the bytes sent.
    """
    size, itemsize = comm.Get_size(), int(flat.dtype.itemsize)
    half = min(segment, chunk_begin(flat.size, size, 1))
    stream, length = device.view(flat).stream, workspace_length(flat.size, size, segment)
    workspace: Any = device.DeviceArray(length, flat.dtype, flat.number)

    def slot(item: Item) -> Any:
        begin = item.number % 2 * half
        return workspace[begin : begin + item.incoming.stop - item.incoming.start]

    def arrived(item: Item) -> None:
        add(flat[item.incoming], slot(item))
        device.required().synchronize(stream)  # MPI, which sends it next, knows nothing of streams

    sent = _walk(comm, flat, segment, 1, slot, arrived, wait)
    return (sent + _gather(comm, flat, segment, wait)) * itemsize


def _twin(comm: MPI.Intracomm, flat: NDArray[Any], op: str, segment: int, wait: Wait) -> int:
    size = comm.Get_size()
    half = min(segment, chunk_begin(flat.size, size, 1))
    workspace = np.empty(workspace_length(flat.size, size, segment), flat.dtype)

    def slot(item: Item) -> NDArray[Any]:
        begin = item.number % 2 * half
        return workspace[begin : begin + item.incoming.stop - item.incoming.start]

    def arrived(item: Item) -> None:
        own = flat[item.incoming]
        _fold(op, own, slot(item))
        # Complete in the last step, at its owner: the others get it already divided.
        if op == "mean" and item.last_step:
            own /= flat.dtype.type(size)

    sent = _walk(comm, flat, segment, 1, slot, arrived, wait)
    return (sent + _gather(comm, flat, segment, wait)) * flat.itemsize


def _narrow_twin(comm: MPI.Intracomm, flat: NDArray[Any], op: str, segment: int, wait: Wait) -> int:
    """Reduce 16-bit floats: the first phase is direct, see ``csrc/ring_allreduce.hpp``."""
    size = comm.Get_size()
    length = max(1, min(segment, chunk_begin(flat.size, size, 1)))
    sent = 0
    for begin in range(0, flat.size, length * size):
        piece = flat[begin : begin + length * size]
        sent += _scatter(comm, piece, op, wait)
        sent += _gather(comm, piece.view(np.uint16), length, wait)
    return sent * flat.itemsize


def _scatter(comm: MPI.Intracomm, piece: NDArray[Any], op: str, wait: Wait) -> int:
    """Send each rank its chunk; fold those for this rank in float32. Return the elements sent."""
    from mpi4py import MPI

    rank, size, status, sent = comm.Get_rank(), comm.Get_size(), MPI.Status(), 0
    ends = [chunk_begin(piece.size, size, chunk) for chunk in range(size + 1)]
    chunks = [piece[low:high] for low, high in pairwise(ends)]
    wide = chunks[rank].astype(np.float32)
    received = np.empty_like(chunks[rank])
    for step in range(1, size):
        owner, source = (rank + step) % size, (rank - step) % size
        outgoing, incoming = chunks[owner].view(np.uint16), received.view(np.uint16)
        receive, send = comm.Irecv(incoming, source, _TAG), comm.Isend(outgoing, owner, _TAG)
        wait(receive, status, [send])
        wait(send)
        _check_length(status, incoming)
        sent += outgoing.size
        _fold(op, wide, received.astype(np.float32))
    if op == "mean":
        wide /= np.float32(size)
    chunks[rank][:] = wide
    return sent


def _gather(comm: MPI.Intracomm, flat: NDArray[Any], segment: int, wait: Wait) -> int:
    return _walk(comm, flat, segment, 0, lambda item: flat[item.incoming], lambda item: None, wait)


def _walk(
    comm: MPI.Intracomm,
    flat: NDArray[Any],
    segment: int,
    lag: int,
    place: Callable[[Item], NDArray[Any]],
    arrived: Callable[[Item], None],
    wait: Wait,
) -> int:
    """Carry out one phase, always one receive ahead; return the elements sent."""
    from mpi4py import MPI

    rank, size = comm.Get_rank(), comm.Get_size()
    left, right = (rank - 1) % size, (rank + 1) % size
    status = MPI.Status()
    sends = [MPI.Request(), MPI.Request()]
    sent = 0

    def expect(item: Item | None) -> MPI.Request:
        if item is None or item.incoming.start == item.incoming.stop:
            return MPI.Request()
        return comm.Irecv(place(item), left, _TAG)

    items = schedule(flat.size, rank, size, segment, lag)
    item = next(items, None)
    receive = expect(item)
    while item is not None:
        following = next(items, None)
        next_receive = expect(following)
        outgoing = flat[item.outgoing]
        wait(sends[item.number % 2], None, [*sends, receive, next_receive])
        if outgoing.size:
            sends[item.number % 2] = comm.Isend(outgoing, right, _TAG)
            sent += outgoing.size
        wait(receive, status, [*sends, next_receive])
        _check_length(status, place(item))
        arrived(item)
        item, receive = following, next_receive
    for send in sends:
        wait(send, None, sends)
    return sent


def _check_length(status: MPI.Status, place: NDArray[Any]) -> None:
    count = status.Get_count() // place.dtype.itemsize if place.size else 0
    if count != place.size:
        raise RuntimeError(
            f"ring all-reduce: a segment of {count} elements arrived where {place.size} were "
            "expected; all ranks must pass the same size, dtype, segment_bytes and max_count"
        )


def _fold(op: str, own: NDArray[Any], received: NDArray[Any]) -> None:
    if op in ("sum", "mean"):
        np.add(received, own, out=own)
        return
    # Not numpy.minimum: which zero it returns for -0.0 and +0.0 depends on the processor.
    take = received < own if op == "min" else received > own
    take |= np.isnan(received)
    np.copyto(own, received, where=take)
