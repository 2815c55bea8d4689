"""Which way of running fits a model, its data and a network: predicted from a few numbers.

Three questions decide: does a replica of the model fit one device, what share of a step would be
communication, and how much data is there. All times are of one global batch of B samples on P
ranks, so that the ways can be compared; a message of n bytes takes ``a + n / b``
(latency, bandwidth).

==================  ==========================================================================
compute             ``t0 + t1 B / P``: a fixed part of a step, and one per sample; where ranks
                    meet they also tell each other their losses: a tiny all-reduce
all-reduce          ``comm.tuning``'s model of the algorithm that a run would choose for n bytes
accumulate N        ``t0 + t1 B / P + allreduce / N``: one exchange for N batches
Top-k               as measured on the ranks started; elsewhere: select, decode,
                    ``2 ceil(log2 P) a + (P - 1) m / b`` for messages of m bytes, whose lengths
                    go before them
gossip              ``2 a + 2 n / b`` on a ring, half of it with one peer
bounded server      the server's link, in each direction: ``(P - 1) (a + n / b)`` for P - 1
                    gradients, but no less than a worker's computing and ``2 (a + n / b)``: it
                    sends a gradient, then waits for parameters
pipeline            ``(M + S - 1) / M`` times the computing on S stages with M microbatches
==================  ==========================================================================
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from paropt_hpc.comm.tuning import CostModel, Shape

__all__ = [
    "Advice",
    "Machine",
    "Way",
    "Workload",
    "advise",
    "ways",
    "written_size",
    "written_time",
]

HIGH = 0.30  # share of communication above which it is worth changing something
WORTH_TUNING = 1.1
DENSITY = 0.01
ACCUMULATE = 4
PERIOD = 8  # steps of local SGD between two averages
_WORD = 16  # bytes that a rank tells the others in every step: its loss, and whether to stop
# Bytes of a message per entry that is sent: four of the value, an entropy-coded index.
_ENTRY_BYTES = 4 + 8.1 / 8


@dataclass(frozen=True)
class Workload:
    """A model and its data, as measured on one rank; seconds and bytes."""

    parameters: int
    itemsize: int
    states: int  # vectors that the optimizer keeps
    batch: int  # samples of a step over all ranks
    samples: int  # of an epoch
    step_seconds: float  # fixed part of forward, backward and update
    sample_seconds: float  # and per sample
    sample_bytes: float  # activations per sample
    select_seconds: float  # Top-k of one gradient, with encoding

    @property
    def gradient_bytes(self) -> int:
        """Bytes of a dense gradient."""
        return self.parameters * self.itemsize

    def memory(self, ranks: int, *, stages: int = 1, extra: int = 0, pieces: int = 1) -> float:
        """Return the bytes that a rank needs: parameters, gradient, states, activations."""
        vectors = 2 + self.states + extra
        activations = self.sample_bytes * self.batch / ranks / pieces
        return vectors * self.gradient_bytes / stages + activations


@dataclass(frozen=True)
class Machine:
    """Ranks, and what lies between them."""

    shape: Shape
    costs: CostModel
    memory: float = math.inf  # bytes of one device
    tuned: bool = False  # `paropt tune-comm` has measured which all-reduce is the best here
    sparse_seconds: float | None = None  # of a Top-k exchange, with selection; None: not measured

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return self.shape.ranks

    def message(self, nbytes: float) -> float:
        """Predict the seconds of one message of a rank that shares its link with its node."""
        if self.shape.nodes == 1:
            return self.costs.node_latency + nbytes / self.costs.node_bandwidth
        sharing = self.shape.node_size
        return self.costs.link_latency + nbytes * sharing / self.costs.link_bandwidth

    def allreduce(self, nbytes: int) -> float:
        """Predict the dense all-reduce that a run here would use."""
        if self.ranks == 1:
            return 0.0
        chooser = self.costs if self.tuned else CostModel()
        return self.costs.seconds(chooser.choose(nbytes, self.shape), nbytes, self.shape)

    def best_allreduce(self, nbytes: int) -> tuple[str, float]:
        """Name the fastest one, and predict it; for more than one rank."""
        name = self.costs.choose(nbytes, self.shape)
        return name, self.costs.seconds(name, nbytes, self.shape)


class Way(NamedTuple):
    """One way of running, and what it is predicted to cost."""

    name: str
    seconds: float  # of one global batch
    communication: float  # share of it
    memory: float  # bytes of a rank
    converges: bool  # like the serial run, step for step
    settings: str  # what to write into the configuration
    remark: str


class Advice(NamedTuple):
    """The answers, the way to go, and all ways by their predicted time."""

    answers: list[str]
    chosen: Way
    why: str
    ways: list[Way]


def advise(work: Workload, machine: Machine) -> Advice:
    """Answer the three questions and recommend a way; pure."""
    found = ways(work, machine)
    dense = next(way for way in found if way.name == "all-reduce")
    fitting = [way for way in found if way.memory <= machine.memory]
    answers = [_fits(work, machine, dense), _share(dense), _data(work, machine)]
    answers += _tuning(work, machine)
    ordered = sorted(found, key=lambda way: way.seconds)
    if not fitting:
        smallest = min(found, key=lambda way: way.memory)
        return Advice(answers, smallest, "nothing fits; this comes nearest", ordered)
    if dense in fitting and dense.communication <= HIGH:
        why = (
            f"communication is {dense.communication:.0%} of a step: nothing to gain that would pay"
        )
        return Advice(answers, dense, why, ordered)
    exact = [way for way in fitting if way.converges]
    chosen = min(exact or fitting, key=lambda way: way.seconds)
    if dense in fitting:
        why = f"{dense.seconds / chosen.seconds:.1f} times as fast as the dense all-reduce"
    else:
        why = "a whole replica does not fit one device"
    return Advice(answers, chosen, why, ordered)


def ways(work: Workload, machine: Machine) -> list[Way]:
    """Predict every way of running; pure."""
    compute = work.step_seconds + work.sample_seconds * work.batch / machine.ranks
    plain = _Plain(compute, machine.allreduce(_WORD * machine.ranks), work.memory(machine.ranks))
    pipelines = _pipelines(work, machine, compute)
    if machine.ranks == 1:
        return [plain.way("all-reduce", 0.0, "", "as it is: there is one rank"), *pipelines]
    return [
        *_dense(work, machine, plain),
        _sparse(work, machine, plain),
        *_drifting(work, machine, plain),
        _server(work, machine, plain.memory),
        *pipelines,
    ]


class _Plain(NamedTuple):
    """What a replica costs without the exchange of gradients or parameters."""

    seconds: float
    told: float  # seconds for the losses
    memory: float

    def meeting(self, period: int) -> "_Plain":
        """Return the same for ranks that tell their losses in one of so many steps."""
        return self._replace(told=self.told / period)

    def way(
        self, name: str, talk: float, settings: str, remark: str, *, converges: bool = True
    ) -> Way:
        """Return the way that adds so many seconds of communication."""
        talk += self.told
        seconds = self.seconds + talk
        return Way(name, seconds, talk / seconds, self.memory, converges, settings, remark)


def _dense(work: Workload, machine: Machine, plain: _Plain) -> list[Way]:
    exchange, grown = machine.allreduce(work.gradient_bytes), ACCUMULATE * work.batch
    return [
        plain.way(
            "all-reduce", exchange, 'strategy.name = "allreduce"', "as one process, step for step"
        ),
        plain.meeting(ACCUMULATE).way(
            f"accumulate {ACCUMULATE}",
            exchange / ACCUMULATE,
            f"train.accumulate = {ACCUMULATE}",
            f"as a batch of {grown}: scale train.lr, and check the epochs needed",
            converges=20 * grown <= work.samples,
        ),
    ]


def _sparse(work: Workload, machine: Machine, plain: _Plain) -> Way:
    """Everybody gets the messages of all others, by recursive doubling."""
    p, entries = machine.ranks, max(1, round(DENSITY * work.parameters))
    if machine.sparse_seconds is None:
        latency = machine.message(0)
        each = machine.message(entries * _ENTRY_BYTES) - latency
        talk = 2 * math.ceil(math.log2(p)) * latency + (p - 1) * each
    else:
        talk = max(0.0, machine.sparse_seconds - work.select_seconds)
    busy = _Plain(plain.seconds + work.select_seconds, plain.told, work.memory(p, extra=1))
    return busy.way(
        f"Top-k {DENSITY:.0%}",
        talk,
        f'compress.method = "topk"\ncompress.density = {DENSITY}',
        "with error feedback; wants warm-up epochs at small densities",
    )


def _drifting(work: Workload, machine: Machine, plain: _Plain) -> Iterator[Way]:
    """Ranks have parameters of their own, which agree in the mean."""
    n, plain = work.gradient_bytes, plain.meeting(PERIOD)
    yield plain.way(
        f"local SGD, {PERIOD} steps",
        machine.allreduce(n) / PERIOD,
        f'strategy.name = "localsgd"\nstrategy.period = {PERIOD}',
        "ranks drift apart between averages",
        converges=False,
    )
    peers = min(2, machine.ranks - 1)
    kinds = (("one peer", "one-peer-exponential", 1), ("ring", "ring", peers))
    for name, topology, messages in kinds:
        yield plain.way(
            f"gossip, {name}",
            messages * machine.message(n),
            f'strategy.name = "gossip"\nstrategy.topology = "{topology}"',
            "parameters agree only in the mean",
            converges=False,
        )


def _server(work: Workload, machine: Machine, memory: float) -> Way:
    """One rank serves: the others' gradients share its link, its answers the other direction."""
    workers, message = machine.ranks - 1, machine.message(work.gradient_bytes)
    compute = work.step_seconds + work.sample_seconds * work.batch / workers
    seconds = max(compute + 2 * message, workers * message)
    return Way(
        "bounded server",
        seconds,
        max(0.0, 1 - compute / seconds),
        memory,
        False,
        'strategy.name = "parameter-server"',
        "for ranks of unequal speed: none waits for another",
    )


def _pipelines(work: Workload, machine: Machine, compute: float) -> list[Way]:
    """As few stages as make a replica fit, with four microbatches for each of them."""
    found = []
    for stages in (2**power for power in range(1, 11)):
        if stages > max(machine.ranks, 2):
            break
        pieces = 4 * stages
        bubble = (stages - 1) / (pieces + stages - 1)
        replicas = max(1, machine.ranks // stages)
        memory = work.memory(replicas, stages=stages, pieces=pieces)
        name = f"pipeline, {stages} stages x {pieces} microbatches"
        remark = f"bubble {bubble:.0%}"
        seconds = compute * (pieces + stages - 1) / pieces
        found.append(Way(name, seconds, 0.0, memory, True, "", remark))
        if memory <= machine.memory:
            break
    return found if work.memory(machine.ranks) > machine.memory else []


def _fits(work: Workload, machine: Machine, dense: Way) -> str:
    needed = f"a replica needs {written_size(dense.memory)} of memory"
    if math.isinf(machine.memory):
        return f"{needed} on each rank"
    verdict = "fits" if dense.memory <= machine.memory else "does not fit"
    return f"{needed}, which {verdict} the {written_size(machine.memory)} of a device"


def _share(dense: Way) -> str:
    seconds, share = written_time(dense.seconds), f"{dense.communication:.0%}"
    return f"a dense step takes {seconds}, {share} of it communication"


def _data(work: Workload, machine: Machine) -> str:
    steps = work.samples // work.batch
    local = work.batch / machine.ranks
    said = (
        f"{work.samples:,} samples are {steps:,} steps an epoch, {local:g} samples a rank and step"
    )
    if steps < 20:
        return f"{said}: few steps, so a larger batch would cost epochs"
    if local < 8:
        return f"{said}: so few a rank that more ranks gain little"
    return said


def _tuning(work: Workload, machine: Machine) -> list[str]:
    """Say what measuring the all-reduces would bring, where it would."""
    if machine.ranks == 1 or machine.tuned:
        return []
    name, best = machine.best_allreduce(work.gradient_bytes)
    gain = machine.allreduce(work.gradient_bytes) / best
    if gain < WORTH_TUNING:
        return []
    return [f"paropt tune-comm would choose a {gain:.1f} times as fast all-reduce here: {name}"]


def written_size(nbytes: float) -> str:
    """Write a number of bytes with three digits and a decimal unit."""
    for unit in ("B", "kB", "MB", "GB"):
        if nbytes < 1000:
            return f"{nbytes:.3g} {unit}"
        nbytes /= 1000
    return f"{nbytes:.3g} TB"


def written_time(seconds: float) -> str:
    """Write a time with three digits."""
    for unit, factor in (("s", 1), ("ms", 1e3)):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"
