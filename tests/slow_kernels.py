"""Kernels that take their time, so that a fit is under way when something happens to it."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from scipy.spatial.distance import cdist

SECONDS = 0.002  # a tile


def slow_rbf(left: Any, right: Any) -> Any:
    time.sleep(SECONDS)
    return np.exp(-0.2 * cdist(left, right, "sqeuclidean"))
