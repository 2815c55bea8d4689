"""Codecs of other packages, in an environment of their own; a package that is missing is left out.

Each is timed from positions to bytes and back, so that differences and prefix sums are included.
"""

import sys
from collections.abc import Callable

import numpy as np
from worker import serve

Operations = dict[str, Callable[[], object]]


def fastpfor(x: np.ndarray, name: str) -> tuple[Operations, int]:
    """Return encode and decode of pyfastpfor, and the number of bytes."""
    from pyfastpfor import delta1, getCodec, prefixSum1

    codec = getCodec(name)
    work, packed = x.copy(), np.zeros(x.size + 1024, np.uint32)
    out = np.zeros(x.size + 1024, np.uint32)

    def encode() -> int:
        np.copyto(work, x)
        delta1(work, work.size)
        return codec.encodeArray(work, work.size, packed, packed.size)

    size = encode()

    def decode() -> None:
        prefixSum1(out, codec.decodeArray(packed, size, out, x.size))

    return {"encode": encode, "decode": decode}, size * 4


def pcodec(x: np.ndarray) -> tuple[Operations, int]:
    """Return the same of pcodec, which finds the differences itself."""
    from pcodec import ChunkConfig, standalone

    data = standalone.simple_compress(x, ChunkConfig())
    return {
        "encode": lambda: standalone.simple_compress(x, ChunkConfig()),
        "decode": lambda: standalone.simple_decompress(data),
    }, len(data)


def roaring(x: np.ndarray) -> tuple[Operations, int]:
    """Return the same of pyroaring."""
    from pyroaring import BitMap

    data = BitMap(x).serialize()
    return {
        "encode": lambda: BitMap(x).serialize(),
        "decode": lambda: BitMap.deserialize(data).to_array(),
    }, len(data)


def of_differences(x: np.ndarray, pack: Callable, unpack: Callable) -> tuple[Operations, int]:
    """Return the same of a compressor of bytes."""
    data = pack(np.diff(x, prepend=np.uint32(0)))
    return {
        "encode": lambda: pack(np.diff(x, prepend=np.uint32(0))),
        "decode": lambda: np.cumsum(np.frombuffer(unpack(data), np.uint32), dtype=np.uint32),
    }, len(data)


def zstandard(x: np.ndarray) -> tuple[Operations, int]:
    """Return the same of zstd at level 1."""
    import zstandard

    press, unpress = zstandard.ZstdCompressor(1), zstandard.ZstdDecompressor()
    return of_differences(x, lambda d: press.compress(d.tobytes()), unpress.decompress)


def blosc(x: np.ndarray, codec: str) -> tuple[Operations, int]:
    """Return the same of blosc2 with bitshuffle."""
    import blosc2

    blosc2.set_nthreads(1)
    options = {"codec": blosc2.Codec[codec], "filter": blosc2.Filter.BITSHUFFLE, "typesize": 4}
    return of_differences(x, lambda d: blosc2.compress(d, **options), blosc2.decompress)


def main() -> None:
    """Serve all codecs that are installed for the positions in a file."""
    x = np.load(sys.argv[1])
    makers = {
        "simdbinarypacking": lambda: fastpfor(x, "simdbinarypacking"),
        "simdfastpfor256": lambda: fastpfor(x, "simdfastpfor256"),
        "pcodec": lambda: pcodec(x),
        "pyroaring": lambda: roaring(x),
        "zstandard-1": lambda: zstandard(x),
        "blosc2-lz4": lambda: blosc(x, "LZ4"),
        "blosc2-zstd": lambda: blosc(x, "ZSTD"),
    }
    operations, offers = {}, {}
    for name, make in makers.items():
        try:
            calls, size = make()
        except Exception as error:  # one peer less is no reason to measure none
            print(f"codec_worker: {name} is left out: {error!r}", file=sys.stderr)
            continue
        offers[name] = 8 * size / x.size
        operations |= {f"{name} {verb}": call for verb, call in calls.items()}
    serve(operations, offers, times=7)


main()
