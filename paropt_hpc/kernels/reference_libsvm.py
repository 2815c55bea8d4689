"""The Python twin of ``csrc/libsvm``: word by word, with regular expressions."""

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["count_libsvm", "parse_libsvm"]

_LABEL, _INDEX, _ORDER, _VALUE, _RANGE = range(1, 6)
_NUMBER = re.compile(rb"[+-]?(?P<digits>[0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_WORD = re.compile(rb"[^ \t\v\f\r]+")


class _Fault(Exception):
    def __init__(self, offset: int, number: int) -> None:
        super().__init__()
        self.offset, self.number = offset, number


def count_libsvm(text: NDArray[np.uint8]) -> tuple[int, int]:
    """Count line ends and colons."""
    data = text.tobytes()
    return data.count(b"\n") + (data[-1:] not in (b"", b"\n")), data.count(b":")


def parse_libsvm(
    text: NDArray[np.uint8],
    base: int,
    labels: NDArray[Any],
    ends: NDArray[Any],
    columns: NDArray[Any],
    values: NDArray[Any],
) -> tuple[int, int, int, int]:
    """Return samples, entries, and where and what the first fault is (0: none)."""
    rows, entries, offset = 0, 0, 0
    try:
        for line in text.tobytes().split(b"\n"):
            words = list(_WORD.finditer(line.partition(b"#")[0]))
            if words:
                labels[rows] = _number(words[0].group(), offset + words[0].start(), _LABEL)
            previous = 0
            for word in words[1:]:
                at = offset + word.start()
                index, value = _entry(word.group(), at, previous)
                columns[entries], values[entries] = index - 1, value
                previous = index
                entries += 1
            if words:
                ends[rows] = base + entries
                rows += 1
            offset += len(line) + 1
    except _Fault as fault:
        return rows, entries, fault.offset, fault.number
    return rows, entries, text.size, 0


def _entry(word: bytes, at: int, previous: int) -> tuple[int, float]:
    digits, colon, rest = word.partition(b":")
    # No more than 15 digits, leading zeros included, are read as an index.
    if not colon or not re.fullmatch(rb"[0-9]{1,15}", digits) or not 1 <= int(digits) < 2**31:
        raise _Fault(at, _INDEX)
    if int(digits) <= previous:
        raise _Fault(at, _ORDER)
    value = _number(rest, at + len(digits) + 1, _VALUE)
    with np.errstate(over="ignore"):
        narrow = np.float32(value)
    if np.isinf(narrow):
        raise _Fault(at + len(digits) + 1, _RANGE)
    return int(digits), float(narrow)


def _number(word: bytes, at: int, fault: int) -> float:
    found = _NUMBER.fullmatch(word)
    if found is None:
        raise _Fault(at, fault)
    value = float(word)
    underflow = value == 0 and found["digits"].strip(b"0.") != b""
    if np.isinf(value) or underflow:
        raise _Fault(at, _RANGE)
    return value
