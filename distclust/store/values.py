"""Values as JSON and arrays: what pieces of work return, kept without pickle.

A value is a number, text, array, CSR matrix, tuple, list, dictionary, or a dataclass of the
package with fields of these kinds; each comes back as what it was, to the bit. One object of a
store holds a value so:

    magic (4 bytes), padding (4), length of the JSON part (8)
    JSON: the value, and type, shape and order of each array
    the arrays, each at a multiple of 64 bytes
    XXH3 digest (16) of the object's key and of all bytes before it
"""

from __future__ import annotations

import dataclasses
import importlib
import json
import math
import struct
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from distclust.errors import InputError
from distclust.store.objects import checksum

Arrays = dict[str, npt.NDArray[Any]]

_MAGIC = b"dcva"
_START = struct.Struct("<4s4xQ")
_DIGEST_BYTES = 16
_ALIGNMENT = 64

_PACKAGE = "distclust."
_ARRAY, _CSR, _TUPLE, _NUMBER, _DATACLASS, _MAPPING = (
    "array", "csr", "tuple", "number", "dataclass", "mapping",
)  # fmt: skip
_CSR_TYPES: dict[str, Any] = {
    "array": scipy.sparse.csr_array,
    "matrix": scipy.sparse.csr_matrix,
}


def pack_value(value: Any) -> tuple[Any, Arrays]:
    """Return a value as one of JSON, and the arrays that it names.

    Raises
    ------
    InputError
        If it holds something that could not come back as what it was.
    """
    arrays: Arrays = {}
    return _pack(value, arrays), arrays


def unpack_value(packed: Any, arrays: Mapping[str, npt.NDArray[Any]]) -> Any:
    """Return the value that `pack_value` took apart."""
    if isinstance(packed, list):
        return [unpack_value(part, arrays) for part in packed]
    if not isinstance(packed, dict):
        return packed
    ((kind, content),) = packed.items()
    if kind == _ARRAY:
        return arrays[content]
    if kind == _TUPLE:
        return tuple(unpack_value(part, arrays) for part in content)
    if kind == _NUMBER:
        return np.dtype(content[0]).type(content[1])
    if kind == _CSR:
        parts = tuple(arrays[name] for name in content["parts"])
        return _CSR_TYPES[content["type"]](parts, shape=tuple(content["shape"]))
    values = {name: unpack_value(part, arrays) for name, part in content["fields"].items()}
    return values if kind == _MAPPING else _dataclass_named(content["type"])(**values)


def encode_value(key: str, value: Any) -> Iterator[Any]:
    """Yield the buffers of the object that holds a value under a key."""
    packed, arrays = pack_value(value)
    laid = {name: _in_one_piece(array) for name, array in arrays.items()}
    facts = {name: _facts_of(array) for name, array in laid.items()}
    header = json.dumps([packed, facts], separators=(",", ":")).encode()
    parts: list[Any] = [_START.pack(_MAGIC, len(header)) + header]
    at = len(parts[0])
    for array in laid.values():
        flat = array.reshape(-1, order="A").view(np.uint8)
        parts += [bytes(-at % _ALIGNMENT), flat]
        at += -at % _ALIGNMENT + len(flat)
    yield from parts
    yield checksum(key.encode(), *parts)


def decode_value(key: str, content: npt.NDArray[np.uint8]) -> Any:
    """Return the value that an object holds; its arrays share the memory of `content`.

    Raises
    ------
    ValueError
        If the object was altered or cut off, or is not what was written under this key.
    """
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:].tobytes()
    if len(body) < _START.size or checksum(key.encode(), body) != digest:
        raise ValueError("an altered or truncated object")
    magic, n_header = _START.unpack(body[: _START.size].tobytes())
    if magic != _MAGIC:
        raise ValueError("a foreign object")
    at = _START.size + n_header
    packed, facts = json.loads(body[_START.size : at].tobytes())
    arrays: Arrays = {}
    for name, (kind, shape, order) in facts.items():
        dtype = np.dtype(kind)
        at += -at % _ALIGNMENT
        n_bytes = dtype.itemsize * math.prod(shape)
        arrays[name] = body[at : at + n_bytes].view(dtype).reshape(shape, order=order)
        at += n_bytes
    return unpack_value(packed, arrays)


def _in_one_piece(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return array if array.flags.forc else np.ascontiguousarray(array)


def _facts_of(array: npt.NDArray[Any]) -> list[Any]:
    if array.dtype.hasobject or array.dtype.names is not None:
        got, hint = f"an array of {array.dtype}", "Return numbers or text."
        raise InputError("a result to be kept", "arrays of numbers or text", got, hint)
    return [array.dtype.str, list(array.shape), "C" if array.flags.c_contiguous else "F"]


def _pack(value: Any, arrays: Arrays) -> Any:
    if value is None or type(value) in {bool, int, float, str}:
        return value
    if isinstance(value, np.ndarray):
        return {_ARRAY: _named(value, arrays)}
    if isinstance(value, np.bool_ | np.number):
        return {_NUMBER: [value.dtype.str, value.item()]}
    if isinstance(value, scipy.sparse.csr_array | scipy.sparse.csr_matrix):
        which = "array" if isinstance(value, scipy.sparse.csr_array) else "matrix"
        parts = [_named(part, arrays) for part in (value.data, value.indices, value.indptr)]
        return {_CSR: {"type": which, "shape": list(value.shape), "parts": parts}}
    if type(value) is tuple:
        return {_TUPLE: [_pack(part, arrays) for part in value]}
    if type(value) is list:
        return [_pack(part, arrays) for part in value]
    if type(value) is dict and all(type(name) is str for name in value):
        return {_MAPPING: {"fields": {name: _pack(part, arrays) for name, part in value.items()}}}
    kind = type(value)
    if dataclasses.is_dataclass(kind) and str(kind.__module__).startswith(_PACKAGE):
        fields = {f.name: _pack(getattr(value, f.name), arrays) for f in dataclasses.fields(kind)}
        return {_DATACLASS: {"type": f"{kind.__module__}:{kind.__name__}", "fields": fields}}
    expected = "numbers, arrays and dataclasses of the package"
    raise InputError("a result to be kept", expected, kind.__name__, "Return one of these.")


def _named(array: npt.NDArray[Any], arrays: Arrays) -> str:
    name = str(len(arrays))
    arrays[name] = array
    return name


def _dataclass_named(name: str) -> Any:
    module, _, qualified = name.partition(":")
    if module.startswith(_PACKAGE):
        kind = getattr(importlib.import_module(module), qualified, None)
        if isinstance(kind, type) and dataclasses.is_dataclass(kind):
            return kind
    raise InputError("a kept result", "a dataclass of the package", name, "Start the run afresh.")
