"""Values as JSON and arrays: what pieces of work return, kept without pickle.

A value is a number, text, array, CSR matrix, tuple, list, dictionary, or a dataclass of the
package with fields of these kinds; each comes back as what it was, to the bit.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse

from distclust.errors import InputError

Arrays = dict[str, npt.NDArray[Any]]

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
