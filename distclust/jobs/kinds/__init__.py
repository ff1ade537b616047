"""Kinds of models: how each is checked, fitted and brought up to date.

kind = KINDS["rbhc"]
kind.check(parameters, "[models.topics]")
made = kind.make(Request("topics", "rbhc", parameters, 0, place, matrix, before))
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator, Mapping

from distclust.jobs.kinds.base import Action, Asked, Before, Kind, Made, Request
from distclust.trees.drift import DriftRules

_CLASSES = {
    "rbhc": "large_trees.RandomisedTree",
    "embhc": "large_trees.EMTree",
    "bhc": "clusterings.BinaryTree",
    "rose": "clusterings.RoseTree",
    "sets": "sets.SetsIndex",
    "dpmixture": "clusterings.Mixture",
    "ensemble": "clusterings.Ensemble",
    "kpca": "projections.KernelProjection",
    "ppca": "projections.LinearProjection",
}


class _Kinds(Mapping[str, Kind]):
    """All kinds by name; one is loaded, with its estimator, when it is asked for.

    Loading estimators takes longer than bringing a model up to date with few rows.
    """

    def __getitem__(self, name: str) -> Kind:
        module, _, kind = _CLASSES[name].partition(".")
        return _loaded(module, kind)

    def __iter__(self) -> Iterator[str]:
        return iter(_CLASSES)

    def __len__(self) -> int:
        return len(_CLASSES)


@functools.cache
def _loaded(module: str, kind: str) -> Kind:
    found: Kind = getattr(importlib.import_module(f"{__name__}.{module}"), kind)()
    return found


KINDS: Mapping[str, Kind] = _Kinds()

__all__ = ["KINDS", "Action", "Asked", "Before", "DriftRules", "Kind", "Made", "Request"]
