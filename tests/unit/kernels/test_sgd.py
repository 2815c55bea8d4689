import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from paropt_hpc.kernels import sgd

BLOCK = 65536
DTYPES = [np.float32, np.float64]


def check_step(params, gradient, velocity, rate, momentum, decay, nesterov):
    """Compare with the formulas on whole vectors, to the bit."""
    kind = params.dtype.type
    with np.errstate(all="ignore"):
        g = gradient + kind(decay) * params if decay else gradient
        if velocity is None:
            expected = params - kind(rate) * g
        else:
            v = kind(momentum) * velocity + g
            expected = params - kind(rate) * (g + kind(momentum) * v if nesterov else v)
    before = gradient.copy()
    sgd.step(
        params, gradient, velocity, rate=rate, momentum=momentum, decay=decay, nesterov=nesterov
    )
    # A NaN has more than one pattern of bits; which one comes out is up to the processor.
    np.testing.assert_array_equal(params, expected)
    np.testing.assert_array_equal(np.signbit(params), np.signbit(expected))
    np.testing.assert_array_equal(gradient, before)
    if velocity is not None:
        np.testing.assert_array_equal(velocity, v)


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_any_values(path, dtype, data):
    n = data.draw(st.integers(0, 40))
    numbers = st.floats(width=8 * np.dtype(dtype).itemsize, allow_nan=False, allow_infinity=False)
    params, gradient, velocity = (
        data.draw(hnp.arrays(dtype, n, elements=numbers)) for _ in range(3)
    )
    nesterov, plain = data.draw(st.booleans()), data.draw(st.booleans())
    decay = data.draw(st.sampled_from([0.0, 1e-3, 1e-60]))
    with np.errstate(all="ignore"):
        finite = np.isfinite(np.abs(params) + np.abs(gradient) + np.abs(velocity)).all()
    if finite:
        check_step(params, gradient, None if plain else velocity, 0.1, 0.9, decay, nesterov)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 4 * BLOCK + 3])
def test_sizes(path, dtype, n):
    params, gradient, velocity = np.random.default_rng(n).standard_normal((3, n)).astype(dtype)
    check_step(params, gradient, velocity, 0.05, 0.9, 1e-4, nesterov=True)
    check_step(params, gradient, None, 0.05, 0.0, 0.0, nesterov=False)


def test_products_are_rounded_first(path):
    x = np.float32(1 + 2**-12)
    params = np.array([x * x], np.float32)  # a fused multiply-add would leave the rounding error
    sgd.step(params, np.array([x]), rate=float(x))
    assert params[0] == 0


def test_without_decay_parameters_are_no_part_of_the_gradient(path):
    params, velocity = np.array([np.inf], np.float32), np.zeros(1, np.float32)
    sgd.step(params, np.ones(1, np.float32), velocity, rate=0.1, momentum=0.9)
    assert velocity[0] == 1


class NotNumpy:
    """As little of an array as an array of another library must have."""

    def __init__(self, array):
        self.array, self.dtype, self.size = array, array.dtype, array.size

    def __getitem__(self, part):
        return self.array[part]


def test_an_array_of_another_library(path):
    params, gradient = np.ones(3), np.ones(3)
    sgd.step(NotNumpy(params), gradient, rate=0.5)
    np.testing.assert_array_equal(params, 0.5)


X, Y = np.zeros(4, np.float32), np.zeros(4, np.float32)


@pytest.mark.parametrize(
    ("arrays", "error", "text"),
    [
        ((X, np.zeros(3, np.float32)), ValueError, "gradient must have 4 entries"),
        ((X, np.zeros(4)), TypeError, "gradient must be float32, got float64"),
        ((np.zeros(4, int), X), TypeError, "params must be float32 or float64"),
        ((X, X), ValueError, "params and gradient must not overlap"),
        ((X, Y, X), ValueError, "params and velocity must not overlap"),
        ((X, Y, Y), ValueError, "velocity and gradient must not overlap"),
        ((X, Y, np.zeros(5, np.float32)), ValueError, "velocity must have 4 entries"),
        ((X, Y, np.zeros((2, 2), np.float32)), ValueError, "velocity must have one dimension"),
    ],
)
def test_errors(path, arrays, error, text):
    with pytest.raises(error, match=text):
        sgd.step(*arrays, rate=0.1)
    assert not X.any()


def test_a_descent_gives_what_steps_give(path):
    vectors = np.random.default_rng(1).standard_normal((3, 100)).astype(np.float32)
    ours, theirs = vectors.copy(), vectors.copy()
    descent = sgd.Descent()
    arrays = [*ours]
    for nesterov in (False, True, True):
        descent.step(*arrays, 0.1, 0.9, 1e-2, nesterov)
        sgd.step(*theirs, rate=0.1, momentum=0.9, decay=1e-2, nesterov=nesterov)
    descent.step(arrays[0], arrays[1], None, 0.1, 0.0, 0.0, False)
    sgd.step(*theirs[:2], rate=0.1)
    np.testing.assert_array_equal(ours, theirs)


def test_a_descent_checks_whatever_is_new(path):
    params, gradient, velocity = (np.zeros(4, np.float32) for _ in range(3))
    descent = sgd.Descent()
    descent.step(params, gradient, velocity, 0.1, 0.9, 0.0, False)
    for arrays, text in (
        ((params[:3], gradient, velocity), "gradient must have 3 entries"),
        ((params, params, velocity), "params and gradient must not overlap"),
        ((params, gradient, gradient), "velocity and gradient must not overlap"),
    ):
        with pytest.raises(ValueError, match=text):
            descent.step(*arrays, 0.1, 0.9, 0.0, False)


def test_a_descent_keeps_no_array_alive(path):
    descent, params = sgd.Descent(), np.zeros(4, np.float32)
    gradient = np.ones(4, np.float32)
    descent.step(params, gradient, None, 0.1, 0.0, 0.0, False)
    gone = weakref.ref(gradient)
    del gradient
    assert gone() is None
