"""The application: what it answers, what it refuses, and that its description is true.

Every answer is checked against the OpenAPI description on its way.
"""

from __future__ import annotations

import asyncio
import copy
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import jsonschema
import numpy as np
import openapi_spec_validator
import pytest
from hypothesis import HealthCheck, given, settings, strategies

from distclust.errors import ClusterError, InputError, StoreError
from distclust.retrieval import BayesianSets
from distclust.service import Settings, make_app
from distclust.service.app import Service
from tests.service.conftest import KINDS, ODD, Slow, planted

Scenario = Callable[[httpx.AsyncClient, Service], Awaitable[Any]]

HERONS = ["heron 00", "heron 01"]
TOKEN = "a-long-enough-token"


def run(sets: BayesianSets, limits: Settings, scenario: Scenario) -> Any:
    """Start a service, let a scenario use it, end it."""

    async def main() -> Any:
        service = Service(sets, limits)
        transport = httpx.ASGITransport(app=service.app)
        async with (
            service.app.router.lifespan_context(service.app),
            httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
        ):
            return await scenario(client, service)

    return asyncio.run(main())


def ask(
    sets: BayesianSets, method: str, path: str, limits: Settings | None = None, **options: Any
) -> httpx.Response:
    """Send one request; check the answer against the description."""

    async def scenario(client: httpx.AsyncClient, service: Service) -> httpx.Response:
        response = await client.request(method, path, **options)
        check_described(response, (await client.get("/openapi.json")).json())
        return response

    response: httpx.Response = run(sets, limits or Settings(), scenario)
    return response


def query(sets: BayesianSets, limits: Settings | None = None, **fields: Any) -> httpx.Response:
    return ask(sets, "POST", "/api/query", limits, json=fields)


def check_described(response: httpx.Response, document: Any) -> None:
    """Whether an answer is one that the description allows."""
    path, method = response.request.url.path, response.request.method.lower()
    if path not in document["paths"] or method not in document["paths"][path]:
        assert response.status_code in (404, 405, 421)
        schema = {"$ref": "#/components/schemas/Error"}
    else:
        answers = document["paths"][path][method]["responses"]
        content = answers[str(response.status_code)]["content"]
        kind = response.headers["content-type"].partition(";")[0]
        schema = content[kind]["schema"]
        if kind != "application/json":
            return
    jsonschema.validate(response.json(), {**schema, "components": document["components"]})


def error(response: httpx.Response) -> Any:
    return response.json()["error"]


# ---- answers -------------------------------------------------------------------------------------


def test_query__answers_as_the_library_does(sets: BayesianSets) -> None:
    response = query(sets, items=HERONS, k=5, explain=False)
    wanted = sets.query(HERONS, k=5).to_dict()
    got = response.json()
    assert response.status_code == 200
    assert got["results"] == wanted["results"]
    assert got["query"] == HERONS
    assert got["suggested_size"] == wanted["suggested_size"]
    assert "features" not in got


def test_query__explains_unless_told_not_to(sets: BayesianSets) -> None:
    got = query(sets, items=HERONS).json()
    wanted = sets.explain(HERONS, k=10).to_dict()
    assert len(got["results"]) == 10
    for name in ("results", "features", "group_features"):
        assert got[name] == wanted[name]
    assert got["features"][0]["name"].startswith("heron")


def test_query__leaves_out_its_own_items(sets: BayesianSets) -> None:
    got = query(sets, items=HERONS, exclude_query=True, k=4).json()
    ids = [result["id"] for result in got["results"]]
    assert ids == sets.query(HERONS, 4, exclude_query=True).ids.tolist()
    assert not set(ids) & set(HERONS)


@pytest.mark.parametrize("name", ODD)
def test_query__takes_any_name(sets: BayesianSets, name: str) -> None:
    got = query(sets, items=[name], k=1).json()
    assert got["query"] == [name]
    assert got["results"][0]["id"] == name


def test_query__whole_numbers_are_rows_where_ids_are_text(sets: BayesianSets) -> None:
    assert query(sets, items=[0, 1]).json()["query"] == HERONS


def test_query__ids_of_a_corpus_may_be_numbers() -> None:
    numbered = BayesianSets().fit(planted().to_numpy())
    got = query(numbered, items=[3, "4"], k=2).json()
    assert got["query"] == ["3", "4"]
    assert all(isinstance(result["id"], int) for result in got["results"])
    assert query(numbered, items=["three"]).status_code == 404
    assert query(numbered, items=[10**6]).status_code == 404
    assert query(numbered, items=[str(10**30)]).status_code == 404


def test_query__scores_that_json_does_not_know_are_null(sets: BayesianSets) -> None:
    broken = copy.copy(sets)

    def answer(*args: Any) -> Any:
        found = sets.query(HERONS, k=2)
        found.log_scores[1] = -np.inf
        return found

    broken.query = answer  # type: ignore[method-assign]
    got = query(broken, items=HERONS, explain=False)
    assert [result["log_score"] is None for result in got.json()["results"]] == [False, True]


def test_query__other_families_are_served_too() -> None:
    counts = planted() * 3
    counted = BayesianSets(family="poisson").fit(counts)
    got = query(counted, items=HERONS, k=3)
    assert [result["id"] for result in got.json()["results"]] == counted.query(
        HERONS, k=3
    ).ids.tolist()
    assert ask(counted, "GET", "/api/info").json()["family"] == "poisson"


def test_complete__names_begin_with_the_text_or_have_it(sets: BayesianSets) -> None:
    got = ask(sets, "GET", "/api/complete", params={"text": "HERON 0", "limit": "3"}).json()
    assert got == {"text": "HERON 0", "items": ["heron 00", "heron 01", "heron 02"]}
    inside = ask(sets, "GET", "/api/complete", params={"text": "onerror"}).json()
    assert inside["items"] == [ODD[0]]
    assert ask(sets, "GET", "/api/complete", params={"text": " "}).json()["items"] == []


def test_info__says_what_there_is(sets: BayesianSets) -> None:
    got = ask(sets, "GET", "/api/info", Settings(title="things", most_results=50)).json()
    assert got["title"] == "things"
    assert got["n_items"] == len(KINDS) * 12 + len(ODD)
    assert got["n_features"] == 48
    assert got["most_results"] == 50
    assert got["has_index"] is True
    assert set(got["examples"]) <= set(planted().index)


def test_health__is_told_before_and_after_the_start(sets: BayesianSets) -> None:
    async def scenario(client: httpx.AsyncClient, service: Service) -> None:
        assert (await client.get("/healthz")).text == "ok\n"
        assert (await client.get("/readyz")).status_code == 200
        service.is_ready = False
        assert (await client.get("/healthz")).status_code == 200
        refused = await client.get("/readyz")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")

    run(sets, Settings(), scenario)


def test_answers__have_safe_headers(sets: BayesianSets) -> None:
    for path in ("/", "/api/info", "/nothing"):
        headers = ask(sets, "GET", path).headers
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
    assert ask(sets, "GET", "/api/info").headers["cache-control"] == "no-store"


def test_make_app__is_what_a_server_runs(sets: BayesianSets) -> None:
    app = make_app(sets)
    sent: list[Any] = []

    async def main() -> None:
        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        async with app.router.lifespan_context(app):
            await app(scope("GET", "/healthz"), receive, send)

    asyncio.run(main())
    assert [message.get("status") for message in sent] == [200, None]


# ---- the page ------------------------------------------------------------------------------------


def test_page__needs_nothing_else(sets: BayesianSets) -> None:
    response = ask(sets, "GET", "/")
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    outside = re.findall(r"""(?:src|href)=["']?([^"'\s>]+)""", response.text)
    assert [link for link in outside if not link.startswith("data:")] == []
    assert "@import" not in response.text
    assert "url(" not in response.text
    assert " style=" not in response.text.partition("<script>")[0]


def test_page__policy_allows_its_own_script_and_style_only(sets: BayesianSets) -> None:
    import base64
    import hashlib

    response = ask(sets, "GET", "/")
    parts = (part.split(" ", 1) for part in response.headers["content-security-policy"].split("; "))
    policy = {part[0]: part[1] for part in parts}
    assert policy["default-src"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for element in ("script", "style"):
        _, _, rest = response.text.partition(f"<{element}>")
        inside = rest.partition(f"</{element}>")[0].encode()
        digest = base64.b64encode(hashlib.sha256(inside).digest()).decode()
        assert policy[f"{element}-src"] == f"'sha256-{digest}'"


def test_page__is_not_sent_twice(sets: BayesianSets) -> None:
    async def scenario(client: httpx.AsyncClient, service: Service) -> None:
        first = await client.get("/")
        second = await client.get("/", headers={"If-None-Match": first.headers["etag"]})
        assert (second.status_code, second.content) == (304, b"")
        other = await client.get("/", headers={"If-None-Match": '"old"'})
        assert other.content == first.content

    run(sets, Settings(), scenario)


# ---- refusals ------------------------------------------------------------------------------------


def test_query__unknown_item_has_suggestions(sets: BayesianSets) -> None:
    response = query(sets, items=["heron 00", "herron 01"])
    assert response.status_code == 404
    told = error(response)
    assert told["item"] == "herron 01"
    assert told["suggestions"][0] == "heron 01"
    assert "'herron 01'" in told["message"]
    assert query(sets, items=[10_000]).status_code == 404


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b'{"items": [NaN]}', b"\xff\xfe", b"[" * 100_000, b"9" * 100_000, b"{'items': []}"],
    ids=["empty", "open", "nan", "bytes", "deep", "digits", "quotes"],
)
def test_query__malformed_json_is_400(sets: BayesianSets, body: bytes) -> None:
    response = ask(sets, "POST", "/api/query", content=body)
    assert response.status_code == 400
    assert error(response)["expected"] == "JSON"


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ([], "POST /api/query"),
        ({}, "POST /api/query: items"),
        ({"items": []}, "POST /api/query: items"),
        ({"items": "heron 00"}, "POST /api/query: items"),
        ({"items": [True]}, "POST /api/query: items"),
        ({"items": [1.5]}, "POST /api/query: items"),
        ({"items": [None]}, "POST /api/query: items"),
        ({"items": [["heron 00"]]}, "POST /api/query: items"),
        ({"items": [2**63]}, "POST /api/query: items"),
        ({"items": ["\ud800"]}, "POST /api/query: items"),
        ({"items": ["x" * 1001]}, "POST /api/query: items"),
        ({"items": ["heron 00"] * 6}, "POST /api/query: items"),
        ({"items": HERONS, "k": 0}, "POST /api/query: k"),
        ({"items": HERONS, "k": 31}, "POST /api/query: k"),
        ({"items": HERONS, "k": "10"}, "POST /api/query: k"),
        ({"items": HERONS, "k": True}, "POST /api/query: k"),
        ({"items": HERONS, "k": 2.0}, "POST /api/query: k"),
        ({"items": HERONS, "exclude_query": 1}, "POST /api/query: exclude_query"),
        ({"items": HERONS, "explain": "yes"}, "POST /api/query: explain"),
        ({"items": HERONS, "size": 10}, "POST /api/query"),
    ],
)
def test_query__wrong_fields_are_422(sets: BayesianSets, fields: Any, where: str) -> None:
    limits = Settings(most_items=5, most_results=30)
    body = json.dumps(fields).encode()
    response = ask(sets, "POST", "/api/query", limits, content=body)
    assert response.status_code == 422
    told = error(response)
    assert told["where"] == where
    assert (
        told["message"]
        == f"{where}: expected {told['expected']}, got {told['got']}. " + (told["hint"])
    )


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"text": "x" * 1001},
        {"text": "h", "limit": "0"},
        {"text": "h", "limit": "51"},
        {"text": "h", "limit": "-1"},
        {"text": "h", "limit": "ten"},
        {"text": "h", "limit": "9" * 5000},
        {"text": "h", "limit": "٣"},
    ],
)
def test_complete__wrong_parameters_are_422(sets: BayesianSets, parameters: Any) -> None:
    assert ask(sets, "GET", "/api/complete", params=parameters).status_code == 422


_json = strategies.recursive(
    strategies.none()
    | strategies.booleans()
    | strategies.integers()
    | strategies.floats(allow_nan=False, allow_infinity=False)
    | strategies.text(max_size=8)
    | strategies.sampled_from([*HERONS, "violin 03"]),
    lambda inner: (
        strategies.lists(inner, max_size=4)
        | strategies.dictionaries(
            strategies.sampled_from(["items", "k", "explain", "exclude_query", "x"]), inner
        )
    ),
    max_leaves=8,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(document=_json, items=strategies.lists(_json, max_size=3))
def test_query__whatever_is_sent_gets_a_proper_answer(
    sets: BayesianSets, document: Any, items: Any
) -> None:
    async def scenario(client: httpx.AsyncClient, service: Service) -> None:
        described = (await client.get("/openapi.json")).json()
        for sent in (document, {"items": items}):
            response = await client.post("/api/query", content=json.dumps(sent).encode())
            assert response.status_code in (200, 404, 422)
            check_described(response, described)

    run(sets, Settings(), scenario)


def test_query__large_bodies_are_413(sets: BayesianSets) -> None:
    limits = Settings(body_bytes=1000)

    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * 700

    fits = json.dumps({"items": HERONS}).encode().ljust(1000)
    for body, status in ((fits, 200), (fits + b" ", 413), (b" " * 10**6, 413), (chunks(), 413)):
        response = ask(sets, "POST", "/api/query", limits, content=body)
        assert response.status_code == status
    assert response.headers["connection"] == "close"
    assert "1,000 bytes" in error(response)["message"]


def test_query__slow_bodies_are_408(sets: BayesianSets) -> None:
    async def slowly() -> AsyncIterator[bytes]:
        yield b'{"items": '
        await asyncio.sleep(60)
        yield b"[]}"

    response = ask(sets, "POST", "/api/query", Settings(patience=0.05), content=slowly())
    assert response.status_code == 408
    assert response.headers["connection"] == "close"


def test_query__clients_that_leave_are_no_failure(
    sets: BayesianSets, caplog: pytest.LogCaptureFixture
) -> None:
    sent: list[Any] = []

    async def scenario(client: httpx.AsyncClient, service: Service) -> str:
        async def receive() -> Any:
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        await service.app(scope("POST", "/api/query"), receive, send)
        return (await client.get("/metrics")).text

    figures = run(sets, Settings(), scenario)
    assert sent == []
    assert not caplog.records
    assert 'distclust_requests_total{route="/api/query",status="499"} 1' in figures


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/api/query", {"POST"}),
        ("POST", "/api/info", {"GET", "HEAD"}),
        ("DELETE", "/", {"GET", "HEAD"}),
        ("OPTIONS", "/metrics", {"GET", "HEAD"}),
    ],
)
def test_methods__wrong_ones_are_405(
    sets: BayesianSets, method: str, path: str, allowed: set[str]
) -> None:
    response = ask(sets, method, path)
    assert response.status_code == 405
    assert {name.strip() for name in response.headers["allow"].split(",")} == allowed
    assert error(response)["got"] == method


def scope(method: str, path: str, raw: bytes | None = None) -> dict[str, Any]:
    """A request as a server passes it on, with the path exactly as it came."""
    return {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": raw if raw is not None else path.encode(),
        "query_string": b"",
        "headers": [(b"host", b"localhost")],
        "http_version": "1.1",
        "scheme": "http",
        "root_path": "",
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }


@pytest.mark.parametrize(
    ("path", "raw"),
    [
        ("/nothing", None),
        ("/api", None),
        ("/api/", None),
        ("/api/info/", None),
        ("//api/info", None),
        ("/API/info", None),
        ("/api/../api/info", None),
        ("/../../etc/passwd", None),
        ("/page.html", None),
        ("/static/../page.html", None),
        ("http://localhost/api/info", None),
        ("*", None),
        ("/api/info", b"/api%2finfo"),
        ("/api/info", b"/%61pi/info"),
        ("/api/info\x00", b"/api/info%00"),
        ("/\n\r", b"/%0a%0d"),
    ],
)
def test_paths__tricks_are_404(sets: BayesianSets, path: str, raw: bytes | None) -> None:
    sent: list[Any] = []

    async def scenario(client: httpx.AsyncClient, service: Service) -> None:
        async def receive() -> Any:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Any) -> None:
            sent.append(message)

        await service.app(scope("GET", path, raw), receive, send)

    run(sets, Settings(), scenario)
    assert sent[0]["status"] == 404
    assert json.loads(sent[1]["body"])["error"]["status"] == 404


# ---- who may ask ---------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/api/info", "/api/complete?text=h", "/metrics"])
@pytest.mark.parametrize(
    ("shown", "status"),
    [
        (None, 401),
        ("", 401),
        ("Bearer", 401),
        ("Bearer wrong", 401),
        (f"Bearer {TOKEN}x", 401),
        (f"Bearer {TOKEN[:-1]}", 401),
        (f"Basic {TOKEN}", 401),
        (TOKEN, 401),
        ("Bearer \xff\xfe", 401),
        (f"Bearer {TOKEN}", 200),
        (f"bearer {TOKEN}", 200),
    ],
)
def test_token__opens_only_if_it_is_the_one(
    sets: BayesianSets, path: str, shown: str | None, status: int
) -> None:
    headers = {} if shown is None else {"Authorization": shown.encode("latin-1")}
    response = ask(sets, "GET", path, Settings(token=TOKEN), headers=headers)
    assert response.status_code == status
    assert TOKEN not in response.text
    if status == 401:
        assert response.headers["www-authenticate"] == "Bearer"


def test_token__is_asked_for_before_anything_is_read(sets: BayesianSets) -> None:
    response = ask(sets, "POST", "/api/query", Settings(token=TOKEN), content=b"{")
    assert response.status_code == 401


@pytest.mark.parametrize("path", ["/", "/healthz", "/readyz", "/openapi.json"])
def test_token__is_not_needed_where_nothing_is_told(sets: BayesianSets, path: str) -> None:
    assert ask(sets, "GET", path, Settings(token=TOKEN)).status_code == 200


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8000", 200),
        ("[::1]:8000", 200),
        ("evil.example", 421),
        ("evil.example:8000", 421),
        ("localhost.evil.example", 421),
        ("", 421),
    ],
)
def test_hosts__foreign_names_are_421(sets: BayesianSets, host: str, status: int) -> None:
    limits = Settings(hosts=("localhost", "[::1]"))

    async def scenario(client: httpx.AsyncClient, service: Service) -> httpx.Response:
        return await client.get("/api/info", headers={"Host": host})

    assert run(sets, limits, scenario).status_code == status


# ---- under load ----------------------------------------------------------------------------------


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.005)


def test_limit__one_more_is_503_and_those_within_wait_their_turn(sets: BayesianSets) -> None:
    slow = Slow(sets)

    async def scenario(client: httpx.AsyncClient, service: Service) -> None:
        def send() -> Awaitable[httpx.Response]:
            return client.post("/api/query", json={"items": HERONS, "k": 7})

        waiting = [asyncio.ensure_future(send()) for _ in range(3)]
        # Who is inside may still be on the way to the thread.
        await until(lambda: service.desk.n_inside == 3 and slow.n_begun > 0)
        refused = await send()
        described = (await client.get("/openapi.json")).json()
        check_described(refused, described)
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        for path in ("/", "/healthz", "/metrics", "/api/info"):
            assert (await client.get(path)).status_code == 200
        assert slow.n_begun == 1  # one thread, one query at a time
        slow.go.set()
        assert [(await each).status_code for each in waiting] == [200] * 3
        assert (await send()).status_code == 200
        assert service.desk.n_inside == 0

    run(slow.sets, Settings(limit=3, threads=1), scenario)


def test_limit__who_types_does_not_wait_for_who_asks(sets: BayesianSets) -> None:
    slow = Slow(sets)

    async def scenario(client: httpx.AsyncClient, service: Service) -> None:
        body = {"items": HERONS, "k": 7}
        waiting = [asyncio.ensure_future(client.post("/api/query", json=body)) for _ in range(2)]
        await until(lambda: service.desk.n_inside == 2)
        completed = await client.get("/api/complete", params={"text": "heron"})
        assert completed.status_code == 200
        assert not any(each.done() for each in waiting)
        waiting.append(asyncio.ensure_future(client.post("/api/query", json=body)))
        await until(lambda: service.desk.n_inside == 3)
        refused = await client.get("/api/complete", params={"text": "heron"})
        assert refused.status_code == 503
        slow.go.set()
        assert [(await each).status_code for each in waiting] == [200] * 3

    run(slow.sets, Settings(limit=3, threads=1), scenario)


def test_timeout__is_504_and_the_thread_comes_back(sets: BayesianSets) -> None:
    slow = Slow(sets)

    async def scenario(client: httpx.AsyncClient, service: Service) -> None:
        body = {"items": HERONS, "k": 7}
        running = await client.post("/api/query", json=body)
        waiting = await client.post("/api/query", json=body)
        described = (await client.get("/openapi.json")).json()
        for response in (running, waiting):
            assert response.status_code == 504
            check_described(response, described)
        assert service.desk.n_inside == 0
        assert service.desk._pool._work_queue.qsize() == 0  # nothing piles up behind it
        slow.go.set()
        # The thread is busy until now; who asks again is answered in the end.
        while (await client.post("/api/query", json={"items": HERONS})).status_code == 504:
            pass
        assert slow.n_begun == 1  # the second never began, and never will

    with_one = Settings(timeout=0.2, threads=1)
    run(slow.sets, with_one, lambda client, service: scenario(client, service))


@pytest.mark.parametrize(
    ("raised", "status", "is_told"),
    [
        (ClusterError("tcp://x", "workers", "none", "Start some."), 503, True),
        (InputError("BayesianSets.query", "x", "y", "Do z."), 422, True),
        (StoreError("/secret/place", "a shard", "altered content", "Build."), 500, False),
        (ZeroDivisionError("secret"), 500, False),
        (TimeoutError("secret"), 500, False),
    ],
)
def test_failures__are_told_without_secrets_and_logged(
    sets: BayesianSets,
    raised: Exception,
    status: int,
    is_told: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken = copy.copy(sets)

    def explain(items: Any, k: int, *rest: Any) -> Any:
        if k == 7:
            raise raised
        return sets.explain(items, k, *rest)

    broken.explain = explain  # type: ignore[method-assign, assignment]
    with caplog.at_level(logging.ERROR, "distclust.service"):
        response = query(broken, items=HERONS, k=7)
    assert response.status_code == status
    assert (str(raised) == error(response)["message"]) is is_told
    assert "secret" not in response.text
    assert "Traceback" not in response.text
    assert bool(caplog.records) is (status >= 500)
    if isinstance(raised, ClusterError):
        assert int(response.headers["retry-after"]) >= 1


# ---- figures and description ---------------------------------------------------------------------


def figures_of(text: str) -> dict[str, float]:
    """Parse the text format of Prometheus."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    for line in lines:
        assert re.fullmatch(r'[a-z_]+(\{[a-z]+="[^"\\]*"(,[a-z]+="[^"\\]*")*\})? \S+', line)
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_metrics__count_what_happened(sets: BayesianSets) -> None:
    async def scenario(client: httpx.AsyncClient, service: Service) -> str:
        for k in (1, 2, 0):
            await client.post("/api/query", json={"items": HERONS, "k": k})
        await client.get("/nothing")
        await client.get("/nothing/else")
        response = await client.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        return response.text

    text = run(sets, Settings(limit=17), scenario)
    figures = figures_of(text)
    assert figures['distclust_requests_total{route="/api/query",status="200"}'] == 2
    assert figures['distclust_requests_total{route="/api/query",status="422"}'] == 1
    assert figures['distclust_requests_total{route="other",status="404"}'] == 2
    assert figures["distclust_requests_in_flight"] == 1  # this one
    assert figures["distclust_work_limit"] == 17
    assert figures["process_resident_memory_bytes"] > 10**7
    prefix = 'distclust_request_seconds_bucket{route="/api/query",le="'
    buckets = [value for name, value in figures.items() if name.startswith(prefix)]
    assert buckets == sorted(buckets)
    assert buckets[-1] == figures['distclust_request_seconds_count{route="/api/query"}'] == 3
    assert figures['distclust_request_seconds_sum{route="/api/query"}'] > 0
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
    assert {name.partition("{")[0] for name in figures} - names == {
        f"distclust_request_seconds_{part}" for part in ("bucket", "sum", "count")
    }


def test_metrics__buckets_have_the_times(sets: BayesianSets) -> None:
    service = Service(sets, Settings())
    for seconds in (0.004, 0.005, 0.3, 99.0):
        service.metrics.observe("/", 200, seconds)
    figures = figures_of(service.metrics.to_text({}))
    for bound, count in (("0.005", 2), ("0.25", 2), ("0.5", 3), ("10.0", 3), ("+Inf", 4)):
        assert figures[f'distclust_request_seconds_bucket{{route="/",le="{bound}"}}'] == count


def test_openapi__describes_every_route(sets: BayesianSets) -> None:
    document = ask(sets, "GET", "/openapi.json").json()
    routes = {(path.path, path.method.lower()) for path in Service(sets, Settings()).paths}
    described = {
        (path, method) for path, methods in document["paths"].items() for method in methods
    }
    assert described == routes


@pytest.mark.parametrize("token", [None, TOKEN])
def test_openapi__is_valid(sets: BayesianSets, token: str | None) -> None:
    document = ask(sets, "GET", "/openapi.json", Settings(token=token)).json()
    openapi_spec_validator.validate(document)
    secured = {
        path
        for path, methods in document["paths"].items()
        if any("security" in operation for operation in methods.values())
    }
    opened = {path.path for path in Service(sets, Settings()).paths if path.is_open}
    assert secured == (set() if token is None else set(document["paths"]) - opened)


# ---- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"limit": 0},
        {"threads": 0},
        {"timeout": 0.0},
        {"timeout": float("nan")},
        {"patience": float("inf")},
        {"token": ""},
        {"token": "short"},
        {"token": "with space in it"},
        {"token": "schlüssel-lang"},
        {"most_items": 0},
    ],
)
def test_settings__wrong_ones_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong))) as refused:
        Settings(**wrong)
    if wrong.get("token"):
        assert wrong["token"] not in str(refused.value)


def test_make_app__names_the_extra_if_packages_are_missing(
    sets: BayesianSets, monkeypatch: pytest.MonkeyPatch
) -> None:
    import importlib.util

    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"distclust\[service\]"):
        make_app(sets)
