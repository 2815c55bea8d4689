import copy

import numpy as np
import pytest

from paropt_hpc.errors import ConfigError
from paropt_hpc.metaheuristics import Permutation, Real, Space, make


def circle(n, seed=0):
    angle = 2 * np.pi * np.random.default_rng(seed).permutation(n) / n
    points = np.column_stack([np.cos(angle), np.sin(angle)])
    return np.linalg.norm(points[:, None] - points, axis=2)


def lengths(distances):
    def of(rows):
        tours = rows.astype(int)
        return distances[tours, np.roll(tours, -1, axis=1)].sum(axis=1)

    return of


TRAILS = {"local_search": False, "evaporation": 0.1}


@pytest.mark.parametrize(
    ("n", "options", "generations"),
    [(2, {}, 3), (3, {}, 3), (5, {}, 5), (30, {}, 5), (20, TRAILS, 150)],
)
def test_finds_the_circle(path, n, options, generations):
    distances = circle(n)
    algorithm = make("mmas", Space(Permutation(n)), seed=1, distances=distances, **options)
    for _ in range(generations):
        x = algorithm.ask()
        np.testing.assert_array_equal(np.sort(x, axis=1), np.tile(np.arange(n), (len(x), 1)))
        algorithm.tell(x, lengths(distances)(x))
    assert algorithm.best_f == pytest.approx(2 * n * np.sin(np.pi / n), rel=1e-9)


def test_the_permutation_may_have_a_name():
    named, bare = (
        make("mmas", space, seed=1, distances=circle(8), **TRAILS)
        for space in (Space({"tour": Permutation(8)}), Space(Permutation(8)))
    )
    for algorithm in (named, bare):
        for _ in range(3):
            x = algorithm.ask()
            algorithm.tell(x, lengths(circle(8))(x))
    np.testing.assert_array_equal(named.ask(), bare.ask())


def test_trails_alone_find_short_tours():
    distances = circle(10)
    algorithm = make("mmas", Space(Permutation(10)), seed=1, evaporation=0.1)
    algorithm.advance(lengths(distances), 150)
    assert algorithm.best_f == pytest.approx(20 * np.sin(np.pi / 10), rel=1e-9)


def test_asymmetric_distances():
    n = 8
    distances = np.full((n, n), 10.0)
    distances[np.arange(n), (np.arange(n) + 1) % n] = 1  # cheap in one direction only
    algorithm = make("mmas", Space(Permutation(n)), seed=1, distances=distances)
    algorithm.advance(lengths(distances), 60)
    assert algorithm.best_f == n


def test_resume_and_failures():
    distances = circle(12)
    value = lengths(distances)

    def flaky(rows):
        f = value(rows)
        f[::3] = np.nan
        return f

    algorithm = make("mmas", Space(Permutation(12)), seed=4, distances=distances)
    algorithm.advance(flaky, 3)
    resumed = make("mmas", Space(Permutation(12)), seed=4, distances=distances)
    resumed.load_state_dict(copy.deepcopy(algorithm.state_dict()))
    algorithm.advance(flaky, 3)
    resumed.advance(flaky, 3)
    np.testing.assert_array_equal(algorithm.ask(), resumed.ask())
    assert algorithm.failures == 6 * 9
    guest = np.arange(12.0)[None]
    algorithm.inject(guest, [0.5])
    assert algorithm.best_f == 0.5
    algorithm.advance(lambda rows: np.full(len(rows), np.nan), 2)
    assert algorithm.population()[0].shape == (25, 12)


def test_wrong_settings_are_refused():
    space = Space(Permutation(4))
    lopsided = np.arange(16.0).reshape(4, 4)
    for where, options, text in [
        (Space(Real(0, 1)), {}, "needs a space of one Permutation"),
        (space, {"distances": np.ones((3, 3))}, r"shape \(4, 4\)"),
        (space, {"distances": -np.ones((4, 4))}, "at least 0"),
        (space, {"distances": lopsided, "local_search": True}, "symmetric"),
        (space, {"evaporation": 1.0}, "evaporation must be in"),
        (space, {"population": 0}, "at least 1"),
    ]:
        with pytest.raises(ConfigError, match=text):
            make("mmas", where, **options)
