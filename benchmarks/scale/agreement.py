"""Whether the model behind ``algorithm="auto"`` picks what wins in the simulation."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import scale

from paropt_hpc.comm.tuning import CostModel, Shape

OURS = ("ring", "recursive-doubling", "hierarchical")


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


def predicted(link: str, ranks: int, per_host: int, nbytes: int) -> str:
    """Return the choice of the model, told of the links and hosts of the simulated cluster."""
    model = CostModel(
        link_latency=4 * scale.LATENCY + 2 * scale.OVERHEAD,
        link_bandwidth=scale.RATES[link],
        node_latency=scale.HOST_LATENCY + 2 * scale.OVERHEAD,
        node_bandwidth=scale.HOST_RATE,
        memory_bandwidth=scale.HOST_RATE,
    )
    shape = Shape(ranks, ranks // per_host, per_host, 1, shares_memory=per_host > 1)
    names = {scheme: scheme.replace("-", "_") for scheme in wanted(per_host)}
    return min(names, key=lambda scheme: model.seconds(names[scheme], nbytes, shape))


def groups(times: Iterable[tuple], per_host: Iterable[int] = scale.PER_HOST) -> list[tuple]:
    """List the cases, without the scheme, that any dense all-reduce was simulated for."""
    found = {case[:4] for case in times if case[4] in scale.DENSE and case[2] in per_host}
    return sorted(found, key=lambda case: (case[2], case[3], case[0], case[1]))


def wanted(per_host: int) -> tuple[str, ...]:
    """Return those of our dense algorithms that there are for so many ranks on a host."""
    return OURS if per_host > 1 else OURS[:2]
