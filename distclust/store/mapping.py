"""How work over many items is asked for, without saying where it runs.

Whatever reads or writes many parts takes a `Mapper`. In process and on a cluster it is
``distclust.engine.map_ordered``; its serial twin is here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Protocol, TypeVar

from distclust import events

Result = TypeVar("Result")


class Mapper(Protocol):
    """Yields ``function(item, *shared)`` for every item, in order."""

    def __call__(
        self,
        function: Callable[..., Result],
        items: Iterable[Any],
        *shared: Any,
        stage: str = "",
    ) -> Iterator[Result]:
        """Start work when the first value is asked for, a bounded number of items ahead."""


def serial_map(
    function: Callable[..., Result], items: Iterable[Any], *shared: Any, stage: str = ""
) -> Iterator[Result]:
    """Yield ``function(item, *shared)`` for one item after another."""
    if not stage:
        yield from (function(item, *shared) for item in items)
        return
    total = len(items) if isinstance(items, Sized) else None
    with events.stage(stage, total) as progress:
        for item in items:
            yield function(item, *shared)
            progress.advance()
