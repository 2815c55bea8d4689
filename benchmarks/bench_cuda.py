"""The CUDA kernels beside cub::DeviceTopK, torch.topk and nvCOMP, as shares of copies on the GPU.

python benchmarks/bench_cuda.py --json FILE

Needs a GPU. Peers are taken where they are installed: torch, nvidia-nvcomp, and cuda-cccl, whose
headers nvcc compiles. Every call is timed until the GPU is done.
"""

import argparse
import ctypes
import importlib.util
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from harness import Bench, arguments, time_text
from rich.console import Console
from rich.table import Table

from paropt_hpc.comm.gpu_allreduce import Staging
from paropt_hpc.kernels import device, index_codec, message, quantize, topk
from paropt_hpc.kernels.device import DeviceArray, as_device, as_host, view

Call = Callable[[], object]

CODECS = ("rice", "elias_fano")
VALUES = ("float16", "bfloat16", "int8", "qsgd4", "sign")


def address(array: DeviceArray) -> int:
    """Return the address of an array on the GPU."""
    return view(array).pointer


def copy_of(nbytes: int) -> Call:
    """Return a copy on the GPU that reads and writes so many bytes together."""
    half = max(1, nbytes // 2)
    source, target = DeviceArray(half, np.uint8), DeviceArray(half, np.uint8)
    cuda = device.required()
    return lambda: cuda.copy(address(target), address(source), half, 0)


def done(call: Call) -> Call:
    """Return a call that ends when the GPU has ended it."""
    cuda = device.required()

    def run() -> None:
        call()
        cuda.synchronize(0)

    return run


def headers_of_cccl() -> Path | None:
    """Return the folder of cub's headers in the package cuda-cccl."""
    found = importlib.util.find_spec("cuda.cccl") if importlib.util.find_spec("cuda") else None
    if found is None or not found.submodule_search_locations:
        return None
    return Path(found.submodule_search_locations[0]) / "headers" / "include"


def cub_peer(magnitudes: DeviceArray, k: int) -> dict[str, Call]:
    """Compile cub::DeviceTopK and return it as a call, or nothing where it cannot be had."""
    headers = headers_of_cccl()
    if headers is None:
        print("cub::DeviceTopK is left out: pip install cuda-cccl brings its headers")
        return {}
    folder = Path(tempfile.mkdtemp())
    library = folder / "cub_topk.so"
    source = Path(__file__).with_name("cub_topk.cu")
    command = ["nvcc", "-std=c++17", "-O3", "-arch=native", "-shared", "-Xcompiler=-fPIC"]
    command += [f"-I{headers}", str(source), "-o", str(library)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode != 0:
        print(f"cub::DeviceTopK is left out: nvcc failed\n{built.stderr[-500:]}")
        return {}
    call = ctypes.CDLL(str(library)).cub_topk
    keys, indices = DeviceArray(k, np.float32), DeviceArray(k, np.uint32)
    room = ctypes.c_size_t(0)
    places = [ctypes.c_void_p(address(a)) for a in (magnitudes, keys, indices)]
    sizes = ctypes.c_uint32(magnitudes.size), ctypes.c_uint32(k)
    status = call(None, ctypes.byref(room), *places, *sizes)
    if status != 0:
        print(f"cub::DeviceTopK is left out: it failed with CUDA error {status}")
        return {}
    temp = DeviceArray(room.value, np.uint8)

    def run() -> None:
        status = call(ctypes.c_void_p(address(temp)), ctypes.byref(room), *places, *sizes)
        if status != 0:
            raise RuntimeError(f"cub::DeviceTopK failed with CUDA error {status}")

    return {"cub::DeviceTopK": done(run)}


def torch_peer(magnitudes: DeviceArray, k: int) -> dict[str, Call]:
    """Return torch.topk, or nothing where torch cannot use the GPU."""
    try:
        import torch
    except ImportError:
        print("torch.topk is left out: pip install torch")
        return {}
    if not torch.cuda.is_available():
        print("torch.topk is left out: this torch cannot use the GPU")
        return {}
    x = torch.as_tensor(magnitudes, device="cuda")
    return {"torch.topk": done(lambda: torch.topk(x, k, sorted=False))}


def nvcomp_peer(raw: DeviceArray) -> dict[str, Call]:
    """Return nvCOMP's decoding of the same indices as 32-bit integers, or nothing without it."""
    try:
        from nvidia import nvcomp
    except ImportError:
        print("nvCOMP is left out: pip install nvidia-nvcomp-cu13")
        return {}
    codec = nvcomp.Codec(algorithm="Cascaded", data_type="<u4")
    packed = codec.encode(nvcomp.as_array(raw))
    return {"nvCOMP Cascaded": done(lambda: codec.decode(packed))}


def select(bench: Bench, x: np.ndarray, density: float) -> None:
    """Time the selection, with and without error feedback."""
    n, k = x.size, max(1, round(x.size * density))
    gradient, residual = as_device(x), as_device(np.zeros_like(x))
    out = DeviceArray(k, np.uint32), DeviceArray(k, np.float32)
    magnitudes = as_device(np.abs(x))
    bench.case(
        f"top-k {density:.1%}, n={n:.0e}",
        {"select": done(lambda: topk.select(gradient, k, out=out))},
        cub_peer(magnitudes, k) | torch_peer(magnitudes, k),
        moved=4 * n,
        limit=done(copy_of(4 * n)),
    )
    bench.case(
        f"top-k {density:.1%} with error feedback, n={n:.0e}",
        {"select": done(lambda: topk.select(gradient, k, residual, out=out))},
        {},
        moved=12 * n,
        limit=done(copy_of(12 * n)),
    )


def codecs(bench: Bench, n: int, density: float) -> None:
    """Time encoding and decoding of indices, counted as 32-bit integers."""
    k = max(1, round(n * density))
    positions = np.random.default_rng(1).choice(n, k, replace=False)
    indices = as_device(np.sort(positions).astype(np.uint32))
    decoded = DeviceArray(k, np.uint32)
    for codec in CODECS:
        out = DeviceArray(index_codec.max_encoded_bytes(n, k, codec), np.uint8)
        data = index_codec.encode(indices, n, codec, out)
        bench.case(
            f"{codec} encode {density:.1%}, n={n:.0e}",
            {codec: done(lambda codec=codec, out=out: index_codec.encode(indices, n, codec, out))},
            {},
            moved=8 * k,
            limit=done(copy_of(8 * k)),
            bits={codec: 8 * data.size / k},
        )
        bench.case(
            f"{codec} decode {density:.1%}, n={n:.0e}",
            {
                codec: done(
                    lambda codec=codec, data=data: index_codec.decode(data, n, k, codec, decoded)
                )
            },
            nvcomp_peer(indices),
            moved=8 * k,
            limit=done(copy_of(8 * k)),
        )


def values(bench: Bench, x: np.ndarray) -> None:
    """Time the quantisers both ways."""
    there, decoded = as_device(x), DeviceArray(x.size, np.float32)
    residual = as_device(np.zeros_like(x))
    for kind in VALUES:
        nbytes = quantize.encoded_bytes(kind, x.size)
        out = DeviceArray(nbytes, np.uint8)
        calls = {
            "encode": lambda kind=kind, out=out: quantize.encode(there, kind, out=out),
            "decode": lambda kind=kind, out=out: quantize.decode(out, kind, x.size, decoded),
        }
        for name, call in calls.items():
            bench.case(
                f"{kind} {name}, n={x.size:.0e}",
                {name: done(call)},
                {},
                moved=4 * x.size + nbytes,
                limit=done(copy_of(4 * x.size + nbytes)),
            )
        bench.case(
            f"{kind} encode with error feedback, n={x.size:.0e}",
            {
                "encode": done(
                    lambda kind=kind, out=out: quantize.encode(there, kind, residual, out=out)
                )
            },
            {},
            moved=12 * x.size + nbytes,
            limit=done(copy_of(12 * x.size + nbytes)),
        )


def messages(bench: Bench, x: np.ndarray, density: float) -> None:
    """Time a whole message: selection, encoding, and adding it to a dense vector."""
    n, k = x.size, max(1, round(x.size * density))
    gradient, dense = as_device(x), as_device(np.zeros_like(x))
    out = DeviceArray(k, np.uint32), DeviceArray(k, np.float32)
    data = DeviceArray(message.max_bytes(n, k, np.float32), np.uint8)
    chosen = topk.select(gradient, k, out=out)
    encoded = message.encode(chosen.indices, chosen.values, n, data)
    bench.case(
        f"message {density:.1%}, n={n:.0e}",
        {
            "encode": done(lambda: message.encode(chosen.indices, chosen.values, n, data)),
            "decode_add": done(lambda: message.decode_add(encoded, dense)),
        },
        {},
        moved=8 * k,
        limit=done(copy_of(8 * k)),
    )


def staging(bench: Bench, x: np.ndarray) -> None:
    """Time the way of a vector through pinned memory and back, in segments and all at once."""
    there, segments = as_device(x), Staging()
    room, where = device.pinned(x.size, np.float32), view(there)

    def at_once() -> None:
        as_host(there, room)
        device.required().copy_to_device(where.pointer, room, 0)

    bench.case(
        f"to the host and back, n={x.size:.0e}",
        {"segments": lambda: segments.run(where, where, lambda segment: None)},
        {"at once": at_once},
        moved=8 * x.size,
    )


def summary(bench: Bench) -> None:
    """Print a line for each case: the figures that decide."""
    table = Table("", "median", "of copy", "best peer", title=f"CUDA kernels, {bench.extra['gpu']}")
    beside = {ratio["case"]: ratio for ratio in bench.ratios}
    for row in bench.rows:
        if row.peer:
            continue
        ratio = beside.get(row.case)
        table.add_row(
            f"{row.case}: {row.candidate}",
            time_text(row.median_s),
            "" if row.share_of_limit is None else f"{row.share_of_limit:.0%}",
            "" if ratio is None else f"{ratio['ratio']:.2f} x {ratio['best_peer']}",
        )
    Console().print(table)


def main() -> None:
    """Measure all subjects on the current GPU."""
    parser: argparse.ArgumentParser = arguments(__doc__)
    parser.add_argument("--n", type=int, default=10**8, help="entries of the vector")
    options = parser.parse_args()
    if device.count() == 0:
        sys.exit(f"bench_cuda.py needs a GPU: {device.why_none()}")
    bench = Bench("cuda", options.repeats)
    bench.extra["gpu"] = device.devices()[0].name
    x = np.random.default_rng(0).standard_normal(options.n, dtype=np.float32)
    for density in (0.001, 0.01, 0.1):
        select(bench, x, density)
        codecs(bench, options.n, density)
    values(bench, x)
    messages(bench, x, 0.01)
    staging(bench, x)
    bench.finish(options)
    summary(bench)


if __name__ == "__main__":
    main()
