"""Processes of their own: clusters with TLS, and work on blocks of few rows in all of them."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAKE_CERTIFICATES = ROOT / "deploy" / "tls" / "make-certificates"
SECONDS = 200  # only where something hangs

SMALL_BLOCKS = """
import pytest
from tests.small_blocks import shrink
shrink(pytest.MonkeyPatch())
"""


@pytest.fixture(scope="module")
def small_blocks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the environment of processes that work on blocks of few rows."""
    folder = tmp_path_factory.mktemp("customised")
    (folder / "sitecustomize.py").write_text(SMALL_BLOCKS)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DASK_")}
    return {**environment, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


def with_certificates(environment: dict[str, str], folder: Path) -> dict[str, str]:
    """Add Dask's own settings for TLS, as deploy/ sets them."""
    tls = "DASK_DISTRIBUTED__COMM__TLS__"
    files = {f"{tls}CA_FILE": folder / "ca.crt"}
    for role in ("CLIENT", "SCHEDULER", "WORKER"):
        files[f"{tls}{role}__CERT"] = folder / "tls.crt"
        files[f"{tls}{role}__KEY"] = folder / "tls.key"
    settings = {name: str(path) for name, path in files.items()}
    return {**environment, **settings, "DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION": "True"}


@contextmanager
def running(
    command: list[str], environment: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process meanwhile."""
    with open(log, "w") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def found_in(log: Path, pattern: str) -> str:
    """Return the first group of a pattern that a process prints some time."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end:
        if found := re.search(pattern, log.read_text()):
            return found.group(1)
        time.sleep(0.05)
    raise AssertionError(f"no {pattern!r} in:\n{log.read_text()}")


@dataclass(frozen=True)
class Cluster:
    """A scheduler's address, and its workers."""

    address: str
    workers: list[subprocess.Popen[bytes]]


@contextmanager
def tls_cluster(environment: dict[str, str], logs: Path) -> Iterator[Cluster]:
    """Run a scheduler and two workers as processes of their own."""
    dask = [sys.executable, "-m", "dask"]
    here = ["--host", "127.0.0.1", "--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
    log = logs / "scheduler.log"
    scheduler = [*dask, "scheduler", *here, "--protocol", "tls", "--port", "0"]
    with running(scheduler, environment, log):
        address = found_in(log, r"Scheduler at: +(tls://\S+)")
        worker = [*dask, "worker", address, *here, "--nthreads", "1", "--no-nanny"]
        worker += ["--local-directory", str(logs)]
        with (
            running(worker, environment, logs / "worker-0.log") as first,
            running(worker, environment, logs / "worker-1.log") as second,
        ):
            for i in range(2):
                found_in(logs / f"worker-{i}.log", r"(Registered to)")
            yield Cluster(address, [first, second])


def wait_until(condition: Callable[[], object], process: subprocess.Popen[str]) -> None:
    """Wait until something is so, while a process runs."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.002)


def make_certificates(folder: Path) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl command")
    subprocess.run([str(MAKE_CERTIFICATES), str(folder)], check=True, capture_output=True)
    return folder
