"""A reduction that goes on while its caller computes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

__all__ = ["Request"]


class Request:
    """What :meth:`Communicator.start` returns; the buffer is the collective's until `wait`.

    Parameters
    ----------
    job : object, optional
        Of the native progress thread, with ``done()`` and ``wait()``; None if all is done.
    finish : callable
        Called once with the seconds that `wait` has waited, when the reduction has succeeded.
    """

    def __init__(self, job: Any, finish: Callable[[float], None]) -> None:
        self._job = job
        self._finish: Callable[[float], None] | None = finish

    def done(self) -> bool:
        """Say whether `wait` would return at once. Local."""
        return self._job is None or bool(self._job.done())

    def wait(self) -> None:
        """Wait until the result is there; a second call does nothing more.

        Raises
        ------
        CollectiveMismatch, CollectiveTimeout, RuntimeError
            What the reduction has failed with; the buffer is undefined then.
        """
        start = time.perf_counter()
        if self._job is not None:
            self._job.wait()
        if self._finish is not None:
            self._finish(time.perf_counter() - start)
            self._finish = None
