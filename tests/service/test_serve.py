"""The server and the command: sockets, slow and rude clients, start and end."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psutil
import pytest

from distclust import cli
from distclust.commands.serve import seconds_of
from distclust.errors import InputError
from distclust.retrieval import BayesianSets
from distclust.service import Settings, server
from distclust.service.app import Service
from tests.service.conftest import Slow, command, served

HERONS = ["heron 00", "heron 01"]
TOKEN = "a-long-enough-token"


@pytest.fixture(scope="module")
def impatient(sets: BayesianSets) -> Iterator[tuple[str, Service]]:
    """A service that waits for nobody, and holds few connections."""
    with served(sets, Settings(patience=0.3, limit=1, body_bytes=1000)) as (url, service):
        yield url, service


def connect(url: str) -> socket.socket:
    parts = urlsplit(url)
    assert parts.hostname is not None
    return socket.create_connection((parts.hostname, parts.port or 80), timeout=60)


def read_all(client: socket.socket) -> bytes:
    """Read until the other side ends; a reset is an end, too."""
    parts = []
    try:
        while part := client.recv(65536):
            parts.append(part)
    except ConnectionError:
        pass
    return b"".join(parts)


def answer_of(content: bytes) -> tuple[int, dict[str, str], Any]:
    """Status, headers and JSON body of a raw answer."""
    head, _, body = content.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    return int(first.split()[1]), headers, json.loads(body)


# ---- rude clients --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "part",
    [
        b"G",
        b"GET / HTTP/1.1\r\nHost: localhost\r\n",
        b"POST /api/query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n",
    ],
)
def test_slow_head__is_cut_off_with_408(impatient: tuple[str, Service], part: bytes) -> None:
    with connect(impatient[0]) as client:
        client.sendall(part)
        status, headers, body = answer_of(read_all(client))
    assert (status, headers["connection"]) == (408, "close")
    assert body["error"]["status"] == 408


def test_slow_head__dripping_does_not_help(impatient: tuple[str, Service]) -> None:
    is_over = threading.Event()

    def drip(client: socket.socket) -> None:
        for letter in b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000:
            if is_over.wait(0.02):
                return
            try:
                client.sendall(bytes([letter]))
            except OSError:
                return

    with connect(impatient[0]) as client:
        dripping = threading.Thread(target=drip, args=(client,))
        dripping.start()
        content = read_all(client)
        is_over.set()
        dripping.join()
    assert content.startswith(b"HTTP/1.1 408 ")


def test_slow_body__is_cut_off_with_408(impatient: tuple[str, Service]) -> None:
    with connect(impatient[0]) as client:
        client.sendall(
            b"POST /api/query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n\r\n{"
        )
        status, headers, body = answer_of(read_all(client))
    assert (status, headers["connection"]) == (408, "close")
    assert body["error"]["got"] == "1 bytes of it"


def test_silent_connections__are_closed_without_a_word(impatient: tuple[str, Service]) -> None:
    with connect(impatient[0]) as client:
        assert read_all(client) == b""


def test_second_request__may_not_be_slow_either(impatient: tuple[str, Service]) -> None:
    with connect(impatient[0]) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")
        client.sendall(b"GET /he")
        assert b"HTTP/1.1 408 " in read_all(client)


def test_answers_that_nobody_reads__end_the_connection(impatient: tuple[str, Service]) -> None:
    url, service = impatient
    before = service.metrics.connections["slow"]
    with connect(url) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        request = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
        client.settimeout(1)
        ended = False
        try:
            for _ in range(100_000):
                client.sendall(request)
        except TimeoutError:  # nobody takes more: the other side waits for us
            client.settimeout(60)
        except ConnectionError:
            ended = True
        while not ended and service.metrics.connections["slow"] == before:
            assert not threading.Event().wait(0.02)
    assert service.metrics.connections["slow"] > before
    assert httpx.get(url + "healthz").status_code == 200


def test_large_body__is_413_for_ordinary_clients(impatient: tuple[str, Service]) -> None:
    for size in (1001, 10_000, 10_000_000):
        response = httpx.post(f"{impatient[0]}api/query", content=b" " * size)
        assert response.status_code == 413


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"NONSENSE\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nbad header\r\n\r\n",
        b"GET /" + b"x" * 200_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
    ],
    ids=["tls", "nonsense", "no-host", "two-hosts", "length", "header", "long"],
)
def test_malformed_requests__are_400(impatient: tuple[str, Service], request_bytes: bytes) -> None:
    with connect(impatient[0]) as client:
        client.sendall(request_bytes)
        status, _, body = answer_of(read_all(client))
    assert status == 400
    assert body["error"]["status"] == 400


def test_malformed_chunks__are_400(impatient: tuple[str, Service]) -> None:
    with connect(impatient[0]) as client:
        client.sendall(
            b"POST /api/query HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        )
        client.sendall(b"nonsense\r\n")
        assert answer_of(read_all(client))[0] == 400


@pytest.mark.parametrize(
    "target",
    [
        b"/../../etc/passwd",
        b"/api/../metrics",
        b"//metrics",
        b"/%2e%2e/metrics",
        b"/%6Detrics",
        b"/metrics%00",
        b"/metrics;x",
        b"http://localhost/metrics",
        b"*",
    ],
)
def test_path_tricks__are_404_as_they_come(impatient: tuple[str, Service], target: bytes) -> None:
    with connect(impatient[0]) as client:
        client.sendall(
            b"GET " + target + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        )
        assert answer_of(read_all(client))[0] == 404


def test_upgrades__are_ignored(impatient: tuple[str, Service]) -> None:
    with connect(impatient[0]) as client:
        client.sendall(
            b"GET /api/info HTTP/1.1\r\nHost: localhost\r\nConnection: upgrade, close\r\n"
            b"Upgrade: websocket\r\nSec-WebSocket-Key: x\r\n\r\n"
        )
        assert answer_of(read_all(client))[0] == 200


def test_surplus_connections__are_told_to_come_back(sets: BayesianSets) -> None:
    with served(sets, Settings(limit=1)) as (url, service):
        held = [connect(url) for _ in range(2 * 1 + 100)]
        try:
            for client in held:  # let in, since they are heard
                client.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert client.recv(100).startswith(b"HTTP/1.1 200 ")
            with connect(url) as surplus:
                surplus.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                status, headers, _ = answer_of(read_all(surplus))
            assert status == 503
            assert int(headers["retry-after"]) >= 1
        finally:
            for client in held:
                client.close()
        while service.metrics.connections["surplus"] == 0:
            pass
        while httpx.get(url).status_code == 503:  # until the others are seen to have left
            pass


def test_slow_clients__do_not_keep_others_waiting(sets: BayesianSets) -> None:
    with served(sets, Settings(limit=2, patience=30)) as (url, _):
        held = [connect(url) for _ in range(60)]
        try:
            for i, client in enumerate(held):
                head = b"POST /api/query HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99\r\n"
                client.sendall(head + (b"\r\n{" if i % 2 else b""))
            for _ in range(20):
                response = httpx.post(f"{url}api/query", json={"items": HERONS}, timeout=20)
                assert response.status_code == 200
        finally:
            for client in held:
                client.close()


def test_end__lets_running_requests_finish(sets: BayesianSets) -> None:
    slow = Slow(sets)
    answers: list[httpx.Response] = []

    def send() -> None:
        body = {"items": HERONS, "k": 7}
        answers.append(httpx.post(f"{url}api/query", json=body, timeout=60))

    with served(slow.sets, Settings()) as (url, service):
        asking = threading.Thread(target=send)
        asking.start()
        while service.desk.n_inside == 0:
            assert asking.is_alive()
        release = threading.Timer(0.5, slow.go.set)  # after the server was told to end
        release.start()
    release.join()
    asking.join()
    assert [response.status_code for response in answers] == [200]


# ---- the command ---------------------------------------------------------------------------------


def test_command__serves_and_ends_when_asked(store: Path) -> None:
    with command(store) as running, httpx.Client(base_url=running.url) as client:
        answer = client.post("/api/query", json={"items": HERONS, "k": 3}).json()
        assert client.get("/readyz").status_code == 200
        assert client.get("/api/info").json()["title"] == "things"
        wanted = BayesianSets().fit(str(store)).query(HERONS, k=3)
        assert [result["id"] for result in answer["results"]] == wanted.ids.tolist()
        assert answer["engine"] == "index"
        assert client.get("/", headers={"Host": "evil.example"}).status_code == 421
        code, logged = running.end()  # with the connection still open
    assert code == 0
    assert logged.splitlines()[-1].endswith("INFO ended")
    for line in logged.splitlines():
        assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4} [A-Z]+ ", line)
    assert "\x1b" not in logged


def test_command__ends_on_an_interrupt_with_slow_clients(store: Path) -> None:
    with (
        command(store, "-v") as running,
        connect(running.url) as half_open,
        connect(running.url),
    ):
        half_open.sendall(b"GET / HTTP/1.1\r\n")
        assert httpx.get(running.url).status_code == 200
        code, logged = running.end(signal.SIGINT)
    assert code == 0
    assert re.search(r"INFO GET / 200 \d+\.\d ms", logged)


def test_command__takes_the_token_from_the_environment(store: Path) -> None:
    with command(store, DISTCLUST_TOKEN=TOKEN) as running:
        right = {"Authorization": f"Bearer {TOKEN}"}
        assert httpx.get(f"{running.url}api/info").status_code == 401
        assert httpx.get(f"{running.url}api/info", headers=right).status_code == 200
        # Who has the token may come through a proxy with another name.
        right["Host"] = "sets.example"
        assert httpx.get(f"{running.url}api/info", headers=right).status_code == 200
        code, logged = running.end()
    assert code == 0
    assert TOKEN not in logged


@pytest.mark.cluster
def test_command__asks_a_cluster(store: Path, local_client: Any) -> None:
    with command(store, "--scheduler", local_client.scheduler.address) as running:
        for items in (HERONS, ["violin 03"]):
            answer = httpx.post(f"{running.url}api/query", json={"items": items}, timeout=60)
            wanted = BayesianSets().fit(str(store)).query(items)
            found = answer.json()["results"]
            assert [result["id"] for result in found] == wanted.ids.tolist()
            assert [result["log_score"] for result in found] == wanted.log_scores.tolist()
        assert running.end()[0] == 0


@pytest.mark.cluster
@pytest.mark.chaos
def test_command__loses_no_query_with_a_worker(store: Path) -> None:
    """Ask from several threads, kill a worker meanwhile: all answers come, and are right."""
    fitted = BayesianSets().fit(str(store))
    names = [f"{kind} {i:02d}" for kind in ("heron", "otter", "maple") for i in range(12)]
    wanted = {name: fitted.query([name]).log_scores.tolist() for name in names}
    wrong: list[str] = []
    is_killed = threading.Event()

    def keep_asking(url: str) -> None:
        n_left = len(names)
        with httpx.Client(base_url=url, timeout=120) as client:
            while n_left:  # all of them once more when the worker is dead
                n_left = len(names) if not is_killed.is_set() else n_left - 1
                body = {"items": [names[n_left - 1]], "explain": False}
                answer = client.post("/api/query", json=body)
                found = [each["log_score"] for each in answer.json().get("results", ())]
                if found != wanted[names[n_left - 1]]:
                    wrong.append(answer.text)

    with command(store, "--scheduler", "local", "--timeout", "100s") as running:
        asking = [threading.Thread(target=keep_asking, args=(running.url,)) for _ in range(4)]
        for each in asking:
            each.start()
        children = psutil.Process(running.process.pid).children(recursive=True)
        max(children, key=lambda child: child.num_threads()).kill()
        is_killed.set()
        for each in asking:
            each.join()
        assert running.end()[0] == 0
    assert wrong == []


def fails(*arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "distclust", "sets", "serve", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
    )
    return done.returncode, done.stderr


def test_command__refuses_a_port_that_is_taken(store: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, told = fails(str(store), "--port", str(taken.getsockname()[1]))
    assert code == 2
    assert "a free port" in told
    assert len(told.splitlines()) == 1


def test_command__refuses_what_is_no_store(tmp_path: Path) -> None:
    code, told = fails(str(tmp_path / "nothing.zarr"), "--port", "0")
    assert code == 2
    assert "nothing.zarr" in told


@pytest.fixture
def unserved(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Settings]]:
    """Let the command do everything but serve; return the settings that it would use."""
    import logging

    kept: list[Settings] = []
    monkeypatch.setattr(server, "run", lambda service, *_: kept.append(service.settings))
    monkeypatch.delenv("DISTCLUST_TOKEN", raising=False)
    handlers, level = logging.root.handlers[:], logging.root.level
    log = logging.getLogger("distclust.service")
    own, before, interval = (
        log.handlers[:],
        signal.getsignal(signal.SIGTERM),
        sys.getswitchinterval(),
    )
    yield kept
    logging.root.handlers[:], log.handlers[:] = handlers, own
    log.propagate = True
    log.setLevel(logging.NOTSET)
    logging.root.setLevel(level)
    signal.signal(signal.SIGTERM, before)
    sys.setswitchinterval(interval)


@pytest.mark.parametrize(
    ("options", "warns", "hosts"),
    [
        (["--host", "127.0.0.1"], False, True),
        (["--host", "localhost"], False, True),
        (["--host", "0.0.0.0"], True, False),
        (["--host", "0.0.0.0", "--token", TOKEN], False, False),
        (["--host", "127.0.0.1", "--token", TOKEN], False, False),
    ],
)
def test_command__warns_if_others_can_reach_it(
    store: Path,
    options: list[str],
    warns: bool,
    hosts: bool,
    unserved: list[Settings],
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["sets", "serve", str(store), "--port", "0", *options]) == 0
    assert ("DISTCLUST_TOKEN" in capsys.readouterr().err) is warns
    assert (unserved[0].hosts is not None) is hosts


def test_command__passes_its_limits_on(store: Path, unserved: list[Settings]) -> None:
    options = ["--limit", "7", "--timeout", "1500ms", "--kappa", "3", "--port", "0", "-q"]
    assert cli.main(["sets", "serve", str(store), *options]) == 0
    assert (unserved[0].limit, unserved[0].timeout) == (7, 1.5)
    assert (unserved[0].threads or 0) >= 1


def test_command__plans_without_serving(
    store: Path, unserved: list[Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["sets", "serve", str(store), "--plan", "--json"]) == 0
    assert not unserved
    assert json.loads(capsys.readouterr().out)["command"] == "plan"


def test_command__says_that_there_is_no_index(
    store: Path, tmp_path: Path, unserved: list[Settings], capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    alone = tmp_path / "alone.zarr"
    shutil.copytree(store, alone)
    assert cli.main(["sets", "serve", str(alone), "--port", "0"]) == 0
    assert "sets build" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "seconds"), [("10s", 10.0), ("500ms", 0.5), ("2min", 120.0), ("1.5", 1.5), ("1m", 60)]
)
def test_seconds_of__takes_units(text: str, seconds: float) -> None:
    assert seconds_of(text, "--timeout") == seconds


@pytest.mark.parametrize("text", ["", "0s", "-1s", "ten", "10h", "1e9"])
def test_seconds_of__refuses_others(text: str) -> None:
    with pytest.raises(InputError, match="--timeout"):
        seconds_of(text, "--timeout")


def test_bind__refuses_addresses_of_others() -> None:
    for host in ("203.0.113.7", "no such host"):
        with pytest.raises(InputError):
            server.bind(host, 0)


@pytest.mark.parametrize(
    ("host", "private"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.5", False),
        ("example.org", False),
    ],
)
def test_is_loopback__knows_who_can_reach_it(host: str, private: bool) -> None:
    assert server.is_loopback(host) is private


def test_url_of__is_one_that_browsers_take() -> None:
    if not os.path.exists("/proc/net/if_inet6"):
        pytest.skip("no IPv6 here")
    with server.bind("::1", 0) as bound:
        assert re.fullmatch(r"http://\[::1\]:\d+/", server.url_of(bound))
