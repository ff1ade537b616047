"""A fit of kernel PCA on three hosts, one of which is cut off: the same bits."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
import pytest

from distclust.store.results import ResultsStore
from tests import kernel_driver, slow_kernels
from tests.hosts import Hosts, why_impossible

pytestmark = [pytest.mark.netns, pytest.mark.chaos, pytest.mark.cluster]

HEARTBEAT = 3.0


@pytest.fixture
def hosts(tmp_path) -> Iterator[Hosts]:
    if reason := why_impossible():
        pytest.skip(reason)
    with Hosts(3, tmp_path) as hosts:
        yield hosts


def test_cut__a_host_during_a_fit(hosts, tmp_path, monkeypatch):
    folder = tmp_path / "fit"
    folder.mkdir()
    scheduler = hosts.start_scheduler(0)
    hosts.start_worker(1, scheduler)
    hosts.start_worker(2, scheduler)
    command = [sys.executable, "-m", "tests.kernel_driver", str(folder), scheduler]
    environment = {"DISTCLUST_HEARTBEAT_SECONDS": str(HEARTBEAT)}
    driver = hosts.start(0, command, environment=environment, is_read=True)
    assert driver.stdout is not None
    printed = ""
    for line in driver.stdout:
        printed += line
        if line == "product 3\n":
            hosts.cut(2)
            break
    printed += driver.stdout.read()
    assert driver.wait() == 0, printed
    assert "restarts 3\n" in printed, printed  # the shards of that host, once each
    n_redone = int(printed.split("redone ")[1])
    assert n_redone <= 3 * kernel_driver.EVERY, printed

    monkeypatch.setattr(slow_kernels, "SECONDS", 0.0)
    wanted = kernel_driver.make().fit(kernel_driver.make_rows())
    wanted.close()
    assert np.load(folder / "components.npy").tobytes() == wanted.components_.tobytes()
    assert np.load(folder / "eigenvalues.npy").tobytes() == wanted.eigenvalues_.tobytes()
    assert ResultsStore(folder / "results").verify() == []
