"""Whole ingests of files and iterators, killed at every storage operation and run again."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import distclust
from distclust.errors import StoreError
from tests.corpora import blocks_of
from tests.faults import every_fault

pytestmark = pytest.mark.chaos

ROWS = 11
VALUES = np.arange(ROWS * 2.0).reshape(ROWS, 2)
NAMES = [f"é{i}" for i in range(ROWS)]


@pytest.fixture(autouse=True)
def _small_and_quick(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Blocks of four rows; no power cut is simulated, so nothing waits for the disk."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setenv("DISTCLUST_THREADS", "1")  # threads do not survive a fork
    with blocks_of(4):
        yield


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Callable[[], Any]]:
    frame = pd.DataFrame(VALUES, columns=["a", "b"])
    frame.insert(0, "name", NAMES)
    frame[:6].to_csv(tmp_path / "one.csv", index=False)
    frame[6:].to_csv(tmp_path / "two.csv", index=False)
    with gzip.open(tmp_path / "all.csv.gz", "wt", encoding="utf-8") as file:
        frame.to_csv(file, index=False)
    frame.to_parquet(tmp_path / "all.parquet", row_group_size=5)
    return {
        "files": lambda: [f"{tmp_path}/one.csv", f"{tmp_path}/two.csv"],
        "gzip": lambda: f"{tmp_path}/all.csv.gz",
        "parquet": lambda: f"{tmp_path}/all.parquet",
        "iterator": lambda: iter([(NAMES[i : i + 3], VALUES[i : i + 3]) for i in range(0, 11, 3)]),
    }


@pytest.mark.parametrize("kind", ["files", "gzip", "parquet", "iterator"])
def test_kill__an_ingest_is_complete_or_absent_and_completes(
    kind: str, sources: dict[str, Callable[[], Any]], tmp_path: Path
) -> None:
    def action(place: str) -> None:
        if kind == "iterator" and any(Path(place, ".distclust/generations").glob("0*.json")):
            return  # published before the kill: an iterator is never taken for a done one
        distclust.ingest(sources[kind](), place)

    def check(place: str, finished: bool) -> None:
        try:
            matrix = distclust.open_store(place).matrix()
        except StoreError:
            assert not finished
            return
        assert np.array_equal(matrix.read_all(), VALUES)
        assert matrix.row_ids.tolist() == NAMES

    n_faults = every_fault(
        tmp_path / "tries", prepare=lambda place: None, action=action, check=check
    )
    assert n_faults > 20
