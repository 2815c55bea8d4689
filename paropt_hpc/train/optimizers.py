"""Optimizers: a gradient becomes a change of the parameters, in place.

All work on flat vectors, allocate their state at the first update, and may overwrite the
gradient, which serves as work space. They go through the vectors block by block, see
`paropt_hpc.train.arrays`, and so take no memory beside their state.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels import sgd
from paropt_hpc.train.arrays import Array, Scratch, add_scaled, blocks, namespace, norm

__all__ = ["LAMB", "LARS", "SGD", "Adam", "AdamW", "Optimizer", "Untouched"]

Rate = float | Callable[[int], float]


class Optimizer(ABC):
    """What a strategy asks of an optimizer.

    Parameters
    ----------
    lr : float or callable
        The rate, or a schedule ``step -> rate``.
    weight_decay : float
        At least 0; what it means is the optimizer's own.

    Attributes
    ----------
    steps : int
        Updates so far.
    """

    def __init__(self, lr: Rate, weight_decay: float = 0.0) -> None:
        if weight_decay < 0.0:
            raise ConfigError(f"weight_decay must be at least 0, got {weight_decay}")
        self._rate = lr if callable(lr) else lambda step: lr
        self.weight_decay = weight_decay
        self.steps = 0
        self._state: dict[str, Array] = {}
        self._scratch = Scratch()

    @property
    def lr(self) -> float:
        """The rate of the next update."""
        return self._rate(self.steps)

    def update(self, params: Array, gradient: Array) -> None:
        """Change `params` in place; `gradient` serves as work space and may be overwritten."""
        self._apply(namespace(params), params, gradient)
        self.steps += 1

    def ahead(self, params: Array, updates: int) -> Array:
        """Return where momentum alone takes `params` in so many updates, if it is known; local.

        A new array, or `params` itself where there is no momentum to go by.
        """
        return params

    @abstractmethod
    def _apply(self, xp: Any, params: Array, gradient: Array) -> None:
        """Change `params` by one step."""

    def _add_decay(self, params: Array, gradient: Array) -> None:
        """Add the decayed parameters to a gradient or direction, in place."""
        if self.weight_decay:
            add_scaled(gradient, params, self.weight_decay, self._scratch)

    def _buffer(self, xp: Any, name: str, like: Array) -> Array:
        """Return a vector that lives as long as the optimizer; zero at first."""
        if name not in self._state:
            self._state[name] = xp.zeros_like(like)
        return self._state[name]

    def state_dict(self) -> dict[str, Any]:
        """Return what a later `load_state_dict` needs to go on exactly.

        The vectors are no copies: the next update changes them.
        """
        return {"steps": self.steps, **self._state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state (a copy)."""
        self.steps = int(state["steps"])
        self._state = {name: v.copy() for name, v in state.items() if name != "steps"}


class Untouched(Optimizer):
    """Leaves parameters and gradient as they are, for somebody else's optimizer to use."""

    def __init__(self) -> None:
        super().__init__(0.0)

    def _apply(self, xp: Any, params: Array, gradient: Array) -> None:
        """Do nothing."""


class SGD(Optimizer):
    r"""Stochastic gradient descent with momentum, Nesterov's step and weight decay.

    With rate :math:`\eta`, momentum :math:`\mu`, decay :math:`\lambda`::

        g <- g + lambda * p
        v <- mu * v + g
        p <- p - eta * v                 classical
        p <- p - eta * (g + mu * v)      Nesterov [1]_, in the form of [2]_

    Parameters
    ----------
    lr : float or callable
        The rate, or a schedule ``step -> rate``.
    momentum, weight_decay : float
        :math:`\mu` in [0, 1) and :math:`\lambda` >= 0.
    nesterov : bool
        Needs momentum above 0.

    References
    ----------
    .. [1] Y. Nesterov, "A method of solving a convex programming problem with convergence
       rate O(1/k^2)", 1983.
    .. [2] I. Sutskever, J. Martens, G. Dahl, G. Hinton, "On the importance of
       initialization and momentum in deep learning", ICML 2013, section 2.
    """

    def __init__(
        self, lr: Rate, momentum: float = 0.0, nesterov: bool = False, weight_decay: float = 0.0
    ) -> None:
        super().__init__(lr, weight_decay)
        if not 0.0 <= momentum < 1.0:
            raise ConfigError(f"momentum must be in [0, 1), got {momentum}")
        if nesterov and momentum == 0.0:
            raise ConfigError("nesterov needs momentum above 0, got 0; set momentum to 0.9")
        self.momentum = momentum
        self.nesterov = nesterov
        self._descent = sgd.Descent()

    def ahead(self, params: Array, updates: int) -> Array:
        """Return ``params - updates * rate * velocity``; see `Optimizer`."""
        velocity = self._state.get("velocity")
        if velocity is None or updates == 0:
            return params
        moved = velocity * (-updates * self.lr)
        moved += params
        return moved

    def _apply(self, xp: Any, params: Array, gradient: Array) -> None:
        self._descend(xp, params, gradient, self.weight_decay)

    def _descend(self, xp: Any, params: Array, gradient: Array, decay: float) -> None:
        """Change `params` by what the momentum makes of a gradient."""
        velocity = self._buffer(xp, "velocity", gradient) if self.momentum else None
        rate = self.lr
        self._descent.step(params, gradient, velocity, rate, self.momentum, decay, self.nesterov)


class LARS(SGD):
    r"""SGD with momentum and one rate per layer, for large batches.

    A layer's gradient (weight decay included) is scaled by
    :math:`\phi \lVert w \rVert / (\lVert g \rVert + \lambda \lVert w \rVert)` before the
    momentum [1]_, equation 6; layers whose norms are zero keep the factor 1.

    Parameters
    ----------
    lr, momentum, weight_decay
        As in `SGD`.
    layers : sequence of slice
        Where each layer lies in the parameters; see ``MLP.layers``.
    trust : float
        :math:`\phi`, the trust coefficient.

    References
    ----------
    .. [1] Y. You, I. Gitman, B. Ginsburg, "Large batch training of convolutional networks",
       2017, equation 6 and algorithm 1.
    """

    def __init__(
        self,
        lr: Rate,
        layers: Sequence[slice],
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust: float = 0.001,
    ) -> None:
        super().__init__(lr, momentum, weight_decay=weight_decay)
        self.layers = list(layers)
        self.trust = trust

    def _apply(self, xp: Any, params: Array, gradient: Array) -> None:
        for layer in self.layers:
            size, slope = norm(params[layer]), norm(gradient[layer])
            self._add_decay(params[layer], gradient[layer])
            if size > 0 and slope > 0:
                gradient[layer] *= self.trust * size / (slope + self.weight_decay * size)
        self._descend(xp, params, gradient, 0.0)  # the decay is in it


class Adam(Optimizer):
    r"""Adaptive moments [1]_, algorithm 1; weight decay is added to the gradient.

    Parameters
    ----------
    lr : float or callable
        The rate, or a schedule ``step -> rate``.
    betas : (float, float)
        Decay of the first and second moment, each in [0, 1).
    eps : float
        Added to the root of the second moment.
    weight_decay : float
        At least 0.

    References
    ----------
    .. [1] D. Kingma, J. Ba, "Adam: a method for stochastic optimization", ICLR 2015.
    """

    def __init__(
        self,
        lr: Rate,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(lr, weight_decay)
        if not all(0.0 <= beta < 1.0 for beta in betas):
            raise ConfigError(f"betas must be in [0, 1), got {betas}")
        self.betas = betas
        self.eps = eps

    def _apply(self, xp: Any, params: Array, gradient: Array) -> None:
        self._add_decay(params, gradient)
        self._direction(xp, gradient)
        gradient *= self.lr
        params -= gradient

    def _direction(self, xp: Any, gradient: Array) -> None:
        """Replace the gradient by the bias-corrected ratio of its moments."""
        first = self._buffer(xp, "first", gradient)
        second = self._buffer(xp, "second", gradient)
        for part in blocks(gradient):
            self._moments(xp, gradient[part], first[part], second[part])

    def _moments(self, xp: Any, gradient: Array, first: Array, second: Array) -> None:
        """Do so for one block."""
        scratch = self._scratch.like(gradient)
        beta1, beta2 = self.betas
        step = self.steps + 1
        xp.multiply(gradient, 1 - beta1, out=scratch)
        first *= beta1
        first += scratch
        xp.multiply(gradient, gradient, out=scratch)
        scratch *= 1 - beta2
        second *= beta2
        second += scratch
        xp.sqrt(second, out=scratch)
        scratch /= (1 - beta2**step) ** 0.5
        scratch += self.eps
        xp.divide(first, scratch, out=gradient)
        gradient /= 1 - beta1**step


class AdamW(Adam):
    """Adam with decoupled weight decay: ``p <- p - lr * (direction + decay * p)``.

    References
    ----------
    .. [1] I. Loshchilov, F. Hutter, "Decoupled weight decay regularization", ICLR 2019,
       algorithm 2.
    """

    def _apply(self, xp: Any, params: Array, gradient: Array) -> None:
        self._direction(xp, gradient)
        self._add_decay(params, gradient)
        gradient *= self.lr
        params -= gradient


class LAMB(AdamW):
    r"""AdamW whose step in every layer is as long as the layer's weights, for large batches.

    A layer's direction u, weight decay included, is scaled by
    :math:`\lVert w \rVert / \lVert u \rVert`; layers whose norms are zero keep the factor 1.

    Parameters
    ----------
    lr, betas, eps, weight_decay
        As in `AdamW`.
    layers : sequence of slice
        Where each layer lies in the parameters; see ``MLP.layers``.

    References
    ----------
    .. [1] Y. You et al., "Large batch optimization for deep learning: training BERT in 76
       minutes", ICLR 2020, algorithm 2.
    """

    def __init__(
        self,
        lr: Rate,
        layers: Sequence[slice],
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(lr, betas, eps, weight_decay)
        self.layers = list(layers)

    def _apply(self, xp: Any, params: Array, gradient: Array) -> None:
        self._direction(xp, gradient)
        self._add_decay(params, gradient)
        for layer in self.layers:
            size, length = norm(params[layer]), norm(gradient[layer])
            if size > 0 and length > 0:
                gradient[layer] *= size / length
        gradient *= self.lr
        params -= gradient
