"""Hyper-parameter search: trials suggested, spread over ranks, pruned, kept in a table."""

from paropt_hpc.tuning.importance import importance
from paropt_hpc.tuning.pruning import ASHA, Pruner
from paropt_hpc.tuning.samplers import (
    SAMPLERS,
    Bayesian,
    Grid,
    Halton,
    Random,
    Sampler,
    SuccessiveHalving,
    make_sampler,
)
from paropt_hpc.tuning.table import Record, TrialTable
from paropt_hpc.tuning.trial import Trial, TrialPruned
from paropt_hpc.tuning.tune import tune

__all__ = [
    "ASHA",
    "SAMPLERS",
    "Bayesian",
    "Grid",
    "Halton",
    "Pruner",
    "Random",
    "Record",
    "Sampler",
    "SuccessiveHalving",
    "Trial",
    "TrialPruned",
    "TrialTable",
    "importance",
    "make_sampler",
    "tune",
]
