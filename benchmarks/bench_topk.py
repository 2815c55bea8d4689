"""Top-k by magnitude against NumPy (with and without AVX-512), torch and a plain read.

python benchmarks/bench_topk.py --json FILE
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from harness import Bench, arguments
from worker import Worker

from paropt_hpc.kernels import backend, message, reduce, topk

Call = Callable[[], object]
_native = backend.native_module()
N = 10_000_000
DENSITIES = (0.001, 0.01, 0.1)
# NumPy selects faster without its AVX-512 sort on some processors; a fair peer is the better one.
SETTINGS = {"default": "", "no AVX-512": "AVX512_SPR AVX512_ICL X86_V4"}


class Case:
    """A vector, its copy for rewriting, and room for the result."""

    def __init__(self, fresh: np.ndarray, k: int) -> None:
        self.fresh, self.k = fresh, k
        self.gradient, self.residual = fresh.copy(), np.zeros_like(fresh)
        self.out = np.empty(k, np.uint32), np.empty(k, np.float32)

    def rewrite(self) -> None:
        """Give the inputs new pages and cache lines."""
        np.copyto(self.gradient, self.fresh)
        np.multiply(self.fresh, np.float32(0.5), out=self.residual)

    def select(self) -> None:
        """Select without a residual."""
        topk.select(self.gradient, self.k, out=self.out)

    def fused(self) -> None:
        """Accumulate, select, leave the new residual."""
        topk.select(self.gradient, self.k, self.residual, out=self.out)

    def read(self) -> None:
        """Read the input once."""
        _native.read_all(self.gradient)

    def add(self) -> None:
        """Add three streams, as error feedback alone would."""
        reduce.add(self.residual, self.gradient)


def torch_peers(case: Case) -> dict[str, Call]:
    """Return torch.topk, or nothing where torch is missing."""
    try:
        import torch
    except ImportError:
        return {}
    torch.set_num_threads(1)
    x = torch.from_numpy(case.gradient)
    return {"torch.topk": lambda: torch.topk(x.abs(), case.k, sorted=False)}


def densities(bench: Bench, fresh: np.ndarray) -> None:
    """Time the selection at three densities, one thread."""
    script = Path(__file__).with_name("numpy_topk_worker.py")
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/x.npy", fresh)
        for density in DENSITIES:
            case = Case(fresh, int(N * density))
            workers = {
                name: Worker(
                    script,
                    f"{folder}/x.npy",
                    str(case.k),
                    environment={"NPY_DISABLE_CPU_FEATURES": value} if value else {},
                )
                for name, value in SETTINGS.items()
            }
            peers = torch_peers(case)
            for name, worker in workers.items():
                peers |= {f"numpy {op}, {name}": worker.call(op) for op in worker.offers}
            bench.case(
                f"n=1e7, {density:.1%}",
                {"select": case.select},
                peers,
                moved=4 * N,
                limit=case.read,
                before=case.rewrite,
            )
            for worker in workers.values():
                worker.close()


def fused(bench: Bench, fresh: np.ndarray) -> None:
    """Time error feedback against the three-stream add of the same arrays."""
    for density in DENSITIES:
        case = Case(fresh, int(N * density))
        bench.case(
            f"n=1e7, {density:.1%}, with residual",
            {"select": case.fused},
            {},
            moved=12 * N,
            limit=case.add,
            before=case.rewrite,
        )


def with_threads(count: int, call: Call) -> Call:
    """Return the same call by this many threads."""

    def run() -> None:
        _native.set_openmp_threads(count)
        call()
        _native.set_openmp_threads(1)

    return run


def threads(bench: Bench, fresh: np.ndarray) -> None:
    """Time one thread against two, beyond the cache and in it, beside what two can read."""
    for n in (N, N // 10 * 4):
        case = Case(fresh[:n], n // 100)
        calls = {f"{count} thread(s)": with_threads(count, case.select) for count in (1, 2)}
        calls["plain read, 2 threads"] = with_threads(2, case.read)
        rows = bench.case(
            f"n={n:.0e}, 1.0%, threads".replace("e+0", "e"),
            calls,
            {},
            moved=4 * n,
            limit=case.read,
            before=case.rewrite,
        )
        one, two, read = (rows[name] for name in calls)
        assert read.share_of_limit is not None
        bench.note(
            f"n={n:.0e}: two threads select {one.median_s / two.median_s:.2f} times as fast as one "
            f"and read {read.share_of_limit:.2f} times as fast.".replace("e+0", "e")
        )


class Drifting(Case):
    """A vector whose magnitude changes by up to two percent from step to step."""

    def __init__(self, fresh: np.ndarray, k: int) -> None:
        super().__init__(fresh, k)
        self.hint, self.step = topk.Hint(), 0

    def rewrite(self) -> None:
        """Make the next step."""
        self.step += 1
        np.multiply(self.fresh, np.float32(1 + 0.02 * np.sin(self.step)), out=self.gradient)
        np.multiply(self.fresh, np.float32(0.5), out=self.residual)

    def hinted(self) -> None:
        """Select with the threshold of the last step."""
        topk.select(self.gradient, self.k, out=self.out, hint=self.hint)

    def hinted_fused(self) -> None:
        """Do the same with a residual."""
        topk.select(self.gradient, self.k, self.residual, out=self.out, hint=self.hint)


def hints(bench: Bench, fresh: np.ndarray) -> None:
    """Time what a threshold carried over from the last step saves."""
    for n in (N, N // 10, N // 100):
        for residual in ("", ", with residual"):
            case = Drifting(fresh[:n], n // 100)
            calls: dict[str, Call] = {"select": case.select, "select, hint": case.hinted}
            if residual:
                calls = {"select": case.fused, "select, hint": case.hinted_fused}
            bench.case(
                f"n={n:.0e}, 1.0%{residual}, from step to step".replace("e+0", "e"),
                calls,
                {},
                moved=(12 if residual else 4) * n,
                limit=case.add if residual else case.read,
                before=case.rewrite,
            )


def small(bench: Bench, rng: np.random.Generator) -> None:
    """Time short vectors, a hundred calls at a time, in the cache."""
    for n in (1_000, 10_000, 100_000):
        case = Case(rng.standard_normal(n, dtype=np.float32), n // 100)
        x, k = case.gradient, case.k

        def hundred(call: Call) -> Call:
            return lambda: [call() for _ in range(100)]

        def argpartition(x: np.ndarray = x, k: int = k) -> object:
            return np.argpartition(np.abs(x), x.size - k)[x.size - k :]

        bench.case(
            f"n={n}, 1.0%, 100 calls",
            {"select": hundred(lambda x=x, k=k: topk.select(x, k))},
            {"numpy argpartition": hundred(argpartition)},
            moved=400 * n,
        )


def adversarial(bench: Bench, fresh: np.ndarray) -> None:
    """Time vectors that mislead a sample or leave no bound."""
    rng = np.random.default_rng(1)
    one_hot = np.zeros(N, np.float32)
    one_hot[N // 3] = 1
    vectors = {
        "normal": fresh,
        "constant": np.full(N, 2, np.float32),
        "all zero": np.zeros(N, np.float32),
        "ascending": np.sort(fresh),
        "descending": np.sort(np.abs(fresh))[::-1].copy(),
        "one-hot": one_hot,
        "heavy tail": rng.standard_cauchy(N).astype(np.float32),
        "denormal": rng.integers(0, 2**20, N, dtype=np.uint32).view(np.float32),
        "all ties": np.where(fresh > 0, np.float32(1), np.float32(-1)),
    }
    for name, vector in vectors.items():
        case = Case(vector, N // 100)
        bench.case(
            f"n=1e7, 1.0%, {name}",
            {"select": case.select},
            {},
            moved=4 * N,
            limit=case.read,
            before=case.rewrite,
        )


def encode(bench: Bench, fresh: np.ndarray) -> None:
    """Time selection alone against selection and encoding."""
    case = Case(fresh, N // 100)
    buffer = np.empty(message.max_bytes(N, case.k, np.float32), np.uint8)

    def select_and_encode() -> None:
        case.select()
        message.encode(*case.out, N, buffer)

    calls = {"select": case.select, "select and encode": select_and_encode}
    bench.case(
        "n=1e7, 1.0%, with encoding", calls, {}, moved=4 * N, limit=case.read, before=case.rewrite
    )


def main() -> None:
    """Run all cases."""
    options = arguments(__doc__).parse_args()
    _native.set_openmp_threads(1)
    rng = np.random.default_rng(0)
    fresh = rng.standard_normal(N, dtype=np.float32)
    bench = Bench("topk", repeats=options.repeats)
    densities(bench, fresh)
    fused(bench, fresh)
    threads(bench, fresh)
    hints(bench, fresh)
    small(bench, rng)
    encode(bench, fresh)
    adversarial(bench, fresh)
    bench.finish(options)


main()
