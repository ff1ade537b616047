"""Randomised and EM trees: new rows go down the fitted tree, what drifted is divided again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from distclust.jobs.kinds.base import (
    FIRST,
    Kind,
    Made,
    Request,
    check_family,
    count,
    figures,
    fitted,
    kept,
)
from distclust.store.results import ResultsStore
from distclust.store.versions import Version
from distclust.trees import EMBHC, RandomizedBHC
from distclust.trees.drift import DriftRules
from distclust.trees.large import LargeTreeEstimator
from distclust.trees.updating import (
    SINGLE_ROWS,
    RefitNeeded,
    fit_updatable,
    forget_update,
    open_fitted,
    update_tree,
)

_ANY_FEATURES = 1024  # parameters are checked before the features are known


class LargeTree(Kind):
    """What both have in common; not to be used by itself."""

    model: ClassVar[type[LargeTreeEstimator]]

    def estimator(self, parameters: Mapping[str, Any], seed: int) -> LargeTreeEstimator:
        """Return the estimator, not yet fitted."""
        return self.model(**parameters, random_state=seed)

    def check_values(self, model: Any, where: str) -> None:
        """Refuse parameters that the estimator would refuse."""
        check_family(model.family, where)
        model._method(_ANY_FEATURES, where)

    def make(self, request: Request) -> Made:
        """Fit the tree, bring it up to date, or keep it."""
        store, before = ResultsStore(request.place), request.before
        reason, drift = request.refit_reason or FIRST, None
        if before is not None and request.refit_reason is None:
            if not request.has_news:
                return kept(request, store.get(before.version).metrics)
            try:
                return self._updated(request, store)
            except RefitNeeded as needed:
                reason, drift = needed.reason, needed.drift
        model = self.estimator(request.parameters, request.seed)
        version = fit_updatable(model, request.matrix, store, _where(request))
        self._forget(request, store)
        return fitted(version, reason, drift)

    def plan_update(self, parameters: Mapping[str, Any], drift: DriftRules) -> str:
        """Return in words what `make` does about new rows."""
        if parameters.get("resolve") == "rows":
            return f"fit: {SINGLE_ROWS}"
        return (
            "update: Rows go down the tree; nodes where new rows fit worse than old ones by more "
            f"than {drift.threshold:g} standard errors are divided again, or the whole tree is "
            f"fitted if they hold more than {drift.share:.0%} of the rows."
        )

    def _updated(self, request: Request, store: ResultsStore) -> Made:
        before = request.before
        assert before is not None, "an update has something to start from"
        start = open_fitted(store, before.version, before.matrix)
        version = update_tree(store, start, request.matrix, request.drift, _where(request))
        return _told(version, before.refit_at)

    def _forget(self, request: Request, store: ResultsStore) -> None:
        """Remove what is left of an update that asked for the fit that is now made."""
        before = request.before
        if before is None or request.refit_reason is not None:
            return
        try:
            start = open_fitted(store, before.version, before.matrix)
        except RefitNeeded:
            return
        forget_update(store, start, request.matrix, request.drift)


class RandomisedTree(LargeTree):
    """`distclust.RandomizedBHC`."""

    name = "rbhc"
    model = RandomizedBHC


class EMTree(LargeTree):
    """`distclust.EMBHC`."""

    name = "embhc"
    model = EMBHC


def _where(request: Request) -> str:
    return f"[models.{request.name}]"


def _told(version: Version, refit_at: str) -> Made:
    """Answer with a version that was brought up to date."""
    report = version.metrics["update"]
    n_reopened = int(report["n_reopened"])
    placed = f"{count(report['n_added'], 'row')} placed, " if report["n_added"] else ""
    reason = f"{placed}{count(report['n_deleted'], 'row')} taken out"
    if n_reopened:
        where = f"{count(n_reopened, 'node')} with {report['share_reopened']:.1%} of the rows"
        reason += f"; new rows fit worse than old ones in {where}, divided again."
    elif report["n_added"]:
        reason += "; new rows fit as well as old ones."
    else:
        reason += "."
    return Made(
        version.id,
        None,
        "refit below" if n_reopened else "updated",
        reason,
        figures(version.metrics),
        refit_at,
        report,
    )
