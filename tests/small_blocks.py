"""Blocks of few rows, so that a few thousand rows make many blocks and several spans."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from distributed import WorkerPlugin

from distclust.store import matrix
from distclust.store.generation import Generation

BLOCK_ROWS = 64


def block_rows_for(n_features: int, is_sparse: bool) -> int:
    return BLOCK_ROWS


def block_rows(generation: Generation) -> int:
    return BLOCK_ROWS


def shrink(patch: pytest.MonkeyPatch) -> None:
    """Make blocks small in this process: of matrices in memory and of stores."""
    patch.setattr(matrix, "block_rows_for", block_rows_for)
    patch.setattr(Generation, "block_rows", property(block_rows))


class SmallBlocks(WorkerPlugin):
    """Makes blocks small on every worker, also on those that come back after a death."""

    name = "small-blocks"

    def setup(self, worker: Any) -> None:
        shrink(pytest.MonkeyPatch())


def planted(n_rows: int, n_features: int, n_clusters: int, seed: int = 0) -> npt.NDArray[np.uint8]:
    """Binary rows of clusters whose sizes fall, three alike in each group of clusters."""
    rng = np.random.default_rng(seed)
    sizes = 1.2 ** -np.arange(n_clusters)
    cluster = rng.choice(n_clusters, size=n_rows, p=sizes / sizes.sum())
    groups = rng.uniform(0.08, 0.92, size=(n_clusters // 3 + 1, n_features))
    ones = groups[np.arange(n_clusters) // 3]
    ones = np.where(rng.random(ones.shape) < 0.1, 1.0 - ones, ones)
    return (rng.random((n_rows, n_features)) < ones[cluster]).astype(np.uint8)
