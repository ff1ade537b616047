"""Bayesian Sets on the command line: build, query, and what they say when they cannot."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pytest
import scipy.sparse

import distclust
from distclust import cli
from distclust.retrieval import BayesianSets, index
from distclust.store import manifest
from distclust.store.ledger import Ledger
from distclust.store.objects import open_objects
from distclust.store.results import ResultsStore
from tests.corpora import blocks_of

VERBS = (("sets", "build"), ("sets", "query"))

# Five rows whose scores were worked out by hand, see `test_query__golden`.
GOLDEN = pd.DataFrame(
    [[1, 1, 0, 0], [1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [0, 0, 0, 1]],
    index=["Mary Poppins", "Toy Story", "Alien [director's cut]", "Solaris", "Stalker"],
    columns=["songs", "for children", "space", "slow"],
)
N_ROWS = 80


@pytest.fixture(autouse=True)
def _restore_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``main`` sets handlers for the whole process; tests share theirs."""
    import logging

    handler, show = signal.getsignal(signal.SIGTERM), warnings.showwarning
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    signal.signal(signal.SIGTERM, handler)
    warnings.showwarning = show
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


def run(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])


def document(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def films(start: int = 0, stop: int = N_ROWS) -> pd.DataFrame:
    """Rows named film 0, film 1, ...: kinds that share features, and some that nobody else has."""
    rows = np.arange(start, stop)
    chances = np.random.default_rng(7).beta(0.3, 0.6, (4, 24))[rows % 4]
    values = np.stack([np.random.default_rng(100 + i).random(24) for i in rows]) < chances
    names = [f"film {i}" for i in rows]
    return pd.DataFrame(values.astype(int), index=names, columns=[f"tag {j}" for j in range(24)])


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    distclust.ingest([GOLDEN], str(tmp_path / "golden.zarr"))
    return tmp_path / "golden.zarr"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Eighty films in blocks of eight, two blocks to a shard."""
    monkeypatch.setattr(index, "SHARD_ROWS", 16)
    with blocks_of(8):
        distclust.ingest([films()], str(tmp_path / "films.zarr"))
        yield tmp_path / "films.zarr"


def ask(capsys: pytest.CaptureFixture[str], store: Path, *arguments: object) -> Any:
    assert run("sets", "query", store, *arguments, "--json") == 0
    return document(capsys)


def answers(found: Any) -> list[tuple[Any, float]]:
    return [(result["id"], result["log_score"]) for result in found["results"]]


def in_memory(table: pd.DataFrame, items: list[str], k: int = 10, **options: Any) -> Any:
    """What the same rows say when they never were in a store."""
    ranking = BayesianSets(**options).fit(table).query(items, k)
    return list(zip(ranking.ids.tolist(), ranking.log_scores.tolist(), strict=True))


# ---- both verbs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_help__has_an_example_and_the_common_options(
    verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*verb, "--help") == 0
    text = capsys.readouterr().out
    assert f"Example:\n    distclust {' '.join(verb)}" in text
    for option in ("--json", "--seed", "--plan", "-v, --verbose", "-q, --quiet", "--scheduler"):
        assert option in text


def test_help__the_group_lists_its_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("sets", "--help") == 0
    text = capsys.readouterr().out
    for verb in ("build", "query", "serve"):
        assert f"\n  {verb} " in text


@pytest.mark.parametrize("verb", VERBS)
def test_plan__changes_nothing(
    verb: tuple[str, ...], store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(store.parent.rglob("*"))
    items = ["film 1"] if verb[-1] == "query" else []
    assert run(*verb, store, *items, "--plan", "--json") == 0
    plan = document(capsys)
    assert (plan["n_rows"], plan["n_features"], plan["passes"]) == (N_ROWS, 24, 1)
    assert {"memory_bytes", "disk_bytes", "seconds"} <= plan.keys()
    assert sorted(store.parent.rglob("*")) == before


@pytest.mark.parametrize("verb", VERBS)
def test_store__one_of_a_newer_format_is_refused(
    verb: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    distclust.ingest([films()], str(tmp_path / "new.zarr"))
    ledger = Ledger(open_objects(tmp_path / "new.zarr"), manifest.GENERATIONS)
    newer = {"format_version": manifest.FORMAT_VERSION + 1, "writer": "9.9"}
    ledger.append({**ledger.read(1).content, **newer}, 1)
    items = ["film 1"] if verb[-1] == "query" else []
    assert run(*verb, tmp_path / "new.zarr", *items) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "Upgrade distclust" in captured.err
    assert len(captured.err.splitlines()) == 1
    assert not (tmp_path / "new.zarr.sets").exists()


@pytest.mark.parametrize("verb", VERBS)
def test_store__none_is_one_sentence(
    verb: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    items = ["film 1"] if verb[-1] == "query" else []
    assert run(*verb, tmp_path / "nothing.zarr", *items) == 2
    captured = capsys.readouterr()
    assert "expected a store, got nothing there" in captured.err
    assert len(captured.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


# ---- build ---------------------------------------------------------------------------------------


def test_build__says_what_was_done(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("sets", "build", store, "--json") == 0
    facts = document(capsys)
    n_ones = int(films().to_numpy().sum())
    size = sum(
        file.stat().st_size
        for file in Path(f"{store}.sets").glob("versions/*/**/*")
        if file.is_file() and file.name != "version.json"
    )
    assert facts["index"] == f"{store}.sets"
    assert (facts["n_rows"], facts["n_features"], facts["n_ones"]) == (N_ROWS, 24, n_ones)
    assert (facts["n_shards"], facts["n_made"], facts["n_taken_over"]) == (5, 5, 0)
    assert facts["size_bytes"] == size
    assert facts["bytes_a_one"] == pytest.approx(size / n_ones)
    assert facts["fingerprint"] == distclust.open_store(store).fingerprint
    assert facts["is_new"]
    assert facts["seconds"] > 0


def test_build__is_up_to_date_when_run_again(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("sets", "build", store) == 0
    first = capsys.readouterr()
    for words in ("5 shards (5 made)", "80 rows x 24 features", "bytes a one", "sets query"):
        assert words in first.out
    assert "building the index" in first.err
    before = {file: file.stat().st_mtime_ns for file in Path(f"{store}.sets").rglob("*")}
    assert run("sets", "build", store) == 0
    again = capsys.readouterr()
    assert "up to date" in again.out
    assert "building" not in again.err
    assert {file: file.stat().st_mtime_ns for file in Path(f"{store}.sets").rglob("*")} == before
    assert run("sets", "build", store, "--json") == 0
    facts = document(capsys)
    assert not facts["is_new"]
    assert (facts["n_made"], facts["n_taken_over"], facts["n_resumed"]) == (0, 0, 0)
    assert run("sets", "build", store, "--quiet") == 0
    assert capsys.readouterr() == ("", "")


def test_build__elsewhere(store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    elsewhere = tmp_path / "fast disk" / "films"
    assert run("sets", "build", store, "--index", elsewhere, "-q") == 0
    assert not Path(f"{store}.sets").exists()
    found = ask(capsys, store, "film 3", "--index", elsewhere, "--engine", "index")
    assert found["engine"] == "index"
    assert answers(found) == in_memory(films(), ["film 3"])
    assert run("sets", "query", store, "film 3", "--engine", "index") == 2
    assert "distclust sets build" in capsys.readouterr().err
    assert run("sets", "query", store, "film 3", "--index", tmp_path / "nowhere") == 2
    assert "none at that place" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("values", "got"),
    [
        (np.arange(6.0).reshape(3, 2), "5"),
        (np.array([[0.5, 0.0], [1.0, 0.0]]), "a fraction"),
        (np.array([[-1, 0], [1, 1]]), "-1"),
        (np.array([[np.nan, 0.0], [1.0, 1.0]]), "missing values"),
    ],
)
def test_build__anything_but_zeros_and_ones_is_refused(
    values: npt.NDArray[Any], got: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    distclust.ingest([values], str(tmp_path / "rows.zarr"))
    assert run("sets", "build", tmp_path / "rows.zarr") == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert got in captured.err
    assert "distclust ingest" in captured.err
    assert "--binarise" in captured.err
    assert len(captured.err.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["rows.zarr"]


def test_build__deleted_rows_need_not_be_binary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = films()
    table.loc["film 5", "tag 0"] = 7
    store = tmp_path / "films.zarr"
    distclust.ingest([table], str(store))
    assert run("sets", "build", store) == 2
    distclust.open_store(store).delete(["film 5"])
    assert run("sets", "build", store, "-q") == 0
    capsys.readouterr()
    assert answers(ask(capsys, store, "film 9", "--engine", "index")) == in_memory(
        table.drop("film 5"), ["film 9"]
    )


def test_build__the_place_is_checked_first(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "letter.txt").write_text("mine")
    before = sorted(store.rglob("*"))
    for place in (tmp_path / "file", tmp_path / "folder", store):
        assert run("sets", "build", store, "--index", place) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert (tmp_path / "file").read_text() == "mine"
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["letter.txt"]
    assert sorted(store.rglob("*")) == before


def test_build__stores_of_others_are_queried_without(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    anndata = pytest.importorskip("anndata")
    values = scipy.sparse.csr_matrix(films().to_numpy(np.float32))
    table = anndata.AnnData(values, obs=pd.DataFrame(index=films().index))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of AnnData about its own future
        table.write_zarr(tmp_path / "others.zarr")
    assert run("sets", "build", tmp_path / "others.zarr") == 2
    assert "distclust ingest" in capsys.readouterr().err
    found = ask(capsys, tmp_path / "others.zarr", "film 3", "film 7")
    assert answers(found) == in_memory(films(), ["film 3", "film 7"])


# ---- query ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ["scan", "index"])
def test_query__golden(
    engine: str, golden: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("sets", "build", golden, "-q") == 0
    found = ask(capsys, golden, "Mary Poppins", "Toy Story", "--engine", engine)
    assert found["command"] == "sets query"
    assert found["query"] == ["Mary Poppins", "Toy Story"]
    assert found["engine"] == engine
    names = [result["id"] for result in found["results"]]
    scores = [result["log_score"] for result in found["results"]]
    order = [0, 1, 2, 4, 3]
    assert names == GOLDEN.index[order].tolist()
    wanted = [1.252763, 1.047969, -0.980829, -1.185624, -2.166453]
    np.testing.assert_allclose(scores, wanted, atol=5e-7)
    assert [result["rank"] for result in found["results"]] == [1, 2, 3, 4, 5]
    assert [result["row"] for result in found["results"]] == order


def test_query__plain_lines_for_pipes(golden: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("sets", "query", golden, "Mary Poppins", "Toy Story", "-k", 3) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0] == "Like Mary Poppins, Toy Story"
    assert [line.split() for line in lines[2:5]] == [
        ["1", "Mary", "Poppins", "1.253"],
        ["2", "Toy", "Story", "1.048"],
        ["3", "Alien", "[director's", "cut]", "-0.981"],
    ]
    assert "scan" in lines[5]
    assert len(lines) == 6
    assert captured.err == ""  # nobody needs to know how far so short a search has come


def test_query__tables_for_terminals(
    golden: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run("sets", "query", golden, "Mary Poppins", "--explain") == 0
    text = capsys.readouterr().out
    assert "┃" in text
    assert "Alien [director's cut]" in text  # a name, not markup
    assert "for children" in text


def test_query__every_ranked_item_is_listed(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("sets", "query", store, "film 3", "-k", 50) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [int(line.split()[0]) for line in lines[2:-1]] == list(range(1, 51))


def test_query__explains(golden: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, golden, "Mary Poppins", "Toy Story", "--explain", "-k", 2)
    # log(1 + s / alpha) - log(1 + (N - s) / beta), with two of five rows each.
    songs = np.log1p(2 / 0.8) - np.log1p(0 / 1.2)
    children = np.log1p(1 / 0.8) - np.log1p(1 / 1.2)
    features = [(feature["name"], feature["weight"]) for feature in found["features"]]
    assert features == [
        ("songs", pytest.approx(songs)),
        ("for children", pytest.approx(children)),
    ]
    assert [(f["in_query"], f["in_corpus"]) for f in found["features"]] == [(1.0, 0.4), (0.5, 0.4)]
    assert found["results"][1]["features"] == [
        {"name": "songs", "weight": pytest.approx(songs)},
    ]
    for result in found["results"]:
        added = sum(feature["weight"] for feature in result["features"])
        assert added + result["others"] == pytest.approx(result["log_score"])
    assert [feature["name"] for feature in found["group_features"]] == ["songs", "for children"]
    assert run("sets", "query", golden, "Mary Poppins", "--explain") == 0
    text = capsys.readouterr().out
    for words in ("because of", "songs +", "Features of the query", "Features of all ranked items"):
        assert words in text


def test_query__same_answers_as_in_python(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = in_memory(films(), ["film 3", "film 11"], k=15)
    for engine in ("auto", "scan"):
        found = ask(capsys, store, "film 3", "film 11", "-k", 15, "--engine", engine)
        assert answers(found) == wanted
    assert run("sets", "build", store, "-q") == 0
    for engine in ("auto", "scan", "index"):
        found = ask(capsys, store, "film 3", "film 11", "-k", 15, "--engine", engine)
        assert answers(found) == wanted


def test_query__parameters_reach_the_prior(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"kappa": 0.5, "smoothing": 1.5}
    found = ask(capsys, store, "film 3", "--kappa", 0.5, "--smoothing", 1.5)
    assert answers(found) == in_memory(films(), ["film 3"], **options)
    assert answers(found) != in_memory(films(), ["film 3"])
    found = ask(capsys, store, "film 3", "--family", "poisson")
    assert answers(found) == in_memory(films(), ["film 3"], family="poisson")
    found = ask(capsys, store, "film 3", "--family", "diagonal-gaussian")
    assert answers(found) == in_memory(films(), ["film 3"], family="diagonal_gaussian")


def test_query__may_leave_out_what_was_asked_with(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    query = ["film 3", "film 11"]
    all_of_them = in_memory(films(), query, k=N_ROWS)
    found = ask(capsys, store, *query, "--exclude-query", "-k", 5)
    assert answers(found) == [pair for pair in all_of_them if pair[0] not in query][:5]


def test_query__items_from_standard_input(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("film 11\r\n\nfilm 19\n"))
    found = ask(capsys, store, "film 3", "-")
    assert found["query"] == ["film 3", "film 11", "film 19"]
    assert answers(found) == in_memory(films(), ["film 3", "film 11", "film 19"])
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n"))
    assert run("sets", "query", store, "-") == 2
    assert "Name at least one item" in capsys.readouterr().err


def test_query__a_repeated_item_counts_once(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ask(capsys, store, "film 3", "film 3")
    assert found["query"] == ["film 3"]
    assert answers(found) == in_memory(films(), ["film 3"])


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("mary popins", "Mary Poppins"), ("Toy Tory", "Toy Story"), ("solari", "Solaris")],
)
def test_query__misspelt_names_get_the_nearest(
    typed: str, meant: str, golden: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("sets", "query", golden, "Stalker", typed) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert repr(typed) in captured.err
    assert f"Did you mean {meant!r}" in captured.err
    assert len(captured.err.splitlines()) == 1


def test_query__a_name_like_no_other_gets_no_suggestion(
    golden: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("sets", "query", golden, "0123456789") == 2
    error = capsys.readouterr().err
    assert "Did you mean" not in error
    assert "'0123456789'" in error


@pytest.mark.parametrize("with_index", [False, True])
def test_query__numbers_as_ids(
    with_index: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = films().set_axis(np.arange(N_ROWS) * 10 - 50)
    store = tmp_path / "numbers.zarr"
    distclust.ingest([table], str(store))
    if with_index:
        assert run("sets", "build", store, "-q") == 0
    assert run("sets", "query", store, "--json", "120", "--", "-30") == 0
    found = document(capsys)
    assert found["query"] == ["120", "-30"]
    assert answers(found) == in_memory(table, [120, -30])
    assert all(isinstance(result["id"], int) for result in found["results"])
    for wrong in ("121", "film 3", "1.5", "99999999999999999999"):
        assert run("sets", "query", store, wrong) == 2
        captured = capsys.readouterr()
        assert wrong in captured.err
        assert len(captured.err.splitlines()) == 1


def test_query__text_that_looks_like_a_number_is_a_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [*(str(N_ROWS - 1 - i) for i in range(N_ROWS - 1)), "the last"]
    distclust.ingest([films().set_axis(names)], str(tmp_path / "text.zarr"))
    found = ask(capsys, tmp_path / "text.zarr", "3")
    assert found["results"][0]["id"] == "3"
    assert found["results"][0]["row"] == N_ROWS - 4  # not the third
    assert answers(found) == in_memory(films().set_axis(names), ["3"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--kappa", "0"], "kappa"),
        (["--smoothing", "-1"], "smoothing"),
        (["--family", "no-such"], "no_such"),
        (["-k", "0"], "-k"),
        (["--family", "poisson", "--engine", "index"], "poisson"),
    ],
)
def test_query__bad_options_are_one_sentence(
    options: list[str], words: str, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("sets", "query", store, "film 3", *options) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err
    assert len(captured.err.splitlines()) == 1


def test_query__anything_but_zeros_and_ones_needs_a_family(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = pd.DataFrame(np.random.default_rng(0).poisson(3.0, (30, 4)), index=list(range(30)))
    distclust.ingest([table], str(tmp_path / "counts.zarr"))
    assert run("sets", "query", tmp_path / "counts.zarr", "3") == 2
    assert "family" in capsys.readouterr().err
    found = ask(capsys, tmp_path / "counts.zarr", "3", "--family", "poisson")
    assert answers(found) == in_memory(table, [3], family="poisson")


@pytest.mark.cluster
def test_query__on_worker_processes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store = tmp_path / "films.zarr"
    distclust.ingest([films()], str(store))
    assert run("sets", "build", store, "--scheduler", "local", "-q") == 0
    for engine in ("index", "scan"):
        found = ask(capsys, store, "film 3", "-q", "--scheduler", "local", "--engine", engine)
        assert found["engine"] == engine
        assert answers(found) == in_memory(films(), ["film 3"])


# ---- stores that change --------------------------------------------------------------------------


def test_append__queries_scan_until_the_index_is_built_again(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("sets", "build", store, "-q") == 0
    distclust.ingest([films(N_ROWS, 100)], str(store), how="append")
    wanted = in_memory(films(0, 100), ["film 3", "film 99"], k=20)
    assert run("sets", "query", store, "film 3", "film 99", "-k", 20, "--json") == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["engine"] == "scan"
    assert answers(found) == wanted
    assert "the index is older than the rows" in captured.err
    assert run("sets", "query", store, "film 3", "--index", f"{store}.sets") == 2
    assert "Bring it up to date" in capsys.readouterr().err
    assert run("sets", "build", store, "--json") == 0
    facts = document(capsys)
    # Eighty rows fill five shards of sixteen; twenty more make two.
    assert (facts["n_shards"], facts["n_taken_over"], facts["n_made"]) == (7, 5, 2)
    found = ask(capsys, store, "film 3", "film 99", "-k", 20, "--engine", "index")
    assert answers(found) == wanted
    assert run("sets", "build", store, "--index", f"{store}.new", "-q") == 0
    assert parts(Path(f"{store}.sets")) == parts(Path(f"{store}.new"))


def test_append__a_shard_that_was_not_full_is_made_again(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    distclust.ingest([films(N_ROWS, 85)], str(store), how="append")
    assert run("sets", "build", store, "-q") == 0
    distclust.ingest([films(85, 90)], str(store), how="append")
    assert run("sets", "build", store, "--json") == 0
    facts = document(capsys)
    assert (facts["n_shards"], facts["n_taken_over"], facts["n_made"]) == (6, 5, 1)


@pytest.mark.parametrize(
    "gone", [["film 20"], ["film 0", "film 79"], [f"film {i}" for i in range(32)]]
)
def test_delete__answers_are_those_of_the_rows_that_are_left(
    gone: list[str], store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("sets", "build", store, "-q") == 0
    assert run("delete", store, *gone, "-q") == 0
    wanted = in_memory(films().drop(gone), ["film 40", "film 44"], k=60)
    capsys.readouterr()
    found = ask(capsys, store, "film 40", "film 44", "-k", 60)
    assert (found["engine"], answers(found)) == ("scan", wanted)
    assert run("sets", "query", store, gone[0]) == 2
    capsys.readouterr()
    assert run("sets", "build", store, "--json") == 0
    facts = document(capsys)
    assert facts["n_rows"] == N_ROWS - len(gone)
    assert facts["n_taken_over"] + facts["n_made"] == facts["n_shards"]
    assert facts["n_taken_over"] >= 3
    found = ask(capsys, store, "film 40", "film 44", "-k", 60, "--engine", "index")
    assert answers(found) == wanted


# ---- damage, kills -------------------------------------------------------------------------------


def parts(place: Path) -> dict[str, Any]:
    """Size and checksum of every part of the current index."""
    version = ResultsStore(place).current()
    assert version is not None
    return version.files


def test_damage__is_found_and_a_fresh_build_mends_it(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("sets", "build", store, "-q") == 0
    whole = parts(Path(f"{store}.sets"))
    for name in ("shards/3/c/0", "ones/c/0", "index.json"):
        [file] = Path(f"{store}.sets").glob(f"versions/{newest(store)}/{name}")
        content = bytearray(file.read_bytes())
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
        index._open_once.cache_clear()
        assert run("sets", "query", store, "film 3", "--engine", "index") == 2
        error = capsys.readouterr().err
        assert "altered content" in error
        assert "distclust sets build --fresh" in error
        assert run("sets", "build", store, "--fresh", "--json") == 0
        assert document(capsys)["n_made"] == 5
        assert parts(Path(f"{store}.sets")) == whole
        found = ask(capsys, store, "film 3", "--engine", "index")
        assert answers(found) == in_memory(films(), ["film 3"])


def newest(store: Path) -> str:
    version = ResultsStore(f"{store}.sets").current()
    assert version is not None
    return version.id


def test_damage__is_not_taken_over(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("sets", "build", store, "-q") == 0
    [file] = Path(f"{store}.sets").glob("versions/*/shards/1/c/0")
    file.write_bytes(file.read_bytes()[:-8])
    distclust.ingest([films(N_ROWS, 100)], str(store), how="append")
    index._open_once.cache_clear()
    assert run("sets", "build", store, "-q") == 0
    found = ask(capsys, store, "film 17", "--engine", "index", "-k", 30)
    assert answers(found) == in_memory(films(0, 100), ["film 17"], k=30)


def test_index__of_a_newer_format_is_refused(
    store: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(index, "_FORMAT", index._FORMAT + 1)
        assert run("sets", "build", store, "-q") == 0
    index._open_once.cache_clear()
    for verb in (["query", store, "film 3"], ["build", store]):
        assert run("sets", *verb) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert "newer distclust" in captured.err


def test_index__results_of_other_work_are_left_alone(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("fit", "bhc", store, "--out", f"{tmp_path}/results/", "-q") == 0
    before = ResultsStore(tmp_path / "results").names()
    assert run("sets", "build", store, "--index", tmp_path / "results") == 2
    assert "an index of Bayesian Sets" in capsys.readouterr().err
    assert ResultsStore(tmp_path / "results").names() == before


# The command itself, but every shard takes a while.
SLOWLY = """
import time
from distclust.retrieval import index

write = index._write_shard

def slowly(*arguments):
    time.sleep(0.25)
    return write(*arguments)

index._write_shard = slowly
from distclust.cli import run
run()
"""


def start_and_stop(command: list[str], place: Path, number: signal.Signals) -> tuple[int, str]:
    """Build until two shards are done, then send a signal."""
    process = subprocess.Popen(
        [sys.executable, "-c", SLOWLY, *command],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if len(list(place.glob(".distclust/drafts/*/files/shards/*/zarr.json.json"))) >= 2:
            break
        time.sleep(0.005)
    os.kill(process.pid, number)
    _, error = process.communicate(timeout=60)
    return process.returncode, error


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of eight shards."""
    rng = np.random.default_rng(1)
    n_rows, n_features = 500_000, 40
    columns = rng.integers(0, n_features, (n_rows, 3)).astype(np.int32)
    indptr = np.arange(0, 3 * n_rows + 1, 3)
    ones = np.ones(3 * n_rows, np.int8)
    rows = scipy.sparse.csr_array((ones, columns.ravel(), indptr), shape=(n_rows, n_features))
    rows.sum_duplicates()
    rows.data[:] = 1
    place = tmp_path_factory.mktemp("kills") / "large.zarr"
    distclust.ingest([rows], str(place))
    return place


@pytest.fixture(scope="module")
def unbroken(large: Path) -> dict[str, Any]:
    assert cli.main(["sets", "build", str(large), "--index", f"{large}.unbroken", "-q"]) == 0
    return parts(Path(f"{large}.unbroken"))


@pytest.mark.chaos
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_build__stopped_and_run_again_resumes(
    number: signal.Signals,
    large: Path,
    unbroken: dict[str, Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place = tmp_path / "index"
    command = ["sets", "build", str(large), "--index", str(place)]
    code, error = start_and_stop(command, place, number)
    assert ResultsStore(place).names() == []
    if number == signal.SIGKILL:
        assert code == -signal.SIGKILL
    else:
        assert code == 3, error
        assert "Run the same command again: it resumes." in error
        assert "Traceback" not in error
    # Half an index is none: the rows are read.
    found = ask(capsys, large, "17", "-k", 3)
    assert found["engine"] == "scan"
    assert run(*command, "--json") == 0
    facts = document(capsys)
    assert facts["n_resumed"] >= 2
    assert facts["n_made"] + facts["n_resumed"] == facts["n_shards"] == 8
    assert facts["n_made"] < 8
    assert parts(place) == unbroken
    assert ResultsStore(place).unfinished() == {}
    indexed = ask(capsys, large, "17", "-k", 3, "--index", place, "--engine", "index")
    assert answers(indexed) == answers(found)


@pytest.mark.chaos
def test_build__fresh_starts_over(
    large: Path, unbroken: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "index"
    command = ["sets", "build", str(large), "--index", str(place)]
    start_and_stop(command, place, signal.SIGKILL)
    assert run(*command, "--fresh", "--json") == 0
    facts = document(capsys)
    assert (facts["n_made"], facts["n_resumed"]) == (8, 0)
    assert parts(place) == unbroken


# ---- a cold start --------------------------------------------------------------------------------


def test_query__loads_nothing_that_it_does_not_need(golden: Path) -> None:
    code = (
        "import sys, json\n"
        "from distclust import cli\n"
        f"assert cli.main(['sets', 'query', {str(golden)!r}, 'Solaris']) == 0\n"
        "print(json.dumps(sorted(sys.modules)))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    loaded = json.loads(done.stdout.splitlines()[-1])
    heavy = {"sklearn", "matplotlib", "pandas", "dask", "distributed", "zarr", "rich", "rapidfuzz"}
    assert heavy.isdisjoint(loaded)
    assert not [
        name for name in loaded if name.startswith(("distclust.trees", "distclust.service"))
    ]


def test_example__runs(tmp_path: Path) -> None:
    example = Path(__file__).parent.parent / "examples" / "sets.py"
    if not example.is_file():
        pytest.skip("the examples are not part of an installed package")
    command = [sys.executable, "-W", "error::UserWarning", str(example), "--folder", str(tmp_path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=200)
    assert "is the same after loading" in done.stdout
