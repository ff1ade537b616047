"""What a fit will cost, said before anything runs.

The figures are estimates from shapes alone: memory and disk follow from the arrays that are
kept, time from figures measured on one core of an ordinary machine and is good to a factor
of a few.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from distclust.report.terminal import duration, size

FLOAT = 8  # bytes
KEY = 4  # bytes of one entry of the key matrix
KEY_BUDGET = 1e9  # bytes; the default of the estimators
# Seconds for one pair and one number of its statistics, measured: see docs/benchmarks.md.
PAIR_SECONDS = {"bhc": 2.0e-9, "rose": 8.0e-9}
WARM_UP_SECONDS = 3.0


@dataclass(frozen=True)
class Plan:
    """Cost of one piece of work."""

    what: str
    n_rows: int
    n_features: int
    passes: int  # over the rows
    memory_bytes: float
    disk_bytes: float
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers, ready for JSON."""
        return asdict(self)

    def facts(self) -> Mapping[str, str]:
        """Return the plan in words."""
        return {
            "plan": self.what,
            "rows and features": f"{self.n_rows:,} x {self.n_features:,}",
            "passes over the rows": str(self.passes),
            "memory": f"{size(self.memory_bytes)} beside the table",
            "disk": size(self.disk_bytes),
            "time": f"{duration(self.seconds)} (two cores, warm)",
        }


def plan_fit(method: str, n_rows: int, n_features: int, *, n_searches: int = 1) -> Plan:
    """Estimate a fit of `n_rows` leaves; `n_searches` greedy searches are run in it."""
    pairs = n_rows**2 / 2
    keys = KEY * n_rows**2
    statistics = 2 * n_rows * (n_features + 1) * FLOAT
    return Plan(
        what=f"fit {method}",
        n_rows=n_rows,
        n_features=n_features,
        passes=3,  # profile, summary for the prior, statistics of the leaves
        memory_bytes=2 * statistics + (keys if keys <= KEY_BUDGET else 0),
        disk_bytes=statistics + 16 * FLOAT * n_rows,
        seconds=WARM_UP_SECONDS + n_searches * pairs * n_features * PAIR_SECONDS[method],
    )


def plan_predict(n_rows: int, n_features: int, n_nodes: int) -> Plan:
    """Estimate predictions for `n_rows` new rows from a tree of `n_nodes` nodes."""
    block = min(n_rows, max(256, 2**21 // max(n_features, 1)))
    return Plan(
        what="predict",
        n_rows=n_rows,
        n_features=n_features,
        passes=2,  # labels, then densities
        memory_bytes=2 * block * n_nodes * FLOAT,
        disk_bytes=40 * n_rows,
        seconds=1.0 + n_rows * n_nodes * n_features * 2e-9,
    )
