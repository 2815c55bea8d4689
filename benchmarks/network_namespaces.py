"""Hosts on this machine that reach each other only through links of a given rate; needs root.

Every host is a network namespace with one interface, ``eth0``; a further namespace holds the
switch, so that nothing is added to the machine's own network and no traffic leaves it. Both ends of
a link are shaped with a token bucket: what a host sends, and what it receives.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

__all__ = ["SlowNetwork", "check_rights"]

_NETWORK = "10.77.0"


def check_rights() -> None:
    """End the program with a remedy unless it can make namespaces and shape their links."""
    missing = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if missing:
        sys.exit(f"{' and '.join(missing)} not found: apt-get install iproute2")
    if os.geteuid() != 0:
        sys.exit("network namespaces need root: start it again with sudo")


class SlowNetwork:
    """A switch with `hosts` hosts, each on a link of `rate` bits per second in either direction.

    A context manager: what it made is gone afterwards, with all processes that are still in it,
    also after Ctrl-C or SIGTERM.
    """

    def __init__(self, hosts: int, rate: float) -> None:
        self.addresses = [f"{_NETWORK}.{host + 1}" for host in range(hosts)]
        self._rate = rate
        self._prefix = f"paropt-{os.getpid()}-"
        self._names = [f"{self._prefix}{address}" for address in self.addresses]
        self._switch = f"{self._prefix}switch"
        self._folder = tempfile.TemporaryDirectory(prefix="paropt-")
        self._handler: object = None

    def __enter__(self) -> Self:
        self._handler = signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
        try:
            self._make()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._remove()

    def mpiexec(
        self, mpiexec: Path, ranks_per_host: int, command: Sequence[str], variables: dict[str, str]
    ) -> None:
        """Run a command of MPICH's on all hosts, ranks filling one host after the other."""
        hosts = ",".join(f"{address}:{ranks_per_host}" for address in self.addresses)
        launch = ["-launcher", "ssh", "-launcher-exec", str(self._launcher())]
        network = {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "eth0"}
        # The hosts share the cores of this machine.
        network |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        ranks = str(ranks_per_host * len(self.addresses))
        where = ["-localhost", self.addresses[0], "-hosts", hosts, "-n", ranks]
        subprocess.run(
            ["ip", "netns", "exec", self._names[0], mpiexec, *launch, *where, *command],
            env=os.environ | network | variables,
            check=True,
        )

    def _make(self) -> None:
        for name in (self._switch, *self._names):
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", self._switch, "link", "add", "switch", "type", "bridge")
        _ip("-n", self._switch, "link", "set", "switch", "up")
        for host, (name, address) in enumerate(zip(self._names, self.addresses, strict=True)):
            port = f"port{host}"
            pair = ["type", "veth", "peer", "name", "eth0", "netns", name]
            _ip("-n", self._switch, "link", "add", port, *pair)
            _ip("-n", self._switch, "link", "set", port, "master", "switch", "up")
            _ip("-n", name, "address", "add", f"{address}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            self._shape(name, "eth0")
            self._shape(self._switch, port)

    def _shape(self, name: str, interface: str) -> None:
        # A bucket of a millisecond: too small to flatter a transfer, enough to keep the rate.
        burst = max(16_000, int(self._rate / 8 * 1e-3))
        limit = ["rate", f"{self._rate:.0f}bit", "burst", str(burst), "latency", "100ms"]
        _run("tc", "-n", name, "qdisc", "add", "dev", interface, "root", "tbf", *limit)

    def _launcher(self) -> Path:
        """Write what MPICH calls in place of ssh: options, a host, and a command for its shell."""
        script = Path(self._folder.name) / "launch"
        script.write_text(
            "#!/bin/sh\n"
            'while [ "${1#-}" != "$1" ]; do shift; done\n'
            "host=$1\n"
            "shift\n"
            f'exec ip netns exec "{self._prefix}$host" sh -c "$*"\n'
        )
        script.chmod(0o755)
        return script

    def _remove(self) -> None:
        for name in (*self._names, self._switch):
            found = subprocess.run(
                ["ip", "netns", "pids", name], capture_output=True, text=True, check=False
            )
            for process in found.stdout.split():
                _kill(int(process))
            # Its interfaces go with it, and the other ends of its pairs too.
            subprocess.run(["ip", "netns", "delete", name], stderr=subprocess.DEVNULL, check=False)
        self._folder.cleanup()
        if self._handler is not None:
            signal.signal(signal.SIGTERM, self._handler)  # type: ignore[arg-type]


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def _kill(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
