"""Annotations of rows whose kind is known only when all rows have been read.

Every piece says which kinds of values it met and whether some are missing, and keeps them in
the narrowest form that loses nothing. All pieces together settle the kind, wherever they were
cut: whole numbers among others become real ones, and so do those of which some are missing
(as NaN), unless they are too long for that; any other mixture, and truth values of which some
are missing, become text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.store.sources.base import ObsKind
from distclust.store.sources.flat import flatten_texts, rebuild_texts

Array: TypeAlias = npt.NDArray[Any]

_TYPES = {"bool": np.bool_, "integer": np.int64, "real": np.float64}
_LARGEST = 2**63 - 1
_LARGEST_EXACT = 2**53  # of the whole numbers among real ones


def pack_annotation(key: str, values: Sequence[Any]) -> tuple[list[Any], dict[str, Array]]:
    """Return what is known about the values of one piece, and the arrays that hold them.

    Parameters
    ----------
    key
        What the arrays are named by.
    values
        JSON values, shape (n,); None is missing. What is neither text nor a number nor a
        truth value is kept as JSON text.

    Returns
    -------
    Kinds and whether some are missing, as JSON; the arrays.
    """
    kinds = {_kind(value) for value in values if value is not None}
    found = [sorted(kinds), None in values]
    kind = _settle(kinds)
    if kind == "text":
        return found, flatten_texts([_as_text(value) for value in values], key)
    dtype: Any = _TYPES[kind]
    is_missing = np.array([value is None for value in values], np.bool_)
    filled = np.array([dtype(0) if value is None else value for value in values], dtype)
    return found, {key: filled, f"{key}.missing": is_missing}


def settle_kind(found: Iterable[Sequence[Any]], expected: ObsKind | None = None) -> ObsKind:
    """Return the kind that holds the values of all pieces, and fits what is expected.

    Parameters
    ----------
    found
        Of every piece, what `pack_annotation` said.
    expected
        Kind of the same annotation in a store that the rows are to join.
    """
    pairs = list(found)
    kinds = {kind for some, _ in pairs for kind in some} | ({expected} if expected else set())
    if not any(is_missing for _, is_missing in pairs):
        return _settle(kinds)
    return _settle(kinds | {"real"}) if kinds != {"bool"} else "text"


def _settle(kinds: set[str]) -> ObsKind:
    if kinds == {"bool"}:
        return "bool"
    if kinds and kinds <= {"integer", "long"}:
        return "integer"
    return "real" if kinds <= {"integer", "real"} else "text"


def unpack_annotation(arrays: Mapping[str, Array], key: str, kind: ObsKind, n_rows: int) -> Array:
    """Return one annotation of a piece in the settled kind, shape (n_rows,).

    A piece that never met it has nothing but missing values.
    """
    if f"{key}.ends" in arrays:
        return rebuild_texts(arrays, key)
    values = arrays.get(key, np.zeros(n_rows))
    is_missing = arrays.get(f"{key}.missing", np.ones(n_rows, np.bool_))
    if kind == "text":
        texts = np.empty(n_rows, object)
        texts[:] = [_as_text(value) for value in values.tolist()]
        texts[is_missing] = None
        return texts
    converted: Array = values.astype(_TYPES[kind])
    if kind == "real":
        converted[is_missing] = np.nan
    return converted


def _kind(value: Any) -> str:
    if type(value) is int:
        size = abs(value)
        return "integer" if size <= _LARGEST_EXACT else "long" if size <= _LARGEST else "text"
    return {bool: "bool", float: "real"}.get(type(value), "text")


def _as_text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    # A whole number reads the same whether it was met among real ones or not.
    is_whole = isinstance(value, float) and value.is_integer()
    return json.dumps(int(value) if is_whole else value, ensure_ascii=False)
