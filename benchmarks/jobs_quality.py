"""Trees kept up to date for thirty nights against trees fitted anew to the same rows.

Every night a file with new rows comes in, as many as one hundredth of the rows of the first
run. Of a drifting corpus the oldest file goes on the same night. The job is run in this
process; in the end the tree is asked for once more, fitted in full. A tree that rows are placed
on but that is never divided again shows what updates are good for.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import scipy.sparse
from sklearn.metrics import adjusted_rand_score

from benchmarks import data
from benchmarks.jobs import make_folder
from benchmarks.problem import Problem, Results, Size, table
from distclust.errors import ConvergenceWarning
from distclust.jobs.jobfile import read_job
from distclust.jobs.published import model_place, open_job
from distclust.jobs.running import Wish
from distclust.jobs.runs import run_job
from distclust.metrics import dendrogram_purity
from distclust.store.results import ResultsStore
from distclust.store.row_labels import StoredLabels
from distclust.trees.stored_fits import LEAVES

Bits = npt.NDArray[np.uint8]

NEVER = 1e9  # standard errors

JOB = """
name = "nights"
out = "results"
[input]
source = "in/*.csv"
[models.tree]
kind = "rbhc"
[models.tree.parameters]
sample_size = {sample_size}
[models.tree.refit]
drift = {drift}
share = {share}
"""


@dataclass(frozen=True)
class Batch:
    """Rows that come on one night, their classes, and whether the oldest file goes."""

    rows: Bits
    classes: npt.NDArray[Any]
    is_sliding: bool = False


@dataclass(frozen=True)
class Corpus:
    """What is there on the first night, in parts, and what comes after it."""

    name: str
    first: list[Batch]
    nights: list[Batch]
    sample_size: int


# ---- corpora -------------------------------------------------------------------------------------


def drifting(
    n_rows: int, n_nights: int, n_features: int, seed: int, sample_size: int = 1024
) -> Corpus:
    """Draw a corpus whose clusters are born, die and move.

    Twelve clusters at first. Every third night one is born; every third night, another one
    gets its last rows; a quarter of them move night by night, each feature by a random step
    of its log odds.
    """
    random = np.random.default_rng(seed)
    n_born = n_nights // 3
    odds = random.normal(0.0, 2.0, (12 + n_born, n_features))
    is_moving = np.arange(len(odds)) % 4 == 0
    first = [_draw(random, odds, np.arange(12), n_rows // 100) for _ in range(100)]
    nights = []
    for night in range(n_nights):
        odds[is_moving] += random.normal(0.0, 0.15, (is_moving.sum(), n_features))
        alive = np.arange(min(night // 3, 11), 12 + (night + 1) // 3)
        nights.append(replace(_draw(random, odds, alive, n_rows // 100), is_sliding=True))
    return Corpus("drifting", first, nights, sample_size)


def _draw(
    random: np.random.Generator,
    odds: npt.NDArray[np.float64],
    alive: npt.NDArray[np.int64],
    n_rows: int,
) -> Batch:
    classes = random.choice(alive, n_rows)
    chance = 1.0 / (1.0 + np.exp(-odds[classes]))
    return Batch((random.random(chance.shape) < chance).astype(np.uint8), classes)


def newsgroups(n_words: int, n_nights: int, seed: int) -> Corpus:
    """Return posts of all newsgroups; those of the last six come group by group.

    A night brings one hundredth of the posts of the other groups.
    """
    counts, groups = _posts(n_words)
    random = np.random.default_rng(seed)
    names = random.permutation(np.unique(groups))
    is_first = np.isin(groups, names[:-6])
    order = random.permutation(np.flatnonzero(is_first))
    n_new = len(order) // 100
    n_each = n_nights * n_new // 6
    later = [random.permutation(np.flatnonzero(groups == name))[:n_each] for name in names[-6:]]
    coming = np.concatenate(later)
    cuts = [range(night * n_new, (night + 1) * n_new) for night in range(n_nights)]
    nights = [_posts_of(counts, groups, coming[cut]) for cut in cuts]
    first = [_posts_of(counts, groups, part) for part in np.array_split(order, 100)]
    return Corpus("newsgroups", first, nights, 1024)


def _posts_of(counts: Any, groups: npt.NDArray[Any], rows: npt.NDArray[np.int64]) -> Batch:
    return Batch(counts[rows].toarray().astype(np.uint8), groups[rows])


@cache
def _posts(n_words: int) -> tuple[Any, npt.NDArray[Any]]:
    """Words of posts, present or absent: those that most posts have."""
    counts = scipy.sparse.load_npz(data.path_of("newsgroups20", "counts.npz")).tocsr() > 0
    groups = pd.read_csv(data.path_of("newsgroups20", "docs.csv.gz"))["group"].to_numpy(str)
    often = np.argsort(-np.asarray(counts.sum(axis=0)).ravel(), kind="stable")[:n_words]
    return scipy.sparse.csr_array(counts[:, np.sort(often)]), groups


# ---- nights --------------------------------------------------------------------------------------


class Nights:
    """A job over a corpus, run in this process night by night."""

    def __init__(self, folder: Path, corpus: Corpus, drift: float = 4.0, share: float = 0.25):
        self.folder = folder
        self.corpus = corpus
        job = JOB.format(sample_size=corpus.sample_size, drift=drift, share=share)
        self.inbox = make_folder(folder, job)
        self.classes: dict[str, Any] = {}
        self.files: list[Path] = []
        for part in corpus.first:
            self._write(part)

    @property
    def out(self) -> str:
        """Where results are."""
        return str(self.folder / "results")

    def _write(self, batch: Batch) -> None:
        number = len(self.classes)
        ids = pd.Index([f"r{number + i}" for i in range(len(batch.rows))], name="id")
        names = [f"f{j}" for j in range(batch.rows.shape[1])]
        path = self.inbox / f"part{number:08d}.csv"
        pd.DataFrame(batch.rows, columns=names, index=ids).to_csv(path)
        self.classes |= dict(zip(ids, batch.classes.tolist(), strict=True))
        self.files.append(path)

    def run(self, *refit: str) -> dict[str, Any]:
        """Run the job; return what the record says about the tree."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            record = run_job(
                read_job(self.folder / "job.toml"),
                Wish(refit),
                contextlib.nullcontext,
                "in process",
                lambda _: None,
            )
        told: dict[str, Any] = record.to_json()["models"][0]
        return told

    def pass_by(self) -> Iterator[dict[str, Any]]:
        """Run the job on the first night and on all that follow."""
        yield self.run()
        for batch in self.corpus.nights:
            self._write(batch)
            if batch.is_sliding:
                self.files.pop(0).unlink()
            yield self.run()

    def quality(self) -> dict[str, float]:
        """Judge the published tree by evidence, and by the classes."""
        job = open_job(self.out)
        version = job.state.models["tree"]["version"]
        matrix: Any = job.store().matrix()
        ids, tree = matrix.row_ids, job.model("tree").tree_
        classes = np.array([self.classes[str(name)] for name in ids])
        stored = StoredLabels(ResultsStore(model_place(self.out, "tree")).objects, version, LEAVES)
        leaves = stored.read(0, len(ids)).astype(np.int64)
        drawn = np.random.default_rng(0).permutation(len(ids))[:2000]
        part = replace(tree, leaf_of_row=leaves[drawn], row_ids=ids[drawn])
        labels = np.asarray(job.labels("tree"))
        return {
            "evidence": float(tree.log_evidence) / len(ids),
            "purity": float(dendrogram_purity(part, classes[drawn])),
            "cluster_purity": cluster_purity(labels, classes),
            "agreement": float(adjusted_rand_score(classes, labels)),
            "n_clusters": len(np.unique(labels)),
            "n_leaves": int(tree.n_leaves),
            "n_rows": len(ids),
        }


def cluster_purity(labels: npt.NDArray[Any], classes: npt.NDArray[Any]) -> float:
    """Share of rows that are of the most frequent class of their cluster."""
    counts = pd.crosstab(labels, classes).to_numpy()
    return float(counts.max(axis=1).sum() / counts.sum())


def follow(corpus: Corpus, **rules: float) -> dict[str, Any]:
    """Run all nights, and a full fit after them."""
    with tempfile.TemporaryDirectory() as place:
        nights = Nights(Path(place) / "corpus", corpus, **rules)
        begun = time.perf_counter()
        actions = [told["action"] for told in nights.pass_by()]
        kept, seconds = nights.quality(), time.perf_counter() - begun
        nights.run("tree")
        counts = {action: actions[1:].count(action) for action in sorted(set(actions[1:]))}
        since = actions[::-1].index("fitted")
        return {
            "kept": kept,
            "anew": nights.quality(),
            "actions": counts,
            "nights_since_fit": since,
            "seconds": seconds,
        }


def make_corpora(size: Size) -> list[Corpus]:
    """Thirty nights of both corpora, or three of a small one."""
    if size == "toy":
        return [drifting(1200, 3, 24, 0, sample_size=128)]
    return [
        drifting(50_000, 30, 64, 0),
        drifting(50_000, 30, 64, 1),
        newsgroups(500, 30, 0),
    ]


def run_quality(corpora: list[Corpus]) -> Results:
    """Follow each corpus; also without fits of the whole tree, and without dividing anything."""
    found = []
    for corpus in corpora:
        followed = follow(corpus)
        below = follow(corpus, share=1.0)
        followed |= {"below": below["kept"], "actions_below": below["actions"]}
        followed["placed"] = follow(corpus, drift=NEVER)["kept"]
        followed |= {"name": corpus.name, "n_nights": len(corpus.nights)}
        found.append(followed)
    return {"corpora": found}


def summarise_quality(results: Results) -> str:
    """Four trees of each corpus."""
    lines = []
    for found in results["corpora"]:
        name = f"{found['name']}, {found['kept']['n_rows']:,} rows"
        kept = f"kept ({_told(found['actions'])}; {found['nights_since_fit']} nights since a fit)"
        below = f"divided below only ({_told(found['actions_below'])})"
        trees = {"kept": kept, "below": below, "placed": "only placed", "anew": "fitted anew"}
        for key, what in trees.items():
            figures = found[key]
            lines.append(
                [
                    name,
                    what,
                    f"{figures['evidence']:.3f}",
                    *(f"{figures[of]:.3f}" for of in ("purity", "cluster_purity", "agreement")),
                    str(figures["n_clusters"]),
                ]
            )
            name = ""
    header = ["corpus", "tree (nights)", "log evidence a row", "dendrogram purity"]
    header += ["cluster purity", "adjusted Rand index", "clusters"]
    nights = results["corpora"][0]["n_nights"]
    return f"After {nights} nights with 1 % new rows each:\n\n{table(header, lines)}"


def _told(actions: dict[str, int]) -> str:
    return ", ".join(f"{n} {action}" for action, n in actions.items())


def problems() -> list[Problem]:
    """All problems of this module."""
    return [
        Problem(
            "jobs-quality",
            "trees kept up to date for thirty nights against trees fitted anew",
            make_corpora,
            run_quality,
            summarise_quality,
            needs_files=True,
        ),
    ]
