"""Pictures of chains: what they traced, and how often rows lay together."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from distclust.report.chains import head, ordered
from distclust.report.pictures import METADATA, SETTINGS, check_picture_path
from distclust.store.files import replacing
from distclust.trees.draw import COLOURS, INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, SubFigure

MOST_ROWS = 500  # of a heat map
MOST_NAMED = 12  # chains in the legend, and clusters with a number
MOST_BORDERS = 40

_MOST_POINTS = 2000  # of a line: more cannot be seen
_BURNT = "#9CA3AF"


def draw_traces(model: Any) -> Figure:
    """Draw the traced figures of every sweep, a line a chain; the discarded half is shaded.

    Of ensembles that are not sampled: the bound or log-likelihood of every iteration.

    Parameters
    ----------
    model
        A fitted DPMixture or ClusterEnsemble.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 1.2 + 1.8 * len(model.traces_)), layout="constrained")
    _fill_traces(figure, model)
    return figure


def draw_coassociation(model: Any, rows: npt.ArrayLike | None = None) -> Figure:
    """Draw how often rows lay together, as a heat map ordered by cluster.

    Parameters
    ----------
    model
        A fitted DPMixture or ClusterEnsemble. Of ensembles that are not sampled, rows lie
        together where bases say so.
    rows
        Positions of the rows to show. By default at most 500: evenly spread over each
        cluster, every cluster by its share.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 5.6), layout="constrained")
    _fill_coassociation(figure, model, rows)
    return figure


def write_mixture_picture(path: Path, model: Any) -> None:
    """Draw traces and co-association side by side into a file, in the form its suffix names."""
    import matplotlib as mpl

    check_picture_path(path)
    kind = path.suffix.lower().removeprefix(".")
    buffer = io.BytesIO()
    with mpl.rc_context(SETTINGS):
        _both(model).savefig(buffer, format=kind, dpi=150, metadata=METADATA.get(kind))
    with replacing(path) as file:
        file.write(buffer.getvalue())


def shown_rows(labels: npt.ArrayLike, most: int = MOST_ROWS) -> npt.NDArray[np.int64]:
    """Return positions of at most `most` rows in order of cluster, evenly spread within each.

    Every cluster gets its share of the places, and at least one as long as there are enough.
    Rows with a negative label are in none, and left out.
    """
    labels = np.asarray(labels)
    order = np.argsort(labels, kind="stable")[np.count_nonzero(labels < 0) :]
    if len(order) <= most:
        return order
    sizes = np.bincount(labels[order])
    places = _shares(sizes, most)
    starts = np.cumsum(sizes) - sizes
    parts = [
        order[start + (np.arange(n) * size) // max(n, 1)]
        for start, size, n in zip(starts, sizes, places, strict=True)
    ]
    return np.concatenate(parts)


def _shares(sizes: npt.NDArray[np.int64], most: int) -> npt.NDArray[np.int64]:
    """Divide `most` places in proportion to sizes, the largest remainders first."""
    n_used = int(np.count_nonzero(sizes))
    first = (sizes > 0).astype(np.int64) if n_used <= most else np.zeros_like(sizes)
    exact = (most - first.sum()) * (sizes - first) / max(1, int((sizes - first).sum()))
    places: npt.NDArray[np.int64] = first + np.floor(exact).astype(np.int64)
    rest = most - int(places.sum())
    places[np.argsort(np.floor(exact) - exact, kind="stable")[:rest]] += 1
    return places


# ---- what is drawn -------------------------------------------------------------------------------


def _both(model: Any) -> Figure:
    from matplotlib.figure import Figure

    height = max(5.2, 1.2 + 1.6 * len(model.traces_))
    figure = Figure(figsize=(13.6, height), layout="constrained")
    left, right = cast("Any", figure.subfigures(1, 2, width_ratios=(7.2, 6.4), wspace=0.03))
    _fill_traces(left, model)
    _fill_coassociation(right, model, None)
    return figure


def _fill_traces(figure: Figure | SubFigure, model: Any) -> None:
    names, is_sampled = ordered(model.traces_), hasattr(model, "draws_")
    axes = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
    for ax, name in zip(axes, names, strict=True):
        _draw_trace(ax, name, np.asarray(model.traces_[name], dtype=np.float64), is_sampled)
    n_chains, n_sweeps = np.shape(model.traces_[names[0]])
    figure.align_ylabels(list(axes))
    axes[-1].set_xlabel("sweep" if is_sampled else "iteration")
    chains = f"{n_chains} chain" + ("" if n_chains == 1 else "s")
    title = f"{chains} of {n_sweeps:,} sweeps; shaded: not used"
    title = title if is_sampled else f"{n_sweeps:,} iterations"
    axes[0].set_title(title, loc="left", color=INK)
    if 1 < n_chains <= MOST_NAMED:
        handles = axes[0].get_lines()
        figure.legend(
            handles,
            [f"chain {c}" for c in range(n_chains)],
            loc="outside lower center",
            ncols=min(n_chains, 6),
            frameon=False,
        )


def _draw_trace(ax: Axes, name: str, trace: npt.NDArray[np.float64], has_burn_in: bool) -> None:
    n_chains, n_sweeps = trace.shape
    sweeps = np.arange(1, n_sweeps + 1)
    step = -(-n_sweeps // _MOST_POINTS)
    is_whole = bool(np.all(trace == np.round(trace)))
    for chain in range(n_chains):
        ax.plot(
            sweeps[::step],
            trace[chain, ::step],
            color=COLOURS[chain % len(COLOURS)],
            lw=0.9 if n_chains <= MOST_NAMED else 0.6,
            alpha=0.85,
            drawstyle="steps-post" if is_whole else "default",
        )
    if has_burn_in:
        ax.axvspan(1, max(1, n_sweeps // 2), color=_BURNT, alpha=0.18, lw=0)
    ax.set_xlim(1, max(2, n_sweeps))
    ax.set_ylabel(head(name))
    _set_height(ax, trace, n_sweeps // 2 if has_burn_in else 0, is_whole)
    _tidy(ax)


def _set_height(ax: Axes, trace: npt.NDArray[np.float64], n_unused: int, is_whole: bool) -> None:
    """Let the part that is used fill most of the height; a first plunge may leave the picture."""
    from matplotlib.ticker import MaxNLocator

    used = trace[:, n_unused:]
    low, high = float(used.min()), float(used.max())
    reach = high - low if high > low else max(1.0, 0.02 * abs(high))
    bottom, top = max(float(trace.min()), low - reach), min(float(trace.max()), high + reach)
    if bottom == top:
        bottom, top = low - reach, high + reach
    margin = 0.06 * (top - bottom)
    ax.set_ylim(bottom - margin, top + margin)
    ax.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=is_whole))
    ax.ticklabel_format(axis="y", useOffset=False, style="plain")


def _fill_coassociation(figure: Figure | SubFigure, model: Any, rows: Any) -> None:
    labels = np.asarray(model.labels_)
    if rows is None:
        chosen = shown_rows(labels)
    else:
        chosen = np.asarray(rows)
        chosen = chosen[np.argsort(labels[chosen], kind="stable")]
    is_sampled = hasattr(model, "draws_")
    together = np.asarray(model.coassignment(chosen) if is_sampled else model.coassociation(chosen))
    ax = figure.subplots()
    image = ax.imshow(
        together, cmap="Blues", vmin=0.0, vmax=1.0, interpolation="nearest", aspect="equal"
    )
    _mark_clusters(ax, labels[chosen])
    n_all = len(labels)
    shown = f"{len(chosen):,} of {n_all:,} rows" if len(chosen) < n_all else f"{n_all:,} rows"
    ax.set_title(f"How often rows lay together; {shown}", loc="left", color=INK)
    bar = figure.colorbar(image, ax=ax, shrink=0.85, pad=0.02)
    bar.set_label("share of draws" if is_sampled else "share of bases")
    bar.outline.set_visible(False)


def _mark_clusters(ax: Axes, ordered: npt.NDArray[Any]) -> None:
    """Draw the borders of clusters and, of the larger ones, their numbers."""
    borders = np.flatnonzero(np.diff(ordered)) + 1
    if len(borders) <= MOST_BORDERS:  # more would cover what they divide
        for border in borders:
            for line in (ax.axhline, ax.axvline):
                line(border - 0.5, color=INK, lw=0.6 if len(borders) < MOST_NAMED else 0.3)
    names, starts, sizes = np.unique(ordered, return_index=True, return_counts=True)
    largest = np.sort(np.argsort(-sizes, kind="stable")[:MOST_NAMED])
    readable = [k for k in largest if sizes[k] >= 0.03 * len(ordered)]
    middles = [starts[k] + (sizes[k] - 1) / 2 for k in readable]
    texts = [str(names[k]) for k in readable]
    ax.set_xticks(middles, texts)
    ax.set_yticks(middles, texts)
    ax.tick_params(length=0, colors=INK)
    ax.set_xlabel("cluster", color=INK)
    ax.set_ylabel("cluster", color=INK)
    for spine in ax.spines.values():
        spine.set_color(INK)
        spine.set_linewidth(0.6)


def _tidy(ax: Axes) -> None:
    ax.tick_params(colors=INK, labelsize=9)
    ax.yaxis.label.set_color(INK)
    ax.xaxis.label.set_color(INK)
    for side in ("top", "right"):
        ax.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        ax.spines[side].set_color(INK)
