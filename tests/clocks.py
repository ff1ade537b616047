"""Clocks to be turned by hand, for one module each.

Nobody else's clock may be touched: the event loops of clusters that other tests started run in
this process, and die of an odd one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest


def give_clock(
    patch: pytest.MonkeyPatch, *modules: ModuleType, **functions: Callable[[], Any]
) -> None:
    """Replace functions of the `time` module as these modules see it."""
    for module in modules:
        patch.setattr(module, "time", SimpleNamespace(**{**vars(time), **functions}))
