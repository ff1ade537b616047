"""Runs of a whole job, in process: what they find, do, publish, refuse and leave."""

from __future__ import annotations

import contextlib
import datetime
import json
import re
import sys
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import distclust
from distclust.errors import ConflictError, InputError, MissingFileError, StoreError
from distclust.jobs import running
from distclust.jobs.jobfile import read_job
from distclust.jobs.ledger import JobLedger
from distclust.jobs.published import open_job
from distclust.jobs.running import Wish, plan_run
from distclust.jobs.runs import run_job
from distclust.store.matrix_store import open_store
from distclust.store.objects import open_objects
from distclust.store.results import ResultsStore
from tests.jobs.corpus import JOB, Corpus, record_on_disk


@pytest.fixture
def corpus(tmp_path: Path) -> Corpus:
    found = Corpus(tmp_path)
    found.bring(0, 200)
    return found


def test_run__the_first_time_makes_everything(corpus):
    record = corpus.run()
    assert record.outcome == "published"
    assert [model.action for model in record.models] == ["fitted", "fitted"]
    assert (record.input.rows.before, record.input.rows.after) == (0, 200)
    assert record.input.files.new == 1
    assert record.published == corpus.state().number
    job = open_job(corpus.out)
    assert job.store().shape == (200, 16)
    model = job.model("tree")
    np.testing.assert_array_equal(model.predict(job.store()), np.asarray(job.labels("tree")))
    assert len(job.model("similar").query(["n0-1", "n0-2"], k=3).ids) == 3
    assert all(verdict.passed for verdict in record.gates)


def test_run__leaves_record_report_and_figures(corpus):
    record = corpus.run()
    assert record_on_disk(corpus, record.run) == json.loads(json.dumps(record.to_json()))
    assert "Published" in (Path(corpus.out) / "runs" / record.run / "report.html").read_text()
    figures = Path(corpus.out) / "metrics.prom"
    assert 'distclust_job_rows{job="corpus"' in figures.read_text()
    clusters = f'distclust_job_clusters{{job="corpus",model="tree"}} {n_clusters_of(corpus)}'
    assert clusters in figures.read_text().splitlines()
    assert corpus.run().outcome == "nothing new"
    assert clusters in figures.read_text().splitlines()
    kept = 'distclust_job_model_info{job="corpus",model="similar",kind="sets",action="kept"} 1'
    assert kept in figures.read_text().splitlines()


def n_clusters_of(corpus: Corpus) -> int:
    return int(open_job(corpus.out).model("tree").n_clusters_)


def test_run__nothing_new_publishes_nothing(corpus):
    corpus.run()
    state = corpus.state()
    before = {path for path in Path(corpus.out).rglob("*") if path.is_file()}
    record = corpus.run()
    assert record.outcome == "nothing new"
    assert record.models == ()
    assert corpus.state() == state
    after = {path for path in Path(corpus.out).rglob("*") if path.is_file()}
    new = {path.relative_to(corpus.out).as_posix() for path in after - before}
    records = {name for name in new if name.startswith(".distclust/job/ledger")}
    assert len(records) == 2  # the lock, taken and given back
    assert new - records == {f"runs/{record.run}/record.json"}
    assert open_store(f"{corpus.out}/rows.zarr").generation == 1


def test_run__files_that_changed_and_give_the_same_rows_publish_nothing(corpus):
    corpus.run()
    state = corpus.state()
    path = corpus.inbox / "night000.csv"
    header, *lines = path.read_text().splitlines(keepends=True)
    path.write_text(header + "".join(reversed(lines)))
    (corpus.inbox / "empty.csv").write_text(header)
    record = corpus.run()
    assert record.outcome == "nothing new"
    assert (record.input.files.new, record.input.files.changed) == (1, 1)
    assert corpus.state() == state
    assert corpus.run().input.files.unchanged == 2  # they are not read again
    corpus.bring(1)
    record = corpus.run()
    assert (record.outcome, record.input.rows.added) == ("published", 40)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('layout = "dense"', 'layout = "csr"'),
        ('storage = "hot"', 'storage = "packed"'),
        ('duplicates = "first"', 'duplicates = "last"'),
        ('duplicates = "first"', ""),
    ],
)
def test_run__another_way_to_store_rows_is_refused_even_if_no_file_changed(corpus, before, after):
    corpus.path.write_text(JOB.replace("[input]", f"[input]\n{before}"))
    assert corpus.run().outcome == "published"
    assert corpus.run().outcome == "nothing new"
    state = corpus.state()
    corpus.path.write_text(JOB.replace("[input]", f"[input]\n{after}"))
    name, found = before.split(" = ")
    told = f"input.{name}: expected {found} as for the rows that are there, got".replace('"', "'")
    with pytest.raises(InputError, match=told):
        corpus.run()
    with pytest.raises(InputError, match=told):
        plan_run(read_job(corpus.path), Wish())
    assert corpus.state() == state


@pytest.mark.parametrize("name", ["layout", "storage", "duplicates"])
def test_run__a_way_to_store_rows_that_fits_those_that_are_there(corpus, name):
    corpus.run()
    store = open_store(f"{corpus.out}/rows.zarr")
    same = {"layout": store.layout, "storage": store.codec, "duplicates": "last"}[name]
    corpus.path.write_text(JOB.replace("[input]", f'[input]\n{name} = "{same}"'))
    assert corpus.run().outcome == "nothing new"


def test_run__options_of_reading_that_changed_are_refused_even_if_no_file_did(corpus):
    corpus.run()
    text = corpus.path.read_text()
    corpus.path.write_text(f'{text}\n[input.reading]\ndrop = ["f0"]\n')
    with pytest.raises(InputError, match=r"input.reading: expected the options of the rows"):
        corpus.run()
    corpus.path.write_text(text)
    assert corpus.run().outcome == "nothing new"


def test_run__a_touched_file_is_hashed_once(corpus):
    corpus.run()
    path = corpus.inbox / "night000.csv"
    path.write_bytes(path.read_bytes())
    first, second = corpus.run(), corpus.run()
    assert (first.input.files.touched, first.outcome) == (1, "nothing new")
    assert first.input.bytes_read > 0
    assert (second.input.files.unchanged, second.input.bytes_read) == (1, 0)


def test_run__new_rows_update_and_equal_what_predict_says(corpus):
    corpus.run()
    before = open_job(corpus.out)
    corpus.bring(1)
    record = corpus.run()
    assert [model.action for model in record.models] == ["updated", "updated"]
    assert record.input.rows.added == 40
    assert record.models[0].clusters["counts"]["continued"] == record.models[0].clusters["after"]
    job = open_job(corpus.out)
    labels = np.asarray(job.labels("tree"))
    np.testing.assert_array_equal(labels, job.model("tree").predict(job.store()))
    np.testing.assert_array_equal(labels[:200], np.asarray(before.labels("tree")))


def test_run__a_fresh_job_over_the_same_files_has_the_same_index(corpus, tmp_path):
    corpus.run()
    corpus.bring(1)
    corpus.run()
    other = Corpus(tmp_path / "other")
    other.bring(0, 200)
    other.bring(1)
    other.run()
    for name in ("ids", "rows"):
        assert corpus.content()[name] == other.content()[name]
    queries = ["n0-1", "n1-2"]
    ours, theirs = (open_job(each.out).model("similar") for each in (corpus, other))
    assert ours.query(queries, k=20).ids.tolist() == theirs.query(queries, k=20).ids.tolist()
    np.testing.assert_array_equal(
        ours.query(queries, k=20).log_scores, theirs.query(queries, k=20).log_scores
    )


def test_run__changed_and_deleted_rows(corpus):
    corpus.bring(1)
    corpus.run()
    path = corpus.inbox / "night001.csv"
    table = pd.read_csv(path, index_col="id")
    table.iloc[0] = 1 - table.iloc[0]
    table.drop(index="n1-5").to_csv(path)
    record = corpus.run()
    rows = record.input.rows
    assert (rows.before, rows.after, rows.added, rows.changed, rows.deleted) == (240, 239, 0, 1, 1)
    matrix = open_job(corpus.out).store().matrix()
    assert "n1-5" not in matrix.row_ids.tolist()
    at = matrix.row_ids.tolist().index("n1-0")
    np.testing.assert_array_equal(np.asarray(matrix.read_all())[at], table.iloc[0])


def test_run__a_file_that_is_gone_takes_its_rows_along(corpus):
    corpus.bring(1)
    corpus.run()
    (corpus.inbox / "night001.csv").unlink()
    record = corpus.run()
    assert record.input.files.gone == 1
    assert record.input.rows.deleted == 40
    assert open_job(corpus.out).store().shape == (200, 16)


def test_run__rows_of_a_new_kind_refit_only_below(corpus):
    corpus.run()
    corpus.bring(1, 60, kinds=(6,))
    record = corpus.run()
    tree = record.models[0]
    assert tree.action in ("refit below", "fitted")
    assert "fit worse than old ones" in tree.reason
    assert tree.clusters["counts"]["born"] + tree.clusters["counts"]["split"] >= 1


def test_run__parameters_that_change_refit_that_model_only(corpus):
    corpus.run()
    corpus.path.write_text(JOB.replace("sample_size = 64", "sample_size = 80"))
    record = corpus.run()
    assert [model.action for model in record.models] == ["fitted", "kept"]
    assert record.models[0].reason == "Its parameters changed."
    assert corpus.run().outcome == "nothing new"


def test_run__a_model_that_is_asked_for_is_refitted(corpus):
    corpus.run()
    record = corpus.run(refit=("tree",))
    assert record.models[0].action == "fitted"
    assert record.models[0].reason == "It was asked for."
    with pytest.raises(InputError, match="--refit"):
        corpus.run(refit=("shrub",))


def test_run__a_period_that_is_over_refits(corpus, monkeypatch):
    corpus.path.write_text(
        JOB.replace("[models.similar]", '[models.tree.refit]\nperiod = "7d"\n[models.similar]')
    )
    corpus.run()
    assert corpus.run().outcome == "nothing new"

    real = datetime.datetime

    class Later(datetime.datetime):
        days = 8.0

        @classmethod
        def now(cls, tz=None):
            return real.now(tz) + datetime.timedelta(days=cls.days)

    monkeypatch.setattr(running.datetime, "datetime", Later)
    assert "8.0 days old" in corpus.run().models[0].reason
    Later.days = -400.0  # a clock that went backwards is no reason for anything
    assert corpus.run().outcome == "nothing new"


def test_run__models_come_and_go(corpus):
    corpus.run()
    corpus.path.write_text(JOB.split("[models.similar]")[0])
    assert corpus.run().outcome == "published"
    assert open_job(corpus.out).names == ["tree"]
    corpus.path.write_text(JOB)
    record = corpus.run()
    assert [model.action for model in record.models] == ["kept", "fitted"]


# ---- gates ---------------------------------------------------------------------------------------


def test_gates__an_input_that_shrank_is_kept_aside(corpus):
    corpus.bring(1, 300)
    corpus.path.write_text(JOB + "[gates]\nmax_deleted = 0.2\n")
    corpus.run()
    state, content = corpus.state(), corpus.content()
    (corpus.inbox / "night001.csv").unlink()
    record = corpus.run()
    assert record.outcome == "gates failed"
    assert record.models == ()  # nothing is made of it
    assert [verdict.name for verdict in record.gates if not verdict.passed] == ["shrinking"]
    assert corpus.state() == state
    assert corpus.content() == content
    assert corpus.run().outcome == "gates failed"
    corpus.bring(1, 300)  # it comes back
    assert corpus.run().outcome == "published"
    assert sorted(corpus.content()["ids"]) == sorted(content["ids"])


def test_gates__a_model_that_fails_is_kept_aside_and_can_be_accepted(corpus):
    corpus.run()
    state = corpus.state()
    corpus.path.write_text(JOB + "[gates.models.tree]\nmax_clusters = 1\n")
    corpus.bring(1)
    record = corpus.run()
    assert record.outcome == "gates failed"
    assert corpus.state() == state
    aside = record.models[0].version.after
    results = ResultsStore(f"{corpus.out}/models/tree")
    assert results.current().id == state.models["tree"]["version"]
    assert results.get(aside).metrics["n_rows"] == 240  # still there, for who knows it
    accepted = corpus.run(accept=True)
    assert accepted.outcome == "published"
    assert corpus.state().models["tree"]["version"] == aside  # not made again
    assert results.current().id == aside


# ---- what is refused -----------------------------------------------------------------------------


def test_run__another_job_in_the_same_place(corpus):
    corpus.run()
    corpus.path.write_text(JOB.replace('name = "corpus"', 'name = "other"'))
    with pytest.raises(InputError, match="job 'corpus'"):
        corpus.run()


def test_run__a_store_of_another_job(corpus):
    corpus.run()
    text = JOB.replace('name = "corpus"', 'name = "other"').replace('"results"', '"elsewhere"')
    corpus.path.write_text(text.replace("[input]", '[input]\nstore = "results/rows.zarr"'))
    with pytest.raises(InputError, match="those of job 'corpus'"):
        corpus.run()


def test_run__a_store_that_somebody_else_changed(corpus):
    corpus.run()
    open_store(f"{corpus.out}/rows.zarr").delete(["n0-3"])
    with pytest.raises(InputError, match="something else"):
        corpus.run()


def test_run__features_that_changed(corpus):
    corpus.run()
    state = corpus.state()
    path = corpus.bring(1)
    table = pd.read_csv(path, index_col="id").rename(columns={"f3": "other"})
    table.to_csv(path)
    told = f"rows of {path}: expected a column named 'f3', got 'other'. Rename or reorder .*"
    with pytest.raises(
        InputError, match=told + r"If the change is meant, .* another place \(out\)"
    ):
        corpus.run()
    assert corpus.state() == state
    path.unlink()
    assert corpus.run().outcome == "nothing new"


def test_run__a_cell_that_is_no_number(corpus):
    path = corpus.bring(1)
    table = pd.read_csv(path, index_col="id").astype(object)
    table.iloc[7, 2] = "l"
    table.to_csv(path)
    told = (
        r"night001.csv, column 'f2', line 9: expected a number as in most rows, got 'l'\. .*"
        r"In a job file: categories in \[input.reading\]\."
    )
    with pytest.raises(InputError, match=told):
        corpus.run()


def test_run__an_input_that_is_not_there(tmp_path):
    corpus = Corpus(tmp_path)
    with pytest.raises(MissingFileError, match="nothing there"):
        corpus.run()
    assert corpus.state() is None
    assert [record.outcome for record in _records(corpus)] == ["failed"]


def test_run__unknown_kinds_and_parameters_are_refused_before_the_lock(corpus):
    for change, words in (
        ('kind = "rbch"', "models.tree.kind: expected one of"),
        ('kind = "rbhc"\nparameters.sample = 3', "models.tree: expected parameters among"),
        ('kind = "rbhc"\nparameters.sample_size = 1', "sample_size"),
    ):
        head, rest = JOB.split('kind = "rbhc"')
        text = head + change + rest.split("check_size = 64")[1]
        corpus.path.write_text(text)
        with pytest.raises(InputError, match=words):
            corpus.run()
    assert not Path(corpus.out).exists()


def test_run__unknown_options_of_reading(corpus):
    corpus.path.write_text(
        JOB.replace("[models.tree]", '[input.reading]\nidz = "id"\n[models.tree]', 1)
    )
    with pytest.raises(InputError, match=r"input\.reading.*idz"):
        corpus.run()


def test_run__a_model_of_another_kind_under_the_same_name(corpus):
    corpus.run()
    head, rest = JOB.split('kind = "rbhc"')
    corpus.path.write_text(f'{head}kind = "sets"\n{rest.split("check_size = 64")[1]}')
    with pytest.raises(InputError, match="'rbhc', which is published under this name"):
        corpus.run()


def test_run__while_another_is_at_work(corpus):
    corpus.run()
    lock = JobLedger(open_objects(corpus.out)).begin("corpus")
    corpus.bring(1)
    with pytest.raises(ConflictError, match="alive"):
        corpus.run()
    lock.end("published")
    assert corpus.run().outcome == "published"


def test_run__who_loses_the_lock_publishes_nothing(corpus, monkeypatch):
    corpus.run()
    corpus.bring(1)
    state = corpus.state()
    ledger = JobLedger(open_objects(corpus.out))

    def taken_over(*arguments, **options):
        head = ledger.head()
        ledger._ledger.append({**head.content, "run": "00000099-20990101T000000Z"}, head.number)
        return judge(*arguments, **options)

    judge = running.judge_model
    monkeypatch.setattr(running, "judge_model", taken_over)
    with pytest.raises(ConflictError):
        corpus.run()
    assert corpus.state() == state


# ---- the rest ------------------------------------------------------------------------------------


def test_run__a_store_that_is_only_read(tmp_path):
    rows = (np.random.default_rng(0).random((300, 12)) < 0.3).astype(np.uint8)
    distclust.ingest(iter([rows[:200]]), tmp_path / "rows.zarr")
    text = JOB.replace('source = "in/*.csv"', 'store = "rows.zarr"')
    corpus = Corpus(tmp_path, text)
    assert corpus.run().outcome == "published"
    assert corpus.run().outcome == "nothing new"
    distclust.ingest(iter([rows[200:]]), tmp_path / "rows.zarr", how="append")
    record = corpus.run()
    assert (record.outcome, record.input.rows.added) == ("published", 100)


def test_plan__says_what_a_run_would_do_and_changes_nothing(corpus):
    job = read_job(corpus.path)
    plan = plan_run(job, Wish())
    first = "fit: It is fitted for the first time."
    assert plan["models"] == dict.fromkeys(("tree", "similar"), first)
    assert not Path(corpus.out).exists()
    corpus.run()
    assert plan_run(job, Wish())["is_up_to_date"]
    assert set(plan_run(job, Wish())["models"].values()) == {"keep: The rows are the same."}
    corpus.bring(1)
    plan = plan_run(job, Wish(refit=("tree",)))
    assert plan["files"]["new"] == 1
    assert plan["models"]["tree"] == "fit: It was asked for."
    assert plan["models"]["similar"].startswith("update: Shards")


def test_prune__keeps_what_the_rules_say_and_what_is_published(corpus):
    corpus.path.write_text(JOB + "[keep]\nversions = 2\ndays = 0.0\nruns = 3\n")
    for night in range(1, 6):
        corpus.bring(night)
        corpus.run()
    for model in ("tree", "similar"):
        assert len(ResultsStore(f"{corpus.out}/models/{model}").versions()) == 2
    store = open_store(f"{corpus.out}/rows.zarr")
    assert [info.number for info in store.generations()] == [4, 5]
    assert len(list((Path(corpus.out) / "runs").iterdir())) == 3
    assert len(list((Path(corpus.out) / ".distclust/job/inventories").iterdir())) == 2
    corpus.content()


TREE_ONLY = JOB[: JOB.index("[models.similar]")]
MIXED = TREE_ONLY + '[models.exact]\nkind = "bhc"\n'  # with labels of its own


def test_prune__a_model_that_left_the_job_goes_with_the_last_state_that_is_kept(corpus):
    keep = "[keep]\nversions = 2\ndays = 0.0\n"
    corpus.path.write_text(MIXED + keep)
    corpus.run()
    models = Path(corpus.out) / "models"
    foreign = models / "mine"  # no model of this job, whatever it is
    (foreign / "versions").mkdir(parents=True)
    (foreign / "versions/note.txt").write_text("keep me")
    corpus.path.write_text(TREE_ONLY + keep)
    first = corpus.run()  # the state before still names it
    assert (first.outcome, first.pruned["models"]) == ("published", [])
    assert {path.name for path in models.iterdir()} == {"tree", "exact", "exact.labels", "mine"}
    corpus.bring(1)
    with ResultsStore(models / "exact").open_version(
        ResultsStore(models / "exact").current().id
    ):  # not while somebody reads it
        assert corpus.run().pruned["models"] == []
    corpus.bring(2)
    second = corpus.run()
    assert second.pruned["models"] == ["exact"]
    assert {path.name for path in models.iterdir()} == {"tree", "mine"}
    corpus.bring(3)
    assert corpus.run().pruned["models"] == []
    assert (foreign / "versions/note.txt").read_text() == "keep me"


def test_prune__a_model_that_left_the_job_stays_for_the_days_that_are_kept(corpus):
    corpus.path.write_text(MIXED + "[keep]\nversions = 1\ndays = 1.0\n")
    corpus.run()
    corpus.path.write_text(TREE_ONLY + "[keep]\nversions = 1\ndays = 1.0\n")
    assert corpus.run().pruned["models"] == []
    corpus.path.write_text(MIXED + "[keep]\nversions = 1\ndays = 0.0\n")
    assert corpus.run().outcome == "published"  # it is back
    assert corpus.state().retired == {}
    corpus.path.write_text(TREE_ONLY + "[keep]\nversions = 1\ndays = 0.0\n")
    assert corpus.run().pruned["models"] == ["exact"]
    corpus.path.write_text(MIXED)
    assert corpus.run().outcome == "published"


def test_hooks__are_told(corpus, tmp_path):
    script = "import json, os, sys; r = json.load(sys.stdin); print(r['outcome'])"
    hook = json.dumps([sys.executable, "-c", script])
    corpus.path.write_text(JOB + f"[hooks]\nsuccess = {hook}\nfailure = {hook}\n")
    record = corpus.run()
    assert [(hook.event, hook.status, hook.output) for hook in record.hooks] == [
        ("success", "done", "published")
    ]
    corpus.path.write_text(JOB + f"[hooks]\nfailure = {hook}\n[gates]\nmin_rows = 9999\n")
    corpus.bring(1)
    assert corpus.run().hooks[0].output == "gates failed"


def test_hooks__that_fail_change_nothing(corpus):
    corpus.path.write_text(JOB + '[hooks]\nsuccess = ["/nowhere/at-all"]\n')
    record = corpus.run()
    assert record.outcome == "published"
    assert record.hooks[0].status == "not started"
    assert any("hook" in said for said in corpus.said)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("import time; time.sleep(60)", r"the success hook timed out after \d+\.\d s"),
        ("import sys; sys.exit(7)", "the success hook failed with exit code 7"),
        ("import sys; sys.exit('no mail')", "the success hook failed with exit code 1: no mail"),
    ],
)
def test_hooks__what_became_of_one_is_said(corpus, script, told):
    hook = json.dumps([sys.executable, "-c", script])
    corpus.path.write_text(JOB + f'[hooks]\nsuccess = {hook}\ntimeout = "1s"\n')
    corpus.run()
    assert re.fullmatch(told, corpus.said[-1])


def test_interrupt__is_recorded_and_gone_on_with(corpus, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(running, "judge_model", interrupt)
    with pytest.raises(KeyboardInterrupt):
        corpus.run()
    monkeypatch.undo()
    assert [record.outcome for record in _records(corpus)] == ["interrupted"]
    record = corpus.run()
    assert record.outcome == "published"
    assert len(list((Path(corpus.out) / "models/tree/versions").iterdir())) == 1


def test_two_runs_at_once__one_of_them_publishes(corpus):
    job = read_job(corpus.path)
    outcomes: list[str] = []

    def run() -> None:
        try:
            record = run_job(job, Wish(), contextlib.nullcontext, "in process", lambda text: None)
            outcomes.append(record.outcome)
        except ConflictError:
            outcomes.append("conflict")

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) in (["conflict", "published"], ["nothing new", "published"])


def test_open_job__what_is_not_there(tmp_path, corpus):
    with pytest.raises(StoreError, match="nothing published"):
        open_job(tmp_path / "nowhere")
    corpus.run()
    job = open_job(corpus.out)
    assert "tree" in repr(job)
    with pytest.raises(InputError, match="a model among"):
        job.model("other")
    with pytest.raises(InputError, match="no labels"):
        job.labels("similar")


def _records(corpus: Corpus):
    from distclust.jobs.record import read_history

    return read_history(open_objects(corpus.out)).records
