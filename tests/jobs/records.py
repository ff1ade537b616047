"""Records of runs that never were, for tests of what is told about runs."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np

from distclust.jobs.lineage import trace
from distclust.jobs.overlaps import ABSENT, Overlaps
from distclust.jobs.record import (
    Cost,
    Figures,
    Files,
    Gate,
    Generations,
    Input,
    Model,
    NamedFiles,
    Record,
    RowCounts,
    Versions,
    new_run_id,
)

DAY = datetime.datetime(2026, 3, 1, 2, 0, tzinfo=datetime.UTC)

PAIRS = {
    (0, 0): 4100, (ABSENT, 0): 160, (0, ABSENT): 12,
    (1, 1): 2300, (1, 5): 900, (ABSENT, 1): 31,
    (2, 2): 800, (3, 2): 640, (ABSENT, 2): 12,
    (ABSENT, 6): 270, (4, 0): 30, (4, 1): 25, (4, 2): 20,
    (5, 3): 60, (5, 4): 45, (6, 4): 25,
}  # fmt: skip


def clusters() -> dict[str, Any]:
    ordered = sorted(PAIRS.items())
    before, after = (np.array([pair[side] for pair, _ in ordered]) for side in (0, 1))
    return trace(Overlaps(before, after, np.array([n for _, n in ordered]))).to_json()


def full_record(number: int = 40, **others: Any) -> Record:
    """Return the record of a run in which a bit of everything happened."""
    started = DAY + datetime.timedelta(days=number)
    values: dict[str, Any] = {
        "job": "newsroom",
        "run": new_run_id(number, started),
        "started": started.isoformat(),
        "ended": (started + datetime.timedelta(seconds=83.2)).isoformat(),
        "seconds": 83.2,
        "outcome": "published",
        "scheduler": "tcp://scheduler:8786",
        "input": Input(
            Files(new=2, changed=1, gone=1, touched=3, unchanged=1190),
            NamedFiles(("in/2026-04-10.csv", "in/late.csv"), ("in/fixed.csv",), ("in/old.csv",)),
            RowCounts(before=8945, after=9406, added=473, changed=21, deleted=12),
            Generations(39, 40),
            bytes_read=2_400_000,
        ),
        "models": (
            Model(
                "topics",
                "rbhc",
                "refit below",
                "New rows fit node 17 worse than old ones by 6.1 standard errors; refit below it.",
                Versions("20260409T020010Z-aaaaaaaa", "20260410T020010Z-bbbbbbbb"),
                Figures({"log_evidence": -812_345.6}, {"log_evidence": -845_012.9, "depth": 7}),
                {
                    "largest_z": 6.1,
                    "threshold": 4.0,
                    "nodes": [{"node": 17, "n_new": 40, "z": 6.13, "is_reopened": True}],
                },
                clusters(),
                61.0,
            ),
            Model(
                "search",
                "sets",
                "updated",
                "473 rows appended to the index.",
                Versions("20260409T020011Z-cccccccc", "20260410T020011Z-dddddddd"),
                seconds=4.2,
            ),
            Model("map", "kpca", "kept", "Nothing it uses changed."),
        ),
        "gates": (
            Gate("rows of topics", "9,406 labels", "9,406", True),
            Gate("evidence of topics", "at most 5 % below before", "1.1 % below", True),
        ),
        "published": number,
        "pruned": {"versions": 2, "generations": 1},
        "cost": Cost(
            {"survey": 0.8, "ingest": 9.1, "models": 65.2, "compare": 1.3, "publish": 0.4},
            140.2,
            812_000_000,
        ),
    }
    return Record(**values | others)
