"""The native side of a communicator: its shared memory, its lanes, its progress thread.

A lane (``csrc/lane.hpp``) has communicators and memory of its own. One serves the caller, one the
progress thread, so that a reduction in the background never meets one in the foreground.
"""

from __future__ import annotations

import atexit
import weakref
from collections import deque
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.comm.layout import Layout, lay_out, ranks_text

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["OPERATIONS", "Lane", "LaneOptions", "Progress"]

OPERATIONS = (
    "allreduce",
    "start",
    "allgather_bytes",
    "gather_scalars",
    "broadcast",
    "barrier",
    "together",
    "empty",
    "neighbor_exchange",
    "neighbor_exchange_bytes",
    "sparse_allreduce",
    "split",
    "free",
    "another collective",
)
"""What a rank can be seen in by those that wait for it."""


class LaneOptions(NamedTuple):
    """How a lane is made; see :class:`paropt_hpc.comm.Communicator`."""

    segment_bytes: int
    max_count: int
    timeout: float
    node_size: int | None
    leaders: int


class Lane:
    """Communicators and memory of one thread; made collectively, over `comm`, which it keeps."""

    def __init__(
        self, module: ModuleType, comm: MPI.Intracomm, options: LaneOptions, background: bool
    ) -> None:
        self.comm = comm
        self.layout: Layout = lay_out(comm, options.node_size, options.leaders)
        self.group = self._share(module)
        across = self.layout.across
        self.native = module.Lane(
            comm.handle,
            None if across is None else across.handle,
            self.group,
            options.segment_bytes,
            options.max_count,
            options.timeout,
            self.layout.leaders,
            ranks_text(self.layout.elsewhere),
            background,
        )
        self._buffers: list[weakref.ref[Any]] = []

    def _share(self, module: ModuleType) -> Any:
        """Share memory inside the node: on all nodes, or, where one cannot, on none."""
        try:
            node = self.layout.node
            group = module.SharedGroup(node.handle, list(self.layout.members), list(OPERATIONS))
        except RuntimeError:
            group = None
        return group if all(self.comm.allgather(group is not None)) else None

    def empty(self, n: int, dtype: np.dtype[Any]) -> NDArray[Any]:
        """Allocate a vector in the node's shared memory; collective."""
        array: NDArray[Any] = self.group.allocate(n, dtype)
        self._buffers.append(weakref.ref(array))  # views of it hold it
        return array

    def memory(self) -> int:
        """Bytes taken for segments, without those of :meth:`empty`."""
        return int(self.native.memory()) + (0 if self.group is None else int(self.group.memory()))

    def free(self) -> None:
        """Give everything back but the memory under arrays that are still in use; collective."""
        if self.group is not None:
            in_use = any(reference() is not None for reference in self._buffers)
            self.group.free(not any(self.comm.allgather(in_use)))
        self.layout.free()


class Progress:
    """A lane and the thread that works on it; made collectively by the first `start`."""

    def __init__(self, module: ModuleType, comm: MPI.Intracomm, options: LaneOptions) -> None:
        self.lane = Lane(module, comm, options, background=True)
        self._thread = module.ProgressThread()
        # What the thread may still read and write, whatever has become of its caller's names for
        # it. Given up after the thread, which ends with this object.
        self._running: deque[tuple[Any, NDArray[Any], NDArray[Any]]] = deque()
        # A thread that waits for a rank that is gone must not keep this one from ending.
        self._at_exit = partial(_call, weakref.WeakMethod(self.cancel))
        atexit.register(self._at_exit)

    def start(self, algorithm: str, buffer: NDArray[Any], out: NDArray[Any], op: str) -> Any:
        """Queue a reduction and return its job; the arrays are kept until it is done."""
        job = self._thread.start(self.lane.native, algorithm, buffer, out, op)
        while self._running and self._running[0][0].done():
            self._running.popleft()
        self._running.append((job, buffer, out))
        return job

    def free(self) -> None:
        """Finish what was started, then give everything back; collective."""
        self._thread.stop()
        self.lane.free()
        self.lane.comm.Free()
        atexit.unregister(self._at_exit)

    def cancel(self) -> None:
        """Let what was started end in an error, and stop; local, gives nothing back."""
        self.lane.native.cancel()
        self._thread.stop()
        atexit.unregister(self._at_exit)


def _call(reference: weakref.WeakMethod[Any]) -> None:
    method = reference()
    if method is not None:
        method()
