import itertools

import numpy as np
import pytest

from paropt_hpc.kernels import backend, reference


def cities(n, seed):
    points = np.random.default_rng(seed).random((n, 2))
    distances = np.linalg.norm(points[:, None] - points, axis=2)
    away = distances + np.where(np.eye(n, dtype=bool), np.inf, 0)
    near = np.argsort(away, axis=1)[:, : min(10, n - 1)].astype(np.uint32)
    return distances, np.ascontiguousarray(near)


def length(distances, tour):
    return distances[tour, np.roll(tour, -1)].sum()


def shortest(distances):
    n = len(distances)
    tours = (np.array([0, *rest]) for rest in itertools.permutations(range(1, n)))
    return min(length(distances, tour) for tour in tours)


def tours_of(n, m, seed=0):
    rng = np.random.default_rng(seed)
    return np.array([rng.permutation(n) for _ in range(m)], np.uint32)


@pytest.mark.parametrize("n", [2, 3, 4, 5, 6, 7, 8, 9, 30])
@pytest.mark.parametrize("kicks", [0, 5])
def test_improved_tours_visit_each_city_and_are_not_longer(path, n, kicks):
    distances, near = cities(n, n)
    tours = tours_of(n, 4)
    before = [length(distances, tour) for tour in tours]
    backend.implementation().improve_tours(distances, near, kicks, 1, tours)
    for tour, old in zip(tours, before, strict=True):
        np.testing.assert_array_equal(np.sort(tour), np.arange(n))
        assert length(distances, tour) <= old + 1e-12


@pytest.mark.parametrize("n", [5, 8])
def test_small_problems_are_solved(path, n):
    for seed in range(4):
        distances, near = cities(n, seed)
        tours = tours_of(n, 6)
        backend.implementation().improve_tours(distances, near, 30, seed, tours)
        best = min(length(distances, tour) for tour in tours)
        assert best == pytest.approx(shortest(distances), rel=1e-12)


def test_the_seed_decides_and_threads_do_not(path):
    distances, near = cities(60, 3)
    a, b, c = (tours_of(60, 5) for _ in range(3))
    backend.implementation().improve_tours(distances, near, 10, 1, a)
    backend.implementation().improve_tours(distances, near, 10, 1, b)
    backend.implementation().improve_tours(distances, near, 10, 2, c)
    np.testing.assert_array_equal(a, b)
    assert (a != c).any()


def test_kicks_shorten_tours():
    if backend.native_module() is None:
        pytest.skip("native kernels were not built")
    distances, near = cities(150, 5)
    plain, kicked = tours_of(150, 3), tours_of(150, 3)
    backend.native_module().improve_tours(distances, near, 0, 1, plain)
    backend.native_module().improve_tours(distances, near, 2000, 1, kicked)
    for worse, better in zip(plain, kicked, strict=True):
        assert length(distances, better) < 0.99 * length(distances, worse)
    # All three agree to less than a percent, which no local search alone would.
    values = [length(distances, tour) for tour in kicked]
    assert max(values) < 1.01 * min(values)


@pytest.mark.parametrize("n", [2, 3, 30])
def test_ants(path, n):
    distances, near = cities(n, 1)
    attraction = np.maximum(distances, 1e-3) ** -2.0
    tours, twins = np.zeros((6, n), np.uint32), np.zeros((6, n), np.uint32)
    backend.implementation().ant_tours(attraction, near[:, : max(1, n // 6)].copy(), 9, tours)
    reference.ant_tours(attraction, near[:, : max(1, n // 6)].copy(), 9, twins)
    np.testing.assert_array_equal(tours, twins)
    np.testing.assert_array_equal(np.sort(tours, axis=1), np.tile(np.arange(n), (6, 1)))


def test_wrong_tours_are_refused_by_native_code():
    if backend.native_module() is None:
        pytest.skip("native kernels were not built")
    distances, near = cities(6, 1)
    twice = np.zeros((1, 6), np.uint32)
    with pytest.raises(ValueError, match="each city once"):
        backend.native_module().improve_tours(distances, near, 0, 1, twice)
    beyond = np.full((1, 6), 6, np.uint32)
    with pytest.raises(ValueError, match="out of range"):
        backend.native_module().improve_tours(distances, near, 0, 1, beyond)
