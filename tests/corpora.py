"""Small corpora for tests of stores: rows by id, and what a store must show of them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import scipy.sparse

from distclust.store.matrix import Column, default_columns
from distclust.store.matrix_store import MatrixStore
from distclust.store.rows import ArrayRows
from distclust.store.sources.base import Prepared

Array = npt.NDArray[Any]

LAYOUTS = ("dense", "csr", "compact")
N_FEATURES = 6


def values_of(ids: Sequence[Any], salt: int = 0, n_features: int = N_FEATURES) -> Array:
    """Counts that follow from the ids, mostly zeros, some rows empty; float64."""
    seeds = [abs(hash_of(row_id)) + salt for row_id in ids]
    rows = [np.random.default_rng(seed).poisson(0.4, n_features) for seed in seeds]
    return np.array(rows, np.float64).reshape(len(ids), n_features)


def hash_of(row_id: Any) -> int:
    """A number that follows from an id, the same in every process."""
    return int.from_bytes(str(row_id).encode()[-6:], "little")


def text_ids(start: int, stop: int) -> list[str]:
    """Ids as people have them, not all of them ASCII."""
    return [f"r{i}" if i % 3 else f"ряд {i}" for i in range(start, stop)]


def prepared(
    ids: Sequence[Any],
    layout: str = "dense",
    salt: int = 0,
    *,
    values: Array | None = None,
    columns: tuple[Column, ...] | None = None,
    obs: Mapping[str, Any] | None = None,
    obs_kinds: Mapping[str, Any] | None = None,
    **others: Any,
) -> Prepared:
    """Rows with these ids, whose values follow from ids and salt; with notes by default."""
    values = values_of(ids, salt) if values is None else values
    is_text = bool(ids) and isinstance(ids[0], str)
    given: Any = values if layout == "dense" else scipy.sparse.csr_array(values)
    columns = default_columns(values.shape[1]) if columns is None else columns
    if obs is None:
        obs = {"note": np.array([note_of(row_id, salt) for row_id in ids], object)}
        obs_kinds = {"note": "text"}
    rows = ArrayRows(given, np.array(ids, object if is_text else np.int64), obs)
    kind = "text" if is_text else "integer"
    return Prepared(rows, columns, obs_kinds or {}, kind, **others)


def plain(ids: Sequence[Any], layout: str = "dense", salt: int = 0) -> Prepared:
    """The same rows without notes: fewer objects."""
    return prepared(ids, layout, salt, obs={})


def note_of(row_id: Any, salt: int) -> str | None:
    """An annotation that follows from an id; some are missing."""
    return None if hash_of(row_id) % 5 == 0 else f"note {row_id} {salt}"


def content_of(store: MatrixStore) -> dict[Any, tuple[bytes, str | None]]:
    """All rows of a store by id, read block by block: values and note; order kept."""
    matrix = store.matrix()
    rows: dict[Any, tuple[bytes, str | None]] = {}
    for i in range(matrix.n_blocks):
        block: Any = matrix.block(i)
        dense = block if isinstance(block, np.ndarray) else block.toarray()
        ids = matrix.block_ids(i).tolist()
        has_notes = "note" in store.obs_kinds
        notes = matrix.block_obs("note", i).tolist() if has_notes else [None] * len(ids)
        for row_id, row, note in zip(ids, dense, notes, strict=True):
            assert row_id not in rows
            rows[row_id] = (row.astype(np.float64).tobytes(), note)
    return rows


def rows_of(
    ids: Sequence[Any], salt: int = 0, *, with_notes: bool = True
) -> dict[Any, tuple[bytes, str | None]]:
    """What `content_of` gives for a store of these rows."""
    values = values_of(ids, salt)
    return {
        row_id: (row.tobytes(), note_of(row_id, salt) if with_notes else None)
        for row_id, row in zip(ids, values, strict=True)
    }


@contextlib.contextmanager
def blocks_of(n_rows: int, nonzeros: int = 8) -> Iterator[None]:
    """Cut stores into blocks of a few rows and chunks of a few nonzeros.

    Block sizes follow from the number of features alone and cannot be chosen; tests need
    several blocks without millions of rows.
    """
    small = {
        "block_rows_for": lambda n_features, is_sparse: n_rows,
        "UNIT_ROWS": n_rows // 2,
        "_SMALLEST_CHUNK": nonzeros,
    }
    with pytest.MonkeyPatch.context() as patch:
        modules = [module for name, module in sys.modules.items() if name.startswith("distclust.")]
        for module in modules:
            for name, value in small.items():
                if hasattr(module, name):
                    patch.setattr(module, name, value)
        yield
