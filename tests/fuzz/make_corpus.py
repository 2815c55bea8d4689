"""Write small valid inputs of fuzz_decoders.cpp, from which the fuzzer starts."""

import struct
from pathlib import Path

import numpy as np

from paropt_hpc.kernels import index_codec, message, quantize
from paropt_hpc.kernels.index_codec import Codec
from paropt_hpc.kernels.quantize import ValueType

CORPUS = Path(__file__).parent / "corpus"


def main() -> None:
    """Write one input per decoder and encoding."""
    CORPUS.mkdir(exist_ok=True)
    rng = np.random.default_rng(0)
    (CORPUS / "libsvm").write_bytes(b"\x06+1 1:0.5 3:2e-3 # note\n-1\t2:-1.25 40:7\r\n\n0")
    for n, k in ((100, 7), (6000, 1100)):
        indices = np.sort(rng.choice(n, k, replace=False)).astype(np.uint32)
        values = rng.standard_normal(k).astype(np.float32)
        for codec in (codec for codec in Codec if codec is not Codec.FULL):
            name = f"{codec.name.lower()}-{n}-{k}"
            data = index_codec.encode(indices, n, codec).tobytes()
            head = struct.pack("<BBQIBBB", 0, codec - 1, n, k, 0, 0, 0)
            (CORPUS / f"indices-{name}").write_bytes(head + data)
            body = message.encode(indices, values, n, codec=codec).tobytes()
            (CORPUS / f"message-{name}").write_bytes(b"\3" + body)
        for kind in list(ValueType)[2:]:
            name = f"{kind.name.lower()}-{n}-{k}"
            sent = quantize.encode(values, kind)
            head = struct.pack("<BBHB", 1, kind - 1, k, 0)
            (CORPUS / f"values-{name}").write_bytes(head + sent.data.tobytes())
            body = message.encode(indices, sent, n).tobytes()
            (CORPUS / f"message-{name}").write_bytes(b"\3" + body)
            body = message.encode(None, sent, k).tobytes()
            (CORPUS / f"message-full-{kind.name.lower()}-{k}").write_bytes(b"\3" + body)
            head = struct.pack("<BBQ", 4, kind - 3 + 5 * 26, 7)  # above 128: with a residual
            (CORPUS / f"quantise-{name}").write_bytes(head + values.tobytes())
        wide = values.astype(np.float64)
        for plain in (values, wide):
            body = message.encode(indices, plain, n).tobytes()
            (CORPUS / f"message-{plain.dtype}-{n}-{k}").write_bytes(b"\3" + body)
            body = message.encode(None, plain, k).tobytes()
            (CORPUS / f"message-full-{plain.dtype}-{k}").write_bytes(b"\3" + body)
        head = struct.pack("<BBQIBBB", 0, Codec.FULL - 1, k, k, 0, 0, 0)
        (CORPUS / f"indices-full-{k}").write_bytes(head)
        gaps = np.minimum(np.diff(indices), 255).astype(np.uint8).tobytes()
        (CORPUS / f"choice-{n}-{k}").write_bytes(b"\5\3" + gaps)


if __name__ == "__main__":
    main()
