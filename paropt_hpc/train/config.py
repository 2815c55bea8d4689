"""The settings of a training run: a TOML file, and ``--set`` on top of it.

Every key is checked before anything else happens: its name, its type and its range.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from paropt_hpc.errors import ConfigError
from paropt_hpc.runs.settings import Section, load

__all__ = ["Config", "check_identity", "identity", "load_config"]

Positive = Annotated[int, Field(ge=1)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]

FORMATS = ("digits", "libsvm", "idx", "npz", "npy", "hdf5")
MODELS = ("softmax", "mlp", "cnn", "embedding-bag")
# Strategies whose ranks take every step together.
IN_STEP = ("allreduce", "localsgd", "gossip", "push-sum", "choco")


def _check_name(key: str, name: str, known: tuple[str, ...]) -> None:
    """Raise unless a name is known, or that of a callable of the user's own."""
    module, colon, function = name.partition(":")
    if name not in known and not (module and colon and function):
        names = ", ".join(known)
        raise ValueError(f"{key} must be one of {names} or module:callable, got {name!r}")


class RunConfig(Section):
    """Where results go, and the seed of everything random."""

    dir: str | None = None  # run folder; by default runs/<name of the file>
    seed: Annotated[int, Field(ge=0)] = 0
    overwrite: bool = False  # replace the results in a run folder that has some
    tensorboard: bool = False  # also write the metrics for TensorBoard, in the run folder
    trace: str | None = None  # file for a timeline of all ranks in Chrome's trace format
    resume: bool = False  # go on from the newest checkpoint in the run folder, if there is one


class DataConfig(Section):
    """What to train and test on."""

    format: str = "digits"  # or libsvm, idx, npz, npy, hdf5, or module:callable
    train: str | None = None  # file of the training samples (for idx: the images)
    train_labels: str | None = None  # idx and npy
    test: str | None = None  # file of the test samples; by default a part of `train`
    test_labels: str | None = None  # idx and npy
    test_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.2  # where no test file is named
    classes: Annotated[int, Field(ge=2)] | None = None  # by default from the training labels
    features: Positive | None = None  # libsvm only: by default the largest index
    scale: Literal["max", "standard", "none"] = "max"  # of the features, by the training part
    buckets: Positive = 8  # of samples of varying length, by their length
    prefetch: Annotated[int, Field(ge=0)] = 0  # batches that a thread reads ahead
    options: dict[str, Any] = Field(default={})  # further arguments of module:callable

    @model_validator(mode="after")
    def _files_fit_the_format(self) -> "DataConfig":
        _check_name("data.format", self.format, FORMATS)
        needed = {"libsvm": ["train"], "npz": ["train"], "hdf5": ["train"]}
        for name in ("idx", "npy"):
            needed[name] = ["train", "train_labels"] + (["test_labels"] if self.test else [])
        for key in needed.get(self.format, []):
            if getattr(self, key) is None:
                raise ValueError(f"data.{key} must name a file when data.format is {self.format!r}")
        return self


class ModelConfig(Section):
    """The model and the type of its parameters."""

    name: str = "mlp"  # or softmax, cnn, embedding-bag, or module:callable
    hidden: list[Positive] = Field(default=[128])  # widths of the hidden layers; not softmax
    channels: list[Positive] = Field(default=[8, 16])  # cnn: filters of its convolutions
    embedding: Positive = 32  # embedding-bag: width of the vector of a token
    image: list[Positive] | None = None  # cnn: height, width, channels; by default square and grey
    norm: Literal["none", "batch", "virtual"] = "none"  # batch: over all ranks, as on one
    virtual_batch: Annotated[int, Field(ge=2)] = 16  # virtual: samples that are normalised together
    dtype: Literal["float32", "float64"] = "float32"
    options: dict[str, Any] = Field(default={})  # further arguments of module:callable

    @model_validator(mode="after")
    def _settings_fit_the_model(self) -> "ModelConfig":
        _check_name("model.name", self.name, MODELS)
        if self.norm != "none" and self.name == "softmax":
            raise ValueError("model.norm needs hidden layers, got model.name 'softmax'; use 'mlp'")
        if self.image is not None and len(self.image) != 3:
            raise ValueError(f"model.image is [height, width, channels], got {self.image}")
        return self


class TrainConfig(Section):
    """The optimisation: the same for any number of ranks."""

    epochs: Positive = 10
    device: Literal["cpu", "gpu"] = "cpu"  # where parameters are: gpu takes CuPy, a GPU a rank
    batch: Positive = 64  # samples in a step over all ranks
    accumulate: Positive = 1  # steps whose mean gradient makes one update
    optimizer: Literal["sgd", "lars", "adam", "adamw", "lamb"] = "sgd"
    lr: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.1
    base_batch: Positive | None = None  # batch that lr is meant for; lr * batch / base_batch
    warmup_epochs: NotNegative = 0.0
    schedule: Literal["constant", "step", "exponential", "polynomial", "cosine", "restarts"] = (
        "constant"
    )
    schedule_epochs: PositiveFloat | None = None  # period or length; by default the whole run
    schedule_factor: PositiveFloat = 0.1  # of step and exponential, per period
    schedule_power: PositiveFloat = 1.0  # of polynomial: 1 is a straight line
    lr_end: NotNegative = 0.0  # of polynomial, cosine and restarts
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.9  # sgd and lars
    nesterov: bool = False  # sgd
    trust: PositiveFloat = 0.001  # lars: rate of a layer, as a share of its weights
    weight_decay: NotNegative = 0.0
    clip_norm: PositiveFloat | None = None  # longest mean gradient (allreduce)
    skip_nonfinite: bool | None = None  # leave out updates with NaN; by default with float16 only


class StrategyConfig(Section):
    """How ranks keep their parameters together."""

    name: Literal[
        "allreduce", "localsgd", "parameter-server", "gossip", "async-gossip", "push-sum", "choco"
    ] = "allreduce"
    algorithm: Literal[
        "auto", "mpi", "ring", "recursive_doubling", "shared", "hierarchical", "nccl"
    ] = "auto"  # of the dense all-reduce; nccl: on GPUs
    wire: Literal["full", "float16", "bfloat16"] = "full"  # allreduce: dense gradients on their way
    loss_scale: PositiveFloat = 1024.0  # float16: first factor of gradients; halves on overflow
    loss_scale_period: Annotated[int, Field(ge=0)] = 2000  # steps to double it; 0: never
    overlap: bool | None = None  # allreduce: with the backward pass; by default with spare cores
    bucket_mb: PositiveFloat = 4.0  # allreduce: size of the parts that overlap
    sparse_scheme: Literal["auto", "allgather", "split", "reselect", "dense"] = "auto"
    period: Positive = 8  # localsgd: steps in the first round
    growth: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0  # localsgd: of rounds
    outer_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0  # localsgd
    outer_lr: PositiveFloat = 1.0  # localsgd
    servers: Positive = 1  # parameter-server: the last ranks serve, the others work
    staleness_bound: Annotated[int, Field(ge=0, le=1_000_000)] | None = None  # 5 % of the updates
    staleness_policy: Literal["drop", "wait", "sync"] = "drop"  # beyond the bound
    group: Positive = 1  # parameter-server: gradients whose mean is one update
    look_ahead: bool = True  # parameter-server: pull what momentum will have made of parameters
    topology: Literal[
        "ring", "torus", "hypercube", "exponential", "one-peer-exponential", "star", "complete"
    ] = "ring"  # all kinds of gossip
    order: Literal["adapt-then-combine", "combine-then-adapt"] = "adapt-then-combine"  # gossip
    tracking: bool = False  # gossip: track the mean gradient
    lead: Positive = 16  # async-gossip: steps that a rank may be ahead of the slowest
    gamma: Annotated[float, Field(gt=0, le=1)] = 0.4  # choco: how far to move


class CompressConfig(Section):
    """How gradients (allreduce) or differences (choco) are shrunk before they are sent."""

    method: Literal["none", "topk", "randomk", "threshold", "quantize"] = "none"
    density: Annotated[float, Field(gt=0, le=1)] = 0.01  # topk, randomk: share that is sent
    min_entries: Positive = 1  # topk without momentum correction: send so many at least
    threshold: NotNegative | None = None  # threshold: smallest magnitude that is sent
    values: Literal["full", "float16", "bfloat16", "int8", "qsgd4", "sign"] = "full"
    warmup_epochs: NotNegative = 0.0  # topk: until the density has fallen to its value
    overshoot: Annotated[float, Field(ge=1, lt=2)] = 1.0  # topk: send so many times what is picked
    momentum_correction: bool = False  # collect train.momentum before compression (sgd)
    clip_norm: PositiveFloat | None = None  # of one rank's gradient: this times the root of ranks

    @model_validator(mode="after")
    def _settings_fit_the_method(self) -> "CompressConfig":
        method = self.method
        if (method == "threshold") != (self.threshold is not None):
            raise ValueError(
                "compress.threshold and compress.method = 'threshold' go together, got "
                f"{self.threshold} and {method!r}"
            )
        if method == "none" and self.values != "full":
            raise ValueError(
                f"compress.values = {self.values!r} needs a compress.method; 'quantize' sends all "
                "entries"
            )
        if method == "quantize" and self.values == "full":
            raise ValueError("compress.method = 'quantize' needs compress.values, such as 'int8'")
        if method != "topk" and self.warmup_epochs:
            raise ValueError(f"compress.warmup_epochs is for method 'topk', got {method!r}")
        if method != "topk" and self.overshoot != 1:
            raise ValueError(f"compress.overshoot is for method 'topk', got {method!r}")
        if self.momentum_correction and method in ("none", "quantize"):
            raise ValueError(
                "compress.momentum_correction is for methods that leave entries out: 'topk', "
                f"'randomk' or 'threshold', got {method!r}"
            )
        return self


class CheckpointConfig(Section):
    """When to save what is needed to go on, in the run folder."""

    every_steps: Positive | None = None
    every_epochs: Positive | None = None
    keep: Positive = 2  # how many checkpoints to keep


class EarlyStoppingConfig(Section):
    """When to end a run before its last epoch."""

    metric: Literal["loss", "test_accuracy"] | None = None  # watched; by default none
    patience: Positive = 5  # epochs without improvement
    min_delta: NotNegative = 0.0  # by how much a value must be better to be an improvement
    mode: Literal["min", "max"] | None = None  # which way is better; by default the metric's


class DebugConfig(Section):
    """What shows how a run bears trouble; no part of its identity."""

    slow_rank: Annotated[int, Field(ge=0)] | None = None  # this rank computes more slowly
    slow_factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 2.0  # by so much


class Config(Section):
    """All settings of a run; every key has a default."""

    run: RunConfig = RunConfig()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    train: TrainConfig = TrainConfig()
    strategy: StrategyConfig = StrategyConfig()
    compress: CompressConfig = CompressConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    early_stopping: EarlyStoppingConfig = EarlyStoppingConfig()
    debug: DebugConfig = DebugConfig()

    @model_validator(mode="after")
    def _training_fits_the_strategy(self) -> "Config":
        name = self.strategy.name
        if self.model.norm == "batch" and name not in IN_STEP:
            raise ValueError(
                f"model.norm = 'batch' communicates in every step, which strategy.name {name!r} "
                "does not keep; set model.norm = 'virtual'"
            )
        layerwise = self.train.optimizer in ("lars", "lamb")
        if name == "parameter-server" and self.strategy.servers > 1 and layerwise:
            raise ValueError(
                f"train.optimizer = {self.train.optimizer!r} needs whole layers, and "
                f"{self.strategy.servers} servers cut them; set strategy.servers = 1"
            )
        if name != "allreduce" and (self.train.accumulate > 1 or self.train.clip_norm is not None):
            raise ValueError(
                f"train.accumulate and train.clip_norm work with strategy.name 'allreduce', "
                f"got {name!r}"
            )
        if name != "allreduce" and (self.strategy.wire != "full" or self.train.skip_nonfinite):
            raise ValueError(
                f"strategy.wire and train.skip_nonfinite work with strategy.name 'allreduce', "
                f"got {name!r}"
            )
        if self.strategy.wire == "float16" and self.train.skip_nonfinite is False:
            raise ValueError(
                "train.skip_nonfinite must not be false with strategy.wire = 'float16', whose loss "
                "scale is found by overflow; use 'bfloat16'"
            )
        return self

    @model_validator(mode="after")
    def _the_algorithm_fits(self) -> "Config":
        if self.strategy.algorithm == "nccl" and self.train.device != "gpu":
            raise ValueError("strategy.algorithm = 'nccl' needs train.device = 'gpu'; use 'auto'")
        if self.strategy.algorithm == "nccl" and self.strategy.wire != "full":
            raise ValueError(
                "strategy.algorithm = 'nccl' sums 32 and 64 bits, got strategy.wire = "
                f"{self.strategy.wire!r}; use 'auto'"
            )
        return self

    @model_validator(mode="after")
    def _compression_fits_the_strategy(self) -> "Config":
        name, compressed = self.strategy.name, self.compress.method != "none"
        if name == "choco" and not compressed:
            raise ValueError("strategy.name = 'choco' needs a compress.method, such as 'topk'")
        if self.compress.values != "full" and self.model.dtype != "float32":
            raise ValueError(
                f"compress.values = {self.compress.values!r} needs model.dtype = 'float32'"
            )
        if self.compress.clip_norm is not None and (name != "allreduce" or not compressed):
            raise ValueError(
                "compress.clip_norm needs strategy.name = 'allreduce' and a compress.method; "
                "train.clip_norm is for dense gradients"
            )
        if name not in ("allreduce", "choco", "parameter-server") and compressed:
            raise ValueError(
                "compress.method works with strategy.name 'allreduce', 'choco' or "
                f"'parameter-server', got {name!r}; set compress.method = 'none'"
            )
        if compressed and self.strategy.wire != "full":
            raise ValueError(
                f"strategy.wire = {self.strategy.wire!r} is for dense gradients; with "
                f"compress.method = {self.compress.method!r} set strategy.wire = 'full'"
            )
        if self.compress.momentum_correction and (
            self.train.optimizer != "sgd" or self.train.nesterov or name != "allreduce"
        ):
            raise ValueError(
                "compress.momentum_correction needs strategy.name = 'allreduce', "
                "train.optimizer = 'sgd' and train.nesterov = false"
            )
        return self


def load_config(path: Path, assignments: Iterable[str] = ()) -> Config:
    """Read a configuration file and apply ``section.key=value`` assignments to it.

    Parameters
    ----------
    path : Path
        A TOML file. The names of files in it are relative to the current folder.
    assignments : iterable of str
        For instance ``"train.lr=0.1"``; values are TOML, anything else is a string.

    Raises
    ------
    ConfigError
        Naming the key, what was expected, and what was found.
    """
    return load(Config, path, assignments)


def identity(config: Config) -> dict[str, Any]:
    """Return the settings that make a run what it is: its result depends on nothing else.

    The number of epochs is not among them: a finished run may be made longer. Nor is the device:
    a run may go on on the other kind.
    """
    values = config.model_dump(include={"data", "model", "train", "strategy", "compress"})
    del values["train"]["epochs"], values["train"]["device"]
    return values | {"seed": config.run.seed}


def check_identity(saved: dict[str, Any], config: Config) -> None:
    """Raise unless a checkpoint was made by a run with the same settings.

    Raises
    ------
    ConfigError
        Naming a setting that differs, and both values.
    """
    found = changed_setting(saved, config)
    if found is not None:
        key, before, now = found
        raise ConfigError(
            f"cannot resume: {key} was {before!r} when the checkpoint was made and is {now!r} now; "
            "restore it, or start a new run in another run.dir"
        )


def changed_setting(saved: dict[str, Any], config: Config) -> tuple[str, Any, Any] | None:
    """Return the first setting in which an :func:`identity` differs from a configuration's.

    Returns
    -------
    tuple or None
        Its name, the value saved, and that of `config`.
    """
    for section, values in identity(config).items():
        before = saved.get(section)
        if values == before:
            continue
        if not isinstance(values, dict) or not isinstance(before, dict):
            return f"run.{section}", before, values
        for key, value in values.items():
            if value != before.get(key):
                return f"{section}.{key}", before.get(key), value
    return None
