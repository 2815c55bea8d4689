"""The NumPy twins of the tour kernels: ants equal to the bit, a simpler local search."""

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.kernels.reference_population import below, streams, words

__all__ = ["ant_tours", "improve_tours"]

_Array: TypeAlias = NDArray[Any]


def ant_tours(attraction: _Array, near: _Array, key: int, tours: _Array) -> None:
    """Let ants make tours, going on to near cities in proportion to attraction."""
    n = len(attraction)
    for tour, s in zip(tours, streams(key, np.arange(len(tours))), strict=True):
        draws = words(s[None], np.arange(n))[0].astype(np.float64) * 2.0**-32
        here = int(below(s[None], 0, n)[0])
        visited = np.zeros(n, bool)
        for j in range(n):
            tour[j] = here
            visited[here] = True
            if j + 1 < n:
                here = _next_city(attraction[here], near[here], visited, float(draws[j + 1]))


def _next_city(attraction: _Array, near: _Array, visited: _Array, chance: float) -> int:
    open_ = near[~visited[near]]
    weights = attraction[open_]
    total = 0.0
    for weight in weights:  # in the order of the native sum
        total += float(weight)
    if total > 0:
        left = chance * total
        for city, weight in zip(open_, weights, strict=True):
            left -= float(weight)
            if left < 0:
                return int(city)
        return int(open_[-1])
    return int(np.where(visited, -math.inf, attraction).argmax())


def improve_tours(distances: _Array, near: _Array, kicks: int, key: int, tours: _Array) -> None:
    """Shorten tours by 2-opt moves until none helps, with kicks as the native code has them.

    A stand-in: simpler moves, slower, and longer tours than the native ones.
    """
    n = len(distances)
    for tour, s in zip(tours, streams(key, np.arange(len(tours))), strict=True):
        best = _two_opt(distances, tour.copy())
        for kick in range(kicks if n >= 8 else 0):
            longest = min(50, (n - 2) // 2)
            draws = [int(below(s[None], 3 * kick + i, r)[0]) for i, r in enumerate((n, longest))]
            first = 1 + draws[1]
            second = first + 1 + int(below(s[None], 3 * kick + 2, longest)[0])
            turned = np.roll(best, -draws[0] - 1)
            moved = np.concatenate([turned[first:second], turned[:first], turned[second:]])
            moved = _two_opt(distances, moved)
            if _length(distances, moved) <= _length(distances, best):
                best = moved
        tour[:] = best


def _length(distances: _Array, tour: _Array) -> float:
    return float(distances[tour, np.roll(tour, -1)].sum())


def _two_opt(distances: _Array, tour: _Array) -> _Array:
    """Apply the best 2-opt move until there is none."""
    n = len(tour)
    while n >= 4:
        after = np.roll(tour, -1)
        edge = distances[tour, after]
        gain = edge[:, None] + edge[None, :]
        gain = gain - distances[tour[:, None], tour] - distances[after[:, None], after]
        np.fill_diagonal(gain, 0)
        i, j = divmod(int(gain.argmax()), n)
        if gain[i, j] <= 1e-9:
            break
        i, j = min(i, j), max(i, j)
        tour[i + 1 : j + 1] = tour[i + 1 : j + 1][::-1].copy()
    return tour
