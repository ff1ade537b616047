"""Published lists come out of the published data: NIPS authors and papers, 1987 to 1999."""

from __future__ import annotations

import functools
import gzip
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import scipy.sparse

import distclust
from benchmarks import data, sets_data, sets_lists
from benchmarks.sets_data import Named
from benchmarks.sets_lists import Asked
from distclust.retrieval.sets import BayesianSets

pytestmark = pytest.mark.skipif(
    not data.has_files(), reason=f"{data.VARIABLE} does not name the folder of data sets"
)

# Table 4.5 of Heller's thesis, in its order.
TABLE = [
    *("Smola_A", "Scholkopf_B", "Mika_S", "Ratsch_G", "Williamson_R"),
    *("Muller_K", "Weston_J", "Shawe-Taylor_J", "Vapnik_V", "Onoda_T"),
]


@pytest.fixture(scope="module")
def authors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of authors, made by the library's own rule from shares of words."""
    counts = scipy.sparse.csr_array(scipy.sparse.load_npz(data.path_of("nips0-12", "counts.npz")))
    listed = pd.read_csv(data.path_of("nips0-12", "docs.csv.gz"))["authors"].astype(str)
    with gzip.open(data.path_of("nips0-12", "authors.txt.gz"), "rt", encoding="utf-8") as lines:
        names = np.array([line.strip() for line in lines])
    shares = np.zeros((len(names), counts.shape[1]))
    for paper, written_by in enumerate(listed):
        for author in written_by.split():
            shares[int(author)] += counts[[paper]].toarray()[0]
    shares /= shares.sum(axis=1, keepdims=True)
    path = tmp_path_factory.mktemp("nips") / "authors.zarr"
    distclust.ingest(iter([(names, shares)]), path, binarise="column-mean*2")
    return path


def test_query__finds_the_ten_authors_of_the_published_table(authors: Path) -> None:
    sets = BayesianSets().fit(authors).build_index()
    for engine in ("scan", "index"):
        found = sets.query(["Smola_A", "Scholkopf_B"], engine=engine)
        assert set(found.ids.tolist()) == set(TABLE)
        assert found.ids[:6].tolist() == TABLE[:6]


def test_query__finds_them_in_the_published_order_with_a_weaker_prior(authors: Path) -> None:
    found = BayesianSets(kappa=0.1).fit(authors).query(["Smola_A", "Scholkopf_B"])
    assert found.ids.tolist() == TABLE


@functools.cache
def corpus(name: str) -> Named:
    return {"NIPS authors": sets_data.nips_authors, "NIPS papers": sets_data.nips_papers}[name]()


@pytest.mark.parametrize(
    "asked",
    [
        sets_lists.SUPPORT_VECTORS,
        sets_lists.PROBABILISTIC_MODELS,
        sets_lists.DECISIONS,
        sets_lists.GAUSSIAN_PROCESSES,
        sets_lists.PERCEPTRONS,
    ],
    ids=lambda asked: asked.source.replace(" ", "-"),
)
def test_answer__is_the_published_table_to_the_last_place(asked: Asked) -> None:
    given = sets_lists.answer(corpus(asked.corpus), asked.query, asked.kappas[0])
    assert given["ids"] == list(asked.published)
    if asked.published_features:
        assert given["shared"] == list(asked.published_features)


def test_query__completes_a_set_of_birds_with_birds() -> None:
    table = pd.read_csv(data.path_of("mcrae-norms", "concept_features.csv.gz"))
    birds = set(table["Concept"][table["Feature"] == "a_bird"])
    found = BayesianSets().fit(sets_data.things().matrix).query(["robin", "sparrow"])
    assert set(found.ids.tolist()) <= birds
