"""Bayesian Sets to a file and back: arrays and JSON, no pickle.

A corpus in a store is named with its fingerprint, and its index is found again beside it; a
corpus in memory goes into the file.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.sparse

from distclust.errors import ModelFormatError
from distclust.families import Family, family_from_dict
from distclust.store import (
    Archive,
    ArrayMatrix,
    Column,
    Matrix,
    SparseMatrix,
    read_archive,
    write_archive,
)
from distclust.store.archive import with_prefix
from distclust.store.stored_matrix import StoredMatrix

if TYPE_CHECKING:
    from distclust.retrieval.sets import BayesianSets

KIND = "BayesianSets"

_FAMILY, _PARTS = "family.", ("data", "indices", "indptr")


def save_sets(sets: BayesianSets, path: str | Path) -> None:
    """Write a fitted index to one file, complete or not at all."""
    facts: dict[str, Any] = {"kappa": float(sets.kappa), "smoothing": float(sets.smoothing)}
    arrays: dict[str, Any] = {}
    if isinstance(sets.family, Family):
        facts["family"], family_arrays = sets.family.to_dict()
        arrays |= {_FAMILY + name: array for name, array in family_arrays.items()}
    else:
        facts["family"] = sets.family
    matrix = sets.matrix_
    if isinstance(matrix, StoredMatrix):
        facts["store"] = matrix.url
        facts["fingerprint"] = matrix.fingerprint
        facts["index"] = sets.index_place
    else:
        facts["has_index"] = sets.index_ is not None
        facts["columns"] = [[c.name, c.kind, list(c.levels), c.number] for c in matrix.columns]
        arrays |= _corpus_arrays(matrix)
    write_archive(path, KIND, facts, arrays)


def load_sets(path: str | Path) -> BayesianSets:
    """Read what `save_sets` wrote.

    Raises
    ------
    ModelFormatError
        If the file is truncated, altered, of a newer format or of another kind, or if the
        store that it names has changed.
    """
    return from_archive(read_archive(path), str(path))


def from_archive(archive: Archive, where: str) -> BayesianSets:
    """Return the fitted index that an archive holds."""
    from distclust.retrieval.sets import BayesianSets

    if archive.kind != KIND:
        hint = "Use distclust.load for any model."
        raise ModelFormatError(where, "an index of Bayesian Sets", archive.kind, hint)
    facts, arrays = archive.meta, archive.arrays
    family = facts["family"]
    if isinstance(family, dict):
        family = family_from_dict(family, with_prefix(arrays, _FAMILY), where)
    sets = BayesianSets(facts["kappa"], facts["smoothing"], family)
    if "store" not in facts:
        sets.fit(_corpus(facts, arrays))
        return sets.build_index() if facts["has_index"] else sets
    from distclust.store.matrix_store import open_store

    store = open_store(facts["store"])
    matrix = store.matrix()
    if getattr(matrix, "fingerprint", None) != facts["fingerprint"]:
        hint = "Fit again: its rows are not those of the time it was saved."
        raise ModelFormatError(where, f"the rows of {facts['store']}", "other rows", hint)
    return sets.fit(matrix)


def _corpus_arrays(matrix: Matrix) -> dict[str, Any]:
    values = matrix.read_all()
    ids = np.asarray(matrix.row_ids)
    arrays: dict[str, Any] = {"ids": ids if ids.dtype.kind in "iu" else ids.astype(str)}
    if scipy.sparse.issparse(values):
        return arrays | {name: getattr(values, name) for name in _PARTS}
    return arrays | {"values": values}


def _corpus(facts: Any, arrays: Any) -> Matrix:
    columns = tuple(
        Column(name, kind, tuple(levels), number) for name, kind, levels, number in facts["columns"]
    )
    if "values" in arrays:
        return ArrayMatrix(arrays["values"], columns, arrays["ids"])
    shape = (len(arrays["indptr"]) - 1, len(columns))
    parts = tuple(arrays[name] for name in _PARTS)
    return SparseMatrix(scipy.sparse.csr_array(parts, shape=shape), columns, arrays["ids"])
