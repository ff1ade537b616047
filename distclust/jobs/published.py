"""Reading what a job has published: rows and models that belong together.

    job = distclust.open_job("results")
    job.model("topics").predict(rows)
    job.labels("topics"), job.store().shape

Everything is of one state, whatever runs meanwhile. A run may publish a later one; open the
job again to see it.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from distclust.errors import InputError, StoreError
from distclust.jobs.ledger import JobLedger, State
from distclust.store.objects import open_objects
from distclust.store.results import ResultsStore
from distclust.store.row_labels import LABELS, StoredLabels

if TYPE_CHECKING:
    from distclust.store.matrix_store import MatrixStore


class PublishedJob:
    """One published state of a job.

    Attributes
    ----------
    url
        Where the job has its results.
    state
        What is published: by which run, from which generation, which versions.
    """

    def __init__(self, url: str, state: State) -> None:
        self.url = url
        self.state = state

    def __repr__(self) -> str:
        names = ", ".join(self.names)
        return f"PublishedJob({self.url!r}, {self.state.number}: {names}; {self.state.time})"

    @property
    def names(self) -> list[str]:
        """Names of the models."""
        return list(self.state.models)

    def store(self) -> MatrixStore:
        """Return the rows that the models were made of."""
        from distclust.store.matrix_store import open_store

        return open_store(store_place(self.url, self.state), self.state.generation)

    def model(self, name: str) -> Any:
        """Return a fitted model; of kind ``sets`` one that is ready to be queried."""
        from distclust.loading import load

        facts, place = self._facts(name), model_place(self.url, name)
        if facts["kind"] == "sets":
            sets = importlib.import_module("distclust.retrieval").BayesianSets
            return sets(**facts["parameters"]).fit(self.store(), index=place)
        return load(place, facts["version"])

    def labels(self, name: str) -> Any:
        """Return the label of every row of `store`, as a lazy array.

        Raises
        ------
        InputError
            If the model has no labels.
        """
        from distclust.engine import labels_array

        self._facts(name)
        stored = labels_of(self.url, name, self.state.models[name])
        if stored is None:
            expected, got = "a model of clusters", f"{name!r}, which has no labels"
            raise InputError(self.url, expected, got, f"Choose among {', '.join(self.names)}.")
        return labels_array(stored)

    def _facts(self, name: str) -> dict[str, Any]:
        if name not in self.state.models:
            expected = f"a model among {', '.join(self.names)}"
            raise InputError(self.url, expected, repr(name), "Check the spelling.")
        return self.state.models[name]


def open_job(url: str | os.PathLike[str]) -> PublishedJob:
    """Open what a job has published at the path or URL of its results (``out``).

    Raises
    ------
    StoreError
        If no job has published anything there.
    """
    objects = open_objects(url)
    state = JobLedger(objects).published()
    if state is None:
        hint = "Check the path, or run the job first (`distclust run`)."
        raise StoreError(objects.url, "the results of a job", "nothing published", hint)
    return PublishedJob(objects.url, state)


def model_place(out: str, name: str) -> str:
    """Return the results store of a model of the job at `out`."""
    return f"{out}/models/{name}"


def labels_place(out: str, name: str) -> str:
    """Return the results store of labels, for models whose versions have none."""
    return f"{model_place(out, name)}.labels"


def store_place(out: str, state: State) -> str:
    """Return where the rows of a published state are: inside, or where the job was told."""
    return (
        state.store
        if "://" in state.store or os.path.isabs(state.store)
        else (f"{out}/{state.store}")
    )


def figures_of(out: str, name: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics of a published model; those of its labels come first."""
    found = dict(ResultsStore(model_place(out, name)).get(facts["version"]).metrics)
    if facts["labels_version"] is not None:
        found |= ResultsStore(labels_place(out, name)).get(facts["labels_version"]).metrics
    return found


def labels_of(out: str, name: str, facts: Mapping[str, Any]) -> StoredLabels | None:
    """Return the labels that belong to a version of a model; None if it has none."""
    if facts["labels_version"] is not None:
        return StoredLabels(labels_place(out, name), facts["labels_version"])
    results = ResultsStore(model_place(out, name))
    files = results.get(facts["version"]).files
    has_labels = any(file.startswith(f"{LABELS}/") for file in files)
    return StoredLabels(results.objects, facts["version"]) if has_labels else None
