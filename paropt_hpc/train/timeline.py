"""Where the time of the steps goes, on every rank; and a trace of all ranks for a browser.

The trace is in the format of Chrome's trace viewer (``chrome://tracing``, or ui.perfetto.dev): one
row for every rank, on the clock of rank 0.
"""

import json
import os
import time
from collections import defaultdict
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np

from paropt_hpc.comm import Communicator
from paropt_hpc.comm.clocks import clock_offsets
from paropt_hpc.errors import ConfigError

__all__ = ["KINDS", "Straggler", "Timeline", "find_straggler"]

_Result = TypeVar("_Result")

KINDS = ("compute", "compress", "communicate", "wait", "update")
LIMIT = 200_000  # spans that a rank keeps for the trace, about 30 MB


class Straggler(NamedTuple):
    """The rank that the others wait for."""

    rank: int
    factor: float  # its time to compute a step over the median of the others


def find_straggler(seconds: list[float], steps: list[int], limit: float = 1.3) -> Straggler | None:
    """Name the rank whose steps take the longest to compute, if it is much longer.

    Parameters
    ----------
    seconds : list of float
        That each rank has computed.
    steps : list of int
        In how many steps; ranks without any, as servers, do not count.
    limit : float
        How much longer than the median of the others, as a factor.
    """
    times = {r: s / n for r, (s, n) in enumerate(zip(seconds, steps, strict=True)) if n}
    if len(times) < 2:
        return None
    rank = max(times, key=lambda r: times[r])
    usual = float(np.median([seconds for r, seconds in times.items() if r != rank]))
    if usual <= 0 or times[rank] < limit * usual:
        return None
    return Straggler(rank, times[rank] / usual)


class Timeline:
    """Times what it is told to watch.

    Parameters
    ----------
    comm : Communicator
        Of the ranks of a run.
    path : Path, optional
        Of the trace; without it only sums are kept.

    Attributes
    ----------
    seconds : dict of str to float
        By kind, of this rank.
    calls : dict of str to int
        By kind.
    """

    def __init__(self, comm: Communicator, path: Path | None = None) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.calls: defaultdict[str, int] = defaultdict(int)
        self._comm = comm
        self._path = path
        self._spans: list[tuple[str, str, float, float]] = []  # name, kind, begin, seconds
        self._dropped = 0
        self._apart = 0.0  # seconds, so far
        if path is not None:
            _check_folder(path, comm.rank)
            # What goes through memory is counted without a clock; see it at its caller.
            self.watch(comm, "allreduce", "communicate")
            comm.traffic.listener = self._hear

    def watch(self, owner: Any, method: str, kind: str) -> None:
        """Time every call of a method of this object from now on.

        Seconds of what is set `apart` meanwhile do not count.
        """
        call: Callable[..., Any] = getattr(owner, method)
        name = method.strip("_")

        @wraps(call)
        def timed(*args: Any, **kwargs: Any) -> Any:
            before, begun = self._apart, time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                seconds = time.perf_counter() - begun
                self._add(name, kind, begun, seconds, self._apart - before)

        setattr(owner, method, timed)

    def apart(self, call: Callable[..., _Result]) -> Callable[..., _Result]:
        """Return a call whose seconds count for none of the methods watched around it.

        For what is made by a computation and counted elsewhere, as the sums of batch normalisation.
        """

        @wraps(call)
        def timed(*args: Any, **kwargs: Any) -> _Result:
            begun = time.perf_counter()
            try:
                return call(*args, **kwargs)
            finally:
                self._apart += time.perf_counter() - begun

        return timed

    def _hear(self, operation: str, begun: float, seconds: float) -> None:
        if operation != "allreduce":
            self._add(operation, "communicate", begun, seconds)

    def _add(self, name: str, kind: str, begun: float, seconds: float, apart: float = 0.0) -> None:
        self.seconds[kind] += seconds - apart
        self.calls[kind] += 1
        if self._path is None:
            return
        if len(self._spans) < LIMIT:
            self._spans.append((name, kind, begun, seconds))
        else:
            self._dropped += 1

    def write(self) -> None:
        """Write the trace of all ranks, from rank 0; collective."""
        if self._path is None:
            return
        self._comm.traffic.listener = None
        del self._comm.allreduce  # the watched one
        offsets = clock_offsets(self._comm)
        own = json.dumps([self._spans, self._dropped]).encode()
        told = self._comm.allgather_bytes(np.frombuffer(own, np.uint8))
        with self._comm.together():
            if self._comm.rank == 0:
                ranks = [json.loads(text.tobytes()) for text in told]
                _write_json(self._path, _trace(ranks, offsets.tolist()))


def _check_folder(path: Path, rank: int) -> None:
    """Find out before the run, not after it, that there is no place for the trace."""
    if rank > 0:
        return
    if not path.parent.is_dir():
        raise ConfigError(f"cannot write the trace {path}: there is no folder {path.parent}")
    if path.is_dir():
        raise ConfigError(f"cannot write the trace {path}: it is a folder; name a file")
    if not os.access(path.parent, os.W_OK):
        raise ConfigError(f"cannot write the trace {path}: {path.parent} may not be written to")


def _trace(ranks: list[Any], offsets: list[float]) -> dict[str, Any]:
    """Return all spans as complete events, times in microseconds from the first one."""
    begins = [
        begin + offset
        for (spans, _), offset in zip(ranks, offsets, strict=True)
        for _, _, begin, _ in spans
    ]
    first = min(begins, default=0.0)
    events: list[dict[str, Any]] = []
    for rank, ((spans, dropped), offset) in enumerate(zip(ranks, offsets, strict=True)):
        label = f"rank {rank}" + (f" (the first {LIMIT} spans)" if dropped else "")
        about = {"pid": 0, "tid": rank}
        events.append(about | {"name": "thread_name", "ph": "M", "args": {"name": label}})
        for name, kind, begin, seconds in spans:
            times = {"ts": 1e6 * (begin + offset - first), "dur": 1e6 * seconds}
            events.append(about | {"name": name, "cat": kind, "ph": "X"} | times)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _write_json(path: Path, value: Any) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot write the trace {path}: {error.strerror}") from None
