"""Carry one rank's exception to all ranks.

A rank that raises while the others go on to the next collective leaves them waiting for ever.
Ranks that agree first, in one small message, all raise. Here is the part without messages:
how an exception becomes a number and a text, and an exception again elsewhere.
"""

import builtins
import hashlib

from paropt_hpc import errors

__all__ = ["describe", "differences", "fingerprint", "rebuild"]


def fingerprint(error: Exception | None) -> int:
    """Reduce an exception to 62 bits: 0 for none, equal for equal type and text."""
    if error is None:
        return 0
    text = f"{type(error).__qualname__}: {error}"
    digest = hashlib.blake2b(text.encode(errors="replace"), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 2 | 1


def describe(error: Exception, rank: int) -> tuple[str, str]:
    """Name the type an exception can have on another rank, and its text there.

    That is the nearest base class which every rank has and which is made from one text: the
    exceptions of this package and the builtins. A type that gets lost is kept in the text.
    """
    for cls in type(error).__mro__:
        if cls.__module__ in ("builtins", errors.__name__) and _takes_text(cls):
            lost = "" if cls is type(error) else f"{type(error).__name__}: "
            return cls.__name__, f"rank {rank}: {lost}{error}"
    raise AssertionError("Exception itself is a builtin that takes a text")


def differences(calls: list[str]) -> str | None:
    """Say which ranks are in which call, or None if all are in the same; `calls` is by rank."""
    if len(set(calls)) < 2:
        return None
    groups: dict[str, list[int]] = {}
    for rank, call in enumerate(calls):
        groups.setdefault(call, []).append(rank)
    said = "; ".join(
        f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}: {call}"
        for call, ranks in groups.items()
    )
    return f"the ranks are not in the same collective: {said}; all must make the same calls"


def rebuild(kind: str, text: str) -> Exception:
    """Make the exception that :func:`describe` has named."""
    cls: type[Exception] = getattr(errors, kind, None) or getattr(builtins, kind)
    return cls(text)


def _takes_text(cls: type) -> bool:
    try:
        cls("")
    except TypeError:  # as UnicodeDecodeError, which wants five arguments
        return False
    return True
