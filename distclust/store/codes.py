"""Codes of rows: what one pass over a matrix found for every row, kept for the next pass.

Rows are worked on in spans; span s covers rows ``[start, stop)``, and the codes of a span are
kept and read together. Beside a store they are one object a span, written where the span is
worked on, below the checkpoints of the run and removed with them:

    checkpoints/<run>/codes-<step>/<span>

    magic (4 bytes), bytes a value (1), padding (3), number of values (8)
    values, little-endian: uint8, uint16 or int32, the narrowest that holds all of the span
    XXH3 digest (16) of the object's key and of all bytes before it

The key is in the digest so that an object in the wrong place is as good as a damaged one. A
span that is worked on twice gives the same object again. A power cut may damage objects or take
them away; a killed process does not.
"""

from __future__ import annotations

import bisect
import os
import struct
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError, StoreError
from distclust.store.checkpoints import CHECKPOINTS
from distclust.store.objects import MissingObject, Objects, check_key, checksum, open_objects

CodeArray: TypeAlias = npt.NDArray[np.int32]
Bounds: TypeAlias = tuple[int, int]
# Of all spans in order, or of some by their number.
SpanBounds: TypeAlias = Sequence[Bounds] | Mapping[int, Bounds]

_MAGIC = b"dcrc"
_HEADER = struct.Struct("<4sB3xQ")
_DIGEST_BYTES = 16
_DTYPES: dict[int, np.dtype[Any]] = {
    1: np.dtype("u1"),
    2: np.dtype("<u2"),
    4: np.dtype("<i4"),
}
_LEAST, _LARGEST = np.iinfo(np.int32).min, np.iinfo(np.int32).max
_HINT = "Start the run afresh."


class Codes(ABC):
    """An int32 code for every row, kept span by span; pickles."""

    @abstractmethod
    def read(self, span: int) -> CodeArray:
        """Return the codes of a span, shape (rows,); not to be written into.

        Raises
        ------
        StoreError
            If they are missing or damaged.
        """

    @abstractmethod
    def keep(self, span: int, codes: npt.ArrayLike) -> CodeArray | None:
        """Keep the codes of a span, where it is worked on; return what `collect` needs."""

    @abstractmethod
    def collect(self, span: int, kept: CodeArray | None) -> None:
        """Take what `keep` returned, where the pass is driven."""

    @abstractmethod
    def remove(self) -> None:
        """Forget all of them; there may be none."""


class HeldCodes(Codes):
    """Codes in memory, of matrices that are in memory themselves; pickles with all of them."""

    def __init__(self) -> None:
        self._held: dict[int, CodeArray] = {}

    def read(self, span: int) -> CodeArray:
        """Return the codes of a span."""
        if span not in self._held:
            raise StoreError(f"codes of span {span}", "codes that were kept", "none", _HINT)
        return self._held[span]

    def keep(self, span: int, codes: npt.ArrayLike) -> CodeArray:
        """Return the codes: they travel to the driver."""
        return _checked(codes, span)

    def collect(self, span: int, kept: CodeArray | None) -> None:
        """Hold the codes of a span."""
        assert kept is not None
        held = kept.view()
        held.flags.writeable = False  # several threads may read them
        self._held[span] = held

    def remove(self) -> None:
        """Forget all of them."""
        self._held.clear()


class StoredCodes(Codes):
    """Codes as objects beside the checkpoints of a run; pickles as names only.

    Parameters
    ----------
    objects
        The results store, or its path or URL.
    run
        Id of the draft, with which they are removed.
    step
        After which pass; each has codes of its own.
    """

    def __init__(self, objects: Objects | str | os.PathLike[str], run: str, step: int) -> None:
        check_key(run)
        self.objects = objects if isinstance(objects, Objects) else open_objects(objects)
        self.run = run
        self.step = step
        self.prefix = f"{CHECKPOINTS}/{run}/codes-{step}"

    def read(self, span: int) -> CodeArray:
        """Return the codes of a span, verified."""
        key = self._key(span)
        where, expected = self.objects.where(key), f"codes of span {span} after step {self.step}"
        try:
            content = self.objects.read_array(key)
        except MissingObject:
            raise MissingObject(where, expected, "nothing there", _HINT) from None
        try:
            return _decode(key, content)
        except _Damaged as error:
            raise StoreError(where, expected, str(error), _HINT) from None

    def keep(self, span: int, codes: npt.ArrayLike) -> None:
        """Write the codes of a span; nothing travels to the driver.

        They do not wait for the disk: who takes up a run looks whether they are whole.
        """
        key = self._key(span)
        self.objects.jot(key, *_encode(key, _checked(codes, span)))

    def collect(self, span: int, kept: CodeArray | None) -> None:
        """Do nothing: they lie where they are read."""

    def remove(self) -> None:
        """Remove the objects of this step."""
        self.objects.delete_tree(self.prefix)

    def _key(self, span: int) -> str:
        return f"{self.prefix}/{span}"


class RenamedCodes(Codes):
    """Codes of another pass under other numbers; nothing is written.

    Parameters
    ----------
    codes
        Those that are read.
    names
        What each of them is called now, shape (n_codes,).
    """

    def __init__(self, codes: Codes, names: npt.NDArray[np.int64]) -> None:
        self.codes = codes
        self.names = names

    def read(self, span: int) -> CodeArray:
        """Return the codes of a span."""
        return self.names[self.codes.read(span)].astype(np.int32)

    def keep(self, span: int, codes: npt.ArrayLike) -> CodeArray | None:
        """Refuse: they are kept under their own numbers."""
        raise AssertionError("renamed codes are only read")

    def collect(self, span: int, kept: CodeArray | None) -> None:
        """Refuse: they are kept under their own numbers."""
        raise AssertionError("renamed codes are only read")

    def remove(self) -> None:
        """Forget all of them."""
        self.codes.remove()


def spans_between(bounds: SpanBounds, start: int, stop: int) -> dict[int, Bounds]:
    """Return the spans that hold rows of ``[start, stop)``, in order, with their bounds.

    All that a task needs to know which works on these rows: the bounds of all spans are too
    many to travel with every task.
    """
    if isinstance(bounds, Mapping):
        found = sorted(bounds.items())
    else:
        first = bisect.bisect_right(bounds, start, key=lambda pair: pair[1])
        last = bisect.bisect_left(bounds, stop, first, key=lambda pair: pair[0])
        found = list(enumerate(bounds[first:last], first))
    return {span: (a, b) for span, (a, b) in found if max(a, start) < min(b, stop)}


def read_range(codes: Codes, bounds: SpanBounds, start: int, stop: int) -> CodeArray:
    """Return the codes of rows ``[start, stop)``, which may lie in several spans.

    Parameters
    ----------
    codes
        Codes of every span.
    bounds
        First row of every span and the row after its last, in order and without gaps; or
        of those that `spans_between` found.
    start, stop
        Which rows.

    Raises
    ------
    InputError
        If the spans do not cover these rows, each once.
    StoreError
        If codes are missing, damaged or of another number of rows.
    """
    values = np.empty(stop - start, np.int32)
    at = start
    for span, (first, last) in spans_between(bounds, start, stop).items():
        if max(first, start) != at:
            raise _uncovered(at, max(first, start))
        part = codes.read(span)
        if len(part) != last - first:
            expected, got = f"codes of {last - first:,} rows", f"codes of {len(part):,}"
            raise StoreError(f"span {span}", expected, got, _HINT)
        end = min(last, stop)
        values[at - start : end - start] = part[at - first : end - first]
        at = end
    if at != stop:
        raise _uncovered(at, stop)
    return values


def _uncovered(start: int, stop: int) -> InputError:
    got = f"rows {min(start, stop):,} to {max(start, stop):,} in none or in two"
    return InputError("spans", "every row in one span", got, "Pass the bounds of all spans.")


def _checked(codes: npt.ArrayLike, span: int) -> CodeArray:
    """Return codes as a fresh int32 array."""
    values = np.asarray(codes)
    is_sane = values.ndim == 1 and values.dtype.kind in "iu"
    if not is_sane or (values.size and not _LEAST <= values.min() <= values.max() <= _LARGEST):
        got = f"{values.ndim}-dimensional {values.dtype} values"
        hint = "Number the groups from 0."
        raise InputError(f"codes of span {span}", "a 32-bit integer for every row", got, hint)
    return values.astype(np.int32)


class _Damaged(Exception):
    """What an object is instead of codes."""


def _encode(key: str, codes: CodeArray) -> list[Any]:
    values = codes.astype(_DTYPES[_width(codes)]).view(np.uint8)
    header = _HEADER.pack(_MAGIC, _width(codes), len(codes))
    return [header, values, checksum(key.encode(), header, values)]


def _width(codes: CodeArray) -> int:
    """Return how many bytes a value takes; negative ones take all."""
    least, largest = (int(codes.min()), int(codes.max())) if codes.size else (0, 0)
    return 4 if least < 0 or largest >= 2**16 else 2 if largest >= 2**8 else 1


def _decode(key: str, content: npt.NDArray[np.uint8]) -> CodeArray:
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:].tobytes()
    if len(body) < _HEADER.size or checksum(key.encode(), body) != digest:
        raise _Damaged("an altered or truncated object")
    magic, width, n_values = _HEADER.unpack(body[: _HEADER.size].tobytes())
    values = body[_HEADER.size :]
    if magic != _MAGIC or width not in _DTYPES or len(values) != width * n_values:
        raise _Damaged("a foreign object")
    return values.view(_DTYPES[width]).astype(np.int32)
