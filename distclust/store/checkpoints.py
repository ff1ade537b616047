"""Checkpoints: the state of a run, saved so that a kill costs little.

A checkpoint is one archive, named by incarnation and step. The incarnation counts how often
the work was started; a process that was given up for dead but lives on (a zombie) has a
lower one. Its saves are refused, and one that slips through in the same moment is sorted
before those of its successor and therefore never read.

Two are kept, the newest and one of an earlier step: if the newest is damaged, the other is
used. Where the parts of a run are saved one by one, the step at which all of them are is kept.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from distclust.errors import ConflictError, InputError, StoreError
from distclust.store.archive import decode_archive, encode_archive
from distclust.store.objects import MissingObject, Objects, check_key

CHECKPOINTS = "checkpoints"

_KIND = "checkpoint"
_NAME = re.compile(r"(\d{8})-(\d{12})\.checkpoint")
_LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A saved state.

    Attributes
    ----------
    step, incarnation
        How far the run was, and in which of its starts.
    meta, arrays
        The state, as it was passed to `Checkpoints.save`.
    """

    step: int
    incarnation: int
    meta: dict[str, Any]
    arrays: dict[str, npt.NDArray[Any]]


class Checkpoints:
    """The checkpoints of one run, or of one part of it (``run/chain-3``)."""

    def __init__(self, objects: Objects, run: str) -> None:
        check_key(run)
        self.objects = objects
        self.run = run
        self.prefix = f"{CHECKPOINTS}/{run}"

    def save(
        self,
        step: int,
        incarnation: int,
        meta: Mapping[str, Any],
        arrays: Mapping[str, npt.NDArray[Any]],
        keep: Collection[int] = (),
    ) -> None:
        """Save a state; afterwards it and one of an earlier step are kept.

        Parameters
        ----------
        step
            How far the run is; goes up within an incarnation. The same step again replaces.
        incarnation
            In which of its starts, 1 being the first.
        meta, arrays
            The state: JSON values and arrays by name.
        keep
            Steps to keep instead of the one before.

        Raises
        ------
        ConflictError
            If a later incarnation has saved already, or this one a later step.
        """
        if not 0 <= step < 10**12 or not 0 <= incarnation < 10**8:
            got = f"step {step}, incarnation {incarnation}"
            raise InputError(f"run {self.run}", "numbers from 0 on", got, "Count from 0.")
        known = self._saved()
        if known and known[-1] > (incarnation, step):
            raise ConflictError(
                self.objects.where(self.prefix),
                f"no checkpoint after step {step} of incarnation {incarnation}",
                f"one of step {known[-1][1]} of incarnation {known[-1][0]}",
                "Stop this process; another one continued the run.",
            )
        facts = {"run": self.run, "step": step, "incarnation": incarnation, "state": dict(meta)}
        content = encode_archive(_KIND, facts, arrays)
        self.objects.write(self._key(incarnation, step), content)
        others = [place for place in known if place != (incarnation, step)]
        for old in set(others) - _kept(others, step, keep):
            self.objects.delete(self._key(*old))

    def latest(self) -> Checkpoint | None:
        """Return the newest state that is whole, or None if nothing was saved.

        Raises
        ------
        StoreError
            If there are checkpoints but none of them is whole.
        """
        problems: list[StoreError] = []
        for saved in self.newest_first(problems):
            for error in problems:
                _LOGGER.warning("A damaged checkpoint is passed over. %s", error)
            return saved
        if problems:
            raise problems[0]
        return None

    def newest_step(self) -> int | None:
        """Return how far the newest state is, by its name: nobody has read it yet."""
        saved = self._saved()
        return saved[-1][1] if saved else None

    def newest_first(self, problems: list[StoreError]) -> Iterator[Checkpoint]:
        """Yield the states that are whole; what is wrong with others goes to `problems`."""
        for place in reversed(self._saved()):
            try:
                saved = self._read(*place)
            except MissingObject:
                if place in self._saved():
                    raise
                yield from self.newest_first(problems)  # newer ones were saved since the listing
                return
            except StoreError as error:
                problems.append(error)
                continue
            yield saved

    def clear(self) -> None:
        """Remove all of them: the run is over."""
        self.objects.delete_tree(self.prefix)

    def _saved(self) -> list[tuple[int, int]]:
        """Return incarnation and step of every checkpoint, ascending."""
        names = (key[len(self.prefix) + 1 :] for key in self.objects.list(self.prefix))
        matches = (_NAME.fullmatch(name) for name in names)
        return sorted((int(match[1]), int(match[2])) for match in matches if match)

    def _key(self, incarnation: int, step: int) -> str:
        return f"{self.prefix}/{incarnation:08d}-{step:012d}.checkpoint"

    def _read(self, incarnation: int, step: int) -> Checkpoint:
        key = self._key(incarnation, step)
        where = self.objects.where(key)
        archive = decode_archive(self.objects.read(key), where)
        meta = archive.meta
        found = (archive.kind, meta.get("run"), meta.get("incarnation"), meta.get("step"))
        state = meta.get("state")
        if found != (_KIND, self.run, incarnation, step) or not isinstance(state, dict):
            hint = "Restore it from a copy or start the run afresh."
            raise StoreError(where, "the checkpoint of this step", f"that of {found}", hint)
        return Checkpoint(step, incarnation, state, archive.arrays)


def _kept(others: list[tuple[int, int]], step: int, keep: Collection[int]) -> set[tuple[int, int]]:
    """Return which of the other checkpoints stay beside one of `step`.

    What an earlier incarnation saved of the same step or a later one is superseded: it stays
    only if there is nothing else.
    """
    named = {place[1]: place for place in others if place[1] in keep and place[1] != step}
    if named or not others:
        return set(named.values())
    return {max(others, key=lambda place: (place[1] < step, place[1] == step, place))}
