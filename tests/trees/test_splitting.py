"""What a sample says about its node: outcomes, the tree above them, when it stays a leaf."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from distclust.families import Bernoulli
from distclust.seeding import row_hashes, row_keys
from distclust.trees.evaluate import DirichletProcess
from distclust.trees.growing import make_question
from distclust.trees.sampling import Candidates
from distclust.trees.splitting import (
    Settings,
    examine,
    examine_root,
    merges_above,
    outcome_of_leaf,
)
from distclust.trees.structure import Structure
from tests.oracles.families import resolved
from tests.oracles.randomised import planted
from tests.oracles.search import as_nested

N_CLUSTERS, OF_EACH, WIDTH = 5, 6, 8
SETTINGS = Settings(
    sample_size=64,
    check_size=16,
    max_levels=None,
    levels_per_pass=None,
    prior="size",
    predictive="auto",
    resolve="clusters",
    mixing=DirichletProcess(1.0),
    seed=0,
)


def clusters():
    """Five clusters far apart, each of six equal rows."""
    return np.kron(np.eye(N_CLUSTERS, dtype=np.uint8), np.ones((OF_EACH, WIDTH), np.uint8))


def asked(rows, n_rows=None, level=0):
    keys = row_keys(np.arange(len(rows)))
    hashes = row_hashes(0, keys, "")
    sample = Candidates(np.zeros(len(rows), np.int64), hashes, keys, np.arange(len(rows)), rows)
    by_hash = sample.trimmed(np.array([len(rows)]))
    return make_question(0, level, n_rows or len(rows), by_hash)


def family_of(rows):
    return resolved(Bernoulli(), rows.astype(float))


def answered(rows, n_rows=None, level=0, **changes):
    return examine(asked(rows, n_rows, level), family_of(rows), replace(SETTINGS, **changes))


# ---- the tree above outcomes ---------------------------------------------------------------------

# ((0, 1), (2, 3)) joined with (4, 5): nodes 6 = (0, 1), 7 = (2, 3), 8 = (4, 5), 9 = (6, 7)
SIX = Structure.from_merges([[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]])


def test_merges_above__is_the_tree_without_what_is_below():
    outcomes = np.array([6, 7, 4, 5])
    above = Structure.from_merges(merges_above(SIX, outcomes))
    assert as_nested(above) == frozenset([frozenset([0, 1]), frozenset([2, 3])])
    assert merges_above(SIX, np.array([10])).shape == (0, 2)
    assert merges_above(SIX, np.array([9, 8])).tolist() == [[1, 0]]


def test_outcome_of_leaf__is_where_the_leaf_lies():
    assert outcome_of_leaf(SIX, np.array([6, 7, 4, 5])).tolist() == [0, 0, 1, 1, 2, 3]


# ---- answers -------------------------------------------------------------------------------------


def test_answer__goes_down_to_the_cut_at_once():
    answer = answered(clusters(), n_rows=1000)
    assert answer.n_sampled.tolist() == [OF_EACH] * N_CLUSTERS
    assert answer.is_cluster.all()
    assert not answer.is_finished
    assert len(answer.share.sampled_rows) == 0
    assert answer.share.merges.shape == (N_CLUSTERS - 1, 2)
    chosen = answer.share.filter.choose(clusters())
    assert len(set(zip(chosen, np.repeat(range(N_CLUSTERS), OF_EACH), strict=True))) == N_CLUSTERS


def test_answer__one_cluster_stays_a_leaf():
    answer = answered(np.ones((20, WIDTH), np.uint8), n_rows=100)
    assert answer.share is None
    assert answer.exact is None


@pytest.mark.parametrize("levels", [1, 2])
def test_answer__so_many_levels_a_pass(levels):
    whole = answered(clusters(), n_rows=1000)
    answer = answered(clusters(), n_rows=1000, level=3, levels_per_pass=levels)
    assert answer.levels.max() == 3 + levels
    assert 2 <= len(answer.levels) <= 2**levels
    assert answer.n_sampled.sum() == N_CLUSTERS * OF_EACH
    assert len(whole.levels) > len(answer.levels)
    assert (answer.is_cluster == (answer.n_sampled == OF_EACH)).all()


def test_answer__published_mode_remembers_its_sample():
    rows = clusters()
    answer = answered(rows, n_rows=1000, levels_per_pass=1)
    np.testing.assert_array_equal(answer.share.sampled_rows, np.arange(len(rows)))
    # These clusters are clear enough for the filter to agree with the tree.
    chosen = answer.share.filter.choose(rows)
    np.testing.assert_array_equal(answer.share.sampled_outcomes, chosen)


def test_answer__max_levels_counts_from_the_root():
    assert answered(clusters(), n_rows=1000, level=2, max_levels=3).levels.tolist() == [3, 3]
    assert answered(clusters(), n_rows=1000, level=3, max_levels=3).share is None
    rows_mode = answered(clusters(), n_rows=1000, level=3, max_levels=3, resolve="rows")
    assert rows_mode.share is None


def test_answer__a_node_seen_as_a_whole_is_finished():
    assert answered(clusters()).is_finished
    exact = answered(clusters(), resolve="rows").exact
    assert exact.positions.tolist() == list(range(N_CLUSTERS * OF_EACH))
    assert exact.merges.shape == (N_CLUSTERS * OF_EACH - 1, 2)
    family = family_of(clusters())
    np.testing.assert_array_equal(exact.stats, family.statistics(clusters()))


def test_question__a_whole_node_keeps_the_order_of_its_rows():
    rows = clusters()
    question = asked(rows)
    shuffled = question.sample.take(np.random.default_rng(0).permutation(len(rows)))
    assert make_question(0, 0, len(rows), shuffled).sample.positions.tolist() == list(range(30))
    assert make_question(0, 0, 31, shuffled).sample.positions.tolist() != list(range(30))


def test_rows__the_largest_subtrees_are_opened_until_each_fits_a_sample():
    rows = np.ones((40, WIDTH), np.uint8)
    rows[:20, 0] = 0
    answer = answered(rows, n_rows=4000, resolve="rows", sample_size=64)
    # 64 rows are 0.64 of these 40: single rows of the sample, were it not for the breadth.
    assert len(answer.n_sampled) == 40
    fewer = answered(rows, n_rows=100, resolve="rows", sample_size=25)
    assert fewer.n_sampled.max() <= 10
    assert fewer.n_sampled.sum() == 40


# ---- the root ------------------------------------------------------------------------------------


def test_root__disagreement_of_filters_is_measured_on_rows_outside_the_sample(seed):
    rows = planted("bernoulli", seed, n_rows=80, n_clusters=6)
    family = family_of(rows)
    question = asked(rows[:20], n_rows=80)
    first = examine_root(question, rows[20:], family, replace(SETTINGS, predictive="auto"))
    assert first.n_compared == 60
    other = examine_root(question, rows[20:], family, replace(SETTINGS, predictive="subtree"))
    assert (other.n_compared, other.n_disagreeing) == (0, 0)
    chosen = [f.answer.share.filter.choose(rows[20:]) for f in (first, other)]
    assert first.n_disagreeing == int((chosen[0] != chosen[1]).sum())
