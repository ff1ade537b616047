"""One script, unchanged: in process, on clusters of several kinds, on several hosts.

Blocks are made small in every process, so that all workers have something to do. What the
script prints has a fingerprint of its results; the right one is that of work in process.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.hosts import Hosts, why_impossible
from tests.store.conftest import s3_environment, s3_url

__all__ = ["s3_environment", "s3_url"]  # fixtures

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "examples" / "everywhere.py"
MAKE_CERTIFICATES = ROOT / "deploy" / "tls" / "make-certificates"
N_ROWS = "2600"  # 41 blocks, three spans
SECONDS = 200  # only where something hangs

pytestmark = pytest.mark.skipif(
    not (SCRIPT.is_file() and MAKE_CERTIFICATES.is_file()),
    reason="examples and deploy are not part of an installed package",
)

SMALL_BLOCKS = """
import pytest
from tests.small_blocks import shrink
shrink(pytest.MonkeyPatch())
"""


@pytest.fixture(scope="module")
def small_blocks(tmp_path_factory) -> dict[str, str]:
    """Return the environment of processes that work on blocks of few rows."""
    folder = tmp_path_factory.mktemp("customised")
    (folder / "sitecustomize.py").write_text(SMALL_BLOCKS)
    environment = {k: v for k, v in os.environ.items() if not k.startswith("DASK_")}
    return {**environment, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}


@pytest.fixture(scope="module")
def wanted(small_blocks) -> str:
    """Return what the script says with no argument."""
    return run([], small_blocks)


def run(arguments: list[str], environment: dict[str, str]) -> str:
    done = try_to_run(arguments, environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def try_to_run(
    arguments: list[str], environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), "--rows", N_ROWS, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )


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
def running(command: list[str], environment: dict[str, str], log: Path) -> Iterator[None]:
    """Run a process meanwhile."""
    with open(log, "w") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
    try:
        yield
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


@contextmanager
def tls_cluster(environment: dict[str, str], logs: Path) -> Iterator[str]:
    """Run a scheduler and two workers as processes of their own; give their address."""
    dask = [sys.executable, "-m", "dask"]
    here = ["--host", "127.0.0.1", "--no-dashboard", "--dashboard-address", "127.0.0.1:0"]
    log = logs / "scheduler.log"
    scheduler = [*dask, "scheduler", *here, "--protocol", "tls", "--port", "0"]
    with running(scheduler, environment, log):
        address = found_in(log, r"Scheduler at: +(tls://\S+)")
        worker = [*dask, "worker", address, *here, "--nthreads", "1", "--no-nanny"]
        worker += ["--local-directory", str(logs)]
        with (
            running(worker, environment, logs / "worker-0.log"),
            running(worker, environment, logs / "worker-1.log"),
        ):
            for i in range(2):
                found_in(logs / f"worker-{i}.log", r"(Registered to)")
            yield address


def make_certificates(folder: Path) -> Path:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl command")
    subprocess.run([str(MAKE_CERTIFICATES), str(folder)], check=True, capture_output=True)
    return folder


def test_in_process__has_a_fingerprint_and_many_blocks(wanted, small_blocks, tmp_path):
    assert re.fullmatch(r"8 clusters, .*\nfingerprint [0-9a-f]{16}\n", wanted, re.DOTALL)
    count = "import distclust, sys; print(distclust.open_store(sys.argv[1]).matrix().n_blocks)"
    again = run(["--folder", str(tmp_path)], small_blocks)
    counted = subprocess.run(
        [sys.executable, "-c", count, str(tmp_path / "rows.zarr")],
        env=small_blocks,
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(counted.stdout) == 41
    assert again == wanted


@pytest.mark.cluster
def test_local_cluster(wanted, small_blocks):
    assert run(["--scheduler", "local"], small_blocks) == wanted


@pytest.mark.cluster
def test_processes_with_tls(wanted, small_blocks, tmp_path):
    right = with_certificates(small_blocks, make_certificates(tmp_path / "right"))
    wrong = with_certificates(small_blocks, make_certificates(tmp_path / "wrong"))
    with tls_cluster(right, tmp_path) as address:
        folder = ["--folder", str(tmp_path / "results")]
        by_variable = {**right, "DASK_SCHEDULER_ADDRESS": address}
        assert run(folder, by_variable) == wanted

        refused = try_to_run([*folder, "--scheduler", address], wrong)
        assert refused.returncode != 0
        assert "ClusterError" in refused.stderr
        assert "fingerprint" not in refused.stdout
        plain = address.replace("tls://", "tcp://")
        assert try_to_run([*folder, "--scheduler", plain], small_blocks).returncode != 0

        # Nothing of that disturbed the cluster; and the results are found, not made again.
        assert run([*folder, "--scheduler", address], right) == wanted
    assert "ssl" in (tmp_path / "scheduler.log").read_text().lower()


@pytest.mark.netns
@pytest.mark.cluster
def test_three_hosts(wanted, small_blocks, tmp_path):
    if reason := why_impossible():
        pytest.skip(reason)
    with Hosts(3, tmp_path) as hosts:
        scheduler = hosts.start_scheduler(0)
        for host in (1, 2):
            hosts.start_worker(host, scheduler, small_blocks)
        command = [sys.executable, str(SCRIPT), "--rows", N_ROWS]
        command += ["--folder", str(tmp_path / "results")]
        environment = {**small_blocks, "DASK_SCHEDULER_ADDRESS": scheduler}
        driver = hosts.start(0, command, environment=environment, is_read=True)
        printed, _ = driver.communicate(timeout=SECONDS)
    assert driver.returncode == 0, printed
    assert printed.endswith(wanted), printed


def test_workers_elsewhere__need_a_folder(small_blocks):
    refused = try_to_run(["--scheduler", "tcp://192.0.2.1:8786"], small_blocks)
    assert refused.returncode == 2
    assert "--folder" in refused.stderr


def test_object_store(wanted, small_blocks, s3_url, s3_environment):
    assert run(["--folder", s3_url], {**small_blocks, **s3_environment}) == wanted
