"""New rows as rows of a store: the same features, codes of its levels, ids of its kind."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from distclust.errors import InputError
from distclust.store.columns import extend_columns, recode_levels
from distclust.store.generation import Generation
from distclust.store.ids import GivenIds, Span, StoredIds
from distclust.store.manifest import Manifest
from distclust.store.mapping import Mapper
from distclust.store.row_views import NumberedRows, RecodedRows
from distclust.store.sources.base import Prepared


def fit_rows(
    prepared: Prepared, base: Generation, mapper: Mapper, where: str, *, replacing: bool
) -> Prepared:
    """Return new rows as rows of the store: its columns, codes and kinds of ids."""
    manifest = base.manifest
    columns = extend_columns(base.features.columns, prepared.columns, where)
    rows = prepared.rows
    if not prepared.has_ids and manifest.ids_kind == "integer" and not replacing:
        rows = NumberedRows(rows, free_id(base, mapper))
    elif not prepared.has_ids:
        hint = "Name the column of the ids (--ids)."
        raise InputError(where, "row ids as in the store", "rows without ids", hint)
    if prepared.ids_kind != manifest.ids_kind:
        expected = f"{manifest.ids_kind} row ids as in the store"
        raise InputError(where, expected, f"{prepared.ids_kind} ids", "Convert the ids.")
    if dict(prepared.obs_kinds) != dict(manifest.obs):
        expected = f"the annotations of the store ({_listed(dict(manifest.obs))})"
        got = _listed(prepared.obs_kinds)
        raise InputError(where, expected, got, "Bring the same annotations of the same kinds.")
    if codes := recode_levels(columns, prepared.columns):
        rows = RecodedRows(rows, codes)
    return replace(prepared, rows=rows, columns=columns, obs_kinds=dict(manifest.obs))


def _listed(kinds: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in kinds.items()) or "none"


def given_ids(ids: Sequence[Any], manifest: Manifest, where: str) -> GivenIds:
    """Return ids as the store has them, each once."""
    if manifest.ids_kind == "text":
        return GivenIds(np.array(list(dict.fromkeys(map(str, ids))), object))
    try:
        return GivenIds(np.array(list(dict.fromkeys(map(_whole, ids))), np.int64))
    except (TypeError, ValueError, OverflowError) as error:
        raise InputError(where, "whole numbers as ids", str(error), "Check the ids.") from error


def _whole(row_id: Any) -> int:
    # Ids from a command line or a file are text.
    return int(row_id) if isinstance(row_id, str) else operator.index(row_id)


def free_id(base: Generation, mapper: Mapper) -> int:
    """Return a number such that no row has it or a greater one, deleted rows included."""
    if base.manifest.ids_kind != "integer":
        return base.manifest.next_id
    ids = StoredIds(base.readers)
    largest = mapper(_largest_id, ids.spans, ids)
    return max([base.manifest.next_id, *(id_ + 1 for id_ in largest)])


def _largest_id(span: Span, ids: StoredIds) -> int:
    return int(ids.take(np.arange(*span)).max())
