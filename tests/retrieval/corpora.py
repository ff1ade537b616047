"""Binary corpora for tests of retrieval, and what both engines must say about them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from distributed import WorkerPlugin

from distclust.retrieval import BayesianSets, Ranking, index
from tests.oracles import retrieval as oracle
from tests.small_blocks import BLOCK_ROWS, shrink

Rows = npt.NDArray[np.uint8]

GOLDEN = np.array([[1, 1, 0, 0], [1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [0, 0, 0, 1]], np.uint8)

_SHARES = ("any", "falling", "rare", "frequent", "constant", "extreme")


def shards_of(n_rows: int, patch: pytest.MonkeyPatch) -> None:
    """Make indexes with shards of so many rows (whole blocks, at least one)."""
    patch.setattr(index, "SHARD_ROWS", n_rows)


class SmallShards(WorkerPlugin):
    """Makes blocks and shards small on every worker, also on those that come later."""

    name = "small-shards"

    def setup(self, worker: Any) -> None:
        patch = pytest.MonkeyPatch()
        shrink(patch)
        shards_of(2 * BLOCK_ROWS, patch)


def draw(rng: np.random.Generator, n_rows: int, n_features: int, share: str) -> Rows:
    """Rows whose features are as frequent as `share` says."""
    shares = {
        "any": rng.random(n_features),
        "falling": rng.permutation(1.0 / (np.arange(n_features) + 2.0)),
        "rare": np.full(n_features, 0.03),
        "frequent": np.full(n_features, 0.97),
        "constant": rng.choice([0.0, 1.0, 0.5], n_features),
        "extreme": rng.beta(0.3, 0.3, n_features),
    }
    return (rng.random((n_rows, n_features)) < shares[share]).astype(np.uint8)


def draw_any(rng: np.random.Generator, n_rows: int, n_features: int) -> Rows:
    """Rows of some kind; in some corpora many are equal or empty, or columns are."""
    rows = draw(rng, n_rows, n_features, str(rng.choice(_SHARES)))
    if rng.random() < 0.3:
        rows[rng.random(n_rows) < 0.5] = rows[0]
    if rng.random() < 0.3:
        rows[rng.random(n_rows) < 0.3] = 0
    if rng.random() < 0.2:
        rows[:, rng.random(n_features) < 0.4] = rows[:, :1]
    return rows


def exact_scores(sets: BayesianSets, rows: Any, query: Any) -> list[float]:
    """Scores of all rows by the sum that both engines promise, in plain loops."""
    prior = sets._prior
    assert prior is not None
    weighed = sets._weigh(sets._choose(query, "test"))
    base = prior.base(weighed.n_items).weights.tolist()
    gains = dict(zip(weighed.columns.tolist(), weighed.gains.tolist(), strict=True))
    return [oracle.canonical_score(row, base, gains, weighed.constant) for row in rows.tolist()]


def assert_ranking(found: Ranking, wanted: list[tuple[int, float]], where: str = "") -> None:
    """Rows and scores to the last bit."""
    assert list(zip(found.rows.tolist(), found.log_scores.tolist(), strict=True)) == wanted, where


def assert_same(a: Ranking, b: Ranking) -> None:
    """The same answer to the last bit, however it was found."""
    np.testing.assert_array_equal(a.rows, b.rows)
    assert a.log_scores.tobytes() == b.log_scores.tobytes()
    assert a.ids.tolist() == b.ids.tolist()
    assert a.query == b.query
    assert (a.suggested_size, a.is_open) == (b.suggested_size, b.is_open)
