"""Fits of a crew beside a results store: saved, resumed, published as a version."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from distclust.engine.crews import Vault
from distclust.engine.sessions import current_client
from distclust.engine.workers import shares_disk, temporary_results
from distclust.errors import ConflictError
from distclust.store.borders import take_over
from distclust.store.drafts import Draft
from distclust.store.objects import open_objects
from distclust.store.results import ResultsStore
from distclust.store.sealed import plain
from distclust.store.unfinished import begin_or_resume

MODEL_FILE = "model.distclust"  # of a version in a results store


@dataclass(frozen=True)
class StoredFit:
    """How a kind of model is fitted, saved and read back.

    Attributes
    ----------
    identity
        What the results are made from, as `ResultsStore.begin` takes it.
    fingerprint
        The same as a text, for checkpoints; asked when the model knows its seed (``_seed``).
    fit
        Fits the model; state is saved in the vault.
    archive
        Kind, JSON part and arrays of the fitted model.
    read
        Reads the model of a version.
    metrics
        Figures that the version shows.
    resumed
        Told the position of the plan that the fit goes on from.
    """

    identity: Mapping[str, Any]
    fingerprint: Callable[[], str]
    fit: Callable[[Vault], None]
    archive: Callable[[], tuple[str, dict[str, Any], dict[str, Any]]]
    read: Callable[[ResultsStore, str], Any]
    metrics: Callable[[], dict[str, Any]]
    resumed: Callable[[int], None]


def fit_beside(
    model: Any,
    results: str | os.PathLike[str],
    how: StoredFit,
    *,
    fresh: bool,
    where: str,
) -> None:
    """Fit `model`, saving its state in a results store, and publish it there."""
    store = ResultsStore(results)
    identity = dict(how.identity)
    if model.random_state is None and not fresh:
        identity["seed"] = model._seed = _begun_seed(store, identity)
    draft = begin_or_resume(store, identity, fresh=fresh, where=where, alike=("kind",))
    with draft:
        if draft.is_sealed:
            version = draft.publish()
            take_over(model, how.read(store, version.id))
        else:
            _fit(how, draft)
            draft.write_archive(MODEL_FILE, *how.archive())
            version = draft.publish(how.metrics())
    model.results_, model.version_ = store.url, version.id


@contextlib.contextmanager
def passing_vault(where: str, fingerprint: Callable[[], str]) -> Iterator[Vault | None]:
    """Give a place for checkpoints of a fit whose results nobody asked to keep.

    None where nothing can be lost, or where workers would not see a common place.
    """
    if current_client() is None or not shares_disk():
        yield None
        return
    with temporary_results(where) as folder:
        yield Vault(open_objects(folder), "fit", fingerprint())


def read_version(
    results: ResultsStore, version_id: str | None, rebuild: Callable[[Any, str], Any]
) -> Any:
    """Read the model of a version, or of the current one."""
    with results.open_version(version_id) as reader:
        version = reader.version
        model = rebuild(reader.read_archive(MODEL_FILE), f"{results.url}, {version.id}")
    model.results_, model.version_ = results.url, version.id
    return model


def vault_in(draft: Draft, fingerprint: str) -> Vault:
    """Return the place for checkpoints of a run."""
    return Vault(draft.place().objects, draft.id, fingerprint, draft.incarnation)


def _fit(how: StoredFit, draft: Draft) -> None:
    vault = vault_in(draft, how.fingerprint())
    step = vault.checkpoints("plan").newest_step()
    if step is not None:
        how.resumed(step)
    try:
        how.fit(vault)
    except ConflictError:
        raise  # the run is another's
    except Exception:
        if not vault.objects.list(vault.checkpoints("plan").prefix):
            draft.abandon()  # nothing to go on from
        raise


def _begun_seed(store: ResultsStore, identity: Mapping[str, Any]) -> int:
    """Return the seed that an unfinished fit of the same rows drew; else that of this one."""
    ours = {k: v for k, v in plain(dict(identity)).items() if k != "seed"}
    for begun in store.unfinished().values():
        if {name: begun.get(name) for name in ours} == ours:
            return int(begun["seed"])
    return int(identity["seed"])
