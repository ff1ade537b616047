r"""Dendrogram purity: how well a hierarchy agrees with known classes.

Draw a row, then another of the same class; find the smallest subtree that holds both; note
the share of their class in it. Purity is the expectation of that share, computed exactly:
node :math:`k` with :math:`a_c(k)` rows of class :math:`c` is the smallest common subtree of
:math:`P_c(k) = \tfrac12 (a_c(k)^2 - \sum_{\text{children}} a_c^2)` pairs of that class.

References
----------
Heller, "Efficient Bayesian Methods for Clustering", 2007, section 3.5.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from distclust.errors import InputError
from distclust.trees import _tree_numerics as numerics
from distclust.trees.structure import Structure
from distclust.trees.tree import Tree
from distclust.validation import check_choice


def dendrogram_purity(
    tree: Tree | Structure | ArrayLike, y: ArrayLike, weighting: Literal["leaf", "pair"] = "leaf"
) -> float:
    """Agreement of a hierarchy with known classes, between 0 and 1.

    Parameters
    ----------
    tree
        A tree, a structure (whose leaves are the rows), or a SciPy linkage matrix.
    y
        Class of each row, shape (n_rows,), numbers or strings.
    weighting
        "leaf" draws a row uniformly, then a partner of its class; "pair" draws uniformly
        from all pairs of one class, so that large classes weigh more.

    Returns
    -------
    One if and only if each class fills a subtree of its own.

    Raises
    ------
    InputError
        If lengths differ, or no class has two rows and purity is undefined.

    Notes
    -----
    Classes with one row have no pairs and do not count. Rows of a leaf formed beforehand
    are children of that leaf. Cost: O(n log n) for n rows, however many classes.

    Examples
    --------
    >>> import numpy as np
    >>> tree = Structure.from_merges([(0, 1), (3, 4), (2, 6), (5, 7)])
    >>> round(dendrogram_purity(tree, [0, 0, 1, 1, 0]), 6)
    0.706667
    """
    check_choice(weighting, "dendrogram_purity: weighting", ("leaf", "pair"))
    structure, leaf_of_row = _shape(tree)
    classes, sizes = _classes(y, len(leaf_of_row))
    shared = np.flatnonzero(sizes > 1)
    if len(shared) == 0:
        raise InputError(
            "dendrogram_purity: y",
            "a class with two rows or more",
            f"{len(sizes)} classes of one row each",
            "Purity looks at pairs of one class.",
        )
    share = _pair_shares(structure, leaf_of_row, classes, len(sizes))[shared]
    size = sizes[shared].astype(np.float64)
    if weighting == "pair":
        return float(share.sum() / (0.5 * size * (size - 1.0)).sum())
    return float((2.0 * share / (size - 1.0)).sum() / size.sum())


def _pair_shares(
    structure: Structure,
    leaf_of_row: NDArray[np.int64],
    classes: NDArray[np.int64],
    n_classes: int,
) -> NDArray[np.float64]:
    """Sum over pairs of each class of the class's share in their smallest subtree."""
    position = structure.leaf_start[leaf_of_row]
    from_left = np.argsort(position, kind="stable")
    n_members = np.bincount(position, minlength=structure.n_leaves)
    bounds = np.concatenate([[0], np.cumsum(n_members)])
    last_leaf = structure.leaf_start + structure.n_leaves_below
    shares = np.zeros(n_classes)
    numerics.pair_shares(
        *structure.arrays,
        structure.parent,
        bounds[structure.leaf_start],
        bounds[last_leaf],
        classes[from_left],
        shares,
    )
    return shares


def _shape(tree: Tree | Structure | ArrayLike) -> tuple[Structure, NDArray[np.int64]]:
    if isinstance(tree, Tree):
        return tree.structure, tree.leaf_of_row
    if isinstance(tree, Structure):
        return tree, np.arange(tree.n_leaves)
    rows = np.asarray(tree)
    if rows.ndim != 2 or rows.shape[1] != 4:
        raise InputError(
            "dendrogram_purity: tree",
            "a Tree, a Structure or a linkage matrix",
            f"{type(tree).__name__} of shape {rows.shape}",
            "Pass the tree_ of a fitted estimator.",
        )
    structure = Structure.from_merges(rows[:, :2])
    return structure, np.arange(structure.n_leaves)


def _classes(y: ArrayLike, n_rows: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    labels = np.asarray(y)
    if labels.shape != (n_rows,):
        raise InputError(
            "dendrogram_purity: y",
            f"one class for each of {n_rows} rows",
            f"shape {labels.shape}",
            "Pass the classes in the order of the rows.",
        )
    _, inverse, sizes = np.unique(labels, return_inverse=True, return_counts=True)
    return inverse, sizes
