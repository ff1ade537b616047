"""How fast work goes, in words."""

from __future__ import annotations

from typing import TypeAlias

from distclust.events import Event

Start: TypeAlias = tuple[float, int]  # when a stage was first heard of, and how much was done then


def left(event: Event, now: float, start: Start) -> str:
    """Say how long the rest of a stage takes if it goes on as it did; nothing early on."""
    seconds, n_done = now - start[0], event.done - start[1]  # of work that resumed: since then
    if event.total is None or n_done <= 0 or event.done >= event.total or seconds < 1.0:
        return ""
    rest = seconds * (event.total - event.done) / n_done
    if rest < 90:
        return f"about {max(1, round(rest))} s left"
    return f"about {rest / 60:.0f} min left" if rest < 7200 else f"about {rest / 3600:.0f} h left"
