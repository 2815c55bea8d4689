"""From a configuration to the parts of a run."""

import math
from collections.abc import Callable, Sequence

import numpy as np

from paropt_hpc.comm import Communicator
from paropt_hpc.comm.topology import make as make_topology
from paropt_hpc.compress import Compressor, Quantize, RandomK, Threshold, TopK
from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels.rng import philox
from paropt_hpc.train.allreduce import AllReduce
from paropt_hpc.train.async_gossip import AsyncGossip
from paropt_hpc.train.config import Config, ModelConfig, StrategyConfig, TrainConfig
from paropt_hpc.train.custom import call
from paropt_hpc.train.data import Dataset
from paropt_hpc.train.early_stopping import EarlyStopping
from paropt_hpc.train.gossip import ChocoGossip, Gossip, PushSum
from paropt_hpc.train.local_sgd import LocalSGD
from paropt_hpc.train.loss_scale import LossScale
from paropt_hpc.train.models import CNN, MLP, EmbeddingBag, Model, Norm, Softmax
from paropt_hpc.train.normalisation import BatchNorm, VirtualBatchNorm
from paropt_hpc.train.optimizers import LAMB, LARS, SGD, Adam, AdamW, Optimizer
from paropt_hpc.train.parameter_server import ParameterServer, count_workers, default_bound
from paropt_hpc.train.ragged import Ragged
from paropt_hpc.train.schedules import (
    Cosine,
    Exponential,
    LinearScaling,
    Polynomial,
    StepDecay,
    WarmRestarts,
)
from paropt_hpc.train.strategies import Strategy

__all__ = ["build_early_stopping", "build_model", "build_strategy", "worker_count"]


def build_early_stopping(config: Config) -> EarlyStopping | None:
    """Return what watches the metric that a configuration names."""
    settings = config.early_stopping
    if settings.metric is None:
        return None
    mode = settings.mode or ("min" if settings.metric == "loss" else "max")
    return EarlyStopping(settings.patience, settings.min_delta, mode)


def worker_count(config: Config, size: int) -> int:
    """Return how many of `size` ranks compute gradients."""
    if config.strategy.name == "parameter-server":
        return count_workers(size, config.strategy.servers)
    return size


def build_model(config: Config, data: Dataset) -> Model:
    """Return the model that a configuration names, for this data."""
    settings = config.model
    if ":" in settings.name:
        return _own_model(config, data)
    ragged = isinstance(data.train.x, Ragged)
    if ragged != (settings.name == "embedding-bag"):
        has, fits = ("varying length", "'embedding-bag'") if ragged else ("one length", "'mlp'")
        raise ConfigError(f"model.name {settings.name!r} does not fit samples of {has}; use {fits}")
    if settings.name == "softmax":
        return Softmax(data.features, data.classes)
    norm = _norm(settings)
    if ragged:
        width = settings.embedding
        return EmbeddingBag(data.features, width, settings.hidden, data.classes, norm)
    if settings.name == "cnn":
        image = _image(settings, data.features)
        return CNN(image, settings.channels, settings.hidden, data.classes, norm)
    return MLP(data.features, settings.hidden, data.classes, norm)


def _own_model(config: Config, data: Dataset) -> Model:
    """Return what the user's callable makes, if it keeps to the contract."""
    name = config.model.name
    sizes = {"features": data.features, "classes": data.classes}
    model = call("model.name", name, **sizes, **config.model.options)
    if not isinstance(model, Model):
        raise ConfigError(
            f"model.name = {name!r} must return a paropt_hpc.train.Model, "
            f"got {type(model).__name__}; derive its class from it, or return a Network"
        )
    params = model.init(config.run.seed, config.model.dtype)
    expected = f"shape ({model.size},) and dtype {config.model.dtype}"
    if np.shape(params) != (model.size,) or params.dtype != config.model.dtype:
        raise ConfigError(
            f"model.name = {name!r}: init must return {expected}, "
            f"got shape {np.shape(params)} and dtype {np.asarray(params).dtype}"
        )
    return model


def _norm(settings: ModelConfig) -> Norm | None:
    kinds: dict[str, Norm | None] = {
        "none": None,
        "batch": BatchNorm,
        "virtual": lambda channels: VirtualBatchNorm(channels, settings.virtual_batch),
    }
    return kinds[settings.norm]


def _image(settings: ModelConfig, features: int) -> tuple[int, int, int]:
    """Return height, width and channels of samples of so many features."""
    side = math.isqrt(features)
    height, width, channels = settings.image or (side, side, 1)
    if height * width * channels == features:
        return height, width, channels
    if settings.image is None:
        raise ConfigError(
            f"samples of {features} features are no square images; "
            "set model.image = [height, width, channels]"
        )
    raise ConfigError(
        f"model.image = {settings.image} has {height * width * channels} values, "
        f"but a sample has {features} features"
    )


def build_strategy(
    config: Config, comm: Communicator, layers: Sequence[slice], steps_per_epoch: int
) -> Strategy:
    """Return the strategy that a configuration names, with its optimizer and compressor."""
    train = config.train
    compressor = _compressor(config, comm.rank, steps_per_epoch, layers[-1].stop)
    if config.strategy.name == "parameter-server":
        return _server(config, comm, compressor, layers, steps_per_epoch)
    # Decay that is part of the gradient must be there before error feedback collects it.
    early = config.strategy.name == "allreduce" and compressor is not None
    early = early and train.optimizer in ("sgd", "adam")
    optimizer = _optimizer(
        train,
        _schedule(train, -(-steps_per_epoch // train.accumulate)),
        layers,
        momentum=0.0 if config.compress.momentum_correction else train.momentum,
        weight_decay=0.0 if early else train.weight_decay,
    )
    if config.strategy.name == "allreduce":
        local_clip = config.compress.clip_norm
        return AllReduce(
            comm,
            optimizer,
            compressor,
            config.strategy.algorithm,
            sparse_scheme=config.strategy.sparse_scheme,
            accumulate=train.accumulate,
            clip_norm=train.clip_norm,
            local_clip_norm=local_clip and local_clip * math.sqrt(comm.size),
            weight_decay=train.weight_decay if early else 0.0,
            wire=config.strategy.wire,
            loss_scale=LossScale(config.strategy.loss_scale, config.strategy.loss_scale_period),
            skip_nonfinite=train.skip_nonfinite,
            overlap=config.strategy.overlap,
            bucket_bytes=math.ceil(config.strategy.bucket_mb * 2**20),
        )
    return _own_parameters(config.strategy, comm, optimizer, compressor, config.run.seed)


def _server(
    config: Config,
    comm: Communicator,
    compressor: Compressor | None,
    layers: Sequence[slice],
    steps_per_epoch: int,
) -> ParameterServer:
    settings, train = config.strategy, config.train
    workers = count_workers(comm.size, settings.servers)
    updates = -(-steps_per_epoch * workers // settings.group)  # in an epoch
    bound = settings.staleness_bound
    return ParameterServer(
        comm,
        _optimizer(train, _schedule(train, updates), layers, train.momentum, train.weight_decay),
        default_bound(updates, workers, settings.group) if bound is None else bound,
        compressor,
        servers=settings.servers,
        policy=settings.staleness_policy,
        group=settings.group,
        look_ahead=settings.look_ahead,
    )


def _own_parameters(
    settings: StrategyConfig,
    comm: Communicator,
    optimizer: Optimizer,
    compressor: Compressor | None,
    seed: int,
) -> Strategy:
    """Return a strategy in which every rank has parameters of its own for a while."""
    if settings.name == "localsgd":
        return LocalSGD(
            comm,
            optimizer,
            settings.period,
            settings.growth,
            settings.outer_momentum,
            settings.outer_lr,
            settings.algorithm,
        )
    topology = make_topology(settings.topology, comm.size)
    if settings.name == "async-gossip":
        return AsyncGossip(comm, optimizer, topology, settings.lead, seed)
    if settings.name == "push-sum":
        return PushSum(comm, optimizer, topology)
    if settings.name == "choco":
        assert compressor is not None  # as the configuration demands
        return ChocoGossip(comm, optimizer, topology, compressor, settings.gamma)
    return Gossip(comm, optimizer, topology, settings.order, settings.tracking)


def _compressor(
    config: Config, rank: int, steps_per_epoch: int, parameters: int
) -> Compressor | None:
    settings, seed = config.compress, config.run.seed
    values = None if settings.values == "full" else settings.values
    momentum = config.train.momentum if settings.momentum_correction else 0.0
    own = seed_of(seed, rank)
    if settings.method == "topk":
        warmup = settings.warmup_epochs * steps_per_epoch / config.train.accumulate
        # What is sent loses the momentum collected for it, so with that more is not better.
        least = 0.0 if momentum else min(1.0, settings.min_entries / parameters)
        return TopK(
            max(settings.density, least),
            momentum=momentum,
            warmup_steps=round(warmup),
            overshoot=settings.overshoot,
            values=values,
            seed=own,
        )
    if settings.method == "randomk":
        return RandomK(
            settings.density, momentum=momentum, values=values, seed=seed, rounding_seed=own
        )
    if settings.method == "threshold":
        assert settings.threshold is not None  # as the configuration demands
        return Threshold(settings.threshold, momentum=momentum, values=values, seed=own)
    return None if values is None else Quantize(values, seed=own)


def seed_of(seed: int, rank: int) -> int:
    """Return a seed of a rank's own, for what must differ between ranks."""
    return int(philox(seed, "rank", rank).bit_generator.random_raw())


def _optimizer(
    train: TrainConfig,
    rate: Callable[[int], float],
    layers: Sequence[slice],
    momentum: float,
    weight_decay: float,
) -> Optimizer:
    if train.optimizer == "lars":
        return LARS(rate, layers, momentum, weight_decay, train.trust)
    if train.optimizer == "lamb":
        return LAMB(rate, layers, weight_decay=weight_decay)
    if train.optimizer == "adam":
        return Adam(rate, weight_decay=weight_decay)
    if train.optimizer == "adamw":
        return AdamW(rate, weight_decay=weight_decay)
    return SGD(rate, momentum, train.nesterov, weight_decay)


def _schedule(train: TrainConfig, updates_per_epoch: int) -> LinearScaling:
    """Return the rate as a function of the updates so far."""
    steps = max(1, round((train.schedule_epochs or train.epochs) * updates_per_epoch))
    kinds: dict[str, float | Callable[[int], float]] = {
        "constant": train.lr,
        "step": StepDecay(train.lr, steps, train.schedule_factor),
        "exponential": Exponential(train.lr, steps, train.schedule_factor),
        "polynomial": Polynomial(train.lr, steps, train.schedule_power, train.lr_end),
        "cosine": Cosine(train.lr, steps, train.lr_end),
        "restarts": WarmRestarts(train.lr, steps, end=train.lr_end),
    }
    return LinearScaling(
        kinds[train.schedule],
        factor=train.batch
        * train.accumulate
        / (train.base_batch or train.batch * train.accumulate),
        warmup_steps=round(train.warmup_epochs * updates_per_epoch),
    )
