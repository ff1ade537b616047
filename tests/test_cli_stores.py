"""The verbs around stores as people use them: ingest, info, verify, delete, compact, versions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import distclust
from distclust import cli
from distclust.store.matrix_store import open_store

VERBS = (
    ("ingest",),
    ("info",),
    ("verify",),
    ("delete",),
    ("compact",),
    ("versions", "list"),
    ("versions", "show"),
    ("versions", "diff"),
    ("versions", "rollback"),
    ("versions", "gc"),
)


@pytest.fixture(autouse=True)
def _restore_process() -> Iterator[None]:
    """``main`` sets handlers for the whole process; tests share theirs."""
    import logging
    import warnings

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


def people(start: int, stop: int) -> pd.DataFrame:
    """Rows named p0, p1, ...; two kinds of row, so that there is something to find."""
    random = np.random.default_rng(start)
    chances = np.where(np.arange(start, stop)[:, None] % 2 == 0, 0.9, 0.1)
    values = (random.random((stop - start, 8)) < chances).astype(int)
    names = [f"p{i}" for i in range(start, stop)]
    return pd.DataFrame(values, index=names, columns=[f"likes {c}" for c in "abcdefgh"])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    people(0, 60).to_csv(tmp_path / "people.csv")
    return tmp_path / "people.csv"


@pytest.fixture
def store(table: Path, tmp_path: Path) -> Path:
    assert run("ingest", table, tmp_path / "people.zarr", "--quiet") == 0
    return tmp_path / "people.zarr"


@pytest.mark.parametrize("verb", VERBS)
def test_help__has_an_example_and_the_common_options(
    verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*verb, "--help") == 0
    text = capsys.readouterr().out
    assert f"Example:\n    distclust {' '.join(verb)}" in text
    for option in ("--json", "--seed", "--plan", "-v, --verbose", "-q, --quiet"):
        assert option in text


@pytest.mark.parametrize("verb", VERBS)
def test_plan__every_verb_has_one_and_changes_nothing(
    verb: tuple[str, ...], table: Path, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(store.rglob("*"))
    more = {
        "ingest": [table, store],
        "delete": [store, "p1"],
        "diff": [store, "1", "1"],
    }.get(verb[-1], [store])
    assert run(*verb, *more, "--plan", "--json") == 0
    assert {"passes", "memory_bytes", "disk_bytes", "seconds"} <= document(capsys).keys()
    assert sorted(store.rglob("*")) == before


def test_info__says_what_is_there(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("info", store, "--json") == 0
    facts = document(capsys)
    assert facts["shape"] == [60, 8]
    assert facts["family"] == "Bernoulli"
    assert facts["layout"] == "dense"
    assert facts["health"] == "complete"
    assert facts["fingerprint"] == open_store(store).fingerprint
    assert facts["size_bytes"] > 0
    assert run("info", store) == 0
    text = capsys.readouterr().out
    for word in ("60 rows, 8 features", "Bernoulli", "dense", "complete", facts["fingerprint"]):
        assert word in text


def test_ingest__same_answer_as_the_file_itself(table: Path, store: Path, tmp_path: Path) -> None:
    for name, source in (("file", table), ("store", store)):
        assert run("fit", "bhc", source, "--out", tmp_path / name, "--quiet") == 0
    file, stored = (distclust.load(tmp_path / name) for name in ("file", "store"))
    assert np.array_equal(file.labels_, stored.labels_)
    assert file.log_evidence_ == stored.log_evidence_
    assert list(file.tree_.row_ids) == list(stored.tree_.row_ids)
    assert list(stored.feature_names_in_) == list(people(0, 1).columns)


def test_predict__from_and_to_stores(
    table: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("fit", "bhc", store, "--out", f"{tmp_path}/results/", "--quiet") == 0
    assert run("predict", f"{tmp_path}/results", store, "--quiet") == 0
    from_store = capsys.readouterr().out
    assert run("predict", f"{tmp_path}/results", table, "--quiet") == 0
    assert capsys.readouterr().out == from_store
    assert from_store.splitlines()[1].startswith("p0,")


def test_growing__append_replace_delete_compact(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    people(60, 80).to_csv(tmp_path / "more.csv")
    changed = 1 - people(50, 60)
    changed.to_csv(tmp_path / "changed.csv")
    assert run("ingest", tmp_path / "more.csv", store, "--append", "-q") == 0
    assert run("ingest", tmp_path / "changed.csv", store, "--replace", "-q") == 0
    (tmp_path / "gone.txt").write_text("p1\np2\n")
    assert run("delete", store, "p0", "--ids-from", tmp_path / "gone.txt", "-q") == 0
    expected = pd.concat([people(3, 50).set_axis(people(3, 50).index), people(60, 80), changed])
    matrix = open_store(store).matrix()
    kept = {f"p{i}" for i in range(3, 80)}
    assert set(matrix.row_ids) == kept == set(expected.index)
    found = pd.DataFrame(matrix.read_all(), index=matrix.row_ids).loc[changed.index]
    assert np.array_equal(found.to_numpy(), changed.to_numpy())
    assert run("compact", store, "-q") == 0
    compacted = open_store(store)
    assert set(compacted.matrix().row_ids) == kept
    assert compacted.info()["deleted"] == 0
    capsys.readouterr()
    assert run("versions", "list", store, "--json") == 0
    kinds = [version["kind"] for version in document(capsys)["versions"]]
    assert kinds == ["create", "append", "replace", "delete", "compact"]


def test_versions__of_a_matrix_store(store: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = open_store(store).fingerprint
    assert run("delete", store, "p7", "-q") == 0
    assert run("versions", "diff", store, "1", "2", "--json") == 0
    assert document(capsys)["differences"]["rows"] == [60, 59]
    assert run("versions", "rollback", store, "--json") == 0
    assert document(capsys)["current"] == "3"
    assert open_store(store).fingerprint == first
    assert run("versions", "gc", store, "--keep", "1", "--grace", "0s", "--json") == 0
    assert document(capsys)["generations"] == ["1", "2"]
    assert open_store(store).matrix().read_all().shape == (60, 8)


def test_versions__of_a_results_store(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results = f"{tmp_path}/results/"
    for concentration in (1, 2):
        arguments = ("--out", results, "--concentration", concentration, "-q")
        assert run("fit", "bhc", store, *arguments) == 0
    assert run("versions", "list", results, "--json") == 0
    old, new = document(capsys)["versions"]
    assert [old["is_current"], new["is_current"]] == [False, True]
    assert new["input_fingerprint"] == open_store(store).fingerprint
    assert (new["seed"], new["code_version"]) == (0, distclust.__version__)
    assert new["metrics"]["n_rows"] == 60
    assert run("versions", "diff", results, old["version"], new["version"], "--json") == 0
    differences = document(capsys)["differences"]
    assert differences["parameters"]["concentration"] == [1.0, 2.0]
    assert run("versions", "rollback", results, "-q") == 0
    assert distclust.load(results).concentration == 1.0
    for command in (("list",), ("show",), ("show", old["version"])):
        assert run("versions", command[0], results, *command[1:]) == 0
        assert old["version"] in capsys.readouterr().out
    assert run("verify", results) == 0
    assert run("versions", "gc", results, "--keep", "1", "--grace", "0s", "-q") == 0
    assert distclust.load(results).concentration == 1.0


def test_verify__names_what_is_wrong_with_exit_code_2(
    store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("verify", store) == 0
    assert "every byte is as it was written" in capsys.readouterr().out
    chunk = store / "X" / "c" / "0" / "0"
    content = bytearray(chunk.read_bytes())
    content[5] ^= 1
    chunk.write_bytes(content)
    assert run("verify", store, "-q") == 2
    assert "X/c/0/0: altered" in capsys.readouterr().err
    assert run("fit", "bhc", store, "--out", store.parent / "m", "-q") == 2
    error = capsys.readouterr().err
    assert "X/c/0/0" in error
    assert len(error.splitlines()) == 1
    assert not (store.parent / "m").exists()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("info", "nowhere.zarr"), "nothing there"),
        (("verify", "nowhere.zarr"), "nothing there"),
        (("ingest", "nowhere.csv", "x.zarr"), "nothing there"),
        (("ingest", "people.csv", "people.zarr"), "complete"),
        (("ingest", "people.csv", "people.zarr", "--append"), "p0"),
        (("ingest", "people.csv", "x.zarr", "--append"), "nothing there"),
        (("ingest", "people.csv", "x.zarr", "--append", "--replace"), "both"),
        (("ingest", "people.csv", "x.zarr", "--format", "xls"), "xls"),
        (("ingest", "people.csv", "x.zarr", "--ids", "absent"), "absent"),
        (("ingest", "people.csv", "x.zarr", "--min-df", "many"), "--min-df"),
        (("ingest", "people.csv", "x.zarr", "--binarise", "sometimes"), "sometimes"),
        (("delete", "people.zarr"), "at least one id"),
        (("delete", "people.zarr", "nobody"), "nobody"),
        (("delete", "people.zarr", "--ids-from", "absent.txt"), "absent.txt"),
        (("versions", "show", "people.zarr", "9"), "9"),
        (("versions", "rollback", "people.zarr"), "before the current"),
        (("versions", "diff", "people.zarr", "1", "7"), "7"),
        (("versions", "gc", "people.zarr", "--grace", "soon"), "soon"),
        (("fit", "bhc", "people.zarr", "--out", "m", "--drop", "likes a"), "a store"),
        (("show", "nowhere/"), "a published version"),
    ],
)
def test_bad_input__one_sentence_and_exit_code_2(
    arguments: tuple[str, ...],
    says: str,
    table: Path,
    store: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(store.parent)
    (store.parent / "nowhere").mkdir()
    if arguments == ("ingest", "people.csv", "people.zarr"):
        people(0, 5).to_csv(table)  # other rows: the same ones would be there already
    assert run(*arguments, "-q") == 2
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error
    assert len(error.strip().splitlines()) == 1
    assert not (store.parent / "x.zarr").exists() or not any((store.parent / "x.zarr").iterdir())


def test_ingest__killed_and_run_again_is_complete(tmp_path: Path) -> None:
    people(0, 40_000).to_csv(tmp_path / "many.csv")
    people(0, 9).to_csv(tmp_path / "other.csv")
    command = [sys.executable, "-m", "distclust", "ingest"]
    command += [str(tmp_path / "many.csv"), str(tmp_path / "many.zarr"), "-q"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    hidden = tmp_path / "many.zarr" / ".distclust"
    deadline = time.monotonic() + 60
    while not any(hidden.glob("ingest/*/source/**/*")) and time.monotonic() < deadline:
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert run("info", tmp_path / "many.zarr", "-q") == 2
    assert run("ingest", tmp_path / "other.csv", tmp_path / "many.zarr", "-q") != 0
    assert run("ingest", tmp_path / "many.csv", tmp_path / "many.zarr", "-q") == 0
    assert run("verify", tmp_path / "many.zarr", "-q") == 0
    expected = people(0, 40_000)
    matrix = open_store(tmp_path / "many.zarr").matrix()
    assert np.array_equal(matrix.read_all(), expected.to_numpy())
    assert list(matrix.row_ids) == list(expected.index)
    assert not (hidden / "ingest").exists() or not any((hidden / "ingest").rglob("*.*"))


def test_ingest__the_same_again_changes_nothing(table: Path, store: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*") if path.is_file()}
    assert run("ingest", table, store, "-q") == 0
    after = {path: path.stat().st_mtime_ns for path in store.rglob("*") if path.is_file()}
    assert after == before


def test_ingest__ids_that_repeat_and_decimal_commas_are_not_taken_for_categories(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "twice.csv").write_text("user_id,a\nx,1\ny,2\nx,3\n")
    assert run("ingest", tmp_path / "twice.csv", tmp_path / "a.zarr", "-q") == 2
    assert "--ids user_id" in capsys.readouterr().err
    command = ("ingest", tmp_path / "twice.csv", tmp_path / "a.zarr", "-q")
    assert run(*command, "--ids", "user_id", "--duplicates", "last") == 0
    assert open_store(tmp_path / "a.zarr").matrix().read_all().tolist() == [[2], [3]]
    (tmp_path / "comma.csv").write_text("a;b\n1;0,5\n2;1,5\n")
    assert run("ingest", tmp_path / "comma.csv", tmp_path / "b.zarr", "-q") == 2
    assert "decimal comma" in capsys.readouterr().err
    assert not (tmp_path / "b.zarr").exists()
