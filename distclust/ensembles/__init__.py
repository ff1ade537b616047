"""What several clusterings agree on.

Names load on first use: workers need the models only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distclust.ensembles.base_fitting import BaseRecipe as BaseRecipe
    from distclust.ensembles.cluster_ensemble import ClusterEnsemble as ClusterEnsemble
    from distclust.ensembles.labels import LabelMatrix as LabelMatrix

_HOMES = {
    "BaseRecipe": "distclust.ensembles.base_fitting",
    "ClusterEnsemble": "distclust.ensembles.cluster_ensemble",
    "LabelMatrix": "distclust.ensembles.labels",
}

__all__ = ["BaseRecipe", "ClusterEnsemble", "LabelMatrix"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
