"""Asynchronous gossip: pairs of ranks average their parameters, and nobody waits for the other.

What rank i and its partner j do, the parameters being x:

=======================  ===================================================================
i, after its own update  sends a copy of x_i, and goes on computing
j, when it next looks    d = s (x_j - copy), x_j <- x_j - d, and sends d back
i, when it next looks    x_i <- x_i + d
=======================  ===================================================================

What one gains the other loses, whatever happened to both in between: the mean of all ranks
stays. A rank has one such question open at a time and answers all others whenever it looks, so
there is no cycle of ranks that wait for one another. What is sent is on the host, also where the
parameters are on a GPU.

The share s is 1/2, both then being at their mean, unless rank j has a question open itself, whose
answer is not in x_j yet: two ranks that ask each other at the same time would take each other's
place, again and again if they keep step, and so would the even and the odd ranks of a ring that
ask their right neighbours. If all ranks ask and then answer, x <- (I - s L) x with L the Laplacian
of the graph of questions. A rank asks one other, so in a ring the eigenvalues of L are below 6:
with s = 1/3 all directions but the mean shrink, which an eigenvalue of 4, as these two cases have,
does not let them do with s = 1/2.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.comm import Communicator, Topology
from paropt_hpc.comm.mailbox import Mailbox, Pulse, wait_until
from paropt_hpc.errors import ConfigError
from paropt_hpc.kernels import rng
from paropt_hpc.train.arrays import Array, like, lower, namespace, room_for
from paropt_hpc.train.asynchronous import Asynchronous, Outcome
from paropt_hpc.train.gossip import Mixing
from paropt_hpc.train.optimizers import Optimizer

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["AsyncGossip", "meet"]

_QUESTION, _ANSWER = 7411, 7412  # tags


def meet(params: Array, question: Array, asking: bool) -> None:
    """Move `params` towards `question`, in place; `question` becomes what the asker must add.

    To the mean of both, or a third of the way where this rank is `asking` as well.
    """
    namespace(params).subtract(params, question, out=question)
    question *= 1 / 3 if asking else 0.5
    params -= question


def _room(params: Array) -> NDArray[Any]:
    """Return a new vector of the host as long as the parameters."""
    room = room_for(params)
    return np.empty_like(params) if room is None else room


class AsyncGossip(Mixing, Asynchronous):
    """Asynchronous decentralised SGD by averages of pairs [1]_.

    A rank keeps two vectors of the size of the parameters, and one for every neighbour.

    Parameters
    ----------
    comm : Communicator
        The ranks that train together; all work.
    optimizer : Optimizer
        Each rank's own; its state is not mixed.
    topology : Topology
        After each step a rank asks one of its targets, drawn at random.
    lead : int
        In the training loop, how many steps a rank may be ahead of the slowest.
    seed : int
        Of the draws.

    References
    ----------
    .. [1] X. Lian, W. Zhang, C. Zhang, J. Liu, "Asynchronous decentralized parallel stochastic
       gradient descent", ICML 2018, algorithm 1.
    """

    def __init__(
        self,
        comm: Communicator,
        optimizer: Optimizer,
        topology: Topology,
        lead: int = 16,
        seed: int = 0,
    ) -> None:
        super().__init__(comm, optimizer, topology)
        if lead < 1:
            raise ConfigError(f"lead must be at least 1 step, got {lead}")
        self.workers = comm.size
        self.lead = lead
        self.seed = seed
        steps = [topology.neighbors(comm.rank, step) for step in range(topology.period)]
        self._askers = sorted({source for step in steps for source in step.sources})
        self._exchanges = 0
        self._moved = 0  # bytes sent, and as many received
        self._share = 0  # samples of this rank in its last step
        self._open = False

    def start(self, params: Array) -> None:
        """Broadcast the parameters of rank 0 to all ranks, in place; collective."""
        super().start(params)
        self._mail = Mailbox(self.comm) if self.comm.size > 1 else None
        self._copy = _room(params)  # what this rank has asked with
        self._answer = _room(params)  # what it gets back
        self._asked: list[MPI.Request] = []  # the question and its answer
        self._buffers = {asker: _room(params) for asker in self._askers}
        self._questions: dict[int, MPI.Request] = {}
        self._answering: dict[int, MPI.Request] = {}

    def step(self, params: Array, gradient: Array, samples: tuple[int, int] | None = None) -> None:
        """Update this rank's parameters and see to the exchanges; local, does not wait."""
        self._adapt(params, gradient, samples)
        self._share = samples[0] if samples else 1
        begun, moved = time.perf_counter(), self._moved
        self._begin()
        self._look(params)
        self._ask(params)
        nbytes, seconds = self._moved - moved, time.perf_counter() - begun
        self.comm.traffic.record("pair_exchange", nbytes, nbytes, seconds)
        self._step += 1

    def end_epoch(self, params: Array) -> None:
        """Wait until no exchange is under way on any rank; collective."""
        mail = self._mail
        if mail is None:
            return
        self._begin()
        self._settle(params, lambda: not self._asked, "a neighbour did not answer")
        # Who comes here asks no more; when all have come, nobody is left to be answered.
        arrived = mail.barrier()
        self._settle(params, arrived.Test, "a rank did not come to the end of the phase")
        mail.wait(list(self._answering.values()), "an answer was not received")
        self._answering.clear()
        for request in self._questions.values():
            request.Cancel()
            request.Wait()
        self._questions.clear()
        self._open = False

    def finish(self, params: Array) -> None:
        """Replace the parameters of all ranks by their mean, in place; collective."""
        self.end_epoch(params)
        super().finish(params)

    def phase(self, params: Array, tasks: range, last: bool) -> Iterator[int]:
        """Yield this rank's part of every batch."""
        first, end = tasks.start // self.workers, -(-tasks.stop // self.workers)
        pulse = Pulse(self.comm, 3)
        self._sums = np.zeros(3)  # of losses and samples; the highest signal
        self._faulty = -1
        batch = first
        while batch < end:
            yield batch * self.workers + self.comm.rank
            pulse.send([self._told, self.signal(), self._share])
            batch += 1
            while pulse.pending and (pulse.pending >= self.lead or pulse.arrived()):
                self._settle(params, pulse.arrived, "a rank did not keep up")
                if self._hear(pulse.take()):
                    # All ranks hear of it before they are `lead` steps further.
                    end = min(end, first + pulse.taken - 1 + self.lead)
        while pulse.pending:
            self._settle(params, pulse.arrived, "a rank did not keep up")
            self._hear(pulse.take())
        self.end_epoch(params)
        loss, samples, signal = self._sums.tolist()
        self.outcome = Outcome(batch * self.workers, loss / samples, int(signal), self._faulty)

    def _hear(self, told: Array) -> bool:
        """Take note of what all ranks told of one step; say whether the phase must end."""
        losses, signals, samples = told.T
        self._sums[:2] += losses[samples > 0] @ samples[samples > 0], samples.sum()
        self._sums[2] = max(self._sums[2], signals.max())
        faulty = np.flatnonzero(~np.isfinite(losses) & (samples > 0))
        if faulty.size and self._faulty < 0:
            self._faulty = int(faulty[0])
        return bool(signals.max() > 0 or faulty.size)

    def _begin(self) -> None:
        """Be ready for the questions of all neighbours."""
        if self._open or self._mail is None:
            return
        self._open = True
        for asker in self._askers:
            self._listen(self._mail, asker)

    def _listen(self, mail: Mailbox, asker: int) -> None:
        self._questions[asker] = mail.expect(asker, _QUESTION, self._buffers[asker])

    def _look(self, params: Array) -> None:
        """Take in the answer, if it has come, and answer all questions."""
        mail = self._mail
        if mail is None:
            return
        if self._asked and all(request.Test() for request in self._asked):
            params += like(self._answer, params)
            self._asked = []
            self._exchanges += 1
        for asker in [a for a, request in self._answering.items() if request.Test()]:
            del self._answering[asker]
            self._listen(mail, asker)
        for asker in [a for a, request in self._questions.items() if request.Test()]:
            del self._questions[asker]
            question = like(self._buffers[asker], params)
            meet(params, question, asking=bool(self._asked))
            lower(question, self._buffers[asker])
            self._answering[asker] = mail.post(asker, _ANSWER, self._buffers[asker])
            self._moved += params.nbytes

    def _ask(self, params: Array) -> None:
        """Ask one of the targets, unless an answer is still to come."""
        if self._mail is None or self._asked:
            return
        targets = self.topology.neighbors(self.comm.rank, self._step).targets
        if not targets:
            return
        draw = rng.philox(self.seed, "pairs", self.comm.rank, self._step)
        partner = targets[int(draw.integers(len(targets)))]
        lower(params, self._copy)  # behind what reads the last answer, if on a GPU
        answer = self._mail.expect(partner, _ANSWER, self._answer)
        self._asked = [self._mail.post(partner, _QUESTION, self._copy), answer]
        self._moved += params.nbytes

    def _settle(self, params: Array, done: Callable[[], Any], fault: str) -> None:
        """Wait for something, and answer questions meanwhile."""

        def looked() -> bool:
            self._look(params)
            return bool(done())

        begun = time.perf_counter()
        wait_until(looked, self._mail.timeout if self._mail is not None else 0.0, fault)
        seconds = time.perf_counter() - begun
        self.comm.traffic.record("pair_exchange", 0, 0, seconds, seconds, calls=0)

    def metrics(self, params: Array) -> dict[str, Any]:
        """Return the consensus distance, and the exchanges completed since `start` on all ranks."""
        exchanges = int(self.comm.gather_scalars(self._exchanges).sum())
        return super().metrics(params) | {"exchanges": exchanges}
