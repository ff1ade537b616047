"""A tree in the formats of others: SciPy linkage, Newick, plain data and JSON.

Everything is built in loops over node numbers or with an explicit stack; a cascade of any
depth can be written. JSON is strict: infinities, which strict JSON cannot hold, are written
as the strings ``"inf"`` and ``"-inf"``; all other numbers in the shortest form that reads
back to the same bits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from distclust.errors import InputError, ModelFormatError
from distclust.trees import _tree_numerics as numerics
from distclust.trees.evaluate import MIXINGS, DirichletProcess, Evaluation, Mixing
from distclust.trees.structure import Structure
from distclust.trees.tree import Tree
from distclust.validation import check_choice

if TYPE_CHECKING:
    from distclust.families import Family

Floats = NDArray[np.float64]

FORMAT = "distclust-tree"
VERSION = 1

_NODE_ARRAYS = ("n_rows", "log_marginal")
_EVALUATION_ARRAYS = (
    "log_odds",
    "log_posterior",
    "log_not_posterior",
    "log_prior",
    "log_not_prior",
    "log_evidence",
    "log_weight",
)


def linkage(tree: Tree) -> Floats:
    """The tree as a SciPy linkage matrix, shape (n_leaves - 1, 4).

    Observations are the leaves of the tree, so a cluster formed beforehand is one
    observation. Heights are :attr:`Tree.heights`: nats of log odds below the surest merge,
    lifted where odds rise towards the root. Merges are sorted by height (SciPy calls that
    monotonic) and, at equal heights, as they were made; for a greedy search without
    inversions, row t is thus node ``n_leaves + t``. A node with many children becomes a
    chain of merges at one height.

    Raises
    ------
    InputError
        For a tree of one leaf, which has no merges.
    """
    structure = tree.structure
    if structure.n_leaves < 2:
        raise InputError("Tree.linkage", "two leaves or more", "one", "Fit more rows.")
    rows = np.empty((structure.n_leaves - 1, 4))
    # Stable: at equal heights children stay before parents.
    order = np.argsort(tree.heights[structure.n_leaves :], kind="stable")
    numerics.fill_linkage(*structure.arrays, order, tree.heights, rows)
    return rows


def newick(
    tree: Tree, lengths: Literal["height", "none"] = "height", *, posteriors: bool = True
) -> str:
    """The tree in Newick format, one line that ends in a semicolon.

    Parameters
    ----------
    tree
        Any tree.
    lengths
        "height": branch lengths are differences of :attr:`Tree.heights`; "none": no lengths.
    posteriors
        Whether internal nodes are labelled with their probability of being one cluster,
        where other programs put support values.

    Notes
    -----
    Names of rows are quoted always, inner quotes doubled, so any character is safe. A
    cluster formed beforehand is an unresolved node over its rows.
    """
    check_choice(lengths, "Tree.newick: lengths", ("height", "none"))
    branches = _branch_texts(tree, lengths)
    labels = _support_texts(tree) if posteriors else [""] * tree.n_nodes
    tips = _tip_texts(tree, ":0.0" if lengths == "height" else "", labels)
    pieces: list[str] = []
    stack: list[int | str] = [tree.root]
    while stack:
        item = stack.pop()
        if isinstance(item, str):
            pieces.append(item)
        elif item < tree.n_leaves:
            pieces.append(tips[item] + branches[item])
        else:
            stack.append(f"){labels[item]}{branches[item]}")
            stack.extend(_comma_separated(tree.structure.children(item).tolist()))
            pieces.append("(")
    return "".join(pieces) + ";"


def to_arrays(tree: Tree) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """A tree as JSON-able facts and named arrays, statistics included, family not.

    The pair is what a model file stores; :func:`from_arrays` is the exact inverse.
    """
    mixing = tree.mixing
    parameter = "concentration" if isinstance(mixing, DirichletProcess) else "gamma"
    facts = {
        "format": FORMAT,
        "version": VERSION,
        "n_leaves": tree.n_leaves,
        "mixing": {"name": mixing.name, parameter: getattr(mixing, parameter)},
        "feature_names": None if tree.feature_names is None else list(tree.feature_names),
        "log_lower_bound": tree.evaluation.log_lower_bound,
    }
    arrays: dict[str, NDArray[Any] | None] = {
        "child_start": tree.structure.child_start,
        "child_list": tree.structure.child_list,
        "leaf_of_row": tree.leaf_of_row,
        "row_ids": tree.row_ids,
    }
    arrays |= {name: getattr(tree, name) for name in _NODE_ARRAYS}
    arrays |= {name: getattr(tree.evaluation, name) for name in _EVALUATION_ARRAYS}
    arrays["statistics"] = tree.statistics
    return facts, {name: array for name, array in arrays.items() if array is not None}


def from_arrays(
    facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], family: Family | None = None
) -> Tree:
    """Inverse of :func:`to_arrays`.

    Raises
    ------
    ModelFormatError
        If something is missing, inconsistent or of a newer format.
    """
    _check_format(facts)
    try:
        return _read(facts, arrays, family)
    except (KeyError, TypeError, InputError) as error:
        raise ModelFormatError(
            "Tree.from_dict",
            "a complete tree",
            f"a fault ({error})",
            "The file was altered or cut; save the tree again.",
        ) from error


def to_dict(tree: Tree) -> dict[str, Any]:
    """A tree as plain lists, numbers and strings; family and statistics stay behind."""
    facts, arrays = to_arrays(tree)
    arrays.pop("statistics", None)
    return {**facts, **{name: _plain(array) for name, array in arrays.items()}}


def from_dict(data: Mapping[str, Any]) -> Tree:
    """Inverse of :func:`to_dict`, exact to the last bit."""
    _check_format(data)
    arrays: dict[str, NDArray[Any]] = {}
    try:
        for name in ("child_start", "child_list", "leaf_of_row"):
            arrays[name] = np.array(data[name], dtype=np.int64)
        arrays["row_ids"] = np.array(data["row_ids"])
        for name in (*_NODE_ARRAYS, *_EVALUATION_ARRAYS):
            if name in data:
                arrays[name] = np.array([float(value) for value in data[name]])
    except (KeyError, TypeError, ValueError) as error:
        raise ModelFormatError(
            "Tree.from_dict", "lists of numbers", f"a fault ({error})", "Save the tree again."
        ) from error
    return from_arrays(data, arrays)


def to_json(tree: Tree) -> str:
    """:func:`to_dict` as strict JSON."""
    return json.dumps(to_dict(tree), allow_nan=False, separators=(",", ":"))


def from_json(text: str) -> Tree:
    """Inverse of :func:`to_json`, exact to the last bit."""
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise ModelFormatError(
            "Tree.from_json", "JSON", f"text that is not ({error})", "Use Tree.to_json to write it."
        ) from error
    return from_dict(data)


def _read(
    facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]], family: Family | None
) -> Tree:
    structure = Structure(facts["n_leaves"], arrays["child_start"], arrays["child_list"])
    mixing = _mixing(facts["mixing"])
    names = facts["feature_names"]
    # Building checks everything; the stored evaluation then replaces the computed one,
    # which may differ in the last bits on another machine.
    tree = Tree.build(
        structure,
        arrays["n_rows"][: structure.n_leaves],
        arrays["log_marginal"],
        mixing,
        leaf_of_row=arrays["leaf_of_row"],
        row_ids=arrays["row_ids"],
    )
    return Tree(
        structure,
        _node_array(structure, arrays["n_rows"]),
        tree.log_marginal,
        mixing,
        _evaluation(structure, facts, arrays),
        tree.leaf_of_row,
        tree.row_ids,
        None if names is None else tuple(names),
        family,
        arrays.get("statistics"),
    )


def _evaluation(
    structure: Structure, facts: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]
) -> Evaluation:
    found: dict[str, Any] = {
        name: _node_array(structure, arrays[name])
        for name in _EVALUATION_ARRAYS
        if name in arrays or name != "log_weight"
    }
    return Evaluation(**found, log_lower_bound=facts["log_lower_bound"])


def _node_array(structure: Structure, values: NDArray[Any]) -> Floats:
    array = np.ascontiguousarray(values, dtype=np.float64)
    if array.shape != (structure.n_nodes,):
        raise InputError(
            "Tree", f"{structure.n_nodes} values", f"shape {array.shape}", "One for each node."
        )
    return array


def _mixing(data: Mapping[str, Any]) -> Mixing:
    parameters = {name: value for name, value in data.items() if name != "name"}
    return MIXINGS[data["name"]](**parameters)


def _check_format(facts: object) -> None:
    kind = facts.get("format") if isinstance(facts, Mapping) else None
    if not isinstance(facts, Mapping) or kind != FORMAT:
        raise ModelFormatError(
            "Tree.from_dict", f"format {FORMAT!r}", repr(kind), "Pass what Tree.to_dict made."
        )
    version = facts.get("version")
    if not isinstance(version, int) or version > VERSION:
        raise ModelFormatError(
            "Tree.from_dict",
            f"a format version up to {VERSION}",
            repr(version),
            "Read it with the newer distclust that wrote it.",
        )


def _plain(array: NDArray[Any]) -> list[Any]:
    values: list[Any] = array.tolist()
    if array.dtype.kind == "f":
        for position in np.flatnonzero(~np.isfinite(array)).tolist():
            values[position] = str(values[position])
    return values


def _comma_separated(children: list[int]) -> list[int | str]:
    """Children with commas between, last first: the order in which a stack wants them."""
    items: list[int | str] = []
    for child in reversed(children):
        items += [child, ","]
    return items[:-1]


def _branch_texts(tree: Tree, lengths: str) -> list[str]:
    if lengths == "none":
        return [""] * tree.n_nodes
    heights = tree.heights
    spans = heights[tree.structure.parent[:-1]] - heights[:-1]
    return [f":{span!r}" for span in spans.tolist()] + [""]


def _support_texts(tree: Tree) -> list[str]:
    return [f"{probability:.6g}" for probability in tree.posterior.tolist()]


def _tip_texts(tree: Tree, member_branch: str, labels: list[str]) -> list[str]:
    members: list[list[str]] = [[] for _ in range(tree.n_leaves)]
    for leaf, name in zip(tree.leaf_of_row.tolist(), tree.row_ids.tolist(), strict=True):
        members[leaf].append("'" + str(name).replace("'", "''") + "'")
    return [
        names[0]
        if len(names) == 1
        else "(" + ",".join(name + member_branch for name in names) + ")" + labels[leaf]
        for leaf, names in enumerate(members)
    ]
