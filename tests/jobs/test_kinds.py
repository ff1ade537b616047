"""Kinds of models: what they refuse, and what they do with rows that came or went."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import distclust
from distclust.errors import InputError
from distclust.jobs.kinds import KINDS, Asked, Before, DriftRules, Made, Request
from distclust.jobs.kinds.base import Kind
from distclust.projections import persistence as projections
from distclust.projections.krylov import Krylov
from distclust.store import row_labels
from distclust.store.checkpoints import CHECKPOINTS
from distclust.store.drafts import held_back
from distclust.store.results import ResultsStore
from distclust.store.row_labels import StoredLabels
from distclust.store.stored_matrix import StoredMatrix
from distclust.trees.persistence import read_model
from tests.interrupts import read_in_parts
from tests.small_blocks import BLOCK_ROWS, shrink

N_FEATURES = 48


@pytest.fixture(scope="module", autouse=True)
def small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        yield


def separated(n_rows: int, seed: int, clusters: range = range(8)) -> np.ndarray:
    """Binary rows of clusters that are far apart; cluster k of any seed is the same."""
    profiles = np.random.default_rng(7).random((40, N_FEATURES)) < 0.5
    rng = np.random.default_rng(seed)
    ones = np.where(profiles[rng.choice(np.array(clusters), size=n_rows)], 0.93, 0.07)
    return (rng.random((n_rows, N_FEATURES)) < ones).astype(np.uint8)


class Nights:
    """A job's part for one model: rows come, and what is made is published."""

    def __init__(self, root: Path, kind: str, rows: np.ndarray, **parameters: Any) -> None:
        self.rows, self.kind = root / "rows.zarr", KINDS[kind]
        distclust.ingest(iter([rows]), self.rows)
        self.request = Request(
            "model", kind, parameters, 3, str(root / "models/model"), self.matrix()
        )

    def matrix(self) -> StoredMatrix:
        matrix = distclust.open_store(self.rows).matrix()
        assert isinstance(matrix, StoredMatrix)
        return matrix

    def append(self, rows: np.ndarray) -> None:
        distclust.ingest(iter([rows]), self.rows, how="append")

    def delete(self, ids: Any) -> None:
        distclust.open_store(self.rows).delete(ids)

    def night(self, **changes: Any) -> Made:
        """Make the model as a job does: held back, and shown when it is complete."""
        request = replace(self.request, matrix=self.matrix(), **changes)
        with held_back():
            made = self.kind.make(request)
            assert self.kind.make(request) == made  # asked again: nothing is redone
        self.release(made)
        before = Before(made.version, made.labels_version, request.matrix, made.refit_at)
        self.request = replace(request, before=before, refit_reason=None)
        return made

    def release(self, made: Made) -> None:
        """Show what was made, and see that nothing else is left."""
        self.store.release(made.version)
        labels = ResultsStore(f"{self.request.place}.labels")
        if made.labels_version is not None:
            labels.release(made.labels_version)
        assert self.store.objects.list(CHECKPOINTS) + labels.objects.list(CHECKPOINTS) == []

    @property
    def store(self) -> ResultsStore:
        return ResultsStore(self.request.place)


# ---- what is refused -----------------------------------------------------------------------------

REFUSED = [
    ("rbhc", {"sample_sise": 10}, "sample_size.*got 'sample_sise'"),
    ("rbhc", {"sample_size": "many"}, r"\[models.a\]: sample_size: expected 'auto' or a whole"),
    ("rbhc", {"resolve": 3}, r"\[models.a\]: resolve"),
    ("rbhc", {"family": "bernouli"}, r"\[models.a\]: family"),
    ("rbhc", {"random_state": 3}, "random_state"),
    ("embhc", {"n_sweeps": -1}, r"\[models.a\]: n_sweeps"),
    ("embhc", {"concentration": 0}, "concentration"),
    ("sets", {"kappa": -1}, r"\[models.a\]: kappa"),
    ("sets", {"family": "poisson"}, "bernoulli"),
    ("sets", {"shards": 2}, "family, kappa, smoothing"),
    ("bhc", {"cut": "none"}, r"\[models.a\]: cut"),
    ("bhc", {"optimize": 1}, r"\[models.a\]: optimize"),
    ("rose", {"variant": "brt-x"}, r"\[models.a\]: variant"),
    ("dpmixture", {"n_chains": 0}, r"\[models.a\]: n_chains"),
    ("dpmixture", {"concentration_prior": 3}, r"\[models.a\]"),
    ("ensemble", {"method": "bce"}, r"\[models.a\]: n_clusters"),
    ("ensemble", {"bases": ["kmeens"]}, r"\[models.a\]"),
    ("kpca", {"kernel": "rbff"}, r"\[models.a\]: kernel"),
    ("kpca", {"n_components": 2.5}, r"\[models.a\]: n_components"),
    ("ppca", {"tolerance": "tight"}, r"\[models.a\]: tolerance"),
]


@pytest.mark.parametrize(("kind", "parameters", "told"), REFUSED)
def test_check__refuses(kind, parameters, told):
    with pytest.raises(InputError, match=told) as refused:
        KINDS[kind].check(parameters, "[models.a]")
    assert str(refused.value).startswith("[models.a]")


@pytest.mark.parametrize("kind", KINDS)
def test_check__takes_defaults(kind):
    needed = {"ensemble": {"n_clusters": 3}}
    KINDS[kind].check(needed.get(kind, {}), "[models.a]")
    assert KINDS[kind].name == kind


# ---- what is planned -----------------------------------------------------------------------------

PLANNED = {
    "rbhc": "update: Rows go down the tree; nodes where new rows fit worse than old ones by more "
    "than 5 standard errors are divided again, or the whole tree is fitted if they hold more "
    "than 10% of the rows.",
    "dpmixture": "label: New rows get labels; the model is fitted in full if they fit worse than "
    "old ones by more than 5 standard errors.",
    "kpca": "update: New rows join; if rows changed or went, the components are fitted anew.",
    "ppca": "fit: The rows changed, and a fit costs no more than an update would.",
    "sets": "update: Shards whose rows changed are made again, the others are taken over.",
}
PLANNED |= dict.fromkeys(("bhc", "rose", "ensemble"), PLANNED["dpmixture"])
PLANNED["embhc"] = PLANNED["rbhc"]


@pytest.mark.parametrize("kind", KINDS)
def test_plan__says_in_each_kind_s_words_what_new_rows_bring(kind):
    asked = Asked({}, is_first=False, drift=DriftRules(5, 0.1))
    assert KINDS[kind].plan(asked, has_news=True) == PLANNED[kind]
    assert KINDS[kind].plan(asked, has_news=False) == "keep: The rows are the same."
    first = replace(asked, is_first=True)
    assert KINDS[kind].plan(first, has_news=True) == "fit: It is fitted for the first time."


@pytest.mark.parametrize("kind", KINDS)
def test_plan__a_reason_to_fit_is_one_for_all_but_an_index(kind):
    asked = Asked({}, is_first=False, refit_reason="It was asked for.")
    expected = "keep: The rows are the same." if kind == "sets" else "fit: It was asked for."
    assert KINDS[kind].plan(asked, has_news=False) == expected


def test_plan__a_tree_of_single_rows_is_fitted():
    asked = Asked({"resolve": "rows"}, is_first=False)
    assert KINDS["rbhc"].plan(asked, has_news=True).startswith("fit: The leaves of the tree are")


# ---- trees ---------------------------------------------------------------------------------------


def tree_nights(root: Path, kind: str) -> Nights:
    parameters = {
        "rbhc": {"sample_size": 200, "check_size": 64},
        "embhc": {"sample_size": 40, "n_sweeps": 3},
    }
    return Nights(root, kind, separated(2500, 0), **parameters[kind])


@pytest.mark.parametrize("kind", ["rbhc", "embhc"])
def test_tree__is_fitted_kept_updated_and_fitted_again(kind, tmp_path):
    nights = tree_nights(tmp_path, kind)
    first = nights.night()
    assert (first.action, first.drift) == ("fitted", None)
    assert nights.store.current().id == first.version
    same = nights.night()
    assert (same.action, same.version, same.metrics) == ("kept", first.version, first.metrics)

    nights.delete([5])
    assert nights.night().reason == "1 row taken out."

    nights.append(separated(50, 1))
    nights.delete([6])
    updated = nights.night()
    assert updated.action == "updated"
    assert updated.refit_at == first.refit_at
    assert updated.drift is not None
    assert updated.drift["n_reopened"] == 0
    assert updated.metrics["n_rows"] == 2548
    assert updated.metrics["n_clusters"] == first.metrics["n_clusters"]
    model = read_model(nights.store, updated.version)
    assert len(model.labels_) == 2548

    nights.append(separated(40, 2))
    asked = nights.night(refit_reason="The parameters changed.")
    assert (asked.action, asked.reason) == ("fitted", "The parameters changed.")

    nights.append(separated(2500, 3, range(20, 24)))
    drifted = nights.night()
    assert drifted.action == "fitted"
    assert "fit worse than old ones" in drifted.reason
    assert drifted.drift is not None
    assert drifted.drift["share_reopened"] > 0.25
    assert list(nights.store.unfinished()) == []


def test_tree__refits_below(tmp_path):
    nights = tree_nights(tmp_path, "rbhc")
    nights.night()
    nights.append(separated(100, 6, range(20, 21)))
    made = nights.night(drift=replace(nights.request.drift, share=0.9))
    assert made.action == "refit below"
    assert "divided again" in made.reason


@pytest.mark.parametrize(
    ("kind", "parameters"),
    [("embhc", {"sample_size": 256}), ("rbhc", {"sample_size": 256, "resolve": "rows"})],
)
def test_tree__of_single_rows_is_fitted_anew(kind, parameters, tmp_path):
    nights = Nights(tmp_path, kind, separated(150, 0), **parameters)
    nights.night()
    nights.append(separated(20, 1))
    made = nights.night()
    assert (made.action, made.metrics["n_rows"]) == ("fitted", 170)
    assert made.reason == "The leaves of the tree are single rows, which no other can join."
    assert len(read_model(nights.store, made.version).labels_) == 170
    if kind == "embhc":  # more rows than seeds: from now on it is brought up to date
        nights.append(separated(150, 2))
        assert nights.night().action == "fitted"
        nights.append(separated(20, 3))
        assert nights.night().action == "updated"


def test_tree__does_not_follow_the_pointer_of_its_store(tmp_path):
    nights = tree_nights(tmp_path, "rbhc")
    nights.night()
    before = nights.request
    nights.append(separated(50, 1))
    wanted = nights.night().metrics
    nights.request = before  # a later version is current, and not what the job published
    assert nights.night().metrics == wanted


# ---- the index of sets ---------------------------------------------------------------------------


def test_sets__updated_index_is_what_a_new_one_would_be(tmp_path):
    nights = Nights(tmp_path, "sets", separated(900, 0), kappa=3.0)
    first = nights.night()
    assert first.action == "fitted"
    assert nights.night().action == "kept"
    nights.append(separated(80, 1))
    nights.delete(range(100, 130))
    made = nights.night()
    assert made.action == "updated"
    new = Nights(tmp_path / "new", "sets", np.zeros((1, 2), np.uint8))
    new.rows = nights.rows
    fresh = new.night()
    files, wanted = (
        {k: v.checksum for k, v in store.get(version).files.items()}
        for store, version in ((nights.store, made.version), (new.store, fresh.version))
    )
    assert files == wanted
    assert made.metrics["n_ones"] == fresh.metrics["n_ones"]


def test_sets__refuses_counts(tmp_path):
    nights = Nights(tmp_path, "sets", separated(100, 0))
    nights.night()
    nights.append(np.full((1, N_FEATURES), 2, np.uint8))
    with pytest.raises(InputError, match=r"\[models.model\]"):
        nights.night()


# ---- models that are only labelled ---------------------------------------------------------------

FEW = {"n_chains": 2, "max_sweeps": 20, "stop": "none"}
LABELLED: dict[str, dict[str, Any]] = {
    "bhc": {},
    "rose": {"variant": "brt-dp"},
    "dpmixture": FEW,
    "ensemble": {"method": "mm", "n_clusters": 8, "n_bases": 3, "n_init": 2},
}


def predicted(kind: str, nights: Nights, version: str) -> np.ndarray:
    readers = {
        "bhc": "distclust.trees.persistence",
        "rose": "distclust.trees.persistence",
        "dpmixture": "distclust.mixtures.persistence",
        "ensemble": "distclust.ensembles.persistence",
    }
    module = importlib.import_module(readers[kind])
    return np.asarray(module.read_model(nights.store, version).predict(nights.matrix()))


def labels_of(nights: Nights, made: Made) -> np.ndarray:
    assert made.labels_version is not None
    return StoredLabels(f"{nights.request.place}.labels", made.labels_version).read(
        0, nights.matrix().shape[0]
    )


@pytest.mark.filterwarnings("ignore::distclust.errors.ConvergenceWarning")
@pytest.mark.parametrize("kind", LABELLED)
def test_labelled__new_rows_are_placed_and_a_drift_is_fitted(kind, tmp_path):
    nights = Nights(tmp_path, kind, separated(300, 0), **LABELLED[kind])
    first = nights.night()
    assert first.action == "fitted"
    np.testing.assert_array_equal(labels_of(nights, first), predicted(kind, nights, first.version))
    assert nights.night().action == "kept"

    nights.delete([3])
    assert nights.night().reason == "1 row went, none came."
    nights.append(separated(40, 1))
    nights.delete([70])
    updated = nights.night()
    assert (updated.action, updated.version) == ("updated", first.version)
    assert updated.labels_version != first.labels_version
    assert updated.metrics["n_rows"] == 338
    assert "log_evidence" not in updated.metrics
    np.testing.assert_array_equal(
        labels_of(nights, updated), predicted(kind, nights, first.version)
    )

    nights.append(separated(80, 3, range(20, 22)))
    drifted = nights.night()
    assert drifted.action == "fitted"
    assert "fit worse than old ones" in drifted.reason
    assert drifted.metrics["n_rows"] == 418
    assert drifted.drift is not None

    nights.append(separated(5, 4))
    asked = nights.night(refit_reason="It is a month old.")
    assert (asked.action, asked.reason) == ("fitted", "It is a month old.")


@pytest.mark.filterwarnings("ignore::distclust.errors.ConvergenceWarning")
def test_labelled__only_new_rows_are_read(tmp_path, monkeypatch):
    nights = Nights(tmp_path, "dpmixture", separated(300, 0), **FEW)
    nights.night()
    nights.append(separated(30, 1))
    request = replace(nights.request, matrix=nights.matrix())
    read: set[int] = set()
    block = StoredMatrix.block

    def watched(self: StoredMatrix, index: int) -> Any:
        read.add(index)
        return block(self, index)

    monkeypatch.setattr(StoredMatrix, "block", watched)
    assert nights.kind.make(request).action == "updated"
    assert read == {4, 5}


def make_in_parts(kind: Kind, request: Request, at_once: int) -> tuple[Made, int, int]:
    """Make a model, interrupted whenever so many blocks were read; also count reads and cuts."""
    with pytest.MonkeyPatch.context() as patch, held_back():
        patch.setattr(row_labels, "LABEL_CHUNK", BLOCK_ROWS)
        return read_in_parts(lambda: kind.make(request), at_once)


@pytest.mark.filterwarnings("ignore::distclust.errors.ConvergenceWarning")
@pytest.mark.parametrize("kind", ["dpmixture", "ensemble"])
def test_labelled__passes_that_were_cut_off_are_not_begun_again(kind, tmp_path, monkeypatch):
    """The fit itself reads all rows into memory, whatever was made of them before."""
    found = []
    for at_once in (10**6, 3):
        nights = Nights(tmp_path / str(at_once), kind, separated(600, 0), **LABELLED[kind])
        monkeypatch.undo()
        with held_back():
            version = nights.kind.fit(nights.request, nights.store)  # type: ignore[attr-defined]
        monkeypatch.setattr(type(nights.kind), "fit", lambda *_, version=version: version)
        made, n_read, n_cuts = make_in_parts(nights.kind, nights.request, at_once)
        before = Before(made.version, made.labels_version, nights.request.matrix, made.refit_at)
        nights.release(made)
        nights.append(separated(300, 1))
        later = replace(nights.request, matrix=nights.matrix(), before=before)
        made, n_read_later, n_cuts_later = make_in_parts(nights.kind, later, at_once)
        assert made.action == "updated"
        found.append((n_read, n_read_later, labels_of(nights, made).tolist()))
    assert min(n_cuts, n_cuts_later) >= 2
    assert found[0] == found[1]


# ---- projections ---------------------------------------------------------------------------------


def test_kernel_pca__rows_join(tmp_path):
    rows = np.random.default_rng(0).normal(size=(400, 5))
    nights = Nights(tmp_path, "kpca", rows[:300], n_components=2, gamma=0.2)
    first = nights.night()
    assert first.action == "fitted"
    assert nights.night().action == "kept"
    nights.append(rows[300:380])
    made = nights.night()
    assert (made.action, made.refit_at) == ("updated", first.refit_at)
    assert made.metrics["n_rows"] == 380
    wanted = distclust.KernelPCA(n_components=2, gamma=0.2, random_state=3).fit(rows[:380])
    model = projections.read_model(nights.store, made.version)
    np.testing.assert_allclose(model.eigenvalues_, wanted.eigenvalues_, rtol=1e-5)
    np.testing.assert_allclose(np.abs(model.components_), np.abs(wanted.components_), atol=1e-3)


def test_kernel_pca__is_fitted_again_when_rows_went(tmp_path):
    rows = np.random.default_rng(0).normal(size=(200, 5))
    nights = Nights(tmp_path, "kpca", rows, n_components=2)
    nights.night()
    nights.delete([5])
    made = nights.night()
    assert made.action == "fitted"
    assert "1 row changed or went" in made.reason
    model = projections.read_model(nights.store, made.version)
    assert model.components_.shape == (2, 199)


def test_ppca__is_fitted_anew(tmp_path):
    rows = np.random.default_rng(0).normal(size=(200, 5)) * [3, 2, 1, 1, 1]
    nights = Nights(tmp_path, "ppca", rows[:150], n_components=2)
    assert nights.night().action == "fitted"
    assert nights.night().action == "kept"
    nights.append(rows[150:])
    made = nights.night()
    assert made.action == "fitted"
    wanted = distclust.PPCA(n_components=2, random_state=3).fit(distclust.open_store(nights.rows))
    model = projections.read_model(nights.store, made.version)
    np.testing.assert_array_equal(model.components_, wanted.components_)


@pytest.mark.parametrize("has_missing", [False, True])
def test_ppca__passes_that_were_cut_off_are_not_begun_again(has_missing, tmp_path):
    rows = np.random.default_rng(0).normal(size=(500, 5)) * [3, 2, 1, 1, 1]
    if has_missing:  # then every iteration is a pass
        rows[::7, 2] = np.nan
    parameters = {"n_components": 2, "tolerance": 1e-3}
    found = []
    for at_once in (10**6, 5):
        nights = Nights(tmp_path / str(at_once), "ppca", rows, **parameters)
        made, n_read, n_cuts = make_in_parts(nights.kind, nights.request, at_once)
        model = projections.read_model(nights.store, made.version)
        found.append((n_read, model.loadings_.tobytes(), model.log_likelihood_path_.tolist()))
    assert n_cuts > (5 if has_missing else 0)
    assert found[0] == found[1]


def test_kernel_pca__rows_that_were_interrupted_join_from_there(tmp_path):
    rows = np.random.default_rng(0).normal(size=(400, 5))
    found = []
    for stop_at in (-1, 1):
        rounds: list[int] = []
        nights = Nights(tmp_path / str(stop_at), "kpca", rows[:300], n_components=2, gamma=0.2)
        nights.night()
        nights.append(rows[300:] * 2.0)
        with pytest.MonkeyPatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
            watch_rounds(patch, rounds, stop_at)
            nights.night()
        with pytest.MonkeyPatch.context() as patch:
            watch_rounds(patch, rounds, -1)
            version = nights.night().version if stop_at >= 0 else nights.request.before.version
        model = projections.read_model(nights.store, version)
        found.append((rounds, model.components_.tobytes()))
    (whole, wanted), (broken, components) = found
    assert broken == [0, 1, *whole[1:]]  # taken up again, and no more than that
    assert components == wanted


def watch_rounds(patch: pytest.MonkeyPatch, rounds: list[int], stop_at: int) -> None:
    """Write down the rounds of kernel PCA, and interrupt one of them."""
    plain = Krylov.absorb

    def absorb(self: Any, state: Any, reports: Any) -> Any:
        rounds.append(state.n_products)
        if rounds.count(stop_at) == 1 and rounds[-1] == stop_at:
            raise KeyboardInterrupt
        return plain(self, state, reports)

    patch.setattr(Krylov, "absorb", absorb)
