"""Evaluate in a process of its own: what crashes or never returns ends that process only."""

import multiprocessing as mp
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.errors import ConfigError

__all__ = ["Isolated", "without_launcher"]

_START = 60.0  # seconds in which the process must have started and loaded the function
_LAUNCHER = ("PMI", "PMIX", "OMPI_", "PRTE_", "MPI_LOCAL", "HYDI_", "HYDRA_", "MPIR_", "SLURM_PROC")


class Isolated:
    """A function of one row that runs in a child process, which is killed when time is up.

    For compiled code that may crash or hang: a time limit of :class:`.Scalar` cannot interrupt
    it. The child lives from call to call, so that a call costs some tens of microseconds; after
    a crash or a kill the next call starts another one. Use it in place of the function:
    ``Scalar(Isolated(simulate, time_limit=60))``.

    Parameters
    ----------
    function : callable
        Importable in a new process: of a module, not a lambda or a local function.
    time_limit : float, optional
        Seconds for one call.

    Raises
    ------
    TimeoutError
        From a call that took longer.
    RuntimeError
        From a call that ended the child, naming the signal or status, or what the function
        raised.
    """

    repeatable = False
    _child: Any = None
    _pipe: Connection | None = None

    def __init__(self, function: Callable[..., Any], time_limit: float | None = None) -> None:
        if time_limit is not None and not time_limit > 0:
            raise ConfigError(f"time_limit must be above 0 s, got {time_limit}")
        self.function = function
        self.time_limit = time_limit

    def __call__(self, row: NDArray[np.float64]) -> Any:
        """Evaluate a row in the child."""
        if self._pipe is None:
            self._start()
        assert self._pipe is not None
        try:
            self._pipe.send(row)
            if not self._pipe.poll(self.time_limit):
                self.close()
                raise TimeoutError(f"took longer than {self.time_limit} s and was killed")
            good, value = self._pipe.recv()
        except (EOFError, ConnectionError):
            raise RuntimeError(self._obituary()) from None
        if not good:
            raise RuntimeError(value)
        return value

    def close(self) -> None:
        """Kill the child; the next call starts another one."""
        if self._child is not None:
            self._child.kill()
            self._child.join()
            self._child = self._pipe = None

    def __del__(self) -> None:
        self.close()

    def _start(self) -> None:
        context = mp.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._child = context.Process(target=_serve, args=(theirs, self.function), daemon=True)
        before = dict(os.environ)
        try:
            # The child is no rank, so it must not take itself for one.
            os.environ.clear()
            os.environ.update(without_launcher(before))
            self._child.start()
        finally:
            os.environ.clear()
            os.environ.update(before)
        theirs.close()
        try:
            if not self._pipe.poll(_START):
                self.close()
                raise RuntimeError(f"the child process did not start within {_START} s")
            self._pipe.recv()
        except EOFError:
            raise RuntimeError(self._obituary()) from None

    def _obituary(self) -> str:
        self._child.join()
        code = self._child.exitcode
        self._child = self._pipe = None
        if code is not None and code < 0:
            return f"the evaluation's process was ended by {signal.Signals(-code).name}"
        return f"the evaluation's process ended with status {code}"


def without_launcher(environ: dict[str, str]) -> dict[str, str]:
    """Return an environment without what an MPI launcher tells its ranks."""
    return {name: value for name, value in environ.items() if not name.startswith(_LAUNCHER)}


def _serve(pipe: Connection, function: Callable[..., Any]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    pipe.send(None)
    while True:
        try:
            row = pipe.recv()
        except EOFError:
            return
        try:
            answer = (True, function(row))
        except Exception as error:
            answer = (False, f"{type(error).__name__}: {error}")
        pipe.send(answer)
