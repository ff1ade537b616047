"""What a fit will cost, said before anything runs.

The figures are estimates from shapes alone: memory and disk follow from the arrays that are
kept, time from figures measured on one core of an ordinary machine and is good to a factor
of a few.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any

from distclust.report.terminal import duration, size

if TYPE_CHECKING:
    from distclust.store import Matrix
    from distclust.store.tables import Table
    from distclust.trees import BHC, BayesianRoseTree

FLOAT = 8  # bytes
KEY = 4  # bytes of one entry of the key matrix
# Measured on one core: seconds for a pair of leaves, and more for each number of its
# statistics; families whose leaf pairs are matrix products need less.
PAIR_SECONDS = 2e-7
NUMBER_SECONDS = {"Bernoulli": 2e-9, "Categorical": 2e-9}
OTHER_NUMBER_SECONDS = 1.5e-8
ROSE_FACTOR = 2.0  # three kinds of merge instead of one
WARM_UP_SECONDS = 3.0  # imports and compiled functions from the cache
INGEST_RATE = 6e7  # bytes of text a second, parsed, kept and written
READ_RATE = 5e8  # bytes of a store a second, from a local disk
WRITE_RATE = 2e8
INGEST_BYTES = 3e8  # of an idle process with its libraries
PART_BYTES = 1e8  # of a part and a block in work
SEARCHES_WHEN_OPTIMISING = 5  # rebuilt trees, as a rule


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
        """Return plain numbers, ready for JSON; what is not known is null."""
        facts = asdict(self)
        return facts if self.n_rows else {**facts, "n_rows": None, "n_features": None}

    def facts(self) -> Mapping[str, str]:
        """Return the plan in words."""
        known = self.n_rows > 0
        return {
            "plan": self.what,
            "rows and features": f"{self.n_rows:,} x {self.n_features:,}" if known else "unknown",
            "passes over the rows": str(self.passes),
            "memory": f"{size(self.memory_bytes)} beside the table",
            "disk": size(self.disk_bytes),
            "time": f"{duration(self.seconds)}, once functions are compiled",
        }


def plan_fit(
    model: BHC | BayesianRoseTree, table: Table | Matrix, start_seconds: float = WARM_UP_SECONDS
) -> Plan:
    """Estimate a fit of `model` to `table`.

    Looks at the table as the fit itself would, to choose the family; a table that the fit
    would refuse is refused here.
    """
    from distclust.engine import as_matrix
    from distclust.trees.data import first_look, memory_needed, resolve_family

    where = f"{type(model).__name__}.fit"
    matrix = as_matrix(table, where=where)
    family, _ = resolve_family(model.family, matrix, first_look(matrix), where)
    n_rows, n_features = matrix.shape
    keys = KEY * float(n_rows) ** 2
    searches = SEARCHES_WHEN_OPTIMISING * (1 + model.n_restarts) if model.optimize else 1
    searches *= max(1, len(family.scale_grid))
    a_number = NUMBER_SECONDS.get(type(family).__name__, OTHER_NUMBER_SECONDS)
    a_pair = PAIR_SECONDS + a_number * family.n_statistics
    a_search = float(n_rows) ** 2 / 2 * a_pair * (ROSE_FACTOR if hasattr(model, "variant") else 1)
    return Plan(
        what=f"fit {type(model).__name__}, {type(family).__name__}",
        n_rows=n_rows,
        n_features=n_features,
        passes=3,  # facts about the columns, the prior, the statistics
        memory_bytes=memory_needed(
            n_rows, family.n_statistics, keys if keys <= model.key_budget else 0.0
        ),
        disk_bytes=FLOAT * 2.0 * n_rows * (family.n_statistics + 11),  # of all nodes
        seconds=start_seconds + searches * a_search,
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


def plan_ingest(source: str | list[str], arguments: Mapping[str, Any]) -> Plan:
    """Estimate bringing a source into a store; a source that cannot be opened is refused."""
    from distclust.engine import local_threads
    from distclust.store.sources import SourceOptions, find_files, open_source

    names = {field.name for field in fields(SourceOptions)}
    reading = {name: value for name, value in arguments.items() if name in names}
    open_source(source, SourceOptions(**reading))
    n_bytes = sum(file.size for file in find_files(source))
    return Plan(
        what="ingest",
        n_rows=0,  # not known before the source is read
        n_features=0,
        passes=2,  # parsing, writing
        memory_bytes=INGEST_BYTES + PART_BYTES * local_threads(),
        disk_bytes=2.0 * n_bytes,  # the store, and what was parsed until it is complete
        seconds=WARM_UP_SECONDS + n_bytes / INGEST_RATE,
    )


def plan_reading(what: str, shape: tuple[int, int], n_bytes: int, *, writes: bool) -> Plan:
    """Estimate reading all bytes of a store, and writing them again if it `writes`."""
    return Plan(
        what=what,
        n_rows=shape[0],
        n_features=shape[1],
        passes=2 if writes else 1,
        memory_bytes=INGEST_BYTES + PART_BYTES,
        disk_bytes=float(n_bytes) if writes else 0.0,
        seconds=1.0 + n_bytes / (WRITE_RATE if writes else READ_RATE),
    )
