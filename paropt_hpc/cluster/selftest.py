"""Does it work here: every kernel against its oracle, every collective on these ranks."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.comm import (
    Communicator,
    native,
    neighbor_exchange,
    sparse_allreduce,
    topology,
)
from paropt_hpc.compress import TopK
from paropt_hpc.kernels import backend, index_codec, message, reduce, rng, topk

__all__ = ["Check", "run_selftest"]

# Around the borders of vectors and blocks, and large enough for several threads.
SIZES = (0, 1, 7, 64, 1000, 4097, 300_001)
DTYPES = ("float32", "float64")


class Check(NamedTuple):
    """One tried part; `fault` is empty when it works."""

    name: str
    fault: str
    seconds: float


def run_selftest(comm: Communicator) -> list[Check]:
    """Try every kernel and collective; collective, the same result on every rank."""
    checks = [
        ("topk", _check_topk),
        ("index_codec", _check_index_codec),
        ("message", _check_message),
        ("reduce", _check_reduce),
        ("compress: residual", _check_residual),
    ]
    algorithms = ["mpi", "ring"]
    if comm.size == 1 or native.select() is not None:
        algorithms += ["recursive_doubling", "hierarchical"]
        algorithms += ["shared"] if comm.node_size == comm.size else []
    collectives: list[tuple[str, Callable[[], None]]] = [
        *((f"allreduce {name}", partial(_check_allreduce, comm, name)) for name in algorithms),
        ("sparse_allreduce", lambda: _check_sparse_allreduce(comm)),
        ("neighbor_exchange", lambda: _check_neighbor_exchange(comm)),
        ("allgather_bytes", lambda: _check_allgather(comm)),
        ("gather_scalars", lambda: _check_scalars(comm)),
        ("broadcast", lambda: _check_broadcast(comm)),
    ]
    return [_run(comm, name, check) for name, check in [*checks, *collectives]]


def _run(comm: Communicator, name: str, check: Callable[[], None]) -> Check:
    started = time.perf_counter()
    fault = ""
    try:
        with comm.together():
            check()
    except Exception as error:
        fault = f"{type(error).__name__}: {error}".rstrip(": ")
    return Check(name, fault, time.perf_counter() - started)


def _gradients() -> Iterator[NDArray[Any]]:
    """Yield gradients of every size and dtype: plain, with ties, and all zero."""
    for dtype in DTYPES:
        for n in SIZES:
            generator = rng.philox(0, "selftest", n)
            yield generator.standard_normal(n).astype(dtype)
            yield generator.integers(-3, 4, n).astype(dtype)
            yield np.zeros(n, dtype)


def _messages() -> Iterator[tuple[NDArray[Any], NDArray[Any], int]]:
    """Yield (indices, values, n) of several densities."""
    for gradient in _gradients():
        for k in {0, gradient.size // 100, gradient.size // 3, gradient.size}:
            with _oracle():
                indices, values, _ = topk.select(gradient, k)
            yield indices, values, gradient.size


@contextmanager
def _oracle() -> Iterator[None]:
    """Run the block with the NumPy twins of the kernels."""
    before = os.environ.get("PAROPT_BACKEND")
    os.environ["PAROPT_BACKEND"] = "reference"
    backend.implementation.cache_clear()
    try:
        yield
    finally:
        if before is None:
            del os.environ["PAROPT_BACKEND"]
        else:
            os.environ["PAROPT_BACKEND"] = before
        backend.implementation.cache_clear()


def _same(what: str, got: Any, expected: Any) -> None:
    if not np.array_equal(np.asarray(got), np.asarray(expected)):
        raise ArithmeticError(f"{what} differs from the oracle")


def _check_topk() -> None:
    for gradient in _gradients():
        k = gradient.size // 10
        residual, expected_residual = gradient[::-1].copy(), gradient[::-1].copy()
        got = topk.select(gradient, k, residual)
        with _oracle():
            expected = topk.select(gradient, k, expected_residual)
        _same("indices", got.indices, expected.indices)
        _same("values", got.values, expected.values)
        _same("residual", residual, expected_residual)


def _check_index_codec() -> None:
    for indices, _, n in _messages():
        codecs = set(index_codec.Codec)
        if indices.size < n:
            codecs.remove(index_codec.Codec.FULL)
        for codec in sorted(codecs):
            data = index_codec.encode(indices, n, codec)
            _same(codec.name, index_codec.decode(data, n, indices.size, codec), indices)
            with _oracle():
                _same(f"{codec.name} bytes", data, index_codec.encode(indices, n, codec))


def _check_message() -> None:
    for indices, values, n in _messages():
        data = message.encode(indices, values, n)
        decoded = message.decode(data)
        _same("indices", decoded.indices, indices)
        _same("values", decoded.values, values)
        with _oracle():
            _same("bytes", data, message.encode(indices, values, n))


def _check_reduce() -> None:
    for gradient in _gradients():
        total, expected = gradient.copy(), gradient.copy()
        indices, values, _ = topk.select(gradient, gradient.size // 10)
        reduce.add(total, gradient)
        reduce.scatter_add(total, indices, values)
        with _oracle():
            reduce.add(expected, gradient)
            reduce.scatter_add(expected, indices, values)
        _same("add and scatter_add", total, expected)


def _check_residual() -> None:
    for gradient in _gradients():
        compressor = TopK(0.05)
        compressor.start(gradient.size, gradient.dtype)
        for _ in range(3):
            expected = compressor.residual + gradient
            sent = compressor.compress(gradient)
            kept = compressor.residual.copy()
            compressor.decompress_add(sent, kept)
            _same("residual + sent", kept, expected)


def _check_allreduce(comm: Communicator, algorithm: str) -> None:
    for dtype in DTYPES:
        for n in SIZES:
            # Small whole numbers: every sum is exact, whatever the order.
            parts = rng.philox(1, "selftest", n).integers(-9, 10, (comm.size, n)).astype(dtype)
            for op in ("sum", "mean", "min", "max"):
                buffer = parts[comm.rank].copy()
                comm.allreduce(buffer, op, algorithm=algorithm)
                if not np.allclose(buffer, getattr(parts, op)(axis=0), rtol=1e-6, atol=0):
                    raise ArithmeticError(f"{op} of {n} {dtype} is wrong")


def _check_sparse_allreduce(comm: Communicator) -> None:
    for dtype in DTYPES:
        for n in SIZES:
            parts = rng.philox(1, "selftest", n).integers(-9, 10, (comm.size, n)).astype(dtype)
            kept = [topk.select(part, n // 10) for part in parts]
            expected = np.zeros(n, dtype)
            for indices, values, _ in kept:
                reduce.scatter_add(expected, indices, values)
            own = message.encode(kept[comm.rank].indices, kept[comm.rank].values, n)
            for scheme in ("allgather", "split"):
                total = np.empty(n, dtype)
                sparse_allreduce(comm, own, total, scheme)
                _same(scheme, total, expected)


def _check_neighbor_exchange(comm: Communicator) -> None:
    for graph in (topology.ring(comm.size), topology.exponential(comm.size)):
        buffer = np.full(1000, float(comm.rank))
        neighbor_exchange(comm, buffer, graph)
        expected = topology.mixing_matrix(graph)[comm.rank] @ np.arange(comm.size)
        if not np.allclose(buffer, expected, rtol=1e-12):
            raise ArithmeticError(f"mixing on {graph.name} is wrong")


def _check_allgather(comm: Communicator) -> None:
    for n in SIZES:
        parts = [np.full((n + rank) % 5000, rank, np.uint8) for rank in range(comm.size)]
        for part, expected in zip(comm.allgather_bytes(parts[comm.rank]), parts, strict=True):
            _same("allgather_bytes", part, expected)


def _check_scalars(comm: Communicator) -> None:
    _same("gather_scalars", comm.gather_scalars(comm.rank + 0.5), np.arange(comm.size) + 0.5)


def _check_broadcast(comm: Communicator) -> None:
    for root in range(comm.size):
        buffer = np.full(1000, float(comm.rank))
        comm.broadcast(buffer, root)
        _same("broadcast", buffer, np.full(1000, float(root)))
