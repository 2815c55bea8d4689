import numpy as np
import pytest

from paropt_hpc.comm.buffers import as_bytes, as_floats, grown


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(), (0,), (7,), (2, 3)])
def test_as_floats_is_a_view(shape, dtype):
    buffer = np.zeros(shape, dtype=dtype)
    flat = as_floats(buffer)
    flat += 1
    assert flat.shape == (buffer.size,)
    assert (buffer == 1).all()


@pytest.mark.parametrize("dtype", [np.bool_, np.int16, np.float64, np.complex64])
def test_as_bytes_is_a_view(dtype):
    buffer = np.zeros((2, 3), dtype=dtype)
    flat = as_bytes(buffer)
    flat[:] = 1
    assert flat.dtype == np.uint8
    assert flat.size == buffer.nbytes
    assert buffer.any()


def test_read_only_is_refused_unless_it_is_only_sent():
    buffer = np.zeros(3)
    buffer.flags.writeable = False
    assert as_bytes(buffer, writable=False).size == 24
    for view in (as_bytes, as_floats):
        with pytest.raises(ValueError, match="read-only"):
            view(buffer)


def test_grown_keeps_what_is_large_enough():
    scratch = np.empty(100, dtype=np.uint8)
    assert grown(scratch, 100) is scratch
    assert grown(scratch, 101).size == 150
    assert grown(scratch, 1000).size == 1000
