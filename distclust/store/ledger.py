"""Ledgers: numbered records that are never changed, of which the highest is the present.

To publish is to create the next number, exclusively: of two writers that saw the same
present, one gets the number and the other a `ConflictError`, and at no time is there half a
change. Every record names the digest of the one before it. So a writer that slept while its
number was published and dropped again (numbers are dropped from below, never the highest)
finds that its record is not in the chain, takes it back and reports the conflict.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from distclust.errors import ConflictError, StoreError
from distclust.store.objects import MissingObject, Objects
from distclust.store.sealed import digest_of, plain, seal, unseal

_FORM = "distclust-ledger"
_NAME = re.compile(r"(\d{8})\.json")


@dataclass(frozen=True)
class Record:
    """One entry: its number, what it says, and a digest that stands for all of it."""

    number: int
    content: dict[str, Any]
    digest: str
    previous: str = field(default="", repr=False)  # digest of the record before it


class Ledger:
    """The ledger whose records lie below `prefix`; it holds nothing open and pickles."""

    def __init__(self, objects: Objects, prefix: str) -> None:
        self.objects = objects
        self.prefix = prefix

    def numbers(self) -> list[int]:
        """Return the numbers of all records, ascending."""
        names = (key[len(self.prefix) + 1 :] for key in self.objects.list(self.prefix))
        return [int(match[1]) for name in names if (match := _NAME.fullmatch(name))]

    def head(self) -> Record | None:
        """Return the record with the highest number, or None if there is none."""
        while numbers := self.numbers():
            try:
                return self.read(numbers[-1])
            except MissingObject:
                # Superseded and dropped since the listing; a listing that still shows it lies.
                if self.numbers()[-1:] == numbers[-1:]:
                    raise
        return None

    def read(self, number: int) -> Record:
        """Return one record, unaltered.

        Raises
        ------
        MissingObject
            If there is no such number.
        StoreError
            If the record is truncated, altered, or of a newer format.
        """
        key = self._key(number)
        where = self.objects.where(key)
        values = unseal(self.objects.read(key), _FORM, where)
        content = values.get("content")
        if values.get("number") != number or not isinstance(content, dict):
            got = f"record {values.get('number')!r}, which belongs elsewhere"
            raise StoreError(where, f"record {number}", got, "Restore it from a copy.")
        return Record(number, content, digest_of(values), str(values.get("previous")))

    def append(self, content: Mapping[str, Any], after: int) -> Record:
        """Publish `content` (JSON values) as number ``after + 1``, 1 being the first.

        Raises
        ------
        ConflictError
            If `after` is no longer the highest number.
        """
        previous = self._digest(after)
        values = {
            "number": after + 1,
            "previous": previous,
            "token": secrets.token_hex(8),  # tells ours from another with equal content
            "content": plain(content),
        }
        record = Record(after + 1, plain(content), digest_of(values), previous)
        key = self._key(record.number)
        created = self.objects.create(key, seal(_FORM, values))
        # A put that succeeded while its answer was lost looks like one that came too late.
        if not created and self._digest(record.number) != record.digest:
            raise self._conflict(after)
        if not self._is_in_chain(record):
            self.objects.delete(key)
            raise self._conflict(after)
        return record

    def is_head(self, number: int) -> bool:
        """Whether `number`, which was published, is the highest; without reading the record.

        Numbers are dropped from below: one that is there has all up to the highest above it. In
        this order, as both may be superseded and dropped between two looks.
        """
        is_last = not self.objects.exists(self._key(number + 1))
        return is_last and self.objects.exists(self._key(number))

    def drop(self, numbers: Iterable[int]) -> None:
        """Remove records, lowest first; the highest number is never removed."""
        known = self.numbers()
        for number in sorted(set(numbers) & set(known[:-1])):
            self.objects.delete(self._key(number))

    def _key(self, number: int) -> str:
        return f"{self.prefix}/{number:08d}.json"

    def _digest(self, number: int) -> str:
        """Return the digest of a record that a writer builds on; 0 is before the first."""
        if number == 0:
            return ""
        try:
            return self.read(number).digest
        except MissingObject:
            raise self._conflict(number) from None

    def _is_in_chain(self, record: Record) -> bool:
        """Whether a record just created is the highest, or the ground of the next."""
        if self.numbers()[-1:] == [record.number]:  # it may lie where numbers were dropped
            return True
        try:
            return self.read(record.number + 1).previous == record.digest
        except MissingObject:
            return False

    def _conflict(self, after: int) -> ConflictError:
        return ConflictError(
            f"{self.objects.url}/{self.prefix}",
            f"nothing published after {after}",
            "a change by another writer",
            "Open the store again and repeat the change.",
        )
