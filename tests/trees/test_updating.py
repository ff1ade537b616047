"""Trees brought up to date with later rows: what follows, what stays, what is fitted again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distclust
from distclust import EMBHC, RandomizedBHC, engine
from distclust.store import row_labels
from distclust.store.changes import changes_between
from distclust.store.results import ResultsStore
from distclust.store.row_labels import StoredLabels
from distclust.store.stored_matrix import StoredMatrix
from distclust.store.versions import Version
from distclust.trees.drift import DriftRules
from distclust.trees.evaluate import DirichletProcess, evaluate
from distclust.trees.large import LargeTreeEstimator
from distclust.trees.persistence import read_model
from distclust.trees.updating import (
    RefitNeeded,
    fit_updatable,
    open_fitted,
    update_tree,
)
from tests.faults import every_fault
from tests.interrupts import read_in_parts
from tests.small_blocks import SmallBlocks, shrink

N_FEATURES, N_CLUSTERS = 48, 12
MAKERS = {
    "rbhc": lambda: RandomizedBHC(sample_size=200, check_size=64, random_state=1),
    "embhc": lambda: EMBHC(sample_size=40, n_sweeps=3, random_state=1),
}


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        yield


def separated(n_rows: int, seed: int, clusters: range = range(N_CLUSTERS)) -> np.ndarray:
    """Binary rows of clusters that are far apart; cluster k of any seed is the same."""
    profiles = np.random.default_rng(7).random((40, N_FEATURES)) < 0.5
    rng = np.random.default_rng(seed)
    cluster = rng.choice(np.array(clusters), size=n_rows)
    ones = np.where(profiles[cluster], 0.93, 0.07)
    return (rng.random((n_rows, N_FEATURES)) < ones).astype(np.uint8)


def append(place: Path, rows: np.ndarray) -> None:
    distclust.ingest(iter([rows]), place, how="append")


def delete(place: Path, ids: Any) -> None:
    distclust.open_store(place).delete(ids)


def rows_of(place: Path) -> StoredMatrix:
    matrix = distclust.open_store(place).matrix()
    assert isinstance(matrix, StoredMatrix)
    return matrix


class Corpus:
    """A store and a results store, fitted once and brought up to date at will."""

    def __init__(self, root: Path, kind: str = "rbhc", n_rows: int = 3000) -> None:
        self.place, self.results = root / "X.zarr", ResultsStore(root / "results")
        distclust.ingest(iter([separated(n_rows, 0)]), self.place)
        self.matrix = rows_of(self.place)
        self.version = fit_updatable(MAKERS[kind](), self.matrix, self.results, "fit")

    def model(self) -> LargeTreeEstimator:
        model = read_model(self.results, self.version.id)
        assert isinstance(model, LargeTreeEstimator)
        return model

    def update(self, rules: DriftRules | None = None) -> LargeTreeEstimator:
        matrix = rows_of(self.place)
        fitted = open_fitted(self.results, self.version.id, self.matrix)
        rules = DriftRules() if rules is None else rules
        self.version = update_tree(self.results, fitted, matrix, rules, "update")
        self.matrix = matrix
        return self.model()


@pytest.fixture(params=MAKERS)
def corpus(request, tmp_path) -> Corpus:
    return Corpus(tmp_path, request.param)


def assert_follows_rows(corpus: Corpus, model: LargeTreeEstimator) -> None:
    """Statistics, odds and evidence are those of the rows as they are labelled by leaf."""
    matrix = corpus.matrix
    fitted = open_fitted(corpus.results, corpus.version.id, matrix)
    leaves = fitted.leaves.read(0, matrix.shape[0]).astype(np.int64)
    tree = model.tree_
    stats = model.family_.accumulate(matrix.read_all(), leaves, tree.n_leaves)
    np.testing.assert_array_equal(tree.statistics[: tree.n_leaves], stats)
    everything = tree.structure.sum_up(stats)
    np.testing.assert_array_equal(tree.statistics, everything)
    marginal = model.family_.log_marginal(everything)
    mixing = DirichletProcess(model.concentration_)
    wanted = evaluate(tree.structure, everything[:, 0], marginal, mixing)
    np.testing.assert_allclose(tree.log_odds, wanted.log_odds, rtol=1e-12)
    assert model.log_evidence_ == pytest.approx(wanted.log_evidence[-1], rel=1e-12)
    np.testing.assert_array_equal(np.asarray(model.labels_), model._label_of_leaf[leaves])
    first = [int(np.flatnonzero(leaves == k)[0]) for k in range(tree.n_leaves)]
    np.testing.assert_array_equal(tree.row_ids, matrix.ids_at(first))


# ---- rows that fit -------------------------------------------------------------------------------


def test_update__rows_like_the_old_ones_change_no_node(corpus):
    before = corpus.model()
    append(corpus.place, separated(200, 1))
    delete(corpus.place, np.r_[5:40, 700, 2990:3010])
    model = corpus.update()
    assert corpus.version.metrics["update"]["n_reopened"] == 0
    assert corpus.version.metrics["update"]["n_added"] == 190
    assert corpus.version.metrics["update"]["n_deleted"] == 46
    assert model._router.paths == before._router.paths
    np.testing.assert_array_equal(
        model.tree_.structure.child_list, before.tree_.structure.child_list
    )
    assert_follows_rows(corpus, model)


def test_update__labels_are_what_the_model_predicts(tmp_path):
    corpus = Corpus(tmp_path)
    append(corpus.place, separated(300, 2))
    delete(corpus.place, range(0, 3000, 17))
    model = corpus.update()
    labels = np.asarray(model.labels_)
    np.testing.assert_array_equal(labels, model.predict(corpus.matrix))
    np.testing.assert_array_equal(labels, model.predict(corpus.matrix.read_all()))


def test_update__rows_of_unchanged_blocks_keep_their_labels(corpus):
    before = np.asarray(corpus.model().labels_)
    append(corpus.place, separated(100, 3))
    delete(corpus.place, [64, 65])
    after = np.asarray(corpus.update().labels_)
    np.testing.assert_array_equal(after[: len(before) - 2], np.delete(before, [64, 65]))


@pytest.mark.parametrize(("deleted", "n_taken"), [([], 30), ([250], 2), ([3], 0)])
def test_update__chunks_of_unchanged_rows_are_those_of_the_version_before(
    tmp_path, monkeypatch, deleted, n_taken
):
    monkeypatch.setattr(row_labels, "LABEL_CHUNK", 100)
    corpus = Corpus(tmp_path)
    before = corpus.version.id
    append(corpus.place, separated(150, 5))
    if deleted:
        delete(corpus.place, deleted)
    model = corpus.update()
    assert_follows_rows(corpus, model)
    versions = tmp_path / "results" / "versions"
    for folder in ("labels", "leaves"):
        old, new = (versions / name / folder / "c" for name in (before, corpus.version.id))
        same = [i for i in range(30) if (old / str(i)).samefile(new / str(i))]
        assert same == list(range(n_taken))


def test_update__reads_only_blocks_that_changed(tmp_path, monkeypatch):
    corpus = Corpus(tmp_path)
    append(corpus.place, separated(70, 4))
    delete(corpus.place, [130])
    read: set[int] = set()
    block = StoredMatrix.block

    def watched(self: StoredMatrix, index: int) -> Any:
        read.add(index)
        return block(self, index)

    monkeypatch.setattr(StoredMatrix, "block", watched)
    corpus.update()
    assert read == {2, 46, 47}


def test_update__many_follow_each_other(corpus):
    for night in range(4):
        append(corpus.place, separated(60, 10 + night))
        delete(corpus.place, range(100 * night, 100 * night + 25))
        model = corpus.update()
    assert model._facts["n_updates"] == 4
    assert_follows_rows(corpus, model)


def test_update__a_leaf_without_rows_is_left_out(tmp_path):
    corpus = Corpus(tmp_path)
    before = corpus.model()
    fitted = open_fitted(corpus.results, corpus.version.id, corpus.matrix)
    leaves = fitted.leaves.read(0, 3000)
    delete(corpus.place, np.flatnonzero(leaves == 2))
    model = corpus.update()
    assert model.tree_.n_leaves == before.tree_.n_leaves - 1
    assert_follows_rows(corpus, model)
    np.testing.assert_array_equal(np.asarray(model.labels_), model.predict(corpus.matrix))


# ---- rows that do not fit ------------------------------------------------------------------------


def test_update__a_new_cluster_is_found_and_the_rest_stays(tmp_path):
    corpus = Corpus(tmp_path)
    before = corpus.model()
    old = np.asarray(before.labels_)
    append(corpus.place, separated(150, 5))
    append(corpus.place, separated(120, 6, range(20, 21)))
    model = corpus.update(DriftRules(share=0.6))
    report = corpus.version.metrics["update"]
    labels = np.asarray(model.labels_)
    assert 0 < report["n_reopened"] < before.tree_.n_leaves
    n_new = np.bincount(labels[-120:], minlength=model.n_clusters_)
    is_theirs = n_new > 0.95 * np.bincount(labels)
    assert n_new[is_theirs].sum() > 0.85 * 120  # in clusters of their own, one a reopened node
    assert n_new.max() > 0.6 * 120
    assert before.n_clusters_ < model.n_clusters_ <= before.n_clusters_ + report["n_reopened"]
    paths = [node["path"] for node in report["nodes"] if node["is_reopened"]]
    reopened = [before._leaf_of_end[before._router.paths.index(path)] for path in paths]
    is_other = ~np.isin(old, before._label_of_leaf[reopened])
    assert is_other.any()
    np.testing.assert_array_equal(labels[:3000][is_other], old[is_other])
    assert_follows_rows(corpus, model)
    np.testing.assert_array_equal(labels, model.predict(corpus.matrix))


@pytest.mark.parametrize("night", ["one row is deleted", "ordinary rows come"])
def test_update__a_drift_that_was_answered_is_no_reason_to_fit_the_next_night(tmp_path, night):
    corpus = Corpus(tmp_path)
    append(corpus.place, separated(30, 50))
    append(corpus.place, separated(60, 60, range(20, 21)))  # some of them in leaves that stay
    corpus.update()
    assert corpus.version.metrics["update"]["n_reopened"] == 1
    if night == "one row is deleted":
        delete(corpus.place, [2999])
    else:
        append(corpus.place, separated(30, 70))
    model = corpus.update()
    assert corpus.version.metrics["update"]["n_reopened"] == 0
    assert_follows_rows(corpus, model)


def test_update__drift_of_many_rows_asks_for_a_fit(corpus):
    append(corpus.place, separated(3000, 6, range(20, 26)))
    with pytest.raises(RefitNeeded, match=r"fit worse than old ones in .* nodes? with \d+%"):
        corpus.update()


def test_update__a_compacted_store_asks_for_a_fit(tmp_path):
    corpus = Corpus(tmp_path)
    delete(corpus.place, [1, 2])
    distclust.open_store(corpus.place).compact()
    with pytest.raises(RefitNeeded, match="compacted"):
        corpus.update()


def test_update__a_fit_without_leaves_asks_for_a_fit(tmp_path):
    place = tmp_path / "X.zarr"
    distclust.ingest(iter([separated(500, 0)]), place)
    model = MAKERS["rbhc"]().fit(place, results=tmp_path / "results")
    with pytest.raises(RefitNeeded, match="single rows"):
        open_fitted(ResultsStore(tmp_path / "results"), model.version_, rows_of(place))


# ---- the same everywhere -------------------------------------------------------------------------


def state_of(corpus: Corpus) -> list[bytes]:
    """All that an update published, to the last bit."""
    model = corpus.model()
    fitted = open_fitted(corpus.results, corpus.version.id, corpus.matrix)
    arrays = [
        model.tree_.statistics,
        model.tree_.log_odds,
        model.tree_.structure.child_list,
        np.asarray(model.labels_),
        fitted.leaves.read(0, corpus.matrix.shape[0]),
        *fitted.baseline.to_arrays().values(),
    ]
    return [array.tobytes() for array in arrays] + ["|".join(model._router.paths).encode()]


def drifting(root: Path) -> Corpus:
    corpus = Corpus(root)
    append(corpus.place, separated(100, 5))
    append(corpus.place, separated(100, 6, range(20, 21)))
    delete(corpus.place, range(200, 230))
    return corpus


@pytest.mark.cluster
def test_update__on_workers_equals_in_process(tmp_path):
    here, there = drifting(tmp_path / "a"), drifting(tmp_path / "b")
    here.update(DriftRules(share=0.6))
    with engine.connect("local", workers=2, threads=1) as session:
        session.client.register_plugin(SmallBlocks())
        there.update(DriftRules(share=0.6))
    assert here.version.metrics["update"]["n_reopened"] > 0
    assert state_of(here) == state_of(there)


def test_update__killed_anywhere_ends_as_if_it_had_not_been(tmp_path):
    whole = drifting(tmp_path / "whole")
    start = whole.version, whole.matrix
    whole.update(DriftRules(share=0.6))
    wanted = state_of(whole)

    def attempt(root: str) -> Corpus:
        corpus = object.__new__(Corpus)
        corpus.place, corpus.results = whole.place, ResultsStore(Path(root) / "results")
        corpus.version, corpus.matrix = start
        corpus.update(DriftRules(share=0.6))
        return corpus

    def prepare(root: str) -> None:
        import shutil

        shutil.copytree(tmp_path / "whole" / "results", Path(root) / "results")
        results = ResultsStore(Path(root) / "results")
        results.rollback(start[0].id)
        shutil.rmtree(Path(root) / "results" / "versions" / whole.version.id)

    def check(root: str, is_done: bool) -> None:
        results = ResultsStore(Path(root) / "results")
        current = results.current()
        assert current is not None
        if is_done:
            corpus = object.__new__(Corpus)
            corpus.place, corpus.results = whole.place, results
            corpus.version, corpus.matrix = current, whole.matrix
            assert state_of(corpus) == wanted
        elif current.id == start[0].id:
            read_model(results, start[0].id)

    n_faults = every_fault(
        tmp_path / "tries", prepare=prepare, action=attempt, check=check, stride=23
    )
    assert n_faults > 50


@pytest.mark.parametrize("kind", MAKERS)
def test_fit__a_pass_that_was_cut_off_is_not_begun_again(kind, tmp_path, monkeypatch):
    """Every run is interrupted at its eighth block; no block that was done is read again."""
    distclust.ingest(iter([separated(1500, 0)]), tmp_path / "X.zarr")
    matrix = rows_of(tmp_path / "X.zarr")
    whole, broken = (ResultsStore(tmp_path / name) for name in "ab")

    def fit(store: ResultsStore) -> Version:
        return fit_updatable(MAKERS[kind](), matrix, store, "fit")

    wanted, n_whole, _ = read_in_parts(lambda: fit(whole), 10**6)
    found, n_read, n_cuts = read_in_parts(lambda: fit(broken), 7)
    assert n_cuts > 2 * matrix.n_blocks // 7  # in several passes
    assert n_read == n_whole
    assert found.metrics == wanted.metrics
    labels = [StoredLabels(store.objects, version.id).read(0, 1500)
              for store, version in ((whole, wanted), (broken, found))]  # fmt: skip
    np.testing.assert_array_equal(*labels)


# ---- rows that came and went ---------------------------------------------------------------------


def test_changes__rows_before_are_those_of_the_same_ids(tmp_path):
    place = tmp_path / "X.zarr"
    distclust.ingest(iter([separated(500, 0)]), place)
    delete(place, [3, 499])
    before = rows_of(place)
    append(place, separated(40, 1))
    delete(place, [0, 64, 65, 66, 498, 510])
    after = rows_of(place)
    changes = changes_between(before, after)
    assert changes is not None
    assert (changes.n_kept, changes.n_added, len(changes.deleted)) == (493, 39, 5)
    rows = changes.rows_before(0, after.shape[0])
    np.testing.assert_array_equal(before.row_ids[rows], after.row_ids[: changes.n_kept])
    np.testing.assert_array_equal(before.row_ids[changes.deleted], [0, 64, 65, 66, 498])
    np.testing.assert_array_equal(changes.rows_before(60, 70), rows[60:70])
    assert changes_between(after, before) is None
