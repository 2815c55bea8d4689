"""Which ranks share a node, and which of them talk to other nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["Layout", "lay_out", "ranks_text"]


@dataclass(frozen=True)
class Layout:
    """The nodes under a communicator, and this rank's place among them."""

    node: MPI.Intracomm  # the ranks of this node
    across: MPI.Intracomm | None  # the leaders at this rank's place, one per node; None: no leader
    members: tuple[int, ...]  # the ranks of this node, in their order on it
    rank: int  # of this process on its node
    nodes: int
    largest: int  # ranks on the fullest node
    leaders: int  # per node
    elsewhere: tuple[int, ...]  # the ranks of other nodes

    @property
    def size(self) -> int:
        """Ranks on this node."""
        return len(self.members)

    def free(self) -> None:
        """Give the communicators back; collective."""
        if self.across is not None:
            self.across.Free()
        self.node.Free()


def lay_out(comm: MPI.Intracomm, node_size: int | None = None, leaders: int = 1) -> Layout:
    """Find the nodes under `comm`; collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
    node_size : int, optional
        Cut each machine into nodes of at most so many ranks, in their order on it. Makes nodes
        on one machine, for tests, or one per NUMA domain.
    leaders : int
        Ranks of each node that talk to other nodes; no more than the emptiest node has.

    Raises
    ------
    ValueError
        A number is below 1.
    """
    from mpi4py import MPI

    for name, value in (("node_size", node_size), ("leaders", leaders)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be at least 1, got {value}")
    node: Any = comm.Split_type(MPI.COMM_TYPE_SHARED)
    if node_size is not None:
        machine = node
        node = machine.Split(machine.Get_rank() // node_size, machine.Get_rank())
        machine.Free()
    members = tuple(node.allgather(comm.Get_rank()))
    nodes = sorted(set(comm.allgather(members)))
    leaders = min(leaders, *map(len, nodes))
    place = node.Get_rank()
    across: Any = comm.Split(place if place < leaders else MPI.UNDEFINED, comm.Get_rank())
    return Layout(
        node,
        across if place < leaders else None,
        members,
        place,
        len(nodes),
        max(map(len, nodes)),
        leaders,
        tuple(sorted(set(range(comm.Get_size())) - set(members))),
    )


def ranks_text(ranks: tuple[int, ...]) -> str:
    """Write ranks as ``0-3, 7``."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return ", ".join("-".join(map(str, run)) for run in runs)
