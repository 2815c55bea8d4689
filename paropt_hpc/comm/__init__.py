"""Move buffers and opaque bytes between ranks.

Importing this package does not start MPI: what needs it imports ``mpi4py.MPI`` when called.
"""

from paropt_hpc.comm.communicator import Communicator, SerialCommunicator
from paropt_hpc.comm.launcher import world
from paropt_hpc.comm.ring_allreduce import ring_allreduce
from paropt_hpc.comm.traffic import OperationTraffic, Traffic

__all__ = [
    "Communicator",
    "OperationTraffic",
    "SerialCommunicator",
    "Traffic",
    "ring_allreduce",
    "world",
]
