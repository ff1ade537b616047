"""The verb that answers queries of Bayesian Sets over HTTP."""

from __future__ import annotations

import logging
import re
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from distclust.commands.common import (
    Common,
    connected,
    console,
    followed,
    print_json,
    say_plan,
)
from distclust.errors import InputError

if TYPE_CHECKING:
    from distclust.retrieval import BayesianSets

_MOST_THREADS = 32  # that wait for a cluster
_SWITCH_SECONDS = 0.001
_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "min": 60.0}

log = logging.getLogger("distclust.service")


@dataclass(frozen=True)
class Serving:
    """How to serve a store."""

    host: str = "127.0.0.1"
    port: int = 8000
    token: str | None = None
    limit: int = 200
    timeout: str = "10s"
    index: str | None = None
    kappa: float = 2.0
    smoothing: float = 0.0
    family: str = "bernoulli"


def serve(store: str, serving: Serving, scheduler: str | None, common: Common) -> None:
    """Answer queries until the process is asked to end."""
    from distclust.service import Settings, check_packages

    check_packages()
    from distclust.service import server
    from distclust.service.app import Service

    is_private = server.is_loopback(serving.host)
    has_foreign_names = serving.token is not None or not is_private
    limits = Settings(
        limit=serving.limit,
        timeout=seconds_of(serving.timeout, "--timeout"),
        token=serving.token,
        hosts=None if has_foreign_names else server.own_names(serving.host),
        title=PurePosixPath(store.rstrip("/")).name.removesuffix(".zarr"),
    )
    if common.plan:
        from distclust.report.sets import plan_query
        from distclust.store.matrix_store import open_store

        say_plan(plan_query(open_store(store)), common)
        return
    with server.bind(serving.host, serving.port) as bound, ExitStack() as stack:
        _set_up_log(common)
        if not is_private and serving.token is None:
            log.warning(
                "%s can be reached by others, and no token is asked for: set DISTCLUST_TOKEN",
                serving.host,
            )
        with followed(common):
            stack.enter_context(connected(scheduler))
            sets = _fitted(store, serving)
            service = Service(sets, limits.on_threads(_count_threads()))
            service.prepare()
        sys.setswitchinterval(_SWITCH_SECONDS)  # the event loop is not to wait for queries
        server.run(service, bound, lambda: _say_start(server.url_of(bound), store, sets, common))
    log.info("ended")


def seconds_of(text: str, where: str) -> float:
    """Return a time such as ``10s``, ``500ms`` or ``2min`` in seconds."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|s|min|m|)\s*", text)
    if found is None or float(found[1]) == 0.0:
        raise InputError(where, "a time above 0", repr(text), "For example 10s, 500ms or 2min.")
    return float(found[1]) * _UNITS[found[2]]


def _fitted(store: str, serving: Serving) -> BayesianSets:
    from distclust.retrieval import BayesianSets
    from distclust.store.matrix_store import open_store

    family = serving.family.replace("-", "_")
    sets = BayesianSets(serving.kappa, serving.smoothing, family)
    sets.fit(open_store(store).matrix(), index=serving.index)
    if sets.index_ is None and sets.family_ is None:
        log.warning("no index of %s: every query reads all rows; run `sets build`", store)
    return sets


def _count_threads() -> int:
    """Return how many queries run at a time: what cores there are, here or on a cluster."""
    from distclust.engine import allowed_cores, current_client

    client = current_client()
    elsewhere = 0 if client is None else sum(client.nthreads().values())
    return max(allowed_cores(), min(elsewhere, _MOST_THREADS))


def _set_up_log(common: Common) -> None:
    """Let the service's lines be seen: on a terminal for people, else plain with the time."""
    handler = logging.StreamHandler(sys.stderr)
    layout = "%(message)s" if sys.stderr.isatty() else "%(asctime)s %(levelname)s %(message)s"
    handler.setFormatter(logging.Formatter(layout, "%Y-%m-%dT%H:%M:%S%z"))
    log.handlers[:] = [handler]
    log.propagate = False
    log.setLevel(logging.WARNING if common.quiet else logging.INFO)
    # A line a request only when more was asked for.
    logging.getLogger("distclust.service.access").setLevel(logging.getLogger().level)


def _say_start(url: str, store: str, sets: BayesianSets, common: Common) -> None:
    facts: dict[str, Any] = {
        "url": url,
        "store": store,
        "n_items": sets.n_items_,
        "n_features": int(sets.matrix_.shape[1]),
        "has_index": sets.index_ is not None,
    }
    if common.as_json:
        print_json({"command": "sets serve", **facts})
        sys.stdout.flush()
    elif sys.stdout.isatty() and not common.quiet:
        _show_start(facts)
    else:
        log.info("serving %s (%d items) on %s", store, sets.n_items_, url)


def _show_start(facts: dict[str, Any]) -> None:
    from rich.markup import escape

    said = console()
    shape = f"{facts['n_items']:,} items, {facts['n_features']:,} features"
    index = "with its index" if facts["has_index"] else "no index"
    said.print(f"[bold]{escape(facts['store'])}[/bold]  {shape}, {index}", highlight=False)
    said.print(f"  page     [link={facts['url']}]{facts['url']}[/link]", highlight=False)
    said.print(f"  API      {facts['url']}openapi.json", highlight=False)
    said.print("  Ctrl-C ends", style="dim")
