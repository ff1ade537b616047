"""Fits of stores: run beside a results store, resumed, published as a version.

A version of such a fit holds the model, the labels of all rows as a Zarr array, and
``levels.json``, a summary of every level of the tree with the telling features of its nodes.
"""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from distclust.engine import keeping_notes, labels_array, temporary_results
from distclust.errors import ConflictError, InputError
from distclust.store import Matrix
from distclust.store.results import ResultsStore
from distclust.store.row_labels import (
    LabelsSpec,
    StoredLabels,
    adopt_labels,
    write_values_chunk,
)
from distclust.store.unfinished import begin_or_resume
from distclust.store.versions import Version
from distclust.trees.drift import Baseline, LeafOfRow, measure
from distclust.trees.fits import Finished, Method, fit_beside, write_labels
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
    from distclust.trees.base import TreeEstimator
    from distclust.trees.large import LargeTreeEstimator

LEVELS_FILE = "levels.json"
LEAVES = "leaves"  # array of the leaf of every row
FIRST_ROWS = "first_rows"  # of leaves, beside the baseline
BASELINE_FILE = "baseline.distclust"


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
    if results is not None:
        fit_and_publish(model, method, matrix, ResultsStore(results), fresh=fresh, where=where)
        return
    folder = temporary_results(where)
    try:
        store = ResultsStore(folder.name)
        labels = fit_and_publish(model, method, matrix, store, fresh=fresh, where=where)
    except BaseException:
        folder.cleanup()
        raise
    # As long as the model, or an array made of its labels: `fit_predict` leaves no more.
    weakref.finalize(labels, folder.cleanup)


def fit_and_publish(
    model: LargeTreeEstimator,
    method: Method[Any],
    matrix: Matrix,
    store: ResultsStore,
    *,
    fresh: bool,
    where: str,
    updatable: bool = False,
) -> StoredLabels:
    """Fit `model`, saving its state beside its version, and publish it.

    An `updatable` version also holds the leaf of every row, and how well rows fit theirs; see
    `distclust.trees.updating`. As nobody watches such fits, also their passes can be taken up.
    """
    fingerprint = str(matrix.fingerprint)  # type: ignore[attr-defined]
    identity = identity_of(model, fingerprint)
    if updatable:
        identity["parameters"]["updatable"] = True
    with begin_or_resume(store, identity, fresh=fresh, where=where) as draft:
        if draft.is_sealed:
            version = draft.publish()
            _take_over(model, read_model(store, version.id))
        else:
            found = fit_rows(method, matrix, draft, keeps_notes=updatable)
            settle(model, found, matrix)
            write_model(model, found, matrix, draft)
            if updatable and len(found.row_leaves[0]) == 0:
                with keeping_notes(draft.notebook("baseline")):
                    baseline = measure_leaves(model, found, matrix)
                write_for_updates(found, baseline, matrix, draft)
            version = draft.publish(metrics_of(model, matrix.shape[0]))
    return attach(model, store, version)


def fit_rows(method: Method[Any], matrix: Matrix, draft: Draft, *, keeps_notes: bool) -> Finished:
    """Fit rows beside a draft; one that has nothing to go on from is not left behind."""
    try:
        return fit_beside(method, matrix, draft, keeps_notes=keeps_notes)
    except ConflictError:
        raise  # the run is another's
    except Exception as error:
        # Refused, or lost before there was anything to go on from.
        is_refused = isinstance(error, InputError)
        if draft.checkpoints().latest() is None and (is_refused or not draft.has_notes()):
            draft.abandon()
        raise


def settle(model: LargeTreeEstimator, found: Finished, matrix: Matrix) -> None:
    """Make `model` what a fit found."""
    model._keep(found, matrix, None, matrix.ids_at(found.first_rows))


def write_model(model: LargeTreeEstimator, found: Finished, matrix: Matrix, draft: Draft) -> None:
    """Write a model and its labels into the draft."""
    write_labels(matrix, found, model._label_of_leaf, model.n_clusters_, draft)
    write_levels(model, draft)
    draft.write_archive(MODEL_FILE, *to_archive(model))


def measure_leaves(
    model: LargeTreeEstimator,
    found: Finished,
    matrix: Matrix,
    is_wanted: npt.NDArray[np.bool_] | None = None,
) -> Baseline:
    """Return how well rows fit their leaves; of some leaves, or of all."""
    n_leaves = found.structure.n_leaves
    return measure(
        matrix,
        LeafOfRow(found.codes, found.leaf_of_code),
        found.family,
        found.stats[:n_leaves],
        np.ones(n_leaves, np.bool_) if is_wanted is None else is_wanted,
        model._router.seed,
    )


def write_for_updates(found: Finished, baseline: Baseline, matrix: Matrix, draft: Draft) -> None:
    """Write what a later update starts from: the leaf of every row, and facts by leaf."""
    n_leaves = found.structure.n_leaves
    write_labels(matrix, found, np.arange(n_leaves), n_leaves, draft, LEAVES)
    arrays = {**baseline.to_arrays(), FIRST_ROWS: found.first_rows}
    draft.write_archive(BASELINE_FILE, "Baseline", {}, arrays)


def write_held_labels(model: LargeTreeEstimator, draft: Draft) -> None:
    """Write the labels of rows that were fitted in memory into a draft."""
    labels = model.labels_
    spec = LabelsSpec(len(labels), model.n_clusters_)
    place = draft.place()
    chunks = (labels[slice(*spec.chunk_bounds(i))] for i in range(spec.n_chunks))
    entries = (write_values_chunk(i, place, spec, part) for i, part in enumerate(chunks))
    adopt_labels(draft, spec, enumerate(entries))


def write_levels(model: LargeTreeEstimator, draft: Draft) -> None:
    """Write the summary of the tree's levels into a draft."""
    levels = json.dumps(describe_levels(model.tree_), allow_nan=False)
    draft.write(LEVELS_FILE, levels.encode())


def attach(model: LargeTreeEstimator, store: ResultsStore, version: Version) -> StoredLabels:
    """Give a model the labels of its version, as a lazy array; return what the array reads."""
    labels = StoredLabels(store.objects, version.id)
    model.results_, model.version_ = store.url, version.id
    model.labels_ = labels_array(labels)
    return labels


def _take_over(model: LargeTreeEstimator, fitted: TreeEstimator) -> None:
    """Make a model what another one was fitted to be; its parameters stay the user's."""
    own = model.get_params(deep=False)
    model.__dict__.update({k: v for k, v in fitted.__dict__.items() if k not in own})
