"""Passes that keep what their pieces found, and go on from there when they are begun again.

Inside `keeping_notes` every pass over blocks or spans of a matrix does so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

from distclust.errors import StoreError
from distclust.store.notes import Notebook, Notes

_LOGGER = logging.getLogger(__name__)

Item = TypeVar("Item")
Result = TypeVar("Result")

_notebook: ContextVar[Notebook | None] = ContextVar("distclust_notebook", default=None)


@contextmanager
def keeping_notes(notebook: Notebook | None) -> Iterator[None]:
    """Let the passes inside keep notes in `notebook`; without one they keep none."""
    token = _notebook.set(notebook)
    try:
        yield
    finally:
        _notebook.reset(token)


def notes_of_pass() -> Notes | None:
    """Return where the pass that begins now keeps its notes; None where none are kept."""
    notebook = _notebook.get()
    return None if notebook is None else notebook.next_pass()


def with_noted(
    notes: Notes,
    numbers: Sequence[int],
    items: Sequence[Item],
    compute: Callable[[list[Item]], Iterator[Result]],
) -> Iterator[Result]:
    """Yield the results of pieces in order: those that are known, and others as computed.

    Parameters
    ----------
    notes
        Of the pass.
    numbers, items
        What each piece is known by, and what it is.
    compute
        Called with the pieces that are not known; yields their results in order.
    """
    known = notes.known()
    pairs = list(zip(numbers, items, strict=True))
    computed = compute([item for number, item in pairs if number not in known])
    for number, item in pairs:
        if number not in known:
            yield next(computed)
            continue
        try:
            result = notes.read(number)
        except StoreError as error:
            _LOGGER.warning("Damaged notes are passed over. %s", error)
            (result,) = compute([item])
        yield result
    for _ in computed:  # lets it end, which closes what it opened
        raise AssertionError("no more results than pieces")
