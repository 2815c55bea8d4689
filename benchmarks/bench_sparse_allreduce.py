"""Sparse all-reduce against dense MPI and a NumPy pipeline; bytes against Ok-Topk's bound.

    mpiexec -n 2 python -m mpi4py benchmarks/bench_sparse_allreduce.py --json FILE
    mpiexec -n 8 python -m mpi4py benchmarks/bench_sparse_allreduce.py --volume-only

Timed is the whole way from a gradient to the accumulated result: selection with error feedback,
encoding, exchange, decoding, summing. The dense peer has its buffer overwritten with the gradient
before each call, as ours has. The limit is what the memory needs, of all ranks at once, to add the
gradient to the residual and to write a result. Volumes are counted, not timed, so that
oversubscribed ranks will do.

NumPy takes the faster of its two ways to partition, see bench_topk.py: that of AVX2. Set
NPY_DISABLE_CPU_FEATURES to nothing where it is the other one.
"""

import argparse
import os
import sys

os.environ.setdefault("NPY_DISABLE_CPU_FEATURES", "AVX512_SPR AVX512_ICL X86_V4")

import numpy as np
from harness import Bench, arguments
from mpi4py import MPI

from paropt_hpc.comm import Communicator, sparse_allreduce
from paropt_hpc.kernels import message, topk
from paropt_hpc.kernels.index_codec import index_dtype

BOUND_ENTRY_BYTES = 8  # Ok-Topk counts an index and a value, 32 bits each


class Pipeline:
    """One rank's gradient, and the ways to sum its largest entries over all ranks."""

    def __init__(self, comm: Communicator, n: int, density: float) -> None:
        self.comm, self.n, self.k = comm, n, int(n * density)
        self.rng = np.random.default_rng([comm.rank, n])
        self.fresh = self.rng.standard_normal(n, dtype=np.float32)
        self.gradient = self.fresh.copy()
        self.residual = np.zeros(n, np.float32)
        self.result = np.empty(n, np.float32)
        self.selection = np.empty(self.k, index_dtype(n)), np.empty(self.k, np.float32)
        self.encoded = np.empty(message.max_bytes(n, self.k, np.float32), np.uint8)

    def rewrite(self) -> None:
        """Give every buffer new content, which the other rank's cache does not have."""
        np.copyto(self.gradient, self.fresh)
        self.gradient *= np.float32(self.rng.uniform(0.5, 2))
        np.multiply(self.fresh, np.float32(0.1), out=self.residual)

    def sparse(self, scheme: str) -> None:
        """Take our way."""
        chosen = topk.select(self.gradient, self.k, self.residual, out=self.selection)
        encoded = message.encode(chosen.indices, chosen.values, self.n, out=self.encoded)
        done = sparse_allreduce(self.comm, encoded, self.result, scheme)
        if done.dropped_indices.size:
            self.residual[done.dropped_indices] += done.dropped_values

    def memory(self) -> None:
        """Move what every way from gradient to result must: no selection, no message."""
        self.residual += self.gradient
        self.result.fill(0)

    def dense_mpi(self) -> None:
        """Sum the whole gradient in place."""
        MPI.COMM_WORLD.Allreduce(MPI.IN_PLACE, self.gradient)

    def dense_mpi_out(self) -> None:
        """Sum the whole gradient into another buffer."""
        MPI.COMM_WORLD.Allreduce(self.gradient, self.result)

    def numpy_pipeline(self) -> None:
        """Do what a page of NumPy and mpi4py does."""
        self.residual += self.gradient
        chosen = np.argpartition(np.abs(self.residual), self.n - self.k)[self.n - self.k :]
        indices = chosen.astype(np.int32)
        values = self.residual[chosen]
        self.residual[chosen] = 0
        size = self.comm.size
        all_indices = np.empty(size * self.k, np.int32)
        all_values = np.empty(size * self.k, np.float32)
        counts = [self.k] * size
        MPI.COMM_WORLD.Allgatherv(indices, [all_indices, counts, MPI.INT32_T])
        MPI.COMM_WORLD.Allgatherv(values, [all_values, counts, MPI.FLOAT])
        self.result[:] = 0
        np.add.at(self.result, all_indices, all_values)


def measure_speed(bench: Bench, comm: Communicator, n: int, density: float) -> None:
    """Time gradient to result: once beside dense MPI, once beside the sparse pipeline."""
    way = Pipeline(comm, n, density)
    ours = {scheme: (lambda s=scheme: way.sparse(s)) for scheme in ("auto", "split", "reselect")}
    case = f"{n:.0e} floats at {density:.1%}, {comm.size} ranks"
    dense = {"mpi in place": way.dense_mpi, "mpi": way.dense_mpi_out}
    pipeline = {"numpy argpartition + Allgatherv + add.at": way.numpy_pipeline}
    for name, peers in (("dense peers", dense), ("sparse peer", pipeline)):
        title = f"{case}, {name}"
        bench.case(title, ours, peers, moved=4 * n, limit=way.memory, before=way.rewrite)


def indices_of(rng: np.random.Generator, n: int, k: int, clustered: bool) -> np.ndarray:
    """Draw k positions; clustered ones lie to nine tenths in one hundredth of the vector."""
    if not clustered:
        return np.sort(rng.choice(n, k, replace=False)).astype(index_dtype(n))
    weights = rng.random(n) + 100 * (np.abs(np.arange(n) - n // 3) < n // 200) * rng.random(n)
    return np.sort(np.argpartition(weights, n - k)[n - k :]).astype(index_dtype(n))


def measure_volume(bench: Bench, comm: Communicator, n: int, density: float) -> None:
    """Count the bytes of a re-selection, sent and received, against 6 k (P-1)/P entries."""
    k = int(n * density)
    rng = np.random.default_rng([comm.rank, n])
    result = np.empty(n, np.float32)
    for clustered in (False, True):
        indices = indices_of(rng, n, k, clustered)
        values = rng.standard_normal(k, dtype=np.float32)
        comm.traffic.reset()
        encoded = message.encode(indices, values, n)
        # A bucket of its own: ranges that nothing is known about yet, the hardest case.
        done = sparse_allreduce(comm, encoded, result, "reselect", bucket=int(clustered))
        # All that this call has caused, its share of the agreement on errors included.
        sent, received = comm.traffic.bytes_sent, comm.traffic.bytes_received
        busiest = comm.gather_scalars(max(sent, received)).max()
        both = comm.gather_scalars(sent + received)
        bound = 6 * k * (comm.size - 1) / comm.size * BOUND_ENTRY_BYTES
        bench.ratios.append(
            {
                "case": f"bytes, {n:.0e} floats at {density:.1%}, {comm.size} ranks, "
                + ("clustered" if clustered else "even"),
                "ours": f"reselect, {busiest:.0f} bytes",
                "best_peer": f"Ok-Topk's bound, {bound:.0f} bytes",
                "ratio": busiest / bound,
                "imbalance_of_sums": done.imbalance,
                "imbalance_of_bytes": float(both.max() / both.mean()),
            }
        )
        if not bench.quiet:
            print(*bench.ratios[-1].values(), sep="; ")


def main() -> None:
    """Measure what the command line asks for."""
    parser: argparse.ArgumentParser = arguments(__doc__)
    parser.add_argument("--n", type=int, default=10_000_000, help="length of the gradient")
    parser.add_argument("--density", type=float, default=0.01, help="share that is sent")
    parser.add_argument("--volume-only", action="store_true", help="count bytes, time nothing")
    options = parser.parse_args()
    with Communicator(MPI.COMM_WORLD) as comm:
        if comm.size == 1:
            sys.exit("start it with mpiexec -n 2 or more: one rank sends nothing")
        bench = Bench(
            "sparse_allreduce",
            options.repeats,
            synchronise=MPI.COMM_WORLD.Barrier,
            slowest=lambda seconds: MPI.COMM_WORLD.allreduce(seconds, MPI.MAX),
            quiet=comm.rank > 0,
        )
        if not options.volume_only:
            measure_speed(bench, comm, options.n, options.density)
        measure_volume(bench, comm, options.n, options.density)
        bench.finish(options)


if __name__ == "__main__":
    main()
