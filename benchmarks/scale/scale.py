"""The collectives on up to a thousand simulated ranks, against the latency-bandwidth bound.

    python benchmarks/scale/scale.py --json benchmarks/results/scale.json

Builds ``collectives.cpp`` and the unchanged sources of ``csrc/`` with SimGrid (Debian package
libsimgrid-dev; H. Casanova et al., "Versatile, scalable, and accurate simulation of distributed
applications and platforms", J. Parallel Distrib. Comput. 74(10), 2014) and runs them on a fat tree
of 1024 hosts, one rank on each, with links of 10 or 100 Gbit/s and 1 us. A message costs its sender
and its receiver half a microsecond of processor each; nothing else but the network takes time. A
scheme that does not finish within ``--limit`` seconds is left out and said so.
"""

import argparse
import json
import math
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("ring_allreduce", "neighbor_exchange")
DENSE = ("ring", "mpi")
SPARSE = ("sparse-allgather", "sparse-split", "sparse-reselect")
GOSSIP = ("gossip-one-peer", "gossip-ring")
SCHEMES = (*DENSE, *SPARSE, *GOSSIP)
DENSITY = 0.01
ENTRY_BYTES = 4 + 8.1 / 8  # a float32 and its index, as the codec takes at this density
LATENCY = 1e-6  # of one link; four links between hosts under different switches, else two
OVERHEAD = 0.5e-6  # of a message, on either side
RATES = {"10 Gbit/s": 1.25e9, "100 Gbit/s": 12.5e9}  # bytes per second
# 32 leaf switches of 32 hosts, 32 switches above them: no link is shared by design.
PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="tree" prefix="host" suffix="" radical="0-1023" speed="10Gf" bw="{rate}Bps"
           lat="{latency}s" topology="FAT_TREE" topo_parameters="2;32,32;1,32;1,1"/>
</platform>
"""
# Bandwidth and latency as they are, MPICH's choice of algorithms, no time for computing.
SETTINGS = {
    "smpi/simulate-computation": "no",
    "smpi/bw-factor": "0:1",
    "smpi/lat-factor": "0:1",
    "network/weight-S": "0",
    "network/crosstraffic": "0",
    "smpi/privatization": "no",
    "smpi/os": f"0:{OVERHEAD}:0",
    "smpi/ois": f"0:{OVERHEAD}:0",
    "smpi/or": f"0:{OVERHEAD}:0",
    "smpi/coll-selector": "mpich",
    "smpi/host-speed": "1Gf",
}


def main() -> None:
    """Simulate what the command line asks for; write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="write the rows to this file")
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 64, 256, 1024])
    parser.add_argument("--n", type=int, nargs="+", default=[1_000, 100_000, 1_000_000])
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=list(SCHEMES))
    parser.add_argument("--limit", type=float, default=300, help="seconds for one simulation")
    options = parser.parse_args()
    for tool in ("smpicxx", "smpirun"):
        if shutil.which(tool) is None:
            sys.exit(f"{tool} not found: apt-get install libsimgrid-dev")
    with tempfile.TemporaryDirectory() as folder:
        rows = simulate_all(Cluster(Path(folder)), options)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps({"subject": "scale", "rows": rows}, indent=1) + "\n")


class Cluster:
    """The simulated machine, and the program built for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._program = folder / "collectives"
        sources = [str(ROOT / "csrc" / f"{stem}.cpp") for stem in SOURCES]
        command = ["smpicxx", "-std=c++17", "-O2", "-I", str(ROOT / "csrc"), *sources]
        command += [str(Path(__file__).with_name("collectives.cpp")), "-o", str(self._program)]
        subprocess.run(command, check=True)
        hosts = "".join(f"host{number}\n" for number in range(1024))
        (folder / "hosts").write_text(hosts)

    def run(self, rate: float, ranks: int, limit: float, *arguments: str) -> str | None:
        """Run the program on so many ranks; None where that takes longer than `limit` seconds."""
        platform = self._folder / f"{rate:.0f}.xml"
        platform.write_text(PLATFORM.format(rate=f"{rate:.0f}", latency=LATENCY))
        command = ["smpirun", "-np", str(ranks), "-platform", str(platform)]
        command += ["-hostfile", str(self._folder / "hosts")]
        command += [f"--cfg={name}:{value}" for name, value in SETTINGS.items()]
        command += ["--log=root.thresh:critical", str(self._program), *arguments]
        # A limit of smpirun's own children too, which a plain timeout would leave behind.
        command = ["timeout", f"{limit:.0f}", *command]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 124:
            return None
        if done.returncode != 0:
            sys.exit(f"{' '.join(arguments)} on {ranks} ranks failed: {done.stderr.strip()}")
        return done.stdout


def simulate_all(cluster: Cluster, options: argparse.Namespace) -> list[dict[str, object]]:
    """Return one row for every link, number of ranks, length and scheme."""
    cluster.run(RATES["10 Gbit/s"], 16, options.limit, "check")
    rows = []
    for link, rate in RATES.items():
        for ranks in options.ranks:
            for n in options.n:
                for scheme in options.schemes:
                    arguments = (scheme, str(n), str(DENSITY), str(ENTRY_BYTES))
                    printed = cluster.run(rate, ranks, options.limit, *arguments)
                    seconds = None if printed is None else float(printed)
                    bound = lower_bound(scheme, ranks, 4 * n, rate)
                    rows.append(
                        {
                            "link": link,
                            "ranks": ranks,
                            "n": n,
                            "scheme": scheme,
                            "seconds": seconds,
                            "bound_s": bound,
                        }
                    )
                    shown = "not finished" if seconds is None else f"{seconds / bound:.2f} x bound"
                    print(f"{link}, {ranks} ranks, {n} floats, {scheme}: {shown}", flush=True)
    return rows


def lower_bound(scheme: str, ranks: int, nbytes: int, rate: float) -> float:
    """Return what no scheme of that kind can beat: its latencies, plus its bytes at full rate.

    Dense: log2 P latencies and 2 (P-1)/P of the buffer (Patarasuk and Yuan). Sparse: log2 P and
    2 (P-1)/P of k entries (Ok-Topk, theorem 3.1). Gossip: one latency and one buffer.
    """
    latency = LATENCY * (2 if ranks <= 32 else 4)
    if scheme in GOSSIP:
        return latency + nbytes / rate
    if scheme in SPARSE:
        nbytes = int(DENSITY * nbytes / 4 * ENTRY_BYTES)
    return math.ceil(math.log2(ranks)) * latency + 2 * (ranks - 1) / ranks * nbytes / rate


if __name__ == "__main__":
    main()
