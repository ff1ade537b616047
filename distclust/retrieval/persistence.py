"""Bayesian Sets to a file and back: arrays and JSON, no pickle.

A corpus in a store of ours is named with its fingerprint, and its index is found again where
it was; any other corpus goes into the file. The prior follows from the corpus, so loading
learns it again, from what a store or its index keeps or in a pass.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from distclust.errors import ModelFormatError, StoreError
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
from distclust.store.codecs import decode_text, encode_text
from distclust.store.stored_matrix import StoredMatrix

if TYPE_CHECKING:
    from distclust.retrieval.sets import BayesianSets

KIND = "BayesianSets"

_FAMILY, _IDS, _NAMES = "family.", "ids", "names"
_PARTS = ("data", "indices", "indptr")


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
        facts["index"] = _index_url(sets)
    else:
        facts["has_index"] = sets.index_ is not None
        facts["columns"] = [[c.name, c.kind, list(c.levels), c.number] for c in matrix.columns]
        arrays |= _corpus_arrays(matrix)
    write_archive(path, KIND, facts, arrays)


def _index_url(sets: BayesianSets) -> str:
    """Return where the index lies, or would be built, from wherever it is read."""
    from distclust.retrieval.index import StoredIndex
    from distclust.store.objects import open_objects

    if isinstance(sets.index_, StoredIndex):
        return sets.index_.url
    assert sets.index_place is not None, "a stored corpus has a place"
    return open_objects(sets.index_place).url


def load_sets(path: str | os.PathLike[str]) -> BayesianSets:
    """Read what `save_sets` wrote.

    Raises
    ------
    ModelFormatError
        If the file is truncated, altered, of a newer format or of another kind, or if the
        store that it names has changed.
    StoreError
        If the store that it names is not there, or its index was damaged.
    """
    return from_archive(read_archive(path), os.fspath(path))


def from_archive(archive: Archive, where: str) -> BayesianSets:
    """Return the fitted index that an archive holds."""
    if archive.kind != KIND:
        hint = "Use distclust.load for any model."
        raise ModelFormatError(where, "an index of Bayesian Sets", archive.kind, hint)
    try:
        return _rebuild(archive.meta, archive.arrays, where)
    except (ModelFormatError, StoreError):
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        got = f"{type(error).__name__}: {error}"
        raise ModelFormatError(where, "a complete model", got, "Save it again.") from error


def _rebuild(facts: Any, arrays: Any, where: str) -> BayesianSets:
    from distclust.retrieval.sets import BayesianSets

    family = facts["family"]
    if isinstance(family, dict):
        family = family_from_dict(family, with_prefix(arrays, _FAMILY), where)
    sets = BayesianSets(facts["kappa"], facts["smoothing"], family)
    if "store" in facts:
        return _fit_to_store(sets, facts, where)
    sets.fit(_corpus(facts, arrays))
    return sets.build_index() if facts["has_index"] else sets


def _fit_to_store(sets: BayesianSets, facts: Any, where: str) -> BayesianSets:
    from distclust.retrieval.index import open_index
    from distclust.store.matrix_store import open_store

    matrix = open_store(facts["store"]).matrix()
    if getattr(matrix, "fingerprint", None) != facts["fingerprint"]:
        hint = "Fit again: its rows are not those of the time it was saved."
        raise ModelFormatError(where, f"the rows of {facts['store']}", "other rows", hint)
    place = facts["index"]
    index = open_index(place)
    is_there = index is not None and index.fingerprint == facts["fingerprint"]
    sets.fit(matrix, index=place if is_there else None)
    sets.index_place = place  # where one that was removed is built again
    return sets


def _corpus_arrays(matrix: Matrix) -> dict[str, Any]:
    values = matrix.read_all()
    arrays = _encode_ids(np.asarray(matrix.row_ids))
    if scipy.sparse.issparse(values):
        return arrays | {name: getattr(values, name) for name in _PARTS}
    return arrays | {"values": values}


def _encode_ids(ids: npt.NDArray[Any]) -> dict[str, Any]:
    """Return ids as they are if they are numbers, else the bytes of their texts."""
    if ids.dtype.kind in "iu":
        return {_IDS: ids}
    # Not as an array of text: one long name would make all as long.
    names = np.array([str(name) for name in ids.tolist()], object)
    return {_NAMES: np.frombuffer(encode_text(names, len(names)), np.uint8)}


def _decode_ids(arrays: Any, n_rows: int) -> npt.NDArray[Any]:
    ids = decode_text(arrays[_NAMES], (n_rows,)) if _NAMES in arrays else arrays[_IDS]
    if ids.shape != (n_rows,):
        raise ValueError(f"{len(ids):,} ids of {n_rows:,} rows")
    return np.asarray(ids)


def _corpus(facts: Any, arrays: Any) -> Matrix:
    columns = tuple(
        Column(name, kind, tuple(levels), number) for name, kind, levels, number in facts["columns"]
    )
    if "values" in arrays:
        values: Any = arrays["values"]
    else:
        shape = (len(arrays["indptr"]) - 1, len(columns))
        values = scipy.sparse.csr_array(tuple(arrays[name] for name in _PARTS), shape=shape)
    if values.shape[1:] != (len(columns),):
        raise ValueError(f"values of shape {values.shape} for {len(columns):,} columns")
    ids = _decode_ids(arrays, values.shape[0])
    if scipy.sparse.issparse(values):
        return SparseMatrix(values, columns, ids)
    return ArrayMatrix(values, columns, ids)
