"""The parameter server: workers push gradients and pull parameters, each at its own pace.

The last ranks serve, each a slice of the parameters. The first of them leads: it puts the
arrivals of all workers into one order (see `sequencer`) and sends the others that order as a log
of actions. All carry out the same actions, so that a version means the same everywhere, and a
worker that pulls gets all slices of one version.

Servers work on the host, where the messages are, also if parameters are on GPUs: those of a worker
come down as gradients, or as messages with a compressor, and go up as parameters.
"""

import copy
import itertools
import math
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.comm import Communicator
from paropt_hpc.comm.mailbox import Mailbox, wait_until
from paropt_hpc.compress import Compressor
from paropt_hpc.errors import CollectiveTimeout, ConfigError
from paropt_hpc.runs.checkpoint import flatten, unflatten
from paropt_hpc.train.arrays import (
    Array,
    lift,
    like,
    namespace,
    placed,
    room_for,
    to_host,
)
from paropt_hpc.train.asynchronous import Asynchronous, Outcome
from paropt_hpc.train.optimizers import Optimizer
from paropt_hpc.train.sequencer import Action, Kind, Sequencer
from paropt_hpc.train.strategies import combine

__all__ = ["ParameterServer", "count_workers", "default_bound"]

_ARRIVAL, _GRADIENT, _LOG, _REPLY, _PARAMETERS = range(7401, 7406)  # tags


def count_workers(size: int, servers: int) -> int:
    """Return how many of `size` ranks work when `servers` of them serve.

    A single rank is its own server.

    Raises
    ------
    ConfigError
        When nobody is left to work.
    """
    if size == 1 and servers == 1:
        return 1
    if not 1 <= servers < size:
        raise ConfigError(
            f"a parameter server needs a worker: of {size} ranks at most {size - 1} can serve, "
            f"got {servers} servers; start at least {servers + 1} ranks, or lower "
            "strategy.servers"
        )
    return size - servers


def default_bound(updates: int, workers: int, group: int = 1) -> int:
    """Return 5 % of the updates of an epoch, but no less than workers of equal speed have."""
    return max(1, math.ceil(0.05 * updates), _usual_staleness(workers, group))


def _usual_staleness(workers: int, group: int) -> int:
    """Return the largest staleness among workers of equal speed."""
    return math.ceil((workers - 1) / group)


class ParameterServer(Asynchronous):
    """Asynchronous SGD with bounded staleness [1]_, [2]_, [3]_.

    A worker sends its gradient and gets the newest parameters back; it waits for no other
    worker, unless the policy makes it.

    Parameters
    ----------
    comm : Communicator
        Workers first, servers last. A single rank is both: plain SGD.
    optimizer : Optimizer
        Applied by each server to its slice, so with several it must treat every entry by
        itself, as SGD, Adam and AdamW do.
    bound : int
        The largest staleness, in updates, at which a gradient is applied; at least 1.
    compressor : Compressor, optional
        Each worker sends its gradient as sparse messages, one for every server, and keeps a
        residual. That of a gradient which the server drops is as it was before.
    servers : int
        How many of the ranks serve.
    policy : {"drop", "wait", "sync"}
        See `paropt_hpc.train.sequencer.Sequencer`.
    group : int
        Gradients whose mean over samples is one update.
    look_ahead : bool
        Answer a pull with where momentum will have taken the parameters when the gradient is
        applied [4]_, if all workers are equally fast: ``ceil((workers - 1) / group)`` updates
        ahead. At the end of a phase all get the parameters as they are.

    Attributes
    ----------
    sequencer : Sequencer
        Version and counters: on the leading server at any time, on all ranks between phases.

    References
    ----------
    .. [1] J. Dean et al., "Large scale distributed deep networks", NeurIPS 2012, section 4.1.
    .. [2] Q. Ho et al., "More effective distributed ML via a stale synchronous parallel
       parameter server", NeurIPS 2013.
    .. [3] W. Zhang et al., "Staleness-aware async-SGD for distributed deep learning",
       IJCAI 2016 (updates in groups).
    .. [4] I. Hakimi, S. Barkai, M. Gabel, A. Schuster, "Taming momentum in a distributed
       asynchronous environment", 2019.
    """

    shared = ("params", "strategy/sequencer")

    def __init__(
        self,
        comm: Communicator,
        optimizer: Optimizer,
        bound: int,
        compressor: Compressor | None = None,
        *,
        servers: int = 1,
        policy: str = "drop",
        group: int = 1,
        look_ahead: bool = True,
    ) -> None:
        super().__init__(comm, optimizer)
        self.workers = count_workers(comm.size, servers)
        self.servers = range(self.workers, comm.size) if comm.size > 1 else range(1)
        self.sequencer = Sequencer(self.workers, bound, policy, group)
        self._ahead = _usual_staleness(self.workers, group) if look_ahead else 0
        self.compressor = compressor
        # What was sent must be taken back where a gradient may be dropped.
        self._restores = policy == "drop" or self.workers > (bound + 1) * group
        self._reply = np.zeros(4, np.int64)  # kind, task, version, whether it was dropped
        self._losses = np.zeros(self.workers)
        self._dropped: set[int] = set()

    def start(self, params: Array) -> None:
        """Broadcast the parameters of rank 0 to all ranks, in place; collective."""
        super().start(params)
        ends = [params.size * i // len(self.servers) for i in range(len(self.servers) + 1)]
        self._slices = [slice(*pair) for pair in itertools.pairwise(ends)]
        self._mail = Mailbox(self.comm) if self.comm.size > 1 else None
        self._pulled = room_for(params)
        self._pushed: list[NDArray[Any] | None] = [None] * len(self._slices)
        self._compressors: list[Compressor] = []
        if self.works and self.compressor is not None:
            self._compressors = [copy.deepcopy(self.compressor) for _ in self._slices]
            for part, compressor in zip(self._slices, self._compressors, strict=True):
                compressor.start(part.stop - part.start, params.dtype, namespace(params))
        elif self.works:
            self._pushed = [room_for(params[part]) for part in self._slices]
        if self.comm.rank in self.servers:
            part = self._slices[self.comm.rank - self.servers.start]
            values, group = to_host(params, self._pulled), self.sequencer.group
            self._slice = _Slice(values[part], self.optimizer, self.compressor, group)
        self._open()

    @property
    def compressors(self) -> list[Compressor]:
        """One for every server's slice, on a rank that works."""
        return self._compressors

    def _open(self) -> None:
        self._total = np.zeros(2)  # sum of losses and number of samples of a phase
        self._signal, self._faulty = 0, -1

    def step(self, params: Array, gradient: Array, samples: tuple[int, int] | None = None) -> None:
        """Push a gradient and pull the newest parameters into `params`; by workers only.

        The gradient is left alone.
        """
        if not self.works:
            raise ConfigError(
                f"rank {self.comm.rank} is a server and takes no steps; let only ranks below "
                f"{self.workers} call step, and every rank finish"
            )
        before = []
        if self._restores:
            before = copy.deepcopy([compressor.state_dict() for compressor in self._compressors])
        self._arrive(params, gradient, samples[0] if samples else 1)
        if self._reply[3]:
            for compressor, state in zip(self._compressors, before, strict=True):
                compressor.load_state_dict(state)

    def end_epoch(self, params: Array) -> None:
        """Let the servers serve until no worker will push again; apply an incomplete group."""
        if not self.works:
            self._serve(params, None, flush=True)
        else:
            self._arrive(params, more=False)
        self._close(params)

    def phase(self, params: Array, tasks: range, last: bool) -> Iterator[int]:
        """Yield the tasks that the leading server deals to this worker; none to a server."""
        if not self.works:
            self._serve(params, tasks, flush=last)
        else:
            if self._mail is None:
                self.sequencer.open(tasks, flush=last)
            self._arrive(params)
            while self._reply[0] != Kind.END:
                yield int(self._reply[1])
        self._close(params)

    def _arrive(
        self, params: Array, gradient: Array | None = None, samples: int = -1, more: bool = True
    ) -> None:
        """Push, if there is a gradient, and wait for the answer with the parameters."""
        version = int(self._reply[2]) if gradient is not None else -1
        header = np.array([version, samples, more, self._told, self.signal()], np.float64)
        above = self._payload(gradient) if gradient is not None else []
        begun = time.perf_counter()
        payload = [to_host(data, room) for data, room in zip(above, self._pushed, strict=False)]
        if self._mail is None:
            values = to_host(params, self._pulled)
            self._alone(header, payload)
            lift(values, params)
            return
        lead, values = self.servers.start, params if self._pulled is None else self._pulled
        awaited = [self._mail.expect(lead, _REPLY, self._reply)]
        for server, part in zip(self.servers, self._slices, strict=True):
            awaited.append(self._mail.expect(server, _PARAMETERS, values[part]))
        self._mail.send(lead, _ARRIVAL, header)
        for server, data in zip(self.servers, payload, strict=False):
            self._mail.send(server, _GRADIENT, data)
        sent = time.perf_counter()
        self._mail.wait(awaited, f"the servers, from rank {lead} on, did not answer")
        self._mail.flush()
        lift(values, params)
        end = time.perf_counter()
        volume = header.nbytes + sum(data.nbytes for data in payload)
        self.comm.traffic.record(
            "push_pull", volume, params.nbytes, end - begun, end - sent, begun=begun
        )

    def _payload(self, gradient: Array) -> list[Array]:
        """Return what each server gets of a gradient."""
        parts = [gradient[part] for part in self._slices]
        if not self._compressors:
            return parts
        pairs = zip(self._compressors, parts, strict=True)
        return [compressor.compress(part) for compressor, part in pairs]

    def _alone(self, header: NDArray[Any], payload: list[NDArray[Any]]) -> None:
        """Be worker and server at once."""
        for kind, _, number in self._sequence(0, header):
            if kind == Kind.ACCEPT:
                self._slice.accept(payload[0], number)
            elif kind == Kind.UPDATE:
                self._slice.update()
            elif kind in (Kind.REPLY, Kind.END):
                self._reply[:] = kind, number, self.sequencer.version, False

    def _sequence(self, worker: int, header: NDArray[Any]) -> list[Action]:
        """Note what a worker told, and return what all servers are to do."""
        version, samples, more = header[:3].astype(int).tolist()
        loss = float(header[3])
        self._signal = max(self._signal, int(header[4]), self.signal())
        if self._signal:
            self.sequencer.stop(self.workers)
        if worker >= self.workers:
            return []  # another server, that passes on a signal
        if version >= 0 and not math.isfinite(loss):
            self._faulty = worker
            self.sequencer.abandon()
        self._losses[worker] = loss
        actions = self.sequencer.arrive(worker, version, samples, more=bool(more))
        for kind, other, number in actions:
            if kind == Kind.ACCEPT:
                self._total += number * self._losses[other], number
        return actions

    def _serve(self, params: Array, tasks: range | None, flush: bool) -> None:
        """Answer workers until the phase is over."""
        assert self._mail is not None
        to_host(params, self._pulled)  # where the slice is, if they are on a GPU
        begun = time.perf_counter()
        self._sent = self._received = 0
        self._waited = 0.0
        if self.comm.rank == self.servers.start:
            self.sequencer.open(tasks, flush)
            self._lead(self._mail)
        else:
            self._follow(self._mail)
        self._mail.flush()
        seconds = time.perf_counter() - begun
        self.comm.traffic.record(
            "serve", self._sent, self._received, seconds, self._waited, begun=begun
        )

    def _lead(self, mail: Mailbox) -> None:
        header = np.zeros(5)
        self._since = dict.fromkeys(range(self.workers), time.monotonic())
        while not self.sequencer.closed:
            worker = self._next_arrival(mail)
            mail.receive(worker, _ARRIVAL, header)
            self._since.pop(worker, None)
            actions = self._sequence(worker, header)
            if not actions:
                continue
            log = np.array(actions, np.int64).reshape(-1, 3)
            for server in self.servers[1:]:
                mail.send(server, _LOG, log)
            self._carry_out(mail, log)

    def _next_arrival(self, mail: Mailbox) -> int:
        """Wait for the next worker, with a deadline for each one that owes something."""
        begun = time.perf_counter()
        found: list[int] = []

        def arrived() -> bool:
            sender = mail.sender(_ARRIVAL)
            found.extend([] if sender is None else [sender])
            return bool(found)

        late = min(self._since, key=lambda worker: self._since[worker], default=-1)
        waited = time.monotonic() - self._since[late] if late >= 0 else 0.0
        limit = mail.timeout and max(mail.timeout - waited, 1e-3)
        try:
            wait_until(arrived, limit, "")
        except CollectiveTimeout:
            raise CollectiveTimeout(
                f"rank {late} (worker) did not push within {mail.timeout:g} s; it has died, or "
                "raise PAROPT_TIMEOUT if one step takes longer"
            ) from None
        self._waited += time.perf_counter() - begun
        return found[0]

    def _follow(self, mail: Mailbox) -> None:
        ended = False
        while not ended:
            begun = time.perf_counter()
            log = mail.receive_bytes(self.servers.start, _LOG).copy()
            self._waited += time.perf_counter() - begun
            actions = log.view(np.int64).reshape(-1, 3)
            self._carry_out(mail, actions)
            ended = bool((actions[:, 0] == Kind.END).any())
            if self.signal() > self._signal and not ended:
                self._signal = self.signal()
                note = np.array([-1, -1, 0, 0, self._signal], np.float64)
                mail.send(self.servers.start, _ARRIVAL, note)

    def _carry_out(self, mail: Mailbox, actions: NDArray[np.int64]) -> None:
        for kind, worker, number in actions.tolist():
            if kind in (Kind.ACCEPT, Kind.DROP):
                payload = mail.receive_bytes(worker, _GRADIENT)
                self._received += payload.nbytes
                if kind == Kind.ACCEPT:
                    self._slice.accept(payload, number)
                else:
                    self._dropped.add(worker)
            elif kind == Kind.UPDATE:
                mail.flush()  # what is being sent must not change
                self._slice.update()
            else:
                self._answer(mail, kind, worker, number)

    def _answer(self, mail: Mailbox, kind: int, worker: int, task: int) -> None:
        if self.comm.rank == self.servers.start:
            was_dropped = worker in self._dropped
            reply = np.array([kind, task, self.sequencer.version, was_dropped], np.int64)
            mail.send(worker, _REPLY, reply)
            if kind == Kind.REPLY:
                self._since[worker] = time.monotonic()
        self._dropped.discard(worker)
        updates = self._ahead if kind == Kind.REPLY else 0
        mail.send(worker, _PARAMETERS, self._slice.ahead(updates))
        self._sent += self._slice.params.nbytes

    def _close(self, params: Array) -> None:
        """Bring all ranks to the end of a phase: same parameters, same counters; collective."""
        sequencer = self.sequencer
        counters = flatten(sequencer.state_dict())
        signal = self.comm.gather_scalars(self.signal()).max()  # also one that came at the end
        facts = [sequencer.reached, *self._total, max(self._signal, signal), self._faulty]
        shared = np.concatenate([np.atleast_1d(v) for v in (facts, *counters.values())])
        shared = shared.astype(np.float64)
        self.comm.broadcast(params)  # rank 0 has pulled the last version
        self.comm.broadcast(shared, root=self.servers.start)
        reached, loss, samples, signal, faulty = shared[:5].tolist()
        numbers = dict(zip(counters, shared[5 : 5 + len(counters) - 1], strict=False))
        histogram = shared[4 + len(counters) :].astype(np.int64)
        sequencer.load_state_dict(numbers | {"histogram": histogram})
        self._reply[2] = self.optimizer.steps = sequencer.version
        mean = loss / samples if samples else math.nan
        self.outcome = Outcome(int(reached), mean, int(signal), int(faulty))
        self._open()
        if self._mail is None:
            sequencer.open(None)

    def metrics(self, params: Array) -> dict[str, Any]:
        """Return version, counters, and how many gradients were applied at each staleness."""
        histogram = self.sequencer.histogram
        counts = {str(at): int(histogram[at]) for at in np.flatnonzero(histogram)}
        said = {
            name: int(value)
            for name, value in self.sequencer.state_dict().items()
            if name != "histogram"
        }
        return said | {"bound": self.sequencer.bound, "staleness": counts}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank, on the host, there no copy; local, between phases."""
        state: dict[str, Any] = {"sequencer": self.sequencer.state_dict()}
        if self.comm.rank in self.servers:
            state |= self._slice.state_dict()
        if self._compressors:
            states = [placed(compressor.state_dict(), to_host) for compressor in self._compressors]
            state["compressor"] = _joined(states)
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state of this rank, after `start`; local."""
        state = placed(state, to_host)
        self.sequencer.load_state_dict(state["sequencer"])
        self._reply[2] = self.optimizer.steps = self.sequencer.version
        if self.comm.rank in self.servers:
            self._slice.load_state_dict(state)
        for part, compressor in zip(self._slices, self._compressors, strict=False):
            near = partial(like, array=compressor.residual)
            compressor.load_state_dict(placed(_cut(state["compressor"], part), near))

    def reshard(self, states: list[dict[str, Any]], rank: int, size: int) -> dict[str, Any]:
        """Cut the servers' slices anew, and deal out the workers' residuals by sum."""
        old = [state.get("strategy", {}) for state in states]  # a worker may have nothing
        mine: dict[str, Any] = {"sequencer": old[0]["sequencer"]}
        if self.comm.rank in self.servers:
            part = self._slices[self.comm.rank - self.servers.start]
            served = [{k: s[k] for k in ("optimizer", "group") if k in s} for s in old]
            mine |= _cut(_joined([state for state in served if state]), part)
        residuals = [state["compressor"] for state in old if "compressor" in state]
        if residuals and self.works:
            zero = [combine(residuals[:1], lambda vectors: np.zeros_like(vectors[0]))]
            own = residuals[rank :: self.workers] or zero
            mine["compressor"] = combine(own, lambda vectors: np.sum(vectors, axis=0))
        return {"params": states[0]["params"], "strategy": mine}


class _Slice:
    """A server's part of the parameters, and the group of gradients that is filling up."""

    def __init__(
        self, params: Array, optimizer: Optimizer, compressor: Compressor | None, group: int
    ) -> None:
        self.params = params
        self._optimizer = optimizer
        self._compressor = compressor
        self._gradient = np.zeros_like(params)
        self._sum = np.zeros_like(params) if group > 1 else None
        self._samples = 0

    def accept(self, payload: NDArray[Any], samples: int) -> None:
        """Add a gradient, dense or as a message, to the group."""
        if self._compressor is None:
            self._gradient[:] = payload.view(self._gradient.dtype)
        else:
            self._gradient[:] = 0
            self._compressor.decompress_add(payload, self._gradient)
        if self._sum is not None:
            self._gradient *= samples
            self._sum += self._gradient
        self._samples += samples

    def update(self) -> None:
        """Apply the mean of the group."""
        if self._sum is not None:
            np.multiply(self._sum, 1 / self._samples, out=self._gradient)
            self._sum[:] = 0
        self._optimizer.update(self.params, self._gradient)
        self._samples = 0

    def ahead(self, updates: int) -> Array:
        """Return the parameters as they will be in so many updates, as far as that is known."""
        return self._optimizer.ahead(self.params, updates)

    def state_dict(self) -> dict[str, Any]:
        """Return optimizer and group, no copy."""
        state: dict[str, Any] = {"optimizer": self._optimizer.state_dict()}
        if self._sum is not None:
            state["group"] = {"samples": self._samples, "sum": self._sum}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state."""
        self._optimizer.load_state_dict(state["optimizer"])
        if self._sum is not None:
            self._sum[:] = state["group"]["sum"]
            self._samples = int(state["group"]["samples"])


def _joined(states: list[dict[str, Any]]) -> dict[str, Any]:
    """Put the vectors of slices behind one another; numbers are taken from the first."""
    return states[0] if len(states) == 1 else combine(states, np.concatenate)


def _cut(state: dict[str, Any], part: slice) -> dict[str, Any]:
    """Return a slice of all vectors, and the numbers as they are."""
    leaves = {k: v[part] if isinstance(v, np.ndarray) else v for k, v in flatten(state).items()}
    return unflatten((name, np.asarray(value)) for name, value in leaves.items())
