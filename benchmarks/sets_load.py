"""The service of Bayesian Sets under load: many clients at once, on this machine only.

Items have 50 of 10,000 features (as in `benchmarks.sets`) and names. The service is the command
in a process of its own; clients are connections of this process, and both share the cores.
Every client asks again as soon as it has its answer: a completion, then a query of three items
with reasons, as the page does. First there are as many clients as the limit allows; then twice
as many, which wait as they are told when they are refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import numpy as np
import psutil

import distclust
from benchmarks import sets
from benchmarks.problem import Problem, Results, Size, table
from distclust.retrieval import BayesianSets

QUERY, COMPLETE = "/api/query", "/api/complete"

_MEGABYTE = 1e6
_PATIENCE = 60  # seconds: who waits longer counts as failed


@dataclass(frozen=True)
class Load:
    """How many clients ask for how long."""

    corpus: sets.Sizes
    limit: int
    seconds: float
    overload_seconds: float


@dataclass
class Seen:
    """What clients saw: seconds of answers by path, statuses, failures."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {QUERY: [], COMPLETE: []})
    statuses: Counter[int] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    unclean: int = 0  # refusals that do not say when to come back


def make_load(size: Size) -> Load:
    """A million items and 200 clients for a minute, or a few."""
    if size == "full":
        return Load(sets.make_sizes("full"), 200, 60.0, 20.0)
    return Load(sets.make_sizes("toy"), 4, 1.0, 1.0)


def name_of(row: int) -> str:
    """What an item is called."""
    return f"item {row:07d}"


def run_load(load: Load) -> Results:
    """Serve, ask, and look at the memory meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        store = f"{folder}/items.zarr"
        rows = sets.draw_rows(load.corpus)
        names = np.array([name_of(i) for i in range(rows.shape[0])])
        distclust.ingest([(names, rows)], store)
        del rows, names
        BayesianSets().fit(store).build_index()
        with _served(store, load.limit) as (url, process):
            # Once without counting: everything that is kept is there afterwards.
            asyncio.run(_ask(url, load.limit, min(load.seconds, 5.0), load.corpus.rows))
            with _watched(process) as memory:
                held = asyncio.run(_ask(url, load.limit, load.seconds, load.corpus.rows))
            with _watched(process) as later:
                over = asyncio.run(
                    _ask(url, 2 * load.limit, load.overload_seconds, load.corpus.rows)
                )
    return {
        "items": load.corpus.rows,
        "limit": load.limit,
        "held": _figures(held, load.seconds),
        "over": _figures(over, load.overload_seconds),
        "memory": {
            "start": memory[0],
            "end": memory[-1],
            "largest": max(memory),
            "after_overload": later[-1],
        },
    }


@contextlib.contextmanager
def _served(store: str, limit: int) -> Iterator[tuple[str, psutil.Process]]:
    """Run the command; yield where it answers."""
    words = ["sets", "serve", store, "--port", "0", "--limit", str(limit), "--timeout", "30s"]
    process = subprocess.Popen(
        [sys.executable, "-m", "distclust", *words, "--json", "-q"],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
    )
    assert process.stdout is not None
    try:
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line == "}\n":
                break
        yield json.loads("".join(lines))["url"], psutil.Process(process.pid)
    finally:
        process.terminate()
        code = process.wait(60)
        process.stdout.close()
    if code != 0:
        raise RuntimeError(f"the service ended with {code}")


@contextlib.contextmanager
def _watched(process: psutil.Process) -> Iterator[list[int]]:
    """Collect the resident memory of a process four times a second."""
    sizes = [process.memory_info().rss]
    is_over = threading.Event()

    def watch() -> None:
        while not is_over.wait(0.25):
            sizes.append(process.memory_info().rss)

    watching = threading.Thread(target=watch)
    watching.start()
    try:
        yield sizes
    finally:
        is_over.set()
        watching.join()
        sizes.append(process.memory_info().rss)


# ---- clients -------------------------------------------------------------------------------------


async def _ask(url: str, n_clients: int, seconds: float, n_rows: int) -> Seen:
    """Let clients ask for some seconds."""
    seen = Seen()
    end = time.perf_counter() + seconds
    clients = (_client(url, end, n_rows, seed, seen) for seed in range(n_clients))
    await asyncio.gather(*clients)
    return seen


async def _client(url: str, end: float, n_rows: int, seed: int, seen: Seen) -> None:
    """Ask until the time is over, by one connection."""
    random = np.random.default_rng(seed)
    line = _Line(url)
    try:
        while time.perf_counter() < end:
            for path, request in _requests(random, n_rows):
                await _one(line, path, request, seen)
    finally:
        line.close()


async def _one(line: _Line, path: str, request: bytes, seen: Seen) -> None:
    """Ask once; who is told when to come back waits so long."""
    begun = time.perf_counter()
    try:
        async with asyncio.timeout(_PATIENCE):
            status, headers = await line.ask(request)
    except (OSError, EOFError, ValueError) as error:
        seen.failures.append(f"{path}: {type(error).__name__} {error}")
        line.close()
        return
    seen.statuses[status] += 1
    if status == 200:
        seen.seconds[path].append(time.perf_counter() - begun)
    elif status == 503 and headers.get("retry-after", "").isdecimal():
        await asyncio.sleep(int(headers["retry-after"]))
    else:
        seen.unclean += status == 503
        seen.failures.append(f"{path}: {status}")


class _Line:
    """A connection that is opened when it is needed."""

    def __init__(self, url: str) -> None:
        self._place = urlsplit(url)
        self._ends: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, request: bytes) -> tuple[int, dict[str, str]]:
        """Send a request; return the status and the headers of its answer."""
        if self._ends is None:
            place = self._place
            self._ends = await asyncio.open_connection(place.hostname, place.port)
        reader, writer = self._ends
        writer.write(request)
        return await _answer(reader)

    def close(self) -> None:
        """Hang up."""
        if self._ends is not None:
            self._ends[1].close()
        self._ends = None


def _requests(random: np.random.Generator, n_rows: int) -> list[tuple[str, bytes]]:
    """A completion and a query, as they go over the wire."""
    rows = random.integers(0, n_rows, sets.QUERY_ITEMS)
    text = quote(name_of(int(rows[0]))[:9])
    body = json.dumps({"items": [name_of(int(row)) for row in rows], "k": 10}).encode()
    head = f"POST {QUERY} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n"
    completion = f"GET {COMPLETE}?limit=8&text={text} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    return [(COMPLETE, completion.encode()), (QUERY, head.encode() + body)]


async def _answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str]]:
    """Read an answer to its end; its body has to be JSON."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii").split("\r\n")
    headers = {
        name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])
    }
    body = await reader.readexactly(int(headers["content-length"]))
    if not body.startswith(b"{") or not body.endswith(b"}"):
        raise ValueError("no JSON")
    return int(head[0].split()[1]), headers


# ---- figures -------------------------------------------------------------------------------------


def _figures(seen: Seen, seconds: float) -> dict[str, Any]:
    quantiles = {
        path: {f"p{q}": float(np.quantile(times, q / 100)) for q in (50, 90, 99)}
        | {"largest": max(times)}
        for path, times in seen.seconds.items()
        if times
    }
    return {
        "seconds": seconds,
        "answered": seen.statuses[200],
        "refused": seen.statuses[503],
        "unclean": seen.unclean,
        "failed": len(seen.failures),
        "first_failures": seen.failures[:5],
        "by_path": quantiles,
    }


def summarise(results: Results) -> str:
    """Answers, refusals, failures and times."""
    lines = []
    for name, part in (("limit", results["held"]), ("twice the limit", results["over"])):
        clients = results["limit"] * (1 if name == "limit" else 2)
        for path, times in part["by_path"].items():
            shown = (f"{1e3 * times[f'p{q}']:,.0f} ms" for q in (50, 90, 99))
            lines.append([f"{clients} ({name})", f"`{path}`", *shown])
    held, over, memory = results["held"], results["over"], results["memory"]
    said = [
        f"{results['items']:,} items. {results['limit']} clients for {held['seconds']:.0f} s: "
        f"{held['answered']:,} answers ({held['answered'] / held['seconds']:,.0f} a second), "
        f"{held['failed']:,} failed, {held['refused']:,} refused.",
        f"Twice as many for {over['seconds']:.0f} s: {over['answered']:,} answers, "
        f"{over['refused']:,} refused with 503 and Retry-After, {over['failed']:,} failed.",
        f"Resident memory {memory['start'] / _MEGABYTE:,.0f} MB before, "
        f"{memory['end'] / _MEGABYTE:,.0f} MB after the first, "
        f"{memory['largest'] / _MEGABYTE:,.0f} MB at most, "
        f"{memory['after_overload'] / _MEGABYTE:,.0f} MB after the second.",
    ]
    header = ["clients", "path", "p50", "p90", "p99"]
    return f"{table(header, lines)}\n\n{' '.join(said)}"


def problems() -> list[Problem]:
    """Benchmarks of this file."""
    return [
        Problem(
            "sets-load",
            "the service of Bayesian Sets with as many clients as it allows, and with more",
            make_load,
            run_load,
            summarise,
        )
    ]
