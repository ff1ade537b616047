"""Notes of passes: what every piece of one found, so that a pass that is cut off goes on.

A run may be killed in the middle of a pass over all rows. What its pieces found lies beside the
checkpoints of the run, one object a piece, written where the piece is worked on; a pass that
adds up as it goes keeps the sum so far instead. The pass begun again reads what is there and
does the rest. Work follows from the state it starts from, so each pass of a *chapter*, the work
between two saved states, is known by its number in it; and a piece of several blocks keeps what
each of them told until it has its own:

    checkpoints/<run>/notes/<chapter>/<pass>/<piece>
    checkpoints/<run>/notes/<chapter>/<pass>-blocks/<block>

Notes are not synced to the disk, which would take as long as the work: what a power cut leaves
of them is told by their checksums, and passed over.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from distclust.errors import StoreError
from distclust.store.checkpoints import CHECKPOINTS
from distclust.store.objects import MissingObject, Objects, check_key
from distclust.store.values import decode_value, encode_value

_SUM = "sum"
_LOGGER = logging.getLogger(__name__)

Result = TypeVar("Result")


def notes_folder(run: str) -> str:
    """Return the prefix of all notes of a run."""
    check_key(run)
    return f"{CHECKPOINTS}/{run}/notes"


class Notebook:
    """The notes of one chapter of a run.

    Parameters
    ----------
    objects
        The results store.
    run
        Id of the draft, with whose checkpoints they are removed.
    chapter
        Its name; no two of a run share one.
    """

    def __init__(self, objects: Objects, run: str, chapter: str) -> None:
        self.objects = objects
        self.prefix = f"{notes_folder(run)}/{chapter}"
        self._n_passes = 0

    def next_pass(self) -> Notes:
        """Return the notes of the pass that begins."""
        self._n_passes += 1
        return Notes(self.objects, f"{self.prefix}/{self._n_passes}")


@dataclass(frozen=True)
class Notes:
    """The notes of one pass; travels to workers.

    Attributes
    ----------
    objects
        The results store.
    prefix
        Of their keys.
    blocks
        Numbers of the blocks that earlier runs kept notes of, see `with_blocks`.
    """

    objects: Objects
    prefix: str
    blocks: frozenset[int] = frozenset()

    def known(self) -> set[int]:
        """Return the numbers of the pieces that are done."""
        return _numbers_below(self.objects, self.prefix)

    def with_blocks(self) -> Notes:
        """Return these notes, knowing which blocks of pieces are done."""
        blocks = _numbers_below(self.objects, self._prefix_of_blocks)
        return replace(self, blocks=frozenset(blocks))

    def of_block(self, block: int, compute: Callable[[], Result]) -> Result:
        """Return what was found in a block before, or else compute it and keep it."""
        key = f"{self._prefix_of_blocks}/{block}"
        return self._once(key, block in self.blocks, compute)

    def of_piece(self, piece: int, compute: Callable[[], Result]) -> Result:
        """Return what was found in a piece before, or else compute it and keep it."""
        return self._once(f"{self.prefix}/{piece}", False, compute)

    def _once(self, key: str, is_known: bool, compute: Callable[[], Result]) -> Result:
        # A task whose worker died is done again by another, which knows nothing of the first.
        # Far away it would take as long to ask as to work.
        if is_known or (self.objects.is_local and self.objects.exists(key)):
            try:
                known: Result = self._read(key)
                return known
            except StoreError as error:
                _LOGGER.warning("Damaged notes are passed over. %s", error)
        result = compute()
        self._write(key, result)
        return result

    @property
    def _prefix_of_blocks(self) -> str:
        return f"{self.prefix}-blocks"

    def read(self, piece: int) -> Any:
        """Return what a piece found.

        Raises
        ------
        StoreError
            If that is missing or damaged.
        """
        return self._read(f"{self.prefix}/{piece}")

    def keep_sum(self, n_pieces: int, total: Any) -> None:
        """Keep what the first pieces found together, in place of what fewer did."""
        self._write(f"{self.prefix}/{_SUM}", (n_pieces, total))

    def read_sum(self) -> tuple[int, Any]:
        """Return how many pieces were added up, and their sum; 0 and None without any."""
        try:
            n_pieces, total = self._read(f"{self.prefix}/{_SUM}")
        except MissingObject:
            return 0, None
        except StoreError as error:
            _LOGGER.warning("Damaged notes are passed over. %s", error)
            return 0, None
        return int(n_pieces), total

    def _write(self, key: str, value: Any) -> None:
        self.objects.jot(key, *encode_value(key, value))

    def _read(self, key: str) -> Any:
        content = self.objects.read_array(key)
        try:
            return decode_value(key, content)
        except ValueError as error:
            where, hint = self.objects.where(key), "Start the run afresh."
            raise StoreError(where, "notes of this piece", str(error), hint) from None


def _numbers_below(objects: Objects, prefix: str) -> set[int]:
    names = (key[len(prefix) + 1 :] for key in objects.list(prefix))
    return {int(name) for name in names if name.isdigit()}
