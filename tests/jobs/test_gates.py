from __future__ import annotations

import math

import pytest

from distclust.jobs.gates import judge_model, judge_rows
from distclust.jobs.jobfile import Gates, ModelGate
from distclust.jobs.record import RowCounts
from distclust.store import default_columns
from distclust.store.matrix import Column

COLUMNS = default_columns(3)


def failed(verdicts) -> list[str]:
    return [verdict.name for verdict in verdicts if not verdict.passed]


def test_judge_rows__the_first_version_needs_rows_only():
    assert failed(judge_rows(Gates(), RowCounts(0, 5, 5), None, COLUMNS)) == []
    assert failed(judge_rows(Gates(min_rows=6), RowCounts(0, 5, 5), None, COLUMNS)) == ["rows"]


def test_judge_rows__shrinking():
    gates = Gates(max_deleted=0.2)
    assert failed(judge_rows(gates, RowCounts(100, 80, deleted=20), COLUMNS, COLUMNS)) == []
    assert failed(judge_rows(gates, RowCounts(100, 79, deleted=21), COLUMNS, COLUMNS)) == [
        "shrinking"
    ]


def test_judge_rows__rows_that_changed_did_not_go():
    counts = RowCounts(100, 100, changed=60)
    assert failed(judge_rows(Gates(max_deleted=0.2), counts, COLUMNS, COLUMNS)) == []


def test_judge_rows__schema():
    counts = RowCounts(5, 5)
    others = (Column("other"), *COLUMNS[1:])
    found = judge_rows(Gates(), counts, COLUMNS, others)
    assert failed(found) == ["schema"]
    assert "'other'" in found[-1].got
    assert failed(judge_rows(Gates(), counts, COLUMNS, COLUMNS[:2])) == ["schema"]


def test_judge_model__evidence_a_row():
    before = {"n_rows": 100, "log_evidence": -1000.0}
    gates = Gates(max_evidence_drop=0.1)
    for evidence, names in ((-2199.0, []), (-2201.0, ["t: evidence"]), (math.nan, ["t: evidence"])):
        after = {"n_rows": 200, "log_evidence": evidence}
        assert failed(judge_model(gates, "t", 200, before, after)) == names


@pytest.mark.parametrize("figure", ["log_evidence", "log_joint", "log_bound", "log_likelihood"])
def test_judge_model__any_measure_of_fit_is_compared(figure):
    before, after = {"n_rows": 10, figure: -100.0}, {"n_rows": 10, figure: -120.0}
    assert failed(judge_model(Gates(), "t", 10, before, after)) == ["t: evidence"]
    assert failed(judge_model(Gates(max_evidence_drop=0.3), "t", 10, before, after)) == []
    assert failed(judge_model(Gates(), "t", 10, {"n_rows": 10, "log_other": 0.0}, after)) == []


def test_judge_model__evidence_near_zero_may_move_a_little():
    before = {"n_rows": 100, "log_evidence": 0.5}
    for evidence, names in ((0.3, []), (-9.0, []), (-10.0, ["t: evidence"])):
        after = {"n_rows": 100, "log_evidence": evidence}
        assert failed(judge_model(Gates(), "t", 100, before, after)) == names


def test_judge_model__a_first_version_has_no_evidence_to_keep():
    assert failed(judge_model(Gates(), "t", 5, None, {"n_rows": 5, "log_evidence": -1e9})) == []


def test_judge_model__rows_and_clusters():
    gates = Gates(models={"t": ModelGate(min_clusters=2, max_clusters=4)})
    for n_clusters, names in ((1, ["t: clusters"]), (2, []), (4, []), (5, ["t: clusters"])):
        assert failed(judge_model(gates, "t", 5, None, {"n_clusters": n_clusters})) == names
    assert failed(judge_model(gates, "t", 5, None, {"n_rows": 6})) == ["t: rows"]
    assert failed(judge_model(gates, "other", 5, None, {"n_clusters": 9})) == []
