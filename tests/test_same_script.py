"""One script, unchanged: in process, on clusters of several kinds, on several hosts.

Blocks are made small in every process, so that all workers have something to do. What the
script prints has a fingerprint of its results; the right one is that of work in process.
"""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.hosts import Hosts, why_impossible
from tests.places import s3_environment, s3_url
from tests.processes import (
    MAKE_CERTIFICATES,
    ROOT,
    SECONDS,
    make_certificates,
    small_blocks,
    tls_cluster,
    with_certificates,
)

__all__ = ["s3_environment", "s3_url", "small_blocks"]  # fixtures

SCRIPT = ROOT / "examples" / "everywhere.py"
N_ROWS = "2600"  # 41 blocks, three spans

pytestmark = pytest.mark.skipif(
    not (SCRIPT.is_file() and MAKE_CERTIFICATES.is_file()),
    reason="examples and deploy are not part of an installed package",
)


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
    with tls_cluster(right, tmp_path) as cluster:
        address = cluster.address
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
