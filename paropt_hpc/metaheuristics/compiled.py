"""Objectives that numba compiles to machine code and runs over the rows with its threads."""

import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from paropt_hpc.errors import ConfigError
from paropt_hpc.metaheuristics.evaluation import (
    Results,
    Rows,
    Scalar,
    classified,
    from_columns,
    read_only,
)

__all__ = ["Compiled"]

_WORTH = 1e-3  # seconds of work below which starting threads costs more than it saves


class Compiled:
    """An objective from a scalar function that numba can compile.

    The first call compiles, which takes seconds. Rows are spread over threads where there is
    enough work in a batch; the values do not depend on their number.

    Parameters
    ----------
    function : callable
        Takes a row, shape (d,), float64, read-only, and returns a float; compiled in nopython
        mode, or a function that numba has compiled already.
    threads : int, optional
        Default: ``OMP_NUM_THREADS``, else one.

    Raises
    ------
    ConfigError
        Without numba.
    """

    outputs = 1
    constrained = False

    def __init__(
        self,
        function: Callable[[Rows], float],
        *,
        threads: int | None = None,
        repeatable: bool = True,
    ) -> None:
        try:
            import numba
        except ImportError:
            raise ConfigError(
                "a compiled objective needs numba: pip install 'paropt-hpc[numba]'"
            ) from None
        self.repeatable = repeatable
        if threads is None:
            first = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0].strip()
            threads = int(first) if first.isdecimal() else 1
        self._threads = max(1, min(threads, numba.get_num_threads()))
        self._numba = numba
        compiled = function if hasattr(function, "py_func") else numba.njit(function)
        self._one = _loop(numba, compiled, parallel=False)
        self._many = _loop(numba, compiled, parallel=True) if self._threads > 1 else None
        self._single = Scalar(compiled)
        self._mean = 0.0  # seconds of one row on one thread

    def __call__(self, x: Rows) -> Results:
        """Evaluate all rows."""
        rows, f = read_only(x), np.empty(len(x))
        start = time.perf_counter()
        try:
            self._run(rows, f)
        except Exception:
            return self._single(x)  # row by row, to find which ones raise
        columns = f[:, None]
        status, texts = classified(columns)
        return from_columns(columns, status, texts, time.perf_counter() - start, self)

    def _run(self, rows: Rows, f: Rows) -> None:
        if self._many is not None and self._mean * len(rows) > _WORTH:
            self._numba.set_num_threads(self._threads)
            self._many(rows, f)
            return
        compiled = bool(self._one.signatures)
        start = time.perf_counter()
        self._one(rows, f)
        if compiled and len(rows):
            self._mean = (time.perf_counter() - start) / len(rows)


def _loop(numba: Any, compiled: Any, parallel: bool) -> Any:
    @numba.njit(parallel=parallel, nogil=True)
    def loop(rows, f):  # type: ignore[no-untyped-def]
        for i in numba.prange(len(rows)):
            f[i] = compiled(rows[i])

    return loop
