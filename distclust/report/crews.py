"""What crews do on a scheduler, for people: tables on a terminal, plain lines elsewhere."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

NO_CREWS = "No crews on {}."
NO_WORKER = "on its way"

_ENDED_SHOWN = 10
_NUMBERS = {"position", "saved", "restarts", "workers"}
_QUIET_SECONDS = 10.0  # from then on it is worth saying that a crew was not heard of


@dataclass(frozen=True)
class Sheet:
    """A table before it is drawn: a title, or none, and a row of texts a line."""

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]


def print_crews(
    console: Console, scheduler: str, crews: Sequence[Mapping[str, Any]], *, members: bool
) -> None:
    """Print what runs: a table on a terminal; in a pipe, lines that are never cut."""
    if console.is_terminal:
        console.print(draw_crews(scheduler, crews, members=members))
        return
    sheets = _sheets(crews, members)
    for line in (line for sheet in sheets for line in _aligned(sheet)):
        console.out(line, highlight=False)
    if not crews:
        console.out(NO_CREWS.format(scheduler), highlight=False)
    if more := _left_out(crews):
        console.out(more, highlight=False)


def draw_crews(
    scheduler: str, crews: Sequence[Mapping[str, Any]], *, members: bool
) -> RenderableType:
    """Return what runs as something that rich draws, once or again and again."""
    if not crews:
        return Text(NO_CREWS.format(scheduler))
    parts: list[RenderableType] = []
    for sheet in _sheets(crews, members):
        if sheet.title:
            parts += [Text(), Text(sheet.title, style="bold")]
        parts.append(_table(sheet, leave_out=() if sheet.title else ("metrics",)))
        if not sheet.title:  # figures of a whole crew take room: they stand below
            told = ((crew, _metrics(crew["members"])) for crew in _shown(crews))
            parts += [Text(f"{crew['id']}  {text}", style="dim") for crew, text in told if text]
    if more := _left_out(crews):
        parts.append(Text(more, style="dim"))
    return Group(*parts)


def crew_lines(crews: Sequence[Mapping[str, Any]], *, members: bool) -> Iterator[str]:
    """Yield a line for each crew, or each member, that can stand alone in a log."""
    for crew in crews:
        yield f"{crew['id']}  {_clean(crew['name'])}  {_standing(crew)}"
        if members:
            for member in crew["members"]:
                yield f"{crew['id']}  {_clean(member['label'])}  {_whereabouts(member)}"


def _standing(crew: Mapping[str, Any]) -> str:
    facts = {
        "position": _position(crew),
        "saved": _saved(crew),
        "restarts": crew["restarts"],
        "workers": len(crew["workers"]),
    }
    told = "  ".join(f"{name} {value}" for name, value in facts.items())
    return "  ".join(part for part in (crew["state"], told, _metrics(crew["members"])) if part)


def _whereabouts(member: Mapping[str, Any]) -> str:
    facts = {
        "position": member["position"],
        "saved": _saved(member),
        "restarts": member["restarts"],
    }
    told = "  ".join(f"{name} {value}" for name, value in facts.items())
    parts = (member["worker"] or NO_WORKER, told, _metrics([member]))
    return "  ".join(part for part in parts if part)


# ---- tables ------------------------------------------------------------------------------


def _sheets(crews: Sequence[Mapping[str, Any]], members: bool) -> list[Sheet]:
    if not crews:
        return []
    shown = _shown(crews)
    heads = ("id", "name", "state", "since", "position", "saved", "restarts")
    sheets = [
        Sheet(
            "",
            (*heads, "workers", "metrics"),
            [
                (
                    crew["id"],
                    _clean(crew["name"]),
                    _state(crew),
                    _moment(crew["began"]),
                    _position(crew),
                    _saved(crew),
                    f"{crew['restarts']:,}",
                    f"{len(crew['workers']):,}",
                    _metrics(crew["members"]),
                )
                for crew in shown
            ],
        )
    ]
    return [*sheets, *map(_member_sheet, shown)] if members else sheets


def _member_sheet(crew: Mapping[str, Any]) -> Sheet:
    return Sheet(
        f"{_clean(crew['name'])} ({crew['id']})",
        ("member", "worker", "position", "saved", "restarts", "metrics"),
        [
            (
                _clean(member["label"]),
                member["worker"] or NO_WORKER,
                f"{member['position']:,}",
                _saved(member),
                f"{member['restarts']:,}",
                _metrics([member]),
            )
            for member in crew["members"]
        ],
    )


def _shown(crews: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return those that run, then the last ones that ended."""
    running = [crew for crew in crews if crew["state"] == "running"]
    ended = [crew for crew in crews if crew["state"] != "running"]
    return running + ended[:_ENDED_SHOWN]


def _left_out(crews: Sequence[Mapping[str, Any]]) -> str:
    more = len(crews) - len(_shown(crews))
    return f"{more:,} more that are over; --json lists all." if more else ""


def _table(sheet: Sheet, leave_out: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    kept = [i for i, head in enumerate(sheet.heads) if head not in leave_out]
    for i in kept:
        is_number = sheet.heads[i] in _NUMBERS
        table.add_column(sheet.heads[i], justify="right" if is_number else "left", overflow="fold")
    for row in sheet.rows:
        table.add_row(*(Text(row[i]) for i in kept))
    return table


def _aligned(sheet: Sheet) -> Iterator[str]:
    if sheet.title:
        yield ""
        yield sheet.title
    widths = [max(map(len, column)) for column in zip(sheet.heads, *sheet.rows, strict=True)]
    for row in (sheet.heads, *sheet.rows):
        cells = [
            cell.rjust(width) if head in _NUMBERS else cell.ljust(width)
            for cell, width, head in zip(row, widths, sheet.heads, strict=True)
        ]
        yield "  ".join(cells).rstrip()


# ---- cells -------------------------------------------------------------------------------


def _state(crew: Mapping[str, Any]) -> str:
    """Return the state, and of a crew that runs how long it has been silent."""
    is_quiet = crew["state"] == "running" and crew["silent"] >= _QUIET_SECONDS
    return f"{crew['state']}, silent {crew['silent']:,.0f} s" if is_quiet else str(crew["state"])


def _position(crew: Mapping[str, Any]) -> str:
    return _span([member["position"] for member in crew["members"]], "{:,}")


def _saved(facts: Mapping[str, Any]) -> str:
    return "never" if facts["checkpoint"] is None else f"{facts['checkpoint']:,}"


def _metrics(members: Sequence[Mapping[str, Any]]) -> str:
    """Return each figure of the members, from the least to the greatest."""
    names = dict.fromkeys(name for member in members for name in member["metrics"])
    return ", ".join(
        f"{_clean(name)} {_span([m['metrics'][name] for m in members if name in m['metrics']])}"
        for name in names
    )


def _span(values: Sequence[float], form: str = "{:.4g}") -> str:
    if not values:
        return ""
    least, most = form.format(min(values)), form.format(max(values))
    return least if least == most else f"{least} to {most}"


def _moment(seconds: float) -> str:
    """Return a time of today as an hour, any other with its day."""
    moment = datetime.datetime.fromtimestamp(seconds)
    is_today = moment.date() == datetime.date.today()
    return moment.strftime("%H:%M:%S" if is_today else "%Y-%m-%d %H:%M")


def _clean(text: str) -> str:
    """Return a name of others as one line that does nothing to a terminal."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())
