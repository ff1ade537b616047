"""The index of Bayesian Sets: shards of rows that did not change are taken over.

An index brought up to date is what a new one would be, so there is no other way to refit it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from distclust.errors import InputError
from distclust.jobs.kinds.base import (
    FIRST,
    Asked,
    Kind,
    Made,
    Request,
    count,
    figures,
    kept,
)
from distclust.retrieval import BayesianSets
from distclust.retrieval.index import build_index
from distclust.retrieval.sets import count_ones
from distclust.store import Profile
from distclust.store.results import ResultsStore
from distclust.store.stored_matrix import StoredMatrix
from distclust.trees.drift import DriftRules


class SetsIndex(Kind):
    """An index that is what a new one would be; the prior follows the rows."""

    name = "sets"

    def estimator(self, parameters: Mapping[str, Any], seed: int) -> BayesianSets:
        """Return what will be asked."""
        return BayesianSets(**parameters)

    def allowed(self) -> list[str]:
        """Return the names of the parameters that a job may set."""
        return sorted(inspect.signature(BayesianSets).parameters)

    def check_values(self, model: Any, where: str) -> None:
        """Refuse parameters that `BayesianSets` would refuse."""
        if model.family != "bernoulli":
            expected, got = "'bernoulli': an index is of zeros and ones", repr(model.family)
            raise InputError(f"{where}: family", expected, got, "Leave it out.")
        model._check_parameters(where)

    def make(self, request: Request) -> Made:
        """Build the index, bring it up to date, or keep it."""
        before = request.before
        if before is not None and not request.has_news:
            return kept(request, ResultsStore(request.place).get(before.version).metrics)
        _check_binary(request.matrix, f"[models.{request.name}]")
        known = None if before is None else before.version
        version = build_index(request.matrix, request.place, before_version=known).version
        reason = FIRST
        if before is not None:
            n_taken, n_shards = version.metrics["n_taken_over"], version.metrics["n_shards"]
            reason = f"{n_taken:,} of {count(n_shards, 'shard')} taken over, the others made."
        return Made(
            version.id,
            None,
            "fitted" if before is None else "updated",
            reason,
            figures(version.metrics),
            version.created,
        )

    def plan(self, asked: Asked, has_news: bool) -> str:
        """Return in words what `make` would do: an index is of rows, whatever its parameters."""
        return super().plan(replace(asked, refit_reason=None), has_news)

    def plan_update(self, parameters: Mapping[str, Any], drift: DriftRules) -> str:
        """Return in words what `make` does about new rows."""
        return "update: Shards whose rows changed are made again, the others are taken over."


def _check_binary(matrix: StoredMatrix, where: str) -> None:
    """Refuse features that are not zeros and ones; what was noted at ingest spares a look."""
    profiles = [segment.profile for segment in matrix.generation.segments]
    is_plain = all(column.kind == "number" for column in matrix.columns)
    if not is_plain or not all(_is_binary(profile) for profile in profiles):
        count_ones(matrix, where)  # of live rows only, and says which is wrong


def _is_binary(profile: Profile) -> bool:
    is_zero_or_one = (profile.minimum >= 0) & (profile.maximum <= 1)
    return bool(is_zero_or_one.all() and profile.all_integer.all() and not profile.n_missing.any())
