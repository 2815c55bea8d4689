"""Gradient buffer to message and back; never imports MPI."""

from paropt_hpc.compress.compressor import Compressor, Sparsifier
from paropt_hpc.compress.quantize import Quantize
from paropt_hpc.compress.random_k import RandomK
from paropt_hpc.compress.threshold import Threshold
from paropt_hpc.compress.topk import TopK

__all__ = ["Compressor", "Quantize", "RandomK", "Sparsifier", "Threshold", "TopK"]
