"""Whether the models behind ``"auto"`` pick what wins in the simulation."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
import scale

from paropt_hpc.comm import sparse_ranges
from paropt_hpc.comm.tuning import CostModel, Shape

OURS = ("ring", "recursive-doubling", "hierarchical")
EXACT = ("sparse-allgather", "sparse-split")


class Compared(NamedTuple):
    """One case in which all of our algorithms were simulated."""

    link: str
    ranks: int
    per_host: int
    n: int
    chosen: str  # by the model
    best: str
    ratio: float  # the time of the chosen one over that of the best


def compare(times: dict[tuple, dict]) -> Iterator[Compared]:
    """Compare choices with simulated times; `times` are rows by their case."""
    for link, ranks, per_host, n in groups(times):
        found = {s: times.get((link, ranks, per_host, n, s)) for s in wanted(per_host)}
        if not all(found.values()):
            continue
        seconds = {scheme: row["seconds"] for scheme, row in found.items()}
        chosen = predicted(link, ranks, per_host, 4 * n)
        best = min(seconds, key=seconds.__getitem__)
        ratio = seconds[chosen] / seconds[best]
        yield Compared(link, ranks, per_host, n, chosen, best, ratio)


def compare_sparse(times: dict[tuple, dict]) -> Iterator[Compared]:
    """Compare the choices of the exact sparse schemes, or of a dense all-reduce in their place."""
    for link, ranks, per_host, n in groups(times, (1,)):
        found = {s: times.get((link, ranks, per_host, n, s)) for s in (*EXACT, *wanted(1))}
        if not all(found.values()):
            continue
        seconds = {scheme: found[scheme]["seconds"] for scheme in EXACT}
        seconds["dense"] = min(found[scheme]["seconds"] for scheme in wanted(1))
        chosen = predicted_sparse(link, ranks, n)
        chosen = chosen if chosen == "dense" else f"sparse-{chosen}"
        best = min(seconds, key=seconds.__getitem__)
        ratio = seconds[chosen] / seconds[best]
        yield Compared(link, ranks, per_host, n, chosen, best, ratio)


def predicted_sparse(link: str, ranks: int, n: int) -> str:
    """Return the choice of the sparse model for ranks that pick their indices at random."""
    model, shape = cluster(link), Shape(ranks, ranks, 1, 1, shares_memory=False)
    counts = np.full(ranks, int(scale.DENSITY * n))
    nbytes = 40 + (counts * scale.ENTRY_BYTES).astype(np.int64)
    load = sparse_ranges.Load(counts, nbytes, sparse_ranges.expected_union(n, counts))
    dense = min(model.seconds(name, 4 * n, shape) for name in shape.algorithms())
    free = sparse_ranges.Work(0, 0)  # as in the simulation
    return sparse_ranges.choose_scheme(load, model.link(shape), dense, free)


def predicted(link: str, ranks: int, per_host: int, nbytes: int) -> str:
    """Return the choice of the model for a dense all-reduce."""
    model = cluster(link)
    shape = Shape(ranks, ranks // per_host, per_host, 1, shares_memory=per_host > 1)
    names = {scheme: scheme.replace("-", "_") for scheme in wanted(per_host)}
    return min(names, key=lambda scheme: model.seconds(names[scheme], nbytes, shape))


def cluster(link: str) -> CostModel:
    """Return the model, told of the links and hosts of the simulated cluster."""
    return CostModel(
        link_latency=4 * scale.LATENCY + 2 * scale.OVERHEAD,
        link_bandwidth=scale.RATES[link],
        node_latency=scale.HOST_LATENCY + 2 * scale.OVERHEAD,
        node_bandwidth=scale.HOST_RATE,
        memory_bandwidth=scale.HOST_RATE,
    )


def groups(times: Iterable[tuple], per_host: Iterable[int] = scale.PER_HOST) -> list[tuple]:
    """List the cases, without the scheme, that any dense all-reduce was simulated for."""
    found = {case[:4] for case in times if case[4] in scale.DENSE and case[2] in per_host}
    return sorted(found, key=lambda case: (case[2], case[3], case[0], case[1]))


def wanted(per_host: int) -> tuple[str, ...]:
    """Return those of our dense algorithms that there are for so many ranks on a host."""
    return OURS if per_host > 1 else OURS[:2]
