"""A step of gradient descent with momentum and weight decay, in one pass over the vectors."""

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np

from paropt_hpc.kernels import reference
from paropt_hpc.kernels.backend import implementation
from paropt_hpc.kernels.checks import FLOATS, check_array, check_separate

__all__ = ["Descent", "step"]


def step(
    params: Any,
    gradient: Any,
    velocity: Any | None = None,
    *,
    rate: float,
    momentum: float = 0.0,
    decay: float = 0.0,
    nesterov: bool = False,
) -> None:
    r"""Move parameters down a gradient, in place.

    With rate :math:`\eta`, momentum :math:`\mu` and decay :math:`\lambda`, every product rounded
    before it is added::

        g = gradient + lambda * params
        velocity = mu * velocity + g
        params -= eta * velocity                   or, with nesterov,
        params -= eta * (g + mu * velocity)

    Parameters
    ----------
    params : ndarray, shape (n,), float32 or float64
        Overwritten. An array of CuPy is worked on by the NumPy twin's operators.
    gradient : ndarray, shape (n,), dtype of params
        Left alone.
    velocity : ndarray, shape (n,), dtype of params, optional
        Overwritten. Without it there is no momentum: ``params -= eta * g``.
    rate, momentum, decay : float
        Taken in the dtype of `params`.
    nesterov : bool
        Only with a velocity.

    Raises
    ------
    TypeError, ValueError
        If an array has the wrong dtype, shape or layout, or overlaps another one. Nothing has been
        written then.
    """
    if not isinstance(params, np.ndarray):
        reference.sgd_step(params, gradient, velocity, rate, momentum, decay, nesterov)
        return
    _check(params, gradient, velocity)
    implementation().sgd_step(params, gradient, velocity, rate, momentum, decay, nesterov)


class Descent:
    """`step` for a loop that comes with the same arrays every time, which it checks but once.

    It keeps no array alive.
    """

    def __init__(self) -> None:
        self._known: list[Callable[[], Any]] = 3 * [_nothing]
        self._kernel: Any = None

    def step(
        self,
        params: Any,
        gradient: Any,
        velocity: Any | None,
        rate: float,
        momentum: float,
        decay: float,
        nesterov: bool,
    ) -> None:
        """Move parameters down a gradient, in place; see `step`."""
        first, second, third = self._known
        if first() is not params or second() is not gradient or third() is not velocity:
            self._look_at(params, gradient, velocity)
        self._kernel(params, gradient, velocity, rate, momentum, decay, nesterov)

    def _look_at(self, params: Any, gradient: Any, velocity: Any | None) -> None:
        if not isinstance(params, np.ndarray):
            self._kernel = reference.sgd_step
            return
        _check(params, gradient, velocity)
        self._kernel = implementation().sgd_step
        third = _nothing if velocity is None else weakref.ref(velocity)
        self._known = [weakref.ref(params), weakref.ref(gradient), third]


def _nothing() -> None:
    """Stand for an array that there is none of."""


def _check(params: Any, gradient: Any, velocity: Any | None) -> None:
    check_array("params", params, FLOATS, writable=True)
    check_array("gradient", gradient, (params.dtype,), length=params.size)
    check_separate("params", params, "gradient", gradient)
    if velocity is not None:
        check_array("velocity", velocity, (params.dtype,), writable=True, length=params.size)
        check_separate("params", params, "velocity", velocity)
        check_separate("velocity", velocity, "gradient", gradient)
