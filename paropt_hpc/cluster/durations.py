"""Wall-clock times as people write them and as Slurm does."""

import re

from paropt_hpc.errors import ConfigError

__all__ = ["parse_duration", "slurm_duration"]

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_WORDS = re.compile(r"(?:\d+(?:\.\d+)?[dhms])+")
# Slurm's own: minutes, minutes:seconds, hours:minutes:seconds, or any of them after days-.
_CLOCK = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")


def parse_duration(text: str) -> int:
    """Return the seconds of a time such as ``2h``, ``1h30m``, ``90m``, or one in Slurm's notation.

    Raises
    ------
    ConfigError
        When the text is neither, or the time is zero.
    """
    written = text.strip().lower().replace(" ", "")
    if _WORDS.fullmatch(written):
        parts = re.findall(r"([\d.]+)([dhms])", written)
        seconds = round(sum(float(number) * _UNITS[unit] for number, unit in parts))
    elif match := _CLOCK.fullmatch(written):
        seconds = _clock_seconds(*match.groups())
    else:
        raise ConfigError(
            f"time {text!r} cannot be read; write 90m, 2h, 1h30m, 1d, or as Slurm does "
            "(minutes, hours:minutes:seconds, days-hours)"
        )
    if seconds <= 0:
        raise ConfigError(f"time must be longer than 0, got {text!r}")
    return seconds


def _clock_seconds(days: str | None, *parts: str | None) -> int:
    numbers = [int(part) for part in parts if part is not None]
    if days is not None:  # days-hours[:minutes[:seconds]]
        hours, minutes, seconds = [*numbers, 0, 0][:3]
        return int(days) * 86400 + hours * 3600 + minutes * 60 + seconds
    if len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:  # minutes[:seconds]
        hours, (minutes, seconds) = 0, [*numbers, 0][:2]
    return hours * 3600 + minutes * 60 + seconds


def slurm_duration(seconds: int) -> str:
    """Write seconds as Slurm's ``[days-]hours:minutes:seconds``."""
    days, rest = divmod(seconds, 86400)
    clock = f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    return f"{days}-{clock}" if days else clock
