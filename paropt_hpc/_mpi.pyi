from collections.abc import Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

_Float = TypeVar("_Float", np.float32, np.float64)

def built_with() -> str: ...
def mpi_initialized() -> bool: ...
def ring_allreduce(
    comm_handle: int,
    buffer: NDArray[_Float],
    op: str,
    segment_bytes: int,
    max_count: int,
    workspace: NDArray[_Float],
) -> int: ...
def neighbor_exchange(
    comm_handle: int,
    in_: NDArray[_Float],
    out: NDArray[_Float],
    targets: Sequence[int],
    sources: Sequence[int],
    own_weight: float,
    weights: Sequence[float],
    segment: int,
    workspace: NDArray[_Float],
) -> int: ...
