"""Optimizers: a gradient becomes a change of the parameters, in place."""

from collections.abc import Callable
from typing import Any

from paropt_hpc.errors import ConfigError
from paropt_hpc.train.arrays import Array, namespace

__all__ = ["SGD"]


class SGD:
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
        self,
        lr: float | Callable[[int], float],
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        if not 0.0 <= momentum < 1.0:
            raise ConfigError(f"momentum must be in [0, 1), got {momentum}")
        if weight_decay < 0.0:
            raise ConfigError(f"weight_decay must be at least 0, got {weight_decay}")
        if nesterov and momentum == 0.0:
            raise ConfigError("nesterov needs momentum above 0, got 0; set momentum to 0.9")
        self._rate = lr if callable(lr) else lambda step: lr
        self.momentum = momentum
        self.nesterov = nesterov
        self.weight_decay = weight_decay
        self.steps = 0
        self._velocity: Array | None = None
        self._scratch: Array | None = None

    @property
    def lr(self) -> float:
        """The rate of the next update."""
        return self._rate(self.steps)

    def update(self, params: Array, gradient: Array) -> None:
        """Change `params` in place; `gradient` serves as work space and is overwritten."""
        xp = namespace(params)
        if self._scratch is None:
            self._scratch = xp.empty_like(params)
        if self.weight_decay:
            xp.multiply(params, self.weight_decay, out=self._scratch)
            gradient += self._scratch
        direction = self._with_momentum(xp, gradient) if self.momentum else gradient
        xp.multiply(direction, self.lr, out=self._scratch)
        params -= self._scratch
        self.steps += 1

    def _with_momentum(self, xp: Any, gradient: Array) -> Array:
        if self._velocity is None:
            self._velocity = xp.zeros_like(gradient)
        self._velocity *= self.momentum
        self._velocity += gradient
        if not self.nesterov:
            return self._velocity
        xp.multiply(self._velocity, self.momentum, out=self._scratch)
        gradient += self._scratch
        return gradient

    def state_dict(self) -> dict[str, Any]:
        """Return what a later `load_state_dict` needs to go on exactly (a copy)."""
        velocity = None if self._velocity is None else self._velocity.copy()
        return {"steps": self.steps, "velocity": velocity}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state (a copy)."""
        self.steps = state["steps"]
        velocity = state["velocity"]
        self._velocity = None if velocity is None else velocity.copy()
