"""The application: routes, who may use them, and what they answer."""

from __future__ import annotations

import contextlib
import hmac
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from distclust._version import __version__
from distclust.engine import allowed_cores, current_client
from distclust.engine.threads import grant_threads
from distclust.errors import DistclustError, InputError, UnknownItemError
from distclust.report import prometheus
from distclust.retrieval import BayesianSets
from distclust.service import metrics, requests
from distclust.service.desk import Desk
from distclust.service.openapi import describe
from distclust.service.page import load_page
from distclust.service.refusals import Refusal, failure, refusal, refusal_of
from distclust.service.settings import Settings

Handler = Callable[[Request], Awaitable[Response]]

log = logging.getLogger("distclust.service")
access_log = logging.getLogger("distclust.service.access")

_EXAMPLES = 6
_LEFT = 499  # what logs and figures say of a client that did not wait
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}


@dataclass(frozen=True)
class Path:
    """A path of the service: its method, what answers it, and whether it needs the token."""

    path: str
    method: str
    answer: Handler
    is_open: bool = False


class Service:
    """A fitted index, and what is needed to answer for it.

    Attributes
    ----------
    app
        The ASGI application.
    metrics
        What it has done so far.
    is_ready
        Whether the index is prepared.
    """

    def __init__(self, sets: BayesianSets, settings: Settings) -> None:
        self.sets = sets
        self.settings = settings
        self.metrics = metrics.Metrics()
        self.desk = Desk(settings.limit, settings.timeout, settings.threads or allowed_cores())
        self.is_ready = False
        self.paths = (
            Path("/", "GET", self.page, is_open=True),
            Path("/api/complete", "GET", self.complete),
            Path("/api/info", "GET", self.info),
            Path("/api/query", "POST", self.query),
            Path("/healthz", "GET", self.health, is_open=True),
            Path("/metrics", "GET", self.figures),
            Path("/openapi.json", "GET", self.description, is_open=True),
            Path("/readyz", "GET", self.readiness, is_open=True),
        )
        self.app = self._make_app()

    # ---- answers ---------------------------------------------------------------------------------

    async def page(self, request: Request) -> Response:
        """Return the page."""
        page = load_page()
        headers = {"Content-Security-Policy": page.policy, "ETag": page.tag}
        if request.headers.get("if-none-match") == page.tag:
            return Response(status_code=304, headers=headers)
        return Response(page.content, headers=headers, media_type="text/html")

    async def complete(self, request: Request) -> Response:
        """Return names of items that begin with a text or have it inside."""
        asked = requests.read_completion(request.query_params, self.settings)
        complete = self.sets.items_.complete
        found = await self.desk.run(complete, asked.text, asked.limit, is_quick=True)
        return _as_json({"text": asked.text, "items": found})

    async def query(self, request: Request) -> Response:
        """Return the items that best complete a set."""
        body = await requests.read_body(request.headers, request.receive, self.settings)
        asked = requests.read_query(body, self.settings)
        return Response(await self.desk.run(self._rank, asked), media_type="application/json")

    async def info(self, request: Request) -> Response:
        """Return what the corpus is, and what may be asked."""
        return _as_json(self._info)

    async def description(self, request: Request) -> Response:
        """Return the OpenAPI description."""
        return _as_json(describe(self.settings))

    async def health(self, request: Request) -> Response:
        """Say that the process answers."""
        return PlainTextResponse("ok\n")

    async def readiness(self, request: Request) -> Response:
        """Say whether queries would be answered."""
        if self.is_ready:
            return PlainTextResponse("ready\n")
        return PlainTextResponse("not ready\n", status_code=503, headers={"Retry-After": "1"})

    async def figures(self, request: Request) -> Response:
        """Return the figures for operators."""
        gauges = {
            "distclust_work_in_flight": (
                "Requests that are worked on or wait for their turn.",
                float(self.desk.n_inside),
            ),
            "distclust_work_limit": ("Most of them.", float(self.desk.limit)),
            "distclust_items": ("Items of the corpus.", float(self.sets.n_items_)),
        }
        return Response(self.metrics.to_text(gauges), media_type=prometheus.CONTENT_TYPE)

    # ---- work ------------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Open what queries need, so that the first one is as quick as the others."""
        self.sets.warm()
        rows = np.unique(np.linspace(0, self.sets.n_items_ - 1, _EXAMPLES).astype(np.int64))
        names = [str(name) for name in self.sets.items_.ids_at(rows)]
        self.sets.items_.complete(names[0], 1)
        self.sets.explain(names[:1], 1)
        self._info = self._describe_corpus(names)
        self.is_ready = True

    def _describe_corpus(self, examples: list[str]) -> dict[str, Any]:
        sets, settings = self.sets, self.settings
        family = sets.family if isinstance(sets.family, str) else sets.family.name
        return {
            "title": settings.title,
            "n_items": sets.n_items_,
            "n_features": int(sets.matrix_.shape[1]),
            "examples": examples,
            "family": family,
            "kappa": float(sets.kappa),
            "smoothing": float(sets.smoothing),
            "has_index": sets.index_ is not None,
            "most_items": settings.most_items,
            "most_results": settings.most_results,
            "version": __version__,
        }

    def _rank(self, asked: requests.Query) -> bytes:
        """Answer a query; runs in a thread."""
        items = list(asked.items)
        ask = self.sets.explain if asked.explain else self.sets.query
        with self._fair_share():
            self._check_known(items)
            found: Any = ask(items, asked.k, asked.exclude_query)
        return to_bytes(found.to_dict())

    def _fair_share(self) -> contextlib.AbstractContextManager[None]:
        """Give a query all cores if it is alone, else one: sharing them out costs time."""
        if self.desk.n_inside > 1 and current_client() is None:
            return grant_threads(1)
        return contextlib.nullcontext()

    def _check_known(self, items: list[str | int]) -> None:
        where = f"{requests.QUERY}: items"
        try:
            self.sets.items_.find(items, where)
        except UnknownItemError:
            raise
        except InputError as error:
            raise Refusal(404, error) from None

    # ---- the application -------------------------------------------------------------------------

    def _make_app(self) -> Starlette:
        routes = [
            Route(path.path, self._guarded(path), methods=[path.method]) for path in self.paths
        ]
        app = Starlette(
            routes=routes,
            middleware=[Middleware(Front, service=self)],
            exception_handlers={
                HTTPException: _unknown_path,
                Refusal: _refused,
                DistclustError: _failed,
            },
            lifespan=self._lifespan,
        )
        app.router.redirect_slashes = False
        return app

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        if not self.is_ready:
            self.prepare()
        yield
        self.is_ready = False
        self.desk.close()

    def _guarded(self, path: Path) -> Handler:
        """Return what answers a path, behind the token where there is one."""
        token = self.settings.token
        if path.is_open or token is None:
            return path.answer
        wanted = token.encode()

        async def answer(request: Request) -> Response:
            scheme, _, shown = request.headers.get("authorization", "").partition(" ")
            is_same = hmac.compare_digest(shown.strip().encode("latin-1"), wanted)
            if scheme.lower() != "bearer" or not is_same:
                got = "another one" if shown else "none"
                hint = "Send it as `Authorization: Bearer TOKEN`."
                headers = {"WWW-Authenticate": "Bearer"}
                where = f"{path.method} {path.path}"
                raise refusal(401, where, "the token of this service", got, hint, headers)
            return await path.answer(request)

        return answer


class Front:
    """What every request passes: it is counted, logged, and never sees a stack trace."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app = app
        self.service = service
        self.routes = {path.path for path in service.paths}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        figures = self.service.metrics
        begun, figures.n_in_flight = time.perf_counter(), figures.n_in_flight + 1
        answer = _Answer(send)
        try:
            await self._answer(scope, receive, answer)
        finally:
            seconds = time.perf_counter() - begun
            figures.n_in_flight -= 1
            route = scope["path"] if scope["path"] in self.routes else "other"
            figures.observe(route, answer.status, seconds)
            if access_log.isEnabledFor(logging.INFO):
                raw = scope.get("raw_path", b"").decode("ascii", "replace")[:200]
                shown = (scope["method"], raw, answer.status, seconds * 1e3)
                access_log.info("%s %s %d %.1f ms", *shown)

    async def _answer(self, scope: Scope, receive: Receive, answer: _Answer) -> None:
        try:
            self._check_called(scope)
            await self.app(scope, receive, answer)
        except requests.Gone:
            answer.status = _LEFT
        except Refusal as refused:
            await _response(refused)(scope, receive, answer)
        except Exception:
            log.exception("%s %s failed", scope["method"], scope["path"])
            if not answer.is_begun:
                await _response(failure())(scope, receive, answer)

    def _check_called(self, scope: Scope) -> None:
        """Refuse foreign names of this host, and paths that are written with escapes."""
        hosts = self.service.settings.hosts
        host = Headers(scope=scope).get("host", "")
        if hosts is not None and _without_port(host) not in hosts:
            hint = "Use one of these names, or start the service with a token."
            expected = f"the host {' or '.join(hosts)}"
            raise refusal(421, "distclust", expected, repr(host[:100]), hint)
        if b"%" in scope.get("raw_path", b""):
            raise _no_such_path(scope["method"])


class _Answer:
    """Passes an answer on with the headers that all have, and remembers its status."""

    def __init__(self, send: Send) -> None:
        self.send = send
        self.status = 500
        self.is_begun = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.is_begun, self.status = True, message["status"]
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers[name] = value
            headers.setdefault("Cache-Control", "no-cache" if "etag" in headers else "no-store")
        await self.send(message)


# ---- refusals ------------------------------------------------------------------------------------


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, Refusal), "as registered"
    return _response(error)


async def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, DistclustError), "as registered"
    refused = refusal_of(error)
    if refused.status >= 500:
        log.error("%s %s: %s", request.method, request.url.path, error)
    return _response(refused)


async def _unknown_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException), "as registered"
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "")
        expected, hint = f"{allowed} of this path", "See /openapi.json."
        where = request.url.path
        return _response(refusal(405, where, expected, request.method, hint, error.headers))
    return _response(_no_such_path(request.method))


def _no_such_path(method: str) -> Refusal:
    return refusal(404, method, "a path of the service", "another one", "See /openapi.json.")


def _response(refused: Refusal) -> Response:
    return _as_json(refused.to_dict(), refused.status, refused.headers)


def _as_json(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(to_bytes(document), status, headers, "application/json")


def to_bytes(document: Any) -> bytes:
    """Return a document as JSON in UTF-8."""
    try:
        text = json.dumps(document, ensure_ascii=False, allow_nan=False)
    except ValueError:
        text = json.dumps(_finite(document), ensure_ascii=False)
    return text.encode("utf-8", "replace")


def _finite(value: Any) -> Any:
    """JSON knows no infinities: they become null."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _without_port(host: str) -> str:
    """Return the name in a Host header."""
    if host.startswith("["):
        return host[: host.find("]") + 1]
    return host.partition(":")[0].lower()
