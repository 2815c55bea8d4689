"""A request from outside to stop: SIGTERM or SIGUSR1, as schedulers send before the time is up."""

import signal
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["StopRequest"]

SIGNALS = (signal.SIGTERM, signal.SIGUSR1)


class StopRequest:
    """While entered, note a signal instead of dying of it.

    A scheduler may signal one process only, so ranks must tell one another; `number` is what
    this one has seen, 0 for nothing. Outside the main thread signals stay as they are.
    """

    def __init__(self) -> None:
        self.number = 0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        try:
            for number in SIGNALS:
                self._before[number] = signal.signal(number, self._note)
        except ValueError:  # not the main thread
            self._before.clear()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.number = number
