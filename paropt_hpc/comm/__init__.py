"""Move buffers and opaque bytes between ranks.

Importing this package does not start MPI: what needs it imports ``mpi4py.MPI`` when called.
"""

from paropt_hpc.comm.communicator import Communicator, SerialCommunicator
from paropt_hpc.comm.grid import GridShape, ProcessGrid, grid_shape
from paropt_hpc.comm.launcher import world
from paropt_hpc.comm.neighbor_exchange import (
    NeighborMessage,
    neighbor_exchange,
    neighbor_exchange_bytes,
)
from paropt_hpc.comm.ring_allreduce import ring_allreduce
from paropt_hpc.comm.sparse_allreduce import (
    SparseResult,
    remember_ranges,
    remembered_ranges,
    sparse_allreduce,
)
from paropt_hpc.comm.topology import PushTopology, Topology
from paropt_hpc.comm.traffic import OperationTraffic, Traffic

__all__ = [
    "Communicator",
    "GridShape",
    "NeighborMessage",
    "OperationTraffic",
    "ProcessGrid",
    "PushTopology",
    "SerialCommunicator",
    "SparseResult",
    "Topology",
    "Traffic",
    "grid_shape",
    "neighbor_exchange",
    "neighbor_exchange_bytes",
    "remember_ranges",
    "remembered_ranges",
    "ring_allreduce",
    "sparse_allreduce",
    "world",
]
