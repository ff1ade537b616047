"""Kernel tiles of few rows, so that a few hundred rows make many shards."""

from __future__ import annotations

import importlib
import pkgutil
from typing import Any

import pytest
from distributed import WorkerPlugin

from distclust import projections

TILE = 16


def shrink(patch: pytest.MonkeyPatch, tile: int = TILE) -> None:
    """Make tiles small in this process, in every module that took the number by its name."""
    for found in pkgutil.iter_modules(projections.__path__):
        module = importlib.import_module(f"{projections.__name__}.{found.name}")
        if hasattr(module, "TILE"):
            patch.setattr(module, "TILE", tile)


class SmallTiles(WorkerPlugin):
    """Makes tiles small on every worker, also on those that come back after a death."""

    name = "small-tiles"

    def __init__(self, tile: int = TILE) -> None:
        self._tile = tile

    def setup(self, worker: Any) -> None:
        shrink(pytest.MonkeyPatch(), self._tile)
