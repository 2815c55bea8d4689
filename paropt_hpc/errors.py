"""The package's exceptions, each a subclass of the builtin a caller would expect."""

__all__ = [
    "CollectiveMismatch",
    "CollectiveTimeout",
    "ConfigError",
    "DataError",
    "DivergenceError",
    "EvaluationError",
    "MPIMismatchError",
    "MPINotFoundError",
    "MessageError",
    "ParoptError",
    "StoppedError",
    "is_on_every_rank",
    "on_every_rank",
]


class ParoptError(Exception):
    """An error of this package; its text says what, expected, got and the remedy."""


class ConfigError(ParoptError, ValueError):
    """A setting is unknown, of the wrong type, or out of its range."""


class DataError(ParoptError, ValueError):
    """A data file is missing, truncated, or holds values that cannot be trained on."""


class MessageError(ParoptError, ValueError):
    """Encoded bytes are not a valid message: truncated, altered, or of another version."""


class DivergenceError(ParoptError, ArithmeticError):
    """The loss is no longer finite."""


class EvaluationError(ParoptError, RuntimeError):
    """Too many evaluations of an objective in a row have failed."""


class StoppedError(ParoptError, RuntimeError):
    """The run was told to stop, and has saved what it needs to go on."""

    status = 75  # of the process: sysexits.h's EX_TEMPFAIL, the same command once more goes on


class MPINotFoundError(ParoptError, ImportError):
    """No MPI library can be loaded."""


class MPIMismatchError(ParoptError, ImportError):
    """Two MPI libraries meet: the one built against, or launched by, and the one loaded."""


class CollectiveMismatch(ParoptError, RuntimeError):
    """The ranks called different collectives, or the same with arguments that do not match."""


class CollectiveTimeout(ParoptError, TimeoutError):
    """A rank did not arrive at a collective before the deadline."""


def on_every_rank(error: Exception) -> Exception:
    """Mark an error that every rank raises, so that none has to be ended because of it."""
    error.on_every_rank = True  # type: ignore[attr-defined]
    return error


def is_on_every_rank(error: BaseException) -> bool:
    """Say whether an error was marked as raised by every rank."""
    return getattr(error, "on_every_rank", False)
