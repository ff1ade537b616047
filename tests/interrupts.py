"""Work that is interrupted whenever it has read so many blocks of a store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from distclust.store.stored_matrix import StoredMatrix

Result = TypeVar("Result")

MOST_CUTS = 100


def read_in_parts(work: Callable[[], Result], at_once: int) -> tuple[Result, int, int]:
    """Begin `work` again and again until it ends; return its result, reads and interrupts."""
    n_read, n_cuts, most = 0, 0, at_once
    plain = StoredMatrix.block

    def counted(self: StoredMatrix, index: int) -> Any:
        nonlocal n_read
        if n_read == most:
            raise KeyboardInterrupt
        n_read += 1
        return plain(self, index)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DISTCLUST_THREADS", "1")
        patch.setattr(StoredMatrix, "block", counted)
        while True:
            try:
                return work(), n_read, n_cuts
            except KeyboardInterrupt:
                n_cuts, most = n_cuts + 1, most + at_once
                assert n_cuts < MOST_CUTS, "the work does not come on"
