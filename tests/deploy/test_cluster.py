"""What runs beside the scheduler and in the schedule's pod, against real and made-up partners."""

from __future__ import annotations

import asyncio
import json
import os
import runpy
import shutil
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
START_RUN = KUBERNETES / "base" / "start_run.py"

pytestmark = pytest.mark.skipif(
    not KUBERNETES.is_dir(), reason="deploy is not part of an installed package"
)

# ---- scaling down --------------------------------------------------------------------------------


class Holder:
    """An actor."""


def test_keep_actors__scaling_down_takes_others():
    assert asyncio.run(closed_first(has_rule=False)) == {"actors", "holder", "task"}
    assert asyncio.run(closed_first(has_rule=True)) == {"task"}


async def closed_first(*, has_rule: bool) -> set[str]:
    """Return the names of workers that a scheduler would close if all were to go."""
    from distributed import Client, Scheduler, Worker

    preload = [str(KUBERNETES / "cluster" / "keep_actors.py")] if has_rule else []
    options: Any = {"dashboard_address": ":0", "preload": preload}
    async with Scheduler(protocol="inproc://", **options) as scheduler:
        address = scheduler.address
        resources = {"actors": 1.0}
        async with (
            Worker(address, name="actors", resources=resources),
            Worker(address, name="holder") as holder,
            Worker(address, name="task"),
            Client(address, asynchronous=True) as client,
        ):
            await client.submit(Holder, actor=True, workers=[holder.address])
            return set(scheduler.workers_to_close(n=3, attribute="name"))


# ---- the schedule --------------------------------------------------------------------------------


class Api(ThreadingHTTPServer):
    """A few lines of the Kubernetes API: DaskJobs that go through given states."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
        self.socket = context.wrap_socket(self.socket, server_side=True)
        self.jobs: dict[str, Any] = {"distclust-run": TEMPLATE}
        self.states: list[str] = []
        self.troubles = 0  # so many requests are answered by 503
        self.created = threading.Event()


class Handler(BaseHTTPRequestHandler):
    server: Api

    def handle_any(self) -> None:
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length)) if length else None
        api, name = self.server, self.path.removeprefix(PREFIX).lstrip("/")
        if self.headers["Authorization"] != "Bearer secret" or not self.path.startswith(PREFIX):
            self.answer(403, {})
        elif api.troubles:
            api.troubles -= 1
            self.answer(503, {})
        elif self.command == "POST":
            assert body is not None
            name = body["metadata"]["name"]
            known = name in api.jobs
            api.jobs.setdefault(name, body)
            api.created.set()
            self.answer(409 if known else 201, body)
        elif name not in api.jobs:
            self.answer(404, {"message": "not found"})
        elif self.command == "DELETE":
            self.answer(200, api.jobs.pop(name))
        else:
            job = api.jobs[name]
            if name != "distclust-run":
                state = api.states.pop(0) if len(api.states) > 1 else api.states[0]
                job = {**job, "status": {"jobStatus": state}}
            self.answer(200, job)

    do_GET = do_POST = do_DELETE = handle_any

    def answer(self, status: int, body: dict[str, Any]) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        pass


PREFIX = "/apis/kubernetes.dask.org/v1/namespaces/here/daskjobs"
TEMPLATE: dict[str, Any] = {
    "apiVersion": "kubernetes.dask.org/v1",
    "kind": "DaskJob",
    "metadata": {"name": "distclust-run", "uid": "1", "labels": {"a": "b"}, "annotations": {}},
    "spec": {"job": ["tls://distclust-run-scheduler:8786", 1, None], "cluster": "distclust-run"},
    "status": {"jobStatus": "Successful"},
}


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl command")
    make = ROOT / "deploy" / "tls" / "make-certificates"
    subprocess.run([str(make), str(tmp_path)], check=True, capture_output=True)
    (tmp_path / "token").write_text("secret\n")
    (tmp_path / "namespace").write_text("here")
    server = Api(tmp_path)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def start(
    api: Api, folder: Path, name: str = "distclust-run", patience: str = "5"
) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "ACCOUNT": str(folder),
        "KUBERNETES_SERVICE_HOST": "localhost",
        "KUBERNETES_SERVICE_PORT": str(api.server_address[1]),
        "JOB_NAME": "nightly-7",
        "JOB_UID": "7",
        "SECONDS_BETWEEN": "0.01",
        "PATIENCE_SECONDS": patience,
    }
    return subprocess.Popen(
        [sys.executable, str(START_RUN), name],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def outcome(process: subprocess.Popen[str]) -> tuple[int, str]:
    printed, _ = process.communicate(timeout=60)
    return process.returncode, printed


@pytest.mark.parametrize(("state", "code"), [("Successful", 0), ("Failed", 1)])
def test_start_run__waits_for_the_end(api, tmp_path, state, code):
    api.states = ["", "JobCreated", "Running", "Running", state]
    api.troubles = 3
    found, printed = outcome(start(api, tmp_path))
    assert found == code
    lines = ["nightly-7 started", *(f"nightly-7: {s}" for s in ("JobCreated", "Running", state))]
    assert printed.splitlines()[:4] == lines
    assert ("nightly-7-runner" in printed) is (state == "Failed")
    made = api.jobs["nightly-7"]
    assert made["spec"] == {
        "job": ["tls://nightly-7-scheduler:8786", 1, None],
        "cluster": "nightly-7",
    }
    assert made["metadata"] == {
        "name": "nightly-7",
        "labels": {"a": "b"},
        "ownerReferences": [
            {"apiVersion": "batch/v1", "kind": "Job", "name": "nightly-7", "uid": "7"}
        ],
    }
    assert "status" not in made


def test_start_run__goes_on_after_its_pod_was_lost(api, tmp_path):
    api.states = ["Running"]
    first = start(api, tmp_path)
    assert api.created.wait(60)
    first.kill()
    first.communicate()
    api.states = ["Running", "Successful"]
    code, printed = outcome(start(api, tmp_path))
    assert (code, printed.splitlines()[0]) == (0, "nightly-7 goes on")


def test_start_run__stops_the_run_when_it_is_stopped(api, tmp_path):
    api.states = ["Running"]
    process = start(api, tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "nightly-7 started\n"
    process.send_signal(signal.SIGTERM)
    code, printed = outcome(process)
    assert code == 3, printed
    assert set(api.jobs) == {"distclust-run"}


def test_start_run__nothing_to_copy(api, tmp_path):
    code, printed = outcome(start(api, tmp_path, "another"))
    assert code == 1
    assert "no DaskJob another" in printed


def test_start_run__an_api_of_another_authority_is_not_told_the_token(api, tmp_path):
    other = tmp_path / "other"
    make = ROOT / "deploy" / "tls" / "make-certificates"
    subprocess.run([str(make), str(other)], check=True, capture_output=True)
    for name in ("token", "namespace"):
        shutil.copy(tmp_path / name, other)
    code, printed = outcome(start(api, other, patience="0.5"))
    assert code == 4
    assert "CERTIFICATE_VERIFY_FAILED" in printed
    assert set(api.jobs) == {"distclust-run"}


def test_start_run__exit_codes_are_those_of_the_failure_policy():
    values = (KUBERNETES / "base" / "schedule.yaml").read_text().split("values: ")[1]
    assert values.startswith("[1, 2]")  # a run that failed; 3 and 4 are worth another pod
    assert runpy.run_path(str(START_RUN))["__doc__"].count("1 it failed") == 1
