"""A tree walked in the terminal: its levels, then node after node from any of them down.

What is shown comes from the description of the levels that a version of results holds
(``levels.json``, see `distclust.trees.levels`); neither rows nor labels are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text
from rich.tree import Tree as RichTree

from distclust.errors import InputError
from distclust.report.terminal import count

if TYPE_CHECKING:
    from rich.console import Console

DEPTH = 3  # levels below the first node that are shown
MOST_LEVELS = 30  # lines of the table
LEGEND = (
    "● a cluster of the cut; one: probability that the rows are one cluster, given the tree; "
    "features: mean here|mean beside."
)


@dataclass(frozen=True)
class Walk:
    """Part of a tree: a node and what lies below it, so many levels deep.

    Attributes
    ----------
    levels, n_levels
        Of the whole tree, see `describe_levels`; the first ones, and how many there are.
    nodes
        Descriptions of the nodes shown, parents before children, the largest child first;
        each with ``share`` of all rows, ``label`` of the cluster it is (or None),
        ``n_clusters`` of the cut inside it, and ``is_open``, whether its children are shown.
    depth
        How many levels below the first node are shown.
    """

    levels: Sequence[Mapping[str, Any]]
    n_levels: int
    nodes: Sequence[Mapping[str, Any]]
    depth: int

    def as_dict(self) -> dict[str, Any]:
        """Return the walk as JSON values."""
        return {
            "n_levels": self.n_levels,
            "levels": list(self.levels),
            "depth": self.depth,
            "nodes": list(self.nodes),
        }


def walk(
    described: Mapping[str, Any],
    labels: Mapping[int, int],
    *,
    node: int | None = None,
    depth: int = DEPTH,
    n_features: int = 4,
) -> Walk:
    """Choose what to show.

    Parameters
    ----------
    described
        Levels and nodes of a tree, see `distclust.trees.levels.describe_levels`.
    labels
        Label of the cluster that a node is.
    node
        Where to begin; by default the root.
    depth
        How many levels to go down.
    n_features
        How many telling features of each node to keep.
    """
    nodes = {int(each["node"]): each for each in described["nodes"]}
    root = max(nodes)
    first = root if node is None else node
    if first not in nodes:
        known = f"{len(nodes):,} of {described['n_nodes']:,} nodes are described"
        hint = f"The root is node {root}; go down from there with --node and --depth."
        raise InputError("--node", "the number of a node", f"{first} ({known})", hint)
    n_rows = int(nodes[root]["n_rows"])
    inside = _clusters_inside(nodes, labels)
    shown = []
    waiting = [(first, 0)]
    while waiting:
        number, level = waiting.pop()
        told = nodes[number]
        children = [child for child in told["children"] if child in nodes]
        is_open = level < depth and len(children) == len(told["children"])
        shown.append(
            {
                **told,
                "is_cluster": number in labels,
                "label": labels.get(number),
                "share": told["n_rows"] / n_rows,
                "features": told["features"][:n_features],
                "n_clusters": inside.get(number, 0),
                "is_open": is_open,
            }
        )
        if is_open:
            children.sort(key=lambda child: (nodes[child]["n_rows"], -child))
            waiting += [(child, level + 1) for child in children]
    levels = described["levels"]
    return Walk(levels, int(described.get("n_levels", len(levels))), shown, depth)


def _clusters_inside(
    nodes: Mapping[int, Mapping[str, Any]], labels: Mapping[int, int]
) -> dict[int, int]:
    """Count the clusters of the cut in every node above them, and in themselves."""
    found: dict[int, int] = {}
    for cluster in labels:
        node = cluster
        while node in nodes:
            found[node] = found.get(node, 0) + 1
            node = int(nodes[node]["parent"])
    return found


def print_walk(console: Console, found: Walk) -> None:
    """Print the levels and the part of the tree."""
    console.print(_levels_table(found.levels))
    if found.n_levels > MOST_LEVELS:
        console.print(f"and {count(found.n_levels - MOST_LEVELS, 'deeper level')}.")
    console.print()
    console.print(_drawn(found))
    console.print(LEGEND, style="dim", highlight=False)


def _levels_table(levels: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    heads = {
        "level": "level",
        "nodes": "n_nodes",
        "leaves": "n_leaves",
        "rows": "n_rows",
        "largest": "largest",
        "smallest": "smallest",
    }
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for level in levels[:MOST_LEVELS]:
        table.add_row(*(f"{level[name]:,}" for name in heads.values()))
    return table


def _drawn(found: Walk) -> RichTree:
    first, *others = found.nodes
    top = RichTree(_line(first), guide_style="dim")
    branches = {int(first["node"]): top}
    for node in others:
        branches[int(node["node"])] = branches[int(node["parent"])].add(_line(node))
    return top


def _line(node: Mapping[str, Any]) -> Text:
    """Number, size, certainty; below it what tells the node from those beside it."""
    from distclust.trees.draw import COLOURS, percent

    text = Text()
    if node["is_cluster"]:
        label = int(node["label"])
        text.append(f"● cluster {label}", style=f"bold {COLOURS[label % len(COLOURS)]}")
        text.append(" · ")
    share = percent(node["share"]) if node["share"] < 1 else "all"
    text.append(f"node {node['node']} · {count(int(node['n_rows']), 'row')} ({share})")
    if node["n_rows"] > 1 and node["children"]:
        text.append(f" · {percent(node['probability'])} one")
    if node["n_clusters"] and not node["is_cluster"]:
        text.append(f" · {count(node['n_clusters'], 'cluster')}", style="dim")
    told = ", ".join(_features(node["features"]))
    if told:
        text.append(f"\n{told}", style="italic dim")
    return text


def _features(features: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for feature in features:
        here, beside = feature["mean"], feature["sibling_mean"]
        if here is None or beside is None:  # a category has no mean
            yield str(feature["name"])
        else:
            yield f"{feature['name']} {here:.2g}|{beside:.2g}"
