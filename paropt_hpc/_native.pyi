"""CPU kernels; use them through paropt_hpc.kernels.

T stands for float32 or float64, I for uint32 or uint64; each function has one overload per type.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_T = NDArray[Any]
_I = NDArray[Any]
_Bytes = NDArray[np.uint8]

def isa() -> str: ...
def isas() -> list[str]: ...
def set_isa(name: str) -> None: ...
def openmp_threads() -> int: ...
def set_openmp_threads(threads: int) -> None: ...
def entries_per_thread() -> int: ...
def set_entries_per_thread(entries: int) -> None: ...
def topk(
    gradient: _T,
    residual: _T | None,
    k: int,
    indices: _I,
    values: _T,
    hint: NDArray[np.uint64] | None = None,
) -> int: ...
def reach(gradient: _T, residual: _T | None, key: int) -> tuple[_I, _T, int]: ...
def read_all(array: NDArray[np.float32]) -> float: ...
def add(out: _T, array: _T) -> None: ...
def scatter_add(dense: _T, indices: _I, values: _T, scale: float) -> None: ...
def sgd_step(
    params: _T,
    gradient: _T,
    velocity: _T | None,
    rate: float,
    momentum: float,
    decay: float,
    nesterov: bool,
) -> None: ...
def choose_codec(indices: _I, n: int) -> int: ...
def max_chosen_bytes(n: int, k: int) -> int: ...
def max_encoded_bytes(n: int, k: int, codec: int) -> int: ...
def encode_indices(indices: _I, n: int, codec: int, out: _Bytes) -> int: ...
def decode_indices(data: _Bytes, n: int, codec: int, out: _I) -> None: ...
def validate_indices(data: _Bytes, n: int, k: int, codec: int) -> None: ...
def encode_message(
    indices: _I, values: _Bytes, n: int, codec: int, value_type: int, out: _Bytes
) -> int: ...
def encode_full_message(values: _Bytes, n: int, value_type: int, out: _Bytes) -> int: ...
def quantize(
    values: _T, residual: _T | None, value_type: int, seed: int, out: _Bytes
) -> tuple[int, int]: ...
def dequantize(data: _Bytes, value_type: int, out: _T) -> None: ...
def read_header(data: _Bytes) -> tuple[int, int, int, int, int, int, int]: ...
def decode_message(data: _Bytes, indices: _I, values: _T) -> None: ...
def decode_add_message(data: _Bytes, dense: _T, scale: float) -> None: ...
def decode_sum_messages(
    messages: list[_Bytes], dense: _T, scale: float, indices: _I, values: _T
) -> None: ...
def decode_merge_messages(
    messages: list[_Bytes], n: int, indices: _I, values: _T, to_indices: _I, to_values: _T
) -> int: ...
def crc32(data: _Bytes) -> int: ...
def count_libsvm(text: _Bytes) -> tuple[int, int]: ...
def parse_libsvm(
    text: _Bytes,
    base: int,
    labels: NDArray[np.float64],
    ends: NDArray[np.int64],
    columns: NDArray[np.int32],
    values: NDArray[np.float32],
) -> tuple[int, int, int, int]: ...

_Doubles = NDArray[np.float64]
_Indices = NDArray[np.uint32]
_Operator = tuple[int, float, float]

def generation_key(key: int, generation: int) -> int: ...
def evaluate(objective: int, x: _Doubles, f: _Doubles) -> None: ...
def normals(key: int, out: _Doubles) -> None: ...
def take_better(
    x: _Doubles, f: _Doubles, other: _Doubles, other_f: _Doubles, strict: bool
) -> None: ...
def de_trials(
    lower: _Doubles,
    upper: _Doubles,
    mutation: int,
    archive: _Doubles,
    guides: _Indices,
    weight: _Doubles,
    rate: _Doubles,
    key: int,
    x: _Doubles,
    trial: _Doubles,
) -> None: ...
def de_run(
    lower: _Doubles,
    upper: _Doubles,
    mutation: int,
    weight: _Doubles,
    rate: _Doubles,
    objective: int,
    key: int,
    generation: int,
    generations: int,
    x: _Doubles,
    f: _Doubles,
    trial: _Doubles,
    trial_f: _Doubles,
    best: tuple[_Doubles, _Doubles, float],
) -> int: ...
def swarm_move(
    lower: _Doubles,
    upper: _Doubles,
    neighbours: _Indices,
    fastest: _Doubles,
    coefficients: tuple[float, float, float],
    bounds: int,
    key: int,
    best_x: _Doubles,
    best_f: _Doubles,
    x: _Doubles,
    v: _Doubles,
    guide: _Indices,
) -> None: ...
def swarm_run(
    lower: _Doubles,
    upper: _Doubles,
    neighbours: _Indices,
    fastest: _Doubles,
    coefficients: tuple[float, float, float],
    bounds: int,
    objective: int,
    key: int,
    generation: int,
    generations: int,
    x: _Doubles,
    v: _Doubles,
    best_x: _Doubles,
    best_f: _Doubles,
    f: _Doubles,
    guide: _Indices,
    best: tuple[_Doubles, _Doubles, float],
) -> int: ...
def ga_parents(tournament: int, key: int, f: _Doubles, parents: _Indices) -> None: ...
def ga_children(
    lower: _Doubles,
    upper: _Doubles,
    crossover: _Operator,
    mutation: _Operator,
    key: int,
    x: _Doubles,
    parents: _Indices,
    child: _Doubles,
) -> None: ...
def ga_survive(
    elite: int,
    truncation: bool,
    x: _Doubles,
    f: _Doubles,
    child: _Doubles,
    child_f: _Doubles,
    places: _Indices,
    values: _Doubles,
) -> None: ...
def ga_run(
    lower: _Doubles,
    upper: _Doubles,
    elite: int,
    tournament: int,
    truncation: bool,
    crossover: _Operator,
    mutation: _Operator,
    objective: int,
    key: int,
    generation: int,
    generations: int,
    x: _Doubles,
    f: _Doubles,
    child: _Doubles,
    child_f: _Doubles,
    parents: _Indices,
    places: _Indices,
    values: _Doubles,
    best: tuple[_Doubles, _Doubles, float],
) -> int: ...
def improve_tours(
    distances: _Doubles, near: _Indices, kicks: int, key: int, tours: _Indices
) -> None: ...
def ant_tours(attraction: _Doubles, near: _Indices, key: int, tours: _Indices) -> None: ...
