"""Compiled loops behind :mod:`distclust.projections.kernels`."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.compiled import compiled

Doubles = npt.NDArray[np.float64]
Floats = npt.NDArray[np.floating[Any]]

_LOG2_E = 1.4426950408889634
# log 2 in two parts, the first with so few digits that whole multiples of it are exact.
_LOG_2 = float.fromhex("0x1.62e42fefa0000p-1")
_LOG_2_REST = float.fromhex("0x1.cf79abc9e3b39p-40")
_TO_WHOLE = 1.5 * 2.0**52  # added to a number, it leaves the nearest whole one in the last bits
_BIAS = 1023  # of the exponent of a double
_LEAST = -708.0  # below it e to the power is nothing
_BUFFER = 1024  # numbers that are rounded at a time

# 1 / k!
_C2, _C3, _C4, _C5 = 1 / 2, 1 / 6, 1 / 24, 1 / 120
_C6, _C7, _C8, _C9 = 1 / 720, 1 / 5040, 1 / 40320, 1 / 362880
_C10, _C11, _C12, _C13 = 1 / 3628800, 1 / 39916800, 1 / 479001600, 1 / 6227020800


@compiled
def exponential(x: float) -> float:
    """Return e to the power of a number; one above 0 counts as 0.

    x = n log 2 + r with whole n and |r| at most log 2 / 2; e to the r by thirteen terms of its
    series, in pairs, so that processors do several at once. Within one unit in the last place.
    Without branches and calls a loop is done for several numbers at once, which that of the
    mathematical library is not on many processors.
    """
    bounded = min(max(x, _LEAST), 0.0)
    shifted = bounded * _LOG2_E + _TO_WHOLE
    n = shifted - _TO_WHOLE
    r = (bounded - n * _LOG_2) - n * _LOG_2_REST
    square = r * r
    series = (_C13 * r + _C12) * square + (_C11 * r + _C10)
    series = series * square + (_C9 * r + _C8)
    series = series * square + (_C7 * r + _C6)
    series = series * square + (_C5 * r + _C4)
    series = series * square + (_C3 * r + _C2)
    power = np.int64((np.float64(shifted).view(np.int64) + _BIAS) << 52).view(np.float64)
    value = (series * square + r + 1.0) * power
    return 0.0 if x < _LEAST else value  # what is no number stays none


@compiled
def raise_e(exponents: Doubles) -> None:
    """Raise e to the power of each, in place; see `exponential`."""
    for i in range(exponents.size):
        exponents[i] = exponential(exponents[i])


@compiled
def round_in_place(numbers: Floats, rounded: Floats) -> None:
    """Round doubles into the first half of the memory they are in, from the first one on.

    By way of other memory, so that several at once are not in each other's way.
    """
    some = np.empty(_BUFFER, np.float32)
    for start in range(0, numbers.size, _BUFFER):
        whole, half = numbers[start : start + _BUFFER], rounded[start : start + _BUFFER]
        for i in range(len(whole)):
            some[i] = np.float32(whole[i])
        for i in range(len(whole)):
            half[i] = some[i]
