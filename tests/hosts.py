"""Several hosts on one machine: network namespaces on a switch, each with its own address.

Nothing outside of the namespaces made here is touched: the switch, too, is in one. It needs
root and the ``ip`` command.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

_NETWORK = "10.77.0"
_PORT = 8786


def why_impossible() -> str | None:
    """Return why no hosts can be made here, or None if they can."""
    if shutil.which("ip") is None:
        return "there is no ip command"
    name = f"distclust-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    if made.returncode:
        return f"no network namespace can be made: {made.stderr.strip()}"
    _ip("netns", "delete", name)
    return None


class Hosts:
    """Hosts that reach each other; use it as a context manager.

    Parameters
    ----------
    n_hosts
        How many there are, numbered from 0.
    logs
        Folder for what their processes print.
    """

    def __init__(self, n_hosts: int, logs: Path) -> None:
        self.n_hosts = n_hosts
        self.logs = logs
        self.processes: list[subprocess.Popen[str]] = []
        self._prefix = f"distclust-{os.getpid()}-{time.monotonic_ns() % 10**6}"
        self._made: list[str] = []

    def __enter__(self) -> Self:
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def address(self, host: int) -> str:
        """Return the address of a host."""
        return f"{_NETWORK}.{host + 1}"

    def start(
        self,
        host: int,
        command: Sequence[str],
        *,
        environment: dict[str, str] | None = None,
        is_read: bool = False,
    ) -> subprocess.Popen[str]:
        """Start a process on a host; `is_read`: what it prints is read from it, not logged."""
        log = self.logs / f"host-{host}-{len(self.processes)}.log"
        with open(log, "w") as file:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self._name(host), *command],
                cwd=Path(__file__).parents[1],
                env={
                    **os.environ,
                    "PYTHONPATH": str(Path(__file__).parents[1]),
                    **(environment or {}),
                },
                stdout=subprocess.PIPE if is_read else file,
                stderr=subprocess.STDOUT,
                text=True,
            )
        self.processes.append(process)
        return process

    def start_scheduler(self, host: int) -> str:
        """Start a Dask scheduler; return its address."""
        options = ["--host", self.address(host), "--port", str(_PORT), "--no-dashboard"]
        self.start(host, [sys.executable, "-m", "distributed.cli.dask_scheduler", *options])
        return f"tcp://{self.address(host)}:{_PORT}"

    def start_worker(
        self, host: int, scheduler: str, environment: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a Dask worker with one thread."""
        options = ["--host", self.address(host), "--nthreads", "1", "--no-nanny", "--no-dashboard"]
        command = [sys.executable, "-m", "distributed.cli.dask_worker", scheduler, *options]
        return self.start(host, command, environment=environment)

    def cut(self, host: int) -> None:
        """Cut a host off: what is sent to it or by it is lost without a word."""
        _ip("-n", self._name("switch"), "link", "set", f"port{host}", "down")

    def heal(self, host: int) -> None:
        """Connect a host again."""
        _ip("-n", self._name("switch"), "link", "set", f"port{host}", "up")

    def close(self) -> None:
        """End all processes and remove the hosts, whatever state they are in."""
        for process in reversed(self.processes):
            process.kill()
        for process in self.processes:
            process.communicate()
        for name in reversed(self._made):
            _ip("netns", "delete", name)
        self._made.clear()

    def _build(self) -> None:
        switch = self._add("switch")
        _ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        _ip("-n", switch, "link", "set", "bridge", "up")
        for host in range(self.n_hosts):
            name, port = self._add(host), f"port{host}"
            pair = ["type", "veth", "peer", "name", "eth0", "netns", name]
            _ip("-n", switch, "link", "add", port, *pair)
            _ip("-n", switch, "link", "set", port, "master", "bridge", "up")
            _ip("-n", name, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "eth0", "up")
            _ip("-n", name, "route", "add", "default", "dev", "eth0")
            _ip("-n", name, "link", "set", "lo", "up")

    def _add(self, host: int | str) -> str:
        name = self._name(host)
        _ip("netns", "add", name)
        self._made.append(name)
        return name

    def _name(self, host: int | str) -> str:
        return f"{self._prefix}-{host}"


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ip {' '.join(arguments)}: {done.stderr.strip()}"
