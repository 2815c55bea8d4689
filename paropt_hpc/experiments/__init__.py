"""Runs side by side: a matrix of them, their figures, what these mean; tuning a training; plots."""

from paropt_hpc.experiments.analysis import Analysis, analyse
from paropt_hpc.experiments.matrix import Cell, Matrix, Target, load_matrix
from paropt_hpc.experiments.pages import overview, write_report
from paropt_hpc.experiments.plots import plot_search, plot_trials
from paropt_hpc.experiments.report import comparison, figures
from paropt_hpc.experiments.runner import check_settings, outcome, record_failure, run_cells
from paropt_hpc.experiments.tune_training import TuneConfig, load_tuning, tune_training
from paropt_hpc.experiments.verdicts import verdicts

__all__ = [
    "Analysis",
    "Cell",
    "Matrix",
    "Target",
    "TuneConfig",
    "analyse",
    "check_settings",
    "comparison",
    "figures",
    "load_matrix",
    "load_tuning",
    "outcome",
    "overview",
    "plot_search",
    "plot_trials",
    "record_failure",
    "run_cells",
    "tune_training",
    "verdicts",
    "write_report",
]
