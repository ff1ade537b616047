"""A fitted tree brought up to date with later rows of its store.

Added rows go down the tree by its filters, deleted ones leave, and sizes, statistics, odds and
evidence of all nodes follow; the prior stays as it was. Where added rows fit their clusters
worse than rows of the fit do (`distclust.trees.drift`), the lowest such nodes are reopened:
all their rows are divided again by samples, as in a fit. Everything else stays. Where nodes
that hold too many rows have drifted, that is said instead, and the whole tree is to be fitted.

An update is a run like a fit: beside a results store, saved after every pass, gone on with when
it is begun again, and published as a version. What comes out depends on the version before, the
rows, the parameters and the seed.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.engine import check_features, keeping_notes
from distclust.errors import InputError
from distclust.store import Matrix
from distclust.store.archive import with_prefix
from distclust.store.changes import Changes, changes_between
from distclust.store.codes import Codes, RenamedCodes
from distclust.store.drafts import Draft
from distclust.store.results import ResultsStore
from distclust.store.row_labels import KeptLabels, LabelsSpec, StoredLabels
from distclust.store.stored_matrix import StoredMatrix
from distclust.store.versions import Version
from distclust.trees import growing
from distclust.trees.drift import (
    Baseline,
    Drift,
    DriftRules,
    Moments,
    describe,
    find_drift,
)
from distclust.trees.em import EM
from distclust.trees.fits import Finished, Method
from distclust.trees.grafting import graft, names_of_ends, reopen, way_of_new_rows
from distclust.trees.growing import CodesFor, Growth
from distclust.trees.large import LargeTreeEstimator
from distclust.trees.persistence import identity_of, metrics_of, read_model
from distclust.trees.placing import (
    PlantedCodes,
    Planting,
    count_deleted,
    first_kept_rows,
    place_added,
)
from distclust.trees.randomised import RandomisedBHC
from distclust.trees.splitting import Settings
from distclust.trees.stored_fits import (
    BASELINE_FILE,
    FIRST_ROWS,
    LEAVES,
    fit_and_publish,
    fit_rows,
    measure_leaves,
    settle,
    write_for_updates,
    write_model,
)

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

SINGLE_ROWS = "The leaves of the tree are single rows, which no other can join."

_PREFIX = "update."


class RefitNeeded(Exception):
    """An update says that the whole tree is to be fitted again.

    Attributes
    ----------
    reason
        Why, a sentence.
    drift
        What the comparison of rows found, JSON values; None if it was not made.
    """

    def __init__(self, reason: str, drift: dict[str, Any] | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.drift = drift


@dataclass(frozen=True, eq=False)
class Fitted:
    """The version that an update starts from.

    Attributes
    ----------
    version_id, model
        Which, and its model.
    matrix
        The rows that it was made for.
    leaves
        Leaf of every one of them.
    first_rows
        Number of the first row of each leaf, shape (n_leaves,).
    baseline
        How well rows fitted their leaves.
    """

    version_id: str
    model: LargeTreeEstimator
    matrix: StoredMatrix
    leaves: StoredLabels
    first_rows: Indices
    baseline: Baseline

    @property
    def ends(self) -> Indices:
        """The end of the router that each leaf is, shape (n_leaves,)."""
        leaf_of_end = self.model._leaf_of_end
        ends = np.empty(self.model.tree_.n_leaves, np.int64)
        places = np.flatnonzero(leaf_of_end >= 0)
        ends[leaf_of_end[places]] = places
        return ends


def fit_updatable(
    model: LargeTreeEstimator, matrix: StoredMatrix, store: ResultsStore, where: str
) -> Version:
    """Fit a tree whose version can be brought up to date later; return the version."""
    method = model._method(matrix.shape[1], where)
    check_features(model, matrix, where, reset=True)
    with matrix.held():
        fit_and_publish(model, method, matrix, store, fresh=False, where=where, updatable=True)
    return store.get(model.version_)


def open_fitted(store: ResultsStore, version_id: str, matrix: StoredMatrix) -> Fitted:
    """Open the version that an update starts from.

    Raises
    ------
    RefitNeeded
        If it does not hold what an update needs: the leaf of every row. Trees down to single
        rows have none that a new row could go to, and are no larger than an exact tree.
    """
    with store.open_version(version_id) as reader:
        if BASELINE_FILE not in reader.version.files:
            raise RefitNeeded(SINGLE_ROWS)
        arrays = reader.read_archive(BASELINE_FILE).arrays
        if FIRST_ROWS not in arrays:
            raise RefitNeeded("The tree was made by an earlier release, which kept less about it.")
    model = read_model(store, version_id, with_labels=False)
    assert isinstance(model, LargeTreeEstimator), "only large trees have a baseline"
    leaves = StoredLabels(store.objects, version_id, LEAVES)
    baseline = Baseline.from_arrays(arrays)
    return Fitted(version_id, model, matrix, leaves, arrays[FIRST_ROWS], baseline)


def update_tree(
    store: ResultsStore, fitted: Fitted, matrix: StoredMatrix, rules: DriftRules, where: str
) -> Version:
    """Bring a tree up to date; return the version, whose metrics say what was done.

    Raises
    ------
    RefitNeeded
        If the whole tree is to be fitted again. The run is left as it is, so that asked again
        it says the same at once.
    """
    changes = changes_between(fitted.matrix, matrix)
    if changes is None:
        raise RefitNeeded("The rows of the store were rewritten (compacted or rolled back).")
    if matrix.shape[0] < 2:
        raise RefitNeeded("Fewer than two rows are left.")
    if fitted.model._columns != matrix.columns:
        raise RefitNeeded("The features of the store changed.")
    identity = update_identity(fitted, matrix, rules)
    with (
        fitted.matrix.held(),
        matrix.held(),
        store.open_version(fitted.version_id),
        store.begin(**identity, run=store.find_run(**identity)) as draft,
    ):
        if draft.is_sealed:
            return draft.publish()
        method = Update(fitted, matrix, changes, rules, where)
        found = fit_rows(method, matrix, draft, keeps_notes=True)
        model = copy.copy(fitted.model)
        settle(model, found, matrix)
        known_as = _known_as(fitted, found)
        if np.array_equal(known_as, np.arange(fitted.model.tree_.n_leaves)):
            _take_over_labels(store, fitted, model, changes, draft)
        write_model(model, found, matrix, draft)
        with keeping_notes(draft.notebook("baseline")):
            measured = measure_leaves(model, found, matrix, known_as < 0)
        baseline = Baseline.from_arrays(found.extra).joined(measured, known_as)
        write_for_updates(found, baseline, matrix, draft)
        metrics = metrics_of(model, matrix.shape[0])
        return draft.publish(metrics | {"update": found.facts["update"]})


def _take_over_labels(
    store: ResultsStore,
    fitted: Fitted,
    model: LargeTreeEstimator,
    changes: Changes,
    draft: Draft,
) -> None:
    """Take over the chunks of rows that are where they were, in the leaves that they were in."""
    n_rows, n_leaves = changes.n_after, model.tree_.n_leaves
    KeptLabels(fitted.leaves, changes).take_over(draft, LabelsSpec(n_rows, n_leaves, LEAVES))
    if np.array_equal(model._label_of_leaf, fitted.model._label_of_leaf):
        labels = StoredLabels(store.objects, fitted.version_id)
        KeptLabels(labels, changes).take_over(draft, LabelsSpec(n_rows, model.n_clusters_))


def forget_update(
    store: ResultsStore, fitted: Fitted, matrix: StoredMatrix, rules: DriftRules
) -> None:
    """Remove the run of an update that said that the tree is to be fitted again."""
    identity = update_identity(fitted, matrix, rules)
    run = store.find_run(**identity)
    if run is not None:
        with store.begin(**identity, run=run) as draft:
            if not draft.is_sealed:
                draft.abandon()


def update_identity(fitted: Fitted, matrix: StoredMatrix, rules: DriftRules) -> dict[str, Any]:
    """Return what an update is made from, as `ResultsStore.begin` takes it."""
    identity = identity_of(fitted.model, str(matrix.fingerprint))
    identity["parameters"] |= {
        "update_of": fitted.version_id,
        "drift_threshold": rules.threshold,
        "drift_share": rules.share,
    }
    return identity


def _known_as(fitted: Fitted, found: Finished) -> Indices:
    """Return which leaf each leaf was before, -1 for those that grew, shape (n_leaves,)."""
    before = fitted.model._leaf_of_end
    known_as = np.full(found.structure.n_leaves, -1)
    ends = np.flatnonzero(found.leaf_of_end[: len(before)] >= 0)
    known_as[found.leaf_of_end[ends]] = before[ends]
    return known_as


# ---- the passes ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Updating:
    """The state of an update; nothing is known before the first pass.

    Attributes
    ----------
    growth
        The tree on all rows, and what grows below reopened nodes.
    baseline
        Of the tree before, with the added rows.
    reopened
        Nodes of the tree before that are divided again.
    report
        What was found, JSON values.
    refit
        Why the whole tree is to be fitted again; empty if it is not.
    """

    growth: Growth | None = None
    baseline: Baseline | None = None
    reopened: Indices | None = None
    report: Mapping[str, Any] | None = None
    refit: str = ""


@dataclass(frozen=True, eq=False)
class Update(Method[Updating]):
    """An update as a method of fitting by passes.

    Attributes
    ----------
    fitted
        The version before.
    matrix
        The rows as they are now.
    changes
        Rows that came and went since.
    rules
        When nodes are reopened.
    where
        Place to name in errors.
    """

    fitted: Fitted
    matrix: StoredMatrix
    changes: Changes
    rules: DriftRules
    where: str

    @property
    def _leaves(self) -> KeptLabels:
        return KeptLabels(self.fitted.leaves, self.changes)

    @property
    def _settings(self) -> Settings:
        model = self.fitted.model
        method = model._method(len(model._columns), self.where)
        assert isinstance(method, RandomisedBHC | EM), "the methods of large trees"
        return method.settings

    def start(self, matrix: Matrix) -> Updating:
        """Know nothing yet."""
        return Updating()

    def is_complete(self, state: Updating) -> bool:
        """Whether every row is where it stays, or none of this is of use."""
        return state.growth is not None and (bool(state.refit) or state.growth.is_complete)

    def advance(self, matrix: Matrix, state: Updating, codes_for: CodesFor) -> Updating:
        """Place all rows and compare them; after that, divide what was reopened."""
        if state.growth is None:
            return self._compared(matrix, codes_for)
        codes_of = self._renamed(state, codes_for)
        growth = growing.grow(matrix, state.growth, self._settings, codes_of)
        return replace(state, growth=growth)

    def codes_from(self, step: int, stored: Codes) -> Codes:
        """Return the codes after a pass; after the first one, kept rows are where they were."""
        if step != 1:
            return stored
        return PlantedCodes(self.matrix, self._leaves, self.fitted.ends, stored)

    def step_of(self, state: Updating) -> int:
        """Return the number of the codes after the last pass."""
        return 0 if state.growth is None else state.growth.step

    def _compared(self, matrix: Matrix, codes_for: CodesFor) -> Updating:
        """Do the first pass."""
        fitted, model, tree = self.fitted, self.fitted.model, self.fitted.model.tree_
        assert tree.statistics is not None, "a fitted tree keeps its statistics"
        planting = Planting(
            family=model.family_,
            columns=matrix.columns,
            router=model._router,
            leaf_of_end=model._leaf_of_end,
            end_of_leaf=fitted.ends,
            leaves=self._leaves,
            reference=fitted.baseline.reference,
            after=codes_for(1),
            where=self.where,
        )
        try:
            placed = place_added(matrix, planting, "placing new rows")
        except InputError as error:
            if not error.where.startswith(self.where):
                raise
            raise RefitNeeded(f"New rows do not fit the tree's family: {error}") from error
        removed = count_deleted(
            fitted.matrix,
            self.changes,
            fitted.leaves,
            model.family_,
            tree.n_leaves,
            "taking out deleted rows",
        )
        stats = tree.statistics[: tree.n_leaves] + placed.added - removed
        n_rows = stats[:, 0].astype(np.int64)
        stats[n_rows == 0] = 0.0
        assert n_rows.sum() == matrix.shape[0], "every row is in one leaf"
        first_rows = first_kept_rows(fitted.first_rows, self._leaves)
        np.minimum(first_rows, placed.first_rows, out=first_rows)
        baseline = replace(fitted.baseline, since=fitted.baseline.since + placed.scores)
        drift = find_drift(tree.structure, baseline, placed.scores, self.rules.threshold)
        sizes = tree.structure.sum_up(n_rows)
        share = float(sizes[drift.reopened].sum() / sizes[-1])
        refit = self._refit(drift, share)
        nodes = drift.reopened[sizes[drift.reopened] > 0]
        growth = reopen(
            model.family_,
            model.family_reason_,
            model._router,
            tree.structure,
            fitted.ends,
            nodes[:0] if refit else nodes,
            {"sizes": n_rows, "first_rows": first_rows, "stats": stats},
            self._settings.sample_size,
        )
        report = self._report(drift, baseline, placed.scores, sizes, share)
        baseline = replace(baseline, since=baseline.since.without(drift.is_answered))
        state = Updating(growth, baseline, nodes, report, refit)
        if refit or len(nodes) == 0:
            return state
        opened = np.arange(model._router.n_nodes, growth.router.n_nodes)
        codes_of = self._renamed(state, codes_for)
        growth = growing.ask(matrix, growth, opened, None, self._settings, codes_of)
        return replace(state, growth=growth)

    def _refit(self, drift: Drift, share: float) -> str:
        if share <= self.rules.share and share < 1.0:
            return ""
        n_nodes, worst = len(drift.reopened), np.fmax.reduce(drift.z)
        told = "" if np.isnan(worst) else f", by up to {worst:.1f} standard errors"
        return (
            f"New rows fit worse than old ones in {_count(n_nodes, 'node')} with {share:.0%} of "
            f"the rows{told}; the tree is fitted again from {self.rules.share:.0%} on."
        )

    def _renamed(self, state: Updating, codes_for: CodesFor) -> CodesFor:
        """Return the codes of passes; those of the first are under the names before."""
        assert state.reopened is not None, "the first pass is done"
        tree, n_before = self.fitted.model.tree_, self.fitted.model._router.n_nodes
        names = names_of_ends(n_before, tree.structure, self.fitted.ends, state.reopened)

        def codes_of(step: int) -> Codes:
            return RenamedCodes(codes_for(step), names) if step == 1 else codes_for(step)

        return codes_of

    def _report(
        self, drift: Drift, baseline: Baseline, latest: Moments, sizes: Indices, share: float
    ) -> dict[str, Any]:
        model = self.fitted.model
        paths = [model._router.paths[end] for end in self.fitted.ends.tolist()]
        found = describe(model.tree_.structure, drift, baseline, latest, sizes, paths)
        return {
            "n_added": self.changes.n_added,
            "n_deleted": len(self.changes.deleted),
            "threshold": self.rules.threshold,
            "share": self.rules.share,
            "share_reopened": share,
            **found,
        }

    def finish(self, state: Updating) -> Finished:
        """Put the tree together."""
        growth, report = state.growth, state.report
        assert growth is not None, "the first pass is done"
        assert report is not None, "the first pass is done"
        assert state.baseline is not None, "the first pass is done"
        assert state.reopened is not None, "the first pass is done"
        if state.refit:
            raise RefitNeeded(state.refit, dict(report))
        growing.warn_unresolved(growth, self.where)
        model, structure = self.fitted.model, self.fitted.model.tree_.structure
        ends, n_before = self.fitted.ends, model._router.n_nodes
        found = graft(growth, n_before, structure, ends, state.reopened)
        names = np.arange(growth.router.n_nodes)
        names[:n_before] = names_of_ends(n_before, structure, ends, state.reopened)
        facts = dict(model._facts)
        facts |= {
            "n_passes": int(facts["n_passes"]) + growth.step - 1,
            "n_updates": int(facts.get("n_updates", 0)) + 1,
            "n_unresolved": growth.n_unresolved,
            "update": dict(report),
        }
        return Finished(
            family=growth.family,
            structure=found.structure,
            stats=found.stats,
            log_marginal=found.log_marginal,
            first_rows=found.first_rows,
            step=growth.step,
            leaf_of_code=found.leaf_of_node[names],
            row_leaves=found.row_leaves,
            router=way_of_new_rows(growth),
            leaf_of_end=found.leaf_of_node,
            facts=facts,
            extra=state.baseline.to_arrays(),
        )

    def to_arrays(self, state: Updating) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Return a state as JSON values and arrays."""
        if state.growth is None or state.baseline is None or state.reopened is None:
            return {"is_placed": False}, {}
        facts, arrays = growing.to_arrays(state.growth)
        arrays |= {_PREFIX + name: array for name, array in state.baseline.to_arrays().items()}
        arrays[f"{_PREFIX}reopened"] = state.reopened
        told = {"is_placed": True, "report": dict(state.report or {}), "refit": state.refit}
        return facts | told, arrays

    def from_arrays(
        self, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> Updating:
        """Inverse of `to_arrays`."""
        if not facts["is_placed"]:
            return Updating()
        own = with_prefix(arrays, _PREFIX)
        return Updating(
            growing.from_arrays(facts, arrays, self.where),
            Baseline.from_arrays(own),
            own["reopened"],
            facts["report"],
            str(facts["refit"]),
        )


def _count(n: int, thing: str) -> str:
    return f"{n:,} {thing}" if n == 1 else f"{n:,} {thing}s"
