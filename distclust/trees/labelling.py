"""Labels of the rows of a store by a fitted model, written where the rows are.

One task a chunk of labels: it reads the blocks that hold its rows, places the rows, and
writes the chunk into a version of kind ``labels``. Nobody holds all labels. Chunks are
recorded as they come, so a run that was killed goes on with those that are missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.engine import map_ordered
from distclust.errors import InputError, StoreError
from distclust.store import Matrix
from distclust.store.drafts import Draft, DraftPlace
from distclust.store.objects import checksum
from distclust.store.results import ResultsStore
from distclust.store.row_labels import (
    KeptLabels,
    LabelsSpec,
    adopt_labels,
    take_up_chunks,
    write_values_chunk,
)
from distclust.store.versions import FileEntry, Version
from distclust.trees import prediction
from distclust.trees.base import TreeEstimator
from distclust.trees.large import LargeTreeEstimator, place_rows
from distclust.trees.persistence import to_archive

Indices = npt.NDArray[np.int64]

KIND = "labels"  # of a version that holds nothing else


@dataclass(frozen=True, eq=False)
class Placing:
    """How a block of rows gets its labels, apart from the model; travels to workers.

    Attributes
    ----------
    function
        Module-level function of a block, the number of its first row and `arguments`.
    arguments
        What it knows of the model.
    """

    function: Callable[..., Indices]
    arguments: tuple[Any, ...]

    @classmethod
    def of(cls, model: TreeEstimator) -> Placing:
        """Return how `model.predict` labels rows."""
        if isinstance(model, LargeTreeEstimator):
            return cls(place_rows, (model._router, model._label_of_end))
        tree, nodes = model.tree_, model._nodes
        assert tree.statistics is not None, "a fitted tree keeps its statistics"
        sizes = np.log(tree.n_rows[nodes])
        return cls(likeliest, (model.family_, tree.statistics[nodes], sizes))

    def labels(self, block: Any, start: int) -> Indices:
        """Return the label of every row of a block, shape (n,)."""
        return self.function(block, start, *self.arguments)


def likeliest(block: Any, start: int, *arguments: Any) -> Indices:
    """Return the most probable cluster of each row; see `prediction.cluster_log_proba`."""
    labels: Indices = np.argmax(prediction.cluster_log_proba(block, start, *arguments), axis=1)
    return labels


@dataclass(frozen=True, eq=False)
class Written:
    """A chunk of labels that lies in its place.

    Attributes
    ----------
    index, entry
        Which chunk, and what its file must be.
    counts
        Rows of every label in it, shape (n_labels,).
    """

    index: int
    entry: FileEntry
    counts: Indices


def label_store(
    model: TreeEstimator,
    matrix: Matrix,
    results: ResultsStore | str | Path,
    *,
    fresh: bool = False,
    placing: Placing | None = None,
    archive: tuple[str, Any, Any] | None = None,
) -> Version:
    """Write `model.predict` of all rows into a results store, as a version of kind "labels".

    Parameters
    ----------
    model
        Any fitted tree estimator, or another model of clusters, see `placing`.
    matrix
        The rows of a store, see `MatrixStore.matrix`.
    results
        Where the version goes; a store that holds models is refused, as its current
        version is what people load.
    fresh
        Discard an unfinished run of the same work instead of going on with it.
    placing, archive
        For models other than trees: how they label a block, and what they are to the byte.

    Returns
    -------
    The version, with ``n_rows``, ``n_clusters`` and ``counts`` (rows of every label) as
    metrics.
    """
    if not matrix.travels_by_name:
        got, hint = "rows in memory", "Use model.predict, or ingest them."
        raise InputError("label_store", "the matrix of a store", got, hint)
    store = results if isinstance(results, ResultsStore) else ResultsStore(results)
    _check_holds_labels(store)
    identity = _identity(model, matrix, archive or to_archive(model))
    with matrix.held():
        rows = model._new_rows(matrix, "predict")  # refuses what does not fit the family
        how = Placing.of(model) if placing is None else placing
        with store.begin(**identity, run=_run(store, identity, fresh)) as draft:
            return publish_labels(draft, how, model.n_clusters_, rows)


def publish_labels(
    draft: Draft,
    placing: Placing,
    n_clusters: int,
    matrix: Matrix,
    kept: KeptLabels | None = None,
) -> Version:
    """Write the labels of all rows into a draft and publish it; only new rows are placed."""
    if draft.is_sealed:
        return draft.publish()
    counts = _write_all(placing, n_clusters, matrix, draft, kept)
    return draft.publish(
        {"n_rows": matrix.shape[0], "n_clusters": len(counts), "counts": counts.tolist()}
    )


def _check_holds_labels(store: ResultsStore) -> None:
    current = store.current()
    if current is not None and current.kind != KIND:
        got, hint = f"versions of {current.kind}", "Choose another place for labels."
        raise InputError(store.url, "a results store of labels, or nothing", got, hint)


def _identity(
    model: TreeEstimator, matrix: Matrix, archive: tuple[str, Any, Any]
) -> dict[str, Any]:
    """Return what the labels follow from: the model, to the byte, and the rows."""
    return {
        "kind": KIND,
        "parameters": {"model": type(model).__name__, "model_digest": _digest(archive)},
        "seed": None,
        "input_fingerprint": str(matrix.fingerprint),  # type: ignore[attr-defined]
    }


def _digest(archive: tuple[str, Any, Any]) -> str:
    """Tell one model from another; when it was saved does not count."""
    kind, facts, arrays = archive
    parts = [json.dumps([kind, facts], sort_keys=True).encode()]
    for name, array in sorted(arrays.items()):
        parts.append(f"{name} {array.dtype} {array.shape}".encode())
        parts.append(np.ascontiguousarray(array).tobytes())
    return checksum(*parts).hex()


def _run(store: ResultsStore, identity: dict[str, Any], fresh: bool) -> str | None:
    """Return the run to go on with; if afresh, after those that were begun are done with."""
    run = store.find_run(**identity)
    while fresh and run is not None:
        with store.begin(**identity, run=run) as draft:
            if draft.is_sealed:  # complete, and somebody may be about to publish it
                draft.publish()
            else:
                draft.abandon()
        run = store.find_run(**identity)
    return run


def _write_all(
    placing: Placing, n_clusters: int, matrix: Matrix, draft: Draft, kept: KeptLabels | None
) -> Indices:
    """Write the chunks that are missing and describe the array; return counts a label."""
    spec = LabelsSpec(matrix.shape[0], n_clusters)
    if kept is not None:
        kept.take_over(draft, spec)
    missing = set(take_up_chunks(draft, spec))
    found: dict[int, Written] = {}
    for index in range(spec.n_chunks):
        written = None if index in missing else _read_back(draft, spec, index)
        if written is not None:
            found[index] = written
    items = [(i, _blocks_of(matrix, *spec.chunk_bounds(i))) for i in range(spec.n_chunks)]
    todo = [item for item in items if item[0] not in found]
    shared = matrix, placing, draft.place(), spec, kept
    parts = map_ordered(_write_chunk, todo, *shared, stage="labelling rows")
    adopt_labels(draft, spec, _noted(parts, found))
    counts = np.zeros(spec.n_labels, np.int64)
    for written in found.values():
        counts += written.counts
    return counts


def _noted(parts: Iterator[Written], found: dict[int, Written]) -> Iterator[tuple[int, FileEntry]]:
    for part in parts:
        found[part.index] = part
        yield part.index, part.entry


def _blocks_of(matrix: Matrix, start: int, stop: int) -> list[int]:
    """Return the numbers of the blocks that hold rows of ``[start, stop)``."""
    low = _block_with(matrix, start)
    high = _block_with(matrix, stop - 1)
    return list(range(low, high + 1))


def _block_with(matrix: Matrix, row: int) -> int:
    """Return the block that holds a row, by halving: deleted rows make blocks uneven."""
    low, high = 0, matrix.n_blocks - 1
    while low < high:
        middle = (low + high) // 2
        if matrix.block_bounds(middle)[1] > row:
            high = middle
        else:
            low = middle + 1
    return low


def _write_chunk(
    item: tuple[int, list[int]],
    matrix: Matrix,
    placing: Placing,
    place: DraftPlace,
    spec: LabelsSpec,
    kept: KeptLabels | None,
) -> Written:
    """Label the rows of a chunk, block by block, and write it; runs where the rows are."""
    index, blocks = item
    start, stop = spec.chunk_bounds(index)
    labels = np.empty(stop - start, np.int64)
    known = np.empty(0, np.int64) if kept is None else kept.read(start, stop)
    labels[: len(known)] = known
    for i in blocks:
        first, last = matrix.block_bounds(i)
        begin, end = max(first, start + len(known)), min(last, stop)
        if begin >= end:
            continue
        rows = matrix.block(i)[begin - first : end - first]
        labels[begin - start : end - start] = placing.labels(rows, begin)
    entry = write_values_chunk(index, place, spec, labels)
    return Written(index, entry, np.bincount(labels, minlength=spec.n_labels))


def _read_back(draft: Draft, spec: LabelsSpec, index: int) -> Written | None:
    """Return a chunk that an earlier process wrote; None if it is to be made anew."""
    try:
        content = draft.read(spec.chunk_name(index))
    except StoreError:  # not what was recorded
        return None
    array = spec.array
    values = array.chain.decode(
        np.frombuffer(content, np.uint8), array.chunks, array.dtype, True, array.extent(index)
    )
    start, stop = spec.chunk_bounds(index)
    counts = np.bincount(values[: stop - start], minlength=spec.n_labels)
    return Written(index, FileEntry.of(content), counts)
