"""Removing what no kept generation consists of, and what killed writers left.

What is to go is marked; then leases are looked at; then what nobody holds is removed and its
mark last. Whoever wants to hold something takes the lease first and then looks for the mark,
so that at least one of the two sees the other. Killed at any point, the next sweep finishes.

Everything a writer leaves is named by its claim (see ``work``). While any writer works, or
was killed so lately that its lease still runs, nothing but old generations is touched.
Objects are listed first, leases are looked at next, generations last: a name in the listing
belongs to a writer whose lease is seen, to a generation that is seen, or to nobody.
"""

from __future__ import annotations

import contextlib
import datetime
import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass

from distclust.store.leases import live_names, sweep_leases
from distclust.store.manifest import (
    CONDEMNED,
    FEATURES,
    LEASES,
    SEGMENTS,
    TABLES,
    TOMBSTONES,
    WORK,
    condemned_key,
    generations_of,
    lease_name,
    read_manifests,
)
from distclust.store.objects import MissingObject, Objects
from distclust.store.removal import drawn_name, read_table, remove_segment
from distclust.store.sealed import seal, unseal
from distclust.store.work import WRITING, read_claims

_FORM = "distclust-condemned"
_LONGEST_SWEEP = 86_400.0


@dataclass(frozen=True)
class Swept:
    """What a sweep did.

    Attributes
    ----------
    generations
        Numbers of the generations that were removed.
    spared
        Numbers of those that were to be removed but are being read.
    names
        Names of segments and unfinished changes that were removed.
    is_complete
        Whether leftovers were looked for: not while a writer may be at work.
    """

    generations: tuple[int, ...] = ()
    spared: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    is_complete: bool = True


def sweep(
    objects: Objects, keep: int, older_than: float, grace: float, now: float | None = None
) -> Swept:
    """Remove old generations and leftovers, see `MatrixStore.gc`."""
    now = time.time() if now is None else now
    dropped, spared = _drop_generations(objects, keep, older_than, now)
    keys = objects.list()
    claims = read_claims(objects)
    old = [claim for claim in claims if now - claim.begun > grace]
    for claim in old:
        _condemn(objects, claim.name)
    if WRITING in live_names(objects, LEASES, now):
        _pardon(objects, (claim.name for claim in old))
        return Swept(dropped, spared, is_complete=False)
    young = {claim.name for claim in claims if claim not in old}
    removed = _remove_unnamed(objects, keys, young)
    for claim in old:
        objects.delete(claim.key)
    _pardon(objects, (claim.name for claim in old))
    _forget_marks(objects, now)
    sweep_leases(objects, LEASES, now)
    objects.sweep(grace)
    return Swept(dropped, spared, removed)


def _drop_generations(
    objects: Objects, keep: int, older_than: float, now: float
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Drop old generations from the ledger; return those that went and those in use."""
    manifests = read_manifests(objects)
    doomed = [
        number
        for number, after in itertools.pairwise(list(manifests)[: 1 - keep or None])
        if now - _time_of(manifests[after].created) >= older_than  # superseded at that time
    ]
    for number in doomed:
        _condemn(objects, lease_name(number))
    held = live_names(objects, LEASES, now)
    spared = [number for number in doomed if lease_name(number) in held]
    dropped = [number for number in doomed if number not in spared]
    generations_of(objects).drop(dropped)
    _pardon(objects, map(lease_name, doomed))
    return tuple(dropped), tuple(spared)


def _time_of(text: str) -> float:
    return datetime.datetime.fromisoformat(text).timestamp()


def _condemn(objects: Objects, name: str) -> None:
    objects.write(condemned_key(name), seal(_FORM, {"name": name, "time": time.time()}))


def _pardon(objects: Objects, names: Iterable[str]) -> None:
    for name in names:
        objects.delete(condemned_key(name))


def _forget_marks(objects: Objects, now: float) -> None:
    """Remove marks of sweeps that were killed and not repeated."""
    for key in objects.list(CONDEMNED):
        with contextlib.suppress(MissingObject):  # another sweep has ended
            mark = unseal(objects.read(key), _FORM, objects.where(key))
            if now - float(mark["time"]) > _LONGEST_SWEEP:
                objects.delete(key)


def _remove_unnamed(objects: Objects, keys: list[str], young: set[str]) -> tuple[str, ...]:
    """Remove everything of ours that no generation and no young claim names."""
    manifests = read_manifests(objects).values()
    named = set().union(*(manifest.keys() for manifest in manifests))
    has_root = any(entry.is_root for manifest in manifests for entry in manifest.segments)
    found: dict[str, list[str]] = {}
    for key in keys:
        if (name := drawn_name(key)) is not None and name not in young:
            found.setdefault(name, []).append(key)
    removed = [name for name in found if _remove_name(objects, name, found[name], named, has_root)]
    return tuple(sorted(removed))


def _remove_name(
    objects: Objects, name: str, keys: list[str], named: set[str], has_root: bool
) -> bool:
    """Remove what has one drawn name and is not named; return whether there was any."""
    path, table = f"{SEGMENTS}/{name}", f"{TABLES}/{name}.table"
    has_arrays = any(key.startswith(f"{path}/") for key in keys)
    if table not in named and has_arrays:
        remove_segment(objects, path, read_table(objects, name))
    elif table not in named and not has_root and (root := read_table(objects, name)):
        remove_segment(objects, "", root)
    if any(key.startswith(f"{WORK}/") for key in keys):
        objects.delete_tree(f"{WORK}/{name}")
    files = (f"{FEATURES}/{name}.json", f"{TOMBSTONES}/{name}.int64", table)
    unnamed = [key for key in files if key in keys and key not in named]
    for key in unnamed:  # the table last: it says what there is to remove
        objects.delete(key)
    return bool(unnamed) or (has_arrays and table not in named)
