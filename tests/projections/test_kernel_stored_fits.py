"""Fits of kernel PCA beside a results store: published, taken up again, refused."""

from __future__ import annotations

import errno
import functools
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import distclust
from distclust import KernelPCA
from distclust.engine import Crew, fingerprint_of
from distclust.errors import (
    CheckpointWarning,
    ConflictError,
    InputError,
    OtherRowsError,
)
from distclust.projections import kernel_pca, stored_fits
from distclust.projections.em import EM
from distclust.projections.krylov import Krylov
from distclust.store.checkpoints import CHECKPOINTS, Checkpoints
from distclust.store.results import ResultsStore
from distclust.store.shelf import Shelf
from tests.faults import every_fault, fork
from tests.small_tiles import TILE, shrink

N, D = 6 * TILE + 5, 8
_EXIT = 70
ATTRIBUTES = (
    "components_",
    "eigenvalues_",
    "residuals_",
    "noise_variance_",
    "log_likelihood_",
    "n_iter_",
)
FITS: dict[str, dict[str, Any]] = {
    "krylov": {"n_components": 6, "gamma": 0.5},
    "em": {"n_components": 2, "gamma": 0.1, "solver": "em", "sigma2": 1e-3, "tolerance": 1e-3},
}
PLANS = {"krylov": Krylov, "em": EM}


@pytest.fixture(scope="module", autouse=True)
def small_tiles() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        shrink(patch)
        yield


@pytest.fixture
def every_round(monkeypatch) -> None:
    """Crews save after every round."""
    monkeypatch.setattr(kernel_pca, "Crew", functools.partial(Crew, every=1))


@pytest.fixture
def rounds(monkeypatch) -> list[int]:
    """Positions of the rounds that crews do."""
    seen: list[int] = []
    plain = Crew._do_round

    def spy(crew: Crew, order: Any) -> None:
        seen.append(crew.position)
        plain(crew, order)

    monkeypatch.setattr(Crew, "_do_round", spy)
    return seen


def make_rows(seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(N, D)) + 2.0 * rng.integers(0, 3, size=(N, 1))


def make(kind: str = "krylov", **more: Any) -> KernelPCA:
    return KernelPCA(**{"random_state": 0, **FITS[kind], **more})


@pytest.fixture(scope="module", params=FITS)
def kind(request) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def unbroken() -> dict[str, KernelPCA]:
    found = {kind: make(kind).fit(make_rows()) for kind in FITS}
    assert all(model.n_iter_ >= 5 for model in found.values())
    return found


def check_same(one: KernelPCA, other: KernelPCA) -> None:
    for name in ATTRIBUTES:
        a, b = np.asarray(getattr(one, name)), np.asarray(getattr(other, name))
        assert a.tobytes() == b.tobytes(), name


# ---- publishing --------------------------------------------------------------------------------


@pytest.mark.parametrize("put", [np.asarray, sp.csr_array])
def test_published__is_what_was_fitted(kind, put, tmp_path):
    model = make(kind).fit(put(make_rows()), results=tmp_path / "results")
    check_same(model, make(kind).fit(put(make_rows())))
    store = ResultsStore(tmp_path / "results")
    assert model.version_ == store.current().id
    assert Path(model.results_) == tmp_path / "results"
    loaded = distclust.load(tmp_path / "results")
    check_same(loaded, model)
    assert (loaded.results_, loaded.version_) == (model.results_, model.version_)
    np.testing.assert_array_equal(loaded.transform(make_rows(1)), model.transform(make_rows(1)))
    if kind == "em":
        np.testing.assert_array_equal(loaded.objective_path_, model.objective_path_)
    version = store.current()
    assert version.metrics["n_iter"] == model.n_iter_
    assert version.metrics["largest_eigenvalue"] == model.eigenvalues_[0]
    assert version.seed == 0
    assert store.verify() == []
    assert store.unfinished() == {}
    assert store.objects.list(CHECKPOINTS) == []


def test_published__again_is_another_version(tmp_path):
    first = make().fit(make_rows(), results=tmp_path)
    second = make().fit(make_rows(1), results=tmp_path)
    assert [v.id for v in ResultsStore(tmp_path).versions()] == [first.version_, second.version_]
    check_same(distclust.load(tmp_path), second)


@pytest.mark.usefixtures("every_round")
def test_fit_of_a_store__knows_its_rows_by_their_fingerprint(tmp_path):
    distclust.ingest(iter([make_rows()]), tmp_path / "X.zarr")
    model = make().fit(tmp_path / "X.zarr", results=tmp_path / "results")
    matrix = distclust.open_store(tmp_path / "X.zarr").matrix()
    assert ResultsStore(tmp_path / "results").current().input_fingerprint == matrix.fingerprint
    check_same(model, make().fit(make_rows()))


# ---- going on ----------------------------------------------------------------------------------


class Stop(BaseException):
    """Ends a fit as a kill does: nobody catches it."""


def stop_at(
    patch: pytest.MonkeyPatch,
    kind: str,
    n_rounds: int,
    error: type[BaseException],
    method: str = "absorb",
) -> None:
    """Make the plan of a fit raise once, when so many rounds are absorbed."""
    plan, stopped = PLANS[kind], []
    plain = getattr(plan, method)

    def stop(self: Any, state: Any, *args: Any) -> Any:
        if state.n_products == n_rounds and not stopped:
            stopped.append(True)
            raise error
        return plain(self, state, *args)

    patch.setattr(plan, method, stop)


@pytest.mark.usefixtures("every_round")
@pytest.mark.parametrize("n_done", [0, 1, 3, 4])
def test_killed__at_a_round_it_goes_on_from_there(kind, n_done, unbroken, rounds, tmp_path):
    def run() -> int:
        with pytest.MonkeyPatch.context() as patch:
            stop_at(patch, kind, n_done, Stop)
            try:
                make(kind).fit(make_rows(), results=tmp_path)
            except Stop:
                os._exit(_EXIT)  # nothing is closed, nothing is flushed
        return 0

    assert fork(run)() == _EXIT
    (run_id,) = ResultsStore(tmp_path).unfinished()
    rounds.clear()
    model = make(kind).fit(make_rows(), results=tmp_path)
    check_same(model, unbroken[kind])
    assert rounds == list(range(n_done, unbroken[kind].n_iter_))  # nothing is done again
    assert model.version_ == run_id
    assert ResultsStore(tmp_path).objects.list(CHECKPOINTS) == []


@pytest.mark.parametrize("n_done", [1, 3])
def test_interrupted__everything_is_saved_first(kind, n_done, unbroken, rounds, tmp_path):
    """Also between checkpoints: here it is never time for one."""
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, kind, n_done, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            make(kind).fit(make_rows(), results=tmp_path)
    rounds.clear()
    model = make(kind).fit(make_rows(), results=tmp_path)
    check_same(model, unbroken[kind])
    # The round that was just done is saved, too.
    assert rounds == list(range(n_done + 1, unbroken[kind].n_iter_))


@pytest.mark.usefixtures("every_round")
def test_killed__at_any_storage_operation(unbroken, tmp_path):
    """Every state that a kill can leave is gone on from, or began anew."""

    def check(place: str, is_done: bool) -> None:
        store = ResultsStore(place)
        if is_done:
            check_same(distclust.load(place), unbroken["krylov"])
            assert store.verify() == []
        else:
            assert len(store.versions()) <= 1

    n_operations = every_fault(
        tmp_path,
        prepare=lambda place: os.makedirs(place),
        action=lambda place: make().fit(make_rows(), results=place),
        check=check,
        stride=17,
    )
    assert n_operations > 100


@pytest.mark.usefixtures("every_round")
@pytest.mark.parametrize("owner", [stored_fits, Shelf], ids=["unsealed", "sealed"])
def test_killed__before_it_was_published(owner, monkeypatch, rounds, unbroken, tmp_path):
    """Nothing is multiplied again: the last state was saved, or the whole model is there."""

    def stop(*_: Any, **__: Any) -> None:
        raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(owner, "metrics_of" if owner is stored_fits else "publish", stop)
        with pytest.raises(Stop):
            make().fit(make_rows(), results=tmp_path)
    rounds.clear()
    model = make().fit(make_rows(), results=tmp_path)
    check_same(model, unbroken["krylov"])
    np.testing.assert_array_equal(
        model.transform(make_rows(1)), unbroken["krylov"].transform(make_rows(1))
    )
    assert rounds == []
    check_same(distclust.load(tmp_path), unbroken["krylov"])


@pytest.mark.usefixtures("every_round")
def test_seed__that_was_drawn_is_found_again(rounds, tmp_path):
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, "krylov", 3, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            make(random_state=None).fit(make_rows(), results=tmp_path)
    (begun,) = ResultsStore(tmp_path).unfinished().values()
    rounds.clear()
    model = make(random_state=None).fit(make_rows(), results=tmp_path)
    assert rounds[0] == 4
    check_same(model, make(random_state=begun["seed"]).fit(make_rows()))


# ---- other data, other parameters --------------------------------------------------------------


@pytest.fixture
def unfinished(tmp_path, monkeypatch) -> Path:
    """A results store in which a fit stopped after three rounds."""
    monkeypatch.setattr(kernel_pca, "Crew", functools.partial(Crew, every=1))
    with pytest.MonkeyPatch.context() as patch:
        stop_at(patch, "krylov", 3, Stop, "order")
        with pytest.raises(Stop):
            make().fit(make_rows(), results=tmp_path / "results")
    return tmp_path / "results"


@pytest.mark.parametrize(
    ("change", "theirs", "ours"),
    [
        ({"gamma": 0.25}, "'gamma': 0.5", "'gamma': 0.25"),
        ({"n_components": 5}, "n_components=6", "n_components=5"),
        ({"solver": "em"}, "solver='auto'", "solver='em'"),
        ({"tolerance": 1e-7}, "tolerance=1e-06", "tolerance=1e-07"),
        ({"dtype": "float32"}, "dtype='float64'", "dtype='float32'"),
        ({"kernel": "poly"}, "'name': 'rbf'", "'name': 'poly'"),
        ({"random_state": 1}, "seed 1", "began with 0"),
    ],
)
def test_other_parameters__are_refused_and_both_named(change, theirs, ours, unfinished, rounds):
    rounds.clear()
    with pytest.raises(OtherRowsError, match="unfinished fit") as raised:
        make(**change).fit(make_rows(), results=unfinished)
    for part in (theirs, ours, "--fresh"):
        assert part in str(raised.value)
    assert rounds == []
    assert len(ResultsStore(unfinished).unfinished()) == 1  # nothing was lost


def test_other_rows__are_refused_and_both_named(unfinished, rounds):
    rounds.clear()
    (begun,) = ResultsStore(unfinished).unfinished().values()
    with pytest.raises(OtherRowsError) as raised:
        make().fit(make_rows(1), results=unfinished)
    assert f"other rows ({begun['input_fingerprint']})" in str(raised.value)
    assert f"these rows ({fingerprint_of(make_rows(1))})" in str(raised.value)
    assert rounds == []


def test_memory_budget__may_be_another(unfinished, rounds, unbroken):
    rounds.clear()
    model = make(memory_budget=1).fit(make_rows(), results=unfinished)
    assert rounds[0] == 3
    check_same(model, unbroken["krylov"])


@pytest.mark.parametrize("change", [{}, {"gamma": 0.25}, {"random_state": 1}])
def test_fresh__starts_over(change, unfinished, rounds):
    rounds.clear()
    model = make(**change).fit(make_rows(), results=unfinished, fresh=True)
    assert rounds[0] == 0
    check_same(model, make(**change).fit(make_rows()))
    assert ResultsStore(unfinished).unfinished() == {}
    assert ResultsStore(unfinished).objects.list(CHECKPOINTS) == []


def test_checkpoint__that_slipped_in_is_refused_by_its_fingerprint(unfinished, monkeypatch):
    """The run is the same, what is saved in it is not."""
    monkeypatch.setattr(KernelPCA, "_fingerprint", lambda *_: "another")
    with pytest.raises(InputError, match="data and parameters another") as raised:
        make().fit(make_rows(), results=unfinished)
    monkeypatch.undo()
    model = make().fit(make_rows())
    assert f"one of {model._fingerprint(make_rows())}" in str(raised.value)


# ---- storage that fails ------------------------------------------------------------------------


@pytest.mark.usefixtures("every_round")
@pytest.mark.parametrize("which", ["all", "plan", "member-000003"])
def test_disk_full__for_checkpoints_is_told_and_changes_nothing(
    which, unbroken, tmp_path, monkeypatch
):
    plain = Checkpoints.save

    def save(self: Checkpoints, *args: Any, **options: Any) -> None:
        if which == "all" or self.run.endswith(which):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.prefix)
        plain(self, *args, **options)

    monkeypatch.setattr(Checkpoints, "save", save)
    with pytest.warns(CheckpointWarning, match="No space left"):
        model = make().fit(make_rows(), results=tmp_path)
    check_same(model, unbroken["krylov"])
    check_same(distclust.load(tmp_path), unbroken["krylov"])


def newest(folder: Path, part: str) -> Path:
    return max((folder / CHECKPOINTS).rglob(f"{part}/*.checkpoint"), key=lambda path: path.name)


@pytest.mark.parametrize("part", ["plan", "member-000000", "member-000006"])
@pytest.mark.parametrize("harm", ["truncated", "altered", "empty"])
def test_newest_checkpoint__damaged_falls_back_to_the_older(
    part, harm, unfinished, rounds, unbroken
):
    path = newest(unfinished, part)
    content = path.read_bytes()
    harmed = {
        "truncated": content[: len(content) // 2],
        "altered": content[:-40] + bytes([content[-40] ^ 1]) + content[-39:],
        "empty": b"",
    }[harm]
    path.write_bytes(harmed)
    rounds.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = make().fit(make_rows(), results=unfinished)
    assert {w.category for w in caught} == {CheckpointWarning}
    assert any("damaged checkpoint" in str(w.message) for w in caught)
    assert rounds[0] == 2
    check_same(model, unbroken["krylov"])


def test_all_checkpoints__damaged_it_starts_over(unfinished, rounds, unbroken):
    for path in (unfinished / CHECKPOINTS).rglob("*.checkpoint"):
        path.write_bytes(b"")
    rounds.clear()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = make().fit(make_rows(), results=unfinished)
    assert {w.category for w in caught} == {CheckpointWarning}
    assert any("damaged checkpoint" in str(w.message) for w in caught)
    assert rounds[0] == 0
    check_same(model, unbroken["krylov"])


@pytest.mark.usefixtures("every_round")
def test_run_of_another_process__is_left_alone(tmp_path, monkeypatch):
    """Somebody went on with the run: what this process saves is refused."""
    plain = Checkpoints.save

    def save(self: Checkpoints, step: int, incarnation: int, *args: Any, **options: Any) -> None:
        if step == 3 and incarnation < 10**6:
            plain(self, step, 10**7, *args, **options)
        plain(self, step, incarnation, *args, **options)

    monkeypatch.setattr(Checkpoints, "save", save)
    with pytest.raises(ConflictError):
        make().fit(make_rows(), results=tmp_path)
    assert len(ResultsStore(tmp_path).unfinished()) == 1


def test_failure__before_anything_was_saved_leaves_nothing(tmp_path, monkeypatch):
    def fail(*_: Any) -> None:
        raise RuntimeError("stop")

    monkeypatch.setattr(Krylov, "absorb", fail)
    with pytest.raises(RuntimeError, match="stop"):
        make().fit(make_rows(), results=tmp_path)
    assert ResultsStore(tmp_path).unfinished() == {}
    assert ResultsStore(tmp_path).versions() == []


def test_bad_input__writes_nothing(tmp_path):
    rows = make_rows()
    rows[7, 3] = np.nan
    with pytest.raises(InputError, match=r"row 7\b"):
        make().fit(rows, results=tmp_path / "results")
    with pytest.raises(InputError):
        make(n_components=N).fit(make_rows(), results=tmp_path / "results")
    assert not (tmp_path / "results").exists()
