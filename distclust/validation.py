"""Loose values become strict ones here, once, at the border of the package."""

from __future__ import annotations

import math
import numbers
import re
from collections.abc import Collection
from typing import TypeVar

import numpy as np

from distclust.errors import InputError

Choice = TypeVar("Choice", bound=str)


def check_real(
    value: object,
    where: str,
    *,
    above: float = -math.inf,
    below: float = math.inf,
    at_least: float = -math.inf,
    at_most: float = math.inf,
) -> float:
    """Return `value` as a float, or say which range it had to lie in."""
    allowed = isinstance(value, numbers.Real) and not isinstance(value, (bool, np.bool_))
    number = float(value) if allowed else math.nan  # type: ignore[arg-type]
    if above < number < below and at_least <= number <= at_most:
        return number
    low = f"above {above:g}" if at_least == -math.inf else f"at least {at_least:g}"
    high = f"below {below:g}" if at_most == math.inf else f"at most {at_most:g}"
    limits = [low] if math.isfinite(max(above, at_least)) else []
    limits += [high] if math.isfinite(min(below, at_most)) else []
    expected = "a finite number" + (" " + " and ".join(limits) if limits else "")
    raise InputError(where, expected, repr(value), "Pass a value in that range.")


def check_integer(value: object, where: str, *, at_least: int = 0) -> int:
    """Return `value` as an int that is not too small."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, (bool, np.bool_))
    if whole and int(value) >= at_least:  # type: ignore[call-overload]
        return int(value)  # type: ignore[call-overload, no-any-return]
    raise InputError(
        where, f"a whole number of at least {at_least}", repr(value), "Pass such a number."
    )


def check_choice(value: object, where: str, choices: Collection[Choice]) -> Choice:
    """Return `value` if it is one of the named options."""
    for choice in choices:
        if value == choice and isinstance(value, str):
            return choice
    names = ", ".join(repr(choice) for choice in choices)
    raise InputError(where, f"one of {names}", repr(value), "Choose one of them.")


def check_flag(value: object, where: str) -> bool:
    """Return `value` if it is a boolean, not merely something truthy."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    raise InputError(where, "True or False", repr(value), "Pass a boolean.")


def check_bytes(value: object, where: str) -> int:
    """Return a number of bytes from a number or a text such as ``"4 GB"`` or ``"512 MiB"``."""
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kMGT]i?)?B?\s*", value)
        if match:
            prefix = match[2] or ""
            base = 1024 if prefix.endswith("i") else 1000
            return int(float(match[1]) * base ** " kMGT".index(prefix[:1] or " "))
    elif isinstance(value, numbers.Real) and not isinstance(value, bool):
        size = float(value)
        if 1 <= size < math.inf:
            return int(size)
    raise InputError(where, "a number of bytes such as '4 GB'", repr(value), "Pass a size.")
