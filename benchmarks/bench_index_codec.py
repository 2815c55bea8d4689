"""Index codecs: bits per index against indices per second, beside the codecs of other packages.

    python benchmarks/bench_index_codec.py --peers PYTHON --json FILE

PYTHON is the interpreter of an environment that has the peers; without it there are fewer.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from harness import Bench, Row, arguments, hot, time_text
from worker import Worker

from paropt_hpc.kernels import backend, index_codec, message, reduce
from paropt_hpc.kernels.index_codec import Codec

Call = Callable[[], object]
_native = backend.native_module()
N = 10_000_000
CLUSTERED = {"layers": [0.2, 0.0005, 0.02, 0.002], "ends": [0.08, 0, 0, 0.08]}


def our_calls(x: np.ndarray) -> tuple[dict[str, Call], dict[str, Call], dict[str, float]]:
    """Return encode, decode and bits of our codecs."""
    encoders, decoders, bits = {}, {}, {}
    decoded = np.empty_like(x)
    for codec in (codec for codec in Codec if codec is not Codec.FULL):
        out = np.empty(index_codec.max_encoded_bytes(N, x.size, codec), np.uint8)
        data = index_codec.encode(x, N, codec).copy()
        name = codec.name.lower()
        encoders[name] = hot(lambda codec=codec, out=out: index_codec.encode(x, N, codec, out))
        decoders[name] = hot(
            lambda codec=codec, data=data: index_codec.decode(data, N, x.size, codec, decoded)
        )
        bits[name] = 8 * data.size / x.size
    return encoders, decoders, bits


def packbits(x: np.ndarray) -> dict[str, Call]:
    """Return NumPy's bitmap."""
    dense = np.zeros(N, bool)

    def encode() -> object:
        dense[:] = False
        dense[x] = True
        return np.packbits(dense)

    data = encode()
    return {"encode": encode, "decode": lambda: np.flatnonzero(np.unpackbits(data))}


def uniform(bench: Bench, python: str | None, density: float) -> None:
    """Time all codecs for evenly spread positions."""
    x = np.flatnonzero(np.random.default_rng(2).random(N) < density).astype(np.uint32)
    encoders, decoders, bits = our_calls(x)
    for calls in (encoders, decoders):
        del calls["raw"]  # a copy would win every race and say nothing
    with tempfile.TemporaryDirectory() as folder:
        np.save(f"{folder}/x.npy", x)
        script = Path(__file__).with_name("codec_worker.py")
        worker = Worker(script, f"{folder}/x.npy", python=python) if python else None
        theirs = dict(worker.offers) if worker else {}
        peers = {verb: {} for verb in ("encode", "decode")}
        for verb, calls in peers.items():
            calls["numpy packbits"] = hot(packbits(x)[verb])
            for name in theirs:
                calls[name] = worker.call(f"{name} {verb}")
        bits |= theirs | {"numpy packbits": N / x.size}
        for verb, ours in (("encode", encoders), ("decode", decoders)):
            bench.case(f"{verb}, {density:.1%}", ours, peers[verb], moved=4 * x.size, bits=bits)
        if worker:
            worker.close()
    entropy = -(density * np.log2(density) + (1 - density) * np.log2(1 - density)) / density
    print(f"  entropy: {entropy:.2f} bits per index\n")


def scatter(bench: Bench) -> None:
    """Time decoding and adding in one go, with the vector in the cache and without.

    Nearly every entry is in a cache line of its own. The limit is an update in place of as many
    lines that are neighbours: what the additions must move, at the speed of the memory.
    """
    x = np.flatnonzero(np.random.default_rng(2).random(N) < 0.01).astype(np.uint32)
    values, dense = np.ones(x.size, np.float32), np.zeros(N, np.float32)
    data = message.encode(x, values, N).copy()
    out = np.empty_like(x), np.empty_like(values)
    lines = np.zeros(np.unique(x // 16).size * 16, np.float32)
    ours = {"decode_add": lambda: message.decode_add(data, dense)}
    parts = {
        "decode alone": lambda: message.decode(data, out),
        "add alone": lambda: reduce.scatter_add(dense, x, values),
    }
    peers = {"numpy add.at, indices at hand": lambda: np.add.at(dense, x, values)}
    for name, wrap in (("", hot), (", vector not in the cache", lambda call: call)):
        elsewhere = np.ones(N * 4 if name else 1, np.float32)
        rows: dict[str, Row] = {}
        for case, own, theirs in (
            ("decode and add", ours, peers),
            ("parts of decode and add", parts, {}),
        ):
            rows |= bench.case(
                f"{case}, 1.0%{name}",
                {key: wrap(call) for key, call in own.items()},
                {key: wrap(call) for key, call in theirs.items()},
                moved=4 * x.size,
                limit=wrap(lambda: reduce.add(lines, lines)),
                before=lambda elsewhere=elsewhere: _native.read_all(elsewhere),
            )
        both, alone = rows["decode_add"], rows["decode alone"]
        assert both.share_of_limit is not None
        bench.note(
            f"Decoding and adding, 1.0%{name}: {alone.median_s / both.median_s:.0%} of the speed "
            f"of decoding alone, {time_text(alone.median_s)}. To update the cache lines of the "
            f"entries takes {time_text(both.share_of_limit * both.median_s)} even where they are "
            "neighbours."
        )


def clustered(bench: Bench) -> None:
    """Compare the bytes of the chosen codec with those of each fixed one."""
    rng = np.random.default_rng(3)
    for name, shares in CLUSTERED.items():
        ones = rng.random(N) < np.repeat(shares, N // len(shares))
        x = np.flatnonzero(ones).astype(np.uint32)
        encoders, _, bits = our_calls(x)
        encoders["auto"] = hot(lambda x=x: index_codec.encode(x, N, "auto"))
        bits["auto"] = 8 * index_codec.encode(x, N, "auto").size / x.size
        bench.case(f"encode, clustered: {name}", encoders, {}, moved=4 * x.size, bits=bits)


def main() -> None:
    """Run all cases."""
    parser = arguments(__doc__)
    parser.add_argument("--peers", help="interpreter of the environment with the other codecs")
    options = parser.parse_args()
    _native.set_openmp_threads(1)
    bench = Bench("index_codec", repeats=options.repeats)
    for density in (0.001, 0.01, 0.1):
        uniform(bench, options.peers, density)
    scatter(bench)
    clustered(bench)
    bench.finish(options)


main()
