"""Rank 0 hands out rows to all ranks as they get free: for evaluations of unequal length.

Each worker has a few chunks ahead of it, so that it does not wait for the manager, which evaluates
too. A chunk has as many rows as take about the time in which a message's own cost is small, judged
by the times measured so far, but no more than half of what is left for each rank, so that all ranks
end together. A population that costs next to nothing is not handed out at all, but split.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.comm import Communicator
from paropt_hpc.comm.letterbox import Letter, Letterbox
from paropt_hpc.errors import ConfigError
from paropt_hpc.metaheuristics.evaluation import (
    Objective,
    Results,
    Rows,
    as_objective,
    from_columns,
)
from paropt_hpc.metaheuristics.evaluators import RowSplit

__all__ = ["Finished", "ManagerWorker"]

_HEAD = 5  # numbers at the start of a message
_END = -1  # in place of the first row's number
_TEXTS = 8  # causes that travel with a chunk
_FADE = 0.7  # weight of the past in the mean time of an evaluation
_CHEAP = 1e-3  # seconds of a population below which its rows are split instead
_MOST = 1 << 12  # rows of a chunk
_Queued = dict[int, list[int]]  # rows of the chunks that each worker has, in their order
_POLL = 1e-3  # seconds of own work after which the manager looks for messages


class Finished(NamedTuple):
    """Rows that have been evaluated."""

    #: number of the first of them in the stream
    first: int
    #: shape (m, d)
    x: Rows
    #: their outcome; all causes are here, whoever has evaluated
    results: Results


class ManagerWorker:
    """Evaluates on all ranks with dynamic load balance.

    Making it, its methods and :meth:`free` are collective: rank 0 manages, the others serve until
    rank 0 is done.

    Parameters
    ----------
    comm : Communicator
    objective : Objective or callable
    chunk_seconds : float
        How long a worker should be busy with one message.
    ahead : int
        Chunks that a worker has been sent and not answered, at most. With the chunk size this
        bounds what is pending, however long a stream is.
    dedicated : bool
        Rank 0 only manages. Worth it where one evaluation takes very much longer than another, on
        many ranks.
    """

    def __init__(
        self,
        comm: Communicator,
        objective: Any,
        *,
        chunk_seconds: float = 2e-3,
        ahead: int = 3,
        dedicated: bool = False,
    ) -> None:
        if ahead < 1 or not chunk_seconds > 0:
            raise ConfigError(
                f"ahead must be at least 1 and chunk_seconds above 0, got {ahead}, {chunk_seconds}"
            )
        self.comm = comm
        self.objective: Objective = as_objective(objective)
        self._width = self.objective.outputs + self.objective.constrained
        self._chunk_seconds = chunk_seconds
        self._ahead = ahead
        self._works = not dedicated or comm.size == 1
        self._letters = Letterbox(comm)
        self._spent = self._done = 0.0  # seconds and rows, the past fading
        self._split = RowSplit(comm, self.objective)
        self._cheap = False  # whether to split the next population; the same on all ranks
        self._stop = False  # whether some rank has asked for an end
        self.most_pending = 0  # rows handed out and not back, at the worst moment

    def evaluate(self, x: Rows, stop: bool = False) -> Results:
        """Return the results of all rows on every rank; collective.

        As :meth:`Evaluator.evaluate`; causes in words are on rank 0. A wish to stop reaches the
        others with the next answer of a worker.
        """
        if self.comm.size == 1:
            return self.objective(x)._replace(stop=stop)
        if self._cheap:
            results = self._split.evaluate(x, stop)
            self._cheap = self._split.total < _CHEAP
            return results
        m = len(x)
        self._stop = self._stop or stop
        values = np.full((m + 1, self._width + 1), np.nan)
        texts: dict[int, str] = {}
        seconds = 0.0
        for done in self._run(_Feed([x], m)):
            rows = slice(done.first, done.first + len(done.x))
            values[rows, 0] = done.results.status
            values[rows, 1:] = done.results.columns()
            texts |= {done.first + row: text for row, text in done.results.texts.items()}
            seconds += done.results.seconds
        values[m, :2] = self._stop, self._mean * m < _CHEAP
        self.comm.broadcast(values)
        self._stop, self._cheap = bool(values[m, 0]), bool(values[m, 1])
        status = values[:m, 0].astype(np.uint8)
        results = from_columns(values[:m, 1:], status, texts, seconds, self.objective)
        return results._replace(stop=self._stop)

    def alone(self, generations: int) -> int:
        """Give what splitting gives, of populations that cost next to nothing."""
        if self.comm.size == 1:
            return generations
        return self._split.alone(generations) if self._cheap else 0

    def stream(self, source: Iterable[Rows | None]) -> Iterator[Finished]:
        """Evaluate what `source` gives, and yield it on rank 0 in the order of completion.

        Collective. On the other ranks nothing is yielded: the loop is over when rank 0 has
        finished, or has closed the iterator.

        Parameters
        ----------
        source : iterable of ndarray, shape (m, d) or (d,), or None
            Read on rank 0 only, and only as fast as the ranks can evaluate: it may depend on what
            has been yielded, and may be endless. None says that there is nothing to do until
            something else is finished.
        """
        yield from self._run(_Feed(source))

    def _run(self, feed: "_Feed") -> Iterator[Finished]:
        if self.comm.rank > 0:
            self._serve()
            return
        try:
            yield from self._manage(feed)
        finally:
            for worker in range(1, self.comm.size):
                self._letters.post(worker, _packed(_END, 0, 0, 0.0, np.empty(0)))

    def free(self) -> None:
        """Wait until all messages have been taken."""
        self._letters.flush()

    def _manage(self, feed: "_Feed") -> Iterator[Finished]:
        queued: _Queued = {worker: [] for worker in range(1, self.comm.size)}
        pending: dict[int, Rows] = {}
        try:
            while True:
                self._fill(feed, queued, pending)
                share = (feed.left + sum(map(len, pending.values()))) / self.comm.size
                own = feed.take(self._size(share, _POLL)) if self._works else None
                if own is not None:
                    yield self._evaluated(*own)
                elif feed.ended and not pending:
                    return
                elif not pending:
                    raise ValueError("the source gave None though nothing is being evaluated")
                yield from self._collected(queued, pending, wait=own is None)
        finally:
            # Answers to what was handed out must not be taken for those of the next stream.
            while pending:
                self._collect(queued, pending)

    @property
    def _mean(self) -> float:
        """Seconds of one evaluation; 0 before the first one."""
        return self._spent / self._done if self._done else 0.0

    def _fill(self, feed: "_Feed", queued: _Queued, pending: dict[int, Rows]) -> None:
        """Give every worker what it lacks, those with the least first."""
        out = sum(map(len, pending.values()))
        for level in range(self._ahead):
            for worker, chunks in queued.items():
                # What there is to do, in equal parts, less what it has already.
                share = (feed.left + out) / self.comm.size - sum(chunks)
                if len(chunks) > level or (chunks and share < 1):
                    continue
                task = feed.take(self._size(share, self._chunk_seconds))
                if task is None:
                    return
                first, rows = task
                pending[first] = rows
                chunks.append(len(rows))
                out += len(rows)
                message = _packed(first, len(rows), rows.shape[1], 0.0, rows)
                self._letters.post(worker, message)
                self.most_pending = max(self.most_pending, out)

    def _size(self, share: float, seconds: float) -> int:
        """Return how many rows to hand out at once to one whose share this is."""
        if self._mean == 0.0:
            return 1
        return max(1, round(min(seconds / self._mean, share / 2, _MOST)))

    def _evaluated(self, first: int, rows: Rows) -> Finished:
        results = self.objective(rows)
        self._learn(results)
        return Finished(first, rows, results)

    def _collected(
        self, queued: _Queued, pending: dict[int, Rows], wait: bool
    ) -> Iterator[Finished]:
        """Yield all answers that have come; wait for the first one if asked to."""
        letter = self._letters.wait("an evaluation") if wait else self._letters.take()
        while letter is not None:
            yield self._answered(letter, queued, pending)
            letter = self._letters.take()

    def _collect(self, queued: _Queued, pending: dict[int, Rows]) -> Finished:
        letter = self._letters.wait("an evaluation")
        return self._answered(letter, queued, pending)

    def _answered(self, letter: Letter, queued: _Queued, pending: dict[int, Rows]) -> Finished:
        first, m, stop, seconds, values, texts = _unpacked(letter.payload)
        rows = pending.pop(first)
        queued[letter.source].pop(0)
        self._stop = self._stop or bool(stop)
        columns = values[m:].reshape(m, self._width)
        results = from_columns(columns, values[:m].astype(np.uint8), texts, seconds, self.objective)
        self._learn(results)
        return Finished(first, rows, results)

    def _learn(self, results: Results) -> None:
        self._spent = _FADE * self._spent + max(results.seconds, 1e-9)
        self._done = _FADE * self._done + len(results.status)

    def _serve(self) -> None:
        while True:
            letter = self._letters.wait("work from rank 0")
            first, m, d, _, rows, _ = _unpacked(letter.payload)
            if first == _END:
                return
            results = self.objective(rows.reshape(m, d))
            texts = dict(list(results.texts.items())[:_TEXTS])
            values = np.concatenate([results.status, results.columns().ravel()])
            answer = _packed(first, m, self._stop, results.seconds, values, texts)
            self._letters.post(0, answer)


class _Feed:
    """Cuts what a source gives into chunks, reading no further than it must."""

    def __init__(self, source: Iterable[Rows | None], total: float = np.inf) -> None:
        self._source = iter(source)
        self._rows: Rows = np.empty((0, 0))
        self._count = 0
        self._total = total
        self.ended = False

    @property
    def left(self) -> float:
        """Rows that have not been handed out; infinitely many where nobody knows."""
        return self._total - self._count

    def take(self, limit: int) -> tuple[int, Rows] | None:
        """Return the next rows and the number of the first; None if there are none now."""
        blocks, count = [self._rows], len(self._rows)
        while count < limit and (block := self._read()) is not None:
            blocks.append(block)
            count += len(block)
        if count == 0:
            return None
        joined = blocks[-1] if len(blocks) == 1 else np.concatenate([b for b in blocks if len(b)])
        rows, self._rows = joined[:limit], joined[limit:]
        first = self._count
        self._count += len(rows)
        return first, rows

    def _read(self) -> Rows | None:
        """Return what the source gives next; None for nothing now, or nothing any more."""
        if self.ended:
            return None
        try:
            block = next(self._source)
        except StopIteration:
            self.ended = True
            return None
        return None if block is None else np.atleast_2d(np.asarray(block, np.float64))


def _packed(
    first: int,
    m: int,
    width: int,
    seconds: float,
    values: NDArray[np.float64],
    texts: dict[int, str] | None = None,
) -> NDArray[np.uint8]:
    """Return a message: five numbers, values, causes as JSON."""
    head = np.array([first, m, width, seconds, values.size])
    body = np.concatenate([head, values.ravel()]).view(np.uint8)
    if not texts:
        return body
    tail = np.frombuffer(json.dumps(list(texts.items())).encode(), np.uint8)
    return np.concatenate([body, tail])


def _unpacked(
    payload: NDArray[np.uint8],
) -> tuple[int, int, int, float, NDArray[np.float64], dict[int, str]]:
    first, m, width, seconds, size = payload[: 8 * _HEAD].view(np.float64).tolist()
    end = 8 * (_HEAD + int(size))
    values = payload[8 * _HEAD : end].view(np.float64)
    texts = dict(json.loads(payload[end:].tobytes())) if payload.size > end else {}
    return int(first), int(m), int(width), seconds, values, texts
