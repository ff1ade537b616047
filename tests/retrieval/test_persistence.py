"""Bayesian Sets to a file and back: the same answers to the bit, or one sentence why not."""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import scipy.sparse

import distclust
from distclust import families
from distclust.errors import InputError, ModelFormatError, StoreError
from distclust.retrieval import BayesianSets
from distclust.retrieval.index import StoredIndex
from distclust.store import FORMAT_VERSION, ArrayMatrix, archive, read_archive, write_archive
from tests.corpora import blocks_of

N_ROWS, N_FEATURES = 60, 12
NAMES = [f"item {i}" if i % 4 else f"вещь {i}" for i in range(N_ROWS)]


def binary(seed: int = 0, n_rows: int = N_ROWS) -> npt.NDArray[np.bool_]:
    rng = np.random.default_rng(seed)
    return rng.random((n_rows, N_FEATURES)) < rng.uniform(0.1, 0.9, N_FEATURES)


def named(values: Any) -> pd.DataFrame:
    columns = [f"feature {j}" for j in range(values.shape[1])]
    return pd.DataFrame(values, index=NAMES[: len(values)], columns=columns)


def categories() -> pd.DataFrame:
    rng = np.random.default_rng(3)
    levels = np.array(["red", "green", "blue"])
    return pd.DataFrame(levels[rng.integers(0, 3, (N_ROWS, 4))], index=NAMES)


def counts(rate: float = 1.0) -> npt.NDArray[np.int64]:
    return np.random.default_rng(4).poisson(rate, (N_ROWS, N_FEATURES))


def reals() -> npt.NDArray[np.float64]:
    return np.random.default_rng(5).normal(size=(N_ROWS, N_FEATURES))


CORPORA: dict[str, tuple[Callable[[], BayesianSets], Callable[[], Any]]] = {
    "dense": (lambda: BayesianSets(), binary),
    "bytes": (lambda: BayesianSets(), lambda: binary().astype(np.uint8)),
    "floats by columns": (lambda: BayesianSets(), lambda: np.asfortranarray(binary(), float)),
    "sparse": (lambda: BayesianSets(3.5, 0.25), lambda: scipy.sparse.csr_array(binary())),
    "names": (lambda: BayesianSets(), lambda: named(binary())),
    "numbers as ids": (
        lambda: BayesianSets(),
        lambda: pd.DataFrame(binary(), index=np.arange(N_ROWS) * 7 + 3),
    ),
    "small numbers as ids": (
        lambda: BayesianSets(),
        lambda: pd.DataFrame(binary(), index=pd.Index(np.arange(N_ROWS), dtype=np.uint8)),
    ),
    "categorical": (lambda: BayesianSets(family="categorical"), categories),
    "multinomial": (lambda: BayesianSets(family="multinomial"), lambda: named(counts())),
    "poisson": (lambda: BayesianSets(family="poisson"), counts),
    "sparse poisson": (
        lambda: BayesianSets(family="poisson"),
        lambda: scipy.sparse.csr_array(counts(0.2)),
    ),
    "diagonal gaussian": (lambda: BayesianSets(family="diagonal_gaussian"), reals),
    "a bernoulli of one's own": (
        lambda: BayesianSets(family=families.Bernoulli(alpha=0.3, beta=2.0)),
        binary,
    ),
    "a poisson of one's own": (
        lambda: BayesianSets(family=families.Poisson(shape=np.linspace(0.5, 2.0, N_FEATURES))),
        counts,
    ),
    "a categorical of one's own": (
        lambda: BayesianSets(family=families.Categorical(kappa=5.0)),
        categories,
    ),
    "a gaussian of one's own": (
        lambda: BayesianSets(family=families.DiagonalGaussian()),
        reals,
    ),
}


def ids_of(sets: BayesianSets) -> list[Any]:
    return np.asarray(sets.matrix_.row_ids).tolist()


def assert_same(loaded: BayesianSets, sets: BayesianSets) -> None:
    """Answers are equal to the bit, whichever way they are asked for."""
    ids = ids_of(sets)
    assert ids_of(loaded) == ids
    assert [c.name for c in loaded.matrix_.columns] == [c.name for c in sets.matrix_.columns]
    engines = ("index", "scan") if sets.index_ is not None else ("scan",)
    for items in ([ids[0]], ids[5:9]):
        for engine in engines:
            a, b = (one.query(items, k=20, engine=engine) for one in (loaded, sets))
            assert a.ids.tolist() == b.ids.tolist()
            assert a.rows.tolist() == b.rows.tolist()
            assert a.log_scores.tobytes() == b.log_scores.tobytes()
            assert (a.suggested_size, a.query) == (b.suggested_size, b.query)
        a, b = (one.explain(items, k=3) for one in (loaded, sets))
        assert (a.features, a.group_features, a.results) == (
            b.features,
            b.group_features,
            b.results,
        )


@pytest.mark.parametrize("name", CORPORA)
@pytest.mark.parametrize("load", [BayesianSets.load, distclust.load])
def test_memory__the_corpus_is_in_the_file(
    name: str, load: Callable[[Path], BayesianSets], tmp_path: Path
) -> None:
    make, corpus = CORPORA[name]
    sets = make().fit(corpus())
    sets.save(tmp_path / "sets.model")
    loaded = load(tmp_path / "sets.model")
    assert type(loaded) is BayesianSets
    assert (loaded.kappa, loaded.smoothing) == (sets.kappa, sets.smoothing)
    assert loaded.family == sets.family
    assert loaded.matrix_.is_sparse == sets.matrix_.is_sparse
    assert loaded.matrix_.dtype == sets.matrix_.dtype
    assert_same(loaded, sets)


@pytest.mark.parametrize("name", ["dense", "sparse", "names"])
def test_memory__an_index_is_there_again_if_there_was_one(name: str, tmp_path: Path) -> None:
    make, corpus = CORPORA[name]
    sets = make().fit(corpus())
    sets.save(tmp_path / "without.model")
    assert distclust.load(tmp_path / "without.model").index_ is None
    sets.build_index().save(tmp_path / "with.model")
    loaded = distclust.load(tmp_path / "with.model")
    assert loaded.index_ is not None
    assert_same(loaded, sets)


def test_memory__saved_again_it_is_the_same_file(tmp_path: Path) -> None:
    BayesianSets().fit(named(binary())).save(tmp_path / "first.model")
    distclust.load(tmp_path / "first.model").save(tmp_path / "second.model")
    first, second = (read_archive(tmp_path / f"{name}.model") for name in ("first", "second"))
    times = {"created"}
    assert {k: v for k, v in first.meta.items() if k not in times} == {
        k: v for k, v in second.meta.items() if k not in times
    }
    assert first.arrays.keys() == second.arrays.keys()
    assert all(np.array_equal(first.arrays[k], second.arrays[k]) for k in first.arrays)


def test_memory__odd_names_come_back_whole_and_take_the_room_they_need(tmp_path: Path) -> None:
    names = ["", " ", "a\0", "naïve 🎈", "x" * 100_000, *map(str, range(5, N_ROWS))]
    sets = BayesianSets().fit(ArrayMatrix(binary(), row_ids=np.array(names, object)))
    sets.save(tmp_path / "sets.model")
    assert ids_of(distclust.load(tmp_path / "sets.model")) == names
    assert (tmp_path / "sets.model").stat().st_size < 300_000  # not 60 x 100,000 x 4


def test_file__holds_no_pickle(tmp_path: Path) -> None:
    BayesianSets().fit(named(binary())).save(tmp_path / "sets.model")
    with zipfile.ZipFile(tmp_path / "sets.model") as file:
        for member in file.namelist():
            content = file.read(member)
            assert member == "model.json" or content.startswith(b"\x93NUMPY")
            if member.endswith(".npy"):
                with file.open(member) as part:
                    assert np.lib.format.read_array(part, allow_pickle=False) is not None
            with pytest.raises((pickle.UnpicklingError, ValueError, KeyError, EOFError)):
                pickle.loads(content)
        assert json.loads(file.read("model.json"))["kind"] == "BayesianSets"


# ---- corpora in stores ---------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A store of a few blocks."""
    with blocks_of(16):
        distclust.ingest([named(binary())], str(tmp_path / "corpus.zarr"))
        yield tmp_path / "corpus.zarr"


def version_of(sets: BayesianSets) -> tuple[str, str]:
    assert isinstance(sets.index_, StoredIndex)
    return sets.index_.url, sets.index_.version.id


def test_store__is_named_not_copied(place: Path, tmp_path: Path) -> None:
    sets = BayesianSets(1.5, 0.5).fit(str(place))
    sets.save(tmp_path / "sets.model")
    loaded = distclust.load(tmp_path / "sets.model")
    assert loaded.index_ is None
    assert_same(loaded, sets)
    assert read_archive(tmp_path / "sets.model").arrays == {}
    meta = read_archive(tmp_path / "sets.model").meta
    assert meta["store"] == str(place)
    assert meta["fingerprint"] == distclust.open_store(place).fingerprint


def test_store__a_relative_name_holds_from_anywhere(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(place.parent)
    sets = BayesianSets().fit(place.name)
    sets.build_index("elsewhere.sets")
    sets.save(tmp_path / "sets.model")
    monkeypatch.chdir("/")
    loaded = distclust.load(tmp_path / "sets.model")
    assert_same(loaded, sets)
    assert version_of(loaded) == version_of(sets)


@pytest.mark.parametrize("family", ["bernoulli", "poisson"])
def test_store__families_of_all_kinds(family: str, place: Path, tmp_path: Path) -> None:
    sets = BayesianSets(family=family).fit(str(place))
    sets.save(tmp_path / "sets.model")
    assert_same(distclust.load(tmp_path / "sets.model"), sets)


def test_store__the_index_beside_it_is_found_again(place: Path, tmp_path: Path) -> None:
    sets = BayesianSets().fit(str(place)).build_index()
    sets.save(tmp_path / "sets.model")
    loaded = distclust.load(tmp_path / "sets.model")
    assert version_of(loaded) == version_of(sets)
    assert_same(loaded, sets)


@pytest.mark.parametrize("how", ["built there", "fitted with it"])
def test_store__an_index_elsewhere_is_found_again(how: str, place: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "indices" / "corpus"
    sets = BayesianSets().fit(str(place)).build_index(elsewhere)
    if how == "fitted with it":
        sets = BayesianSets().fit(str(place), index=elsewhere)
    assert not Path(f"{place}.sets").exists()
    sets.save(tmp_path / "sets.model")
    loaded = distclust.load(tmp_path / "sets.model")
    assert version_of(loaded) == version_of(sets)
    assert loaded.index_place == str(elsewhere)
    assert_same(loaded, sets)


def test_store__an_index_that_was_removed_is_missed_by_nobody(place: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "index"
    sets = BayesianSets().fit(str(place)).build_index(elsewhere)
    sets.save(tmp_path / "sets.model")
    answer = sets.query(NAMES[3:5], engine="index")
    shutil.rmtree(elsewhere)
    loaded = distclust.load(tmp_path / "sets.model")
    assert loaded.index_ is None
    again = loaded.query(NAMES[3:5])
    assert again.ids.tolist() == answer.ids.tolist()
    assert again.log_scores.tobytes() == answer.log_scores.tobytes()
    loaded.build_index()
    assert version_of(loaded)[0] == str(elsewhere)


def test_store__one_that_changed_is_refused(place: Path, tmp_path: Path) -> None:
    BayesianSets().fit(str(place)).build_index().save(tmp_path / "sets.model")
    store = distclust.open_store(place)
    store.delete([NAMES[7]])
    with pytest.raises(ModelFormatError, match=r"expected the rows of .*corpus\.zarr.*Fit again"):
        distclust.load(tmp_path / "sets.model")
    store = distclust.open_store(place)
    store.rollback(1)  # the rows of then
    assert distclust.load(tmp_path / "sets.model").n_items_ == N_ROWS


def test_store__one_that_is_gone_is_said(place: Path, tmp_path: Path) -> None:
    BayesianSets().fit(str(place)).save(tmp_path / "sets.model")
    shutil.rmtree(place)
    with pytest.raises(StoreError, match="nothing there"):
        distclust.load(tmp_path / "sets.model")


def test_store__an_index_of_other_rows_is_not_used(place: Path, tmp_path: Path) -> None:
    sets = BayesianSets().fit(str(place)).build_index()
    sets.save(tmp_path / "sets.model")
    distclust.open_store(place).delete([NAMES[7]])
    BayesianSets().fit(str(place)).build_index()  # now beside it: the index of fewer rows
    distclust.open_store(place).rollback(1)
    loaded = distclust.load(tmp_path / "sets.model")
    assert loaded.index_ is None
    assert loaded.query([NAMES[0]]).ids.tolist() == sets.query([NAMES[0]]).ids.tolist()


# ---- files that cannot be trusted ----------------------------------------------------------------


@pytest.fixture
def model(tmp_path: Path) -> Path:
    BayesianSets().fit(named(scipy.sparse.csr_array(binary()).toarray())).save(tmp_path / "a.model")
    return tmp_path / "a.model"


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99, 1.0])
def test_file__truncated_is_refused(share: float, model: Path) -> None:
    content = model.read_bytes()
    model.write_bytes(content[: int(share * (len(content) - 1))])
    with pytest.raises(ModelFormatError):
        distclust.load(model)
    with pytest.raises(ModelFormatError):
        BayesianSets.load(model)


def test_file__any_altered_byte_is_refused(model: Path) -> None:
    content = bytearray(model.read_bytes())
    for at in range(0, len(content), max(len(content) // 200, 1)):
        content[at] ^= 0x10
        model.write_bytes(content)
        with pytest.raises(ModelFormatError):
            distclust.load(model)
        content[at] ^= 0x10
    model.write_bytes(content)
    assert distclust.load(model).n_items_ == N_ROWS


def test_file__of_a_newer_format_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(archive, "FORMAT_VERSION", FORMAT_VERSION + 1)
        BayesianSets().fit(binary()).save(tmp_path / "new.model")
    with pytest.raises(ModelFormatError, match="Upgrade distclust"):
        distclust.load(tmp_path / "new.model")


def test_file__of_another_kind_is_refused(tmp_path: Path) -> None:
    distclust.BHC().fit(binary(n_rows=8)).save(tmp_path / "tree.model")
    with pytest.raises(ModelFormatError, match="BHC"):
        BayesianSets.load(tmp_path / "tree.model")
    assert isinstance(distclust.load(tmp_path / "tree.model"), distclust.BHC)


def _drop(facts: dict[str, Any], arrays: dict[str, Any], name: str) -> None:
    facts.pop(name, None)
    arrays.pop(name, None)


FAULTS: dict[str, Callable[[dict[str, Any], dict[str, Any]], object]] = {
    "no strength": lambda facts, arrays: _drop(facts, arrays, "kappa"),
    "a bad strength": lambda facts, arrays: facts.update(kappa=-1.0),
    "no family": lambda facts, arrays: _drop(facts, arrays, "family"),
    "an unknown family": lambda facts, arrays: facts.update(family="no such family"),
    "an unknown family with parameters": lambda facts, arrays: facts.update(
        family={"family": "no such family"}
    ),
    "no columns": lambda facts, arrays: _drop(facts, arrays, "columns"),
    "fewer columns": lambda facts, arrays: facts.update(columns=facts["columns"][:-1]),
    "columns that are none": lambda facts, arrays: facts.update(columns=[1, 2]),
    "no names": lambda facts, arrays: _drop(facts, arrays, "names"),
    "other names": lambda facts, arrays: arrays.update(names=arrays["names"][:-9]),
    "no values": lambda facts, arrays: _drop(facts, arrays, "values"),
    "flat values": lambda facts, arrays: arrays.update(values=arrays["values"].ravel()),
    "fewer rows": lambda facts, arrays: arrays.update(values=arrays["values"][:-1]),
    "an unknown store": lambda facts, arrays: facts.update(store="no/such/store"),
    "a store that is none": lambda facts, arrays: facts.update(store=7),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_file__parts_that_do_not_fit_are_one_sentence(fault: str, model: Path) -> None:
    found = read_archive(model)
    facts, arrays = dict(found.meta), dict(found.arrays)
    FAULTS[fault](facts, arrays)
    write_archive(model, found.kind, facts, arrays)
    with pytest.raises((ModelFormatError, StoreError), match="expected"):
        distclust.load(model)


@pytest.mark.parametrize(
    ("part", "value"),
    [("indices", N_FEATURES), ("indices", -1), ("indptr", 10_000), ("indptr", -1)],
)
def test_file__indices_that_lead_out_of_the_matrix_are_refused(
    part: str, value: int, tmp_path: Path
) -> None:
    BayesianSets().fit(scipy.sparse.csr_array(binary())).save(tmp_path / "sets.model")
    found = read_archive(tmp_path / "sets.model")
    found.arrays[part][3] = value
    write_archive(tmp_path / "sets.model", found.kind, found.meta, found.arrays)
    with pytest.raises(ModelFormatError):
        distclust.load(tmp_path / "sets.model")


def test_save__needs_a_fit_and_a_place(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="Call fit first"):
        BayesianSets().save(tmp_path / "sets.model")
    with pytest.raises(distclust.errors.MissingFileError):
        BayesianSets().fit(binary()).save(tmp_path / "no such folder" / "sets.model")
    assert list(tmp_path.iterdir()) == []


def test_load__an_index_is_not_a_model(place: Path) -> None:
    BayesianSets().fit(str(place)).build_index()
    with pytest.raises(ModelFormatError, match="got an index of Bayesian Sets"):
        distclust.load(f"{place}.sets")


def test_load__nothing_there(tmp_path: Path) -> None:
    for load in (distclust.load, BayesianSets.load):
        with pytest.raises(distclust.errors.MissingFileError):
            load(tmp_path / "nothing.model")
