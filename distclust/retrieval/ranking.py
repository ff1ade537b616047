"""The best rows of a corpus, found in parts and put together."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Top:
    """The best rows of some part: by falling score, equal ones by row number.

    Attributes
    ----------
    rows, scores
        Numbers of the rows and their exact scores, shape (at most k,).
    """

    rows: Indices
    scores: Floats

    def floor(self, k: int) -> float:
        """Return the score below which no further row can be among the best `k`."""
        return float(self.scores[k - 1]) if len(self.scores) >= k else -np.inf


NOBODY = Top(np.empty(0, np.int64), np.empty(0))


def best(rows: Indices, scores: Floats, k: int) -> Top:
    """Return the best `k` of some rows."""
    order = np.lexsort((rows, -scores))[:k]
    return Top(rows[order], scores[order])


def merge(parts: Iterable[Top], k: int) -> Top:
    """Return the best `k` of what parts of the corpus found."""
    found = list(parts)
    if len(found) == 1:
        return Top(found[0].rows[:k], found[0].scores[:k])
    rows = np.concatenate([NOBODY.rows, *(part.rows for part in found)])
    return best(rows, np.concatenate([NOBODY.scores, *(part.scores for part in found)]), k)


def highest(approximate: npt.NDArray[np.float32], k: int) -> float:
    """Return the k-th highest value, minus infinity if there are fewer."""
    if len(approximate) < k:
        return -np.inf
    return float(np.partition(approximate, len(approximate) - k)[len(approximate) - k])


def just_below(threshold: float) -> Any:
    """Return a threshold in 32 bits: rounding must not raise it."""
    return np.nextafter(np.float32(threshold), np.float32(-np.inf))
