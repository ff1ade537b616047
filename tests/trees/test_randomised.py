"""RandomizedBHC: the published algorithm, and what holds for every tree it makes."""

from __future__ import annotations

import numpy as np
import pytest

from distclust import BHC, RandomizedBHC
from tests.oracles.randomised import FAMILIES, Model, as_sets, planted
from tests.oracles.search import as_nested

# Small random tables have constant columns now and then.
pytestmark = pytest.mark.filterwarnings("ignore::distclust.errors.ConstantColumnsWarning")

# ---- the published algorithm -------------------------------------------------------------------


@pytest.mark.parametrize("predictive", ["subtree", "single"])
@pytest.mark.parametrize("family", FAMILIES)
def test_published__is_the_naive_recursion(family, predictive, seed):
    rows = planted(family, seed)
    model = RandomizedBHC(
        sample_size=8,
        levels_per_pass=1,
        filter_predictive=predictive,
        resolve="rows",
        family=family,
        random_state=seed,
    ).fit(rows)
    naive = Model(model.family_, rows).rbhc(8, seed, "size", predictive)
    assert as_nested(model.tree_.structure) == as_sets(naive)
