"""Models that are not brought up to date: exact trees, mixtures and ensembles.

Their rows get labels by `predict`, in a results store beside that of the model, and rows that
were labelled before keep theirs. Where new rows fit their clusters worse than rows of the fit
do, by the test that large trees use (`distclust.trees.drift`), the model is fitted again.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.engine import keeping_notes, map_ordered, reduce_blocks
from distclust.errors import InputError
from distclust.jobs.kinds.base import (
    FIRST,
    NOTHING_NEW,
    Before,
    Kind,
    Made,
    Request,
    count,
    figures,
)
from distclust.jobs.kinds.scores import Scores
from distclust.store.changes import Changes, changes_between
from distclust.store.drafts import Draft
from distclust.store.results import ResultsStore
from distclust.store.row_labels import KeptLabels, StoredLabels
from distclust.store.stored_matrix import StoredMatrix
from distclust.store.versions import Version
from distclust.trees.drift import Baseline, DriftRules, Moments, describe, find_drift
from distclust.trees.labelling import KIND, Placing, publish_labels
from distclust.trees.structure import Structure

Labels = npt.NDArray[np.int64]

BASELINE_FILE = "baseline.distclust"


@dataclass(frozen=True, eq=False)
class Clusters:
    """What is needed of a fitted model to place rows and to tell how well they fit.

    Attributes
    ----------
    n_clusters
        How many there are.
    labels
        Cluster of every row of the fit; -1 for none.
    scores
        How rows are placed and scored.
    """

    n_clusters: int
    labels: Labels
    scores: Scores


class Labelled(Kind):
    """What these kinds have in common; not to be used by itself."""

    @abstractmethod
    def fit(self, request: Request, store: ResultsStore) -> Version:
        """Fit the model in full, or find the fit that was made."""

    @abstractmethod
    def clusters(self, store: ResultsStore, version_id: str, where: str) -> Clusters:
        """Read a fitted model."""

    def make(self, request: Request) -> Made:
        """Fit the model, give rows their labels, or keep both."""
        store, before = ResultsStore(request.place), request.before
        where = f"[models.{request.name}]"
        reason, drift = request.refit_reason or FIRST, None
        if before is not None and request.refit_reason is None:
            if not request.has_news:
                return _kept(request, before, store)
            found = self._compare(request, before, store, where)
            if isinstance(found, Made):
                return found
            reason, drift = found
        version = self.fit(request, store)
        with request.matrix.held():
            clusters = self.clusters(store, version.id, where)
            labels = _label_all(request, version, clusters)
        if drift is not None:
            _forget_comparison(request, store)
        metrics = _metrics(version, labels)
        return Made(version.id, labels.id, "fitted", reason, metrics, version.created, drift)

    def plan_update(self, parameters: Mapping[str, Any], drift: DriftRules) -> str:
        """Return in words what `make` does about new rows."""
        return (
            "label: New rows get labels; the model is fitted in full if they fit worse than old "
            f"ones by more than {drift.threshold:g} standard errors."
        )

    def _compare(
        self, request: Request, before: Before, store: ResultsStore, where: str
    ) -> Made | tuple[str, dict[str, Any] | None]:
        """Return the answer with new labels; or why to fit again, and what drifted."""
        changes = changes_between(before.matrix, request.matrix)
        if changes is None:
            return _REWRITTEN, None
        if before.matrix.columns != request.matrix.columns:
            return "The features of the store changed.", None
        assert before.labels_version is not None, "these models have labels of their own"
        labels_store = _labels_store(request)
        with labels_store.open_version(before.labels_version) as reader:
            archive = reader.read_archive(BASELINE_FILE)
        baseline = Baseline.from_arrays(archive.arrays)
        clusters = self.clusters(store, before.version, where)
        scores = clusters.scores.restored(archive.meta, archive.arrays)
        clusters = replace(clusters, scores=scores)
        version = store.get(before.version)
        with request.matrix.held(), _draft(request, version, before.labels_version) as draft:
            try:
                with keeping_notes(None if draft.is_sealed else draft.notebook("added")):
                    latest = _score_added(request.matrix, changes, clusters)
            except InputError as error:
                if not error.where.startswith(where):
                    raise
                draft.abandon()
                return f"New rows do not fit the model: {error}", None
            baseline = replace(baseline, since=baseline.since + latest)
            report, n_drifted = _report(request, changes, baseline, latest)
            if n_drifted:  # the draft is left as it is: asked again, it says the same at once
                told = f"New rows fit worse than old ones in {count(n_drifted, 'cluster')}"
                return f"{told}, by more than {request.drift.threshold:g} standard errors.", report
            kept = KeptLabels(StoredLabels(labels_store.objects, before.labels_version), changes)
            labels = _write_labels(draft, request.matrix, clusters, baseline, kept)
        reason = f"{count(len(changes.deleted), 'row')} went, none came."
        if changes.n_added:
            reason = f"{count(changes.n_added, 'new row')} labelled; they fit as well as old ones."
        metrics = _metrics(version, labels)
        return Made(version.id, labels.id, "updated", reason, metrics, before.refit_at, report)


_REWRITTEN = "The rows of the store were rewritten (compacted or rolled back)."


def _labels_store(request: Request) -> ResultsStore:
    return ResultsStore(f"{request.place}.labels")


def _kept(request: Request, before: Before, store: ResultsStore) -> Made:
    version = store.get(before.version)
    assert before.labels_version is not None, "these models have labels of their own"
    labels = _labels_store(request).get(before.labels_version)
    metrics = _metrics(version, labels)
    return Made(version.id, labels.id, "kept", NOTHING_NEW, metrics, before.refit_at)


def _metrics(version: Version, labels: Version) -> dict[str, Any]:
    """Return the figures of model and labels; those of other rows than it was fitted to."""
    found = figures(version.metrics)
    if version.input_fingerprint != labels.input_fingerprint:
        found = {name: value for name, value in found.items() if not name.startswith("log_")}
    return found | figures(labels.metrics)


def _label_all(request: Request, version: Version, clusters: Clusters) -> Version:
    """Give every row its label, and measure how well rows of the fit fit."""
    with _draft(request, version, None) as draft:
        if draft.is_sealed:
            return draft.publish()
        with keeping_notes(draft.notebook("fit")):
            clusters, baseline = _measured(request.matrix, clusters)
        return _write_labels(draft, request.matrix, clusters, baseline, None)


def _measured(matrix: StoredMatrix, clusters: Clusters) -> tuple[Clusters, Baseline]:
    """Return clusters with scores that know the rows, and how well rows of the fit fit."""
    labels, n_clusters = clusters.labels, clusters.n_clusters
    scores = clusters.scores.learned(matrix, labels, n_clusters)
    shared = scores, labels, n_clusters
    stage = "measuring the fit"
    old = reduce_blocks(_score_fitted, matrix, *shared, stage=stage)
    sizes = np.bincount(labels[labels >= 0], minlength=n_clusters)
    baseline = Baseline(sizes[:, None].astype(np.float64), old, Moments.none(n_clusters))
    return replace(clusters, scores=scores), baseline


def _write_labels(
    draft: Draft,
    matrix: StoredMatrix,
    clusters: Clusters,
    baseline: Baseline,
    kept: KeptLabels | None,
) -> Version:
    if not draft.is_sealed:
        facts, arrays = clusters.scores.to_arrays()
        arrays = {**baseline.to_arrays(), **arrays}
        draft.write_archive(BASELINE_FILE, "Baseline", facts, arrays)
    placing = Placing(place_block, (clusters.scores,))
    return publish_labels(draft, placing, clusters.n_clusters, matrix, kept)


def _draft(request: Request, version: Version, before: str | None) -> Draft:
    """Begin the labels of a model, or go on with them; `before` are those they start from."""
    store = _labels_store(request)
    identity: dict[str, Any] = {
        "kind": KIND,
        "parameters": {"model": version.kind, "version": version.id, "update_of": before},
        "seed": None,
        "input_fingerprint": request.matrix.fingerprint,
    }
    return store.begin(**identity, run=store.find_run(**identity))


def _forget_comparison(request: Request, store: ResultsStore) -> None:
    """Remove what is left of the comparison that asked for the fit that is now made."""
    assert request.before is not None, "there was something to compare with"
    version = store.get(request.before.version)
    with _draft(request, version, request.before.labels_version) as draft:
        if not draft.is_sealed:
            draft.abandon()


def place_block(block: Any, start: int, scores: Scores) -> Labels:
    """Return the labels of a block."""
    return scores.labels(block, start)


def _score_fitted(
    block: Any, start: int, scores: Scores, labels: Labels, n_clusters: int
) -> Moments:
    """Return how well rows of the fit fit their clusters."""
    own = labels[start : start + block.shape[0]]
    rows = np.flatnonzero(own >= 0)
    return Moments.of(scores.old(block[rows], start, own[rows]), own[rows], n_clusters)


def _score_added(matrix: StoredMatrix, changes: Changes, clusters: Clusters) -> Moments:
    """Return how well added rows fit the clusters they are placed in."""
    found = Moments.none(clusters.n_clusters)
    items = [
        (i, max(changes.n_kept - start, 0))
        for i, (start, stop) in enumerate(map(matrix.block_bounds, range(matrix.n_blocks)))
        if stop > changes.n_kept
    ]
    shared = matrix, clusters.scores, clusters.n_clusters
    for part in map_ordered(_score_new, items, *shared, stage="scoring new rows", is_noted=True):
        found = found + part
    return found


def _score_new(
    item: tuple[int, int], matrix: StoredMatrix, scores: Scores, n_clusters: int
) -> Moments:
    index, first = item
    rows, start = matrix.block(index)[first:], matrix.block_bounds(index)[0] + first
    scores.check(rows, matrix.columns)
    labels = scores.labels(rows, start)
    return Moments.of(scores.new(rows, start, labels), labels, n_clusters)


def _report(
    request: Request, changes: Changes, baseline: Baseline, latest: Moments
) -> tuple[dict[str, Any], int]:
    """Return what was found as JSON values, and how many clusters drifted."""
    n_clusters = len(latest.n)
    everything = [range(n_clusters)] if n_clusters > 1 else []
    structure = Structure.from_children(n_clusters, everything)
    drift = find_drift(structure, baseline, latest, request.drift.threshold)
    sizes = structure.sum_up(baseline.reference[:, 0] + baseline.since.n)
    report = {
        "n_added": changes.n_added,
        "n_deleted": len(changes.deleted),
        "threshold": request.drift.threshold,
        **describe(structure, drift, baseline, latest, sizes),
    }
    return report, len(drift.reopened)


def settings_of(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return parameters as estimators take them: TOML has no None, so "none" stands for it."""
    found = dict(parameters)
    if found.get("stop") == "none":
        found["stop"] = None
    return found
