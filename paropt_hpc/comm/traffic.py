"""Counters of what one rank sends, receives and waits for, by operation.

The counting rule: payload bytes that this rank itself puts on the wire or takes from it, in the
bandwidth-optimal algorithm of each operation, without MPI's envelopes.

================  ======================================  =================================
operation         bytes sent                              bytes received
================  ======================================  =================================
allreduce         2n less two chunks, about 2 (P-1)/P n   the same
allgather_bytes   P-1 times the own message and its       the other ranks' messages and
                  8-byte length                           their lengths
gather_scalars    8 (P-1)                                 8 (P-1)
together          8 (P-1)                                 8 (P-1)
broadcast         (P-1) n on the root, else 0             n, but 0 on the root
neighbor_…        n for every target                      n of every source
sparse_allreduce  what its scheme sends, lengths and        the same
                  samples included; a dense one counts
                  as the all-reduce that it is
================  ======================================  =================================

With ``algorithm="mpi"`` the library picks its own algorithm; the optimal volume is counted, which
is a lower bound on what it sends. With one rank calls are counted and all bytes are 0.
"""

from collections import defaultdict
from dataclasses import dataclass, field

__all__ = ["OperationTraffic", "Traffic"]


@dataclass
class OperationTraffic:
    """What one operation has cost this rank so far."""

    calls: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    seconds: float = 0.0  # from call to return: waiting for the other ranks included


@dataclass
class Traffic:
    """The counters of one communicator; attributes are the totals over all operations."""

    operations: dict[str, OperationTraffic] = field(
        default_factory=lambda: defaultdict(OperationTraffic)
    )

    def record(self, operation: str, sent: int, received: int, seconds: float) -> None:
        """Count one call."""
        counter = self.operations[operation]
        counter.calls += 1
        counter.bytes_sent += sent
        counter.bytes_received += received
        counter.seconds += seconds

    def __getitem__(self, operation: str) -> OperationTraffic:
        """Return one operation's counters, all zero if it was never called."""
        return self.operations.get(operation, OperationTraffic())

    @property
    def calls(self) -> int:
        """Calls of all operations."""
        return sum(counter.calls for counter in self.operations.values())

    @property
    def bytes_sent(self) -> int:
        """Bytes this rank has sent."""
        return sum(counter.bytes_sent for counter in self.operations.values())

    @property
    def bytes_received(self) -> int:
        """Bytes this rank has received."""
        return sum(counter.bytes_received for counter in self.operations.values())

    @property
    def seconds(self) -> float:
        """Seconds spent in collectives, waiting included."""
        return sum(counter.seconds for counter in self.operations.values())

    def reset(self) -> None:
        """Set every counter back to zero."""
        self.operations.clear()
