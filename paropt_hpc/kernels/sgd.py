"""A step of gradient descent with momentum and weight decay, in one pass over the vectors."""

from typing import Any

import numpy as np

from paropt_hpc.kernels import reference
from paropt_hpc.kernels.backend import implementation
from paropt_hpc.kernels.checks import FLOATS, check_array, check_separate

__all__ = ["step"]


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
    check_array("params", params, FLOATS, writable=True)
    check_array("gradient", gradient, (params.dtype,), length=params.size)
    check_separate("params", params, "gradient", gradient)
    if velocity is not None:
        check_array("velocity", velocity, (params.dtype,), writable=True, length=params.size)
        check_separate("params", params, "velocity", velocity)
        check_separate("velocity", velocity, "gradient", gradient)
    implementation().sgd_step(params, gradient, velocity, rate, momentum, decay, nesterov)
