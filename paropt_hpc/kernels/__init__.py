"""Kernels on contiguous arrays, one module per kernel, native code or its NumPy twin."""

from paropt_hpc.kernels import (
    backend,
    index_codec,
    libsvm,
    message,
    quantize,
    reduce,
    rng,
    sgd,
    topk,
)

__all__ = [
    "backend",
    "index_codec",
    "libsvm",
    "message",
    "quantize",
    "reduce",
    "rng",
    "sgd",
    "topk",
]
