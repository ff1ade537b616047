"""Places where stores lie: a folder, memory, and a real S3 server on this machine."""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distclust.store.objects import Objects, open_objects


@pytest.fixture(scope="session")
def s3_environment() -> Iterator[dict[str, str]]:
    """Run moto's S3 server on a free port; return what a process needs to reach it."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    server._server.app = _one_at_a_time(server._server.app)
    host, port = server.get_host_and_port()
    yield {
        "AWS_ENDPOINT_URL": f"http://{host}:{port}",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }
    _close_drivers()
    server.stop()


def _one_at_a_time(application: Any) -> Any:
    # S3 promises that a conditional put is atomic; moto looks first, in several threads.
    lock = threading.Lock()

    def serve(environment: Any, start_response: Any) -> list[bytes]:
        with lock:
            return list(application(environment, start_response))

    return serve


def _close_drivers() -> None:
    # Sessions left to the garbage collector complain that nobody closed them.
    import s3fs

    for driver in list(s3fs.S3FileSystem._cache.values()):
        driver.close_session(driver.loop, driver._s3)
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def s3_url(s3_environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return a URL in a fresh bucket; any process forked from this one can open it, too."""
    import fsspec

    for name, value in s3_environment.items():
        monkeypatch.setenv(name, value)
    bucket = f"bucket-{secrets.token_hex(6)}"
    fsspec.filesystem("s3").mkdir(bucket)
    return f"s3://{bucket}/folder"


@pytest.fixture
def s3_client(s3_url: str, s3_environment: dict[str, str], on_client: Any) -> Any:
    """Return the client of a cluster whose workers can open `s3_url`."""

    def join(values: dict[str, str]) -> None:  # nested, so that it travels by value
        os.environ.update(values)

    on_client.run(join, s3_environment)
    return on_client


@pytest.fixture
def memory_url() -> Iterator[str]:
    import fsspec

    name = f"memory://{secrets.token_hex(6)}"
    yield name
    fsspec.filesystem("memory").store.clear()


@pytest.fixture(params=["local", "memory", "s3"])
def any_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Run a test on each kind of place; nothing is there yet."""
    if request.param == "local":
        return str(tmp_path / "store")
    return str(request.getfixturevalue(f"{request.param}_url"))


@pytest.fixture
def objects(any_url: str) -> Objects:
    return open_objects(any_url)


@pytest.fixture
def memory_objects(memory_url: str) -> Objects:
    return open_objects(memory_url)
