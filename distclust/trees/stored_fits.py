"""Fits of stores: run beside a results store, resumed, published as a version.

A version of such a fit holds the model, the labels of all rows as a Zarr array, and
``levels.json``, a summary of every level of the tree with the telling features of its nodes.
"""

from __future__ import annotations

import json
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from distclust.engine import labels_array, shares_disk
from distclust.errors import InputError, OtherRowsError
from distclust.store import Matrix
from distclust.store.results import ResultsStore
from distclust.store.row_labels import (
    LabelsSpec,
    StoredLabels,
    adopt_labels,
    write_values_chunk,
)
from distclust.store.versions import Version
from distclust.trees.fits import Method, fit_beside, write_labels
from distclust.trees.levels import describe_levels
from distclust.trees.persistence import (
    MODEL_FILE,
    identity_of,
    metrics_of,
    read_model,
    to_archive,
)

if TYPE_CHECKING:
    from distclust.store.drafts import Draft
    from distclust.trees.large import LargeTreeEstimator

LEVELS_FILE = "levels.json"


def fit_store(
    model: LargeTreeEstimator,
    method: Method[Any],
    matrix: Matrix,
    results: str | Path | None,
    *,
    fresh: bool,
    where: str,
) -> None:
    """Fit `model` to the rows of a store, and publish it in a results store."""
    store = ResultsStore(_temporary(model, where) if results is None else results)
    fingerprint = str(matrix.fingerprint)  # type: ignore[attr-defined]
    identity = identity_of(model, fingerprint)
    run = _unfinished(store, identity, fresh=fresh, where=where)
    with store.begin(**identity, run=run) as draft:
        version = draft.publish() if draft.is_sealed else _fit(model, method, matrix, draft)
    if not hasattr(model, "tree_"):
        model.__dict__.update(read_model(store, version.id).__dict__)
    attach(model, store, version)


def _fit(model: LargeTreeEstimator, method: Method[Any], matrix: Matrix, draft: Draft) -> Version:
    found = fit_beside(method, matrix, draft)
    model._keep(found, matrix, None, ids_of(matrix, found.first_rows))
    write_labels(matrix, found, model._label_of_leaf, model.n_clusters_, draft)
    write_model(model, draft)
    return draft.publish(metrics_of(model, matrix.shape[0]))


def publish_in_memory(
    model: LargeTreeEstimator, labels: npt.NDArray[np.int64], results: str | Path, fingerprint: str
) -> Version:
    """Publish a model that was fitted to rows in memory, with their labels."""
    store = ResultsStore(results)
    spec = LabelsSpec(len(labels), model.n_clusters_)
    with store.begin(**identity_of(model, fingerprint)) as draft:
        place = draft.place()
        chunks = (labels[slice(*spec.chunk_bounds(i))] for i in range(spec.n_chunks))
        entries = [write_values_chunk(i, place, spec, part) for i, part in enumerate(chunks)]
        adopt_labels(draft, spec, entries)
        write_model(model, draft)
        return draft.publish(metrics_of(model, len(labels)))


def write_model(model: LargeTreeEstimator, draft: Draft) -> None:
    """Write the model and its summaries into a draft."""
    levels = json.dumps(describe_levels(model.tree_), indent=1)
    draft.write(LEVELS_FILE, levels.encode())
    draft.write_archive(MODEL_FILE, *to_archive(model))


def attach(model: LargeTreeEstimator, store: ResultsStore, version: Version) -> None:
    """Give a model the labels of its version, as a lazy array."""
    model.results_, model.version_ = store.url, version.id
    model.labels_ = labels_array(StoredLabels(store.objects, version.id))


def ids_of(matrix: Matrix, rows: npt.NDArray[np.int64]) -> npt.NDArray[Any]:
    """Return the ids of some rows, reading the blocks they are in."""
    starts = np.array([matrix.block_bounds(i)[0] for i in range(matrix.n_blocks)])
    blocks = np.searchsorted(starts, rows, side="right") - 1
    found: list[Any] = [None] * len(rows)
    for block in np.unique(blocks).tolist():
        ids = matrix.block_ids(block)
        for i in np.flatnonzero(blocks == block).tolist():
            found[i] = ids[rows[i] - starts[block]]
    ids_found = np.array(found)
    return ids_found if ids_found.dtype.kind in "iu" else np.array([str(i) for i in found])


def _unfinished(
    store: ResultsStore, identity: dict[str, Any], *, fresh: bool, where: str
) -> str | None:
    """Return the run to go on with; refuse to leave one behind whose input changed."""
    run = store.find_run(**identity)
    if fresh:
        while run is not None:
            with store.begin(**identity, run=run) as draft:
                draft.abandon()
            run = store.find_run(**identity)
    elif run is None:
        ours = {name: identity[name] for name in ("kind", "parameters", "seed")}
        for name, other in store.unfinished().items():
            if {key: other.get(key) for key in ours} == ours:
                raise OtherRowsError(
                    f"{where}: run {name} in {store.url}",
                    "the store with which this unfinished fit began",
                    "a store that has changed since",
                    "Fit with fresh=True (--fresh) to start over.",
                )
    return run


def _temporary(model: LargeTreeEstimator, where: str) -> str:
    """Return a folder for results that lasts as long as the model."""
    if not shares_disk():
        raise InputError(
            f"{where}: results",
            "a path or URL that all workers see",
            "none",
            "Pass results=..., where labels and state are written.",
        )
    folder = tempfile.TemporaryDirectory(prefix="distclust-results-")
    weakref.finalize(model, folder.cleanup)
    return folder.name
