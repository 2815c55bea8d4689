"""A gradient becomes an update: strategies, optimizers, samplers, data, models, the loop."""

from paropt_hpc.train.config import Config, load_config
from paropt_hpc.train.data import Dataset, load_dataset
from paropt_hpc.train.loop import Summary, Trainer, train
from paropt_hpc.train.models import MLP, Batch, Softmax
from paropt_hpc.train.optimizers import LAMB, LARS, SGD, Adam, AdamW, Optimizer
from paropt_hpc.train.run_folder import read_summary
from paropt_hpc.train.samplers import Shard, ShardedSampler
from paropt_hpc.train.schedules import (
    Cosine,
    Exponential,
    LinearScaling,
    Polynomial,
    StepDecay,
    WarmRestarts,
)
from paropt_hpc.train.strategies import AllReduce, LocalSGD, Strategy

__all__ = [
    "LAMB",
    "LARS",
    "MLP",
    "SGD",
    "Adam",
    "AdamW",
    "AllReduce",
    "Batch",
    "Config",
    "Cosine",
    "Dataset",
    "Exponential",
    "LinearScaling",
    "LocalSGD",
    "Optimizer",
    "Polynomial",
    "Shard",
    "ShardedSampler",
    "Softmax",
    "StepDecay",
    "Strategy",
    "Summary",
    "Trainer",
    "WarmRestarts",
    "load_config",
    "load_dataset",
    "read_summary",
    "train",
]
