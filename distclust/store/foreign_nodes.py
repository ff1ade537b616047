"""Groups and arrays in Zarr stores of other programs, v2 or v3."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.errors import StoreError
from distclust.store.arrays import ABSENT_HINT, METADATA, ArraySpec, StoredArray, join
from distclust.store.codecs import TEXT
from distclust.store.objects import MissingObject, Objects
from distclust.store.zarr_metadata import decode_json, parse_array, parse_array_v2, refused

Array: TypeAlias = npt.NDArray[Any]
Json: TypeAlias = Mapping[str, Any]
MissingChunks: TypeAlias = Literal["refuse", "zeros"]

_LARGEST_CHUNK = 2**30  # bytes; a few compressed ones may claim any number


@dataclass(frozen=True)
class Node:
    """A group, or an array, with its attributes."""

    attributes: Json
    array: ArraySpec | None = None


def read_node(objects: Objects, path: str) -> Node | None:
    """Return what lies at a path, in Zarr v3 or v2; None if nothing does."""
    values = _read_json(objects, join(path, METADATA))
    if values is not None:
        return _node(values, objects.where(path))
    attributes = _read_json(objects, join(path, ".zattrs")) or {}
    values = _read_json(objects, join(path, ".zarray"))
    if values is not None:
        return Node(attributes, parse_array_v2(values, attributes, objects.where(path)))
    return None if _read_json(objects, join(path, ".zgroup")) is None else Node(attributes)


def _node(values: Json, where: str) -> Node:
    if values.get("node_type") == "array":
        array = parse_array(values, where)
        return Node(array.attributes, array)
    attributes = values.get("attributes", {})
    if values.get("node_type") != "group" or not isinstance(attributes, dict):
        raise refused(where, "a Zarr group or array", values.get("node_type"))
    return Node(attributes)


def _read_json(objects: Objects, key: str) -> dict[str, Any] | None:
    try:
        content = objects.read(key)
    except MissingObject:
        return None
    return decode_json(content, objects.where(key))


class ForeignArray(StoredArray):
    """An array without a table; absent chunks are refused, or are zeros or empty strings."""

    def __init__(
        self, objects: Objects, path: str, spec: ArraySpec, missing_chunks: MissingChunks
    ) -> None:
        super().__init__(objects, path, spec)
        if math.prod(spec.chunks) * spec.dtype.itemsize > _LARGEST_CHUNK:
            expected = f"chunks of at most {_LARGEST_CHUNK:,} bytes"
            raise StoreError(objects.where(path), expected, f"{spec.chunks}", "Rechunk the array.")
        self.absent_are_zeros = missing_chunks == "zeros" and not spec.fill_value
        if not self.absent_are_zeros:
            self._check_presence()

    def _check_presence(self) -> None:
        """Refuse an array that lacks chunks, however many it claims to have."""
        there = set(self.objects.list(self.path))
        for number in range(min(self.spec.n_chunks, len(there) + 1)):
            key = join(self.path, self.spec.key(number))
            if key not in there:
                where, expected = self.objects.where(self.path), f"{self.spec.n_chunks} chunks"
                raise StoreError(where, expected, f"no chunk {key}", ABSENT_HINT)

    def chunk(self, number: int) -> Array:
        """Values of a chunk."""
        try:
            return super().chunk(number)
        except MissingObject:
            if not self.absent_are_zeros:
                raise
            empty = "" if self.spec.dtype == TEXT else 0
            return np.full(self.spec.chunks, empty, self.spec.dtype)
