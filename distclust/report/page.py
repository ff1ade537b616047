"""The HTML report: one file that needs nothing else and opens without a network."""

from __future__ import annotations

import datetime
import importlib.resources
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from distclust._version import __version__
from distclust.report import terminal
from distclust.report.pictures import svg
from distclust.report.summary import Cluster, Summary

if TYPE_CHECKING:
    from distclust.trees import Tree

HOW_TO_READ = (
    "All rows are one at the left and single at the right. The further left a merge lies, the "
    "more evidence there is against it; dashed red merges are those the model prefers not to "
    "make. Colours are the clusters of the cut."
)


@dataclass(frozen=True)
class Placed:
    """A new row, its most probable cluster and the next one."""

    name: str
    label: int
    probability: float
    next_label: int
    next_probability: float


def place(names: Iterable[object], chances: NDArray[np.float64]) -> tuple[Placed, ...]:
    """Describe each row of `chances`, shape (n_rows, n_clusters), in words of clusters."""
    placed = []
    for name, row in zip(names, chances, strict=True):
        first, second = np.argsort(-row, kind="stable")[[0, min(1, len(row) - 1)]].tolist()
        placed.append(Placed(str(name), first, float(row[first]), second, float(row[second])))
    return tuple(placed)


def render(
    summary: Summary,
    tree: Tree,
    *,
    title: str,
    lead: str,
    placed: Sequence[Placed] = (),
    threshold: float = 0.5,
) -> str:
    """Return the report as HTML text.

    Parameters
    ----------
    summary
        What was found.
    tree
        Drawn into the page.
    title, lead
        Heading and the sentence below it.
    placed
        New rows to list with their most probable clusters.
    threshold
        Where the picture cuts the tree.
    """
    import jinja2
    import markupsafe

    from distclust.trees.draw import percent

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["percent"] = percent
    environment.filters["telling"] = terminal.telling
    environment.filters["members"] = _members
    environment.filters["choice_of_family"] = terminal.choice_of_family
    source = importlib.resources.files("distclust.report") / "page.html.jinja"
    template = environment.from_string(source.read_text(encoding="utf-8"))
    return template.render(
        title=title,
        lead=lead,
        facts=_facts(summary),
        how_to_read=HOW_TO_READ,
        # Drawn by matplotlib, which escapes the names it is given.
        picture=markupsafe.Markup(svg(tree, threshold=threshold)),
        summary=summary,
        placed=placed,
        version=__version__,
        date=datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def _members(cluster: Cluster) -> str:
    return terminal.members(cluster.rows, cluster.n_rows)


def _facts(summary: Summary) -> dict[str, str]:
    facts = {
        "clusters": f"{summary.n_clusters:,}",
        "rows": f"{summary.n_rows:,}",
        "features": f"{summary.n_features:,}",
        "log evidence": f"{summary.log_evidence:,.2f}",
    }
    if summary.log_lower_bound is not None:
        facts["lower bound on the mixture's"] = f"{summary.log_lower_bound:,.2f}"
    facts["partitions weighed"] = terminal.power_of_ten(summary.log10_n_partitions)
    return facts
