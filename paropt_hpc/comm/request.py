"""A reduction that goes on while its caller computes."""

from __future__ import annotations

from collections.abc import Callable

__all__ = ["Request"]


class Request:
    """What :meth:`Communicator.start` returns; the buffer is the collective's until `wait`.

    Parameters
    ----------
    done, wait : callable, optional
        Ask whether the reduction is over, and wait until it is; None where it is over already.
    """

    def __init__(
        self, done: Callable[[], bool] | None = None, wait: Callable[[], None] | None = None
    ) -> None:
        self._done = done
        self._wait = wait

    def done(self) -> bool:
        """Say whether `wait` would return at once. Local."""
        return self._done is None or bool(self._done())

    def wait(self) -> None:
        """Wait until the result is there; a second call does nothing more.

        Raises
        ------
        CollectiveMismatch, CollectiveTimeout, RuntimeError
            What the reduction has failed with, at every call; the buffer is undefined then.
        """
        if self._wait is not None:
            self._wait()
            self._wait = None
