"""A peer in a process of its own: another interpreter, or other settings of the environment.

A worker script reads names of operations, one a line, runs each a few times in a row and answers
with its median seconds.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["Seconds", "Worker", "serve"]


class Seconds(float):
    """What a candidate returns that measures itself."""


class Worker:
    """The near end: calls that measure themselves at the far end.

    Parameters
    ----------
    script : Path
        Calls `serve` with its operations.
    arguments : str
        Passed to the script.
    python : str
        The interpreter.
    environment : mapping
        Added to ours.
    """

    def __init__(
        self,
        script: Path,
        *arguments: str,
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._process = subprocess.Popen(
            [python, str(script), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        #: what the operations produced: name to bits per index, or None
        self.offers: dict[str, float | None] = json.loads(self._line())

    def call(self, name: str) -> Callable[[], Seconds]:
        """Return a call of one operation."""

        def run() -> Seconds:
            assert self._process.stdin is not None
            self._process.stdin.write(name + "\n")
            self._process.stdin.flush()
            return Seconds(self._line())

        return run

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError("the worker ended; its error stands above")
        return line


def serve(
    operations: Mapping[str, Callable[[], object]],
    offers: Mapping[str, float | None],
    times: int = 1,
) -> None:
    """Answer requests until the near end closes."""
    print(json.dumps(offers), flush=True)
    for line in sys.stdin:
        operation, taken = operations[line.strip()], []
        for _ in range(times):
            started = time.perf_counter()
            operation()
            taken.append(time.perf_counter() - started)
        print(statistics.median(taken), flush=True)
