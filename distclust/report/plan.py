"""What a fit will cost, said before anything runs.

The figures are estimates from shapes alone: memory and disk follow from the arrays that are
kept, time from figures measured on one core of an ordinary machine and is good to a factor
of a few.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any

from distclust.report.terminal import duration, size

if TYPE_CHECKING:
    from distclust.store import Matrix
    from distclust.store.tables import Table
    from distclust.trees import BHC, EMBHC, BayesianRoseTree, RandomizedBHC

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


# ---- fits by passes ----------------------------------------------------------------------------

ASSUMED_CLUSTERS = 200  # how many there are is what a fit is to find out
ASSUMED_SPARSE_VALUES = 128  # of a row; how many there are only the data say
WORKER_BYTES = 65e6  # Dask around it: measured less what follows from the shape
FIRST_PASSES = 2  # facts and the first sample; the prior, which of binary rows the facts tell
DIVIDING_PASSES = 2  # to the cut of the first sample, then for what fresh samples divide
BLOCK_VALUES = 2**21  # of a dense block, see `distclust.store.matrix.block_rows_for`
SPARSE_BLOCK_ROWS = 16_384
SPAN_BLOCKS = 8  # blocks of one task
WIDEST = 64  # parts into which a pass divides a node without clusters in it
TABLE_BYTES = 2**26  # largest tables of a filter
CODE_COPIES = 3  # of the node of every row: before a pass, after it, and the one to be removed
LABEL_CHUNK = 2**18


@dataclass(frozen=True)
class LargeRates:
    """Seconds of one core (a thread of a worker), measured: ``python -m benchmarks large-plan``.

    Those of binary rows are fitted; the time of a row is that of rows as they came, whose
    clusters are clear.

    Attributes
    ----------
    start
        Imports, and functions from the cache of compiled ones; once a fit.
    each_pass, each_task
        Fixed costs of a pass, and of a task of it (a span of blocks, a test of a leaf).
    each_result
        Taking in what a task sends to the process that drives the fit, one after another.
    value
        A value of a row that is read, verified and counted; once a pass.
    row
        Hashing and counting a row; once a pass.
    score
        A value of a row times a component of a filter, by family; "" for all others.
    pair, number
        A pair of leaves of a sample's tree, and more for each number of a statistic.
    """

    start: float = 1.3
    each_pass: float = 0.05
    each_task: float = 0.0
    each_result: float = 0.004
    value: float = 2.5e-10
    row: float = 3.6e-08
    score: Mapping[str, float] = field(default_factory=lambda: {"Bernoulli": 2e-11, "": 2e-9})
    pair: float = 0.0
    number: Mapping[str, float] = field(
        default_factory=lambda: {"Bernoulli": 7.8e-10, "": OTHER_NUMBER_SECONDS}
    )


@dataclass(frozen=True)
class LargeCost:
    """What a fit by passes costs, from shapes alone.

    With n rows, D values a row, K components of a filter, P passes of which M move rows, a
    sample of m rows, tests of c rows and W threads of workers:

        seconds = start + P (each_pass)
                  + (m² / 2) (pair + p number)                              the sample's tree
                  + K ((c² / 2) (pair + p number) + each_task) / W          tests of leaves
                  + n (P (row + D value) + M D K score) / W
                  + spans P (each_task / W + each_result)

    Parameters
    ----------
    n_rows, n_features, n_workers
        Shape of the data, and threads of all workers together.
    family, n_statistics
        Name of the family and numbers of its statistics; 0: as many as features, and one.
    sample_size, check_size
        Rows of the first sample and of those that test a leaf; 0: none are tested.
    n_clusters, n_components
        Clusters there may be, and components of a filter; 0 of those: as many as clusters.
    moving_passes
        Passes that move rows.
    row_values, value_bytes
        Values stored of a row (0: one a feature) and their size; sparse ones count twice.
    is_sparse, resolves_rows
        Whether rows are sparse, and whether the tree goes down to single rows.
    rates
        Seconds of the parts.
    """

    n_rows: int
    n_features: int
    n_workers: int = 1
    family: str = "Bernoulli"
    n_statistics: int = 0
    sample_size: int = 4096
    check_size: int = 256
    n_clusters: int = ASSUMED_CLUSTERS
    n_components: int = 0
    moving_passes: int = DIVIDING_PASSES
    row_values: int = 0
    value_bytes: int = 1
    is_sparse: bool = False
    resolves_rows: bool = False
    rates: LargeRates = LargeRates()

    @property
    def passes(self) -> int:
        """Passes over all rows."""
        return FIRST_PASSES - (self.family == "Bernoulli") + self.moving_passes

    @property
    def seconds(self) -> float:
        """Time from start to the published version."""
        rates, workers = self.rates, max(1, self.n_workers)
        a_number = rates.number.get(self.family, rates.number[""])
        a_score = rates.score.get(self.family, rates.score[""])
        a_pair = rates.pair + self._statistics * a_number
        sample = min(self.sample_size, self.n_rows)
        tests = self.n_clusters * (self.check_size**2 / 2 * a_pair + rates.each_task)
        a_row = self.passes * (rates.row + self._values * rates.value)
        a_row += self.moving_passes * self._values * self._components * a_score
        n_tasks = self._spans * self.passes
        return (
            rates.start
            + self.passes * rates.each_pass
            + sample**2 / 2 * a_pair
            + n_tasks * rates.each_result
            + (tests + self.n_rows * a_row + n_tasks * rates.each_task) / workers
        )

    @property
    def memory_bytes(self) -> float:
        """Peak of a worker with one thread: of what does not grow with the rows."""
        block = 3 * FLOAT * self._block_rows * self._values  # read, converted, in work
        codes = 2 * 4 * SPAN_BLOCKS * self._block_rows
        components = 4 * FLOAT * self._components * self._statistics
        tables = min(TABLE_BYTES, 128.0 * self.n_features * self._components)
        tree = 6 * FLOAT * self.sample_size * self._statistics + KEY * self.sample_size**2
        peak = block + codes + components + tables + self._candidate_bytes
        rows = 6.0 * FLOAT * self.n_rows * self._statistics if self.resolves_rows else 0.0
        return INGEST_BYTES + WORKER_BYTES + max(peak, tree) + rows

    @property
    def read_bytes(self) -> float:
        """Read from the store, in all passes."""
        return float(self.passes) * self.n_rows * (self._row_bytes + FLOAT)  # with its key

    @property
    def moved_bytes(self) -> float:
        """Sent between processes: filters to workers, statistics and samples back."""
        filters = float(FLOAT) * self._components * self._statistics
        found = float(FLOAT) * self.n_clusters * (self._statistics + 1)
        a_pass = self.n_workers * filters + self._spans * found + self._candidate_bytes
        rows = float(FLOAT) * self.n_rows * self._values if self.resolves_rows else 0.0
        return self.moving_passes * a_pass + rows

    @property
    def disk_bytes(self) -> float:
        """Written beside the results: labels, states of the fit, the model."""
        label = 1 if self.n_clusters <= 2**8 else 2 if self.n_clusters <= 2**16 else 4
        nodes = 2.0 * (self.n_rows if self.resolves_rows else self.n_clusters)
        model = FLOAT * (nodes * (self._statistics + 11) + self._components * self._statistics)
        return self.n_rows * label * (1.0 + CODE_COPIES) + 3 * model  # two states are kept

    @property
    def _statistics(self) -> int:
        return self.n_statistics or self.n_features + 1

    @property
    def _components(self) -> int:
        return self.n_components or self.n_clusters

    @property
    def _values(self) -> int:
        return self.row_values or self.n_features

    @property
    def _row_bytes(self) -> float:
        return float(self._values * self.value_bytes * (2 if self.is_sparse else 1))

    @property
    def _block_rows(self) -> int:
        rows = SPARSE_BLOCK_ROWS if self.is_sparse else BLOCK_VALUES // max(1, self.n_features)
        return min(max(rows, 256), 65_536, max(1, self.n_rows))

    @property
    def _spans(self) -> int:
        return -(-self.n_rows // (SPAN_BLOCKS * self._block_rows))

    @property
    def _candidate_bytes(self) -> float:
        """Rows that are held for the samples of all nodes."""
        rows = self.sample_size + self.n_clusters * (1.4 * self.check_size + 8)
        return FLOAT * min(rows, float(self.n_rows)) * self._values


@dataclass(frozen=True)
class LargePlan:
    """Cost of a fit by passes, with what was assumed of data that nobody has read."""

    what: str
    cost: LargeCost
    assumed: str

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers, ready for JSON."""
        cost = self.cost
        figures = ("passes", "memory_bytes", "read_bytes", "moved_bytes", "disk_bytes", "seconds")
        return {
            "what": self.what,
            "n_rows": cost.n_rows,
            "n_features": cost.n_features,
            "n_workers": cost.n_workers,
            **{name: getattr(cost, name) for name in figures},
            "assumed": self.assumed,
        }

    def facts(self) -> Mapping[str, str]:
        """Return the plan in words."""
        cost = self.cost
        threads = f"{cost.n_workers:,} thread" + ("" if cost.n_workers == 1 else "s")
        return {
            "plan": self.what,
            "rows and features": f"{cost.n_rows:,} x {cost.n_features:,}",
            "passes over the rows": f"about {cost.passes}",
            "memory": f"{size(cost.memory_bytes)} for each worker thread",
            "read": f"{size(cost.read_bytes)} in all passes",
            "moved": f"{size(cost.moved_bytes)} between the processes of a cluster",
            "disk": size(cost.disk_bytes),
            "time": f"{duration(cost.seconds)} on {threads}, once functions are compiled",
            "assumed": self.assumed,
        }


def plan_large(
    model: RandomizedBHC | EMBHC, matrix: Matrix | Table, n_workers: int | None = None
) -> LargePlan:
    """Estimate a fit by passes from the shape alone: no row is read.

    Parameters
    ----------
    model
        Not yet fitted.
    matrix
        Its shape, the type of its values and its columns are looked at.
    n_workers
        Threads of all workers together; None: of this process.
    """
    from distclust.engine import as_matrix, local_threads

    where = f"{type(model).__name__}.fit"
    rows = as_matrix(matrix, where=where)
    settings = model._method(rows.shape[1], where).settings  # type: ignore[attr-defined]
    family, n_statistics, why = _assumed_family(model.family, rows, where)
    n_rows, n_features = rows.shape
    n_clusters = min(ASSUMED_CLUSTERS, n_rows)
    is_em = hasattr(model, "n_sweeps")
    row_values = min(n_features, ASSUMED_SPARSE_VALUES) if rows.is_sparse else n_features
    cost = LargeCost(
        n_rows=n_rows,
        n_features=n_features,
        n_workers=n_workers or local_threads(),
        family=family,
        n_statistics=n_statistics,
        sample_size=settings.sample_size,
        check_size=0 if is_em else min(settings.check_size, settings.sample_size),
        n_clusters=n_clusters,
        n_components=_components(model, settings.sample_size, n_clusters),
        moving_passes=_moving_passes(model, n_rows, settings.sample_size, n_clusters),
        row_values=row_values,
        value_bytes=rows.dtype.itemsize,
        is_sparse=rows.is_sparse,
        resolves_rows=settings.resolve == "rows",
    )
    told = [why, f"{n_clusters} clusters"]
    told += [f"{row_values} values other than zero a row"] if rows.is_sparse else []
    return LargePlan(f"fit {type(model).__name__}, {family}", cost, "; ".join(told))


def _components(model: RandomizedBHC | EMBHC, sample_size: int, n_clusters: int) -> int:
    if hasattr(model, "n_sweeps"):
        return sample_size  # a seed each, fewer once sweeps have emptied some
    return 2 * sample_size if model.filter_predictive == "subtree" else n_clusters


def _moving_passes(
    model: RandomizedBHC | EMBHC, n_rows: int, sample_size: int, n_clusters: int
) -> int:
    """Return how many passes move rows, as a rule; only the data know."""
    to_rows = model.resolve == "rows" and n_rows > sample_size
    more = math.ceil(math.log(n_rows / sample_size, WIDEST)) if to_rows else 0
    if hasattr(model, "n_sweeps"):
        return 1 + int(model.n_sweeps) + more
    if model.levels_per_pass == "auto":
        return DIVIDING_PASSES + more
    # Sample trees are about twice as deep as balanced ones.
    parts = n_rows / sample_size if to_rows else n_clusters
    depth = 2 * math.ceil(math.log2(max(2.0, parts)))
    if model.max_levels is not None:
        depth = min(depth, int(model.max_levels))
    return max(1, math.ceil(depth / int(model.levels_per_pass)))


def _assumed_family(family: Any, matrix: Matrix, where: str) -> tuple[str, int, str]:
    """Return name and statistics of a family, and why it: without a look at the rows."""
    from distclust.families import Family, family_named

    n_features = matrix.shape[1]
    if isinstance(family, Family):
        name = type(family).__name__
        why = f"{name} rows, chosen by the user"
    elif family != "auto":
        name = type(family_named(family, f"{where}: family")).__name__
        why = f"{name} rows, chosen by the user"
    else:
        name = _family_of_type(matrix)
        why = f"{name} rows, by the type of the values ({matrix.dtype}): no row was read"
    levels = sum(max(1, len(column.levels)) for column in matrix.columns)
    numbers = {
        "Gaussian": n_features * (n_features + 3) // 2,
        "DiagonalGaussian": 2 * n_features,
        "Categorical": levels,
        "Product": 2 * n_features + levels,
    }
    return name, 1 + numbers.get(name, n_features), why


def _family_of_type(matrix: Matrix) -> str:
    """Return the family that "auto" would choose, as far as types tell.

    Small whole numbers may all be zeros and ones, which only the rows say; bytes are taken
    for such.
    """
    kinds = {column.kind for column in matrix.columns}
    if "category" in kinds:
        return "Product" if "number" in kinds else "Categorical"
    if matrix.dtype.kind == "b" or matrix.dtype.itemsize == 1:
        return "Bernoulli"
    if matrix.dtype.kind in "iu":
        return "Multinomial" if matrix.is_sparse and matrix.shape[1] >= 50 else "Poisson"
    return "Gaussian" if matrix.shape[1] <= 32 else "DiagonalGaussian"


def plan_label(n_rows: int, n_features: int, n_components: int, n_workers: int) -> Plan:
    """Estimate labels of a store by a model whose filters have so many components."""
    cost = LargeCost(
        n_rows, n_features, n_workers, n_components=n_components, sample_size=0, check_size=0
    )
    a_row = cost.rates.row + n_features * (2 * cost.rates.value + n_components * 2e-9)
    return Plan(
        what="predict, labels of a store",
        n_rows=n_rows,
        n_features=n_features,
        passes=2,  # facts about the columns, then the labels
        memory_bytes=cost.memory_bytes + FLOAT * LABEL_CHUNK,
        disk_bytes=float(n_rows),
        seconds=1.0 + n_rows * a_row / max(1, n_workers),
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

    names = {each.name for each in fields(SourceOptions)}
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
