"""Corpora of items with features, for queries by example: with names, or with classes.

Rules that turn values into zeros and ones belong to a kind of data, never to one set:

============  =====================================================================
documents     a word is present or not; words were counted, or were binary already
lists         binary as they come
pictures      bright or dark, at half of the range of grey
measurements  the rule of skewness (thesis of Heller, chapter 5)
============  =====================================================================

Classes are used to draw queries and to judge answers; nothing else here looks at them.
"""

from __future__ import annotations

import gzip
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
import scipy.sparse

import distclust
from benchmarks import data
from distclust.store import Column, SparseMatrix

Kind = Literal["documents", "lists", "pictures", "measurements"]

PRESENT = "0"  # above nothing
PUBLISHED = "column-mean*2"  # of shares: above twice the mean of the word
SKEWNESS = "skewness"


@dataclass(frozen=True)
class Named:
    """Items and features with names.

    Attributes
    ----------
    matrix
        Zeros and ones with row ids and column names.
    """

    matrix: SparseMatrix

    @property
    def ids(self) -> list[str]:
        """Names of the items."""
        return [str(name) for i in range(self.matrix.n_blocks) for name in self.matrix.block_ids(i)]

    @property
    def features(self) -> list[str]:
        """Names of the features."""
        return [column.name for column in self.matrix.columns]


@dataclass(frozen=True)
class Labelled:
    """Items with classes.

    Attributes
    ----------
    name, kind
        Of the set.
    binary
        Zeros and ones, CSR, shape (n, J).
    classes
        Which items are in which class, CSC, shape (n, C); an item may be in several.
    values
        What the zeros and ones were made from, or None if there was nothing else.
    family
        The family that `BayesianSets` takes for the values, or None.
    """

    name: str
    kind: Kind
    binary: Any
    classes: Any
    values: Any = None
    family: str | None = None


def binarised(values: Any, rule: str) -> scipy.sparse.csr_array:
    """Turn values into zeros and ones as `distclust.ingest` does."""
    rows: Any = values if isinstance(values, np.ndarray) else scipy.sparse.csr_array(values)
    with tempfile.TemporaryDirectory() as folder:
        store = distclust.ingest(iter([rows]), f"{folder}/binary.zarr", binarise=rule)
        matrix = store.matrix()
        blocks = [scipy.sparse.csr_array(matrix.block(i)) for i in range(matrix.n_blocks)]
    return scipy.sparse.csr_array(scipy.sparse.vstack(blocks, format="csr").astype(np.uint8))


def shares(counts: Any) -> scipy.sparse.csr_array:
    """Divide every row by its sum; a row of zeros stays one."""
    totals = np.asarray(counts.sum(axis=1), float).ravel()
    scale = scipy.sparse.diags_array(1.0 / np.maximum(totals, 1.0))
    return scipy.sparse.csr_array(scale @ scipy.sparse.csr_array(counts).astype(np.float64))


def one_class_each(labels: Any) -> scipy.sparse.csc_array:
    """Classes as columns, from one label an item."""
    _, codes = np.unique(np.asarray(labels).astype(str), return_inverse=True)
    rows = np.arange(len(codes))
    return scipy.sparse.csc_array((np.ones(len(codes), bool), (rows, codes)))


def named(binary: Any, ids: list[str], features: list[str]) -> Named:
    """Put names to rows and columns; ids that occur twice get a number."""
    seen: dict[str, int] = {}
    unique = []
    for name in ids:
        seen[name] = seen.get(name, 0) + 1
        unique.append(name if seen[name] == 1 else f"{name} #{seen[name]}")
    columns = tuple(Column(name, number="bool") for name in features)
    matrix = scipy.sparse.csr_array(binary).astype(np.uint8)
    return Named(SparseMatrix(matrix, columns, np.array(unique)))


# ---- corpora with names --------------------------------------------------------------------------


def nips_authors() -> Named:
    """Authors by the words of their papers.

    Counts of an author are the sums over the author's papers, divided by their total; a
    word is a feature of the author where its share is above twice the mean share of the
    word over all authors.
    """
    counts, words, papers = _nips()
    with gzip.open(data.path_of("nips0-12", "authors.txt.gz"), "rt", encoding="utf-8") as lines:
        authors = [line.strip() for line in lines]
    listed = papers["authors"].fillna("").astype(str).str.split()
    pairs = [(int(author), paper) for paper, names in enumerate(listed) for author in names]
    rows, columns = np.array(pairs).T
    shape = len(authors), len(papers)
    wrote = scipy.sparse.csr_array((np.ones(len(rows)), (rows, columns)), shape=shape)
    return named(binarised(shares(wrote @ counts), PUBLISHED), authors, words)


def nips_papers() -> Named:
    """Papers by their words, made binary as the authors; words in the order of the alphabet."""
    counts, words, papers = _nips()
    alphabet = np.argsort(np.array(words), kind="stable")
    binary = binarised(shares(counts), PUBLISHED)[:, alphabet]
    titles = [title.rstrip(", ") for title in papers["title"]]
    return named(binary, titles, [words[j] for j in alphabet.tolist()])


def _nips() -> tuple[Any, list[str], pd.DataFrame]:
    counts = scipy.sparse.csr_array(scipy.sparse.load_npz(data.path_of("nips0-12", "counts.npz")))
    with gzip.open(data.path_of("nips0-12", "vocab.txt.gz"), "rt", encoding="utf-8") as lines:
        words = [line.strip() for line in lines]
    return counts, words, pd.read_csv(data.path_of("nips0-12", "docs.csv.gz"))


def movies(least_ratings: int = 15) -> Named:
    """Films by the people who liked them: four stars or five."""
    ratings = pd.read_csv(data.path_of("movielens100k", "ratings.csv.gz"))
    titles = pd.read_csv(data.path_of("movielens100k", "items.csv.gz")).set_index("item")["title"]
    often = ratings.groupby("item")["rating"].transform("size") >= least_ratings
    liked = ratings[often & (ratings["rating"] >= 4)]
    films, rows = np.unique(liked["item"], return_inverse=True)
    people, columns = np.unique(liked["user"], return_inverse=True)
    binary = scipy.sparse.csr_array((np.ones(len(liked)), (rows, columns)))
    return named(binary, titles.reindex(films).tolist(), [f"person {i}" for i in people])


def things() -> Named:
    """Concepts by the features that people list for them, without the taxonomic ones."""
    concepts, features, counts, _ = _mcrae()
    return named(counts > 0, concepts, features)


def animals() -> Named:
    """Fifty animals by 85 properties."""
    table = pd.read_csv(data.path_of("animals", "animals.csv")).set_index("animal")
    return named(scipy.sparse.csr_array(table.to_numpy()), list(table.index), list(table.columns))


def _mcrae() -> tuple[list[str], list[str], Any, Any]:
    table = pd.read_csv(data.path_of("mcrae-norms", "concept_features.csv.gz"))
    concepts, rows = np.unique(table["Concept"].to_numpy(str), return_inverse=True)
    is_class = (table["BR_Label"] == "taxonomic").to_numpy()
    found = []
    for chosen in (~is_class, is_class):
        names, columns = np.unique(table["Feature"][chosen].to_numpy(str), return_inverse=True)
        entries = (table["Prod_Freq"].to_numpy(np.int64)[chosen], (rows[chosen], columns))
        shape = len(concepts), len(names)
        found.append((names.tolist(), scipy.sparse.csr_array(entries, shape=shape)))
    (features, counts), (_, classes) = found
    return concepts.tolist(), features, counts, classes


# ---- corpora with classes ------------------------------------------------------------------------


def labelled_sets() -> dict[str, Callable[[], Labelled]]:
    """Every set with classes of enough items, by name; each is read when it is its turn."""
    return {
        "newsgroups": _newsgroups,
        "Reuters": _reuters,
        "NIPS sections": _nips_sections,
        "Cora": _cora,
        "WebKB": _webkb,
        "spambase": _spambase,
        "Corel": _corel,
        "McRae": _concepts,
        "senate": _senate,
        "digits, Semeion": _semeion,
        "digits, 8 x 8": lambda: _pictures("digits, 8 x 8", "digits/optdigits_8x8.npz", 8),
        "digits, MNIST": lambda: _pictures("digits, MNIST", "digits/mnist_5k_28x28.npz", 128),
        "COIL-20": lambda: _pictures("COIL-20", "coil20/coil20_32x32.npz", 128),
        "yeast": _yeast,
        "ISOLET": lambda: _measured_file("ISOLET", "isolet/isolet.npz"),
        "letter": lambda: _measured_table("letter", "letter/letter.csv.gz", "lettr"),
        "segmentation": lambda: _measured_table(
            "segmentation", "segmentation/segmentation.csv.gz", "category"
        ),
        "glass": lambda: _measured_table("glass", "glass/glass.csv", "Type"),
        "Ecoli": lambda: _measured_table("Ecoli", "ecoli/ecoli.csv", "site", "name"),
        "11 tumours": lambda: _genes("11 tumours", "tumours/11tumors_su2001.npz"),
        "14 tumours": lambda: _genes("14 tumours", "tumours/14tumors_ramaswamy2001.npz"),
        "lung": lambda: _genes("lung", "tumours/lung_bhattacharjee2001.npz"),
    }


def _documents(name: str, counts: Any, classes: Any) -> Labelled:
    counts = scipy.sparse.csr_array(counts).astype(np.int64)
    used = np.flatnonzero(np.asarray(counts.sum(axis=0)).ravel())
    counts = counts[:, used]
    return Labelled(name, "documents", binarised(counts, PRESENT), classes, counts, "multinomial")


def _newsgroups() -> Labelled:
    counts = scipy.sparse.load_npz(data.path_of("newsgroups20", "counts.npz"))
    groups = pd.read_csv(data.path_of("newsgroups20", "docs.csv.gz"))["group"]
    return _documents("newsgroups", counts, one_class_each(groups))


def _reuters() -> Labelled:
    counts = scipy.sparse.load_npz(data.path_of("reuters21578", "counts.npz"))
    topics = pd.read_csv(data.path_of("reuters21578", "docs.csv.gz"))["topics"].fillna("")
    classes = scipy.sparse.csc_array(topics.str.get_dummies(";").to_numpy(bool))
    return _documents("Reuters", counts, classes)


def _nips_sections() -> Labelled:
    counts, _, papers = _nips()
    labels = papers["label"].to_numpy()
    has_section = labels != labels.max()  # the last one says that there is none
    classes = scipy.sparse.diags_array(has_section.astype(float)) @ one_class_each(labels)
    return _documents("NIPS sections", counts, scipy.sparse.csc_array(classes > 0))


def _words_and(name: str, folder: str, table: str, label: str) -> Labelled:
    words = scipy.sparse.csr_array(scipy.sparse.load_npz(data.path_of(folder, "words.npz")))
    labels = pd.read_csv(data.path_of(folder, table))[label]
    return Labelled(name, "documents", (words > 0).astype(np.uint8), one_class_each(labels))


def _cora() -> Labelled:
    return _words_and("Cora", "cora", "papers.csv.gz", "topic")


def _webkb() -> Labelled:
    return _words_and("WebKB", "webkb-links", "pages.csv.gz", "type")


def _spambase() -> Labelled:
    table = pd.read_csv(data.path_of("spambase", "spambase.csv.gz"))
    values = table.iloc[:, :57].to_numpy(np.float64)
    classes = one_class_each(table["type"])
    return Labelled(
        "spambase", "documents", binarised(values, PRESENT), classes, values, "diagonal_gaussian"
    )


def _corel() -> Labelled:
    blobs = scipy.sparse.csr_array(scipy.sparse.load_npz(data.path_of("corel5k", "features.npz")))
    keywords = scipy.sparse.load_npz(data.path_of("corel5k", "keywords.npz"))
    classes = scipy.sparse.csc_array(keywords).astype(bool)
    return Labelled("Corel", "lists", (blobs > 0).astype(np.uint8), classes)


def _concepts() -> Labelled:
    _, _, counts, classes = _mcrae()
    binary = (counts > 0).astype(np.uint8)
    return Labelled(
        "McRae", "lists", binary, scipy.sparse.csc_array(classes > 0), counts, "multinomial"
    )


def _senate() -> Labelled:
    """Votes cast: yea and nay are two features, so that an absent senator has neither."""
    table = pd.read_csv(data.path_of("senate107", "votes.csv.gz"))
    table = table[table["senator"] != "OUTCOME"]
    votes = table.filter(regex=r"^v\d+$").to_numpy()
    binary = scipy.sparse.csr_array(np.hstack([votes == 1, votes == 0]).astype(np.uint8))
    return Labelled("senate", "lists", binary, one_class_each(table["party"]))


def _semeion() -> Labelled:
    with np.load(data.path_of("digits", "semeion_16x16.npz")) as file:
        binary = scipy.sparse.csr_array((file["X"] > 0).astype(np.uint8))
        return Labelled("digits, Semeion", "pictures", binary, one_class_each(file["y"]))


def _pictures(name: str, path: str, half: int) -> Labelled:
    with np.load(data.path_of(path)) as file:
        values, classes = file["X"].astype(np.float64), one_class_each(file["y"])
    binary = binarised(values, f"at-least:{half}")
    return Labelled(name, "pictures", binary, classes, values, "diagonal_gaussian")


def _measurements(name: str, values: Any, classes: Any) -> Labelled:
    values = np.asarray(values, np.float64)
    binary = binarised(values, SKEWNESS)
    return Labelled(name, "measurements", binary, classes, values, "diagonal_gaussian")


def _yeast() -> Labelled:
    table = pd.read_csv(data.path_of("yeast-multilabel", "yeast.csv.gz"))
    classes = scipy.sparse.csc_array(table.filter(regex="^Class").to_numpy(bool))
    return _measurements("yeast", table.filter(regex="^Att"), classes)


def _measured_table(name: str, path: str, label: str, *left_out: str) -> Labelled:
    table = pd.read_csv(data.path_of(path))
    values = table.drop(columns=[label, *left_out])
    return _measurements(name, values, one_class_each(table[label]))


def _measured_file(name: str, path: str) -> Labelled:
    with np.load(data.path_of(path)) as file:
        return _measurements(name, file["X"], one_class_each(file["y"]))


def _genes(name: str, path: str) -> Labelled:
    """Intensities, by their logarithms as is usual; the files have none below 10."""
    with np.load(data.path_of(path)) as file:
        return _measurements(name, np.log(file["X"]), one_class_each(file["y"]))


# ---- inventions of the size of a test ------------------------------------------------------------


def toy_named() -> Named:
    """Three kinds of things, each with features of its own and some that all may have."""
    random = np.random.default_rng(0)
    kinds = np.repeat(np.arange(3), 12)
    chances = np.full((3, 30), 0.1)
    for kind in range(3):
        chances[kind, 8 * kind : 8 * kind + 8] = 0.7
    binary = random.random((len(kinds), 30)) < chances[kinds]
    ids = [f"{'abc'[kind]}{i % 12}" for i, kind in enumerate(kinds.tolist())]
    return named(binary, ids, [f"feature {j}" for j in range(30)])


def toy_labelled() -> dict[str, Callable[[], Labelled]]:
    """Documents and measurements of four classes."""
    random = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 30)

    def documents() -> Labelled:
        words = random.dirichlet(np.full(80, 0.1), 4)
        counts = scipy.sparse.csr_array(random.multinomial(30, words[y]))
        return _documents("toy documents", counts, one_class_each(y))

    def measurements() -> Labelled:
        centres = random.normal(0.0, 2.0, (4, 10))
        values = centres[y] + random.normal(0.0, 1.0, (len(y), 10))
        return _measurements("toy measurements", values, one_class_each(y))

    return {"toy documents": documents, "toy measurements": measurements}
