"""Runs side by side: their figures, in one form everywhere; tuning a training; plots."""

from paropt_hpc.experiments.plots import plot_search, plot_trials
from paropt_hpc.experiments.report import comparison, figures
from paropt_hpc.experiments.tune_training import TuneConfig, load_tuning, tune_training

__all__ = [
    "TuneConfig",
    "comparison",
    "figures",
    "load_tuning",
    "plot_search",
    "plot_trials",
    "tune_training",
]
