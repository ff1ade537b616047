"""Zarr metadata as untrusted JSON: what is understood is let in, all else is refused.

Nothing is allocated by what metadata say. Shapes and types must be sane, codecs must be
among those of ``codecs``; object arrays and pickles are never opened.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from distclust.errors import StoreError
from distclust.store.arrays import ArraySpec
from distclust.store.codecs import (
    TEXT,
    Blosc,
    ByteCodec,
    ByteOrder,
    Chain,
    Crc32c,
    Gzip,
    Zstd,
)

Json: TypeAlias = Mapping[str, Any]

_LONGEST_METADATA = 2**26  # bytes of JSON; a consolidated group may be long
_LARGEST_CHUNK = 2**34  # bytes
_LONGEST_SIDE = 2**53
NUMBERS = {
    name: np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("float16", "float32", "float64"),
    )
}
_ENDIAN: dict[str, ByteOrder] = {"little": "<", "big": ">"}
# Settings of an encoder do not matter to its decoder.
_BYTE_CODECS: dict[str, ByteCodec] = {
    "crc32c": Crc32c(),
    "blosc": Blosc(),
    "zstd": Zstd(),
    "gzip": Gzip(),
    "zlib": Gzip(),
}


def refused(where: str, expected: str, got: object) -> StoreError:
    """Say that metadata are not what they must be."""
    hint = "The store was damaged or made by a program that distclust does not know."
    return StoreError(where, expected, f"{got!r:.80}", hint)


def encode_json(values: Json) -> bytes:
    """Return metadata as they are written."""
    return json.dumps(values, indent=1).encode()


def decode_json(content: bytes, where: str) -> dict[str, Any]:
    """Return a JSON object."""
    try:
        values = json.loads(content) if len(content) <= _LONGEST_METADATA else None
    except (ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise refused(where, "a JSON object", content[:40])
    return values


def parse_array(values: Json, where: str) -> ArraySpec:
    """Return the array that Zarr v3 metadata describe."""
    try:
        if (values["zarr_format"], values["node_type"]) != (3, "array"):
            raise refused(where, "a Zarr array", values["node_type"])
        if values["chunk_grid"]["name"] != "regular" or values.get("storage_transformers"):
            raise refused(where, "a regular grid of chunks", values["chunk_grid"])
        dtype = _v3_type(values["data_type"], where)
        chunks = values["chunk_grid"]["configuration"]["chunk_shape"]
        shape, chunks = check_shapes(values["shape"], chunks, dtype, where)
        chain = _parse_chain(values["codecs"], chunks, dtype, where)
        prefix, separator = _v3_keys(values["chunk_key_encoding"], where)
        attributes = {**values.get("attributes", {})}
        fill = values["fill_value"]
    except (KeyError, TypeError, AttributeError) as error:
        raise refused(where, "the metadata of a Zarr array", f"{error!r}") from error
    return ArraySpec(shape, chunks, dtype, chain, attributes, fill, prefix, separator)


def parse_array_v2(values: Json, attributes: Json, where: str) -> ArraySpec:
    """Return the array that the ``.zarray`` and ``.zattrs`` of Zarr v2 describe."""
    try:
        if values["zarr_format"] != 2 or values["order"] != "C":
            raise refused(where, "a Zarr array in C order", values["order"])
        dtype, byte_order = _v2_type(values["dtype"], values["filters"], where)
        shape, chunks = check_shapes(values["shape"], values["chunks"], dtype, where)
        compressor = values["compressor"]
        codecs = () if compressor is None else (_byte_codec(compressor["id"], where),)
        separator = values.get("dimension_separator", ".")
        fill = values["fill_value"]
    except (KeyError, TypeError, AttributeError) as error:
        raise refused(where, "the metadata of a Zarr array", f"{error!r}") from error
    if separator not in (".", "/"):
        raise refused(where, "a separator of chunk names", separator)
    chain = Chain(codecs, byte_order=byte_order)
    return ArraySpec(shape, chunks, dtype, chain, attributes, fill, "", separator)


def check_shapes(
    shape: Any, chunks: Any, dtype: np.dtype[Any], where: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return shapes of an array and its chunks, one or two axes of sane length."""
    for sides, least in ((shape, 0), (chunks, 1)):
        is_sane = (
            isinstance(sides, (list, tuple))
            and len(sides) in (1, 2)
            and len(sides) == len(shape)
            and all(type(side) is int and least <= side <= _LONGEST_SIDE for side in sides)
        )
        if not is_sane:
            raise refused(where, "one or two axes of sane length", sides)
    if math.prod(chunks) * dtype.itemsize > _LARGEST_CHUNK:
        raise refused(where, f"chunks of at most {_LARGEST_CHUNK:,} bytes", chunks)
    return tuple(shape), tuple(chunks)


def _v3_type(name: Any, where: str) -> np.dtype[Any]:
    if name == "string":
        return TEXT
    if not isinstance(name, str) or name not in NUMBERS:
        raise refused(where, "numbers, booleans or strings", name)
    return NUMBERS[name]


def _v2_type(name: Any, filters: Any, where: str) -> tuple[np.dtype[Any], ByteOrder]:
    ids = [each["id"] for each in filters or ()]
    if name == "|O" and ids == ["vlen-utf8"]:
        return TEXT, "<"
    if not isinstance(name, str) or name[:1] not in "<>|" or ids:
        raise refused(where, "numbers, booleans or strings", (name, ids))
    try:
        dtype = np.dtype(name[1:]) if name[1:2] in "biuf" else None
    except TypeError:
        dtype = None
    if dtype is None or dtype.name not in NUMBERS:
        raise refused(where, "numbers, booleans or strings", name)
    return dtype, ">" if name[0] == ">" else "<"


def _v3_keys(encoding: Json, where: str) -> tuple[str, str]:
    name = encoding["name"]
    usual = {"default": "/", "v2": "."}.get(name, "")
    separator = encoding.get("configuration", {}).get("separator", usual)
    if name not in ("default", "v2") or separator not in (".", "/"):
        raise refused(where, "chunks named as Zarr does", encoding)
    return (f"c{separator}" if name == "default" else ""), separator


def _parse_chain(codecs: Any, chunks: tuple[int, ...], dtype: np.dtype[Any], where: str) -> Chain:
    (name, settings), *others = [_named(codec) for codec in codecs] or [("none", {})]
    if name == "sharding_indexed" and not others:
        return _parse_shard(settings, chunks, dtype, where)
    if name != ("vlen-utf8" if dtype == TEXT else "bytes"):
        raise refused(where, "numbers or strings as they are", name)
    byte_order = _ENDIAN[settings.get("endian", "little")]
    return Chain(tuple(_byte_codec(each, where) for each, _ in others), byte_order=byte_order)


def _parse_shard(
    settings: Json, chunks: tuple[int, ...], dtype: np.dtype[Any], where: str
) -> Chain:
    _, inner = check_shapes(chunks, settings["chunk_shape"], dtype, where)
    index = [_named(codec)[0] for codec in settings["index_codecs"]]
    location = settings.get("index_location", "end")
    whole = all(n % m == 0 for n, m in zip(chunks, inner, strict=True))
    if not whole or index != ["bytes", "crc32c"] or location not in ("start", "end"):
        raise refused(where, "shards of whole chunks with a checked index", settings)
    chain = _parse_chain(settings["codecs"], inner, dtype, where)
    if chain.inner is not None:
        raise refused(where, "shards of chunks", "shards of shards")
    return replace(chain, inner=inner, index_first=location == "start")


def _named(codec: Any) -> tuple[str, Json]:
    """Name and settings of a codec, which may be given by its name alone."""
    return (
        (codec, {}) if isinstance(codec, str) else (codec["name"], codec.get("configuration", {}))
    )


def _byte_codec(name: Any, where: str) -> ByteCodec:
    if name not in _BYTE_CODECS:
        raise refused(where, f"one of the codecs {', '.join(_BYTE_CODECS)}", name)
    return _BYTE_CODECS[name]
