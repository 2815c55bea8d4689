"""Synchronous data-parallel SGD: every rank applies the mean gradient of all ranks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from paropt_hpc.comm import Communicator
from paropt_hpc.compress import Compressor, RandomK
from paropt_hpc.errors import ConfigError, DivergenceError, on_every_rank
from paropt_hpc.runs.checkpoint import merge, only, without
from paropt_hpc.train.arrays import Array, Scratch, add_scaled, namespace
from paropt_hpc.train.loss_scale import LossScale
from paropt_hpc.train.optimizers import Optimizer, Untouched
from paropt_hpc.train.strategies import Strategy, combine
from paropt_hpc.train.wire import (
    BUCKET_BYTES,
    AlignedWire,
    DenseWire,
    HalfWire,
    MessageWire,
    Wire,
    clip,
)

__all__ = ["AllReduce"]

_MOST_SKIPPED = 100
"""Steps skipped in a row that show that waiting for better ones is in vain."""


@dataclass(slots=True)
class _Step:
    """A step on its way."""

    params: Array
    gradient: Array  # of this step alone
    total: Array  # of the group: what will be sent
    here: int  # samples of this rank
    weight: float  # of the total, so that the mean over ranks is the mean over samples
    closing: bool  # whether the group is complete with it
    sent: int = 0  # buckets


class AllReduce(Strategy):
    """Synchronous data-parallel SGD: every rank applies the mean gradient of all ranks.

    Parameters
    ----------
    comm : Communicator
        The ranks that train together.
    optimizer : Optimizer, optional
        Applied on every rank to the same mean gradient, so parameters stay equal bit for bit.
        Without one, a step leaves the parameters alone and the mean in `gradient`; `updated`
        tells whether it is there.
    compressor : Compressor, optional
        Sends each rank's gradient as a message, or, with a `RandomK` of plain values, as the
        sum over the ranks of what it picks; dense without it.
    algorithm : str
        Of the dense all-reduce; see `Communicator.allreduce`.
    sparse_scheme : {"auto", "allgather", "split", "reselect", "dense"}
        Of the sparse all-reduce, with a compressor; see `paropt_hpc.comm.sparse_allreduce`.
    accumulate : int
        Exchange the mean of this many steps at once: as one step on a batch as many times
        as large. The last group of an epoch may be smaller and is weighed by its samples.
    clip_norm : float, optional
        Scale a mean gradient whose Euclidean norm is above this down to it. The mean is the
        same on all ranks, hence so are its norm and the result.
    local_clip_norm : float, optional
        With a compressor: scale each rank's own gradient down to this before it is collected
        [1]_, section 3.2.
    weight_decay : float
        Added to each rank's gradient before compression; with a compressor the optimizer's
        own decay comes too late to be part of what error feedback keeps.
    wire : {"full", "float16", "bfloat16"}
        Type of dense gradients on their way.
    loss_scale : LossScale, optional
        For ``wire="float16"``. Default: ``LossScale()``.
    skip_nonfinite : bool, optional
        Leave out, on all ranks together, an update with NaN or infinity in any rank's
        gradient. Default: only with ``wire="float16"``, which cannot do without.
    overlap : bool, optional
        Move a gradient in buckets in the background while the backward pass goes on, where the
        model takes part; see `begin`. Default: whether there are two cores for every rank.
    bucket_bytes : int
        Of those buckets.

    Attributes
    ----------
    updated : bool
        Whether the last step has made an update: not inside a group, nor when it was skipped.
    skipped : int
        Updates left out.

    References
    ----------
    .. [1] Y. Lin et al., "Deep gradient compression", ICLR 2018: its bound of the sum over P
       ranks, times :math:`P^{-1/2}`, is for means the bound of the mean times :math:`P^{1/2}`.
    """

    shared = ("params", "strategy/optimizer", "strategy/loss_scale", "strategy/skipped")

    def __init__(
        self,
        comm: Communicator,
        optimizer: Optimizer | None = None,
        compressor: Compressor | None = None,
        algorithm: str = "auto",
        *,
        sparse_scheme: str = "auto",
        accumulate: int = 1,
        clip_norm: float | None = None,
        local_clip_norm: float | None = None,
        weight_decay: float = 0.0,
        wire: str = "full",
        loss_scale: LossScale | None = None,
        skip_nonfinite: bool | None = None,
        overlap: bool | None = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        super().__init__(comm, optimizer or Untouched())
        if accumulate < 1:
            raise ConfigError(f"accumulate must be at least 1, got {accumulate}")
        for name, bound in (("clip_norm", clip_norm), ("local_clip_norm", local_clip_norm)):
            if bound is not None and not bound > 0:
                raise ConfigError(f"{name} must be above 0, got {bound}")
        if compressor is None and local_clip_norm is not None:
            raise ConfigError("local_clip_norm needs a compressor; use clip_norm for dense ones")
        if compressor is not None and wire != "full":
            raise ConfigError(
                f"wire={wire!r} is for dense gradients; with a compressor choose its values"
            )
        self._wire: Wire
        if isinstance(compressor, RandomK) and compressor.summable:
            self._wire = AlignedWire(comm, compressor, algorithm, local_clip_norm)
        elif compressor is not None:
            self._wire = MessageWire(comm, compressor, sparse_scheme, local_clip_norm)
        elif wire == "full":
            self._wire = DenseWire(comm, algorithm, bucket_bytes, overlap)
        else:
            scaler = (loss_scale or LossScale()) if wire == "float16" else None
            self._wire = HalfWire(comm, wire, scaler, algorithm, bucket_bytes, overlap)
        self.compressor = compressor
        self.accumulate = accumulate
        self.clip_norm = clip_norm
        self.weight_decay = weight_decay
        self.skip_nonfinite = wire == "float16" if skip_nonfinite is None else skip_nonfinite
        self.skipped = 0
        self._in_a_row = 0
        self._scratch = Scratch()
        self._open: _Step | None = None
        self._sum: Array | None = None  # of sample-weighted gradients, while a group fills up
        self._group = 0  # steps in it
        self._samples = 0  # over all ranks in it

    @property
    def meets(self) -> bool:
        """Whether the next step completes a group."""
        return self._group + 1 >= self.accumulate

    def start(self, params: Array) -> None:
        """Broadcast the parameters of rank 0 to all ranks, in place; collective."""
        super().start(params)
        self._wire.start(params.size, params.dtype, namespace(params))
        if self.accumulate > 1:
            self._sum = namespace(params).zeros_like(params)

    def begin(
        self, params: Array, gradient: Array, samples: tuple[int, int] | None = None
    ) -> Callable[[int], None] | None:
        """Open a step; see `Strategy.begin`."""
        here, everywhere = samples or (1, self.comm.size)
        total = gradient if self._sum is None else self._sum
        weight = here * self.comm.size / everywhere
        if self._sum is not None:
            self._group += 1
            self._samples += everywhere
            weight = self.comm.size / self._samples
        closing = self._group in (0, self.accumulate)
        self._open = _Step(params, gradient, total, here, weight, closing)
        return self._ready if closing and len(self._wire.buckets) > 1 else None

    def step(self, params: Array, gradient: Array, samples: tuple[int, int] | None = None) -> None:
        """Average `gradient` over the ranks and update `params`; both in place; collective.

        All ranks have equal parameters before and after. With accumulation, only every
        `accumulate`-th step communicates and updates.
        """
        if self._open is None:
            self.begin(params, gradient, samples)
        step, self._open = self._open, None
        assert step is not None
        if step.gradient is not gradient:
            raise ConfigError("step() must be given the gradient that begin() was given")
        self._send(step, 0)
        self.updated = False
        if step.closing:
            self._close(step)

    def end_epoch(self, params: Array, gradient: Array | None = None) -> None:
        """Apply an accumulated group, also an incomplete one; collective.

        Parameters
        ----------
        params : ndarray, shape (n,)
            Changed in place.
        gradient : ndarray, shape (n,), optional
            Without an optimizer: overwritten with the mean, if `updated` says so.
        """
        self.updated = False
        if self._group == 0:
            return
        assert self._sum is not None
        gradient = self._sum if gradient is None else gradient
        step = _Step(params, gradient, self._sum, 0, self.comm.size / self._samples, closing=True)
        for bucket in self._wire.buckets:
            self._seal(step, bucket)
        self._close(step)

    def _ready(self, first: int) -> None:
        """Take all of an open step's gradient from `first` on."""
        assert self._open is not None
        self._send(self._open, first)

    def _send(self, step: _Step, first: int) -> None:
        """Send the buckets that begin at `first` or behind it and are not on their way."""
        for bucket in self._wire.buckets[step.sent :]:
            if bucket.start < first:
                return
            step.sent += 1
            if self._sum is not None:
                self._add_up(step.gradient[bucket], step.total[bucket], step.here)
            if step.closing:
                self._seal(step, bucket)

    def _add_up(self, gradient: Array, total: Array, samples: int) -> None:
        if self._group == 1:
            namespace(total).multiply(gradient, samples, out=total)
        else:
            gradient *= samples
            total += gradient

    def _seal(self, step: _Step, bucket: slice) -> None:
        """Bring a bucket into the form in which it is sent, and send it."""
        entries = step.total[bucket]
        if step.weight != 1:
            entries *= step.weight
        if self.weight_decay:
            add_scaled(entries, step.params[bucket], self.weight_decay, self._scratch)
        self._wire.send(step.total, bucket)

    def _close(self, step: _Step) -> None:
        """Wait for the mean gradient, and apply it."""
        finite = self._wire.finish(step.total, check=self.skip_nonfinite)
        self._group = self._samples = 0
        if not finite:
            self._skip()
            return
        self._in_a_row = 0
        if self.clip_norm is not None:
            clip(step.total, self.clip_norm)
        self.optimizer.update(step.params, step.total)
        if isinstance(self.optimizer, Untouched) and step.gradient is not step.total:
            step.gradient[:] = step.total
        self.updated = True

    def _skip(self) -> None:
        self.skipped += 1
        self._in_a_row += 1
        if self._in_a_row == _MOST_SKIPPED:
            raise on_every_rank(
                DivergenceError(
                    f"{_MOST_SKIPPED} steps in a row had NaN or infinity in a gradient; "
                    "lower the learning rate, or warm up to it"
                )
            )

    def metrics(self, params: Array) -> dict[str, Any]:
        """Return the number of skipped updates and the loss scale; local."""
        told: dict[str, Any] = {"skipped_steps": self.skipped} if self.skip_nonfinite else {}
        if isinstance(self._wire, HalfWire) and self._wire.scaler is not None:
            told["loss_scale"] = self._wire.scaler.scale
        return told

    def state_dict(self) -> dict[str, Any]:
        """Return the state of optimizer, wire and group of this rank, no copy; local."""
        skipped = {"steps": self.skipped, "in_a_row": self._in_a_row}
        state = super().state_dict() | self._wire.state_dict() | {"skipped": skipped}
        if self._sum is not None:
            group = {"steps": self._group, "samples": self._samples, "sum": self._sum}
            state["group"] = group
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state of this rank, after `start`; local."""
        super().load_state_dict(state)
        self._wire.load_state_dict(state)
        skipped = state["skipped"]
        self.skipped, self._in_a_row = int(skipped["steps"]), int(skipped["in_a_row"])
        if self._sum is not None:
            group = state["group"]
            self._group, self._samples = int(group["steps"]), int(group["samples"])
            self._sum[:] = group["sum"]

    def reshard(self, states: list[dict[str, Any]], rank: int, size: int) -> dict[str, Any]:
        """Take the parameters as they are, and deal out the residuals, so that no part is lost.

        Each new rank gets the sum of every `size`-th old rank's, times the ratio of the sizes:
        what a rank sends counts for one part in as many as there are ranks.
        """
        states = [without(state, ["strategy/ranges"]) for state in states]  # one for each old rank
        own = states[rank::size] or [combine(states[:1], lambda vectors: np.zeros_like(vectors[0]))]
        ratio = size / len(states)
        dealt = combine(own, lambda vectors: ratio * np.sum(vectors, axis=0))
        state = merge(dealt, only(states[0], self.shared))
        if "group" in state["strategy"]:  # a sum over all ranks' samples, not a mean
            state["strategy"]["group"]["sum"] /= ratio
        return state
