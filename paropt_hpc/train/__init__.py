"""A gradient becomes an update: strategies, optimizers, samplers, data, models, the loop."""

from paropt_hpc.runs import read_summary
from paropt_hpc.train.allreduce import AllReduce
from paropt_hpc.train.async_gossip import AsyncGossip
from paropt_hpc.train.config import Config, load_config
from paropt_hpc.train.data import Dataset, load_dataset
from paropt_hpc.train.gossip import ChocoGossip, Gossip, PushSum
from paropt_hpc.train.layers import (
    Conv2D,
    Dense,
    Embedding,
    Layer,
    MaxPool,
    ReLU,
    Reshape,
)
from paropt_hpc.train.local_sgd import LocalSGD
from paropt_hpc.train.loop import Summary, Trainer, train
from paropt_hpc.train.loss_scale import LossScale
from paropt_hpc.train.models import CNN, MLP, Batch, EmbeddingBag, Model, Network, Softmax
from paropt_hpc.train.normalisation import BatchNorm, VirtualBatchNorm
from paropt_hpc.train.optimizers import LAMB, LARS, SGD, Adam, AdamW, Optimizer
from paropt_hpc.train.parameter_server import ParameterServer
from paropt_hpc.train.prefetch import Prefetch
from paropt_hpc.train.ragged import BucketSampler, Ragged, bucket_edges
from paropt_hpc.train.readers import (
    Rows,
    Sparse,
    open_hdf5,
    open_npy,
    read_libsvm,
    read_libsvm_together,
)
from paropt_hpc.train.replica import Replica
from paropt_hpc.train.samplers import Shard, ShardedSampler
from paropt_hpc.train.schedules import (
    Cosine,
    Exponential,
    LinearScaling,
    Polynomial,
    StepDecay,
    WarmRestarts,
)
from paropt_hpc.train.strategies import Strategy

__all__ = [
    "CNN",
    "LAMB",
    "LARS",
    "MLP",
    "SGD",
    "Adam",
    "AdamW",
    "AllReduce",
    "AsyncGossip",
    "Batch",
    "BatchNorm",
    "BucketSampler",
    "ChocoGossip",
    "Config",
    "Conv2D",
    "Cosine",
    "Dataset",
    "Dense",
    "Embedding",
    "EmbeddingBag",
    "Exponential",
    "Gossip",
    "Layer",
    "LinearScaling",
    "LocalSGD",
    "LossScale",
    "MaxPool",
    "Model",
    "Network",
    "Optimizer",
    "ParameterServer",
    "Polynomial",
    "Prefetch",
    "PushSum",
    "Ragged",
    "ReLU",
    "Replica",
    "Reshape",
    "Rows",
    "Shard",
    "ShardedSampler",
    "Softmax",
    "Sparse",
    "StepDecay",
    "Strategy",
    "Summary",
    "Trainer",
    "VirtualBatchNorm",
    "WarmRestarts",
    "bucket_edges",
    "load_config",
    "load_dataset",
    "open_hdf5",
    "open_npy",
    "read_libsvm",
    "read_libsvm_together",
    "read_summary",
    "train",
]
