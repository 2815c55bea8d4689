"""CUDA kernels; use them through paropt_hpc.kernels.

Arrays are addresses in memory of a device, 0 for none; `type` is the letter of a NumPy dtype, and
`wide` tells indices of 64 bits from those of 32. The workspace is device memory of the size that
the function beside it names.
"""

from typing import Any

SCATTER_WORKSPACE: int
QUANTIZE_WORKSPACE: int

class PinnedMemory:
    def __init__(self, bytes: int) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

def device_count() -> int: ...
def why_no_device() -> str: ...
def device_info(device: int) -> tuple[str, int, int, int, str]: ...
def current_device() -> int: ...
def set_device(device: int) -> None: ...
def device_of(address: int) -> int: ...
def allocate(bytes: int, device: int) -> int: ...
def deallocate(address: int) -> None: ...
def create_stream(device: int) -> int: ...
def destroy_stream(stream: int) -> None: ...
def begin_copy(to: int, address: int, bytes: int, stream: int) -> None: ...
def synchronize(stream: int) -> None: ...
def copy_to_device(to: int, array: Any, stream: int) -> None: ...
def copy_to_host(array: Any, address: int, stream: int) -> None: ...
def copy(to: int, address: int, bytes: int, stream: int) -> None: ...
def fill(to: int, value: int, bytes: int, stream: int) -> None: ...
def topk_workspace(type: str, wide: bool, n: int, k: int) -> int: ...
def topk(
    type: str,
    wide: bool,
    gradient: int,
    residual: int,
    n: int,
    k: int,
    indices: int,
    values: int,
    workspace: int,
    stream: int,
) -> int: ...
def reach_count(
    type: str, gradient: int, residual: int, n: int, key: int, workspace: int, stream: int
) -> tuple[int, int]: ...
def reach_take(
    type: str,
    wide: bool,
    acc: int,
    clear: bool,
    n: int,
    key: int,
    k: int,
    indices: int,
    values: int,
    workspace: int,
    stream: int,
) -> None: ...
def add(type: str, out: int, array: int, n: int, stream: int) -> None: ...
def scatter_add(
    type: str,
    wide: bool,
    dense: int,
    n: int,
    indices: int,
    values: int,
    k: int,
    scale: float,
    workspace: int,
    stream: int,
) -> None: ...
def scatter_sum(
    type: str,
    wide: bool,
    dense: int,
    n: int,
    vectors: list[tuple[int, int, int]],
    scale: float,
    workspace: int,
    stream: int,
) -> None: ...
def codec_workspace(n: int, k: int, codec: int) -> int: ...
def rice_bytes(wide: bool, indices: int, k: int, n: int, workspace: int, stream: int) -> int: ...
def encode_indices(
    wide: bool, indices: int, k: int, n: int, codec: int, out: int, workspace: int, stream: int
) -> int: ...
def decode_indices(
    wide: bool,
    data: int,
    size: int,
    n: int,
    k: int,
    codec: int,
    out: int,
    workspace: int,
    stream: int,
) -> None: ...
def validate_indices(
    data: int, size: int, n: int, k: int, codec: int, workspace: int, stream: int
) -> None: ...
def decode_scatter_add(
    type: str,
    data: int,
    size: int,
    n: int,
    k: int,
    codec: int,
    value_type: int,
    values: int,
    scale: float,
    dense: int,
    workspace: int,
    stream: int,
) -> None: ...
def quantize(
    values: int,
    residual: int,
    count: int,
    value_type: int,
    seed: int,
    out: int,
    workspace: int,
    stream: int,
) -> tuple[int, int]: ...
def dequantize(data: int, value_type: int, count: int, out: int, stream: int) -> None: ...
def validate_values(data: int, value_type: int, count: int, stream: int) -> None: ...
def crc32(data: int, size: int, hole: int, crc: int, stream: int) -> None: ...
