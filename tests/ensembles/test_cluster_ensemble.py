"""ClusterEnsemble: the consensus, what is said of rows to come, files, stores, workers."""

from __future__ import annotations

import functools
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.metrics import adjusted_rand_score
from sklearn.utils.estimator_checks import parametrize_with_checks

import distclust
from distclust.engine import Crew
from distclust.ensembles import BaseRecipe, ClusterEnsemble, cluster_ensemble
from distclust.ensembles import bases as bases_module
from distclust.errors import (
    CapacityError,
    ConvergenceWarning,
    InputError,
    ModelFormatError,
    OtherRowsError,
)
from distclust.mixtures import chain_estimator, chains
from distclust.store.archive import read_archive, write_archive

METHODS: dict[str, dict[str, Any]] = {
    "mm": {"method": "mm", "n_clusters": 2, "n_init": 3},
    "bce": {"method": "bce", "n_clusters": 2, "n_init": 3},
    "dpce": {"method": "dpce", "n_chains": 2, "max_sweeps": 60, "stop": None},
    "collapsed": {"n_chains": 2, "max_sweeps": 60, "stop": None, "collapse": True},
}
QUICK = METHODS["dpce"]


def make(kind: str, **more: Any) -> ClusterEnsemble:
    return ClusterEnsemble(**{"random_state": 0, **METHODS[kind], **more})


def make_labels(n: int = 120, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Bases that cut two groups into pieces, independently of each other."""
    rng = np.random.default_rng(seed)
    truth = np.repeat([0, 1], n // 2)
    pieces = (2, 4, 8, 8)
    return np.column_stack([truth * j + rng.integers(0, j, n) for j in pieces]), truth


def make_rows(n: int = 200, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 2, n)
    return np.array([[0.0, 0, 0], [6.0, 6, 6]])[truth] + rng.normal(size=(n, 3)), truth


def not_for_clusterers(estimator: ClusterEnsemble) -> dict[str, str]:
    reason = "asks for tags of classifiers where there is predict_proba"
    return {"check_estimator_sparse_array": reason, "check_estimator_sparse_matrix": reason}


@parametrize_with_checks(
    [
        ClusterEnsemble("mm", n_clusters=2, n_bases=3, n_init=2),
        ClusterEnsemble("bce", n_clusters=2, n_bases=3, n_init=2),
        ClusterEnsemble(n_bases=3, base_clusters=3, n_chains=1, max_sweeps=10, stop=None),
    ],
    expected_failed_checks=not_for_clusterers,
)
def test_scikit_learn_contract(estimator, check):
    check(estimator)


def test_sparse_rows():
    rows, truth = make_rows()
    rows = np.where(rows > 2, rows, 0.0)
    model = make("mm", n_bases=3).fit(sp.csr_array(rows))
    assert adjusted_rand_score(truth, model.labels_) > 0.8
    np.testing.assert_array_equal(model.predict(sp.csr_matrix(rows)), model.labels_)


# ---- the consensus -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", METHODS)
def test_groups_that_bases_have_cut_are_found(kind):
    labels, truth = make_labels()
    model = make(kind).fit_labels(labels)
    np.testing.assert_array_equal(model.labels_, truth)  # numbered by first appearance
    assert model.n_clusters_ == 2
    assert model.labels_.dtype == np.int64
    assert (model.confidence_ > 0.5).all()
    assert (model.confidence_ <= 1.0).all()
    np.testing.assert_array_equal(model.predict_labels(labels), truth)
    proba = model.predict_labels_proba(labels)
    assert proba.shape == (len(truth), 2)
    np.testing.assert_allclose(proba.sum(axis=1), 1.0)
    assert model.bases_ == ()


@pytest.mark.parametrize("kind", METHODS)
def test_bases_of_its_own(kind):
    rows, truth = make_rows()
    model = make(kind, n_bases=4, base_clusters=[2, 3], beta=20.0).fit(rows)
    assert adjusted_rand_score(truth, model.labels_) > 0.8
    assert [record.n_labels for record in model.bases_] == [2, 3, 2, 3]
    assert model.base_labels_.shape == (200, 4)
    new, new_truth = make_rows(80, seed=7)
    assert adjusted_rand_score(new_truth, model.predict(new)) > 0.8
    proba = model.predict_proba(new)
    assert proba.shape == (80, model.n_clusters_)
    np.testing.assert_array_equal(proba.argmax(axis=1), model.predict(new))


@pytest.mark.parametrize("kind", ["mm", "bce"])
def test_equal_rows_are_one_item__exactly(kind):
    """Copies of rows change nothing but the weights: twice all rows is twice the figure."""
    labels, _ = make_labels(40)
    once = make(kind, n_init=1).fit_labels(labels)
    twice = make(kind, n_init=1).fit_labels(np.repeat(labels, 2, axis=0))
    name = "log_likelihood_" if kind == "mm" else "log_bound_"
    assert getattr(twice, name) == pytest.approx(2 * getattr(once, name), rel=1e-4)
    np.testing.assert_array_equal(twice.labels_[::2], twice.labels_[1::2])


def mixture_log_likelihood(labels: np.ndarray, model: ClusterEnsemble) -> float:
    """Row by row, as the formula reads."""
    shares, theta = model._model.weights, model._model.theta
    starts = np.concatenate([[0], np.cumsum(model._labels.n_labels)])
    total = 0.0
    for row in labels:
        chances = shares.copy()
        for m, label in enumerate(row):
            chances = chances * theta[starts[m] + label]
        total += float(np.log(chances.sum()))
    return total


def test_log_likelihood_of_a_mixture():
    labels, _ = make_labels(40)
    model = make("mm").fit_labels(labels)
    codes = model.base_labels_
    assert model.log_likelihood_ == pytest.approx(mixture_log_likelihood(codes, model), rel=1e-9)


def variation(one: np.ndarray, other: np.ndarray) -> float:
    """Two joint entropies less the entropies of both, in bits."""

    def entropy(labels: np.ndarray) -> float:
        share = np.unique(labels, return_counts=True)[1] / len(labels)
        return float(-(share * np.log2(share)).sum())

    return 2 * entropy(one + 1000 * other.astype(int)) - entropy(one) - entropy(other)


def disagreement(one: np.ndarray, other: np.ndarray) -> float:
    same = [labels[:, None] == labels for labels in (one, other)]
    pairs = np.triu_indices(len(one), 1)
    return float((same[0] != same[1])[pairs].mean())


@pytest.fixture(scope="module")
def uncertain() -> np.ndarray:
    """Labels that leave room for several partitions, some of them missing."""
    rng = np.random.default_rng(3)
    truth = np.repeat([0, 1, 2], 12)
    labels = np.column_stack([np.where(rng.random(36) < 0.3, rng.integers(0, 3, 36), truth)] * 1)
    for _ in range(3):
        noisy = np.where(rng.random(36) < 0.3, rng.integers(0, 3, 36), truth)
        labels = np.column_stack([labels, noisy])
    labels[rng.random(labels.shape) < 0.1] = -1
    labels[labels.max(axis=1) < 0, 0] = 0
    return labels


@pytest.mark.parametrize(
    ("consensus", "loss"), [("vi", variation), ("binder", disagreement), ("best", variation)]
)
@pytest.mark.parametrize("collapse", [False, True])
def test_expected_loss_of_the_consensus(uncertain, consensus, loss, collapse):
    model = make("dpce", consensus=consensus, collapse=collapse).fit_labels(uncertain)
    draws = model.draws_.reshape(-1, model.draws_.shape[2])
    if collapse:
        draws = draws[:, model._items.item_of_row]
    losses = [loss(model.labels_, draw) for draw in draws]
    assert len(set(losses)) > 1  # draws differ, or this test would say nothing
    assert model.expected_loss_ == pytest.approx(np.mean(losses), abs=1e-9)
    if consensus != "best":
        least = min(
            np.mean([loss(one, draw) for draw in draws]) for one in np.unique(draws, axis=0)
        )
        assert model.expected_loss_ <= least + 1e-9


def test_best_sample_has_the_highest_log_joint(uncertain):
    model = make("dpce", consensus="best").fit_labels(uncertain)
    from distclust.ensembles.dirichlet_ensemble import DirichletEnsembleSampler

    sampler = DirichletEnsembleSampler.of(model.base_labels_, model._labels.n_labels)
    n_dropped = model.n_sweeps_ // 2  # every sweep is kept
    assert model.draws_.shape[1] == model.n_sweeps_ - n_dropped
    found = np.empty(model.draws_.shape[:2])
    for chain, sweep in np.ndindex(found.shape):
        concentration = model.traces_["concentration"][chain, n_dropped + sweep]
        draw = model.draws_[chain, sweep].astype(np.int32)
        found[chain, sweep] = sampler.log_joint(draw, concentration)
    np.testing.assert_allclose(found, model.traces_["log_joint"][:, n_dropped:], rtol=1e-9)
    best = model.draws_.reshape(-1, len(model.labels_))[found.argmax()]
    assert adjusted_rand_score(best, model.labels_) == 1.0


@pytest.mark.parametrize("kind", ["dpce", "collapsed"])
def test_confidence_of_rows(uncertain, kind):
    labels = np.concatenate([uncertain, uncertain[:9]])
    model = make(kind).fit_labels(labels)
    together = model.coassignment(np.arange(len(labels)))
    for i, label in enumerate(model.labels_):
        others = np.flatnonzero((model.labels_ == label) & (np.arange(len(labels)) != i))
        if len(others):
            assert model.confidence_[i] == pytest.approx(together[i, others].mean())


@pytest.mark.parametrize("kind", METHODS)
def test_rows_without_labels_are_left_out(kind):
    labels, truth = make_labels()
    given = labels.astype(float)
    given[[0, 50, 119]] = np.nan
    given[3, :2] = np.nan
    model = make(kind).fit_labels(given)
    kept = np.setdiff1d(np.arange(len(truth)), [0, 50, 119])
    np.testing.assert_array_equal(model.labels_[[0, 50, 119]], -1)
    np.testing.assert_array_equal(model.confidence_[[0, 50, 119]], 0.0)
    np.testing.assert_array_equal(model.labels_[kept], truth[kept])
    alone = make(kind).fit_labels(given[kept])
    np.testing.assert_array_equal(model.labels_[kept], alone.labels_)
    np.testing.assert_array_equal(model.confidence_[kept], alone.confidence_)
    np.testing.assert_array_equal(model.predict_labels(given), model.labels_)


def test_coassociation_and_neighbours():
    labels, _ = make_labels(30)
    labels[4, 1] = -1
    model = make("mm").fit_labels(labels)
    rows = np.array([4, 0, 17])
    found = model.coassociation(rows)
    for i, a in enumerate(rows):
        for j, b in enumerate(rows):
            both = (labels[a] >= 0) & (labels[b] >= 0)
            assert found[i, j] == pytest.approx((labels[a] == labels[b])[both].mean())
    graph = model.neighbour_graph(3)
    assert graph.shape == (30, 30)
    assert graph.nnz <= 90
    everything = model.coassociation()
    np.fill_diagonal(everything, -1)
    np.testing.assert_allclose(graph.max(axis=1).toarray().ravel(), everything.max(axis=1))


@pytest.mark.parametrize("kind", ["dpce", "collapsed"])
def test_large_matrices_and_rows_that_are_not_there_are_refused(kind):
    labels, _ = make_labels(30)
    model = make(kind).fit_labels(labels)
    for ask in (model.coassociation, model.coassignment):
        with pytest.raises(CapacityError, match="max_cells=None"):
            ask(None, max_cells=100)
        assert ask(None, max_cells=None).shape == (30, 30)
        for row in (-1, 30):
            with pytest.raises(InputError, match="numbers from 0 to 29"):
                ask([0, row])


def test_labels_from_many_kinds_of_input():
    labels, _ = make_labels()
    wanted = make("dpce").fit_labels(labels)
    texts = pd.DataFrame(labels).map(lambda label: f"c{label:03d}")
    for given in (texts, da.from_array(labels, chunks=(50, 2)), list(labels.T)):
        found = make("dpce").fit_labels(given)
        np.testing.assert_array_equal(found.labels_, wanted.labels_)
        assert found.traces_["log_joint"].tobytes() == wanted.traces_["log_joint"].tobytes()


# ---- the same everywhere -----------------------------------------------------------------------


def check_same(one: ClusterEnsemble, other: ClusterEnsemble) -> None:
    names = ["labels_", "confidence_", "base_labels_"]
    names += ["draws_"] if hasattr(one, "draws_") else []
    for name in names:
        a, b = np.asarray(getattr(one, name)), np.asarray(getattr(other, name))
        assert a.tobytes() == b.tobytes(), name
    for name, trace in one.traces_.items():
        assert trace.tobytes() == other.traces_[name].tobytes(), name
    assert one._model.theta.tobytes() == other._model.theta.tobytes()


@pytest.mark.parametrize("kind", METHODS)
def test_two_workers_give_the_same_bits(kind, local_client, monkeypatch):
    monkeypatch.setattr(bases_module, "_SAMPLE_ROWS", (64, 100))
    rows, _ = make_rows()
    settings = {"n_bases": 3, "n_chains": 3} if kind in ("dpce", "collapsed") else {"n_bases": 3}
    here = make(kind, **settings).fit(rows)
    with local_client.as_current():
        there = make(kind, **settings).fit(rows)
        chunked = make(kind, **settings).fit(da.from_array(rows, chunks=(60, 2)))
        assert there.predict(rows).tobytes() == here.predict(rows).tobytes()
    check_same(here, there)
    check_same(here, chunked)


def test_threads_make_no_difference(monkeypatch):
    rows, _ = make_rows()
    found = []
    for threads in ("1", "3"):
        monkeypatch.setenv("DISTCLUST_THREADS", threads)
        found.append(make("dpce", n_bases=3).fit(rows))
    check_same(*found)


# ---- files and stores --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", METHODS)
def test_saved_and_read_back(kind, tmp_path):
    rows, _ = make_rows()
    model = make(kind, n_bases=3, beta=[1.0, 2.0, 3.0], base_clusters=np.array([2, 3])).fit(rows)
    model.save(tmp_path / "model")
    loaded = distclust.load(tmp_path / "model")
    check_same(model, loaded)
    assert loaded.n_clusters_ == model.n_clusters_
    assert loaded.bases_ == model.bases_
    assert loaded.diagnostics_ == model.diagnostics_
    new, _ = make_rows(50, seed=3)
    assert loaded.predict_proba(new).tobytes() == model.predict_proba(new).tobytes()
    np.testing.assert_array_equal(loaded.coassociation([1, 2, 5]), model.coassociation([1, 2, 5]))
    if hasattr(model, "draws_"):
        rows_asked = [3, 1, 100]
        np.testing.assert_array_equal(
            loaded.coassignment(rows_asked), model.coassignment(rows_asked)
        )
        assert loaded.expected_loss_ == model.expected_loss_


def test_labels_in_the_users_words_are_kept(tmp_path):
    labels, _ = make_labels()
    frame = pd.DataFrame({"km": [f"c{label}" for label in labels[:, 2]], "own": labels[:, 1]})
    frame.index = [f"row {i}" for i in range(len(frame))]  # type: ignore[assignment]
    model = make("mm").fit_labels(frame)
    model.save(tmp_path / "model")
    loaded = distclust.load(tmp_path / "model")
    assert loaded._labels.explain(0) == {"km": frame["km"].iloc[0], "own": frame["own"].iloc[0]}
    assert loaded._labels.row_ids.tolist() == list(frame.index)
    np.testing.assert_array_equal(loaded.predict_labels(frame), model.labels_)
    assert not hasattr(loaded, "n_features_in_")
    with pytest.raises(InputError, match="predict_labels"):
        loaded.predict(np.zeros((3, 2)))


def test_recipes_are_kept(tmp_path):
    rows, _ = make_rows()
    bases = ["kmeans", BaseRecipe(n_clusters=3, row_share=0.5, column_share=0.7), "subspace"]
    model = make("mm", bases=bases).fit(rows)
    model.save(tmp_path / "model")
    assert distclust.load(tmp_path / "model").bases == bases


@pytest.mark.parametrize(
    "damage",
    [
        lambda arrays: arrays.pop("theta"),
        lambda arrays: arrays.update(codes=arrays["codes"] + 9),
        lambda arrays: arrays.update(item_labels=arrays["item_labels"] + 9),
        lambda arrays: arrays.update(item_of_row=arrays["item_of_row"] + 10**6),
    ],
)
def test_damaged_files_are_refused(damage, tmp_path):
    labels, _ = make_labels()
    make("mm").fit_labels(labels).save(tmp_path / "model")
    archive = read_archive(tmp_path / "model")
    arrays = dict(archive.arrays)
    damage(arrays)
    write_archive(tmp_path / "worse", archive.kind, archive.meta, arrays)
    with pytest.raises(ModelFormatError, match="a complete model"):
        distclust.load(tmp_path / "worse")


@pytest.mark.parametrize("kind", METHODS)
def test_published_is_what_was_fitted(kind, tmp_path):
    rows, _ = make_rows()
    model = make(kind, n_bases=3).fit(rows, results=tmp_path / "results")
    check_same(model, make(kind, n_bases=3).fit(rows))
    loaded = distclust.load(tmp_path / "results")
    check_same(model, loaded)
    assert (loaded.results_, loaded.version_) == (model.results_, model.version_)
    assert Path(model.results_) == tmp_path / "results"


def test_a_fit_that_was_broken_off_goes_on(tmp_path, monkeypatch):
    """Chains are taken up where they were; all bits are those of a fit without a break."""
    labels, _ = make_labels()
    settings = {"max_sweeps": 120, "n_chains": 2}
    unbroken = make("dpce", **settings).fit_labels(labels)
    monkeypatch.setattr(chains, "_A_ROUND", (10,))
    monkeypatch.setattr(chains, "Crew", functools.partial(Crew, every=1))
    plain, seen = Crew._do_round, []

    def breaking(crew: Crew, order: Any) -> None:
        seen.append(crew.position)
        if len(seen) == 6:
            raise RuntimeError("power cut")
        plain(crew, order)

    monkeypatch.setattr(Crew, "_do_round", breaking)
    with pytest.raises(RuntimeError, match="power cut"):
        make("dpce", **settings).fit_labels(labels, tmp_path / "results")
    with pytest.raises(OtherRowsError):
        make("dpce", **settings).fit_labels(labels[::-1], tmp_path / "results")
    resumed = make("dpce", **settings).fit_labels(labels, tmp_path / "results")
    assert seen[6] >= 4  # not from the beginning
    check_same(unbroken, resumed)
    check_same(unbroken, distclust.load(tmp_path / "results"))


# ---- refusals and warnings ---------------------------------------------------------------------


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "method": ({"method": "median"}, "'dpce', 'bce', 'mm'"),
    "no clusters": ({"method": "mm", "n_clusters": None}, "method='dpce', which finds it"),
    "zero clusters": ({"method": "bce", "n_clusters": 0}, "n_clusters: expected a whole number"),
    "consensus": ({"consensus": "mean"}, "'vi', 'binder', 'best'"),
    "collapse": ({"collapse": 1}, "True or False"),
    "chains": ({"n_chains": 0}, "n_chains"),
    "sweeps": ({"max_sweeps": 1}, "max_sweeps"),
    "starts": ({"n_init": 0}, "n_init"),
    "stop": ({"stop": "never"}, "stop"),
    "rhat": ({"rhat": 1.0}, "rhat"),
    "concentration": ({"concentration": -1.0}, "concentration"),
    "beta": ({"beta": 0.0}, "beta"),
    "beta by name": ({"beta": "many"}, "beta"),
    "n_bases": ({"n_bases": 0}, "n_bases"),
    "bases": ({"bases": "ward"}, "'kmeans', 'dp', 'subspace'"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_parameters_that_are_refused(case):
    settings, message = REFUSED[case]
    with pytest.raises(InputError, match=message):
        ClusterEnsemble(**settings).fit(make_rows(20)[0])


def test_bases_that_say_nothing_are_refused():
    with pytest.raises(InputError, match="one cluster in every base"):
        make("mm").fit(np.ones((30, 2)))


def test_betas_of_another_number_are_refused():
    with pytest.raises(InputError, match="beta"):
        make("dpce", beta=[1.0, 2.0]).fit_labels(make_labels()[0])


@pytest.mark.parametrize("collapse", [False, True])
def test_more_rows_than_fit_into_memory(collapse, monkeypatch):
    free = type("Memory", (), {"available": 1000})
    monkeypatch.setattr(chain_estimator.psutil, "virtual_memory", lambda: free)
    with pytest.raises(CapacityError, match=r"GB.*collapse=True"):
        make("dpce", collapse=collapse).fit_labels(make_labels()[0])
    make("mm").fit_labels(make_labels()[0])  # holds no draws


def test_rows_that_do_not_fit_are_refused_before_bases_are_made(monkeypatch):
    free = type("Memory", (), {"available": 1000})
    monkeypatch.setattr(chain_estimator.psutil, "virtual_memory", lambda: free)
    monkeypatch.setattr(cluster_ensemble, "make_bases", None)
    with pytest.raises(CapacityError, match=r"collapse=True"):
        make("dpce").fit(make_rows()[0])


@pytest.mark.parametrize("kind", ["mm", "bce", "collapsed"])
def test_memory_is_a_few_bytes_for_each_label(kind, tmp_path, monkeypatch):
    """Ten labels of a row in a store: read in blocks, never all of them as numbers of 8 bytes."""
    monkeypatch.setenv("DISTCLUST_THREADS", "1")  # a block is in flight for each
    n_rows, n_bases, rng = 400_000, 10, np.random.default_rng(0)
    truth = rng.integers(0, 5, n_rows)
    slips = rng.random((n_rows, n_bases)) < 0.05
    labels = ((truth[:, None] + slips) % 5).astype(np.int8)
    distclust.ingest(labels, tmp_path / "labels")
    distclust.ingest(labels[:500], tmp_path / "few")
    model = make(kind, max_sweeps=4, n_init=1, n_chains=1)
    model.fit_labels(tmp_path / "few")  # now all that is needed was imported and compiled
    tracemalloc.start()
    model.fit_labels(tmp_path / "labels")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 60 * n_rows
    assert len(model.labels_) == n_rows


def test_only_chains_have_draws():
    model = make("mm").fit_labels(make_labels()[0])
    for call in (model.to_arviz, lambda: model.coassignment([0, 1])):
        with pytest.raises(InputError, match="method='dpce'"):
            call()


def test_a_refit_by_another_method_forgets_the_first():
    labels, _ = make_labels()
    model = make("dpce").fit_labels(labels)
    model.set_params(method="mm", n_clusters=2).fit_labels(labels)
    assert not hasattr(model, "draws_")
    assert not hasattr(model, "log_joint_")
    assert not hasattr(model, "expected_loss_")


def test_chains_that_do_not_agree_are_told(uncertain):
    with pytest.warns(ConvergenceWarning, match="do not agree after 8 sweeps"):
        make("dpce", stop="rhat", max_sweeps=8).fit_labels(uncertain)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        make("dpce", stop=None, max_sweeps=8).fit_labels(uncertain)


def test_arviz(uncertain):
    pytest.importorskip("arviz_base")
    tree = make("dpce").fit_labels(uncertain).to_arviz()
    assert tree["posterior"]["log_joint"].shape == (2, 30)
