"""Quantisation against torch and NumPy, as a share of a plain read or of a three-stream add.

python benchmarks/bench_quantize.py --json FILE
"""

from collections.abc import Callable

import ml_dtypes
import numpy as np
from harness import Bench, Row, arguments, time_text

from paropt_hpc.kernels import backend, quantize, reduce

Call = Callable[[], object]
_native = backend.native_module()


def torch_peers(x: np.ndarray) -> dict[str, dict[str, Call]]:
    """Return torch's conversions and its int8 composition, or nothing where torch is missing."""
    try:
        import torch
    except ImportError:
        return {}
    torch.set_num_threads(1)
    source = torch.from_numpy(x)
    half = torch.empty(x.size, dtype=torch.float16)
    brain = torch.empty(x.size, dtype=torch.bfloat16)
    groups = source[: x.size // 256 * 256].view(-1, 256)

    steps, codes = torch.empty_like(groups), torch.empty(groups.shape, dtype=torch.int8)

    def int8() -> object:
        return (groups / (groups.abs().amax(1, keepdim=True) / 127)).round().to(torch.int8)

    def int8_in_place() -> object:
        scale = torch.linalg.vector_norm(groups, float("inf"), dim=1, keepdim=True) / 127
        return codes.copy_(torch.mul(groups, 1 / scale, out=steps).round_())

    return {
        "float16": {"torch copy_": lambda: half.copy_(source)},
        "bfloat16": {"torch copy_": lambda: brain.copy_(source)},
        "int8": {"torch composition": int8, "torch composition, in place": int8_in_place},
    }


def numpy_peers(x: np.ndarray) -> dict[str, dict[str, Call]]:
    """Return the same in NumPy."""
    groups = x[: x.size // 256 * 256].reshape(-1, 256)
    rng = np.random.default_rng(0)

    steps, codes = np.empty_like(groups), np.empty(groups.shape, np.int8)

    def scales(most: int) -> np.ndarray:
        return np.abs(groups, out=steps).max(axis=1, keepdims=True) / np.float32(most)

    def int8() -> object:
        scale = np.abs(groups).max(axis=1, keepdims=True) / 127
        return np.rint(groups / scale).astype(np.int8)

    def int8_in_place() -> object:
        np.multiply(groups, 1 / scales(127), out=steps)
        codes[...] = np.rint(steps, out=steps)
        return codes

    def qsgd4_in_place() -> object:
        by = 1 / scales(7)
        rng.random(out=steps, dtype=np.float32)
        np.add(steps, groups * by, out=steps)
        codes[...] = np.floor(steps, out=steps)
        return (codes[:, ::2] & 15) | codes[:, 1::2] << 4

    def qsgd4() -> object:
        scale = np.abs(groups).max(axis=1, keepdims=True) / 7
        steps = np.floor(groups / scale + rng.random(groups.shape, np.float32)).astype(np.int8) & 15
        return steps[:, ::2] | steps[:, 1::2] << 4

    return {
        "float16": {"numpy astype": lambda: x.astype(np.float16)},
        "bfloat16": {"ml_dtypes astype": lambda: x.astype(ml_dtypes.bfloat16)},
        "int8": {"numpy composition": int8, "numpy composition, in place": int8_in_place},
        "qsgd4": {"numpy composition": qsgd4, "numpy composition, in place": qsgd4_in_place},
        "sign": {"numpy packbits": lambda: np.packbits(x < 0)},
    }


def encode(bench: Bench, n: int) -> None:
    """Time every type without a residual against a read, and with one against an add."""
    fresh = np.random.default_rng(0).standard_normal(n, dtype=np.float32)
    x, residual = fresh.copy(), np.zeros(n, np.float32)
    out, decoded = np.empty(4 * n, np.uint8), np.empty(n, np.float32)
    theirs = torch_peers(x)

    def rewrite() -> None:
        np.copyto(x, fresh)
        np.multiply(fresh, np.float32(0.5), out=residual)

    for kind, peers in numpy_peers(x).items():
        rows = bench.case(
            f"{kind}, n={n:.0e}",
            {"encode": lambda kind=kind: quantize.encode(x, kind, out=out)},
            peers | theirs.get(kind, {}),
            moved=4 * n,
            limit=lambda: _native.read_all(x),
            before=rewrite,
        )
        comment(bench, f"{kind}, n={n:.0e}", rows)
        bench.case(
            f"{kind} with error feedback, n={n:.0e}",
            {"encode": lambda kind=kind: quantize.encode(x, kind, residual, out=out)},
            {},
            moved=12 * n,
            limit=lambda: reduce.add(residual, x),
            before=rewrite,
        )
        sent = quantize.encode(x, kind)
        bench.case(
            f"{kind} decode, n={n:.0e}",
            {"decode": lambda sent=sent, kind=kind: quantize.decode(sent.data, kind, n, decoded)},
            {},
            moved=4 * n,
        )


def comment(bench: Bench, case: str, rows: dict[str, Row]) -> None:
    """Say what the best peer of a case does not tell."""
    own = rows["encode"]
    if "torch composition" in rows:
        bench.beside(f"{case}, beside torch's composition", own, rows["torch composition"])
        bench.note(
            f"{case}: torch's composition is `(g / (g.abs().amax(1, keepdim=True) / 127)).round()"
            ".to(torch.int8)` for groups `g` of 256; in place, its largest magnitudes are a "
            "`vector_norm` and the other steps write to tensors that exist."
        )
    if "qsgd4" in case and own.share_of_limit is not None:
        read = own.share_of_limit * own.median_s
        best = min(row.median_s for row in rows.values() if row.peer)
        bench.note(
            f"{case}: the best of NumPy takes {time_text(best)}, a plain read of the input "
            f"{time_text(read)}: no encoder that reads its input is more than {best / read:.0f} "
            "times as fast."
        )


def main() -> None:
    """Run all cases."""
    options = arguments(__doc__).parse_args()
    _native.set_openmp_threads(1)
    bench = Bench("quantize", repeats=options.repeats)
    for n in (1_000_000, 10_000_000):
        encode(bench, n)
    bench.finish(options)


main()
