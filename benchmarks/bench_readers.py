"""Reading LIBSVM text against scikit-learn: seconds, and peak memory beside the arrays.

python benchmarks/bench_readers.py --data a9a.gz --repeats 1 --json FILE

Each read is a process of its own, so that its peak is its own. The file is a9a, or samples like
its, repeated to --bytes (1e9) in a temporary folder. Peak memory is that of the process less what
it had before the read: the file is read, not mapped, so that its pages do not count.
"""

import gzip
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from harness import Bench, Seconds, arguments


def memory(name: str) -> int:
    """Return bytes of this process, on Linux: VmRSS now, VmHWM at most so far."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    raise SystemExit(f"/proc/self/status has no {name}")


def ours(path: str, part: tuple[int, int]) -> list[np.ndarray]:
    """Return the arrays of our reader."""
    from paropt_hpc.train import read_libsvm

    x, y = read_libsvm(path, part=part)
    return [x.ends, x.columns, x.values, y]


def theirs(path: str, part: tuple[int, int]) -> list[np.ndarray]:
    """Return the arrays of scikit-learn's reader, which reads a part too."""
    from sklearn.datasets import load_svmlight_file

    size = Path(path).stat().st_size
    first, last = (size * i // part[1] for i in (part[0], part[0] + 1))
    # The features, without which the reader would have to find them out.
    x, y = load_svmlight_file(
        path,
        n_features=123,
        dtype=np.float32,
        zero_based=False,
        offset=first,
        length=last - first,
    )
    return [x.indptr, x.indices, x.data, y]


READERS = {"paropt": ours, "scikit-learn load_svmlight_file": theirs}


def worker(reader: str, path: str, number: str, parts: str) -> None:
    """Read once, and print seconds, bytes of the arrays and of the peak."""
    warm = Path(path).with_name("warm")
    READERS[reader](str(warm), (0, 1))  # imports and their memory are not the reader's
    before, started = memory("VmRSS"), time.perf_counter()
    arrays = READERS[reader](path, (int(number), int(parts)))
    seconds = time.perf_counter() - started
    nbytes = sum(array.nbytes for array in arrays)
    print(json.dumps([seconds, nbytes, memory("VmHWM") - before]))


def lines_like_a9a(path: Path | None) -> bytes:
    """Return the text of a9a, or 32,561 samples of 14 of 123 binary features."""
    if path is not None:
        packed = path.read_bytes()
        return gzip.decompress(packed) if packed[:2] == b"\x1f\x8b" else packed
    rng = np.random.default_rng(0)
    rows = np.sort(rng.random((32_561, 123)).argsort(axis=1)[:, :14] + 1, axis=1)
    return b"".join(
        f"{i % 2} {' '.join(f'{j}:1' for j in row)} \n".encode() for i, row in enumerate(rows)
    )


def run(name: str, path: Path, part: tuple[int, int], peaks: dict[str, list[float]]) -> Seconds:
    """Read in another process; note its peak beside its arrays."""
    command = [sys.executable, __file__, "--worker", name, str(path), *map(str, part)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    seconds, nbytes, most = json.loads(done.stdout)
    peaks.setdefault(name, []).append(most / nbytes)
    return Seconds(seconds)


def main() -> None:
    """Make the file, read it whole and by halves, and print what it took."""
    parser = arguments(__doc__)
    parser.add_argument("--data", type=Path, help="LIBSVM text to repeat, plain or gzipped")
    parser.add_argument("--bytes", type=float, default=1e9, help="size of the file")
    options = parser.parse_args()
    notes: list[str] = []
    bench = Bench("readers", repeats=options.repeats, extra={"notes": notes})
    text = lines_like_a9a(options.data)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "samples"
        (Path(folder) / "warm").write_bytes(text[: text.index(b"\n") + 1])
        with path.open("wb") as file:
            for _ in range(max(1, round(options.bytes / len(text)))):
                file.write(text)
        size = path.stat().st_size
        for case, part in (("whole file", (0, 1)), ("second of two parts", (1, 2))):
            peaks: dict[str, list[float]] = {}
            calls: dict[str, Callable[[], Seconds]] = {
                name: partial(run, name, path, part, peaks) for name in READERS
            }
            label = f"{case} of {size / 1e6:.0f} MB"
            mine = {"paropt": calls.pop("paropt")}
            bench.case(label, mine, calls, moved=size // part[1])
            told = ", ".join(f"{name} {max(found):.2f}" for name, found in peaks.items())
            notes.append(f"Peak memory, {label}, as a multiple of the arrays it yields: {told}.")
            print(notes[-1])
    bench.finish(options)


if sys.argv[1:2] == ["--worker"]:
    worker(*sys.argv[2:])
else:
    main()
