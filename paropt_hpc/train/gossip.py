"""Gossip: ranks mix their parameters with those of a few neighbours, and never all at once.

What a rank does in a step, with x its parameters, g its gradient and W the mixing matrix of
the topology:

===================  ==================================================================
adapt-then-combine   x <- W (x - lr g(x))
combine-then-adapt   x <- W x - lr g(x)
gradient tracking    y <- W y + g - (last g), then adapt-then-combine with y for g
push-sum             the same on (x, 1) with columns that sum to one, for directed graphs
CHOCO                adapt, then mix what the neighbours were told in compressed form
===================  ==================================================================

"lr g" stands for whatever step the optimizer takes.
"""

from typing import Any

import numpy as np

from paropt_hpc.comm import (
    Communicator,
    PushTopology,
    Topology,
    neighbor_exchange,
    neighbor_exchange_bytes,
)
from paropt_hpc.compress import Compressor
from paropt_hpc.errors import ConfigError
from paropt_hpc.train.arrays import Array, namespace, norm
from paropt_hpc.train.optimizers import Optimizer
from paropt_hpc.train.strategies import Strategy

__all__ = ["ORDERS", "ChocoGossip", "Gossip", "PushSum"]

ORDERS = ("adapt-then-combine", "combine-then-adapt")


class Mixing(Strategy):
    """What all gossip has in common: a topology, a step number, parameters that differ."""

    def __init__(
        self, comm: Communicator, optimizer: Optimizer, topology: Topology | PushTopology
    ) -> None:
        super().__init__(comm, optimizer)
        if topology.size != comm.size:
            raise ConfigError(
                f"topology must be one of {comm.size} ranks as the communicator is, "
                f"got {topology.name} of {topology.size}"
            )
        self.topology = topology
        self._step = 0

    @property
    def meets(self) -> bool:
        """No: a rank waits for its neighbours only."""
        return False

    def _adapt(self, params: Array, gradient: Array, samples: tuple[int, int] | None) -> None:
        """Take the optimizer's step; a rank without samples only mixes."""
        if samples is None or samples[0] > 0:
            self.optimizer.update(params, gradient)

    def _mix(self, buffer: Array) -> None:
        neighbor_exchange(self.comm, buffer, self.topology, self._step)

    def consensus(self, params: Array) -> Array:
        """Return the mean of the parameters of all ranks, a copy; collective."""
        mean = params.copy()
        self.comm.allreduce(mean, "mean")
        return mean

    def finish(self, params: Array) -> None:
        """Replace the parameters of all ranks by their mean, in place; collective."""
        params[:] = self.consensus(params)

    def metrics(self, params: Array) -> dict[str, Any]:
        """Return the consensus distance: the root mean square over ranks of |x - mean x|."""
        squares = self.comm.gather_scalars(norm(params - self.consensus(params))) ** 2
        return {"consensus_distance": float(np.sqrt(squares.mean()))}

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank, no copy; local."""
        return super().state_dict() | {"step": self._step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state of this rank, after `start`; local."""
        super().load_state_dict(state)
        self._step = int(state["step"])


class Gossip(Mixing):
    r"""Decentralised parallel SGD, plain [1]_ or with gradient tracking [3]_.

    Parameters
    ----------
    comm : Communicator
        The ranks that train together.
    optimizer : Optimizer
        Each rank's own; its state is not mixed.
    topology : Topology
        Who mixes with whom; weights doubly stochastic, or the ranks drift from the mean.
    order : {"adapt-then-combine", "combine-then-adapt"}
        Mix after the optimizer's step, or before it [2]_.
    tracking : bool
        Mix an estimate of the mean gradient along: converges to the optimum of all ranks'
        samples even where the ranks' own differ much, for twice the bytes.

    References
    ----------
    .. [1] X. Lian et al., "Can decentralized algorithms outperform centralized algorithms?",
       NeurIPS 2017, algorithm 1.
    .. [2] A. Sayed, "Adaptation, learning, and optimization over networks", 2014, section 7.
    .. [3] A. Nedic, A. Olshevsky, W. Shi, "Achieving geometric convergence for distributed
       optimization over time-varying graphs", SIAM J. Optim. 27(4), 2017, algorithm 1.
    """

    def __init__(
        self,
        comm: Communicator,
        optimizer: Optimizer,
        topology: Topology,
        order: str = "adapt-then-combine",
        tracking: bool = False,
    ) -> None:
        super().__init__(comm, optimizer, topology)
        if order not in ORDERS:
            raise ConfigError(f"order must be one of {', '.join(ORDERS)}, got {order!r}")
        self.order = order
        self.tracking = tracking
        self._tracked: Array | None = None  # estimate of the mean gradient
        self._last: Array | None = None  # this rank's gradient of the step before

    def step(self, params: Array, gradient: Array, samples: tuple[int, int] | None = None) -> None:
        """Update this rank's parameters and mix them; both in place; collective."""
        if self.tracking:
            gradient = self._track(gradient)
        if self.order == "combine-then-adapt":
            self._mix(params)
        self._adapt(params, gradient, None if self.tracking else samples)
        if self.order == "adapt-then-combine":
            self._mix(params)
        self._step += 1

    def _track(self, gradient: Array) -> Array:
        if self._tracked is None or self._last is None:
            self._tracked, self._last = gradient.copy(), gradient.copy()
        else:
            self._mix(self._tracked)
            self._tracked += gradient
            self._tracked -= self._last
            self._last[:] = gradient
        gradient[:] = self._tracked  # which the optimizer may overwrite
        return gradient

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank, no copy; local."""
        state = super().state_dict()
        if self._tracked is not None and self._last is not None:
            state |= {"tracked": self._tracked, "last": self._last}
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state of this rank, after `start`; local."""
        super().load_state_dict(state)
        if "tracked" in state:
            self._tracked, self._last = state["tracked"].copy(), state["last"].copy()


class PushSum(Mixing):
    """Stochastic gradient push [1]_: gossip over any directed, connected topology.

    Parameters
    ----------
    comm, optimizer
        As in `Gossip`.
    topology : Topology
        Its own weights do not count: every rank gives its targets and itself equal shares.

    References
    ----------
    .. [1] M. Assran, N. Loizou, N. Ballas, M. Rabbat, "Stochastic gradient push for
       distributed deep learning", ICML 2019, algorithm 1.
    """

    def __init__(self, comm: Communicator, optimizer: Optimizer, topology: Topology) -> None:
        super().__init__(comm, optimizer, PushTopology(topology))
        self._biased: Array = np.empty(0)  # parameters times weight, and the weight at the end

    def start(self, params: Array) -> None:
        """Broadcast the parameters of rank 0 to all ranks, in place; collective."""
        super().start(params)
        self._biased = namespace(params).ones(params.size + 1, params.dtype)
        self._biased[:-1] = params

    def step(self, params: Array, gradient: Array, samples: tuple[int, int] | None = None) -> None:
        """Update the biased parameters, push them, and set `params` free of bias; collective.

        The optimizer is shown `params`, at which the gradient was taken too: weight decay and the
        norms of layers are theirs. By how much it moves them, the biased ones are moved.
        """
        biased = self._biased[:-1]
        biased -= params
        self._adapt(params, gradient, samples)
        biased += params
        self._mix(self._biased)
        namespace(params).divide(biased, self._biased[-1], out=params)
        self._step += 1

    def consensus(self, params: Array) -> Array:
        """Return the mean of the parameters of all ranks, a new array; collective."""
        mean = self._biased.copy()
        self.comm.allreduce(mean, "mean")
        return mean[:-1] / mean[-1]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank, no copy; local."""
        return super().state_dict() | {"biased": self._biased}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state of this rank, after `start`; local."""
        super().load_state_dict(state)
        self._biased[:] = state["biased"]


class ChocoGossip(Mixing):
    r"""Compressed gossip: neighbours hear of a rank through differences [1]_, algorithm 2.

    Each rank keeps what the neighbours were told of it, :math:`\hat x_i`, and the mix of what
    it was told of them, :math:`s_i = \sum_j w_{ij} \hat x_j`. It sends
    :math:`q_i = Q(x_i - \hat x_i)` and moves by :math:`\gamma (s_i - \hat x_i)`. What Q drops
    stays in the difference: that is its error feedback.

    Parameters
    ----------
    comm, optimizer
        As in `Gossip`.
    topology : Topology
        Of period 1: what was told must be mixed with the same weights always.
    compressor : Compressor
        Of the messages; it keeps no residual here.
    gamma : float
        How far to move towards the neighbours, in (0, 1]; smaller for lower densities.

    References
    ----------
    .. [1] A. Koloskova, S. Stich, M. Jaggi, "Decentralized stochastic optimization and gossip
       algorithms with compressed communication", ICML 2019.
    """

    def __init__(
        self,
        comm: Communicator,
        optimizer: Optimizer,
        topology: Topology,
        compressor: Compressor,
        gamma: float = 0.4,
    ) -> None:
        super().__init__(comm, optimizer, topology)
        if topology.period != 1:
            raise ConfigError(
                f"compressed gossip needs a topology that stays the same, got {topology.name} "
                f"of period {topology.period}; use ring, torus, hypercube or exponential"
            )
        if not 0 < gamma <= 1:
            raise ConfigError(f"gamma must be in (0, 1], got {gamma}")
        self.compressor = compressor
        self.gamma = gamma

    def start(self, params: Array) -> None:
        """Broadcast the parameters of rank 0, which all neighbours are thereby told."""
        super().start(params)
        xp = namespace(params)
        self.compressor.start(params.size, params.dtype, xp)
        self._told = params.copy()
        self._mixed = params.copy()
        self._scratch = xp.empty_like(params)

    def step(self, params: Array, gradient: Array, samples: tuple[int, int] | None = None) -> None:
        """Update this rank's parameters and mix what is known of the neighbours; collective."""
        self._adapt(params, gradient, samples)
        subtract = namespace(params).subtract
        subtract(params, self._told, out=self._scratch)
        message = self.compressor.encode(self._scratch)
        own_weight = self.topology.neighbors(self.comm.rank).own_weight
        self.compressor.decompress_add(message, self._told)
        self.compressor.decompress_add(message, self._mixed, own_weight)
        for _, weight, received in neighbor_exchange_bytes(self.comm, message, self.topology):
            self.compressor.decompress_add(received, self._mixed, weight)
        subtract(self._mixed, self._told, out=self._scratch)
        self._scratch *= self.gamma
        params += self._scratch
        self._step += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the state of this rank, no copy; local."""
        told = {"told": self._told, "mixed": self._mixed}
        return super().state_dict() | told | {"compressor": self.compressor.counters()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state of this rank, after `start`; local."""
        super().load_state_dict(state)
        self._told[:], self._mixed[:] = state["told"], state["mixed"]
        self.compressor.load_counters(state["compressor"])
