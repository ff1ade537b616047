"""Pictures of a tree: a dendrogram with matplotlib, a tree in the terminal with rich.

A tree of thousands of leaves is drawn by its top: nodes above the cut are opened from the root
down, those first that the model splits most decidedly, until there are enough tips; what
stays closed is drawn as a wedge with its number of rows. Clusters of the cut are coloured,
and are opened only if the whole tree fits or is a single cluster.

The axis shows minus the log odds of a merge on a logarithmic scale for both signs, because
odds near even matter and those near the root run to thousands. Odds may rise towards the
root; a node is then drawn a small step before its highest child and keeps its own odds as
label.
"""

from __future__ import annotations

import heapq
import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from distclust.trees.tree import Tree
from distclust.validation import check_integer

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from rich.console import RenderableType
    from rich.text import Text
    from rich.tree import Tree as RichTree

# Okabe and Ito's colours, told apart by colour-blind readers; red is kept for splits.
COLOURS = (
    *("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#8C6D1F", "#5E4FA2"),
    *("#7A8B00", "#00868B", "#B06A9E", "#4D6A87", "#A0522D"),
)
SPLIT_COLOUR = "#C8102E"
SINGLE_COLOUR = "#6B7280"
INK = "#374151"

_MOST_ODDS_LABELS = 14
_LONGEST_NAME = 28
_WIDE = 5.5  # inches; narrower axes get short texts


@dataclass(frozen=True)
class View:
    """Which part of a tree is shown.

    Attributes
    ----------
    tips
        Nodes without shown children, from top to bottom of the picture.
    opened
        Nodes whose children are shown, ascending.
    cluster_of
        Number of the cluster of the cut that holds each shown node; absent above the cut.
    cut_nodes
        Node of each cluster of the cut, in the order of its labels.
    """

    tips: tuple[int, ...]
    opened: tuple[int, ...]
    cluster_of: dict[int, int]
    cut_nodes: NDArray[np.int64]


def select(tree: Tree, max_leaves: int, threshold: float = 0.5) -> View:
    """Choose what to show of a tree with at most `max_leaves` tips.

    Nodes above the cut are opened before those inside clusters, and each kind from the most
    decided split downwards, as long as the tips still fit.
    """
    cut_nodes = tree.cut_nodes(threshold)
    open_clusters = tree.n_leaves <= max_leaves or len(cut_nodes) == 1
    is_cut = dict(zip(cut_nodes.tolist(), range(len(cut_nodes)), strict=True))
    preference = tree.split_preference()
    opened: list[int] = []
    tips: set[int] = {tree.root}
    cluster_of: dict[int, int] = {}
    queue: list[tuple[bool, float, int]] = []

    def enqueue(node: int, cluster: int | None) -> None:
        cluster = is_cut.get(node, cluster)
        if cluster is not None:
            cluster_of[node] = cluster
        if node >= tree.n_leaves and (cluster is None or open_clusters):
            heapq.heappush(queue, (cluster is not None, -float(preference[node]), -node))

    enqueue(tree.root, None)
    while queue:
        node = -heapq.heappop(queue)[2]
        children = tree.structure.children(node).tolist()
        if len(tips) + len(children) - 1 > max_leaves:
            continue
        tips.remove(node)
        tips.update(children)
        opened.append(node)
        for child in children:
            enqueue(child, cluster_of.get(node))
    order = sorted(tips, key=lambda node: int(tree.structure.leaf_start[node]))
    return View(tuple(order), tuple(sorted(opened)), cluster_of, cut_nodes)


def plot(
    tree: Tree, ax: Axes | None = None, max_leaves: int = 60, *, threshold: float = 0.5
) -> Axes:
    """Draw a dendrogram, the root at the left.

    Solid merges are those the model prefers to make, dashed red ones those it prefers not to
    make. Clusters of the cut have colours; parts too small for the picture are wedges with
    their number of rows.

    Parameters
    ----------
    tree
        Any tree.
    ax
        Where to draw; by default a new figure, as high as the number of tips needs.
    max_leaves
        Largest number of tips shown.
    threshold
        Probability at which the tree is cut, see :meth:`Tree.cut`.

    Returns
    -------
    The axes, with title and labels set; change them as you like.
    """
    check_integer(max_leaves, "Tree.plot: max_leaves", at_least=2)
    view = select(tree, max_leaves, threshold)
    if ax is None:
        ax = _new_axes(len(view.tips))
    layout = _Layout(tree, view)
    colours = _node_colours(tree, view)
    _draw_merges(ax, tree, view, layout, colours)
    _draw_wedges(ax, tree, view, layout, colours)
    _decorate(ax, tree, view, layout)
    _label_tips(ax, tree, view, colours)
    _label_odds(ax, tree, view, layout)
    _add_legend(ax, view, layout)
    return ax


def terminal(tree: Tree, max_leaves: int = 16) -> RenderableType:
    """The top of the hierarchy as a tree for the terminal."""
    from rich.text import Text
    from rich.tree import Tree as RichTree

    view = select(tree, max_leaves)
    title = Text(_title(tree, view), style="bold")
    if tree.n_leaves > 1:
        title.append(f" · {percent(float(tree.posterior[-1]))} one cluster", style="not bold")
    top = RichTree(title, guide_style="dim")
    opened = set(view.opened)
    branches: list[tuple[int, RichTree]] = _largest_last(tree, opened, tree.root, top)
    while branches:
        node, above = branches.pop()
        branch = above.add(_terminal_line(tree, view, node, node in opened))
        branches += _largest_last(tree, opened, node, branch)
    return top


def _largest_last(
    tree: Tree, opened: set[int], node: int, branch: RichTree
) -> list[tuple[int, RichTree]]:
    """Shown children in the order in which a stack wants them."""
    if node not in opened:
        return []
    children = tree.structure.children(node).tolist()
    children.sort(key=lambda child: (tree.n_rows[child], -child))
    return [(child, branch) for child in children]


def html(tree: Tree) -> str:
    """The picture as inline SVG, for notebooks."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=_size(min(tree.n_leaves, 30)), layout="constrained")
    plot(tree, figure.add_subplot(), max_leaves=30)
    picture = io.StringIO()
    figure.savefig(picture, format="svg", metadata={"Date": None})
    text = picture.getvalue()
    return "<div>" + text[text.index("<svg") :] + "</div>"


class _Layout:
    """Coordinates of shown nodes: `x` along the odds axis, `y` from top to bottom."""

    def __init__(self, tree: Tree, view: View) -> None:
        preference = tree.split_preference()
        shown = [node for node in (*view.opened, *view.tips) if node >= tree.n_leaves]
        levels = signed_log(preference[shown]) if shown else np.zeros(1)
        self.low, self.high = float(levels.min()), float(levels.max())
        self.span = max(self.high - self.low, 1.0)
        self.base = self.low - 0.08 * self.span
        self.x: dict[int, float] = dict(zip(shown, levels.tolist(), strict=False))
        self.y: dict[int, float] = {node: float(row) for row, node in enumerate(view.tips)}
        self.children: dict[int, list[int]] = {}
        for node in view.opened:
            children = tree.structure.children(node).tolist()
            # Left to right in the tree is top to bottom in the picture.
            children.sort(key=lambda child: self.y[child])
            self.children[node] = children
            self.y[node] = 0.5 * (self.y[children[0]] + self.y[children[-1]])
        self._separate(view)

    def _separate(self, view: View) -> None:
        """Move merges that would be drawn on top of each other a small step apart."""
        steps: dict[int, int] = {}
        for node in view.opened:
            steps[node] = 1 + max(steps.get(child, 0) for child in self.children[node])
        gap = self.span * min(0.014, 0.3 / max(steps.values(), default=1))
        for node in view.opened:
            below = [self.x[child] + gap for child in self.children[node] if child in self.x]
            self.x[node] = max([self.x[node], *below])
            self.high = max(self.high, self.x[node])

    def level(self, node: int) -> float:
        """Where a node lies on the odds axis; leaves lie at the base."""
        return self.x.get(node, self.base)


def signed_log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Logarithmic scale for both signs, linear around zero."""
    return np.sign(values) * np.log1p(np.abs(values))


def _size(n_tips: int) -> tuple[float, float]:
    return 9.0, float(np.clip(0.21 * n_tips + 1.7, 3.2, 40.0))


def _new_axes(n_tips: int) -> Axes:
    import matplotlib.pyplot as plt

    _, ax = plt.subplots(figsize=_size(n_tips), layout="constrained")
    return ax


def _node_colours(tree: Tree, view: View) -> dict[int, str]:
    """Colour of each shown node inside a cluster; neighbours on the page differ."""
    position: dict[int, int] = {}
    for tip in view.tips:
        cluster = view.cluster_of.get(tip)
        if cluster is not None and tree.structure.n_leaves_below[view.cut_nodes[cluster]] > 1:
            position.setdefault(cluster, len(position))
    return {
        node: COLOURS[position[cluster] % len(COLOURS)] if cluster in position else SINGLE_COLOUR
        for node, cluster in view.cluster_of.items()
    }


def _draw_merges(
    ax: Axes, tree: Tree, view: View, layout: _Layout, colours: dict[int, str]
) -> None:
    from matplotlib.collections import LineCollection

    solid: list[list[tuple[float, float]]] = []
    solid_colours: list[str] = []
    dashed: list[list[tuple[float, float]]] = []
    for node in view.opened:
        x = layout.level(node)
        children = layout.children[node]
        bar = [(x, layout.y[children[0]]), (x, layout.y[children[-1]])]
        stems = [[(x, layout.y[c]), (layout.level(c), layout.y[c])] for c in children]
        if tree.log_odds[node] < 0.0:
            dashed += [bar, *stems]
        else:
            solid += [bar, *stems]
            solid_colours += [colours.get(node, INK)] * (1 + len(stems))
    ax.add_collection(LineCollection(solid, colors=solid_colours, linewidths=1.5, zorder=3))
    ax.add_collection(
        LineCollection(dashed, colors=SPLIT_COLOUR, linewidths=1.2, linestyles=(0, (4, 2.5)))
    )


def _draw_wedges(
    ax: Axes, tree: Tree, view: View, layout: _Layout, colours: dict[int, str]
) -> None:
    from matplotlib.patches import Polygon

    most = max(float(tree.n_rows[tip]) for tip in view.tips)
    for tip in view.tips:
        if tip not in layout.x:
            continue
        x, y = layout.x[tip], layout.y[tip]
        half = 0.1 + 0.3 * float(np.sqrt(tree.n_rows[tip] / most))
        corners = [(x, y), (layout.base, y - half), (layout.base, y + half)]
        colour = colours.get(tip, SINGLE_COLOUR)
        ax.add_patch(Polygon(corners, facecolor=colour, alpha=0.45, edgecolor=colour, zorder=2))


def _decorate(ax: Axes, tree: Tree, view: View, layout: _Layout) -> None:
    ax.set_xlim(layout.high + 0.12 * layout.span, layout.base)
    ax.set_ylim(len(view.tips) - 0.4, -0.6)
    width, _ = _axes_inches(ax)
    # Names at the tips take about a fifth of the width.
    ticks = _tick_values(layout, 0.8 * width)
    ax.set_xticks(signed_log(np.array(ticks)).tolist(), [_number(v) for v in ticks])
    name = "evidence against the merge (−log odds in nats; numbers at merges: log odds)"
    ax.set_xlabel(name if width > _WIDE else "−log odds of the merge (nats)", color=INK)
    ax.set_title(_title(tree, view), loc="left", fontsize=11, color=INK, pad=24)
    for side in ("left", "right", "top"):
        ax.spines[side].set_visible(False)
    ax.spines["bottom"].set_color("#9CA3AF")
    ax.tick_params(colors=INK, labelsize=8)
    if layout.low < 0.0 < layout.high:
        ax.axvline(0.0, color="#9CA3AF", linewidth=0.8, linestyle=":", zorder=0)


def _tick_values(layout: _Layout, inches: float) -> list[float]:
    """Zero and powers of ten of both signs, those left out that would touch another."""
    powers = [float(10**power) for power in range(9)]
    unit = inches / (1.2 * layout.span)
    values: list[float] = []
    for sign in (1.0, -1.0):
        edge = 0.05
        for value in [0.0, *powers] if sign > 0.0 else powers:
            position = unit * float(signed_log(np.array(value)))
            half = 0.038 * (len(_number(sign * value)) + 1)
            if value == 0.0 or position - half > edge:
                values.append(sign * value)
                edge = position + half
    margin = 0.08 * layout.span
    positions = signed_log(np.array(values))
    shown = (positions > layout.base) & (positions < layout.high + margin)
    return sorted(value for value, keep in zip(values, shown.tolist(), strict=True) if keep)


def _axes_inches(ax: Axes) -> tuple[float, float]:
    """Width and height of the axes before the layout makes room for labels."""
    figure = ax.get_figure(root=True)
    width, height = figure.get_size_inches().tolist() if figure is not None else (9.0, 4.8)
    box = ax.get_position()
    return width * box.width, height * box.height


def _label_tips(ax: Axes, tree: Tree, view: View, colours: dict[int, str]) -> None:
    texts = [_tip_text(tree, view, tip) for tip in view.tips]
    ax.yaxis.tick_right()
    ax.set_yticks(range(len(view.tips)))
    ax.tick_params(axis="y", length=0, pad=3)
    size = _font_size(ax, len(view.tips))
    if size is None:
        ax.set_yticklabels([])
        return
    ax.set_yticklabels(texts, fontsize=size)
    for label, tip in zip(ax.get_yticklabels(), view.tips, strict=True):
        label.set_color(colours.get(tip, INK))


def _font_size(ax: Axes, n_tips: int) -> float | None:
    """Largest size at which the labels of all tips fit under one another, or None."""
    _, height = _axes_inches(ax)
    # Titles and axis labels take part of the box that the layout has not placed yet.
    size = min(8.5, 0.85 * 72.0 * max(height - 0.3, 0.5) / n_tips)
    return size if size >= 3.5 else None


def _tip_text(tree: Tree, view: View, tip: int) -> str:
    if tip < tree.n_leaves:
        name = tree.leaf_name(tip)
        name = name if len(name) <= _LONGEST_NAME else name[: _LONGEST_NAME - 1] + "…"
        return f"{name} · {_rows_text(tree, tip)}" if _stands_for_more(tree, tip) else name
    rows = _rows_text(tree, tip)
    cluster = view.cluster_of.get(tip)
    if cluster is None:
        n_clusters = _n_clusters_below(tree, view, tip)
        return f"{n_clusters} clusters · {rows}"
    if view.cut_nodes[cluster] == tip:
        return f"cluster {cluster} · {rows}"
    return rows


def _stands_for_more(tree: Tree, leaf: int) -> bool:
    """Whether a leaf holds more rows than the one that is named."""
    return len(tree.leaf_of_row) == tree.n_leaves and bool(tree.n_rows[leaf] > 1.0)


def _n_clusters_below(tree: Tree, view: View, node: int) -> int:
    start = tree.structure.leaf_start
    first = start[node]
    positions = start[view.cut_nodes]
    last = first + tree.structure.n_leaves_below[node]
    return int(np.count_nonzero((positions >= first) & (positions < last)))


def _label_odds(ax: Axes, tree: Tree, view: View, layout: _Layout) -> None:
    """Write the log odds beside the highest merges, leaving out what would overlap."""
    width, height = _axes_inches(ax)
    # Size of a character in data units, at 7 points.
    x_unit = 1.2 * layout.span / (72.0 * width * 0.85) * 4.3
    y_unit = len(view.tips) / (72.0 * height) * 9.0
    placed: list[tuple[float, float, float, float]] = []
    ranked = sorted(view.opened, key=lambda node: (-layout.level(node), -node))
    for node in ranked[:_MOST_ODDS_LABELS]:
        text = _number(float(tree.log_odds[node]))
        x, y = layout.level(node), layout.y[node]
        bounds = (x, x + x_unit * (len(text) + 1), y - y_unit, y)
        if any(_overlap(bounds, other) for other in placed):
            continue
        placed.append(bounds)
        colour = SPLIT_COLOUR if tree.log_odds[node] < 0.0 else INK
        ax.annotate(
            text,
            (x, y),
            xytext=(-3, 1.5),
            textcoords="offset points",
            ha="right",
            va="bottom",
            fontsize=7,
            color=colour,
            zorder=5,
            bbox={"facecolor": ax.get_facecolor(), "edgecolor": "none", "pad": 0.6},
        )


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[1] and b[0] < a[1] and a[2] < b[3] and b[2] < a[3]


def _add_legend(ax: Axes, view: View, layout: _Layout) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    is_wide = _axes_inches(ax)[0] > _WIDE
    dashes = (0, (4, 2.5))
    handles: list[Line2D | Patch] = [
        Line2D([], [], color=INK, linewidth=1.5, label="merge preferred"),
        Line2D([], [], color=SPLIT_COLOUR, linewidth=1.2, ls=dashes, label="split preferred"),
    ]
    if any(tip in layout.x for tip in view.tips):
        label = "several rows, not opened" if is_wide else "not opened"
        handles.append(Patch(color=SINGLE_COLOUR, alpha=0.45, label=label))
    ax.legend(
        handles=handles,
        loc="lower left",
        bbox_to_anchor=(0.0, 1.0),
        borderaxespad=0.1,
        borderpad=0.2,
        handlelength=2.0 if is_wide else 1.4,
        columnspacing=2.0 if is_wide else 1.0,
        ncols=len(handles),
        frameon=False,
        fontsize=8 if is_wide else 6.5,
        labelcolor=INK,
    )


def _title(tree: Tree, view: View) -> str:
    n_clusters = len(view.cut_nodes)
    plural = "cluster" if n_clusters == 1 else "clusters"
    return (
        f"{_rows_text(tree, tree.root)} · {n_clusters:,} {plural} · "
        f"log evidence {_number(tree.log_evidence)}"
    )


def _rows_text(tree: Tree, node: int) -> str:
    n_rows = float(tree.n_rows[node])
    return f"{n_rows:,.0f} row" + ("" if n_rows == 1.0 else "s")


def _number(value: float) -> str:
    """A number as people write it: few digits, a real minus sign."""
    digits = 1 if abs(value) < 100.0 and value != round(value) else 0
    return f"{value:,.{digits}f}".replace("-", "−")


def percent(probability: float) -> str:
    """A probability to three digits, never 0 or 1: a model is never certain."""
    if probability > 0.999:
        return ">99.9 %"
    if probability < 0.001:
        return "<0.1 %"
    return f"{100.0 * probability:.1f} %"


def _terminal_line(tree: Tree, view: View, node: int, is_open: bool) -> Text:
    from rich.text import Text

    cluster = view.cluster_of.get(node)
    is_cluster = cluster is not None and view.cut_nodes[cluster] == node
    line = Text()
    if is_cluster and cluster is not None:
        line.append(f"● cluster {cluster}", style=f"bold {COLOURS[cluster % len(COLOURS)]}")
        line.append(" · ")
    line.append(_rows_text(tree, node))
    if node < tree.n_leaves:
        line.append(f" · {tree.leaf_name(node)}", style="dim")
    else:
        probability = float(np.exp(tree.evaluation.log_posterior[node]))
        line.append(f" · {percent(probability)} one cluster")
        if cluster is None and not is_open:
            line.append(f" · {_n_clusters_below(tree, view, node):,} clusters inside")
    if is_cluster:
        for piece in _feature_texts(tree, node):
            line.append(f" · {piece}", style="italic")
    return line


def _feature_texts(tree: Tree, node: int) -> Iterator[str]:
    if tree.family is None or tree.statistics is None or node == tree.root:
        return
    for feature in tree.top_features(node, 2):
        if np.isnan(feature.mean):  # a category
            yield feature.name
            continue
        sign = "↑" if feature.mean > feature.sibling_mean else "↓"
        yield f"{feature.name} {sign} {feature.mean:.3g}"
