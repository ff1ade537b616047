"""States as JSON values and arrays: what a checkpoint holds, without pickle.

A state is a frozen dataclass. Its fields are arrays, numbers, JSON values or random
generators; a generator is kept as the numbers of its bit generator and goes on where it was.
What would come back as something else (a tuple as a list) is refused when it is saved.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError

State = TypeVar("State")

_GENERATOR = "numpy.random.Generator"
_NUMBER = "numpy.number"


def pack_state(state: Any) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Return the fields of a state: JSON values by name, and arrays by name."""
    if not dataclasses.is_dataclass(state) or isinstance(state, type):
        raise _not_a_state(type(state))
    values: dict[str, Any] = {}
    arrays: dict[str, npt.NDArray[Any]] = {}
    for field in dataclasses.fields(state):
        value = getattr(state, field.name)
        if isinstance(value, np.ndarray):
            arrays[field.name] = value
        else:
            values[field.name] = _packed(value, f"{type(state).__name__}.{field.name}")
    return values, arrays


def unpack_state(
    kind: type[State], values: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
) -> State:
    """Return the state that `pack_state` took apart."""
    if not dataclasses.is_dataclass(kind):
        raise _not_a_state(kind)
    restored = {name: _restore(value) for name, value in values.items()}
    return kind(**restored, **arrays)


def with_own_generators(state: State) -> State:
    """Return the state with copies of its generators: drawing from them leaves it as it is."""
    copies = {
        field.name: copy.deepcopy(value)
        for field in dataclasses.fields(state)  # type: ignore[arg-type]
        if isinstance(value := getattr(state, field.name), np.random.Generator)
    }
    return dataclasses.replace(state, **copies) if copies else state  # type: ignore[type-var]


def as_restored(state: State) -> State:
    """Return the state as it would come back from a checkpoint: its arrays lie in one piece.

    A product of the same numbers may differ in its last bits when they lie elsewhere, so work
    that goes on from memory and work that goes on from a checkpoint begin with the same.
    """
    copies = {
        field.name: _in_one_piece(value)
        for field in dataclasses.fields(state)  # type: ignore[arg-type]
        if isinstance(value := getattr(state, field.name), np.ndarray)
        and not (value.flags.c_contiguous or value.flags.f_contiguous)
    }
    return dataclasses.replace(state, **copies) if copies else state  # type: ignore[type-var]


def _in_one_piece(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a copy whose elements lie as they did, but for the gaps: that is the fastest."""
    copied = np.array(array, order="K")
    if copied.flags.c_contiguous or copied.flags.f_contiguous:
        return copied
    return np.ascontiguousarray(copied)


def _packed(value: Any, where: str) -> Any:
    if isinstance(value, np.random.Generator):
        return {_GENERATOR: _plain(value.bit_generator.state)}
    if isinstance(value, np.bool_ | np.integer | np.floating):
        # The next sum may depend on how many bits a number has.
        return {_NUMBER: [value.dtype.str, value.item()]}
    _check_json(value, where)
    return value


def _plain(value: Any) -> Any:
    """Return the numbers of a bit generator as JSON values."""
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def _check_json(value: Any, where: str) -> None:
    if value is None or type(value) in {bool, int, float, str}:
        return
    if type(value) is list:
        for part in value:
            _check_json(part, where)
    elif type(value) is dict and all(type(name) is str for name in value):
        for part in value.values():
            _check_json(part, where)
    else:
        expected = "an array, a number, a generator or a JSON value"
        hint = "Write a list instead of a tuple, and names of type str."
        raise InputError(where, expected, type(value).__name__, hint)


def _restore(value: Any) -> Any:
    if not isinstance(value, Mapping):
        return value
    if set(value) == {_NUMBER}:
        kind, number = value[_NUMBER]
        return np.dtype(kind).type(number)
    if set(value) != {_GENERATOR}:
        return value
    numbers = value[_GENERATOR]
    bits = getattr(np.random, str(numbers["bit_generator"]))()
    bits.state = numbers
    return np.random.Generator(bits)


def _not_a_state(kind: type) -> InputError:
    hint = "Decorate the class with @dataclass(frozen=True)."
    return InputError("state", "a dataclass of arrays and JSON values", kind.__name__, hint)
