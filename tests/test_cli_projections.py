"""Kernel PCA on the command line: fit kpca, transform, show."""

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
import scipy.sparse as sp
import zarr
from sklearn.decomposition import KernelPCA as PeerKernelPCA

import distclust
from distclust import cli
from distclust.projections import em, krylov
from distclust.projections.forecast import expected_rounds
from distclust.report import listeners
from distclust.report.listeners import Lines
from distclust.store.results import ResultsStore
from tests import small_blocks
from tests.clocks import give_clock

N_ROWS, N_FEATURES, N_COMPONENTS = 700, 6, 3


@pytest.fixture(autouse=True)
def _restore_process(monkeypatch: pytest.MonkeyPatch) -> Any:
    """``main`` sets handlers for the whole process; tests share theirs."""
    import logging
    import warnings

    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.setattr(sys, "path", sys.path[:])
    handler, show = signal.getsignal(signal.SIGTERM), warnings.showwarning
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    signal.signal(signal.SIGTERM, handler)
    warnings.showwarning = show
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


def rows(n_rows: int = N_ROWS, seed: int = 0) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(1).normal(size=(4, N_FEATURES)) * 2.0
    return centres[rng.integers(0, 4, n_rows)] + rng.normal(size=(n_rows, N_FEATURES)) * 0.7


def ids(n_rows: int = N_ROWS) -> list[str]:
    return [f"row {i}" for i in range(n_rows)]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kpca") / "rows.zarr"
    distclust.ingest([(ids(), rows())], str(path))
    return path


@pytest.fixture(scope="module")
def results(store: Path) -> Path:
    """The results of a fit by the command itself, in the place it chooses."""
    assert cli.main(["fit", "kpca", str(store), "--components", "3", "-q"]) == 0
    return Path(f"{store}.kpca")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "table.csv"
    frame = pd.DataFrame(rows(80, 3), columns=[f"f{j}" for j in range(N_FEATURES)])
    frame.insert(0, "name", [f"n{i}" for i in range(80)])
    frame.to_csv(path, index=False)
    return path


def run(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])


def document(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


# ---- help ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", [("fit", "kpca"), ("transform",)])
def test_help__has_an_example_and_the_common_options(
    verb: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*verb, "--help") == 0
    text = capsys.readouterr().out
    assert f"Usage: distclust {' '.join(verb)} [OPTIONS]" in text
    assert f"Example:\n    distclust {' '.join(verb)}" in text
    for option in ("--json", "--seed", "--plan", "-q, --quiet", "--scheduler", "--workers"):
        assert option in text


def test_help__fit_points_at_kernel_pca_and_keeps_the_options_of_trees(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run("fit", "--help") == 0
    text = capsys.readouterr().out
    assert "distclust fit kpca --help" in " ".join(text.split())
    assert "--concentration" in text
    assert "--memory-budget" not in text


@pytest.mark.parametrize("words", [["-q", "kpca", "t.csv"], ["--out", "m", "kpca", "t.csv"]])
def test_fit__the_method_comes_first(
    words: list[str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run("fit", *words) == 2
    assert "'kpca' comes before all options" in capsys.readouterr().err


# ---- fit -----------------------------------------------------------------------------------------


def test_fit__of_a_store_publishes_beside_it_and_says_what_it_found(
    store: Path, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r"
    assert run("fit", "kpca", store, "--components", 3, "--results", out, "--json") == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert "kernel products" in captured.err
    assert "residual" in captured.err
    peer = PeerKernelPCA(3, kernel="rbf", gamma=1 / N_FEATURES, eigen_solver="dense").fit(rows())
    values = [component["eigenvalue"] for component in found["components"]]
    np.testing.assert_allclose(values, peer.eigenvalues_, rtol=1e-6)
    gram = np.exp(-((rows()[:, None] - rows()[None]) ** 2).sum(-1) / N_FEATURES)
    middle = np.eye(N_ROWS) - 1 / N_ROWS
    trace = np.trace(middle @ gram @ middle)
    shares = [component["share"] for component in found["components"]]
    np.testing.assert_allclose(shares, peer.eigenvalues_ / trace, rtol=1e-6)
    assert found["components"][2]["share_so_far"] == pytest.approx(sum(shares))
    assert found["largest_residual"] == max(c["residual"] for c in found["components"])
    assert found["kernel"] == {"name": "rbf", "gamma": 1 / N_FEATURES}
    assert found["version"] == distclust.load(out).version_ == ResultsStore(out).names()[-1]
    assert (found["n_rows"], found["n_features"]) == (N_ROWS, N_FEATURES)
    assert found["resumed_after"] is None
    assert found["seconds"] > 0
    model, beside = distclust.load(out), distclust.load(results)
    assert found["n_iter"] == model.n_iter_
    assert found["log_likelihood"] == model.log_likelihood_
    np.testing.assert_array_equal(model.components_, beside.components_)


def test_fit__takes_the_parameters_and_the_seed(store: Path, tmp_path: Path) -> None:
    options = {
        "kernel": "poly", "gamma": 0.1, "degree": 2, "coef0": 0.5, "sigma2": 0.01, "solver": "em",
        "tolerance": 1e-3, "memory_budget": "2 MB", "dtype": "float32", "max_iter": 60,
    }  # fmt: skip
    words = [word for n, v in options.items() for word in (f"--{n.replace('_', '-')}", v)]
    place = ["--components", 2, "--results", tmp_path / "r", "--seed", 5, "-q"]
    assert run("fit", "kpca", store, *words, *place) == 0
    model = distclust.load(tmp_path / "r")
    assert model.get_params() == {**options, "n_components": 2, "random_state": 5}


def test_fit__tables_go_to_a_file_or_a_version(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("fit", "kpca", table, "-o", tmp_path / "m.model", "-q") == 0
    assert run("fit", "kpca", table, "-o", f"{tmp_path}/results/", "-q") == 0
    assert run("fit", "kpca", table, "--results", tmp_path / "other", "-q") == 0
    expected = distclust.KernelPCA(random_state=0).fit(rows(80, 3)).components_
    for name in ("m.model", "results", "other"):
        np.testing.assert_allclose(distclust.load(tmp_path / name).components_, expected)
    assert capsys.readouterr().out == ""


def test_fit__sparse_files_give_what_dense_ones_give(tmp_path: Path) -> None:
    dense = rows(60) * (np.random.default_rng(2).random((60, N_FEATURES)) < 0.4)
    np.save(tmp_path / "dense.npy", dense)
    sp.save_npz(tmp_path / "sparse.npz", sp.csr_matrix(dense))
    for name in ("dense.npy", "sparse.npz"):
        words = ["--kernel", "cosine", "--out", tmp_path / f"{name}.model", "-q"]
        assert run("fit", "kpca", tmp_path / name, *words) == 0
    models = [distclust.load(tmp_path / f"{name}.model") for name in ("dense.npy", "sparse.npz")]
    np.testing.assert_allclose(models[0].components_, models[1].components_, atol=1e-7)


def test_fit__a_kernel_of_ones_own_is_found_in_the_folder(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = "def doubled(X, Y):\n    return 2.0 * (X @ Y.T)\n"
    (tmp_path / "kernel_of_this_test.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    words = ["--kernel", "kernel_of_this_test:doubled", "--out", "m.model", "-q"]
    assert run("fit", "kpca", table, *words) == 0
    linear = distclust.KernelPCA(kernel="linear", random_state=0).fit(rows(80, 3))
    found = distclust.load("m.model").eigenvalues_
    np.testing.assert_allclose(found, 2 * linear.eigenvalues_, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--components", "0"], "n_components: expected a whole number of at least 1"),
        (["--components", "700"], "at least n_components + 1 = 701 rows"),
        (["--components", "x"], "'x' is not a valid integer"),
        (["--kernel", "loud"], "kernel: expected one of"),
        (["--kernel", "math:loud"], "no attribute 'loud'"),
        (["--gamma", "-1"], "gamma: expected a finite number above 0"),
        (["--degree", "0"], "degree"),
        (["--sigma2", "-1"], "sigma2"),
        (["--solver", "magic"], "solver: expected one of"),
        (["--tolerance", "0"], "tolerance"),
        (["--memory-budget", "lots"], "a number of bytes such as '4 GB', got 'lots'"),
        (["--dtype", "int8"], "dtype"),
        (["--max-iter", "0"], "max_iter"),
        (["--ids", "x"], "a file when columns are named"),
        (["--workers", "2"], "--workers: expected --scheduler local"),
        (["--family", "gaussian"], "No such option"),
        (["--out", "also"], "--out or --results, got both"),
    ],
)
def test_fit__bad_parameters_are_one_sentence_and_write_nothing(
    options: list[str], says: str, store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("fit", "kpca", store, "--results", tmp_path / "r", "-q", *options) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not (tmp_path / "r").exists()


def test_fit__bad_rows_are_named_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = rows(40)
    bad[7, 2] = np.nan
    np.save(tmp_path / "bad.npy", bad)
    (tmp_path / "text.csv").write_text("a,b\n1,x\n2,y\n3,x\n")
    assert run("fit", "kpca", tmp_path / "bad.npy", "--out", tmp_path / "m", "-q") == 2
    assert "row 7: expected finite numbers, got NaN" in capsys.readouterr().err
    assert run("fit", "kpca", tmp_path / "text.csv", "--out", tmp_path / "m", "-q") == 2
    assert "column 'b': expected numbers, got categories" in capsys.readouterr().err
    assert run("fit", "kpca", tmp_path / "none.csv", "--out", tmp_path / "m", "-q") == 2
    assert run("fit", "kpca", tmp_path / "text.csv", "-q") == 2
    assert "--out, or a results store with --results" in capsys.readouterr().err
    assert not (tmp_path / "m").exists()


def test_fit__results_go_where_nothing_else_is(
    store: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "mine").write_text("keep")
    (tmp_path / "file").write_text("keep")
    for name in ("folder", "file"):
        assert run("fit", "kpca", store, "--results", tmp_path / name, "-q") == 2
    assert run("fit", "kpca", table, "--out", tmp_path / "file", "-q") == 2
    assert run("fit", "kpca", table, "--out", table, "-q") == 2
    assert run("fit", "kpca", table, "--out", tmp_path / "m", "--fresh", "-q") == 2
    errors = capsys.readouterr().err.splitlines()
    for error, says in zip(
        errors, ["other things", "a file", "another kind", "an input", "--fresh"], strict=True
    ):
        assert says in error
    assert (tmp_path / "folder" / "mine").read_text() == "keep"
    assert (tmp_path / "file").read_text() == "keep"


def test_plan__reads_no_row_and_writes_nothing(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import shutil

    blind = tmp_path / "blind.zarr"
    shutil.copytree(store, blind)
    shutil.rmtree(blind / "X" / "c")  # every value
    before = files_in(tmp_path)
    command = ["fit", "kpca", blind, "--components", 20, "--plan"]
    assert run(*command, "--json", "--memory-budget", "1 MB") == 0
    plan = document(capsys)
    assert plan["n_shards"] == 2
    assert plan["rows_bytes"] == 8 * N_ROWS * N_FEATURES
    assert plan["kernel_bytes"] == 8 * N_ROWS**2
    assert plan["kept_bytes"] == 1e6
    assert plan["messages"] == 2
    assert plan["round_bytes"] == 2 * 8 * N_ROWS * (20 + 8)  # there and back
    for name in ("products", "seconds", "memory_bytes"):
        assert plan[name] > 0
    assert run(*command, "--json", "--dtype", "float32", "--scheduler", "local",
               "--workers", 3) == 0  # fmt: skip
    plan = document(capsys)
    assert plan["kernel_bytes"] == plan["kept_bytes"] == 4 * N_ROWS**2
    assert (plan["n_processes"], plan["messages"]) == (3, 6)
    assert run(*command, "--kernel", "linear") == 0
    text = capsys.readouterr().out
    for word in ("shards", "never formed", "messages", "products", "multiply-adds a second"):
        assert word in text
    assert run(*command, "--components", N_ROWS) == 2  # refused as the fit would
    assert files_in(tmp_path) == before


# ---- progress ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((3, 1e-2, 1e-6, 1e-1, 1, 100), 7),  # a tenth each time: four more
        ((3, 1e-2, 1e-6, 1e-1, 2, 100), 11),
        ((3, 1e-2, 1e-6, 1e-1, 1, 5), 5),
        ((3, 1e-7, 1e-6, 1e-1, 1, 100), 3),  # there
        ((9, 1e-2, 1e-6, 1e-1, 1, 9), 9),
        ((3, 1e-1, 1e-6, 1e-1, 1, 100), None),  # it does not fall
        ((1, 1e-1, 1e-6, np.inf, 1, 100), None),
    ],
)
def test_forecast__goes_on_by_the_same_factor(arguments: Any, expected: int | None) -> None:
    assert expected_rounds(*arguments) == expected


@pytest.mark.parametrize("solver", ["krylov", "em"])
def test_progress__tells_the_residual_and_how_many_products_there_will_be(
    solver: str, store: Path, tmp_path: Path
) -> None:
    log = tmp_path / "events.jsonl"
    words = ["--components", 2, "--solver", solver, "--results", tmp_path / "r", "-q"]
    assert run("fit", "kpca", store, *words, "--events", log) == 0
    stage = krylov.STAGE if solver == "krylov" else em.STAGE
    found = [
        e for line in log.read_text().splitlines() if (e := json.loads(line))["stage"] == stage
    ]
    n_products = distclust.load(tmp_path / "r").n_iter_
    assert [event["done"] for event in found] == list(range(n_products + 1))
    residuals = [event["metrics"]["residual"] for event in found[1:]]
    assert residuals[-1] <= 1e-6 < residuals[-2]
    assert found[-1]["total"] == n_products
    late = [event["total"] for event in found[2 * n_products // 3 : -1]]
    assert all(n_products / 2 < total <= 2 * n_products + 2 for total in late)


def test_progress__of_resumed_work_counts_from_where_it_went_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 10.0])
    give_clock(monkeypatch, listeners, monotonic=lambda: next(clock))
    listener = Lines(sys.stderr)
    listener(distclust.events.Event("", "kernel products", 8))
    listener(distclust.events.Event("", "kernel products", 10, 14))
    assert "about 20 s left" in capsys.readouterr().err  # 5 s each, not 1 s


# ---- kills ---------------------------------------------------------------------------------------


def slow_fit(store: Path, out: Path) -> list[str]:
    """Many products, as EM as published needs them."""
    words = ["--solver", "em", "--tolerance", "1e-13", "--max-iter", "120", "--components", "4"]
    return ["fit", "kpca", str(store), "--results", str(out), *words]


SAVING_OFTEN = (
    "from distclust.engine.crews.crew import Crew; from distclust import cli; "
    "Crew.__init__.__kwdefaults__['seconds'] = 0.02; cli.run()"
)


def start_and_stop(
    command: list[str], log: Path, out: Path, number: signal.Signals, *, until: int
) -> tuple[int, str]:
    """Run a command until some products are done, and saved if it is killed; then stop it."""
    if number == signal.SIGKILL:
        program = [sys.executable, "-c", SAVING_OFTEN]
    else:
        program = [sys.executable, "-m", "distclust"]
    process = subprocess.Popen(
        [*program, *command, "--events", str(log)],
        stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 100
    while time.monotonic() < deadline and process.poll() is None:
        is_saved = number != signal.SIGKILL or list(out.glob("checkpoints/*/plan/*.checkpoint"))
        if log.exists() and log.read_text().count(em.STAGE) > until and is_saved:
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
    return distclust.load(out)


@pytest.mark.parametrize(
    ("number", "where"),
    [
        (signal.SIGINT, []),
        (signal.SIGTERM, []),
        (signal.SIGKILL, []),
        (signal.SIGINT, ["--scheduler", "local", "--workers", "2"]),
    ],
)
def test_fit__stopped_and_run_again_resumes_with_the_same_answer(
    number: signal.Signals,
    where: list[str],
    store: Path,
    undisturbed: Any,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out, log = tmp_path / "results", tmp_path / "events.jsonl"
    command = [*slow_fit(store, out), *where]
    code, error = start_and_stop(command, log, out, number, until=5)
    assert ResultsStore(out).names() == []
    if number == signal.SIGKILL:
        assert code == -signal.SIGKILL
    else:
        assert code == 3, error
        assert "Run the same command again: it resumes." in error
        assert "Traceback" not in error
    assert run(*slow_fit(store, out), "--json") == 0  # also where there is no cluster
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["resumed_after"] >= 1
    assert f"resuming after product {found['resumed_after']}\n" in captured.err
    model = distclust.load(out)
    np.testing.assert_array_equal(model.components_, undisturbed.components_)
    np.testing.assert_array_equal(model.eigenvalues_, undisturbed.eigenvalues_)
    assert model.n_iter_ == undisturbed.n_iter_


def test_fit__other_parameters_are_refused_until_fresh(
    store: Path, undisturbed: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, log = tmp_path / "results", tmp_path / "events.jsonl"
    start_and_stop(slow_fit(store, out), log, out, signal.SIGINT, until=2)
    assert run(*slow_fit(store, out), "--gamma", 3, "-q") == 2
    error = capsys.readouterr().err
    assert "gamma" in error
    assert "--fresh" in error
    assert run(*slow_fit(store, out), "--fresh", "--json") == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["resumed_after"] is None
    assert "resuming" not in captured.err
    np.testing.assert_array_equal(distclust.load(out).components_, undisturbed.components_)
    assert ResultsStore(out).unfinished() == {}


# ---- transform -----------------------------------------------------------------------------------


def test_transform__of_the_fitted_rows_gives_their_coordinates_in_every_form(
    store: Path, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = distclust.load(results)
    expected = model.components_.T * np.sqrt(model.eigenvalues_)
    for name in ("c.csv", "c.npy", "c.zarr"):
        assert run("transform", results, store, "--out", tmp_path / name, "--json", "-q") == 0
        found = document(capsys)
        assert found["n_rows"] == N_ROWS
        assert found["n_components"] == N_COMPONENTS
        assert found["out"] == str(tmp_path / name)
        assert found["form"] == name[2:]
        assert found["method"] == "KernelPCA"
    frame = pd.read_csv(tmp_path / "c.csv", index_col="row", float_precision="round_trip")
    assert frame.index.tolist() == ids()
    assert frame.columns.tolist() == ["component_1", "component_2", "component_3"]
    np.testing.assert_allclose(frame.to_numpy(), expected, atol=1e-5)
    array = np.load(tmp_path / "c.npy")
    np.testing.assert_array_equal(array, frame.to_numpy())
    stored = distclust.open_store(str(tmp_path / "c.zarr"))
    assert stored.verify() == []
    assert stored.matrix().row_ids.tolist() == ids()
    np.testing.assert_array_equal(stored.matrix().read_all(), array)
    plain = zarr.open_array(tmp_path / "c.zarr" / "X", mode="r")  # as others read it
    np.testing.assert_array_equal(plain[:], array)


def test_transform__goes_block_by_block_and_gives_the_same(
    store: Path,
    results: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    whole = tmp_path / "whole.npy"
    assert run("transform", results, store, "-o", whole, "-q") == 0
    small_blocks.shrink(monkeypatch)
    for name in ("c.npy", "c.csv", "c.zarr"):
        assert run("transform", results, store, "-o", tmp_path / name) == 0
        assert f"projecting the rows  {-(-N_ROWS // 64)} of" in capsys.readouterr().err
    expected = np.load(whole)
    np.testing.assert_array_equal(np.load(tmp_path / "c.npy"), expected)
    frame = pd.read_csv(tmp_path / "c.csv", index_col="row", float_precision="round_trip")
    np.testing.assert_array_equal(frame, expected)
    stored = distclust.open_store(str(tmp_path / "c.zarr")).matrix()
    np.testing.assert_array_equal(stored.read_all(), expected)
    assert frame.index.tolist() == stored.row_ids.tolist() == ids()


def test_transform__prints_csv_or_one_document(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "m.model"
    assert run("fit", "kpca", table, "--out", model, "-q") == 0
    expected = distclust.load(model).transform(pd.read_csv(table, index_col="name"))
    capsys.readouterr()
    assert run("transform", model, table) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "row,component_1,component_2"
    assert len(lines) == 81
    assert lines[1].startswith("n0,")
    assert run("transform", model, table, "--json") == 0
    found = document(capsys)["rows"]
    assert found[79]["row"] == "n79"
    np.testing.assert_allclose([row["coordinates"] for row in found], expected)


def test_transform__and_show_take_probabilistic_pca(
    table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pd.read_csv(table, index_col="name")
    model = distclust.PPCA(2, random_state=0).fit(frame)
    model.save(tmp_path / "p.model")
    assert run("transform", tmp_path / "p.model", table, "-o", tmp_path / "c.csv", "-q") == 0
    found = pd.read_csv(tmp_path / "c.csv", index_col="row")
    np.testing.assert_allclose(found, model.transform(frame), rtol=1e-12)
    assert run("show", tmp_path / "p.model", "--json") == 0
    shown = document(capsys)
    assert shown["method"] == "PPCA"
    values = [component["eigenvalue"] for component in shown["components"]]
    assert values == model.explained_variance_.tolist()
    total = np.trace(model.get_covariance())
    shares = [component["share"] for component in shown["components"]]
    np.testing.assert_allclose(shares, model.explained_variance_ / total)
    assert shown["noise_variance"] == model.noise_variance_
    assert shown["log_likelihood"] == model.log_likelihood_


@pytest.mark.parametrize("name", ["c.csv", "c.npy", "c.zarr"])
def test_transform__replaces_only_when_told_to(
    name: str, store: Path, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / name
    few = tmp_path / "few.npy"
    np.save(few, rows(5, 8))
    assert run("transform", results, few, "-o", out, "-q") == 0
    before = files_in(tmp_path)
    assert run("transform", results, store, "-o", out, "-q") == 2
    assert "pass --overwrite" in capsys.readouterr().err
    assert files_in(tmp_path) == before
    assert run("transform", results, store, "-o", out, "-q", "--overwrite") == 0
    n_rows = {
        "c.csv": lambda: len(pd.read_csv(out)),
        "c.npy": lambda: len(np.load(out)),
        "c.zarr": lambda: distclust.open_store(str(out)).shape[0],
    }[name]()
    assert n_rows == N_ROWS
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, "few.npy"])


def test_transform__never_removes_what_is_not_coordinates(
    store: Path, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.zarr").mkdir()
    (tmp_path / "mine.zarr" / "thesis.txt").write_text("keep")
    other = tmp_path / "other.zarr"
    distclust.ingest([rows(5)], str(other))
    for place in (tmp_path / "mine.zarr", other, store, results):
        assert run("transform", results, store, "-o", place, "--overwrite", "-q") == 2
    assert (tmp_path / "mine.zarr" / "thesis.txt").read_text() == "keep"
    assert distclust.open_store(str(other)).shape == (5, N_FEATURES)
    assert distclust.open_store(str(store)).verify() == []
    capsys.readouterr()


def test_transform__what_a_kill_left_is_no_hindrance(
    store: Path, results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from distclust.projections import streaming

    def broken(*_: Any) -> Any:
        yield ids()[:3], np.zeros((3, N_COMPONENTS))
        raise KeyboardInterrupt

    out = tmp_path / "c.zarr"
    with monkeypatch.context() as patch:
        patch.setattr(streaming, "transform_blocks", broken)
        assert run("transform", results, store, "-o", out, "-q") == 3
        for name in ("c.csv", "c.npy"):
            assert run("transform", results, store, "-o", tmp_path / name, "-q") == 3
            assert not (tmp_path / name).exists()
    with pytest.raises(distclust.errors.StoreError):
        distclust.open_store(str(out))
    assert run("transform", results, store, "-o", out, "-q") == 0
    assert distclust.open_store(str(out)).shape == (N_ROWS, N_COMPONENTS)


def test_transform__bad_input_is_one_sentence(
    store: Path, results: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, tree = tmp_path / "m.model", tmp_path / "tree.model"
    assert run("fit", "kpca", table, "-o", model, "-q") == 0
    distclust.BHC().fit(rows(20)).save(tree)
    wide, holes = tmp_path / "wide.npy", tmp_path / "holes.npy"
    np.save(wide, np.zeros((3, N_FEATURES + 1)))
    np.save(holes, np.full((3, N_FEATURES), np.nan))
    cases: list[tuple[list[Any], str]] = [
        ([tree, table], "expected a model among KernelPCA, PPCA, got BHC"),
        ([tmp_path / "none", table], "none"),
        ([model, store], "the columns of the fit"),
        ([results, wide], "7 features"),
        ([results, holes], "finite numbers"),
        ([model, table, "-o", tmp_path / "c.parquet"], "ends in .csv, .npy or .zarr"),
        ([model, table, "-o", tmp_path / "no" / "c.csv"], "a place to write to"),
        ([model, table, "-o", table, "--overwrite"], "an input"),
        ([model, table, "--overwrite"], "something to overwrite"),
        ([model, table, "--workers", 2], "--workers"),
    ]
    for words, says in cases:
        assert run("transform", *words, "-q") == 2, words
        error = capsys.readouterr().err
        assert says in error
        assert error.count("\n") == 1
    assert not list(tmp_path.glob("c.*"))


def test_transform__plan_writes_nothing(
    store: Path, results: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("transform", results, store, "-o", tmp_path / "c.zarr", "--plan", "--json") == 0
    plan = document(capsys)
    assert plan["passes"] == 1
    assert plan["disk_bytes"] == 8 * N_ROWS * N_COMPONENTS
    assert list(tmp_path.iterdir()) == []


# ---- show ----------------------------------------------------------------------------------------


def test_show__lists_the_components(results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("show", results, "--json") == 0
    found = document(capsys)
    model = distclust.load(results)
    assert found["command"] == "show"
    assert [c["eigenvalue"] for c in found["components"]] == model.eigenvalues_.tolist()
    assert [c["residual"] for c in found["components"]] == model.residuals_.tolist()
    assert found["noise_variance"] == model.noise_variance_
    assert found["version"] == ResultsStore(results).names()[-1]
    assert run("show", results) == 0
    text = capsys.readouterr().out
    for word in ("3 components of 700 rows", "rbf, gamma 0.166667", "eigenvalue", "residual"):
        assert word in text
    assert f"{model.eigenvalues_[0]:,.6g}" in text


def test_show__and_predict_say_what_is_for_trees(
    results: Path, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("show", results, "--newick") == 2
    assert "--newick: expected a model that is a tree" in capsys.readouterr().err
    assert run("show", results, "--picture", tmp_path / "p.png") == 2
    assert not (tmp_path / "p.png").exists()
    capsys.readouterr()
    assert run("predict", results, table) == 2
    assert "distclust transform" in capsys.readouterr().err
