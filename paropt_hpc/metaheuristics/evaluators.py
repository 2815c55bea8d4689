"""Where rows are evaluated: on this rank, or split over all ranks.

With these evaluators every rank runs the same algorithm from the same seed, and so has the same
population; what is shared out is the evaluation of its rows. The values do not depend on who has
computed them, hence neither does the result of the run.
"""

import time
from typing import Any, Literal, Protocol

import numpy as np

from paropt_hpc.comm import Communicator, SerialCommunicator
from paropt_hpc.errors import ConfigError, EvaluationError, on_every_rank
from paropt_hpc.metaheuristics.evaluation import (
    Objective,
    Results,
    Rows,
    as_objective,
    from_columns,
)

__all__ = ["Evaluator", "RowSplit", "Serial"]


class Evaluator(Protocol):
    """Evaluates a population; collective over the ranks of `comm`."""

    comm: Communicator
    objective: Objective

    def evaluate(self, x: Rows, stop: bool = False) -> Results:
        """Return the results of all rows on every rank.

        Parameters
        ----------
        x : ndarray, shape (m, d), float64
            The same on all ranks; not changed.
        stop : bool
            This rank asks for an end of the run; `Results.stop` tells all ranks of it, at the
            latest some milliseconds later.
        """
        ...

    def alone(self, generations: int) -> int:
        """Claim up to so many of the next generations for each rank to evaluate by itself.

        Returns
        -------
        int
            How many it may, without :meth:`evaluate`; the same on all ranks, local.
        """
        ...


class Serial:
    """Evaluates on this rank, whatever the others do; local.

    Parameters
    ----------
    objective : Objective or callable
        A plain function is one of one row, as for :class:`.Scalar`.
    """

    def __init__(self, objective: Any) -> None:
        self.objective = as_objective(objective)
        self.comm: Communicator = SerialCommunicator()

    def evaluate(self, x: Rows, stop: bool = False) -> Results:
        """Evaluate all rows."""
        return self.objective(x)._replace(stop=stop)

    def alone(self, generations: int) -> int:
        """Give all."""
        return generations


_HEAD = 5  # numbers before the values in a packet
_LONGEST = 256  # generations between two looks at whether replication still pays
_LOOK = 0.02  # seconds of replication after which to look


class RowSplit:
    """Splits the rows over the ranks, and gathers the values by one collective.

    Where the objective is so cheap that the collective costs more than it saves, every rank
    evaluates all rows and nothing is sent; all ranks decide on the same figures, and look again
    from time to time. An objective whose values differ between ranks is found out then and stays
    split.

    Parameters
    ----------
    comm : Communicator
        The ranks among which the rows are split. Collective, as is :meth:`evaluate`.
    objective : Objective or callable
    replicate : {"auto", "never", "always"}
        Whether every rank may evaluate all rows.
    """

    def __init__(
        self,
        comm: Communicator,
        objective: Any,
        *,
        replicate: Literal["auto", "never", "always"] = "auto",
    ) -> None:
        if replicate not in ("auto", "never", "always"):
            raise ConfigError(f"replicate must be auto, never or always, got {replicate!r}")
        self.comm = comm
        self.objective = as_objective(objective)
        self._width = self.objective.outputs + self.objective.constrained
        may = self.objective.repeatable and replicate != "never"
        self._may_replicate = may and comm.size > 1
        self._always = replicate == "always" and may
        self._replicating = self._always
        self._until_look = 0
        self.total = 0.0  # seconds of the last population that was shared, as all ranks know it
        self._collective = 0.0  # seconds that sharing has cost this rank the last time
        self._cost = np.inf  # least seconds that it has cost the rank that came last

    def evaluate(self, x: Rows, stop: bool = False) -> Results:
        """Evaluate all rows; collective."""
        if self.comm.size == 1:
            return self.objective(x)._replace(stop=stop)
        if self._replicating and self._until_look > 0:
            self._until_look -= 1
            return self.objective(x)
        return self._shared(x, stop)

    def alone(self, generations: int) -> int:
        """Give those until the next look."""
        if self.comm.size == 1:
            return generations
        claimed = min(generations, self._until_look) if self._replicating else 0
        self._until_look -= claimed
        return claimed

    def _shared(self, x: Rows, stop: bool) -> Results:
        """Evaluate this rank's rows, or all of them to compare, and gather the values."""
        start = time.perf_counter()
        m, size, rank = len(x), self.comm.size, self.comm.rank
        begin, end = m * rank // size, m * (rank + 1) // size
        whole = self._replicating
        own = self.objective(x if whole else x[begin:end])
        part = slice(begin, end) if whole else slice(None)
        width = -(-m // size)
        columns = own.columns()
        packet = np.zeros(_HEAD + width * (self._width + 1))
        packet[:_HEAD] = own.seconds, _digest(x), stop, self._collective, 0.0
        if whole:
            packet[4] = _digest(columns)
        packet[_HEAD : _HEAD + end - begin] = own.status[part]
        values = packet[_HEAD + width :]
        values[: (end - begin) * self._width] = columns[part].ravel()
        packets = self.comm.gather_vectors(packet)  # type: ignore[arg-type]
        self._check(packets)
        self._decide(packets, whole)
        joined = self._joined(packets, own, 0 if whole else begin, m, width)
        self._collective = time.perf_counter() - start - own.seconds
        return joined

    def _joined(self, packets: Rows, own: Results, first: int, m: int, width: int) -> Results:
        """Put the ranks' parts together."""
        size, at, k = self.comm.size, _HEAD + width, self._width
        counts = [m * (r + 1) // size - m * r // size for r in range(size)]
        parts = list(zip(packets, counts, strict=True))
        status = np.concatenate([row[_HEAD : _HEAD + n] for row, n in parts]).astype(np.uint8)
        columns = np.concatenate([row[at : at + n * k] for row, n in parts]).reshape(m, k)
        texts = {first + row: text for row, text in own.texts.items()}
        joined = from_columns(columns, status, texts, own.seconds, self.objective)
        return joined._replace(stop=bool(packets[:, 2].any()))

    def _check(self, packets: Rows) -> None:
        if (packets[:, 1] != packets[0, 1]).any():
            raise on_every_rank(
                EvaluationError(
                    "the ranks were given different populations; the algorithm needs the same "
                    "seed on all ranks, and an objective that is random needs replicate='never'"
                )
            )

    def _decide(self, packets: Rows, whole: bool) -> None:
        """Choose how to go on, from figures that all ranks have."""
        seconds = packets[:, 0]
        total = self.total = float(seconds.max() if whole else seconds.sum())
        if not self._may_replicate:
            return
        if whole and (packets[:, 4] != packets[0, 4]).any():
            self._may_replicate = self._replicating = False
            return
        if packets[:, 3].all():
            self._cost = min(self._cost, float(packets[:, 3].min()))
        saved = total - (total / self.comm.size if whole else float(seconds.max()))
        self._replicating = self._always or saved < self._cost < np.inf
        self._until_look = min(_LONGEST, int(_LOOK / max(total, 1e-6))) if whole else 0


def _digest(array: Rows) -> float:
    """Reduce an array to 52 bits, which float64 holds exactly."""
    bits = np.ascontiguousarray(array).view(np.uint64).ravel()
    total = int(np.add.reduce(bits))
    return float((total ^ total >> 12) & (1 << 52) - 1)
