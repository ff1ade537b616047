"""Few directions that carry the structure: PCA as a probabilistic model, kernel PCA.

Estimators load on first use: workers need the products only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distclust.projections.kernel_pca import KernelPCA as KernelPCA
    from distclust.projections.ppca import PPCA as PPCA

_HOMES = {
    "KernelPCA": "distclust.projections.kernel_pca",
    "PPCA": "distclust.projections.ppca",
}

__all__ = ["PPCA", "KernelPCA"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
