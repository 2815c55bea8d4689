import numpy as np
import pytest

from paropt_hpc.kernels import rng


def draw(*name):
    return rng.philox(*name).integers(2**63, size=2).tolist()


def test_same_name_same_stream():
    assert draw(1, "shuffle", 0, 3) == draw(np.int64(1), "shuffle", 0, 3)


def test_other_name_other_stream():
    names = [
        (1, "shuffle"),
        (2, "shuffle"),
        (-1, "shuffle"),
        (2**200, "shuffle"),
        (1, "init"),
        (1, "shuffle", 0),
        (1, "shuffle", 1),
        (1, "shuffle", 0, 0),
        (1, "shuffle, 0"),
        (1, "shuffle'"),
    ]
    assert len({tuple(draw(*name)) for name in names}) == len(names)


def test_streams_are_frozen():
    # A run must be repeatable with every later version and on every machine.
    assert draw(2026, "shuffle", 1, 2) == [6996912593970107326, 6730870228725817928]


def test_errors():
    with pytest.raises(TypeError, match="purpose must be a string, got int"):
        rng.philox(1, 2)
    with pytest.raises(TypeError, match="integer"):
        rng.philox(1.5, "shuffle")
