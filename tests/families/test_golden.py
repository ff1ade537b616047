"""Values worked out elsewhere, to 1e-9."""

from __future__ import annotations

import numpy as np
import pytest

from distclust.families import (
    Bernoulli,
    Categorical,
    DiagonalGaussian,
    Family,
    Gaussian,
    Multinomial,
    Poisson,
)

GOLDEN = {
    "bernoulli": (
        Bernoulli(alpha=1, beta=1, n_features=2),
        [[1, 0], [1, 1], [0, 0]],
        -4.969813299576,
    ),
    "categorical": (Categorical(alpha=[1, 1, 1], n_levels=[3]), [[0], [0], [2]], -3.401197381662),
    "multinomial": (Multinomial(alpha=[1, 1, 1]), [[2, 0, 1], [0, 3, 1]], -8.930626469174),
    "gaussian": (
        Gaussian(mean=0, strength=1, degrees=3, scatter=np.eye(2)),
        [[0, 0], [1, 0], [0, 2]],
        -9.450499244653,
    ),
    "diagonal": (
        DiagonalGaussian(mean=0, strength=1, shape=1, rate=1, n_features=1),
        [[0], [1], [3]],
        -6.631015812501,
    ),
    "poisson": (Poisson(shape=1, rate=1, n_features=1), [[0], [1], [3]], -5.545177444480),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_log_marginal__golden_values(name: str) -> None:
    family, rows, expected = GOLDEN[name]
    assert isinstance(family, Family)
    assert family.is_resolved
    stats = family.accumulate(np.array(rows, dtype=float), [0] * len(rows), 1)
    assert family.log_marginal(stats)[0] == pytest.approx(expected, abs=1e-9)
