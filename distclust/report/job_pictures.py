"""Pictures of a job's runs as SVG elements for a page: they take its colours, light or dark."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import markupsafe

SHOWN_CHANGES = 8  # in a picture of flows

_WIDTH = 420.0
_LEFT, _RIGHT, _THICK = 104.0, 306.0, 10.0  # where the columns of clusters begin, and how wide
_LEAST, _GAP, _GAP_BETWEEN = 13.0, 5.0, 22.0  # heights of a cluster, below it, below a change
_TALL = 150.0  # height of the largest change


@dataclass(frozen=True)
class Bar:
    """One run in a picture of several.

    Attributes
    ----------
    value
        How high it is; None if the run does not tell.
    style
        Name of the class that colours it.
    about
        What is shown when it is pointed at.
    """

    value: float | None
    style: str
    about: str


def bars(runs: Sequence[Bar], label: str) -> markupsafe.Markup:
    """Draw the runs from left to right; one without a value is a mark on the ground line."""
    height, ground, top = 110.0, 92.0, 16.0
    largest = max((bar.value or 0.0 for bar in runs), default=0.0) or 1.0
    step = min(_WIDTH / max(len(runs), 1), 28.0)
    parts = []
    for i, bar in enumerate(runs):
        tall = (ground - top) * (bar.value or 0.0) / largest
        place = _rect(i * step, ground - max(tall, 0.0), step * 0.78, tall)
        if bar.value is None:
            place = _rect(i * step, ground - 4.0, step * 0.78, 4.0)
        title = markupsafe.Markup("<title>{}</title>").format(bar.about)
        parts.append(
            markupsafe.Markup('<rect class="{}" {}>{}</rect>').format(bar.style, place, title)
        )
    line = markupsafe.Markup('<path class="axis" d="M0 {0}H{1}"/>').format(ground, _WIDTH)
    text = markupsafe.Markup(
        '<text x="0" y="{}">{}</text><text x="{}" y="{}" text-anchor="end">most: {}</text>'
    ).format(height - 4, label, _WIDTH, height - 4, f"{largest:,.0f}")
    return _svg(height, label, [*parts, line, text])


def flows(clusters: Mapping[str, Any]) -> markupsafe.Markup | None:
    """Draw where the rows of clusters went that split, merged, came or went; None if none did."""
    shown = list(_shown(clusters))
    if not shown:
        return None
    most = max(max(_rows(change["before"]), _rows(change["after"])) for _, change in shown)
    scale = _TALL / max(most, 1)
    parts, y = [], 14.0
    for name, x, anchor in (("before", _LEFT, "start"), ("after", _RIGHT + _THICK, "end")):
        parts.append(_text(x, 10.0, anchor, name, "faint"))
    for kind, change in shown:
        drawn, y = _change(kind, change, scale, y + _GAP_BETWEEN)
        parts += drawn
    return _svg(y, "where the rows of clusters went", parts)


def _shown(clusters: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Changes worth a picture: those with flows first, the largest of each kind in turn."""
    kinds = ("split", "merged", "regrouped", "born", "gone")
    lists = [clusters.get(kind, []) for kind in kinds]
    n_shown = 0
    for rank in range(max(map(len, lists))):
        for kind, changes in zip(kinds, lists, strict=True):
            if rank < len(changes) and n_shown < SHOWN_CHANGES:
                n_shown += 1
                yield kind, changes[rank]


def _change(
    kind: str, change: Mapping[str, Any], scale: float, top: float
) -> tuple[list[markupsafe.Markup], float]:
    """Return the parts of one change drawn from `top` on, and where it ends."""
    middle = (_LEFT + _RIGHT + _THICK) / 2
    parts = [_text(middle, top - 5.0, "middle", kind, "kind")]
    places: dict[tuple[str, int], tuple[float, float]] = {}
    ends = [top]
    for side, x in (("before", _LEFT), ("after", _RIGHT)):
        y = top
        for each in change[side]:
            tall = max(_LEAST, each["rows"] * scale)
            places[side, each["cluster"]] = y, tall
            rect = _rect(x, y, _THICK, tall)
            parts.append(markupsafe.Markup('<rect class="{}" {}/>').format(f"bar-{kind}", rect))
            label = f"{each['cluster']} · {each['rows']:,}"
            at, anchor = (x - 5, "end") if side == "before" else (x + _THICK + 5, "start")
            parts.append(_text(at, y + min(tall / 2, 40.0) + 4.0, anchor, label, ""))
            y += tall + _GAP
        ends.append(y - _GAP)
    return [*_ribbons(kind, change, places), *parts], max(ends)


def _ribbons(
    kind: str, change: Mapping[str, Any], places: Mapping[tuple[str, int], tuple[float, float]]
) -> Iterator[markupsafe.Markup]:
    rows = {
        (side, each["cluster"]): max(each["rows"], 1)
        for side in ("before", "after")
        for each in change[side]
    }
    used = dict.fromkeys(places, 0.0)
    order = [(each["before"], each["after"], each["rows"]) for each in change["flows"]]
    x0, x1 = _LEFT + _THICK, _RIGHT
    middle = (x0 + x1) / 2
    for before, after, count in sorted(order, key=lambda flow: _heights(places, flow)):
        edges = []
        for key in (("before", before), ("after", after)):
            top, tall = places[key]
            thick = tall * count / rows[key]
            edges += [top + used[key], top + used[key] + thick]
            used[key] += thick
        a, b, c, d = edges
        path = (
            f"M{x0:.1f} {a:.1f}C{middle:.1f} {a:.1f} {middle:.1f} {c:.1f} {x1:.1f} {c:.1f}"
            f"V{d:.1f}C{middle:.1f} {d:.1f} {middle:.1f} {b:.1f} {x0:.1f} {b:.1f}Z"
        )
        yield markupsafe.Markup(
            '<path class="ribbon bar-{}" d="{}"><title>{}</title></path>'
        ).format(kind, path, f"{count:,} rows of {before} are in {after}")


def _heights(
    places: Mapping[tuple[str, int], tuple[float, float]], flow: tuple[int, int, int]
) -> tuple[float, float]:
    return places["before", flow[0]][0], places["after", flow[1]][0]


def _rows(side: Sequence[Mapping[str, Any]]) -> int:
    return sum(each["rows"] for each in side)


def _rect(x: float, y: float, width: float, height: float) -> markupsafe.Markup:
    return markupsafe.Markup('x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="1"').format(
        x, y, width, height
    )


def _text(x: float, y: float, anchor: str, text: str, style: str) -> markupsafe.Markup:
    return markupsafe.Markup(
        '<text x="{:.1f}" y="{:.1f}" text-anchor="{}" class="{}">{}</text>'
    ).format(x, y, anchor, style, text)


def _svg(height: float, label: str, parts: Sequence[markupsafe.Markup]) -> markupsafe.Markup:
    return markupsafe.Markup(
        '<svg viewBox="0 0 {:.0f} {:.0f}" role="img" aria-label="{}">{}</svg>'
    ).format(_WIDTH, height, label, markupsafe.Markup("").join(parts))
