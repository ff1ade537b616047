"""Fits by passes over all rows: how they start, go on, are saved and end.

A *method* is a start, an advance from state to state, and an end; each state is all that is
needed to go on. In memory the states just follow each other. Beside a results store every
state is saved, so that the same fit begun again goes on after the last pass.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from distclust.engine import keeping_notes, map_ordered, n_spans, span_bounds
from distclust.errors import StoreError
from distclust.families import Family
from distclust.store import Matrix
from distclust.store.codes import Codes, HeldCodes, StoredCodes, read_range, spans_between
from distclust.store.drafts import Draft, DraftPlace
from distclust.store.row_labels import (
    LABELS,
    LabelsSpec,
    adopt_labels,
    take_up_chunks,
    write_chunk,
    write_values_chunk,
)
from distclust.store.versions import FileEntry
from distclust.trees.growing import CodesFor
from distclust.trees.routing import Router
from distclust.trees.structure import Structure

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
State = TypeVar("State")

_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Finished:
    """What a fit found.

    Attributes
    ----------
    family
        Resolved.
    structure, stats, log_marginal
        The tree and its nodes on all rows, see `distclust.trees.assembly.Assembled`.
    first_rows
        Number of each leaf's first row, shape (n_leaves,).
    step
        After which pass codes are those of the result; 0: there are none.
    leaf_of_code
        Leaf that each code stands for, -1 for codes that no row has.
    row_leaves
        Rows that are leaves of their own, and which.
    router, leaf_of_end
        How new rows are placed, and the leaf of each node where they end.
    facts
        Figures about the fit, JSON values by name.
    extra
        Arrays by name that a method leaves to who runs it.
    codes
        Beside a results store, the codes of the result; None: there are none.
    """

    family: Family
    structure: Structure
    stats: Floats
    log_marginal: Floats
    first_rows: Indices
    step: int
    leaf_of_code: Indices
    row_leaves: tuple[Indices, Indices]
    router: Router
    leaf_of_end: Indices
    facts: dict[str, Any]
    extra: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    codes: Codes | None = None


class Method(ABC, Generic[State]):
    """A way to fit by passes."""

    @abstractmethod
    def start(self, matrix: Matrix) -> State:
        """Return the first state."""

    @abstractmethod
    def is_complete(self, state: State) -> bool:
        """Whether no further pass is needed."""

    @abstractmethod
    def advance(self, matrix: Matrix, state: State, codes_for: CodesFor) -> State:
        """Do one pass; `codes_for(step)` are the codes of all rows after a pass."""

    @abstractmethod
    def finish(self, state: State) -> Finished:
        """Return the tree of a complete state."""

    @abstractmethod
    def step_of(self, state: State) -> int:
        """Return the number of the codes after the last pass."""

    def steps_needed(self, state: State) -> set[int]:
        """Return the numbers of the codes that it takes to go on from a state."""
        return {self.step_of(state)} - {0}

    def codes_from(self, step: int, stored: Codes) -> Codes:
        """Return the codes of all rows after a pass; `stored` are those that the pass kept."""
        return stored

    @abstractmethod
    def to_arrays(self, state: State) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
        """Return a state as JSON values and arrays."""

    @abstractmethod
    def from_arrays(
        self, facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
    ) -> State:
        """Inverse of `to_arrays`."""


def fit_in_memory(method: Method[Any], matrix: Matrix) -> tuple[Finished, Indices]:
    """Fit rows that are in memory; return what was found and the leaf of each row."""
    held: dict[int, Codes] = {}

    def codes_for(step: int) -> Codes:
        return held.setdefault(step, HeldCodes())

    state = method.start(matrix)
    while not method.is_complete(state):
        state = method.advance(matrix, state, codes_for)
        held.pop(method.step_of(state) - 2, None)
    found = method.finish(state)
    codes = codes_for(found.step) if found.step else None
    return found, leaves_of_rows(matrix, found, codes)


def leaves_of_rows(matrix: Matrix, found: Finished, codes: Codes | None) -> Indices:
    """Return the leaf of each row, shape (n_rows,)."""
    n_rows = matrix.shape[0]
    leaves = np.zeros(n_rows, np.int64)
    if codes is not None:
        leaves = found.leaf_of_code[read_range(codes, bounds_of(matrix), 0, n_rows)]
    rows, row_leaves = found.row_leaves
    leaves[rows] = row_leaves
    return leaves


def bounds_of(matrix: Matrix) -> list[tuple[int, int]]:
    """Return first row and end of every span."""
    return [span_bounds(matrix, i) for i in range(n_spans(matrix))]


# ---- beside a results store --------------------------------------------------------------------


def codes_beside(draft: Draft, step: int) -> StoredCodes:
    """Return the codes of a run after a pass."""
    return StoredCodes(draft.place().objects, draft.id, step)


def fit_beside(
    method: Method[Any], matrix: Matrix, draft: Draft, *, keeps_notes: bool = False
) -> Finished:
    """Fit rows of a store, saving every state; go on from the last one that was saved.

    With notes, also a pass that was cut off goes on where it was.
    """

    def noting(number: int) -> AbstractContextManager[None]:
        return keeping_notes(draft.notebook(str(number)) if keeps_notes else None)

    def codes_for(step: int) -> Codes:
        return method.codes_from(step, codes_beside(draft, step))

    last = _last_state(method, matrix, draft, codes_for)
    if last is None:
        with noting(0):
            number, state = 0, method.start(matrix)
        _save(method, state, draft, number, keeps_notes)
    else:
        number, state = last
    while not method.is_complete(state):
        number += 1
        with noting(number):
            state = method.advance(matrix, state, codes_for)
        _save(method, state, draft, number, keeps_notes)
        step = method.step_of(state)
        if step > 3:  # the state before this one, two numbers back at most, may be needed
            codes_beside(draft, step - 3).remove()
    found = method.finish(state)
    return replace(found, codes=codes_for(found.step)) if found.step else found


def _last_state(
    method: Method[Any], matrix: Matrix, draft: Draft, codes_for: CodesFor
) -> tuple[int, Any] | None:
    """Return the newest state that was saved and its number, None where the fit starts over.

    A state without its codes is of no use: then it is the one before, or none.

    Raises
    ------
    StoreError
        If there are states but none of them is whole.
    """
    problems: list[StoreError] = []
    last, has_states = None, False
    for saved in draft.checkpoints().newest_first(problems):
        has_states = True
        state = method.from_arrays(saved.meta, saved.arrays)
        try:
            for step in method.steps_needed(state):
                spans = range(n_spans(matrix))
                for _ in map_ordered(_verify_codes, spans, codes_for(step), is_brief=True):
                    pass
        except StoreError as error:
            problems.append(error)
            continue
        last = saved.step, state
        break
    if problems and not has_states:
        raise problems[0]
    for problem in problems:
        _LOGGER.warning("A damaged checkpoint is passed over. %s", problem)
    return last


def _verify_codes(span: int, codes: Codes) -> None:
    """Read the codes of a span, which refuses damaged ones; runs on a worker."""
    codes.read(span)


def _save(method: Method[Any], state: Any, draft: Draft, number: int, keeps_notes: bool) -> None:
    draft.check()
    draft.checkpoints().save(number, draft.incarnation, *method.to_arrays(state))
    if keeps_notes:
        draft.remove_notes()  # they led to this state


def write_labels(
    matrix: Matrix,
    found: Finished,
    label_of_leaf: Indices,
    n_labels: int,
    draft: Draft,
    folder: str = LABELS,
) -> None:
    """Write the label of every row into the draft, where the codes are; no chunk twice."""
    spec = LabelsSpec(matrix.shape[0], n_labels, folder)
    place = draft.place()
    bounds = bounds_of(matrix)
    stage = "writing labels"
    missing = take_up_chunks(draft, spec)
    if found.codes is not None and len(found.row_leaves[0]) == 0:
        table = np.where(found.leaf_of_code < 0, 0, label_of_leaf[found.leaf_of_code])
        items = [(i, spans_between(bounds, *spec.chunk_bounds(i))) for i in missing]
        entries = map_ordered(
            _write_codes, items, place, spec, found.codes, table, stage=stage, is_brief=True
        )
    else:  # rows that are leaves: the tree is as large as they are
        labels = label_of_leaf[leaves_of_rows(matrix, found, found.codes)]
        chunks = ((i, labels[slice(*spec.chunk_bounds(i))]) for i in missing)
        entries = map_ordered(_write_values, chunks, place, spec, stage=stage)
    adopt_labels(draft, spec, zip(missing, entries, strict=True))


def _write_codes(
    item: tuple[int, Any], place: DraftPlace, spec: LabelsSpec, codes: Codes, table: Indices
) -> FileEntry:
    index, bounds = item
    return write_chunk(index, place, spec, codes, bounds, table)


def _write_values(item: tuple[int, Indices], place: DraftPlace, spec: LabelsSpec) -> FileEntry:
    index, values = item
    return write_values_chunk(index, place, spec, values)
