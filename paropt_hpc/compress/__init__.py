"""Gradient buffer to message and back; never imports MPI."""

from paropt_hpc.compress.quantize import Quantize
from paropt_hpc.compress.topk import TopK

__all__ = ["Quantize", "TopK"]
