"""Fits and labels of whole stores on the command line, and trees walked in the terminal."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import adjusted_rand_score

import distclust
from distclust import cli
from distclust.store.results import ResultsStore
from distclust.store.row_labels import StoredLabels

N_ROWS, N_FEATURES, N_KINDS = 20_000, 32, 12


@pytest.fixture(autouse=True)
def _restore_process(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``main`` sets handlers for the whole process; tests share theirs."""
    import logging
    import warnings

    monkeypatch.setenv("COLUMNS", "120")
    handler, show = signal.getsignal(signal.SIGTERM), warnings.showwarning
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    signal.signal(signal.SIGTERM, handler)
    warnings.showwarning = show
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


def planted(n_rows: int, seed: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    profiles = np.random.default_rng(5).beta(0.3, 0.3, size=(N_KINDS, N_FEATURES))
    kinds = rng.integers(0, N_KINDS, n_rows)
    return rng.random((n_rows, N_FEATURES)) < profiles[kinds], kinds


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("large") / "rows.zarr"
    distclust.ingest([planted(N_ROWS, 0)[0]], str(path))
    return path


@pytest.fixture(scope="module")
def results(store: Path) -> Path:
    """The results of a fit by the command itself."""
    out = store.parent / "results"
    command = ["fit", "rbhc", str(store), "--out", str(out), "--sample-size", "500", "-q"]
    assert cli.main(command) == 0
    return out


def run(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])


def document(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


# ---- fit -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["rbhc", "embhc"])
def test_fit__of_a_store_publishes_and_says_what_it_found(
    method: str, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "made" / "results"  # neither exists, and no slash at the end
    command = ["fit", method, store, "--out", out, "--sample-size", 300]
    assert run(*command, "--json") == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    model = distclust.load(out)
    assert type(model).__name__ == {"rbhc": "RandomizedBHC", "embhc": "EMBHC"}[method]
    assert found["n_rows"] == N_ROWS
    assert found["n_clusters"] == model.n_clusters_
    assert found["n_passes"] == model.n_passes_ > 0
    assert found["log_evidence"] == model.log_evidence_
    assert found["version"] == ResultsStore(out).current().id
    assert found["seconds"] > 0
    assert found["resumed_after"] is None
    assert (found["filter_disagreement"] is None) == (method == "embhc")
    assert sum(cluster["n_rows"] for cluster in found["clusters"]) <= N_ROWS
    assert "pass 1" in captured.err or "rows to seeds" in captured.err
    labels = np.asarray(model.labels_)
    assert adjusted_rand_score(planted(N_ROWS, 0)[1], labels) > 0.9


def test_fit__takes_the_parameters_of_its_method_and_the_seed(store: Path, tmp_path: Path) -> None:
    options = {
        "sample_size": 100,
        "max_levels": 4,
        "levels_per_pass": 2,
        "filter_prior": "flat",
        "filter_predictive": "single",
        "resolve": "clusters",
        "check_size": 64,
        "family": "bernoulli",
        "concentration": 2.5,
    }
    arguments = [text for n, v in options.items() for text in (f"--{n.replace('_', '-')}", v)]
    assert run("fit", "rbhc", store, "--out", tmp_path / "r", "--seed", 7, "-q", *arguments) == 0
    model = distclust.load(tmp_path / "r")
    assert model.get_params() == {**options, "random_state": 7}
    assert run("fit", "embhc", store, "--out", tmp_path / "e", "--sweeps", 2, "-q",
               "--sample-size", 50) == 0  # fmt: skip
    assert distclust.load(tmp_path / "e").n_sweeps == 2
    expected = distclust.RandomizedBHC(**options, random_state=7)
    expected.fit(str(store), results=tmp_path / "x")
    assert expected.tree_.to_json() == model.tree_.to_json()


def test_fit__a_file_is_fitted_in_memory_to_a_model_file_or_a_version(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = tmp_path / "t.csv"
    pd.DataFrame(planted(400, 1)[0].astype(int)).add_prefix("f").to_csv(table, index=False)
    command = ["fit", "rbhc", table, "--sample-size", "100", "--ids", "", "-q"]
    assert run(*command, "--out", tmp_path / "m.model") == 0
    assert run(*command, "--out", f"{tmp_path}/results/") == 0
    file, version = distclust.load(tmp_path / "m.model"), distclust.load(tmp_path / "results")
    assert len(file.labels_) == 400
    np.testing.assert_array_equal(file.labels_, version.labels_)
    current = ResultsStore(tmp_path / "results").current()
    assert current is not None
    stored = StoredLabels(tmp_path / "results", current.id)
    np.testing.assert_array_equal(stored.read(0, 400), file.labels_)
    assert "levels.json" in current.files
    capsys.readouterr()
    assert run("show", tmp_path / "m.model", "--json", "--labels", tmp_path / "l.csv") == 0
    assert document(capsys)["n_rows"] == 400
    np.testing.assert_array_equal(pd.read_csv(tmp_path / "l.csv")["cluster"], file.labels_)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--sample-size", "1"], "sample_size: expected 'auto' or a whole number of at least 2"),
        (["--sample-size", "many"], "'many'"),
        (["--levels-per-pass", "0"], "levels_per_pass"),
        (["--max-levels", "0"], "max_levels"),
        (["--filter-prior", "loud"], "filter_prior"),
        (["--filter-predictive", "none"], "filter_predictive"),
        (["--resolve", "all"], "resolve"),
        (["--check-size", "1"], "check_size"),
        (["--family", "cauchy"], "cauchy"),
        (["--threshold", "0.9"], "got --threshold. Leave it out, or fit bhc or rose."),
        (["--sweeps", "3"], "got --sweeps. Leave it out, or fit embhc."),
        (["--variant", "brt"], "--variant"),
        (["--ids", "x"], "a file when columns are named"),
    ],
)
def test_fit__bad_parameters_are_one_sentence_and_write_nothing(
    options: list[str], says: str, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("fit", "rbhc", store, "--out", tmp_path / "r", "-q", *options) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_fit__bhc_has_no_samples(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("fit", "bhc", store, "--out", tmp_path / "m", "--sample-size", 5) == 2
    assert "--sample-size. Leave it out, or fit rbhc or embhc." in capsys.readouterr().err
    assert run("fit", "bhc", store, "--out", tmp_path / "m", "--fresh") == 2
    assert "--fresh" in capsys.readouterr().err


def test_fit__results_go_where_nothing_else_is(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").write_text("keep")
    (tmp_path / "file").write_text("keep")
    for name in ("folder", "file"):
        assert run("fit", "rbhc", store, "--out", tmp_path / name, "-q") == 2
    assert run("fit", "rbhc", store, "--out", store, "-q") == 2
    errors = capsys.readouterr().err.splitlines()
    assert "other things" in errors[0]
    assert "a file" in errors[1]
    assert "a matrix store" in errors[2]
    assert (tmp_path / "folder" / "mine").read_text() == "keep"
    assert distclust.open_store(str(store)).verify() == []


def test_fit__plan_needs_no_row(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blind = tmp_path / "blind.zarr"
    shutil.copytree(store, blind)
    shutil.rmtree(blind / "X" / "c")  # every value
    command = ["fit", "rbhc", blind, "--plan"]
    assert run(*command, "--json") == 0
    plan = document(capsys)
    assert plan["n_rows"] == N_ROWS
    assert plan["passes"] == 3
    for name in ("memory_bytes", "read_bytes", "moved_bytes", "disk_bytes", "seconds"):
        assert plan[name] > 0
    assert "Bernoulli" in plan["assumed"]
    named = ["--out", tmp_path / "r", "--family", "poisson", "--levels-per-pass", "1"]
    assert run(*command, *named) == 0
    text = capsys.readouterr().out
    assert "Poisson rows, chosen by the user" in text
    for word in ("passes", "memory", "read", "moved", "disk", "time", "200 clusters"):
        assert word in text
    assert not (tmp_path / "r").exists()


# ---- kills ---------------------------------------------------------------------------------------


def slow_fit(store: Path, out: Path) -> list[str]:
    """Many passes: a level each."""
    options = ["--sample-size", "1000", "--levels-per-pass", "1"]
    return ["fit", "rbhc", str(store), "--out", str(out), *options]


def start_and_stop(command: list[str], out: Path, number: signal.Signals) -> tuple[int, str]:
    """Run a command until two passes are saved, then send it a signal."""
    process = subprocess.Popen(
        [sys.executable, "-m", "distclust", *command],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if list(out.glob("checkpoints/*/*-000000000002.checkpoint")):
            break
        time.sleep(0.005)
    os.kill(process.pid, number)
    _, error = process.communicate(timeout=60)
    return process.returncode, error


@pytest.fixture(scope="module")
def undisturbed(store: Path) -> Any:
    """The model of the same fit, never stopped."""
    out = store.parent / "undisturbed"
    assert cli.main([*slow_fit(store, out), "-q"]) == 0
    model = distclust.load(out)
    assert model.n_passes_ >= 4
    return model


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_fit__stopped_and_run_again_resumes_with_the_same_answer(
    number: signal.Signals,
    store: Path,
    undisturbed: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "results"
    code, error = start_and_stop(slow_fit(store, out), out, number)
    assert ResultsStore(out).names() == []
    if number == signal.SIGKILL:
        assert code == -signal.SIGKILL
    else:
        assert code == 3, error
        assert "Run the same command again: it resumes." in error
        assert "Traceback" not in error
    assert run(*slow_fit(store, out), "--json") == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["resumed_after"] >= 2
    assert f"resuming after pass {found['resumed_after']}\n" in captured.err
    assert "checking the data" not in captured.err
    model = distclust.load(out)
    assert model.tree_.to_json() == undisturbed.tree_.to_json()
    np.testing.assert_array_equal(np.asarray(model.labels_), np.asarray(undisturbed.labels_))


def test_fit__fresh_starts_over(
    store: Path, undisturbed: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "results"
    start_and_stop(slow_fit(store, out), out, signal.SIGKILL)
    assert run(*slow_fit(store, out), "--fresh", "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["resumed_after"] is None
    assert "resuming" not in captured.err
    assert "checking the data" in captured.err
    assert distclust.load(out).tree_.to_json() == undisturbed.tree_.to_json()
    assert ResultsStore(out).unfinished() == {}


# ---- predict -------------------------------------------------------------------------------------


def test_predict__of_a_store_writes_labels_beside_nothing_else(
    store: Path, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = tmp_path / "new.zarr"
    distclust.ingest([planted(3000, 9)[0]], str(new))
    out = tmp_path / "labels"
    assert run("predict", results, new, "--out", out, "--json", "-q") == 0
    found = document(capsys)
    expected = distclust.load(results).predict(planted(3000, 9)[0])
    assert found["n_rows"] == 3000
    assert found["counts"] == np.bincount(expected, minlength=found["n_clusters"]).tolist()
    stored = StoredLabels(out, found["version"])
    np.testing.assert_array_equal(stored.read(0, 3000), expected)
    assert (Path(found["labels"]) / "zarr.json").is_file()
    assert run("predict", results, new, "--out", out) == 0
    assert "3,000 labels of" in capsys.readouterr().out
    assert run("versions", "list", out) == 0
    text = capsys.readouterr().out
    assert text.count("labels") >= 2
    assert f"({found['n_clusters']} in all)" in text or found["n_clusters"] <= 12
    assert run("show", out) == 2
    assert "expected a model, got labels of rows" in capsys.readouterr().err


def test_predict__fitted_rows_get_their_labels_back(
    store: Path, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("predict", results, store, "--out", tmp_path / "l", "--json", "-q") == 0
    labels = StoredLabels(tmp_path / "l", document(capsys)["version"]).read(0, N_ROWS)
    np.testing.assert_array_equal(labels, np.asarray(distclust.load(results).labels_))


def test_predict__files_follow_the_filters(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = np.random.default_rng(0).random((3000, N_FEATURES)) < 0.5  # unlike all clusters
    np.save(tmp_path / "rows.npy", rows)
    assert run("predict", results, tmp_path / "rows.npy", "--out", tmp_path / "p.csv", "-q") == 0
    frame = pd.read_csv(tmp_path / "p.csv")
    model = distclust.load(results)
    np.testing.assert_array_equal(frame["cluster"], model.predict(rows))
    chances = model.predict_proba(rows)
    assert (frame["cluster"] != chances.argmax(axis=1)).any()  # else this would show nothing
    np.testing.assert_allclose(frame["probability"], chances[np.arange(3000), frame["cluster"]])


def test_predict__labels_have_their_own_place(
    store: Path, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = ResultsStore(results).current().id
    assert run("predict", results, store, "--out", results, "-q") == 2
    assert "versions of RandomizedBHC" in capsys.readouterr().err
    assert ResultsStore(results).current().id == before
    assert run("predict", results, store, "--out", tmp_path / "l", "--proba", "-q") == 2
    assert "--proba" in capsys.readouterr().err
    assert run("predict", results, store, "--out", tmp_path / "l", "--plan") == 0
    assert "labels of a store" in capsys.readouterr().out
    assert not (tmp_path / "l").exists()


# ---- show ----------------------------------------------------------------------------------------


@pytest.fixture
def without_labels(results: Path, tmp_path: Path) -> Path:
    """The same results, without any label."""
    path = tmp_path / "unlabelled"
    shutil.copytree(results, path)
    (labels,) = path.glob("versions/*/labels")
    shutil.rmtree(labels)
    return path


def test_show__walks_the_tree_without_labels(
    results: Path, without_labels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("show", without_labels, "--json") == 0
    found = document(capsys)
    model = distclust.load(results)
    tree = model.tree_
    assert found["n_rows"] == N_ROWS == found["levels"][0]["n_rows"]
    first = found["nodes"][0]
    assert first["node"] == tree.root
    assert first["n_clusters"] == model.n_clusters_
    depth = tree.structure.depth
    assert {node["node"] for node in found["nodes"]} == set(np.flatnonzero(depth <= 3).tolist())
    for node in found["nodes"]:
        assert node["n_rows"] == tree.n_rows[node["node"]]
        assert node["share"] == pytest.approx(node["n_rows"] / N_ROWS)
        assert node["probability"] == pytest.approx(tree.posterior[node["node"]])
        if node["is_cluster"]:
            assert node["n_rows"] == (np.asarray(model.labels_) == node["label"]).sum()
    inner = next(node for node in found["nodes"] if node["parent"] == tree.root)
    (best, *_) = tree.top_features(inner["node"], 4)
    assert inner["features"][0]["name"] == best.name
    assert inner["features"][0]["mean"] == pytest.approx(best.mean)
    assert inner["features"][0]["sibling_mean"] == pytest.approx(best.sibling_mean)


@pytest.mark.parametrize("width", [80, 120])
def test_show__prints_levels_and_nodes_that_fit(
    width: int,
    results: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert run("show", results, "--depth", 9) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= width
    model = distclust.load(results)
    assert f"node {model.tree_.root} · 20,000 rows (all)" in text
    for label in range(model.n_clusters_):
        assert f"● cluster {label} · node " in text
    for head in ("level", "leaves", "largest", "smallest"):
        assert head in text


def test_show__walks_from_any_node(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = distclust.load(results).tree_
    child = int(tree.structure.children(tree.root)[0])
    assert run("show", results, "--node", child, "--depth", 1, "--features", 2, "--json") == 0
    nodes = document(capsys)["nodes"]
    assert nodes[0]["node"] == child
    assert len(nodes) == 1 + len(tree.structure.children(child))
    assert all(len(node["features"]) == 2 for node in nodes)
    assert run("show", results, "--node", 10**6) == 2
    assert f"The root is node {tree.root}" in capsys.readouterr().err


def test_show__exact_trees_are_walked_when_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    distclust.BHC().fit(planted(60, 2)[0]).save(tmp_path / "m")
    assert run("show", tmp_path / "m", "--depth", 2) == 0
    assert "node 118 · 60 rows (all)" in capsys.readouterr().out
    assert run("show", tmp_path / "m") == 0
    assert "node 118" not in capsys.readouterr().out


def test_show__one_cluster_is_a_tree_of_one_node(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = np.random.default_rng(0).random((3000, 6)) < 0.5
    distclust.ingest([rows], str(tmp_path / "one.zarr"))
    assert run("fit", "rbhc", tmp_path / "one.zarr", "--out", tmp_path / "r", "-q") == 0
    assert run("show", tmp_path / "r", "--picture", tmp_path / "t.png") == 0
    text = capsys.readouterr().out
    assert "1 cluster among 3,000 rows" in text
    assert "● cluster 0 · node 0 · 3,000 rows (all)" in text


def test_show__labels_of_a_store_are_where_it_says(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("show", results, "--labels", tmp_path / "l.csv") == 2
    error = capsys.readouterr().err
    place = next(word for word in error.split() if word.endswith("/labels,")).rstrip(",")
    import zarr

    np.testing.assert_array_equal(
        zarr.open_array(place, mode="r")[:], np.asarray(distclust.load(results).labels_)
    )
    assert not (tmp_path / "l.csv").exists()


def test_show__draws_pages_and_newick(
    without_labels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, picture = tmp_path / "page.html", tmp_path / "tree.svg"
    assert run("show", without_labels, "--page", page, "--picture", picture, "-q") == 0
    assert f"clusters of {N_ROWS:,} rows" in page.read_text()
    assert "rows" in picture.read_text()
    capsys.readouterr()
    assert run("show", without_labels, "--newick") == 0
    assert capsys.readouterr().out.strip().endswith(";")
    assert run("show", without_labels, "--threshold", "0.999999", "--json") == 0
    assert document(capsys)["n_clusters"] >= 1


# ---- the example ---------------------------------------------------------------------------------

EXAMPLE = Path(__file__).parent.parent / "examples" / "large.py"


@pytest.mark.skipif(
    not EXAMPLE.is_file(), reason="the examples are not part of an installed package"
)
def test_example__runs_and_finds_what_was_planted(tmp_path: Path) -> None:
    command = [sys.executable, str(EXAMPLE), "--rows", "60000", "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert "24 clusters of 60,000 rows" in done.stdout
    again = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert again.returncode == 0, again.stderr  # a second version of the same
    assert again.stdout.split("\n")[2:] == done.stdout.split("\n")[2:]
