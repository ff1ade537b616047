"""Bayesian clustering on Dask.

One script clusters a table on a laptop and a large array on a cluster: with no Dask client
a fit runs in this process on a thread pool, with a current client it runs there, and the
answer is the same to the bit.

Public names load on first use, so that ``import distclust`` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from distclust._version import __version__

if TYPE_CHECKING:
    from distclust import families as families
    from distclust import metrics as metrics
    from distclust.engine import as_matrix as as_matrix
    from distclust.engine import connect as connect
    from distclust.engine import ingest as ingest
    from distclust.ensembles import ClusterEnsemble as ClusterEnsemble
    from distclust.jobs.published import open_job as open_job
    from distclust.loading import load as load
    from distclust.mixtures import DPMixture as DPMixture
    from distclust.projections import PPCA as PPCA
    from distclust.projections import KernelPCA as KernelPCA
    from distclust.report import progress as progress
    from distclust.retrieval import BayesianSets as BayesianSets
    from distclust.store.matrix_store import open_store as open_store
    from distclust.trees import BHC as BHC
    from distclust.trees import EMBHC as EMBHC
    from distclust.trees import BayesianRoseTree as BayesianRoseTree
    from distclust.trees import RandomizedBHC as RandomizedBHC
    from distclust.trees import Tree as Tree

_HOMES = {
    "BHC": "distclust.trees",
    "EMBHC": "distclust.trees",
    "KernelPCA": "distclust.projections",
    "PPCA": "distclust.projections",
    "BayesianSets": "distclust.retrieval",
    "ClusterEnsemble": "distclust.ensembles",
    "DPMixture": "distclust.mixtures",
    "RandomizedBHC": "distclust.trees",
    "BayesianRoseTree": "distclust.trees",
    "Tree": "distclust.trees",
    "as_matrix": "distclust.engine",
    "connect": "distclust.engine",
    "ingest": "distclust.engine",
    "load": "distclust.loading",
    "open_job": "distclust.jobs.published",
    "open_store": "distclust.store.matrix_store",
    "progress": "distclust.report",
}
_MODULES = ("families", "metrics")

__all__ = [  # noqa: RUF022  in plain order
    "BHC",
    "BayesianRoseTree",
    "BayesianSets",
    "ClusterEnsemble",
    "DPMixture",
    "EMBHC",
    "KernelPCA",
    "PPCA",
    "RandomizedBHC",
    "Tree",
    "__version__",
    "as_matrix",
    "connect",
    "families",
    "ingest",
    "load",
    "metrics",
    "open_job",
    "open_store",
    "progress",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(importlib.import_module(_HOMES[name]), name)
    elif name in _MODULES:
        value = importlib.import_module(f"distclust.{name}")
    else:
        raise AttributeError(f"module 'distclust' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
