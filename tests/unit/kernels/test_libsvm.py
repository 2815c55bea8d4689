import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paropt_hpc.kernels import libsvm, reference

GOOD = b"1 1:0.5 3:2 # note\n\n  \n+1.5e1\t2:-1e3\r\n-0 7:.25 9:1. 2147483647:3\n# only\n4"


def parsed(text, base=0):
    room = libsvm.count(text)
    arrays = (
        np.full(room.lines, np.nan),
        np.full(room.lines, -1, np.int64),
        np.full(room.entries, -1, np.int32),
        np.full(room.entries, np.nan, np.float32),
    )
    rows, entries = libsvm.parse(text, *arrays, base)
    return [a[:n] for a, n in zip(arrays, (rows, rows, entries, entries), strict=True)]


def outcome(text):
    try:
        return [array.tolist() for array in parsed(text)]
    except libsvm.LibsvmError as error:
        return str(error), error.offset


def test_samples(path):
    labels, ends, columns, values = parsed(GOOD, base=10)
    assert labels.tolist() == [1, 15, 0, 4]
    assert np.signbit(labels[2])
    assert ends.tolist() == [12, 13, 16, 16]
    assert columns.tolist() == [0, 2, 1, 6, 8, 2**31 - 2]
    assert values.tolist() == [0.5, 2, -1000, 0.25, 1, 3]


@pytest.mark.parametrize("text", [b"", b"\n", b"#", b"# 1:2\n\n"])
def test_nothing(path, text):
    assert [array.size for array in parsed(text)] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("text", "reason", "offset"),
    [
        (b"0 1:1\nspam 1:2\n", "expected a label", 6),
        (b"nan 1:2", "expected a label", 0),
        (b"0 1:1 2", "expected index:value", 6),
        (b"0 0:1", "expected index:value", 2),
        (b"0 -1:1", "expected index:value", 2),
        (b"0 2147483648:1", "expected index:value", 2),
        (b"0 9999999999999999999999:1", "expected index:value", 2),
        (b"0 qid:3 1:1", "expected index:value", 2),
        (b"0 3:1 2:1", "must ascend", 6),
        (b"0 3:1 3:1", "must ascend", 6),
        (b"0 1:", "finite number after", 4),
        (b"0 1:x", "finite number after", 4),
        (b"0 1:inf", "finite number after", 4),
        (b"0 1:1e", "finite number after", 4),
        (b"0 1:+-1", "finite number after", 4),
        (b"0 1:1:1", "finite number after", 4),
        (b"0 1:1\0", "finite number after", 4),
        (b"0 1:1e999x", "finite number after", 4),
        (b"0 1:1e999", "out of the range", 4),
        (b"0 1:1e-999", "out of the range", 4),
        (b"0 1:-1e39", "out of the range", 4),
        (b"1e999", "out of the range", 0),
    ],
)
def test_faults_are_named_with_their_place(path, text, reason, offset):
    with pytest.raises(libsvm.LibsvmError, match=reason) as caught:
        parsed(text)
    assert caught.value.offset == offset


NUMBERS = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.integers(-(10**18), 10**18).map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=9).map(str),
    st.from_regex(r"[+-]?([0-9]{0,20}\.?[0-9]{0,20})([eE][+-]?[0-9]{1,3})?", fullmatch=True),
)


@given(st.lists(NUMBERS, min_size=1, max_size=6))
def test_numbers_are_those_of_the_twin_to_the_bit(numbers):
    text = " ".join([numbers[0], *(f"{i}:{x}" for i, x in enumerate(numbers[1:], 1))]).encode()
    assert outcome(text) == twin(text)


@given(st.lists(st.sampled_from([b"0", b"17", b"1:", b":", b" ", b"\n", b"#", b".", b"-", b"e5"])))
def test_any_text_has_the_outcome_of_the_twin(pieces):
    text = b"".join(pieces)
    assert outcome(text) == twin(text)


def twin(text):
    """What the Python twin makes of it, which counts no less room than it needs."""
    data = np.frombuffer(text, np.uint8)
    lines, entries = reference.count_libsvm(data)
    arrays = np.empty(lines), np.empty(lines, np.int64)
    arrays += np.empty(entries, np.int32), np.empty(entries, np.float32)
    rows, count, offset, fault = reference.parse_libsvm(data, 0, *arrays)
    if fault:
        return libsvm._FAULTS[fault], offset
    return [a[:n].tolist() for a, n in zip(arrays, (rows, rows, count, count), strict=True)]


def test_room_and_types(path):
    arrays = [np.empty(1), np.empty(1, np.int64), np.empty(1, np.int32), np.empty(1, np.float32)]
    with pytest.raises(ValueError, match="columns must have room for 2, got 1"):
        libsvm.parse(b"1 1:1 2:2", *arrays)
    with pytest.raises(TypeError, match="labels must be float64"):
        libsvm.parse(b"1 1:1", arrays[0].astype("float32"), *arrays[1:])
    with pytest.raises(TypeError, match="text must be bytes"):
        libsvm.count("1 1:1")
