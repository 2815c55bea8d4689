"""Runs side by side: their figures, in one form everywhere."""

from paropt_hpc.experiments.report import comparison, figures

__all__ = ["comparison", "figures"]
