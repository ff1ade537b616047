"""Mixtures and ensembles on the command line: fit dpmixture, fit ensemble, predict, show."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import distclust
from distclust import cli
from distclust.store.results import ResultsStore

N_ROWS = 120
CENTRES = np.array([[-4.0, 0.0, 1.0], [0.0, 4.0, 0.0], [4.0, 0.0, -1.0]])
SHORT = (*("--family", "diagonal-gaussian", "--chains", 2, "--max-sweeps", 60, "--stop", "none"),)


@pytest.fixture(autouse=True)
def _restore_process(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``main`` sets handlers for the whole process; tests share theirs."""
    import logging
    import warnings

    monkeypatch.setenv("COLUMNS", "160")
    handler, show = signal.getsignal(signal.SIGTERM), warnings.showwarning
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    signal.signal(signal.SIGTERM, handler)
    warnings.showwarning = show
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


def rows(n_rows: int = N_ROWS) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(0)
    return CENTRES[np.arange(n_rows) % 3] + 0.6 * rng.normal(size=(n_rows, 3))


def ids(n_rows: int = N_ROWS) -> list[str]:
    return [f"row {i}" for i in range(n_rows)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mixtures")


@pytest.fixture(scope="module")
def table(folder: Path) -> Path:
    path = folder / "table.csv"
    frame = pd.DataFrame(rows(), columns=["a", "b", "c"])
    frame.insert(0, "name", ids())
    frame.to_csv(path, index=False)
    return path


@pytest.fixture(scope="module")
def store(folder: Path) -> Path:
    path = folder / "rows.zarr"
    distclust.ingest([(ids(), rows())], str(path))
    return path


@pytest.fixture(scope="module")
def labels(folder: Path) -> Path:
    """Clusterings by other tools: three groups, each in two halves; a row nobody labelled."""
    rng = np.random.default_rng(1)
    truth = np.arange(N_ROWS) % 3
    frame = pd.DataFrame({f"tool {m}": 2.0 * truth + rng.integers(0, 2, N_ROWS) for m in range(5)})
    frame.iloc[7] = np.nan
    frame.iloc[9, 2] = np.nan
    frame.insert(0, "name", ids())
    frame.to_csv(folder / "labels.csv", index=False)
    return folder / "labels.csv"


@pytest.fixture(scope="module")
def results(store: Path) -> Path:
    """The results of a fit by the command itself, in the place it chooses."""
    assert run("fit", "dpmixture", store, *SHORT, "-q") == 0
    return Path(f"{store}.dpmixture")


@pytest.fixture(scope="module")
def consensus(labels: Path, folder: Path) -> Path:
    path = folder / "consensus.model"
    words = ["--chains", 2, "--max-sweeps", 60, "--stop", "none"]
    assert run("fit", "ensemble", labels, "--labels", "-o", path, *words, "-q") == 0
    return path


def run(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])


def document(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def files_in(place: Path) -> set[str]:
    return {str(path.relative_to(place)) for path in place.rglob("*")}


# ---- help ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["dpmixture", "ensemble"])
def test_help__has_an_example_and_the_common_options(
    method: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("fit", method, "--help") == 0
    text = capsys.readouterr().out
    assert f"Usage: distclust fit {method} [OPTIONS]" in text
    assert f"Example:\n    distclust fit {method}" in text
    for option in ("--json", "--seed", "--plan", "-q, --quiet", "--scheduler", "--workers"):
        assert option in text
    for option in ("--chains", "--max-sweeps", "--stop", "--picture", "--labels-out", "--fresh"):
        assert option in text


def test_help__fit_points_at_all_methods(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fit", "--help") == 0
    text = " ".join(capsys.readouterr().out.split())
    for method in ("kpca", "dpmixture", "ensemble"):
        assert f"distclust fit {method} --help" in text


@pytest.mark.parametrize("method", ["dpmixture", "ensemble"])
def test_fit__the_method_comes_first(method: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fit", "-q", method, "t.csv") == 2
    assert f"'{method}' comes before all options" in capsys.readouterr().err


def test_fit__options_are_the_parameters_of_the_estimators() -> None:
    from inspect import signature

    from distclust.cli import mixtures

    for parameters, estimator in (
        (mixtures.PARAMETERS, distclust.DPMixture),
        (mixtures.ENSEMBLE_PARAMETERS, distclust.ClusterEnsemble),
    ):
        assert {*parameters, "random_state"} == set(signature(estimator).parameters)


# ---- fit dpmixture -------------------------------------------------------------------------------


def test_fit__of_a_store_publishes_beside_it_and_says_what_it_found(
    store: Path, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r"
    assert run("fit", "dpmixture", store, *SHORT, "--results", out, "--json") == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    model, beside = distclust.load(out), distclust.load(results)
    own = distclust.DPMixture(
        "diagonal_gaussian", n_chains=2, max_sweeps=60, stop=None, random_state=0
    ).fit(rows())
    np.testing.assert_array_equal(model.labels_, own.labels_)
    np.testing.assert_array_equal(beside.draws_, own.draws_)
    assert [each["n_rows"] for each in found["clusters"]] == np.bincount(own.labels_).tolist()
    means = [own.confidence_[own.labels_ == k].mean() for k in range(own.n_clusters_)]
    assert [each["confidence"] for each in found["clusters"]] == pytest.approx(means)
    assert found["n_clusters"] == own.n_clusters_ == 3
    assert found["expected_loss"] == own.expected_loss_
    assert found["agreed"] is False
    assert "too little" in found["advice"] or "Raise" in found["advice"]
    for figure in found["figures"]:
        for name in ("rhat", "ess_bulk", "ess_tail"):
            assert figure[name] == own.diagnostics_[name][figure["figure"]]
    assert found["version"] == model.version_ == ResultsStore(out).names()[-1]
    assert (found["n_chains"], found["n_sweeps"], found["resumed_after"]) == (2, 60, None)
    assert "distclust: sampling  60 of 60 (100 %)" in captured.err


def test_fit__of_a_table_writes_model_labels_and_picture(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, listed, picture = (tmp_path / name for name in ("m.model", "l.csv", "p.svg"))
    words = ["--labels-out", listed, "--picture", picture]
    assert run("fit", "dpmixture", table, *SHORT, "--out", out, *words) == 0
    text = capsys.readouterr().out
    for word in ("3 clusters among 120 rows and 3 features", "R-hat", "log joint", "not agreed"):
        assert word in text
    for path in (out, listed, picture):
        assert f"written to {path}" in text
    model = distclust.load(out)
    frame = pd.read_csv(listed, float_precision="round_trip")
    assert frame.columns.tolist() == ["row", "cluster", "confidence"]
    assert frame["row"].tolist() == ids()
    assert frame["cluster"].tolist() == model.labels_.tolist()
    assert frame["confidence"].tolist() == model.confidence_.tolist()
    assert "<svg" in picture.read_text()
    assert run("fit", "dpmixture", table, *SHORT, "--out", out, *words, "-q") == 0  # again
    assert capsys.readouterr().out == ""


def test_fit__takes_the_parameters_and_the_seed(table: Path, tmp_path: Path) -> None:
    words = [
        *("--family", "gaussian", "--concentration", 0.7, "--sampler", "blocked-tdp"),
        *("--chains", 2, "--max-sweeps", 20, "--init", "groups", "--no-split-merge"),
        *("--stop", "none", "--concentration-prior", 2, 3, "--truncation", 7),
        *("--rhat", 1.5, "--min-samples", 5, "--seed", 9),
    ]
    assert run("fit", "dpmixture", table, *words, "-o", tmp_path / "m", "-q") == 0
    found = distclust.load(tmp_path / "m").get_params()
    assert found.pop("concentration_prior") == [2.0, 3.0]
    assert found == {
        "family": "gaussian", "concentration": 0.7, "sampler": "blocked-tdp", "n_chains": 2,
        "max_sweeps": 20, "init": "groups", "split_merge": False, "stop": None, "random_state": 9,
        "truncation": 7, "rhat": 1.5, "min_samples": 5.0,
    }  # fmt: skip


def test_fit__weights_are_a_column_and_no_feature(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pd.DataFrame(rows(), columns=["a", "b", "c"])
    frame["times"] = 1 + np.arange(N_ROWS) % 2
    frame.to_csv(tmp_path / "w.csv", index=False)
    out, words = tmp_path / "m", ["fit", "dpmixture", tmp_path / "w.csv", *SHORT]
    assert run(*words, "--row-weights", "times", "-o", out, "--json") == 0
    found = document(capsys)
    assert found["n_features"] == 3
    assert sum(each["weight"] for each in found["clusters"]) == frame["times"].sum()
    assert run(*words, "--row-weights", "lots", "-o", out, "-q") == 2
    assert "--row-weights: expected a column 'lots'" in capsys.readouterr().err
    assert run(*words, "--row-weights", "a", "-o", out, "-q") == 2
    assert "row_weights: expected 120 whole numbers" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--chains", "0"], "n_chains: expected a whole number of at least 1"),
        (["--chains", "x"], "'x' is not a valid integer"),
        (["--max-sweeps", "1"], "max_sweeps"),
        (["--sampler", "magic"], "sampler: expected one of"),
        (["--init", "magic"], "init: expected one of"),
        (["--stop", "magic"], "stop: expected one of"),
        (["--family", "magic"], "magic"),
        (["--concentration", "-1"], "concentration"),
        (["--concentration", "magic"], "concentration: expected one of"),
        (["--rhat", "0.5"], "rhat"),
        (["--workers", "2"], "--workers: expected --scheduler local"),
        (["--out", "also"], "--out or --results, got both"),
        (["--picture", "p.bmp"], ".png, .svg, .pdf"),
        (["--labels-out", "no/such/folder.csv"], "a place to write to"),
        (["--row-weights", "a"], "--row-weights"),
        (["--truncation", "1", "--sampler", "blocked-dma"], "truncation"),
    ],
)
def test_fit__bad_parameters_are_one_sentence_and_write_nothing(
    options: list[str], says: str, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("fit", "dpmixture", store, "--results", tmp_path / "r", "-q", *options) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_fit__bad_rows_and_places_are_one_sentence(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "one.npy", rows(1))
    (tmp_path / "mine.csv").write_text("keep,this\n")
    cases: list[tuple[list[Any], str]] = [
        ([tmp_path / "one.npy", "-o", tmp_path / "m"], "at least 2 rows"),
        ([tmp_path / "none.csv", "-o", tmp_path / "m"], "none.csv"),
        ([table], "--out, or a results store with --results"),
        ([table, "-o", tmp_path / "m", "--fresh"], "--fresh"),
        ([table, "-o", tmp_path / "m", "--family", "poisson"], "poisson"),
        ([table, "-o", tmp_path / "m", "--labels-out", tmp_path / "mine.csv"], "another kind"),
        ([table, "-o", tmp_path / "m", "--labels-out", table], "an input"),
    ]
    for words, says in cases:
        assert run("fit", "dpmixture", *words, "-q") == 2, words
        error = capsys.readouterr().err
        assert says.lower() in error.lower()
        assert error.count("\n") == 1
    assert not (tmp_path / "m").exists()
    assert (tmp_path / "mine.csv").read_text() == "keep,this\n"


def test_plan__measures_and_writes_nothing(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["fit", "dpmixture", store, *SHORT, "--results", tmp_path / "r", "--plan"]
    assert run(*command, "--json") == 0
    plan = document(capsys)
    assert plan["rows_bytes"] == 8 * N_ROWS * 3
    assert (plan["n_chains"], plan["max_sweeps"]) == (2, 60)
    assert plan["seconds"] > plan["sweep_seconds"] > 0
    assert run(*command) == 0
    text = capsys.readouterr().out
    for word in ("sweeps", "memory", "at most", "measured on 120 rows"):
        assert word in text
    assert run(*command, "--chains", 0) == 2
    assert list(tmp_path.iterdir()) == []


def test_events__are_a_line_a_chain_and_round(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "e.jsonl"
    words = ["--results", tmp_path / "r", "--events", log, "-q"]
    assert run("fit", "dpmixture", store, *SHORT, *words) == 0
    found = [json.loads(line) for line in log.read_text().splitlines()]
    chains = [event for event in found if event["stage"] == "chain 1"]
    assert [event["done"] for event in chains] == [50, 60]
    assert set(chains[0]["metrics"]) == {"log_joint", "n_clusters", "concentration"}
    assert capsys.readouterr().out == ""


# ---- kills ---------------------------------------------------------------------------------------

SAVING_OFTEN = (
    "from distclust.engine.crews.crew import Crew; from distclust import cli; "
    "Crew.__init__.__kwdefaults__['seconds'] = 0.02; cli.run()"
)


def long_fit(store: Path, out: Path) -> list[str]:
    words = ["--family", "diagonal-gaussian", "--chains", "2", "--max-sweeps", "3000"]
    return ["fit", "dpmixture", str(store), "--results", str(out), "--stop", "none", *words]


def start_and_stop(command: list[str], log: Path, out: Path, number: signal.Signals) -> str:
    """Run a command until some sweeps are done and saved; then stop it."""
    process = subprocess.Popen(
        [sys.executable, "-c", SAVING_OFTEN, *command, "--events", str(log)],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 300  # functions may have to be compiled first
    while time.monotonic() < deadline and process.poll() is None:
        is_saved = bool(list(out.glob("checkpoints/*/plan/*.checkpoint")))
        if is_saved and log.exists() and log.read_text().count("chain 1") > 2:
            break
        time.sleep(0.005)
    os.kill(process.pid, number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == (-signal.SIGKILL if number == signal.SIGKILL else 3), error
    return error


@pytest.fixture(scope="module")
def undisturbed(store: Path) -> Any:
    """The model of the same fit, never stopped."""
    out = store.parent / "undisturbed"
    assert run(*long_fit(store, out), "-q") == 0
    return distclust.load(out)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_fit__stopped_and_run_again_resumes_with_the_same_answer(
    number: signal.Signals,
    store: Path,
    undisturbed: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, log = tmp_path / "results", tmp_path / "events.jsonl"
    error = start_and_stop(long_fit(store, out), log, out, number)
    assert ResultsStore(out).names() == []
    if number == signal.SIGINT:
        assert "Run the same command again: it resumes." in error
        assert "Traceback" not in error
    assert run(*long_fit(store, out), "--json") == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["resumed_after"] >= 50
    assert found["resumed_after"] % 50 == 0
    assert f"resuming after sweep {found['resumed_after']}\n" in captured.err
    model = distclust.load(out)
    np.testing.assert_array_equal(model.labels_, undisturbed.labels_)
    np.testing.assert_array_equal(model.draws_, undisturbed.draws_)
    np.testing.assert_array_equal(model.traces_["log_joint"], undisturbed.traces_["log_joint"])


def test_fit__other_parameters_are_refused_until_fresh(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, log = tmp_path / "results", tmp_path / "events.jsonl"
    start_and_stop(long_fit(store, out), log, out, signal.SIGINT)
    other = ["--sampler", "blocked-dma", "--max-sweeps", 20]
    assert run(*long_fit(store, out), *other, "-q") == 2
    assert "--fresh" in capsys.readouterr().err
    assert run(*long_fit(store, out), *other, "--fresh", "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["resumed_after"] is None
    assert "resuming" not in captured.err
    assert ResultsStore(out).unfinished() == {}


# ---- predict and show ----------------------------------------------------------------------------


def test_predict__places_rows_in_the_clusters(
    results: Path, table: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = distclust.load(results)
    assert run("predict", results, store, "--proba", "--out", tmp_path / "p.csv", "-q") == 0
    frame = pd.read_csv(tmp_path / "p.csv", float_precision="round_trip")
    assert frame["row"].tolist() == ids()
    assert frame["cluster"].tolist() == model.predict(rows()).tolist()
    np.testing.assert_allclose(frame["log_density"], model.score_samples(rows()))
    chances = frame[[f"cluster_{k}" for k in range(model.n_clusters_)]].to_numpy()
    np.testing.assert_allclose(chances, model.predict_proba(rows()))
    np.testing.assert_array_equal(frame["probability"], chances.max(axis=1))
    assert run("predict", results, store, "--plan", "--json") == 0
    assert document(capsys)["n_rows"] == N_ROWS


def test_predict__labels_a_whole_store(
    results: Path, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import zarr

    out = tmp_path / "labels"
    assert run("predict", results, store, "--out", out, "--plan") == 0
    capsys.readouterr()
    assert run("predict", results, store, "--out", out, "--json") == 0
    found = document(capsys)
    written = zarr.open_array(found["labels"], mode="r")[:]
    expected = distclust.load(results).predict(rows())
    np.testing.assert_array_equal(written, expected)
    assert found["counts"] == np.bincount(expected).tolist()


def test_show__says_and_writes_what_the_fit_did(
    results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--labels", tmp_path / "l.csv", "--picture", tmp_path / "p.png"]
    assert run("show", results, *words, "--json") == 0
    found, model = document(capsys), distclust.load(results)
    assert found["command"] == "show"
    assert [each["n_rows"] for each in found["clusters"]] == np.bincount(model.labels_).tolist()
    assert found["written"] == {"labels": str(tmp_path / "l.csv"), "picture": str(words[3])}
    frame = pd.read_csv(tmp_path / "l.csv")
    assert frame["row"].tolist() == list(range(N_ROWS))
    assert frame["cluster"].tolist() == model.labels_.tolist()
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert run("show", results) == 0
    assert "3 clusters among 120 rows" in capsys.readouterr().out
    assert run("show", results, "--plan") == 0
    assert run("show", results, "--newick") == 2
    assert "--newick: expected a model that is a tree" in capsys.readouterr().err


# ---- ensembles -----------------------------------------------------------------------------------


def test_ensemble__of_labels_finds_what_they_agree_on(
    labels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = tmp_path / "l.csv"
    words = ["--labels", "--chains", 2, "--max-sweeps", 60, "--stop", "none"]
    words += ["--labels-out", listed]
    words += ["--picture", tmp_path / "p.png", "-o", tmp_path / "m"]
    assert run("fit", "ensemble", labels, *words, "--json") == 0
    found = document(capsys)
    assert (found["n_clusters"], found["n_bases"], found["n_unlabelled"]) == (3, 5, 1)
    frame = pd.read_csv(listed, index_col="row")
    assert frame.index.tolist() == ids()
    truth = np.arange(N_ROWS) % 3
    truth[7] = -1  # nobody labelled it
    assert frame["cluster"].tolist() == truth.tolist()
    assert frame["confidence"].iloc[7] == 0.0
    assert [each["n_rows"] for each in found["clusters"]] == [40, 39, 40]
    assert (tmp_path / "p.png").stat().st_size > 1000
    assert run("fit", "ensemble", labels, *words) == 0
    text = capsys.readouterr().out
    for word in ("3 clusters among 120 rows: the consensus of 5 bases", "R-hat", "1 row without"):
        assert word in text


@pytest.mark.parametrize("method", ["bce", "mm"])
def test_ensemble__of_rows_makes_its_bases_and_places_others(
    method: str, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "m"
    words = ["--method", method, "--clusters", 3, "--n-bases", 4, "--base-clusters", "3,5"]
    words += ["--picture", tmp_path / "p.svg"]
    assert run("fit", "ensemble", table, *words, "-o", out, "--json") == 0
    found = document(capsys)
    assert [base["n_labels"] for base in found["bases"]] == [3, 5, 3, 5]
    assert (found["ensemble_method"], found["n_clusters"]) == (method, 3)
    assert found["log_bound" if method == "bce" else "log_likelihood"] < 0
    assert "share of bases" in (tmp_path / "p.svg").read_text()
    assert run("predict", out, table, "--proba", "--out", tmp_path / "c.csv", "-q") == 0
    frame, model = pd.read_csv(tmp_path / "c.csv"), distclust.load(out)
    assert frame["cluster"].tolist() == model.labels_.tolist()
    assert frame.columns.tolist()[:3] == ["row", "cluster", "probability"]
    assert run("show", out) == 0
    text = capsys.readouterr().out
    assert "4 by k-means" in text
    assert "converged" in text


def test_ensemble__places_labels_by_the_same_bases(
    consensus: Path, labels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("predict", consensus, labels, "--json") == 0
    found = document(capsys)["rows"]
    assert [row["cluster"] for row in found] == distclust.load(consensus).labels_.tolist()
    assert (found[7]["cluster"], found[7]["probability"]) == (-1, 0.0)
    assert run("show", consensus, "--json") == 0
    assert document(capsys)["n_features"] is None


def test_ensemble__of_a_store_publishes_beside_it(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--chains", 2, "--max-sweeps", 60, "--n-bases", 3, "--stop", "none"]
    assert run("fit", "ensemble", store, *words, "--json") == 0
    found = document(capsys)
    place = Path(f"{store}.ensemble")
    assert found["model"] == str(place)
    assert found["version"] == ResultsStore(place).names()[-1]
    assert found["n_sweeps"] == 60
    assert run("predict", place, store, "--out", tmp_path / "labels", "-q") == 2
    assert "Name a .csv file with --out" in capsys.readouterr().err


def test_ensemble__bad_input_is_one_sentence_and_writes_nothing(
    table: Path, labels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "m"
    one = tmp_path / "one.csv"
    one.write_text("a,b\n" + "1,1\n" * 5)
    cases: list[tuple[list[Any], str]] = [
        ([table, "--method", "magic"], "method: expected one of"),
        ([table, "--method", "mm"], "n_clusters"),
        ([table, "--base-clusters", "x"], "'x' is not a list such as 4,8,16"),
        ([table, "--bases", "magic"], "bases"),
        ([table, "--n-bases", 0], "n_bases"),
        ([labels, "--labels", "--consensus", "magic"], "consensus"),
        ([labels, "--labels", "--beta", "-2"], "beta"),
        ([one, "--labels"], "one"),
    ]
    for words, says in cases:
        assert run("fit", "ensemble", *words, "-o", out, "-q") == 2, words
        error = capsys.readouterr().err
        assert says in error
        assert error.count("\n") == 1
    assert not out.exists()


def test_ensemble__plan_reads_no_row_and_writes_nothing(
    table: Path, labels: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files_in(tmp_path)
    assert run("fit", "ensemble", table, "-o", tmp_path / "m", "--plan", "--json") == 0
    assert document(capsys)["n_bases"] == 10
    assert run("fit", "ensemble", labels, "--labels", "-o", tmp_path / "m", "--plan") == 0
    assert "5, as they are given" in capsys.readouterr().out
    assert files_in(tmp_path) == before
