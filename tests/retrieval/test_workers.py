"""Queries on a cluster: the answers of one process, shards that stay, workers that die."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.sparse

import distclust
from distclust import BayesianSets, engine
from distclust.errors import StoreError
from distclust.retrieval import Ranking
from distclust.retrieval import index as index_module
from distclust.retrieval.index import build_index
from tests.retrieval.corpora import SmallShards, assert_same, draw, shards_of
from tests.small_blocks import BLOCK_ROWS, shrink

pytestmark = pytest.mark.cluster

N_ROWS, N_FEATURES, N_SHARDS = 20 * BLOCK_ROWS, 40, 10
QUERIES: list[Any] = [[1], [3, 900], [64, 65, 66], [1279, 0], [500]]
N_KILLS = 3


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        shards_of(2 * BLOCK_ROWS, patch)
        yield


@pytest.fixture(scope="module")
def rows() -> np.ndarray:
    return draw(np.random.default_rng(0), N_ROWS, N_FEATURES, "falling")


@pytest.fixture(scope="module")
def place(rows, tmp_path_factory) -> Path:
    """A store with its index beside it."""
    path = tmp_path_factory.mktemp("stored") / "X.zarr"
    store = distclust.ingest(iter([scipy.sparse.csr_array(rows)]), path)
    BayesianSets().fit(store).build_index()
    return path


@pytest.fixture(scope="module")
def wanted(rows) -> list[Ranking]:
    return BayesianSets().fit(rows).query_many(QUERIES, 15)


@pytest.fixture(scope="module")
def session() -> Iterator[engine.Session]:
    with engine.connect("local", workers=2, threads=1) as session:
        session.client.register_plugin(SmallShards())
        yield session


def check_queries(sets: BayesianSets, wanted: list[Ranking], use: Any) -> None:
    for query, ranking in zip(QUERIES, wanted, strict=True):
        found = sets.query(query, 15, engine=use)
        assert found.engine == use
        assert_same(found, ranking)
    for found, ranking in zip(sets.query_many(QUERIES, 15, engine=use), wanted, strict=True):
        assert_same(found, ranking)


# ---- one answer ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["array", "sparse", "dask", "stored"])
def test_answers__are_those_of_one_process(kind, rows, place, wanted, session):
    sources = {
        "array": rows,
        "sparse": scipy.sparse.csr_array(rows),
        "dask": da.from_array(rows, chunks=(111, 7)),
        "stored": place,
    }
    sets = BayesianSets().fit(sources[kind])
    check_queries(sets, wanted, "scan")
    if kind != "stored":
        sets.build_index()
    check_queries(sets, wanted, "index")
    scores = sets.log_scores(QUERIES[1]).compute()
    assert wanted[1].log_scores.tobytes() == scores[wanted[1].rows].tobytes()


def test_answers__of_other_families(rows, session):
    counts = rows * np.random.default_rng(0).integers(1, 5, rows.shape)
    on_cluster = BayesianSets(family="multinomial").fit(counts).query_many(QUERIES, 9)
    with engine.connect("threads"):
        in_process = BayesianSets(family="multinomial").fit(counts).query_many(QUERIES, 9)
    for a, b in zip(on_cluster, in_process, strict=True):
        assert_same(a, b)


def test_build__on_workers_equals_one_in_process(place, session, tmp_path):
    matrix = BayesianSets().fit(place).matrix_
    on_cluster = build_index(matrix, str(tmp_path / "cluster"))
    with engine.connect("threads"):
        in_process = build_index(matrix, str(tmp_path / "threads"))
    assert on_cluster.n_shards == N_SHARDS
    assert on_cluster.version.files == in_process.version.files


# ---- shards stay where they are ------------------------------------------------------------------


def opened(url: str, version: str) -> dict[int, int]:
    """Which shards this process has open, and which objects they are."""
    index = index_module._open_once(url, version)
    return {number: id(shard) for number, shard in index._open.items()}


def on_workers(session: engine.Session, sets: BayesianSets) -> dict[str, dict[int, int]]:
    index = sets.index_
    found: dict[str, dict[int, int]] = session.client.run(opened, index.url, index.version.id)
    return found


def test_shards__stay_on_their_workers(place, wanted, session):
    index_module._open_once.cache_clear()
    sets = BayesianSets().fit(place)
    check_queries(sets, wanted, "index")
    first = on_workers(session, sets)
    assert len(first) == 2
    numbers = [number for shards in first.values() for number in shards]
    assert sorted(numbers) == list(range(N_SHARDS))  # each on one worker
    assert all(first.values())
    assert opened(sets.index_.url, sets.index_.version.id) == {}  # none here
    check_queries(sets, wanted, "index")
    assert on_workers(session, sets) == first


def test_shards__move_only_to_a_worker_that_comes(place, wanted, session):
    sets = BayesianSets().fit(place)
    check_queries(sets, wanted, "index")
    before = on_workers(session, sets)
    cluster = session._cluster
    cluster.scale(3)
    try:
        session.client.wait_for_workers(3, timeout=60)
        check_queries(sets, wanted, "index")
        after = on_workers(session, sets)
        (new,) = set(after) - set(before)
        assert {worker: after[worker] for worker in before} == before
        assert 0 < len(after[new]) < N_SHARDS
    finally:
        cluster.scale(2)
        while len(session.client.scheduler_info()["workers"]) > 2:
            threading.Event().wait(0.05)
    check_queries(sets, wanted, "index")


# ---- what goes wrong -----------------------------------------------------------------------------


def test_damage__is_told_by_the_worker_that_found_it(place, session, tmp_path):
    matrix = BayesianSets().fit(place).matrix_
    index = build_index(matrix, str(tmp_path / "index"))
    path = tmp_path / "index/versions" / index.version.id / "shards/7/c/0"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(bytes(content))
    sets = BayesianSets().fit(place, index=tmp_path / "index")
    with pytest.raises(StoreError, match=r"shards/7/c/0.*altered content.*sets build --fresh"):
        sets.query([1], engine="index")


class Killer:
    """Kills a worker again and again, at seeded moments, until told to stop."""

    def __init__(self, session: engine.Session, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.keepers = session._cluster.workers  # they start again what dies
        self.killed: set[int] = set()
        self.is_over = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Killer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.is_over.set()
        self._thread.join()

    def _run(self) -> None:
        while not self.is_over.wait(self.rng.uniform(0.0, 0.4)) and len(self.killed) < N_KILLS:
            pids = {keeper.pid for keeper in list(self.keepers.values()) if keeper.pid}
            alive = sorted(pids - self.killed)
            if len(alive) < 2:  # one goes on while the other starts
                continue
            pid = int(self.rng.choice(alive))
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                self.killed.add(pid)


@pytest.mark.chaos
def test_workers__that_die_lose_no_query_and_change_no_answer(place, wanted):
    with engine.connect("local", workers=2, threads=1) as session:
        session.client.register_plugin(SmallShards())
        sets = BayesianSets().fit(place)
        check_queries(sets, wanted, "index")
        n_after = 0
        with Killer(session, 0) as killer:
            while n_after < 2:
                for use in ("index", "scan"):
                    for query, ranking in zip(QUERIES, wanted, strict=True):
                        assert_same(sets.query(query, 15, engine=use), ranking)
                n_after += len(killer.killed) == N_KILLS
        assert len(killer.killed) == N_KILLS
