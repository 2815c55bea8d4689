import os
import subprocess
import sys
from collections import Counter

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from paropt_hpc.kernels import backend, topk

BLOCK = 16384
DTYPES = [np.float32, np.float64, np.float16, ml_dtypes.bfloat16]


def bits(array):
    return array.view(f"u{array.itemsize}")


def order(acc):
    """Return all positions, the largest magnitude first, the lowest position first among equals."""
    magnitude = bits(acc).astype(np.uint64) & ((1 << (8 * acc.itemsize - 1)) - 1)
    return np.lexsort((np.arange(acc.size), -magnitude.astype(np.int64)))


def wide(array):
    with np.errstate(all="ignore"):
        return array.astype(np.float64)


def check_select(gradient, k, residual=None, hint=None):
    with np.errstate(all="ignore"):
        acc = gradient.copy() if residual is None else residual + gradient
    gradient_before = gradient.copy()
    indices, values, nonfinite = topk.select(gradient, k, residual, hint=hint)

    assert indices.dtype == np.uint32
    np.testing.assert_array_equal(indices, np.sort(order(acc)[:k]))
    np.testing.assert_array_equal(bits(values), bits(acc[indices]))
    assert nonfinite == np.count_nonzero(~np.isfinite(wide(acc)))
    np.testing.assert_array_equal(bits(gradient), bits(gradient_before))
    if residual is not None:
        assert not residual[indices].any()
        residual[indices] += values
        np.testing.assert_array_equal(bits(residual), bits(acc))


def floats(dtype):
    """Few distinct values, so that ties are common, and every special one."""
    info = ml_dtypes.finfo(dtype)
    special = [info.smallest_subnormal, info.tiny, info.max]
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, *map(float, special), 1.0, -1.0, 2.0]
    width = 64 if dtype is np.float64 else 32
    return st.one_of(st.sampled_from(special), st.floats(width=width))


def arrays(data, dtype, n, fill):
    drawn_as = np.float64 if dtype is np.float64 else np.float32
    elements = floats(dtype)
    drawn = data.draw(hnp.arrays(drawn_as, n, elements=elements, fill=st.just(fill)))
    with np.errstate(all="ignore"):
        return drawn.astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_any_values(path, dtype, data):
    n = data.draw(st.integers(0, 300))
    check_select(arrays(data, dtype, n, 1.0), data.draw(st.integers(0, n)))


@pytest.mark.parametrize("dtype", DTYPES)
@given(data=st.data())
def test_any_values_with_residual(path, dtype, data):
    n = data.draw(st.integers(0, 300))
    gradient, residual = arrays(data, dtype, n, 1.0), arrays(data, dtype, n, 0.5)
    # Which of two NaNs a sum keeps is up to the processor; a residual of -0 cannot come about.
    residual[np.isnan(wide(residual)) | (residual == 0)] = 0
    check_select(gradient, data.draw(st.integers(0, n)), residual)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("n", [0, 1, 63, 64, 65, BLOCK - 1, BLOCK, BLOCK + 1, 50_001])
@pytest.mark.parametrize("density", [0, 0.01, 0.5, 1])
def test_sizes(path, dtype, n, density):
    rng = np.random.default_rng(n)
    gradient = rng.standard_normal(n).astype(dtype)
    k = round(n * density)
    check_select(gradient, k)
    check_select(gradient, k, rng.standard_normal(n).astype(dtype))
    check_select(gradient, min(k + 1, n), np.zeros(n, dtype))


def sampled(n):
    """Return where the native search looks for its bound; a wrong guess only weakens the test."""
    lines = min(1024, n // 128)
    stratum = n // lines
    line = np.arange(lines, dtype=np.uint64)
    hashed = (line + 1) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)
    first = line * np.uint64(stratum) + hashed % np.uint64(stratum - 15)
    return (first[:, None] + np.arange(16, dtype=np.uint64)).reshape(-1)


def patterns(n):
    rng = np.random.default_rng(0)
    normal = rng.standard_normal(n).astype(np.float32)
    one_hot = np.zeros(n, np.float32)
    one_hot[n // 2] = -3
    too_high, too_low = np.abs(normal) + 1, np.ones(n, np.float32)
    too_high[sampled(n)] = 100
    too_low[sampled(n)] = 0
    return {
        "normal": normal,
        "constant": np.full(n, -2, np.float32),
        "zero": np.zeros(n, np.float32),
        "ascending": np.sort(normal),
        "descending": np.sort(np.abs(normal))[::-1].copy(),
        "one hot": one_hot,
        "ties": rng.integers(-2, 3, n).astype(np.float32),
        "heavy tail": rng.standard_cauchy(n).astype(np.float32) ** 3,
        "denormal": rng.integers(0, 1000, n, dtype=np.uint32).view(np.float32),
        "nan": np.full(n, np.nan, np.float32),
        "any bits": rng.integers(0, 2**32, n, dtype=np.uint32).view(np.float32),
        "infinite or zero": np.where(normal > 0, np.float32(np.inf), 0).astype(np.float32),
        "sample too high": too_high,
        "sample too low": too_low,
    }


LARGE = 300_007  # enough blocks for two threads
PATTERNS = patterns(LARGE)


@pytest.mark.parametrize("density", [0.001, 0.1, 0.6])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_patterns(path, pattern, density):
    gradient = PATTERNS[pattern]
    k = int(LARGE * density)
    check_select(gradient, k)
    check_select(gradient, k, np.full(LARGE, 0.25, np.float32))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("pattern", ["normal", "ties", "sample too high"])
def test_wide_indices(path, dtype, pattern):
    # Vectors above 2**32 entries do not fit in a test, their index type does.
    gradient, residual = PATTERNS[pattern].astype(dtype), np.ones(LARGE, dtype)
    expected, expected_residual = topk.select(gradient, 5000, residual), residual
    indices, values, residual = (
        np.empty(5000, np.uint64),
        np.empty(5000, dtype),
        np.ones(LARGE, dtype),
    )
    backend.implementation().topk(gradient, residual, 5000, indices, values)
    np.testing.assert_array_equal(indices, expected.indices)
    np.testing.assert_array_equal(values, expected.values)
    np.testing.assert_array_equal(residual, expected_residual)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_hint_never_changes_the_result(path, dtype):
    # Steady, slowly falling, suddenly lost or huge, full of ties, of another length, with NaNs.
    rng = np.random.default_rng(5)
    hint, residual = topk.Hint(), np.zeros(50_001, dtype)
    scales = [1, 1, 0.97, 0.9, 0.2, 1e-3, 50, 0, 1, 1]
    for step, scale in enumerate(scales):
        gradient = (rng.standard_normal(50_001) * scale).astype(dtype)
        gradient[:step] = np.nan
        check_select(gradient, 500, hint=hint)
        check_select(gradient, 500, residual, hint)
        residual[:] = 0.25 * (step % 3)
    check_select(np.ones(50_001, dtype), 500, hint=hint)
    check_select(gradient[:3000], 500, hint=hint)
    check_select(gradient[:3000], 0, hint=hint)
    check_select(gradient[:3000], 3000, hint=hint)


@given(cut=st.integers(0, 2**64 - 1), margin=st.integers(0, 2**64 - 1), near=st.booleans())
def test_any_hint_is_safe(path, cut, margin, near):
    gradient, residual = np.random.default_rng(1).standard_normal((2, 2000), np.float32)
    hint = topk.Hint()
    topk.select(gradient, 40, hint=hint)
    hint.words[3] = hint.words[3] + np.uint64(cut % 2**20) if near else cut
    hint.words[4] = margin % 2**20 if near else margin
    check_select(gradient, 40, residual, hint)
    check_select(gradient, 40, hint=hint)


@pytest.mark.skipif(backend.native_module() is None, reason="the reference takes no hint")
def test_a_hint_holds_the_cut_and_follows_its_fall(monkeypatch):
    monkeypatch.setenv("PAROPT_BACKEND", "native")
    gradient, hint = PATTERNS["normal"].copy(), topk.Hint()
    margins = []
    for _ in range(4):
        found = topk.select(gradient, 3000, hint=hint)
        assert hint.words[3] == bits(np.abs(found.values)).min()
        margins.append(int(hint.words[4]))
    assert margins == sorted(margins, reverse=True)
    assert margins[-1] < margins[0]
    topk.select(gradient / np.float32(4), 3000, hint=hint)
    assert int(hint.words[4]) == 2 * 2 * 2**23  # twice a fall by two octaves


def check_threshold(gradient, threshold, residual=None):
    with np.errstate(all="ignore"):
        acc = gradient.copy() if residual is None else residual + gradient
    indices, values, nonfinite = topk.threshold(gradient, threshold, residual)
    limit = np.array(threshold, gradient.dtype)
    np.testing.assert_array_equal(indices, np.flatnonzero(~(np.abs(wide(acc)) < float(limit))))
    np.testing.assert_array_equal(bits(values), bits(acc[indices]))
    assert nonfinite == np.count_nonzero(~np.isfinite(wide(acc)))
    if residual is not None:
        assert not residual[indices].any()
        residual[indices] += values
        np.testing.assert_array_equal(bits(residual), bits(acc))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threshold", [0, 0.3, 2.5, np.inf])
@pytest.mark.parametrize("n", [0, 1, 65, BLOCK + 1, 50_001])
def test_threshold(path, dtype, threshold, n):
    rng = np.random.default_rng(n)
    gradient = rng.standard_normal(n).astype(dtype)
    gradient[::97] = np.nan
    check_threshold(gradient, threshold)
    check_threshold(gradient, threshold, rng.standard_normal(n).astype(dtype))


def test_threshold_must_be_a_magnitude(path):
    for bad in (-1, np.nan):
        with pytest.raises(ValueError, match="threshold must be at least 0, got"):
            topk.threshold(X, bad)


@pytest.mark.parametrize(("n", "k"), [(0, 0), (9, 0), (9, 4), (9, 5), (9, 9), (10**6, 999), (7, 6)])
def test_random_positions(n, k):
    chosen = topk.random(n, k, 3, 1)
    assert chosen.dtype == np.uint32
    assert chosen.size == k
    assert (np.diff(chosen.astype(int)) > 0).all()
    assert k == 0 or chosen[-1] < n
    np.testing.assert_array_equal(chosen, topk.random(n, k, 3, 1))
    if 0 < k < n > 100:
        assert topk.random(n, k, 3, 2).tolist() != chosen.tolist()


def test_random_positions_never_change():
    # Ranks with different versions of NumPy must draw the same.
    assert topk.random(1000, 6, 7).tolist() == [51, 344, 460, 467, 487, 667]


def test_random_positions_are_even():
    # Each of the 10 pairs of 5 is expected 300 times; chi-square has 9 degrees of freedom.
    pairs = Counter(tuple(topk.random(5, 2, seed).tolist()) for seed in range(3000))
    assert len(pairs) == 10
    assert sum((count - 300) ** 2 / 300 for count in pairs.values()) < 33.7  # p = 1e-4


MEASURE = """
import resource, sys
import numpy as np
from paropt_hpc.kernels import topk
n, k = 8_000_000, int(sys.argv[1])
gradient, residual = np.random.default_rng(0).standard_normal((2, n), np.float32)  # no temporary
if sys.argv[2] == "ties":
    gradient[:], residual[:] = 1, 0
out = np.ones(k, np.uint32), np.ones(k, np.float32)
topk.select(gradient[:4096].copy(), 40)  # loads the kernels
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
topk.select(gradient, k, residual, out=out)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("kind", ["normal", "ties"])
@pytest.mark.parametrize("k", [1000, 80_000, 800_000])
def test_working_memory(k, kind):
    # The peak of a process of its own; a page or two of slack for what the system does beside.
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "PAROPT_BACKEND": "native"}
    command = [sys.executable, "-c", MEASURE, str(k), kind]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    entry = 4 + 4
    assert int(done.stdout) * 1024 <= 2 * k * entry + 2 * 2**20 + 65536


def test_no_entry_wanted_still_accumulates(path):
    gradient, residual = np.array([1, np.nan], np.float32), np.array([2, 3], np.float32)
    assert topk.select(gradient, 0, residual).nonfinite == 1
    np.testing.assert_array_equal(residual, np.array([3, np.nan], np.float32))


def test_order_of_magnitudes(path):
    acc = np.array([1, -np.inf, 0.0, np.nan, -0.0, -2], np.float64)
    ranking = [3, 1, 5, 0, 2, 4]
    for k in range(7):
        assert topk.select(acc, k).indices.tolist() == sorted(ranking[:k])


def test_out_is_used(path):
    gradient = np.array([1, -5, 3], np.float32)
    out = np.full(3, 9, np.uint32), np.full(3, 9, np.float32)
    indices, values, _ = topk.select(gradient, 2, out=out)
    assert np.shares_memory(indices, out[0])
    assert np.shares_memory(values, out[1])
    np.testing.assert_array_equal(out[0], [1, 2, 9])
    np.testing.assert_array_equal(out[1], [-5, 3, 9])


def misaligned(n, dtype):
    itemsize = np.dtype(dtype).itemsize
    return np.zeros(n * itemsize + 1, np.uint8)[1:].view(dtype)


def read_only(n):
    array = np.zeros(n, np.float32)
    array.flags.writeable = False
    return array


X = np.zeros(4, np.float32)
OUT = np.zeros(4, np.uint32), np.zeros(4, np.float32)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: topk.select(X, -1), ValueError, r"k must be in \[0, 4\], got -1"),
        (lambda: topk.select(X, 5), ValueError, r"k must be in \[0, 4\], got 5"),
        (lambda: topk.select(X, 1.5), TypeError, "must be integers, got n = 4 and k = 1.5"),
        (lambda: topk.select([1.0], 1), TypeError, "gradient must be a numpy array, got list"),
        (lambda: topk.select(X.astype(int), 1), TypeError, "or bfloat16, got int64"),
        (lambda: topk.select(X, 1, hint=3), TypeError, "hint must be a Hint, got int"),
        (lambda: topk.select(np.ma.array(X), 1), TypeError, "must not be a masked array"),
        (lambda: topk.select(X.astype(">f4"), 1), TypeError, "or bfloat16, got >f4"),
        (lambda: topk.select(X[::2], 1), ValueError, "contiguous, got a stride of 8 bytes"),
        (lambda: topk.select(X.reshape(2, 2), 1), ValueError, "one dimension, got shape"),
        (lambda: topk.select(misaligned(4, np.float32), 1), ValueError, "aligned to 4 bytes"),
        (
            lambda: topk.select(X, 1, X.astype(np.float64)),
            TypeError,
            "must be float32, got float64",
        ),
        (lambda: topk.select(X, 1, np.zeros(3, np.float32)), ValueError, "4 entries, got 3"),
        (lambda: topk.select(X, 1, read_only(4)), ValueError, "residual must be writable"),
        (lambda: topk.select(X, 1, X), ValueError, "residual and gradient must not overlap"),
        (lambda: topk.select(X, 2, out=(OUT[0][:1], OUT[1])), ValueError, "at least 2 entries"),
        (lambda: topk.select(X, 2, out=(OUT[0], read_only(4))), ValueError, "writable"),
        (lambda: topk.select(X, 2, out=(OUT[1], OUT[1])), TypeError, "must be uint32"),
        (lambda: topk.select(X, 2, out=(OUT[0], X)), ValueError, "must not overlap"),
    ],
)
def test_errors(path, call, error, text):
    with pytest.raises(error, match=text):
        call()
    assert not X.any()
    assert not OUT[0].any()
    assert not OUT[1].any()


def test_indices_too_narrow_for_n(path, tmp_path):
    # A file with a hole: as long as it must be, and no memory is touched.
    n = 2**32 + 1
    long = np.asarray(np.memmap(tmp_path / "hole", np.float16, "w+", shape=(n,)))
    out = np.zeros(1, np.uint32), np.zeros(1, np.float16)
    with pytest.raises(TypeError, match="out indices must be uint64, got uint32"):
        topk.select(long, 1, out=out)
    if path != "reference":
        with pytest.raises(ValueError, match=r"at most 2\^32 for uint32 indices"):
            backend.implementation().topk(long, None, 1, *out)
    assert not out[0].any()
    assert not out[1].any()


def test_errors_write_nothing(path):
    residual = np.ones(4, np.float32)
    with pytest.raises(ValueError, match="k must be"):
        topk.select(X, 5, residual)
    np.testing.assert_array_equal(residual, 1)
