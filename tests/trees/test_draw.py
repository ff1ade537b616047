"""Pictures: what they must contain, and that nothing on them overlaps."""

from __future__ import annotations

import io

import matplotlib as mpl
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from distclust.errors import InputError
from distclust.trees import draw
from distclust.trees.evaluate import RoseMixing
from distclust.trees.structure import Structure
from distclust.trees.tree import Tree
from tests.oracles import trees as oracle
from tests.trees.test_evaluate import nested_trees
from tests.trees.test_export import deep_tree, random_trees
from tests.trees.test_tree import ColumnMeans, golden, with_odds


@pytest.fixture(autouse=True)
def _quiet_backend():
    mpl.use("Agg")
    yield
    import matplotlib.pyplot as plt

    plt.close("all")


def many_clusters(n_clusters, size):
    """Sure flat clusters of `size` rows each under a cascade of refused merges."""
    n = n_clusters * size
    clusters = [range(c * size, (c + 1) * size) for c in range(n_clusters)]
    tops = [(n, n + 1)] + [(n + c, n + n_clusters + c - 2) for c in range(2, n_clusters)]
    structure = Structure.from_children(n, [*clusters, *tops])
    return with_odds(structure, [20.0] * n_clusters + [-9.0] * (n_clusters - 1))


def tip_labels(ax):
    return [label.get_text() for label in ax.get_yticklabels()]


def rendered(tree, width=100):
    console = Console(file=io.StringIO(), width=width, record=True)
    console.print(tree)
    return console.export_text()


@settings(max_examples=60, deadline=None)
@given(random_trees(max_leaves=9), st.integers(2, 9))
def test_select__tips_hold_every_leaf_once_and_fit(tree, max_leaves):
    view = draw.select(tree, max_leaves)
    held = [leaf for tip in view.tips for leaf in tree.structure.leaves(tip)]
    assert held == tree.structure.leaf_order().tolist()
    assert len(view.tips) <= max_leaves
    for node in view.opened:
        assert all(c in view.tips or c in view.opened for c in tree.structure.children(node))
    if tree.n_leaves <= max_leaves:
        assert view.tips == tuple(held)


def test_select__opens_the_top_before_clusters():
    tree = many_clusters(6, 10)
    view = draw.select(tree, 20)
    assert sorted(view.tips) == sorted(tree.cut_nodes())
    few = draw.select(tree, 4)
    assert len(few.tips) == 4


def test_plot__shows_every_leaf_of_a_small_tree():
    ax = golden(row_ids=["a", "b", "c", "d", "x" * 80]).plot()
    assert sorted(label[:1] for label in tip_labels(ax)) == ["a", "b", "c", "d", "x"]
    assert max(map(len, tip_labels(ax))) <= 28
    assert "2 clusters" in ax.get_title(loc="left")
    texts = [text.get_text() for text in ax.texts]
    assert "−4.1" in texts


def test_plot__dashes_and_reddens_refused_merges_only():
    ax = golden().plot()
    solid, dashed = ax.collections
    # Three wanted merges of two children: a bar and two stems each; one refused.
    assert len(solid.get_segments()) == 9
    assert len(dashed.get_segments()) == 3
    assert dashed.get_linestyle()[0][1] is not None
    assert solid.get_linestyle()[0][1] is None
    assert mpl.colors.to_hex(dashed.get_color()[0]).upper() == draw.SPLIT_COLOUR
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert legend == ["merge preferred", "split preferred"]


def test_plot__gives_each_cluster_its_colour():
    ax = golden().plot()
    colours = {label.get_text(): label.get_color() for label in ax.get_yticklabels()}
    assert colours["0"] == colours["1"]
    assert colours["2"] == colours["3"] == colours["4"]
    assert colours["0"] != colours["2"]


def test_plot__collapses_clusters_and_says_their_sizes():
    tree = many_clusters(12, 20)
    ax = tree.plot(max_leaves=30)
    assert sorted(tip_labels(ax)) == sorted(f"cluster {c} · 20 rows" for c in range(12))
    assert len(ax.patches) == 12
    assert "several rows, not opened" in [t.get_text() for t in ax.get_legend().get_texts()]


def test_plot__collapses_clusters_together_when_there_are_too_many():
    ax = many_clusters(40, 3).plot(max_leaves=10)
    labels = tip_labels(ax)
    assert len(labels) == 10
    assert "31 clusters · 93 rows" in labels


@pytest.mark.parametrize("n_clusters", [3, 25, 60])
def test_plot__labels_do_not_overlap(n_clusters):
    tree = many_clusters(n_clusters, 4)
    ax = tree.plot(max_leaves=60)
    ax.figure.canvas.draw()
    renderer = ax.figure.canvas.get_renderer()
    for group in (ax.get_yticklabels(), ax.texts):
        boxes = [text.get_window_extent(renderer) for text in group]
        for i, box in enumerate(boxes):
            assert not any(box.overlaps(other) for other in boxes[i + 1 :])
    title = ax.title if ax.title.get_text() else ax._left_title
    legend = ax.get_legend().get_window_extent(renderer)
    assert not legend.overlaps(title.get_window_extent(renderer))


def test_plot__leaves_out_odds_that_would_overlap_on_small_axes():
    figure = mpl.figure.Figure(figsize=(4, 2.5))
    ax = many_clusters(20, 4).plot(figure.add_subplot(), max_leaves=30)
    figure.canvas.draw()
    boxes = [text.get_window_extent() for text in ax.texts]
    assert 1 <= len(boxes) < 14
    for i, box in enumerate(boxes):
        assert not any(box.overlaps(other) for other in boxes[i + 1 :])


def test_plot__draws_on_given_axes_and_leaves_out_labels_that_cannot_fit():
    figure = mpl.figure.Figure(figsize=(3, 2))
    ax = figure.add_subplot()
    tree = many_clusters(50, 2)
    assert tree.plot(ax, max_leaves=100) is ax
    assert not any(tip_labels(ax))


@settings(max_examples=10, deadline=None)
@given(nested_trees())
def test_plot__parents_are_drawn_before_their_children(nested):
    tree = with_odds(nested, [0.0] * len(list(oracle.subtrees(nested))))
    view = draw.select(tree, 10)
    layout = draw._Layout(tree, view)
    for node in view.opened:
        assert all(layout.level(node) > layout.level(c) for c in tree.structure.children(node))


def test_plot__takes_a_single_leaf_and_refuses_no_room():
    tree = Tree.build(Structure.from_merges([]), [1], [-1.0], RoseMixing(0.5), row_ids=["only"])
    assert tip_labels(tree.plot()) == ["only"]
    with pytest.raises(InputError, match="max_leaves"):
        tree.plot(max_leaves=1)


def test_terminal__shows_sizes_probabilities_and_clusters():
    text = rendered(golden(row_ids=list("abcde")))
    assert "5 rows · 2 clusters · log evidence −20.0 · 1.6 % one cluster" in text
    assert "● cluster 1 · 3 rows · 78.9 % one cluster" in text
    assert "1 row · a" in text


def test_terminal__stays_short_and_never_claims_certainty():
    text = rendered(many_clusters(40, 50))
    assert len(text.splitlines()) < 40
    assert "100.0 %" not in text
    assert ">99.9 %" in text
    assert "<0.1 %" in text
    assert "clusters inside" in text


def test_terminal__names_telling_features():
    structure = Structure.from_merges([(0, 1), (2, 3), (4, 5)])
    rows = np.array([[1, 0], [1, 0], [0, 0], [0, 0]], dtype=float)
    tree = with_odds(((0, 1), (2, 3)), [3.0, 3.0, -3.0])
    featured = Tree.build(
        structure, np.ones(4), tree.log_marginal, tree.mixing,
        feature_names=("wings", "fins"), family=ColumnMeans(),
        statistics=structure.sum_up(np.column_stack([np.ones(4), rows])),
    )  # fmt: skip
    text = rendered(featured)
    assert "wings ↑ 1" in text
    assert "wings ↓ 0" in text


def test_html__is_an_inline_picture():
    text = golden()._repr_html_()
    assert text.startswith("<div><svg")
    assert text.rstrip().endswith("</svg>\n</div>")


def test_draw__deep_cascade_needs_no_stack():
    tree = deep_tree()
    tree.plot()
    assert "20,000 rows" in rendered(tree)
