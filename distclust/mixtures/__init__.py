"""Which groups there are, and how sure that is: Dirichlet-process mixtures.

``chains`` runs samplers on crews and stops them when they agree (``diagnostics``). ``urn`` and
``blocked`` are the samplers, ``concentration`` what both draw beside partitions. One partition
stands for all draws (``point_estimates``), with how often rows were together (``similarity``).

Names load on first use: workers need the samplers only.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from distclust.mixtures.dp_mixture import DPMixture as DPMixture

_HOMES = {"DPMixture": "distclust.mixtures.dp_mixture"}

__all__ = ["DPMixture"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)
