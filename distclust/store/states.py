"""States as JSON values and arrays: what a checkpoint holds, without pickle.

A state is a frozen dataclass. Its fields are arrays, JSON values or random generators; a
generator is kept as the numbers of its bit generator and goes on where it was.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError

State = TypeVar("State")

_GENERATOR = "numpy.random.Generator"


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
        elif isinstance(value, np.random.Generator):
            values[field.name] = {_GENERATOR: value.bit_generator.state}
        else:
            values[field.name] = value.item() if isinstance(value, np.generic) else value
    return values, arrays


def unpack_state(
    kind: type[State], values: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
) -> State:
    """Return the state that `pack_state` took apart."""
    if not dataclasses.is_dataclass(kind):
        raise _not_a_state(kind)
    restored = {name: _restore(value) for name, value in values.items()}
    return kind(**restored, **arrays)


def _restore(value: Any) -> Any:
    if not (isinstance(value, Mapping) and set(value) == {_GENERATOR}):
        return value
    numbers = value[_GENERATOR]
    bits = getattr(np.random, str(numbers["bit_generator"]))()
    bits.state = numbers
    return np.random.Generator(bits)


def _not_a_state(kind: type) -> InputError:
    hint = "Decorate the class with @dataclass(frozen=True)."
    return InputError("state", "a dataclass of arrays and JSON values", kind.__name__, hint)
