"""What is evaluated: objectives that cannot end a run.

An *objective* takes rows, shape (m, d), and gives :class:`Results`: a value for each row, or NaN
and the reason why there is none. Here are those made from Python functions, of one row or of many;
where the rows are evaluated is the business of an evaluator (:mod:`.evaluators`).

A time limit is kept by an alarm signal, which interrupts Python code and most system calls, in the
main thread only. Compiled code that does not return to Python cannot be interrupted so: run it in
a process of its own (:class:`paropt_hpc.metaheuristics.Isolated`).
"""

import signal
import threading
import time
from collections.abc import Callable, Sequence
from enum import IntEnum
from types import FrameType
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.errors import ConfigError, EvaluationError

__all__ = [
    "Objective",
    "Results",
    "Scalar",
    "Status",
    "Tally",
    "Vectorised",
    "as_objective",
    "from_columns",
]

Rows = NDArray[np.float64]
_FLOATS = (float, np.float64)
_TEXT = 300  # characters of a cause that are kept


class Status(IntEnum):
    """How an evaluation has ended."""

    OK = 0
    RAISED = 1
    NAN = 2
    INFINITE = 3
    NONE = 4
    SHAPE = 5
    TIMEOUT = 6

    @property
    def label(self) -> str:
        """What a person reads."""
        return _LABELS[self]


_LABELS = dict(
    zip(
        Status,
        ["ok", "raised", "NaN", "infinite", "None", "wrong shape", "out of time"],
        strict=True,
    )
)


class Results(NamedTuple):
    """The outcome of evaluating m rows."""

    #: shape (m,), or (m, k) for k objectives, float64; NaN where the evaluation has failed
    f: NDArray[np.float64]
    #: shape (m,), uint8: a `Status` for each row
    status: NDArray[np.uint8]
    #: causes in words by row, of those rows that this rank has evaluated itself
    texts: dict[int, str]
    #: seconds that this rank spent evaluating
    seconds: float
    #: whether any rank has asked for an end of the run
    stop: bool = False
    #: shape (m,), how much constraints are violated in total; None without constraints
    violation: NDArray[np.float64] | None = None

    def columns(self) -> NDArray[np.float64]:
        """Return values and violations side by side, shape (m, k) or (m, k + 1)."""
        f = self.f.reshape(len(self.f), -1) if self.f.size else self.f.reshape(len(self.f), 1)
        return f if self.violation is None else np.column_stack([f, self.violation])


def from_columns(
    columns: NDArray[np.float64],
    status: NDArray[np.uint8],
    texts: dict[int, str],
    seconds: float,
    objective: "Objective",
) -> Results:
    """Undo `Results.columns` for the results of an objective."""
    k = objective.outputs
    f = columns[:, 0] if k == 1 else columns[:, :k]
    violation = np.ascontiguousarray(columns[:, k]) if objective.constrained else None
    return Results(np.ascontiguousarray(f), status, texts, seconds, violation=violation)


class Objective(Protocol):
    """Evaluates rows; a failure is a result, never an exception. Local."""

    #: objectives, the k of `Results.f`
    outputs: int
    #: whether there is a constraint violation beside them
    constrained: bool
    #: whether the same row always has the same result, however long it takes
    repeatable: bool

    def __call__(self, x: Rows) -> Results:
        """Evaluate rows, shape (m, d), which are not changed."""
        ...


class _Overdue(BaseException):
    """Not an `Exception`, so that an objective that catches those does not swallow it."""


class Alarm:
    """Interrupts the main thread some seconds after it was set."""

    def __init__(self, seconds: float | None) -> None:
        if seconds is not None and not seconds > 0:
            raise ConfigError(f"time_limit must be above 0 s, got {seconds}")
        self.seconds = seconds
        self._armed = False

    def __enter__(self) -> None:
        if self.seconds is None:
            return
        if threading.current_thread() is not threading.main_thread():
            raise ConfigError("time_limit needs the main thread; elsewhere wrap it in Isolated")
        self._before = signal.signal(signal.SIGALRM, self._ring)

    def __exit__(self, *_: object) -> None:
        if self.seconds is not None:
            signal.signal(signal.SIGALRM, self._before)

    def call(self, function: Callable[[Any], Any], row: Rows) -> Any:
        """Call a function, but raise `_Overdue` in it when the time is up."""
        if self.seconds is None:
            return function(row)
        self._armed = True
        try:
            # Again every second: code that swallows the first interruption meets the next one.
            signal.setitimer(signal.ITIMER_REAL, self.seconds, 1.0)
            return function(row)
        finally:
            self._armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        if self._armed:
            raise _Overdue


class Scalar:
    """An objective from a function of one row.

    Parameters
    ----------
    function : callable
        Takes a row, shape (d,), float64, a copy it may change; returns a number, or for several
        objectives that many numbers.
    outputs : int
        How many numbers it returns.
    constrained : bool
        It returns one number more, the last: how much constraints are violated, 0 if they hold.
    retries : int
        How often to try again after a failure.
    time_limit : float, optional
        Seconds for one evaluation; see the head of this module for what it can interrupt.
    repeatable : bool, optional
        Whether the same row always gives the same. Default: unless there is a time limit.
    """

    def __init__(
        self,
        function: Callable[[Rows], Any],
        *,
        outputs: int = 1,
        constrained: bool = False,
        retries: int = 0,
        time_limit: float | None = None,
        repeatable: bool | None = None,
    ) -> None:
        if retries < 0 or outputs < 1:
            raise ConfigError(
                f"retries must be at least 0 and outputs at least 1, got {retries} and {outputs}"
            )
        self.function = function
        self.outputs = outputs
        self.constrained = constrained
        self.retries = retries
        self._width = outputs + constrained
        self.repeatable = time_limit is None if repeatable is None else repeatable
        self._alarm = Alarm(time_limit)

    def __call__(self, x: Rows) -> Results:
        """Evaluate the rows one after the other."""
        start = time.perf_counter()
        rows, m = x.copy(), len(x)
        f = np.full(m if self._width == 1 else (m, self._width), np.nan)
        status = np.zeros(m, np.uint8)
        texts: dict[int, str] = {}
        with self._alarm:
            for i in range(m):
                value, code, text = self._try(rows[i])
                if code and self.retries:
                    value, code, text = self._again(x[i], value, code, text)
                if code:
                    status[i], texts[i] = code, text
                else:
                    f[i] = value
        return from_columns(
            f.reshape(m, self._width), status, texts, time.perf_counter() - start, self
        )

    def _again(self, row: Rows, value: Any, code: int, text: str) -> tuple[Any, int, str]:
        for _ in range(self.retries):
            if code:
                value, code, text = self._try(row.copy())
        return value, code, text

    def _try(self, row: Rows) -> tuple[Any, int, str]:
        """Return value, status and cause of one evaluation."""
        try:
            value = self._alarm.call(self.function, row)
        except _Overdue:
            return None, Status.TIMEOUT, f"took longer than {self._alarm.seconds} s"
        except TimeoutError as error:
            return None, Status.TIMEOUT, said(error)
        except (Exception, SystemExit) as error:
            return None, Status.RAISED, said(error)
        if self._width > 1 or type(value) not in _FLOATS:
            return judged(value, self._width)
        if -_HUGE <= value <= _HUGE:
            return value, 0, ""
        if value != value:
            return None, Status.NAN, "returned NaN"
        return None, Status.INFINITE, f"returned {value}"


_HUGE = float(np.finfo(np.float64).max)


class Vectorised:
    """An objective from a function of all rows at once.

    Where the function raises or returns another shape, it is asked again row by row, so that one
    bad row costs its own value only.

    Parameters
    ----------
    function : callable
        Takes rows, shape (m, d), float64, read-only: large populations are not copied. Returns
        shape (m,), or (m, k).
    outputs : int
        k, the number of objectives.
    constrained : bool
        It returns one column more, the last: how much constraints are violated, 0 if they hold.
    repeatable : bool
        Whether the same row always gives the same, in whatever company.
    """

    def __init__(
        self,
        function: Callable[[Rows], Any],
        *,
        outputs: int = 1,
        constrained: bool = False,
        repeatable: bool = True,
    ) -> None:
        self.function = function
        self.outputs = outputs
        self.constrained = constrained
        self.repeatable = repeatable
        self._width = outputs + constrained
        self._single = Scalar(self._one, outputs=outputs, constrained=constrained)

    def __call__(self, x: Rows) -> Results:
        """Evaluate all rows."""
        start = time.perf_counter()
        shape = (len(x),) if self._width == 1 else (len(x), self._width)
        try:
            f = np.array(self.function(read_only(x)), np.float64)
            if f.shape != shape:
                raise ValueError(f"the function returned shape {f.shape}, expected {shape}")
        except (Exception, SystemExit):
            return self._single(x)
        columns = f.reshape(len(x), self._width)
        status, texts = classified(columns)
        return from_columns(columns, status, texts, time.perf_counter() - start, self)

    def _one(self, row: Rows) -> Any:
        values = np.asarray(self.function(row[None]))
        if values.shape[:1] != (1,):
            raise ValueError(f"the function returned shape {values.shape} for one row")
        return values[0]


def as_objective(function: Any) -> Objective:
    """Return an objective as it is, and a plain function of one row as a `Scalar`."""
    if hasattr(function, "outputs") and hasattr(function, "repeatable"):
        return function  # type: ignore[no-any-return]
    if not callable(function):
        raise TypeError(f"an objective must be callable, got {type(function).__name__}")
    return Scalar(function)


def judged(value: Any, outputs: int) -> tuple[Any, int, str]:
    """Return a value as float64, its status, and what is wrong with it."""
    if value is None:
        return None, Status.NONE, "returned None"
    shape = () if outputs == 1 else (outputs,)
    try:
        array = np.asarray(value)
        if array.shape != shape:
            wanted = "a number" if outputs == 1 else f"shape {shape}"
            return None, Status.SHAPE, f"returned shape {array.shape}, expected {wanted}"
        if array.dtype.kind not in "fiub":
            raise TypeError
        number = array.astype(np.float64)
    except (TypeError, ValueError):
        return None, Status.SHAPE, f"returned {type(value).__name__}, expected a number"
    if np.isnan(number).any():
        return None, Status.NAN, "returned NaN"
    if np.isinf(number).any():
        return None, Status.INFINITE, f"returned {number}"
    return number, 0, ""


def read_only(x: Rows) -> Rows:
    """Return a view that an objective cannot change."""
    view = x.view()
    view.flags.writeable = False
    return view


def classified(columns: NDArray[np.float64]) -> tuple[NDArray[np.uint8], dict[int, str]]:
    """Return statuses and causes of values that may be NaN or infinite.

    Rows that have failed are set to NaN in place.
    """
    status = np.zeros(len(columns), np.uint8)
    if np.isfinite(columns).all():
        return status, {}
    status[np.isinf(columns).any(axis=1)] = Status.INFINITE
    status[np.isnan(columns).any(axis=1)] = Status.NAN
    failed = np.flatnonzero(status)
    columns[failed] = np.nan
    return status, {int(i): f"returned {Status(status[i]).label}" for i in failed}


def said(error: BaseException) -> str:
    """Return type and text of an exception in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:_TEXT] if text else type(error).__name__


class Tally:
    """Counts evaluations and failures, and ends a run of failures.

    Parameters
    ----------
    limit : int
        So many failures in a row are too many.
    """

    def __init__(self, limit: int = 1000) -> None:
        if limit < 1:
            raise ConfigError(f"max_failures must be at least 1, got {limit}")
        self.limit = limit
        self.evaluations = 0
        self.counts = np.zeros(len(Status), np.int64)
        self.examples: dict[int, str] = {}  # the first cause of each status, seen on this rank
        self._row = 0  # failures since the last success
        self._worst = 0

    def add(self, results: Results) -> None:
        """Count the results of some rows, in their order."""
        status = results.status
        if not status.any():
            self.add_successes(len(status))
            return
        self.evaluations += len(status)
        self.counts += np.bincount(status, minlength=len(Status))
        good = np.flatnonzero(status == 0)
        edges = np.concatenate([[-1 - self._row], good, [len(status)]])
        self._worst = max(self._worst, int(np.diff(edges).max()) - 1)
        self._row = len(status) - 1 - int(edges[-2])
        for row, text in results.texts.items():
            self.examples.setdefault(int(status[row]), text)

    def add_successes(self, count: int) -> None:
        """Count rows that all have a value."""
        self.evaluations += count
        self.counts[0] += count
        self._row = 0 if count else self._row

    @property
    def exhausted(self) -> bool:
        """Whether too many in a row have failed; the same on all ranks that saw all rows."""
        return self._worst >= self.limit

    @property
    def failures(self) -> dict[str, int]:
        """How many have failed, by cause."""
        return {s.label: int(self.counts[s]) for s in Status if s and self.counts[s]}

    def error(self, causes: Sequence[str]) -> EvaluationError:
        """Return the error that ends the run."""
        counted = ", ".join(f"{count} {label}" for label, count in self.failures.items())
        cause = causes[0] if causes else "unknown"
        return EvaluationError(
            f"{self._worst} evaluations in a row have failed ({counted} of {self.evaluations}); "
            f"the first cause: {cause}; mend the objective or raise max_failures ({self.limit})"
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the counters."""
        return {
            "evaluations": self.evaluations,
            "counts": self.counts.copy(),
            "row": self._row,
            "worst": self._worst,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from counters that were saved."""
        self.evaluations = int(state["evaluations"])
        self.counts[:] = state["counts"]
        self._row, self._worst = int(state["row"]), int(state["worst"])
