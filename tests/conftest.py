"""Fixtures that every folder may use."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import hypothesis
import numpy as np
import pytest

# What commands print does not depend on the terminal in which the tests are run.
os.environ["COLUMNS"] = "120"

# A shell starts background jobs with interrupts ignored, and their children inherit it; tests
# that interrupt a command would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Compiled functions make the first example slow; time limits belong to pytest.
hypothesis.settings.register_profile("default", deadline=None, max_examples=50)
hypothesis.settings.register_profile("thorough", deadline=None, max_examples=1000)
hypothesis.settings.load_profile("default")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file that start clusters in one process: they share what they start.

    Groups are begun before single tests, so that no long one is left for the end.
    """
    for item in items:
        if any(item.get_closest_marker(name) for name in ("cluster", "chaos", "netns")):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.split("::")[0]))


@pytest.fixture(scope="session", autouse=True)
def nobody_waits_for_the_disk() -> Iterator[None]:
    """Nobody pulls the plug here. What is synced, and in which order, test_objects watches."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(params=range(3))
def seed(request: pytest.FixtureRequest) -> int:
    """Run a test that draws numbers on several seeds."""
    return int(request.param)


@pytest.fixture
def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


@pytest.fixture(scope="session")
def local_client() -> Iterator[Any]:
    """Return a client of two worker processes, on random ports and without a dashboard.

    It is not the current client: tests beside it go on in process. Ask for `on_client`.
    """
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            memory_limit="2GB",
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


@pytest.fixture
def on_client(local_client: Any) -> Iterator[Any]:
    """Make the local cluster the place where work runs, for one test."""
    with local_client.as_current():
        yield local_client
