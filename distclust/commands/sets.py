"""The verbs of Bayesian Sets: build, query."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from distclust.commands.common import (
    Common,
    connected,
    followed,
    print_json,
    say_plan,
)
from distclust.commands.large import open_results
from distclust.errors import InputError

if TYPE_CHECKING:
    from distclust.retrieval import BayesianSets
    from distclust.retrieval.index import StoredIndex
    from distclust.retrieval.sets import Engine
    from distclust.store.matrix_store import MatrixStore
    from distclust.store.stored_matrix import StoredMatrix

RESUMES = "Interrupted; finished parts are kept. Run the same command again: it resumes."
BINARISE = "Binarise them on the way in: `distclust ingest SOURCE STORE --binarise 0.5`."
STDIN = "-"
PATIENCE = 2.0  # seconds that a query takes before it shows how far it has come


@dataclass(frozen=True)
class Asking:
    """A query but for its items."""

    k: int = 10
    explain: bool = False
    exclude_query: bool = False
    engine: Engine = "auto"
    kappa: float = 2.0
    smoothing: float = 0.0
    family: str = "bernoulli"
    index: str | None = None


# ---- build ---------------------------------------------------------------------------------------


def build(
    store: str, index: str | None, scheduler: str | None, common: Common, *, fresh: bool
) -> None:
    """Build the index of a store, or bring it up to date, and say what was done."""
    from distclust.retrieval.index import place_of_index
    from distclust.store.matrix_store import open_store

    opened = open_store(store)
    if common.plan:
        from distclust.report.sets import plan_build

        say_plan(plan_build(opened), common)
        return
    matrix = _own_matrix(opened)
    place = index or place_of_index(matrix.url)
    open_results(place, "--index")  # refuses a file, and a folder of other things
    with _resumable(), followed(common), connected(scheduler):
        start = time.monotonic()
        made, is_new = _bring_up_to_date(matrix, place, store, fresh=fresh)
        seconds = time.monotonic() - start
    _say_build(store, made, is_new, seconds, common)


def _own_matrix(opened: MatrixStore) -> StoredMatrix:
    """Return the rows of a store of ours; others have no fingerprint to tie an index to."""
    from distclust.store.stored_matrix import StoredMatrix

    matrix = opened.matrix()
    if not isinstance(matrix, StoredMatrix):
        hint = "Ingest it first (`distclust ingest`), or query it without an index."
        raise InputError(opened.url, "a store of distclust", "one of another program", hint)
    return matrix


def _bring_up_to_date(
    matrix: StoredMatrix, place: str, store: str, *, fresh: bool
) -> tuple[StoredIndex, bool]:
    """Return the index that fits the store, and whether it was made just now."""
    from distclust.retrieval.index import build_index, open_index
    from distclust.retrieval.sets import count_ones

    found = None if fresh else open_index(place)
    if found is not None and found.fingerprint == matrix.fingerprint:
        return found, False
    try:
        count_ones(matrix, store)
    except InputError as error:
        raise InputError(error.where, error.expected, error.got, BINARISE) from error
    return build_index(matrix, place, fresh=fresh), True


@contextmanager
def _resumable() -> Iterator[None]:
    """Say of an interrupt that nothing is lost by it."""
    try:
        yield
    except KeyboardInterrupt as error:
        raise KeyboardInterrupt(RESUMES) from error


def _say_build(
    store: str, index: StoredIndex, is_new: bool, seconds: float, common: Common
) -> None:
    from distclust.report.sets import describe_index, print_index

    facts = {**describe_index(index, is_new=is_new), "is_new": is_new, "seconds": seconds}
    if common.as_json:
        print_json({"command": "sets build", "store": store, **facts})
    elif not common.quiet:
        print_index(store, facts)


# ---- query ---------------------------------------------------------------------------------------


def query(
    store: str, items: Sequence[str], asking: Asking, scheduler: str | None, common: Common
) -> None:
    """Rank what completes a set, and say why if that is asked for."""
    if common.plan:
        from distclust.report.sets import plan_query
        from distclust.store.matrix_store import open_store

        say_plan(plan_query(open_store(store)), common)
        return
    names = list(_named(items))
    with followed(common, PATIENCE), connected(scheduler):
        sets = _fitted(store, asking)
        if not common.quiet:
            _say_stale(sets, store)
        if asking.explain:
            found: Any = sets.explain(names, asking.k, asking.exclude_query, engine=asking.engine)
        else:
            found = sets.query(names, asking.k, asking.exclude_query, asking.engine)
    if common.as_json:
        print_json({"command": "sets query", "store": store, **found.to_dict()})
    else:
        from distclust.report.sets import print_found

        print_found(found)


def _named(items: Sequence[str]) -> Iterator[str]:
    """Yield the items of a query; ``-`` stands for the lines of standard input."""
    for item in items:
        if item == STDIN:
            yield from (line for line in sys.stdin.read().splitlines() if line.strip())
        else:
            yield item


def _fitted(store: str, asking: Asking) -> BayesianSets:
    from distclust.retrieval import BayesianSets
    from distclust.store.matrix_store import open_store

    family = asking.family.replace("-", "_")
    sets = BayesianSets(asking.kappa, asking.smoothing, family)
    return sets.fit(open_store(store), index=asking.index)


def _say_stale(sets: BayesianSets, store: str) -> None:
    """Tell that there is an index that rows were added to or deleted from since."""
    from distclust.retrieval.index import open_index

    place = sets.index_place
    if sets.index_ is not None or sets.family_ is not None or place is None:
        return
    if open_index(place) is not None:
        told = f"the index is older than the rows, which are read instead; run `sets build {store}`"
        print(f"distclust: {told}", file=sys.stderr)
