"""Checks before any work: what a job was promised, and what its ranks really have."""

import json
import os
import platform
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from paropt_hpc import CORES, __version__
from paropt_hpc.cluster.environment import Fact
from paropt_hpc.comm import Communicator, native
from paropt_hpc.comm.gpu_mpi import local_device
from paropt_hpc.comm.launcher import launched_size, srun_plugin
from paropt_hpc.errors import ConfigError, on_every_rank

__all__ = ["in_job", "inspect", "local_device", "preflight", "visible_devices"]

# What a batch script says of the number of ranks that it starts.
RANKS = "PAROPT_RANKS"
# A file made on one node is seen on another after this many seconds at most, on a slow NFS.
_ATTRIBUTE_CACHE = 15.0


def in_job() -> bool:
    """Say whether a scheduler has started this process; local."""
    return RANKS in os.environ or "SLURM_JOB_ID" in os.environ


def preflight(comm: Communicator, folder: Path | None = None) -> None:
    """Refuse to start work on ranks that are not what the job asked for; collective.

    Parameters
    ----------
    comm : Communicator
        All ranks of the job.
    folder : Path, optional
        Where results go: every rank must see what rank 0 writes there. It is made if needed.

    Raises
    ------
    ConfigError
        On every rank, naming the first fault and its remedy.
    """
    for fact in inspect(comm, folder):
        if not fact.ok:
            raise on_every_rank(ConfigError(f"{fact.name}: {fact.value}; {fact.remedy}"))


def inspect(comm: Communicator, folder: Path | None = None) -> list[Fact]:
    """Return the checks of :func:`preflight` one by one; collective, the same on every rank."""
    devices = visible_devices(os.environ)
    own = {
        "host": platform.node(),
        "versions": _versions(comm),
        "threads": _threads(os.environ),
        "cores": sorted(CORES),
        "device": devices[local_device(comm, len(devices))] if devices else None,
    }
    ranks = [json.loads(text) for text in comm.gather_texts(json.dumps(own))]
    facts = [_world(comm), _same_versions(ranks), _cores_suffice(ranks)]
    if any(rank["device"] is not None for rank in ranks):
        facts.append(_devices(ranks))
    if folder is not None:
        facts.append(_shared_folder(comm, folder))
    return facts


def visible_devices(environ: Mapping[str, str]) -> list[str]:
    """Name the GPUs that the environment grants this process; local."""
    listed = environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return [device.strip() for device in listed if device.strip()]


def _world(comm: Communicator) -> Fact:
    promised, variable = os.environ.get(RANKS, ""), RANKS
    if not promised.isdecimal():
        size, variable = launched_size(os.environ)
        promised = str(size) if variable == "SLURM_STEP_NUM_TASKS" else str(comm.size)
    if comm.size == int(promised):
        return Fact("tasks", f"{promised}, one rank each")
    remedy = f"start them all by one srun --mpi={srun_plugin() or 'pmi2 or pmix'}"
    return Fact("tasks", f"{comm.size} ranks, but {variable} is {promised}", False, remedy)


def _same_versions(ranks: list[dict[str, Any]]) -> Fact:
    texts = [rank["versions"] for rank in ranks]
    different = [number for number, text in enumerate(texts) if text != texts[0]]
    if not different:
        return Fact("versions", texts[0])
    other = different[0]
    value = f"rank 0 has {texts[0]}, rank {other} on {ranks[other]['host']} has {texts[other]}"
    return Fact("versions", value, False, "use one environment, on a file system all nodes share")


def _cores_suffice(ranks: list[dict[str, Any]]) -> Fact:
    """Compare the threads of each node with the cores that its ranks may use together."""
    for host in dict.fromkeys(rank["host"] for rank in ranks):
        here = [rank for rank in ranks if rank["host"] == host]
        threads = sum(rank["threads"] for rank in here)
        cores = len(set().union(*(rank["cores"] for rank in here)))
        if threads > cores and len(here) > 1 and max(rank["threads"] for rank in here) > 1:
            value = f"{len(here)} ranks on {host} start {threads} threads on {cores} cores"
            return Fact("threads", value, False, "lower OMP_NUM_THREADS, or ask for more cores")
    return Fact("threads", f"{ranks[0]['threads']} per rank")


def _devices(ranks: list[dict[str, Any]]) -> Fact:
    without = [number for number, rank in enumerate(ranks) if rank["device"] is None]
    if without:
        value = f"rank {without[0]} on {ranks[without[0]]['host']} sees none, others do"
        return Fact("GPUs", value, False, "ask for GPUs on every node: --gpus-per-node")
    taken = Counter((rank["host"], rank["device"]) for rank in ranks)
    most = max(taken.values())
    return Fact("GPUs", f"up to {most} ranks share one" if most > 1 else "one for each rank")


def _shared_folder(comm: Communicator, folder: Path) -> Fact:
    """Let rank 0 write a file and all others look for it."""
    token = np.frombuffer(uuid4().bytes, np.uint8).copy()
    comm.broadcast(token)
    path = folder / f".preflight-{token.tobytes().hex()}"
    with comm.together():
        if comm.rank == 0:
            folder.mkdir(parents=True, exist_ok=True)
            path.touch()
    seen = comm.gather_scalars(float(_appears(path)))
    if comm.rank == 0:
        path.unlink()
    blind = np.flatnonzero(seen == 0)
    if not blind.size:
        return Fact("run folder", f"{folder}, seen by every rank")
    value = f"{folder} is not the same on rank {blind[0]}"
    return Fact("run folder", value, False, "put it on a file system that all nodes share")


def _appears(path: Path) -> bool:
    deadline = time.monotonic() + _ATTRIBUTE_CACHE
    while not path.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def _versions(comm: Communicator) -> str:
    library = f", {native.library()}" if comm.size > 1 else ""
    python = f"Python {platform.python_version()}, NumPy {np.__version__}"
    return f"paropt-hpc {__version__}, {python}{library}"


def _threads(environ: Mapping[str, str]) -> int:
    threads = environ.get("OMP_NUM_THREADS", "").split(",")[0]
    return int(threads) if threads.isdecimal() else 1
