"""Operators on permutations: crossovers that inherit order, and moves.

Each takes permutations as integer arrays of shape (n,) and a generator, and returns a new one. In
a tour, what matters is who follows whom: edge recombination inherits that best, and inversion,
which is the 2-opt move, changes it least. In a schedule, positions matter, which PMX keeps.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "ORDER_CROSSOVERS",
    "ORDER_MUTATIONS",
    "edge_recombination",
    "insertion",
    "inversion",
    "order_crossover",
    "partially_mapped_crossover",
    "swap",
]

Order: TypeAlias = NDArray[Any]


def _cut(n: int, rng: np.random.Generator) -> tuple[int, int]:
    """Return two different places, the smaller first."""
    a, b = int(rng.integers(n)), int(rng.integers(n - 1))
    b += b >= a
    return min(a, b), max(a, b)


def order_crossover(first: Order, second: Order, rng: np.random.Generator) -> Order:
    """Keep a section of the first; fill the rest, behind it, in the order of the second.

    L. Davis, "Applying adaptive algorithms to epistatic domains", IJCAI 1985: OX.
    """
    n = len(first)
    a, b = _cut(n, rng)
    child = np.empty_like(first)
    child[a : b + 1] = first[a : b + 1]
    kept = np.zeros(n, bool)
    kept[first[a : b + 1]] = True
    rest = np.roll(second, -(b + 1))
    child[(b + 1 + np.arange(n - (b + 1 - a))) % n] = rest[~kept[rest]]
    return child


def partially_mapped_crossover(first: Order, second: Order, rng: np.random.Generator) -> Order:
    """Keep a section of the first, and elsewhere the places of the second where possible.

    D. E. Goldberg and R. Lingle, "Alleles, loci, and the traveling salesman problem", 1985: PMX.
    """
    a, b = _cut(len(first), rng)
    child = second.copy()
    place = np.empty_like(second)
    place[second] = np.arange(len(second))
    for at in range(a, b + 1):  # exchange, so that the section becomes that of the first
        wanted, there = first[at], place[first[at]]
        child[there], place[child[at]] = child[at], there
        child[at], place[wanted] = wanted, at
    return child


def edge_recombination(first: Order, second: Order, rng: np.random.Generator) -> Order:
    """Make a tour of edges of both where possible, from the loneliest neighbour on.

    D. Whitley, T. Starkweather and D. Fuquay, "Scheduling problems and traveling salesmen: the
    genetic edge recombination operator", ICGA 1989.
    """
    n = len(first)
    near: list[set[int]] = [set() for _ in range(n)]
    for tour in (first.tolist(), second.tolist()):
        for at, city in enumerate(tour):
            near[city] |= {tour[at - 1], tour[(at + 1) % n]}
    left = set(range(n))
    child = [int(first[0])]
    while True:
        here = child[-1]
        left.discard(here)
        for other in near[here]:
            near[other].discard(here)
        if not left:
            return np.array(child, first.dtype)
        choices = sorted(near[here]) or sorted(left)
        fewest = min(len(near[c]) for c in choices)
        lonely = [c for c in choices if len(near[c]) == fewest]
        child.append(lonely[int(rng.integers(len(lonely)))])


def swap(order: Order, rng: np.random.Generator) -> Order:
    """Exchange two places."""
    a, b = _cut(len(order), rng)
    moved = order.copy()
    moved[[a, b]] = order[[b, a]]
    return moved


def inversion(order: Order, rng: np.random.Generator) -> Order:
    """Turn a section around: the 2-opt move of a tour."""
    a, b = _cut(len(order), rng)
    moved = order.copy()
    moved[a : b + 1] = order[a : b + 1][::-1]
    return moved


def insertion(order: Order, rng: np.random.Generator) -> Order:
    """Move one place to another, shifting those between."""
    a, b = _cut(len(order), rng)
    if rng.random() < 0.5:
        a, b = b, a
    return np.insert(np.delete(order, a), b, order[a])


Crossover: TypeAlias = Callable[[Order, Order, np.random.Generator], Order]
Move: TypeAlias = Callable[[Order, np.random.Generator], Order]

ORDER_CROSSOVERS: dict[str, Crossover] = {
    "ox": order_crossover,
    "pmx": partially_mapped_crossover,
    "edge": edge_recombination,
}
ORDER_MUTATIONS: dict[str, Move] = {"swap": swap, "inversion": inversion, "insertion": insertion}
