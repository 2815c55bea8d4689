"""A model of one's own, for ``model.name = "own_model:make"``."""

from paropt_hpc.train import BatchNorm, Dense, Network, ReLU


def make(features: int, classes: int, width: int = 32) -> Network:
    """Return a perceptron with batch normalisation over all ranks before its ReLU."""
    return Network(
        [Dense(features, width, bias=False), BatchNorm(width), ReLU(), Dense(width, classes)]
    )
