"""Fitted models of any kind from a file or a results store."""

from __future__ import annotations

import importlib
import os
from typing import Any

from distclust.errors import ModelFormatError
from distclust.store import read_archive

# Kind of model -> module whose `from_archive(archive, path)` reads it; imported when needed.
_READERS = {
    "BHC": "distclust.trees.persistence",
    "BayesianRoseTree": "distclust.trees.persistence",
    "RandomizedBHC": "distclust.trees.persistence",
    "EMBHC": "distclust.trees.persistence",
    "BayesianSets": "distclust.retrieval.persistence",
    "PPCA": "distclust.projections.persistence",
    "KernelPCA": "distclust.projections.persistence",
    "DPMixture": "distclust.mixtures.persistence",
    "ClusterEnsemble": "distclust.ensembles.persistence",
}


def load(path: str | os.PathLike[str], version: str | None = None) -> Any:
    """Read a fitted model of any kind.

    Parameters
    ----------
    path
        A file that a model's ``save`` method wrote, or the path or URL of a results store.
    version
        Id of a version of a results store; by default the current one.

    Raises
    ------
    ModelFormatError
        If the file is truncated, altered, not a model, or of a newer format.
    MissingFileError
        If there is no such file.
    StoreError
        If there is no results store, or what it holds was altered.
    """
    if _is_file(path):
        return _from_file(os.fspath(path))
    if _is_place(path):
        place = os.fspath(path)
        kind = _kind_in(place, version)
        if kind in _READERS:
            from distclust.store.results import ResultsStore

            reader = importlib.import_module(_READERS[kind])
            return reader.read_model(ResultsStore(place), version)
    from distclust.trees import load as load_tree

    return load_tree(path)  # type: ignore[arg-type]  # it says what it takes


def _is_file(path: Any) -> bool:
    return isinstance(path, str | os.PathLike) and os.path.isfile(path)


def _is_place(path: Any) -> bool:
    return isinstance(path, str | os.PathLike) and (os.path.isdir(path) or "://" in str(path))


def _kind_in(place: str, version_id: str | None) -> str:
    """Return what a version of a results store is; refuse what is no model."""
    from distclust.retrieval.index import KIND
    from distclust.store.results import ResultsStore

    results = ResultsStore(place)
    version = results.current() if version_id is None else results.get(version_id)
    if version is not None and version.kind == KIND:
        hint = "Fit BayesianSets to the corpus: it finds its index."
        raise ModelFormatError(place, "a model", "an index of Bayesian Sets", hint)
    return version.kind if version else ""


def _from_file(path: str) -> Any:
    archive = read_archive(path)
    if archive.kind not in _READERS:
        expected = f"a model among {', '.join(_READERS)}"
        raise ModelFormatError(path, expected, repr(archive.kind), "Update distclust.")
    return importlib.import_module(_READERS[archive.kind]).from_archive(archive, path)
