"""The collectives on up to a thousand simulated ranks, against the latency-bandwidth bound.

    python benchmarks/scale/scale.py --json benchmarks/results/scale.json

Builds ``collectives.cpp`` and the unchanged sources of ``csrc/`` with SimGrid (Debian package
libsimgrid-dev; H. Casanova et al., "Versatile, scalable, and accurate simulation of distributed
applications and platforms", J. Parallel Distrib. Comput. 74(10), 2014) and runs them on a fat tree
of 1024 hosts with links of 10 or 100 Gbit/s and 1 us, one rank on each host or eight. A message
costs its sender and its receiver half a microsecond of processor each; nothing else but the network
takes time. A scheme that does not finish within ``--limit`` seconds is left out and said so.
"""

import argparse
import itertools
import json
import math
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCES = ("common", "fold", "ring_allreduce", "recursive_doubling", "neighbor_exchange")
DENSE = ("ring", "recursive-doubling", "hierarchical", "mpi")
SPARSE = ("sparse-allgather", "sparse-split", "sparse-reselect")
GOSSIP = ("gossip-one-peer", "gossip-ring")
SCHEMES = (*DENSE, *SPARSE, *GOSSIP)
PER_HOST = (1, 8)
CASE = ("link", "ranks", "per_host", "n", "scheme")
DENSITY = 0.01
ENTRY_BYTES = 4 + 8.1 / 8  # a float32 and its index, as the codec takes at this density
LATENCY = 1e-6  # of one link; four links between hosts under different switches, else two
OVERHEAD = 0.5e-6  # of a message, on either side
# Inside a host messages go through its memory.
HOST_LATENCY, HOST_RATE = 0.2e-6, 1e10
RATES = {"10 Gbit/s": 1.25e9, "100 Gbit/s": 12.5e9}  # bytes per second
# 32 leaf switches of 32 hosts, 32 switches above them: no link is shared by design.
PLATFORM = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="tree" prefix="host" suffix="" radical="0-1023" speed="10Gf" bw="{rate}Bps"
           lat="{latency}s" loopback_bw="{host_rate}Bps" loopback_lat="{host_latency}s"
           topology="FAT_TREE" topo_parameters="2;32,32;1,32;1,1"/>
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
    # Few mappings, of which a process may have no more than 65530.
    "smpi/shared-malloc-blocksize": str(64 * 1024 * 1024),
    "smpi/os": f"0:{OVERHEAD}:0",
    "smpi/ois": f"0:{OVERHEAD}:0",
    "smpi/or": f"0:{OVERHEAD}:0",
    "smpi/barrier": "mpich",
    "smpi/allreduce": "mpich",
    "smpi/allgather": "mpich",
    "smpi/host-speed": "1Gf",
}


def main() -> None:
    """Simulate what the command line asks for; write JSON, one case after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="put the rows into this file")
    parser.add_argument("--missing", action="store_true", help="leave out what that file has")
    parser.add_argument("--ranks", type=int, nargs="+", default=[16, 64, 256, 1024])
    parser.add_argument("--per-host", type=int, nargs="+", default=PER_HOST)
    parser.add_argument("--n", type=int, nargs="+", default=[1_000, 100_000, 1_000_000])
    parser.add_argument("--links", nargs="+", choices=list(RATES), default=list(RATES))
    parser.add_argument("--schemes", nargs="+", choices=SCHEMES, default=list(SCHEMES))
    parser.add_argument("--limit", type=float, default=300, help="seconds for one simulation")
    options = parser.parse_args()
    for tool in ("smpicxx", "smpirun"):
        if shutil.which(tool) is None:
            sys.exit(f"{tool} not found: apt-get install libsimgrid-dev")
    rows = read(options.json)
    with tempfile.TemporaryDirectory() as folder:
        cluster = Cluster(Path(folder))
        cluster.run(RATES["10 Gbit/s"], 16, 1, options.limit, "check")
        for case in cases(options):
            if options.missing and rows.get(case, {}).get("seconds"):
                continue
            rows[case] = simulate(cluster, case, options.limit)
            write(options.json, rows)


def read(path: Path | None) -> dict[tuple, dict]:
    """Return the rows of a file by their case; none where there is no file."""
    if path is None or not path.exists():
        return {}
    rows = json.loads(path.read_text())["rows"]
    return {tuple(row[key] for key in CASE): row for row in rows}


def write(path: Path | None, rows: dict[tuple, dict]) -> None:
    """Write the rows in the order of their cases."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        ordered = [rows[case] for case in sorted(rows)]
        path.write_text(json.dumps({"subject": "scale", "rows": ordered}, indent=1) + "\n")


def cases(options: argparse.Namespace) -> Iterator[tuple]:
    """List what the options ask for: link, ranks, ranks on a host, length and scheme."""
    chosen = (options.links, options.ranks, options.per_host, options.n, options.schemes)
    for case in itertools.product(*chosen):
        _, _, per_host, _, scheme = case
        # Between hosts and inside them only the dense ones tell the two apart.
        there_is = per_host > 1 if scheme == "hierarchical" else per_host == 1 or scheme in DENSE
        if there_is:
            yield case


class Cluster:
    """The simulated machine, and the program built for it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._program = folder / "collectives"
        sources = [str(ROOT / "csrc" / f"{stem}.cpp") for stem in SOURCES]
        command = ["smpicxx", "-std=c++17", "-O2", "-I", str(ROOT / "csrc"), *sources]
        command += [str(Path(__file__).with_name("collectives.cpp")), "-o", str(self._program)]
        subprocess.run(command, check=True)

    def run(
        self, rate: float, ranks: int, per_host: int, limit: float, *arguments: str
    ) -> str | None:
        """Run the program on so many ranks; None where that takes longer than `limit` seconds."""
        hosts = "".join(f"host{rank // per_host}\n" for rank in range(ranks))
        (self._folder / "hosts").write_text(hosts)
        platform = self._folder / f"{rate:.0f}.xml"
        host = {"host_rate": f"{HOST_RATE:.0f}", "host_latency": HOST_LATENCY}
        platform.write_text(PLATFORM.format(rate=f"{rate:.0f}", latency=LATENCY, **host))
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


def simulate(cluster: Cluster, case: tuple, limit: float) -> dict[str, object]:
    """Return the row of one case; its seconds are None where that takes longer than `limit`."""
    link, ranks, per_host, n, scheme = case
    arguments = (scheme, str(n), str(DENSITY), str(ENTRY_BYTES), str(per_host))
    printed = cluster.run(RATES[link], ranks, per_host, limit, *arguments)
    seconds = None if printed is None else float(printed)
    bound = lower_bound(scheme, ranks // per_host, 4 * n, RATES[link])
    shown = "not finished" if seconds is None else f"{seconds / bound:.2f} x bound"
    print(f"{link}, {ranks} ranks, {per_host} a host, {n} floats, {scheme}: {shown}", flush=True)
    return {**dict(zip(CASE, case, strict=True)), "seconds": seconds, "bound_s": bound}


def lower_bound(scheme: str, hosts: int, nbytes: int, rate: float) -> float:
    """Return what no scheme can beat between so many hosts: latencies, plus bytes at full rate.

    Dense: log2 H latencies and 2 (H-1)/H of the buffer (Patarasuk and Yuan). Sparse: log2 H and
    2 (H-1)/H of k entries (Ok-Topk, theorem 3.1). Gossip: one latency and one buffer.
    """
    latency = LATENCY * (2 if hosts <= 32 else 4)
    if scheme in GOSSIP:
        return latency + nbytes / rate
    if scheme in SPARSE:
        nbytes = int(DENSITY * nbytes / 4 * ENTRY_BYTES)
    return math.ceil(math.log2(hosts)) * latency + 2 * (hosts - 1) / hosts * nbytes / rate


if __name__ == "__main__":
    main()
