"""The verbs around jobs as people use them: run, job init, job check, job status."""

from __future__ import annotations

import datetime
import errno
import json
import logging
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from distclust import cli
from distclust.jobs import ledger, running
from distclust.jobs.jobfile import starter
from tests.jobs.corpus import JOB, Corpus

VERBS = (("run",), ("job", "init"), ("job", "check"), ("job", "status"))


@pytest.fixture(autouse=True)
def _restore_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """``main`` sets handlers for the whole process; tests share theirs."""
    monkeypatch.delenv("DASK_SCHEDULER_ADDRESS", raising=False)
    handler, show = signal.getsignal(signal.SIGTERM), warnings.showwarning
    handlers, level = logging.root.handlers[:], logging.root.level
    yield
    signal.signal(signal.SIGTERM, handler)
    warnings.showwarning = show
    logging.root.handlers[:] = handlers
    logging.root.setLevel(level)


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    found = Corpus(tmp_path)
    found.bring(0, 120)
    return found


def run(*arguments: object) -> int:
    return cli.main([str(argument) for argument in arguments])


def document(capsys: pytest.CaptureFixture[str]) -> Any:
    return json.loads(capsys.readouterr().out)


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """Return the one line that bad input gets."""
    assert run(*arguments) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    (line,) = printed.err.splitlines()
    return line


# ---- what people and programs are told -----------------------------------------------------------


@pytest.mark.parametrize("verb", VERBS)
def test_help__has_an_example(verb, capsys):
    assert run(*verb, "--help") == 0
    assert "Example:" in capsys.readouterr().out


def test_run__for_people(corpus, capsys):
    assert run("run", corpus.path) == 0
    printed = capsys.readouterr().out
    assert "Published" in printed
    assert "120 rows" in printed
    for words in ("tree", "rbhc", "fitted", "similar", "sets"):
        assert words in printed
    assert run("run", corpus.path) == 0
    assert "Nothing new" in capsys.readouterr().out
    assert run("run", corpus.path, "--quiet") == 0
    assert capsys.readouterr().out == ""


def test_run__as_json_is_the_record(corpus, capsys):
    assert run("run", corpus.path, "--json") == 0
    printed = document(capsys)
    path = Path(corpus.out) / "runs" / printed["run"] / "record.json"
    assert printed == {"command": "run", **json.loads(path.read_text())}
    assert printed["outcome"] == "published"
    assert printed["scheduler"] == "in process"


def test_run__refit(corpus, capsys):
    assert run("run", corpus.path, "--quiet") == 0
    assert run("run", corpus.path, "--refit", "tree", "--json") == 0
    actions = {model["name"]: model["action"] for model in document(capsys)["models"]}
    assert actions == {"tree": "fitted", "similar": "kept"}
    assert "--refit: expected a model among tree, similar" in refusal_of_refit(corpus, capsys)


def refusal_of_refit(corpus: Corpus, capsys: pytest.CaptureFixture[str]) -> str:
    return refusal(capsys, "run", corpus.path, "--refit", "shrub")


def test_run__events_are_lines_of_json(corpus, tmp_path):
    events = tmp_path / "events.jsonl"
    assert run("run", corpus.path, "--quiet", "--events", events) == 0
    stages = {json.loads(line)["stage"] for line in events.read_text().splitlines()}
    assert len(stages) > 1


def test_run__where_the_job_file_says(corpus, capsys):
    corpus.path.write_text(f'{JOB}[resources]\nscheduler = "threads"\n')
    assert run("run", corpus.path, "--json") == 0
    assert document(capsys)["scheduler"] == "threads"


def test_run__the_environment_comes_before_the_job_file(corpus, capsys, monkeypatch):
    corpus.path.write_text(f'{JOB}[resources]\nscheduler = "threads"\ntimeout = "1s"\n')
    monkeypatch.setenv("DASK_SCHEDULER_ADDRESS", "tcp://127.0.0.1:1")
    assert run("run", corpus.path) == 1
    assert "tcp://127.0.0.1:1" in capsys.readouterr().err
    assert run("run", corpus.path, "--scheduler", "threads") == 0


def test_plan__says_what_would_be_done_and_changes_nothing(corpus, capsys):
    assert run("run", corpus.path, "--plan") == 0
    printed = capsys.readouterr().out
    assert "1 new" in printed
    assert "fit: It is fitted for the first time." in printed
    assert not Path(corpus.out).exists()
    assert run("run", corpus.path, "--quiet") == 0
    before = sorted(Path(corpus.out).rglob("*"))
    assert run("run", corpus.path, "--plan", "--json") == 0
    plan = document(capsys)
    assert plan["command"] == "plan"
    assert plan["is_up_to_date"] is True
    assert plan["models"] == dict.fromkeys(("tree", "similar"), "keep: The rows are the same.")
    assert sorted(Path(corpus.out).rglob("*")) == before
    corpus.bring(1)
    assert run("run", corpus.path, "--plan", "--json") == 0
    plan = document(capsys)
    assert plan["is_up_to_date"] is False
    assert plan["models"]["tree"].startswith("update: Rows go down the tree")
    assert "more than 25% of the rows" in plan["models"]["tree"]
    assert plan["models"]["similar"].startswith("update: Shards whose rows changed")
    assert sorted(Path(corpus.out).rglob("*")) == before


def test_help__of_run_tells_what_its_plan_tells_and_has_no_seed(capsys):
    assert run("run", "--help") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "--plan Print which files are new and what would become of each model" in printed
    assert "--seed" not in printed  # models have theirs in the job file


def test_init__writes_a_file_that_runs(tmp_path, capsys):
    path = tmp_path / "articles.toml"
    assert run("job", "init", path) == 0
    assert f"distclust run {path} --plan" in capsys.readouterr().out.replace("\n", " ")
    assert path.read_text() == starter()
    assert run("job", "check", path) == 0
    assert "sound" in capsys.readouterr().out
    assert "one that exists" in refusal(capsys, "job", "init", path)
    other = tmp_path / "other.toml"
    assert run("job", "init", other, "--plan", "--json") == 0
    assert document(capsys) == {"command": "job init", "path": str(other)}
    assert not other.exists()


def test_check__as_json(corpus, capsys):
    assert run("job", "check", corpus.path, "--json") == 0
    assert document(capsys) == {
        "command": "job check",
        "job": "corpus",
        "path": str(corpus.path),
    }
    assert not Path(corpus.out).exists()


def test_status__before_during_and_after(corpus, capsys):
    assert run("job", "status", corpus.path, "--json") == 0
    told = document(capsys)
    assert (told["published"], told["at_work"], told["runs"]) == (None, None, [])
    assert run("job", "status", corpus.path) == 0
    assert "corpus" in capsys.readouterr().out
    assert run("run", corpus.path, "--quiet") == 0
    lock = ledger.JobLedger(ledger_place(corpus)).begin("corpus")
    assert run("job", "status", corpus.path, "--json") == 0
    told = document(capsys)
    assert told["at_work"]["run"] == lock.run
    assert told["at_work"]["process"] == os.getpid()
    assert told["published"]["models"].keys() == {"tree", "similar"}
    assert [record["outcome"] for record in told["runs"]] == ["published"]
    assert run("run", corpus.path) == 1  # another is at work
    assert "alive" in capsys.readouterr().err
    lock.end("nothing new")
    assert run("job", "status", corpus.path) == 0
    printed = capsys.readouterr().out
    assert "published" in printed
    assert "tree" in printed


def ledger_place(corpus: Corpus) -> Any:
    from distclust.store.objects import open_objects

    return open_objects(corpus.out)


# ---- gates ---------------------------------------------------------------------------------------


def test_gates__exit_code_4_until_accepted(corpus, capsys):
    corpus.path.write_text(f"{JOB}[gates.models.tree]\nmax_clusters = 1\n")
    assert run("run", corpus.path) == 4
    printed = capsys.readouterr().out
    assert "Gate" in printed
    assert "expected" in printed
    assert run("run", corpus.path, "--json") == 4
    told = document(capsys)
    assert (told["outcome"], told["published"]) == ("gates failed", None)
    assert [gate["passed"] for gate in told["gates"]].count(False) == 1
    assert run("run", corpus.path, "--accept") == 0
    assert corpus.state() is not None


# ---- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("[input]", "[inputs]"), "job.toml: expected keys among name, out, input,"),
        (("source =", "sourec ="), "got 'sourec'. Did you mean 'source'?"),
        (
            ('kind = "rbhc"', 'kind = "rbhc"\nsed = 3'),
            "models.tree: expected keys among kind, seed, parameters, refit, got 'sed'",
        ),
        (('kind = "rbhc"', 'kind = "rbch"'), "models.tree.kind: expected one of"),
        (("sample_size = 64", "sample = 64"), "models.tree: expected parameters among"),
        (("sample_size = 64", 'sample_size = "big"'), "sample_size"),
        (('out = "results"', "out = 3"), "job.toml: out: expected str, got int"),
        (('out = "results"', 'out = "results'), "job.toml: expected a job file in TOML"),
        (('source = "in/*.csv"', ""), "job.toml: input: expected a source or a store"),
        (("[models.similar]", "[gates.models.shrub]\n[models.similar]"), "gates.models: expected"),
        (
            (
                "[models.similar]",
                '[resources]\nscheduler = "local"\nworkers = 9999\n[models.similar]',
            ),
            "resources.workers: expected at most",
        ),
        (
            (
                "[models.similar]",
                '[resources]\nscheduler = "local"\nmemory = "90 TB"\n[models.similar]',
            ),
            "resources.memory: expected at most",
        ),
        (
            (
                "[models.similar]",
                '[resources]\nscheduler = "local"\nmemory = "1 kB"\n[models.similar]',
            ),
            "resources.memory: expected at least 500 MB for a worker, got 1 kB",
        ),
        (
            ("[models.similar]", '[resources]\nscheduler = "moon"\n[models.similar]'),
            "resources.scheduler: expected",
        ),
    ],
)
def test_bad_input__is_one_sentence_and_exit_code_2(corpus, capsys, change, words):
    assert change[0] in JOB
    corpus.path.write_text(JOB.replace(*change, 1))
    for verb in (("run",), ("job", "check")):
        assert words in refusal(capsys, *verb, corpus.path)
    assert not Path(corpus.out).exists()


def test_bad_input__no_job_file(tmp_path, capsys):
    for verb in (("run",), ("job", "check"), ("job", "status")):
        assert "nowhere.toml" in refusal(capsys, *verb, tmp_path / "nowhere.toml")


def test_bad_input__a_missing_path(corpus, capsys):
    corpus.path.write_text(JOB.replace("in/*.csv", "nowhere/*.csv"))
    assert run("run", corpus.path) == 2
    assert "nowhere" in capsys.readouterr().err


def test_bad_input__a_store_of_another_job(corpus, capsys):
    assert run("run", corpus.path, "--quiet") == 0
    corpus.path.write_text(JOB.replace('name = "corpus"', 'name = "other"'))
    for verb in (("run",), ("run", "--plan"), ("job", "check"), ("job", "status")):
        assert "results of job 'other', got those of job 'corpus'" in refusal(
            capsys, *verb, corpus.path
        )
    elsewhere = JOB.replace('name = "corpus"', 'name = "other"').replace('"results"', '"elsewhere"')
    elsewhere = elsewhere.replace("[input]", '[input]\nstore = "results/rows.zarr"')
    corpus.path.write_text(elsewhere)
    for verb in (("run", "--plan"), ("job", "check"), ("job", "status"), ("run",)):
        assert "rows of job 'other', got those of job 'corpus'" in refusal(
            capsys, *verb, corpus.path
        )


# ---- trouble -------------------------------------------------------------------------------------


def test_full_disk__is_exit_code_1_and_gone_on_with(corpus, capsys, monkeypatch):
    assert run("run", corpus.path, "--quiet") == 0
    state = corpus.state()
    corpus.bring(1)

    def full(*_: object, **options: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(running, "bring_in", full)
    assert run("run", corpus.path) == 1
    assert "No space left on device" in capsys.readouterr().err
    monkeypatch.undo()
    assert corpus.state() == state
    assert run("run", corpus.path, "--json") == 0
    assert document(capsys)["input"]["rows"]["added"] == 40


def test_clock__that_went_backwards_does_no_harm(corpus, capsys, monkeypatch):
    assert run("run", corpus.path, "--quiet") == 0
    corpus.bring(1)
    real = datetime.datetime

    class Earlier(datetime.datetime):
        @classmethod
        def now(cls, tz: datetime.tzinfo | None = None) -> datetime.datetime:
            return real.now(tz) - datetime.timedelta(days=3000)

    for module in (ledger, running):
        monkeypatch.setattr(module.datetime, "datetime", Earlier)
    assert run("run", corpus.path, "--json") == 0
    assert document(capsys)["outcome"] == "published"
    assert run("job", "status", corpus.path, "--json") == 0
    told = document(capsys)
    outcomes = [(record["outcome"], record["input"]["rows"]["after"]) for record in told["runs"]]
    assert outcomes == [("published", 120), ("published", 160)]  # in the order of runs
    assert told["published"]["run"] == told["runs"][-1]["run"]


def process(corpus: Corpus, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "distclust", "run", str(corpus.path), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def wait_until(condition: Any, what: str) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.01)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt__is_exit_code_3_and_the_next_run_goes_on(tmp_path, number):
    corpus = Corpus(tmp_path)
    corpus.bring(0, 6_000)
    running_now = process(corpus)
    models = Path(corpus.out) / "models"
    wait_until(models.exists, "no model was begun")
    running_now.send_signal(number)
    printed, said = running_now.communicate(timeout=60)
    assert (running_now.returncode, printed) == (3, ""), said
    assert said.splitlines()[-1].startswith("Interrupted; what is done is kept.")
    (record,) = (Path(corpus.out) / "runs").glob("*/record.json")
    assert json.loads(record.read_text())["outcome"] == "interrupted"
    assert corpus.state() is None
    again = process(corpus, "--json")
    printed, said = again.communicate(timeout=120)
    assert again.returncode == 0, said
    told = json.loads(printed)
    assert told["outcome"] == "published"
    assert told["input"]["rows"]["after"] == 6_000
