"""Components of wide sparse rows: held small, and the same to the bit when they are used."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse

from distclust import RandomizedBHC, load
from distclust.errors import ConstantColumnsWarning
from distclust.trees import components
from distclust.trees.components import SparseSums, dense, of_nodes, take
from distclust.trees.structure import Structure


def tree_and_stats(rng, n_leaves, width, density):
    merges, active = [], list(range(n_leaves))
    while len(active) > 1:
        i, j = sorted(rng.choice(len(active), 2, replace=False))
        pair = active.pop(j), active.pop(i)
        active.append(n_leaves + len(merges))
        merges.append(pair)
    structure = Structure.from_merges(merges)
    leaves = rng.integers(1, 9, (n_leaves, width)) * (rng.random((n_leaves, width)) < density)
    leaves[:, 0] = 1
    return structure, structure.sum_up(leaves.astype(np.float64))


def test_of_nodes__sums_are_the_nodes(rng):
    structure, stats = tree_and_stats(rng, 20, 2000, 0.02)
    nodes = rng.permutation(structure.n_nodes)[:15]
    held = of_nodes(structure, stats, nodes)
    assert isinstance(held, SparseSums)
    assert len(held) == 15
    np.testing.assert_array_equal(dense(held), stats[nodes])
    np.testing.assert_array_equal(dense(take(held, np.array([3, 7]))), stats[nodes[[3, 7]]])


@pytest.mark.parametrize(("width", "density"), [(500, 0.02), (2000, 0.5)])
def test_of_nodes__narrow_or_dense_ones_are_held_as_they_are(rng, width, density):
    structure, stats = tree_and_stats(rng, 10, width, density)
    held = of_nodes(structure, stats, np.arange(5, 12))
    assert isinstance(held, np.ndarray)
    np.testing.assert_array_equal(take(held, np.array([1])), stats[[6]])


@pytest.mark.parametrize("density", [0.02, 0.5])
def test_arrays__and_back(rng, density):
    structure, stats = tree_and_stats(rng, 12, 1500, density)
    held = of_nodes(structure, stats, np.array([0, 13, 20]))
    read = components.from_arrays(components.to_arrays(held), 1500)
    assert type(read) is type(held)
    np.testing.assert_array_equal(dense(read), dense(held))


@pytest.mark.parametrize("family", ["multinomial", "bernoulli"])
def test_fit__wide_sparse_rows_are_placed_as_with_dense_components(family, monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    shares = rng.dirichlet(np.full(1500, 0.02), 6)
    rows = rng.multinomial(40, shares[rng.integers(0, 6, 600)])
    rows = scipy.sparse.csr_array(np.minimum(rows, 1) if family == "bernoulli" else rows)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConstantColumnsWarning)
        model = RandomizedBHC(sample_size=80, family=family, random_state=0).fit(rows)
    held = [split.filter.components for split in model._router.splits.values()]
    assert any(isinstance(part, SparseSums) for part in held)
    model.save(tmp_path / "m.model")
    np.testing.assert_array_equal(load(tmp_path / "m.model").predict(rows), model.labels_)
    monkeypatch.setattr(components, "_WIDE", 10**9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConstantColumnsWarning)
        other = RandomizedBHC(sample_size=80, family=family, random_state=0).fit(rows)
    assert all(isinstance(s.filter.components, np.ndarray) for s in other._router.splits.values())
    np.testing.assert_array_equal(other.labels_, model.labels_)
    assert other.tree_.to_json() == model.tree_.to_json()
