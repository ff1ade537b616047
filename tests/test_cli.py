"""The command line as people use it: verbs, exit codes, what goes to which stream."""

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
from scipy import sparse

import distclust
from distclust import cli
from distclust.report.demo_data import field_notebook

VERBS = ("demo", "fit", "predict", "show", "doctor")


@pytest.fixture(autouse=True)
def _restore_process() -> Any:
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


@pytest.fixture
def animals(tmp_path: Path) -> Path:
    path = tmp_path / "animals.csv"
    field_notebook(0).seen.astype(int).to_csv(path)
    return path


@pytest.fixture(scope="session")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "animals.model"
    distclust.BHC(random_state=0).fit(field_notebook(0).seen.astype(int)).save(path)
    return path


@pytest.fixture
def new_rows(tmp_path: Path) -> Path:
    path = tmp_path / "new.csv"
    field_notebook(0).unseen.astype(int).to_csv(path)
    return path


def run(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])


def document(capsys: pytest.CaptureFixture[str]) -> Any:
    """Everything on standard output, which must be one JSON document."""
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("verb", VERBS)
def test_help__has_an_example_and_the_common_options(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(verb, "--help") == 0
    text = capsys.readouterr().out
    assert f"Example:\n    distclust {verb}" in text
    for option in ("--json", "--seed", "--plan", "-v, --verbose", "-q, --quiet"):
        assert option in text


def test_version__is_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--version") == 0
    assert capsys.readouterr().out == f"distclust, version {distclust.__version__}\n"


def test_help__is_quick_because_nothing_heavy_is_loaded() -> None:
    code = (
        "import sys; from distclust import cli; cli.main(['fit', '--help']); "
        "heavy = {'numpy', 'numba', 'dask', 'pandas', 'matplotlib'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_fit__writes_a_model_that_says_what_it_found(
    animals: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = animals.parent / "animals.model"
    assert run("fit", "bhc", animals, "--out", out) == 0
    text = capsys.readouterr().out
    assert "8 clusters among 48 rows and 45 features" in text
    assert "Bernoulli" in text
    assert "Log evidence" in text
    model = distclust.load(out)
    assert model.n_clusters_ == 8
    assert list(model.tree_.row_ids[:2]) == ["horse", "zebra"]


def test_fit__json_is_alone_on_standard_output(
    animals: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = animals.parent / "m.model"
    assert run("fit", "bhc", animals, "--out", out, "--json") == 0
    captured = capsys.readouterr()
    found = json.loads(captured.out)
    assert found["n_clusters"] == 8
    assert found["model"] == str(out)
    assert sum(cluster["n_rows"] for cluster in found["clusters"]) == 48
    assert all(0 < cluster["probability"] <= 1 for cluster in found["clusters"])
    assert found["log_lower_bound"] <= found["log_evidence"]
    assert "distclust: merging" in captured.err  # progress


def test_fit__quiet_says_nothing(animals: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fit", "bhc", animals, "--out", animals.parent / "m", "-q") == 0
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("", "")


@pytest.mark.parametrize("name", ["diagonal-gaussian", "diagonal_gaussian"])
def test_fit__families_are_called_as_the_help_calls_them(
    name: str, animals: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = animals.parent / "m"
    assert run("fit", "bhc", animals, "--out", out, "--family", name, "--json") == 0
    assert document(capsys)["family"] == "DiagonalGaussian"


def test_fit__rose_trees_take_their_own_options(
    animals: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = animals.parent / "m"
    assert run("fit", "rose", animals, "--out", out, "--variant", "brt-dp", "--json") == 0
    assert document(capsys)["method"] == "BayesianRoseTree"
    assert distclust.load(out).variant == "brt-dp"


def test_fit__same_bytes_again_and_in_other_places(animals: Path) -> None:
    trees = []
    for name, extra in {"a": [], "b": [], "c": ["--scheduler", "threads"]}.items():
        out = animals.parent / name
        assert run("fit", "bhc", animals, "--out", out, "-q", *extra) == 0
        trees.append(distclust.load(out).tree_.to_json())
    assert trees[0] == trees[1] == trees[2]


def test_fit__events_are_json_lines(animals: Path) -> None:
    events = animals.parent / "events.jsonl"
    assert run("fit", "bhc", animals, "--out", animals.parent / "m", "--events", events, "-q") == 0
    lines = [json.loads(line) for line in events.read_text().splitlines()]
    assert {"merging"} <= {line["stage"] for line in lines}
    last = [line for line in lines if line["stage"] == "merging"][-1]
    assert last["done"] == last["total"] == 47


def test_fit__plan_prints_figures_and_runs_nothing(
    animals: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = animals.parent / "m"
    assert run("fit", "bhc", animals, "--out", out, "--plan") == 0
    text = capsys.readouterr().out
    for word in ("passes", "memory", "disk", "time"):
        assert word in text
    assert not out.exists()
    assert run("fit", "bhc", animals, "--plan", "--json") == 0  # which needs no place for a model
    plan = document(capsys)
    assert plan["passes"] == 3
    assert plan["memory_bytes"] > 0


def test_fit__asks_where_the_model_goes(animals: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("fit", "bhc", animals) == 2
    assert "Missing option '--out'" in capsys.readouterr().err


def test_fit__sparse_and_dense_files_give_the_same_tree(tmp_path: Path) -> None:
    rows = field_notebook(3).seen.to_numpy().astype(np.int64)
    np.save(tmp_path / "rows.npy", rows)
    sparse.save_npz(tmp_path / "rows.npz", sparse.csr_array(rows))
    for name in ("rows.npy", "rows.npz"):
        assert run("fit", "bhc", tmp_path / name, "--out", tmp_path / f"{name}.model", "-q") == 0
    dense, csr = (distclust.load(tmp_path / f"rows.{s}.model") for s in ("npy", "npz"))
    assert dense.tree_.to_json() == csr.tree_.to_json()


def test_predict__prints_csv_or_json_or_writes_a_file(
    model_file: Path, new_rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("predict", model_file, new_rows, "-q") == 0
    printed = capsys.readouterr().out
    assert printed.splitlines()[0] == "row,cluster,probability,log_density"
    assert run("predict", model_file, new_rows, "--json", "-q") == 0
    rows = document(capsys)["rows"]
    out = new_rows.parent / "placed.csv"
    assert run("predict", model_file, new_rows, "--out", out, "-q") == 0
    assert out.read_text() == printed
    assert [row["row"] for row in rows] == list(pd.read_csv(out)["row"])


def test_predict__agrees_with_the_estimator(
    model_file: Path, new_rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("predict", model_file, new_rows, "--proba", "--out", new_rows.parent / "p.csv") == 0
    assert "11 predictions" in capsys.readouterr().out
    frame = pd.read_csv(new_rows.parent / "p.csv")
    table = pd.read_csv(new_rows, index_col=0)
    model = distclust.load(model_file)
    np.testing.assert_array_equal(frame["cluster"], model.predict(table))
    each = frame[[f"cluster_{c}" for c in range(model.n_clusters_)]]
    np.testing.assert_allclose(each, model.predict_proba(table), rtol=1e-12)
    np.testing.assert_allclose(frame["log_density"], model.score_samples(table), rtol=1e-12)


def test_show__draws_and_writes_what_is_asked(
    model_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = {name: tmp_path / name for name in ("tree.png", "tree.svg", "page.html", "l.csv")}
    assert run("show", model_file, "--picture", files["tree.png"], "--labels", files["l.csv"]) == 0
    assert "one cluster" in capsys.readouterr().out
    assert (
        run("show", model_file, "--picture", files["tree.svg"], "--page", files["page.html"]) == 0
    )
    assert files["tree.png"].read_bytes().startswith(b"\x89PNG")
    assert "penguin" not in files["tree.svg"].read_text()
    assert "nightingale" in files["tree.svg"].read_text()
    assert "<svg" in files["page.html"].read_text()
    labels = pd.read_csv(files["l.csv"])
    np.testing.assert_array_equal(labels["cluster"], distclust.load(model_file).labels_)


def test_show__newick_is_all_that_is_printed(
    model_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("show", model_file, "--newick") == 0
    assert capsys.readouterr().out.strip() == distclust.load(model_file).tree_.newick()


def test_show__threshold_moves_the_cut(
    model_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("show", model_file, "--json", "--threshold", "0.9") == 0
    strict = document(capsys)["n_clusters"]
    assert run("show", model_file, "--json") == 0
    assert strict > document(capsys)["n_clusters"] == 8


def test_doctor__reports_versions_and_no_problems(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("doctor", "--json") == 0
    report = document(capsys)
    assert report["distclust"] == distclust.__version__
    assert report["problems"] == []
    assert run("doctor") == 0
    text = capsys.readouterr().out
    for word in ("packages", "threads", "memory", "disk", "missing", "No problems found."):
        assert word in text


@pytest.mark.parametrize("verb", ["predict", "show", "doctor", "demo"])
def test_plan__every_verb_has_one_and_writes_nothing(
    verb: str,
    model_file: Path,
    new_rows: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = {
        "predict": [model_file, new_rows],
        "show": [model_file, "--picture", tmp_path / "t.png"],
        "doctor": [],
        "demo": ["--out", tmp_path / "demo"],
    }[verb]
    before = sorted(tmp_path.iterdir())
    assert run(verb, *arguments, "--plan") == 0
    assert "memory" in capsys.readouterr().out
    assert sorted(tmp_path.iterdir()) == before


BAD_TABLES = {
    "empty": ("", "empty file"),
    "one row": ("x,y\n1,2\n", "at least 2 rows"),
    "text among numbers": ("x,y\n1,2\n3,four\n5,6\n", "column 'y', line 3"),
    "infinity": ("x,y\n1,2\ninf,3\n1,4\n", "inf"),
}


@pytest.mark.parametrize("name", BAD_TABLES)
def test_fit__bad_tables_get_one_sentence_and_exit_2(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    content, says = BAD_TABLES[name]
    (tmp_path / "t.csv").write_text(content)
    assert run("fit", "bhc", tmp_path / "t.csv", "--out", tmp_path / "m", "-q") == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert ": expected " in error
    assert ", got " in error
    assert "Traceback" not in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.csv"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--family", "poisson"], "got -2 in column 'y'"),
        (["--family", "bernoulli"], "zeros and ones"),
        (["--concentration", "-1"], "concentration"),
        (["--threshold", "2"], "threshold"),
        (["--gamma", "0.5"], "--gamma"),
        (["--family", "cauchy"], "cauchy"),
        (["--drop", "z"], "'z'"),
        (["--scheduler", "moon"], "moon"),
    ],
)
def test_fit__bad_parameters_get_one_sentence_and_exit_2(
    options: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text("x,y\n1,-2\n3,4\n5,6\n")
    arguments = ["fit", "bhc", tmp_path / "t.csv", "--out", tmp_path / "m", "-q", *options]
    assert run(*arguments) == 2
    error = capsys.readouterr().err
    assert says in error
    assert "Traceback" not in error
    assert not (tmp_path / "m").exists()


def test_outputs__are_refused_before_work_if_they_would_destroy(
    animals: Path, model_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = animals.read_bytes()
    assert run("fit", "bhc", animals, "--out", animals) == 2
    other = animals.parent / "notes.txt"
    other.write_text("mine")
    assert run("fit", "bhc", animals, "--out", other) == 2
    assert run("fit", "bhc", animals, "--out", animals.parent / "none" / "m") == 2
    assert run("fit", "bhc", animals, "--out", animals.parent) == 2
    assert run("show", model_file, "--page", model_file) == 2
    assert run("show", model_file, "--picture", animals.parent / "tree.bmp") == 2
    assert animals.read_bytes() == before
    assert other.read_text() == "mine"
    assert capsys.readouterr().err.count(": expected ") == 6


def test_models__absent_truncated_or_foreign_are_exit_2(
    model_file: Path, new_rows: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = new_rows.parent
    (folder / "cut.model").write_bytes(model_file.read_bytes()[:-100])
    (folder / "text.model").write_text("not a model")
    for name in ("none.model", "cut.model", "text.model"):
        assert run("show", folder / name) == 2
        assert run("predict", folder / name, new_rows) == 2
        error = capsys.readouterr().err
        assert name in error
        assert "Traceback" not in error


def test_predict__other_columns_are_exit_2(
    model_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text("name,legs\nyeti,2\ntroll,2\n")
    out = tmp_path / "out.csv"
    assert run("predict", model_file, tmp_path / "t.csv", "--out", out, "-q") == 2
    assert "none named 'backbone'" in capsys.readouterr().err
    assert not out.exists()


def test_predict__extra_columns_are_told_with_the_option_that_helps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, model = tmp_path / "t.csv", tmp_path / "m"
    rows = [f"{i % 2},{i % 3 % 2},{'xy'[i % 2]}" for i in range(9)]
    table.write_text("\n".join(["a,b,kind", *rows]))
    assert run("fit", "bhc", table, "--out", model, "--drop", "kind", "-q") == 0
    assert run("predict", model, table, "-q") == 2
    assert "Pass --drop kind." in capsys.readouterr().err


def test_outputs__that_would_spoil_a_file_are_refused(
    animals: Path, model_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = animals.read_bytes()
    out = tmp_path / "m"
    assert run("fit", "bhc", animals, "--out", out, "--events", animals, "-q") == 2
    assert run("fit", "bhc", animals, "--out", out, "--events", out, "-q") == 2
    assert run("fit", "bhc", animals, "--out", "/dev/null", "-q") == 2
    other = tmp_path / "precious.csv"
    other.write_text("do not lose me")
    assert run("predict", model_file, animals, "--out", other, "-q") == 2
    assert run("predict", model_file, animals, "--events", other, "-q") == 2
    assert other.read_text() == "do not lose me"
    assert animals.read_bytes() == before
    assert not out.exists()
    assert capsys.readouterr().err.count("Choose another") == 5


def test_first_column__of_numbers_with_a_slip_is_not_taken_for_names(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{i / 10},{i}" for i in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b", *lines, "hello,3"]))
    assert run("fit", "bhc", tmp_path / "t.csv", "--out", tmp_path / "m", "-q") == 2
    assert "column 'a', line 42" in capsys.readouterr().err


def test_categories__are_not_modelled_as_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{i / 7:.3f},{'red' if i % 2 else 'blue'}" for i in range(12)]
    (tmp_path / "t.csv").write_text("\n".join(["size,colour", *rows]))
    arguments = ["fit", "bhc", tmp_path / "t.csv", "--out", tmp_path / "m", "-q"]
    assert run(*arguments, "--family", "gaussian") == 2
    assert "categories in column 'colour'" in capsys.readouterr().err


def test_cluster__that_cannot_be_reached_is_exit_1(
    animals: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from distclust.errors import ClusterError

    def refuse(where: str, **_: object) -> None:
        raise ClusterError("connect", "a scheduler", f"none at {where}", "Start one.")

    monkeypatch.setattr("distclust.engine.connect", refuse)
    out = animals.parent / "m"
    arguments = ["fit", "bhc", animals, "--out", out, "--scheduler", "tcp://127.0.0.1:1"]
    assert run(*arguments) == 1
    assert "none at tcp://127.0.0.1:1" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_fit__interrupted_is_exit_3_and_leaves_nothing(
    number: signal.Signals, tmp_path: Path
) -> None:
    rows = np.random.default_rng(0).integers(0, 2, size=(6000, 64))
    np.save(tmp_path / "rows.npy", rows)
    out, events = tmp_path / "m", tmp_path / "events"
    command = [sys.executable, "-m", "distclust", "fit", "bhc", str(tmp_path / "rows.npy")]
    command += ["--out", str(out), "--events", str(events)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if events.exists() and "pairing leaves" in events.read_text():
            break
        time.sleep(0.05)
    os.kill(process.pid, number)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 3, error
    assert "Run the same command again" in error
    assert "Traceback" not in error
    assert sorted(path.name for path in tmp_path.iterdir()) == ["events", "rows.npy"]


STRUCK = """
import signal, sys, time
from distclust import cli

class HalfMade:
    def __del__(self):
        {taken_apart}

def work(**options):
    half_made = HalfMade()
    {struck}

cli.distclust.commands["doctor"].callback = work
sys.argv = ["distclust", "doctor"]
cli.run()
"""
STRIKE = "signal.raise_signal(signal.SIGINT)"


@pytest.mark.parametrize(
    ("struck", "taken_apart"),
    [
        (STRIKE, 'raise AttributeError("half made")'),
        ("half_made = None; time.sleep(30)", STRIKE),
    ],
    ids=["at work", "while an object is taken apart"],
)
def test_interrupted__what_is_half_made_does_not_complain(struck: str, taken_apart: str) -> None:
    script = STRUCK.format(struck=struck, taken_apart=taken_apart)
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=20
    )
    assert done.returncode == 3, done.stderr
    assert "Run the same command again" in done.stderr
    assert "half made" not in done.stderr
    assert "Traceback" not in done.stderr


def test_warnings__are_one_line_on_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "t.csv").write_text("x,y\n1,0\n1,1\n1,0\n1,1\n")
    command = [sys.executable, "-m", "distclust", "fit", "bhc", str(tmp_path / "t.csv")]
    command += ["--out", str(tmp_path / "m"), "-q"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("Warning: ")
    assert "'x'" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.cluster
def test_demo__runs_on_a_local_cluster_and_writes_its_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-m", "distclust", "demo", "--out", str(tmp_path / "demo")]
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    on_cluster = json.loads(done.stdout)
    assert on_cluster["n_clusters"] == 8
    assert on_cluster["adjusted_rand"] == 1.0
    for path in on_cluster["written"].values():
        assert Path(path).stat().st_size > 0
    assert run("demo", "--out", tmp_path / "demo", "--json", "--scheduler", "threads") == 0
    assert document(capsys) == on_cluster  # the same to the bit, in process
