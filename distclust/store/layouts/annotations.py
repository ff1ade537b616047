"""What comes with the rows of a segment: ids, their keys, and columns of annotations.

``obs`` is a data frame as AnnData keeps one. ``obs/_key`` holds the 64-bit keys of the ids,
which AnnData passes over as they are not in its list of columns. Text columns may miss
values: a mask beside the strings says which.

A column whose name would not do as the name of an object, or differs from another's in case
only, lies in ``column-<number>``; other tools see that name, distclust the right one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from distclust.errors import InputError
from distclust.seeding import row_keys
from distclust.store.arrays import ArraySpec
from distclust.store.codecs import TEXT
from distclust.store.layouts.base import Array, ObsKind, OpenArray, Piece, SegmentSpec, encoded
from distclust.store.rows import Rows

_DTYPES: dict[ObsKind, Any] = {"integer": np.int64, "real": np.float64, "bool": np.bool_}
_PLAIN = re.compile(r"(?!column-\d)[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def obs_paths(spec: SegmentSpec) -> dict[str, str]:
    """Name of every annotation to the path of its array or group."""
    paths: dict[str, str] = {}
    taken = set()
    for number, (name, _) in enumerate(spec.obs):
        is_plain = _PLAIN.fullmatch(name) is not None and name.lower() not in taken
        paths[name] = f"obs/{name}" if is_plain else f"obs/column-{number}"
        taken.add(name.lower())
    return paths


def obs_arrays(spec: SegmentSpec) -> dict[str, ArraySpec]:
    """Arrays of ids, keys and annotations, by path."""
    shape, chunks = (spec.n_rows,), (spec.chunk_rows,)
    text = spec.array(shape, chunks, TEXT, "string-array")
    numbers = {kind: spec.array(shape, chunks, dtype, "array") for kind, dtype in _DTYPES.items()}
    arrays = {
        "obs/_index": text if spec.ids_kind == "text" else numbers["integer"],
        "obs/_key": spec.array(shape, chunks, np.uint64, "array"),
    }
    paths = obs_paths(spec)
    for name, kind in spec.obs:
        if kind == "text":
            arrays[f"{paths[name]}/values"] = text
            arrays[f"{paths[name]}/mask"] = numbers["bool"]
        else:
            arrays[paths[name]] = numbers[kind]
    return arrays


def obs_groups(spec: SegmentSpec) -> dict[str, dict[str, Any]]:
    """Attributes of the groups of annotations, by path."""
    paths = obs_paths(spec)
    columns = [path.removeprefix("obs/") for path in paths.values()]
    groups = {"obs": frame(columns)}
    for name, kind in spec.obs:
        if kind == "text":
            groups[paths[name]] = encoded("nullable-string-array", "0.1.0")
    return groups


def frame(columns: list[str]) -> dict[str, Any]:
    """Attributes of a data frame."""
    return {**encoded("dataframe"), "_index": "_index", "column-order": columns}


def obs_pieces(spec: SegmentSpec, index: int, rows: Rows) -> Iterator[Piece]:
    """Chunks of ids, keys and annotations of block `index`."""
    ids = _text(rows.ids, "ids") if spec.ids_kind == "text" else _typed(rows.ids, "integer", "ids")
    yield "obs/_index", index, ids
    yield "obs/_key", index, row_keys(ids)
    paths = obs_paths(spec)
    for name, kind in spec.obs:
        column = np.asarray(rows.obs[name])
        if kind == "text":
            mask = np.array([text is None for text in column], np.bool_)
            yield f"{paths[name]}/values", index, _text(np.where(mask, "", column), name)
            yield f"{paths[name]}/mask", index, mask
        else:
            yield paths[name], index, _typed(column, kind, name)


def _typed(values: Array, kind: ObsKind, name: str) -> Array:
    """Values in the type of their kind, none of them changed by it."""
    with np.errstate(invalid="ignore"):
        typed = values.astype(_DTYPES[kind])
        is_equal = typed == values
        if values.dtype.kind in "iu":  # numpy compares large ones as it rounds them
            is_equal &= typed.astype(values.dtype) == values
    if kind == "real":
        is_equal |= values != values
    if not is_equal.all():
        got = repr(values[~is_equal][0])
        raise InputError(name, f"{kind} values", got, "Convert the column, or keep it as text.")
    return typed


def _text(values: Array, name: str) -> Array:
    """Values as strings that can be written as UTF-8."""
    texts = values.astype(TEXT)
    for text in texts:
        if not isinstance(text, str) or not (text.isascii() or _is_utf8(text)):
            raise InputError(name, "text that UTF-8 can write", repr(text), "Convert the column.")
    return texts


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def read_obs(spec: SegmentSpec, name: str, index: int, open_array: OpenArray) -> Array:
    """Annotation `name` of the rows of a block; None where text is missing."""
    start, stop = spec.block_bounds(index)
    path = obs_paths(spec)[name]
    if dict(spec.obs)[name] != "text":
        return open_array(path).chunk(index)[: stop - start]
    texts = open_array(f"{path}/values").chunk(index)[: stop - start].copy()
    texts[open_array(f"{path}/mask").chunk(index)[: stop - start]] = None
    return texts
