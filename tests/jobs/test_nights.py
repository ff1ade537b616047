"""Results that were kept up to date night by night, against results that were made anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.jobs_quality import Nights, drifting
from distclust.jobs.published import open_job
from tests.jobs.corpus import Corpus

# What docs/jobs.md promises of a tree that was kept up to date, against one fitted anew.
MOST_EVIDENCE_LOST = 0.03  # of the log evidence a row
MOST_PURITY_LOST = 0.05


def test_nights__a_kept_tree_is_as_good_as_promised(tmp_path: Path) -> None:
    nights = Nights(tmp_path / "corpus", drifting(4000, 10, 32, seed=3, sample_size=256))
    actions = [told["action"] for told in nights.pass_by()]
    kept = nights.quality()
    assert nights.run("tree")["action"] == "fitted"
    anew = nights.quality()
    assert actions[0] == "fitted"
    assert "refit below" in actions[1:]
    assert kept["n_rows"] == anew["n_rows"] == 4000
    assert kept["evidence"] >= anew["evidence"] * (1 + MOST_EVIDENCE_LOST)
    assert kept["purity"] >= anew["purity"] - MOST_PURITY_LOST


@pytest.fixture(scope="module")
def grown(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Return a corpus after nights on which files came, changed and went."""
    corpus = Corpus(tmp_path_factory.mktemp("grown"))
    for night in range(6):
        corpus.bring(night, 60)
    corpus.run()
    for night in range(6, 10):
        corpus.bring(night, 30)
        corpus.run()
    (corpus.inbox / "night001.csv").unlink()
    lines = (corpus.inbox / "night002.csv").read_text().splitlines(keepends=True)
    (corpus.inbox / "night002.csv").write_text("".join(lines[:20]))
    corpus.run()
    return corpus


@pytest.fixture(scope="module")
def anew(grown: Corpus, tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Return a job over the same files that sees them for the first time."""
    corpus = Corpus(tmp_path_factory.mktemp("anew"))
    for path in sorted(grown.inbox.iterdir()):
        (corpus.inbox / path.name).write_bytes(path.read_bytes())
    corpus.run()
    return corpus


def _rows(corpus: Corpus) -> dict[str, tuple[float, ...]]:
    matrix: Any = open_job(corpus.out).store().matrix()
    rows = matrix.read_all()
    dense = rows.toarray() if hasattr(rows, "toarray") else np.asarray(rows)
    return {str(name): tuple(row) for name, row in zip(matrix.row_ids, dense, strict=True)}


def _scores(ranking: Any) -> dict[str, float]:
    return dict(zip(ranking.ids.tolist(), ranking.log_scores.tolist(), strict=True))


def test_nights__live_rows_are_those_of_the_files(grown: Corpus, anew: Corpus) -> None:
    assert _rows(grown) == _rows(anew)
    assert len(_rows(grown)) == 4 * 60 + 4 * 30 + 19


def test_nights__queries_are_answered_bit_for_bit_as_by_a_new_index(
    grown: Corpus, anew: Corpus
) -> None:
    queries = [["n0-1"], ["n3-5", "n7-2"], ["n2-18", "n9-29", "n4-0"]]
    answers = []
    for corpus in (grown, anew):
        model = open_job(corpus.out).model("similar")
        found = model.query_many(queries, k=400, engine="index")
        answers.append([_scores(one) for one in found])
    assert answers[0] == answers[1]
    assert len(answers[0][0]) > 300


def test_nights__labels_of_a_tree_that_stayed_are_those_of_predict(tmp_path: Path) -> None:
    corpus = Corpus(tmp_path / "corpus")
    corpus.bring(0, 300)
    corpus.run()
    for night in range(1, 4):
        corpus.bring(night, 5)
        record = corpus.run().to_json()
        assert record["models"][0]["action"] == "updated"
    job = open_job(corpus.out)
    labels = np.asarray(job.labels("tree"))
    np.testing.assert_array_equal(labels, job.model("tree").predict(job.store()))
