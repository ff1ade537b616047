"""A small corpus with names, and a service of it: in process, in a thread, as a command."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import distclust
from distclust.retrieval import BayesianSets
from distclust.service import Settings
from distclust.service.app import Service
from distclust.service.server import bind, make_server, url_of

KINDS = ("heron", "otter", "maple", "granite", "teapot", "violin")
MEMBERS = 12
FEATURES = 48

# Names that a page or a program could mistake for something else.
ODD = ('<img src=x onerror="document.title=1">', "a & b = c #1", "Ångström 東京", "100% %41/..")


def planted() -> pd.DataFrame:
    """Items of six kinds, each with features that its kind usually has, and some odd ones."""
    rng = np.random.default_rng(7)
    shares = np.full((len(KINDS), FEATURES), 0.04)
    for kind in range(len(KINDS)):
        shares[kind, 8 * kind : 8 * kind + 8] = 0.8
    rows = rng.random((len(KINDS), MEMBERS, FEATURES)) < shares[:, None]
    odd = rng.random((len(ODD), FEATURES)) < 0.2
    names = [f"{kind} {member:02d}" for kind in KINDS for member in range(MEMBERS)]
    columns = [f"{kind} trait {i}" for kind in KINDS for i in range(8)]
    values = np.concatenate([rows.reshape(-1, FEATURES), odd]).astype(np.uint8)
    return pd.DataFrame(values, index=[*names, *ODD], columns=columns)


@pytest.fixture(scope="session")
def sets() -> BayesianSets:
    """The corpus in memory, with its index."""
    return BayesianSets().fit(planted()).build_index()


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The corpus in a store, with its index."""
    folder = tmp_path_factory.mktemp("service")
    table = folder / "things.csv"
    planted().to_csv(table, index_label="name")
    path = folder / "things.zarr"
    distclust.ingest(str(table), str(path))
    BayesianSets().fit(str(path)).build_index()
    return path


class Slow:
    """A corpus whose queries for 7 results wait until they may end."""

    def __init__(self, sets: BayesianSets) -> None:
        self.go = threading.Event()
        self.sets = copy.copy(sets)
        self.n_begun = 0

        def explain(items: Any, k: int, *rest: Any) -> Any:
            if k == 7:
                self.n_begun += 1
                assert self.go.wait(60)
            return sets.explain(items, k, *rest)

        self.sets.explain = explain  # type: ignore[method-assign, assignment]


@contextlib.contextmanager
def served(sets: BayesianSets, settings: Settings) -> Iterator[tuple[str, Service]]:
    """Serve on a free port from a thread; yield the URL and the service."""
    service = Service(sets, settings)
    started = threading.Event()
    server = make_server(service, started.set)
    with bind("127.0.0.1", 0) as bound:
        url = url_of(bound)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            assert started.wait(60)
            yield url, service
        finally:
            server.should_exit = True
            thread.join(60)
    assert not thread.is_alive()


@dataclass
class Running:
    """The command as a process."""

    process: subprocess.Popen[str]
    url: str

    def end(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        """Ask it to end; return its exit code and what it logged."""
        self.process.send_signal(number)
        _, logged = self.process.communicate(timeout=60)
        return self.process.returncode, logged


@contextlib.contextmanager
def command(store: Path, *options: str, **environment: str) -> Iterator[Running]:
    """Run ``distclust sets serve`` on a free port."""
    words = [sys.executable, "-m", "distclust", "sets", "serve", str(store), "--port", "0"]
    process = subprocess.Popen(
        [*words, "--json", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | environment,
    )
    try:
        yield Running(process, _document(process)["url"])
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def _document(process: subprocess.Popen[str]) -> Any:
    """Read the one JSON document that the command prints when it is ready."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line)
        if line == "}\n":
            return json.loads("".join(lines))
    assert process.stderr is not None
    raise AssertionError(f"it did not start: {process.stderr.read()}")
