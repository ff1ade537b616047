"""What there is to tell about Bayesian Sets: an index, a ranking and its reasons."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from distclust.retrieval.results import Explanation, Feature, Ranking

if TYPE_CHECKING:
    from distclust.report.plan import Plan
    from distclust.retrieval.index import StoredIndex
    from distclust.store.matrix_store import MatrixStore

_REASONS = 5  # features listed for an item
_ONE_BYTES = 2  # of a one in an index
_BUILD_RATE = 5e6  # ones a second of one core
_SCAN_RATE = 2e8
_PROCESS_BYTES = 2e8  # of an idle process with its libraries
_SHARD_BYTES = 6e7  # of a shard in work, its rows included
_START_SECONDS = 1.0


# ---- an index ------------------------------------------------------------------------------------


def describe_index(index: StoredIndex, *, is_new: bool) -> dict[str, Any]:
    """Return what there is to tell about an index, as JSON values.

    Of one that was there before, nothing was made, taken over or resumed just now.
    """
    version = index.version
    metrics = version.metrics
    n_ones, n_shards = int(metrics["n_ones"]), int(metrics["n_shards"])
    n_taken, n_resumed = int(metrics["n_taken_over"]), int(metrics["n_resumed"])
    n_made = n_shards - n_taken - n_resumed
    return {
        "index": index.url,
        "version": version.id,
        "n_rows": int(metrics["n_rows"]),
        "n_features": index.n_features,
        "n_ones": n_ones,
        "n_shards": n_shards,
        "n_made": n_made if is_new else 0,
        "n_taken_over": n_taken if is_new else 0,
        "n_resumed": n_resumed if is_new else 0,
        "size_bytes": version.size,
        "bytes_a_one": version.size / n_ones if n_ones else None,
        "fingerprint": index.fingerprint,
    }


def print_index(store: str, facts: Mapping[str, Any]) -> None:
    """Print what was built, or that nothing was to be done."""
    from distclust.report.terminal import count, size

    each = "" if facts["bytes_a_one"] is None else f", {facts['bytes_a_one']:.2f} bytes a one"
    if not facts["is_new"]:
        print(f"{facts['index']} is up to date: nothing to do.")
    else:
        origins = {"made": "n_made", "taken over": "n_taken_over", "resumed": "n_resumed"}
        shards = ", ".join(f"{facts[key]:,} {name}" for name, key in origins.items() if facts[key])
        told = (
            f"{count(facts['n_shards'], 'shard')} ({shards or 'none'}) in {facts['seconds']:.1f} s"
        )
        print(f"{facts['index']}: {told}")
    print(
        f"{count(facts['n_rows'], 'row')} x {count(facts['n_features'], 'feature')}, "
        f"{count(facts['n_ones'], 'one')}, {size(facts['size_bytes'])}{each}"
    )
    if facts["is_new"]:
        print(f"Ask with: distclust sets query {store} ITEM ...")


# ---- what was found ------------------------------------------------------------------------------


def print_found(found: Ranking | Explanation) -> None:
    """Print a ranking, or one with its reasons: tables on a terminal, else plain lines."""
    if sys.stdout.isatty():
        from rich.console import Console

        Console().print(found)
        return
    print("\n".join(plain_lines(found)))


def plain_lines(found: Ranking | Explanation) -> Iterator[str]:
    """Yield what there is to tell without colours or frames, every item on a line."""
    ranking = found.ranking if isinstance(found, Explanation) else found
    because = _because(found) if isinstance(found, Explanation) else [""] * len(ranking)
    yield f"Like {', '.join(ranking.query)}"
    names = [str(name) for name in ranking.ids.tolist()]
    yield from _aligned(
        ("", "item", "log score", "because of" if any(because) else ""),
        [
            (str(i + 1), name, f"{score:.3f}", reason)
            for i, (name, score, reason) in enumerate(
                zip(names, ranking.log_scores.tolist(), because, strict=True)
            )
        ],
    )
    if isinstance(found, Explanation):
        yield from _feature_lines("Features of the query", found.features)
        yield from _feature_lines("Features of all ranked items", found.group_features)
    yield ranking.footnote


def _because(found: Explanation) -> list[str]:
    return [
        ", ".join(f"{name} {weight:+.2f}" for name, weight in result.features[:_REASONS])
        for result in found.results
    ]


def _feature_lines(title: str, features: Sequence[Feature]) -> Iterator[str]:
    yield title
    yield from _aligned(
        ("", "feature", "weight", "here", "corpus"),
        [
            ("", one.name, f"{one.weight:.3f}", f"{one.in_query:.3g}", f"{one.in_corpus:.3g}")
            for one in features
        ],
    )


def _aligned(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield rows in columns; the first and all numbers end at the same place."""
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    is_text = [head in ("item", "feature", "because of") for head in heads]
    for row in (heads, *rows):
        cells = [
            cell.ljust(width) if text else cell.rjust(width)
            for cell, width, text in zip(row, widths, is_text, strict=True)
        ]
        yield ("  " + "  ".join(cells)).rstrip()


# ---- plans ---------------------------------------------------------------------------------------


def plan_build(store: MatrixStore) -> Plan:
    """Estimate building the index of a store from what its table says."""
    from distclust.engine import local_threads

    threads = local_threads()
    n_ones = _count_values(store)
    memory = _PROCESS_BYTES + threads * _SHARD_BYTES
    seconds = _START_SECONDS + n_ones / (_BUILD_RATE * threads)
    return _plan("sets build", store, memory, _ONE_BYTES * float(n_ones), seconds)


def plan_query(store: MatrixStore) -> Plan:
    """Estimate a query that reads all rows; with an index it takes less."""
    seconds = _START_SECONDS + _count_values(store) / _SCAN_RATE
    return _plan("sets query", store, _PROCESS_BYTES + _SHARD_BYTES, 0.0, seconds)


def _plan(what: str, store: MatrixStore, memory: float, disk: float, seconds: float) -> Plan:
    from distclust.report.plan import Plan

    return Plan(what, *store.shape, 1, memory, disk, seconds)


def _count_values(store: MatrixStore) -> int:
    """Return how many values are not zero, deleted rows included; no row is read."""
    return int(store.profile(with_deleted=True).n_nonzero.sum())
