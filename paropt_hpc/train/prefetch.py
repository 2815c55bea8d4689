"""Read ahead: the next batches are fetched by a thread while this one is computed on."""

import queue
import threading
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Generic, Self, TypeVar

__all__ = ["Prefetch"]

T = TypeVar("T")


class Prefetch(Generic[T]):
    """Iterate over what a thread takes from `items` ahead of time.

    An error in the thread is raised in the loop, in its place. Leaving the ``with`` block ends the
    thread, whether or not everything has been taken.

    Parameters
    ----------
    items : iterable
        Used by the thread alone from now on.
    depth : int
        How many items wait at most.

    Examples
    --------
    >>> with Prefetch(range(3)) as ahead:
    ...     print(*ahead)
    0 1 2
    """

    def __init__(self, items: Iterable[T], depth: int = 2) -> None:
        if depth < 1:
            raise ValueError(f"depth must be at least 1, got {depth}")
        self._items = items
        self._queue: queue.Queue[tuple[T] | BaseException | None] = queue.Queue(depth)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._fetch, name="paropt-prefetch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        while self._thread.is_alive():  # it may wait for room
            try:
                self._queue.get(timeout=0.01)
            except queue.Empty:
                continue
        self._thread.join()

    def __iter__(self) -> Iterator[T]:
        while True:
            found = self._queue.get()
            if found is None:
                return
            if isinstance(found, BaseException):
                raise found
            yield found[0]

    def _fetch(self) -> None:
        last: BaseException | None = None
        try:
            for item in self._items:
                self._queue.put((item,))
                if self._stop.is_set():
                    return
        except BaseException as error:
            last = error
        self._queue.put(last)
