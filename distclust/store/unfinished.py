"""Runs that began and did not end: found again, gone on with, or discarded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from distclust.errors import OtherRowsError
from distclust.store.drafts import Draft, holds_back
from distclust.store.results import ResultsStore
from distclust.store.sealed import plain

SAME_WORK = ("kind", "parameters", "seed")


def begin_or_resume(
    store: ResultsStore,
    identity: Mapping[str, Any],
    *,
    fresh: bool,
    where: str,
    alike: Sequence[str] = SAME_WORK,
) -> Draft:
    """Return the draft of a run: the unfinished one of the same work, or a new one.

    Parameters
    ----------
    store
        Where results go.
    identity
        What the results are made from, as `ResultsStore.begin` takes it.
    fresh
        Discard unfinished runs that are alike instead of going on.
    where
        Place to name in the error.
    alike
        Parts of the identity by which an unfinished run is taken for an earlier try of this
        one; if it then differs in others, it is refused.

    Raises
    ------
    OtherRowsError
        If there is an unfinished run that is alike but not the same.
    """
    if fresh:
        _discard(store, identity, alike)
    run = store.find_run(**identity)
    others = _alike(store, identity, alike)
    if run is None and others and not holds_back():  # a job may have versions that wait
        name, begun = others.popitem()  # the newest
        raise _other(f"{where}: run {name} in {store.url}", begun, plain(dict(identity)))
    return store.begin(**identity, run=run)


def _other(where: str, begun: Mapping[str, Any], identity: Mapping[str, Any]) -> OtherRowsError:
    hint = "Fit with fresh=True (--fresh) to start over."
    if begun["input_fingerprint"] != identity["input_fingerprint"]:
        expected = f"an unfinished fit of these rows ({identity['input_fingerprint']})"
        got = f"one that began with other rows ({begun['input_fingerprint']})"
        return OtherRowsError(where, expected, got, hint)
    for name in ("parameters", "seed"):
        if name in identity and begun[name] != identity[name]:
            expected = f"an unfinished fit with the {name} {_differing(identity, begun, name)}"
            got = f"one that began with {_differing(begun, identity, name)}"
            return OtherRowsError(where, expected, got, hint)
    expected = "an unfinished fit by this version of distclust"
    return OtherRowsError(
        where, expected, f"one that began with distclust {begun['code_version']}", hint
    )


def _differing(a: Mapping[str, Any], b: Mapping[str, Any], name: str) -> str:
    """Return in words what one has that the other has not."""
    ours, theirs = a[name], b[name]
    if not isinstance(ours, Mapping) or not isinstance(theirs, Mapping):
        return str(ours)
    parts = [f"{key}={value!r}" for key, value in ours.items() if theirs.get(key) != value]
    return ", ".join(parts)


def _discard(store: ResultsStore, identity: Mapping[str, Any], alike: Sequence[str]) -> None:
    """Remove what unfinished runs like this one left, whatever else differs.

    One that had got as far as its seal is published: it is complete, and somebody may be
    about to do so.
    """
    for run, begun in _alike(store, identity, alike).items():
        with store.begin(**begun, run=run) as draft:
            if draft.is_sealed:
                draft.publish()
            else:
                draft.abandon()


def _alike(
    store: ResultsStore, identity: Mapping[str, Any], alike: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Return the unfinished runs that are alike, the oldest first."""
    ours = plain({name: identity[name] for name in alike})
    return {
        run: begun
        for run, begun in store.unfinished().items()
        if {name: begun[name] for name in ours} == ours
    }
