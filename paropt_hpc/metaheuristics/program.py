"""One run of an external program for each evaluation, as simulations are run on clusters."""

import contextlib
import os
import re
import shlex
import shutil
import signal
import string
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.errors import ConfigError
from paropt_hpc.metaheuristics.isolated import without_launcher

__all__ = ["Program"]

# Not the "inf" of "information", nor the 2 of "step2" or of "1.0.2"; Fortran writes 1.5D-3.
_NUMBER = re.compile(
    r"(?:[-+]|(?<![\w.]))(?:(?:\d+\.?\d*|\.\d+)(?:[ed][-+]?\d+)?|(?:nan|inf(?:inity)?)(?!\w))",
    re.IGNORECASE,
)


class Program:
    """A function of one row that runs a program and reads a number from what it leaves.

    Use it in place of a Python function: ``Scalar(Program("./simulate {x0} {x1}"))``, with any
    evaluator. Each evaluation has a folder of its own, in which the program is started. It does
    not see that it was started by a rank, so that it may be an MPI program itself.

    Parameters
    ----------
    command : str
        Split into words like a shell does, but no shell runs it. In braces: ``x0``, ``x1``, ... for
        the numbers of the row, or the names of the variables where `decode` gives a dict;
        ``folder`` for the folder of the evaluation. Formats like ``{x0:.3f}`` work; without one, a
        number is written so that it reads back as the same. Words that name files of the current
        folder, such as the program or a script, are made absolute.
    inputs : mapping of str to str, optional
        Files to write into the folder before the start: name to template, with the same braces.
    output : str, optional
        A file in the folder to read; by default what the program prints.
    outputs : int
        How many numbers to read: the last ones of the last line that has any.
    time_limit : float, optional
        Seconds, after which the program and all that it has started are killed.
    folder : str or Path, optional
        Where the folders of the evaluations are made; by default the system's temporary folder.
    keep : {"failed", "all", "none"}
        Which folders to keep.
    decode : callable, optional
        From a row to a dict of values, such as :meth:`.Space.decode`.

    Raises
    ------
    TimeoutError
        From a call whose program took longer.
    RuntimeError
        From a call whose program failed or printed no number, with the last line of its error.
    """

    repeatable = False

    def __init__(
        self,
        command: str,
        *,
        inputs: Mapping[str, str] | None = None,
        output: str | None = None,
        outputs: int = 1,
        time_limit: float | None = None,
        folder: str | Path | None = None,
        keep: str = "none",
        decode: Callable[[NDArray[np.float64]], Any] | None = None,
    ) -> None:
        if keep not in ("failed", "all", "none"):
            raise ConfigError(f"keep must be failed, all or none, got {keep!r}")
        if time_limit is not None and not time_limit > 0:
            raise ConfigError(f"time_limit must be above 0 s, got {time_limit}")
        self._words = _split(command)
        self._inputs = dict(inputs or {})
        self._output = output
        self._outputs = outputs
        self._time_limit = time_limit
        self._folder = Path(folder).absolute() if folder is not None else None
        self._keep = keep
        self._decode = decode
        for template in (*self._words, *self._inputs.values()):
            _check_template(template)
        for name in map(Path, self._inputs):
            if name.is_absolute() or ".." in name.parts:
                raise ConfigError(
                    f"inputs must be files in the folder of the run, got {str(name)!r}"
                )

    def check(self, row: NDArray[np.float64]) -> None:
        """Raise unless the values of a row fill the braces; starts nothing.

        Raises
        ------
        ConfigError
            Naming what is not there, or how it cannot be written.
        """
        values = self._values(row) | {"folder": _Text(Path())}
        for template in (*self._words, *self._inputs.values()):
            try:
                _filled(template, values)
            except (RuntimeError, ValueError, TypeError, AttributeError) as error:
                raise ConfigError(f"cannot fill {template!r}: {error}") from None

    def __call__(self, row: NDArray[np.float64]) -> Any:
        """Run the program for a row."""
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(prefix="evaluation-", dir=self._folder)).absolute()
        good = False
        try:
            value = self._run(row, folder)
            good = True
            return value
        finally:
            if self._keep == "none" or (self._keep == "failed" and good):
                shutil.rmtree(folder, ignore_errors=True)

    def _run(self, row: NDArray[np.float64], folder: Path) -> Any:
        values = self._values(row) | {"folder": _Text(folder)}
        for name, template in self._inputs.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(_filled(template, values), encoding="utf-8")
        command = [_filled(word, values) for word in self._words]
        printed = _finish(command, folder, self._time_limit)
        if self._output is None:
            return _numbers(printed, self._outputs, "its output")
        try:
            text = (folder / self._output).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise RuntimeError(f"the program left no {self._output}: {error.strerror}") from None
        return _numbers(text, self._outputs, self._output)

    def _values(self, row: NDArray[np.float64]) -> dict[str, Any]:
        decoded = self._decode(row) if self._decode is not None else row
        if isinstance(decoded, dict):
            return {name: _Text(value) for name, value in decoded.items()}
        return {f"x{i}": _Text(value) for i, value in enumerate(np.atleast_1d(decoded).tolist())}


class _Text:
    """A value in a template; vectors are joined by spaces."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __format__(self, spec: str) -> str:
        if isinstance(self._value, list | tuple | np.ndarray):
            return " ".join(
                format(_Text(value), spec) for value in np.asarray(self._value).tolist()
            )
        if spec:
            return format(self._value, spec)
        return repr(self._value) if isinstance(self._value, float) else str(self._value)


def _split(command: str) -> list[str]:
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ConfigError(f"command {command!r} cannot be split: {error}") from None
    if not words:
        raise ConfigError("command must name a program, got nothing")
    # The program starts in another folder, where relative names would mean nothing.
    words = [str(Path(w).absolute()) if "{" not in w and _is_file(w) else w for w in words]
    if "{" not in words[0] and shutil.which(words[0]) is None:
        raise ConfigError(f"there is no program {words[0]!r}; give its path")
    return words


def _is_file(word: str) -> bool:
    try:
        return Path(word).is_file()
    except OSError:  # a word too long for a name
        return False


def _check_template(template: str) -> None:
    try:
        list(string.Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(
            f"bad braces in {template!r}: {error}; double them to mean braces"
        ) from None


def _filled(template: str, values: dict[str, Any]) -> str:
    try:
        return template.format_map(values)
    except (KeyError, IndexError) as error:
        raise RuntimeError(
            f"{{{error.args[0]}}} in {template!r} is none of {', '.join(values)}"
        ) from None


def _finish(command: list[str], folder: Path, time_limit: float | None) -> str:
    """Run a command to its end and return what it has printed."""
    with subprocess.Popen(
        command,
        cwd=folder,
        env=without_launcher(dict(os.environ)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    ) as process:
        try:
            printed, complaints = process.communicate(timeout=time_limit)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"the program took longer than {time_limit} s") from None
        finally:
            # All that it has started is in its session, and goes with it.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        last = next((line for line in reversed(complaints.splitlines()) if line.strip()), "")
        raise RuntimeError(f"the program ended with status {process.returncode}: {last.strip()}")
    return printed


def _numbers(text: str, count: int, source: str) -> Any:
    for line in reversed(text.splitlines()):
        found = _NUMBER.findall(line)
        if len(found) >= count:
            numbers = [float(word.lower().replace("d", "e")) for word in found[-count:]]
            return numbers[0] if count == 1 else numbers
    raise RuntimeError(f"{source} has no line with {count} number(s)")
