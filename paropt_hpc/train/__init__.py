"""A gradient becomes an update: strategies, optimizers, samplers, data, models, the loop."""

from paropt_hpc.train.config import Config, load_config
from paropt_hpc.train.data import Dataset, load_dataset
from paropt_hpc.train.loop import Summary, Trainer, train
from paropt_hpc.train.models import MLP, Batch, Softmax
from paropt_hpc.train.optimizers import SGD
from paropt_hpc.train.run_folder import read_summary
from paropt_hpc.train.samplers import Shard, ShardedSampler
from paropt_hpc.train.schedules import LinearScaling
from paropt_hpc.train.strategies import AllReduce, Strategy

__all__ = [
    "MLP",
    "SGD",
    "AllReduce",
    "Batch",
    "Config",
    "Dataset",
    "LinearScaling",
    "Shard",
    "ShardedSampler",
    "Softmax",
    "Strategy",
    "Summary",
    "Trainer",
    "load_config",
    "load_dataset",
    "read_summary",
    "train",
]
