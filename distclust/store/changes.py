"""What became of the rows of a store between two of its generations.

Rows are only ever added at the end or declared deleted, so the rows of the later generation are
those of the earlier one, in their order and without the deleted ones, and then the added ones:

    before   0 1 2 3 4 5        rows 1 and 4 are deleted
    after    0 . 1 2 . 3 4 5    kept rows are 0 to 3, rows 4 and 5 were added

Where that does not hold, as after the store was compacted or rolled back, nothing is said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.store.stored_matrix import StoredMatrix

Rows: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Changes:
    """Rows that came and went.

    Attributes
    ----------
    n_before, n_after
        Rows of the earlier generation and of the later one.
    deleted
        Rows of the earlier one that are deleted in the later one, ascending.
    """

    n_before: int
    n_after: int
    deleted: Rows

    @property
    def n_kept(self) -> int:
        """How many rows are in both; in the later one they are the first."""
        return self.n_before - len(self.deleted)

    @property
    def n_added(self) -> int:
        """How many rows are new; in the later one they are the last."""
        return self.n_after - self.n_kept

    @property
    def n_unmoved(self) -> int:
        """How many rows, the first ones, are numbered as before."""
        return int(self.deleted[0]) if len(self.deleted) else self.n_before

    @property
    def is_nothing(self) -> bool:
        """Whether the rows are the same."""
        return self.n_added == 0 and len(self.deleted) == 0

    def rows_before(self, start: int, stop: int) -> Rows:
        """Return what the kept rows ``[start, stop)`` were numbered before, shape (n,)."""
        rows = np.arange(start, min(stop, self.n_kept))
        skipped = np.searchsorted(self.deleted - np.arange(len(self.deleted)), rows, "right")
        return rows + skipped


def changes_between(before: StoredMatrix, after: StoredMatrix) -> Changes | None:
    """Return what became of the rows, or None if the later one does not build on the earlier."""
    old, new = before.generation.manifest, after.generation.manifest
    contents = [entry.content for entry in old.segments]
    if [entry.content for entry in new.segments[: len(contents)]] != contents:
        return None
    dead_before, dead_after = before.generation.tombstones, after.generation.tombstones
    if len(np.setdiff1d(dead_before, dead_after, assume_unique=True)):
        return None
    gone = np.setdiff1d(dead_after[dead_after < old.n_stored], dead_before, assume_unique=True)
    numbers = gone - np.searchsorted(dead_before, gone)
    return Changes(before.shape[0], after.shape[0], numbers)
