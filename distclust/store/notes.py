"""Notes of passes: what every piece of one found, so that a pass that is cut off goes on.

A run may be killed in the middle of a pass over all rows. What its pieces found lies beside the
checkpoints of the run, one object a piece, written where the piece is worked on; a pass that
adds up as it goes keeps the sum so far instead. The pass begun again reads what is there and
does the rest. Work follows from the state it starts from, so each pass of a *chapter*, the work
between two saved states, is known by its number in it:

    checkpoints/<run>/notes/<chapter>/<pass>/<piece>
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from distclust.errors import StoreError
from distclust.store.archive import decode_archive, encode_archive
from distclust.store.checkpoints import CHECKPOINTS
from distclust.store.objects import MissingObject, Objects, check_key
from distclust.store.values import pack_value, unpack_value

_KIND = "notes"
_SUM = "sum"
_LOGGER = logging.getLogger(__name__)


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
    """

    objects: Objects
    prefix: str

    def known(self) -> set[int]:
        """Return the numbers of the pieces that are done."""
        names = (key[len(self.prefix) + 1 :] for key in self.objects.list(self.prefix))
        return {int(name) for name in names if name.isdigit()}

    def keep(self, piece: int, result: Any) -> None:
        """Keep what a piece found."""
        self._write(str(piece), result)

    def read(self, piece: int) -> Any:
        """Return what a piece found.

        Raises
        ------
        StoreError
            If that is missing or damaged.
        """
        return self._read(str(piece))

    def keep_sum(self, n_pieces: int, total: Any) -> None:
        """Keep what the first pieces found together, in place of what fewer did."""
        self._write(_SUM, (n_pieces, total))

    def read_sum(self) -> tuple[int, Any]:
        """Return how many pieces were added up, and their sum; 0 and None without any."""
        try:
            n_pieces, total = self._read(_SUM)
        except MissingObject:
            return 0, None
        except StoreError as error:
            _LOGGER.warning("Damaged notes are passed over. %s", error)
            return 0, None
        return int(n_pieces), total

    def _write(self, name: str, value: Any) -> None:
        key = f"{self.prefix}/{name}"
        packed, arrays = pack_value(value)
        self.objects.write(key, encode_archive(_KIND, {"key": key, "value": packed}, arrays))

    def _read(self, name: str) -> Any:
        key = f"{self.prefix}/{name}"
        where = self.objects.where(key)
        archive = decode_archive(self.objects.read(key), where)
        if archive.kind != _KIND or archive.meta.get("key") != key:
            hint = "Restore it from a copy."
            raise StoreError(where, "notes of this piece", f"{archive.kind} of another", hint)
        return unpack_value(archive.meta["value"], archive.arrays)
