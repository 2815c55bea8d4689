"""LIBSVM text to arrays: the format in which sparse samples come, one a line.

A line is ``label index:value index:value ...`` with indices from 1, ascending; ``#`` starts a
comment, and empty lines count for nothing. Numbers are finite decimals; values are rounded to
float64 and from there to float32.
"""

import operator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paropt_hpc.kernels.backend import implementation
from paropt_hpc.kernels.checks import check_array, to_bytes

__all__ = ["Counts", "LibsvmError", "count", "parse"]

_FAULTS = (
    "",
    "expected a label, a finite number",
    "expected index:value with an index from 1 to 2147483647",
    "indices must ascend",
    "expected a finite number after the colon",
    "a number is out of the range of its type",
)


class Counts(NamedTuple):
    """How much room `parse` needs at most."""

    lines: int
    entries: int


class LibsvmError(ValueError):
    """Text that is not LIBSVM's.

    Attributes
    ----------
    offset : int
        Of the fault, in bytes.
    """

    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason)
        self.offset = offset


def count(text: Any) -> Counts:
    """Return how many samples and entries a text has at most, at the speed of memory.

    Parameters
    ----------
    text : bytes-like or ndarray of uint8
    """
    return Counts(*implementation().count_libsvm(to_bytes("text", text)))


def parse(
    text: Any,
    labels: NDArray[np.float64],
    ends: NDArray[np.int64],
    columns: NDArray[np.int32],
    values: NDArray[np.float32],
    base: int = 0,
) -> Counts:
    """Parse whole lines into arrays of the caller.

    Parameters
    ----------
    text : bytes-like or ndarray of uint8
        Not trusted.
    labels, ends : ndarray, float64 and int64
        At least ``count(text).lines`` long. Row i has the entries up to ``ends[i]``, counted
        from `base`.
    columns, values : ndarray, int32 and float32
        At least ``count(text).entries`` long. Columns count from 0.
    base : int
        Entries before this text.

    Returns
    -------
    Counts
        How many samples and entries have been written.

    Raises
    ------
    LibsvmError
        With the offset of the first fault.
    """
    data = to_bytes("text", text)
    room = count(data)
    for name, array, dtype, least in (
        ("labels", labels, np.float64, room.lines),
        ("ends", ends, np.int64, room.lines),
        ("columns", columns, np.int32, room.entries),
        ("values", values, np.float32, room.entries),
    ):
        check_array(name, array, (np.dtype(dtype),), writable=True)
        if array.size < least:
            raise ValueError(f"{name} must have room for {least}, got {array.size}")
    rows, entries, offset, fault = implementation().parse_libsvm(
        data, operator.index(base), labels, ends, columns, values
    )
    if fault:
        raise LibsvmError(_FAULTS[fault], offset)
    return Counts(rows, entries)
