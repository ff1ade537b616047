"""Rules that make ones: against numpy and scipy, sparse as dense, however rows are cut."""

from __future__ import annotations

import json
import math
import secrets
import warnings
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import hypothesis
import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
import scipy.sparse
import scipy.stats

from distclust.engine import map_ordered
from distclust.errors import InputError
from distclust.store.mapping import serial_map
from distclust.store.matrix import Column, default_columns
from distclust.store.rows import ArrayRows
from distclust.store.sources import Expected, Prepared, binarise, entries, quantiles
from distclust.store.sources.binarise import parse_rule, row_means
from distclust.store.sources.moments import (
    column_moments,
    column_percentiles,
    column_skewness,
)
from tests.sources import read_source

RULES = ["0", "0.5", "-1", "at-least:1", "row-mean", "row-mean*2", "column-mean", "column-mean*0.5",
         "column-mean*-1", "skewness"]  # fmt: skip


@pytest.fixture(params=["many blocks", "one block"])
def blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read rows in many small blocks and tasks, or all at once."""
    if request.param == "many blocks":
        monkeypatch.setattr(entries, "block_rows_for", lambda n_features, is_sparse: 7)
        monkeypatch.setattr(entries, "_TASK_VALUES", 100)


def turn(values: Any, rule: str, mapper: Any = serial_map, known: Any = None) -> Prepared:
    rows = ArrayRows(values)
    prepared = Prepared(rows, default_columns(rows.n_features))
    return binarise.binarise(prepared, parse_rule(rule), known, mapper)


def ones(prepared: Prepared) -> Any:
    values: Any = prepared.rows.read(0, prepared.rows.n_rows).values
    assert values.dtype == prepared.rows.dtype == np.uint8
    assert scipy.sparse.issparse(values) == prepared.rows.is_sparse
    return values.toarray() if prepared.rows.is_sparse else values


def oracle(x: Any, rule: str) -> Any:
    """The rules written with numpy and scipy, a column or a row at a time."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # columns without values
        if rule == "skewness":
            columns = []
            for column in x.T:
                skewness = scipy.stats.skew(column, nan_policy="omit")
                if skewness >= 0 or not np.ptp(column[~np.isnan(column)]):
                    columns.append(column > np.nanpercentile(column, 80))
                else:
                    columns.append(column < np.nanpercentile(column, 20))
            return np.column_stack(columns)
        kind, _, factor = rule.partition("*")
        if kind == "row-mean":
            return x > float(factor or 1) * np.nanmean(x, axis=1, keepdims=True)
        if kind == "column-mean":
            return x > float(factor or 1) * np.nanmean(x, axis=0)
        if rule.startswith("at-least"):
            return x >= float(rule.split(":")[1])
        return x > float(rule)


@pytest.mark.usefixtures("blocks")
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("layout", ["dense", "missing", "sparse", "integer"])
def test_binarise__equals_numpy(rng: np.random.Generator, rule: str, layout: str) -> None:
    x = rng.normal(size=(90, 6)) * [1, 3, 1, 2, 1, 1]
    x[:, 1], x[:, 2] = np.exp(x[:, 1]), -np.exp(x[:, 2])
    x[:, 3] = rng.poisson(0.4, 90)
    if layout == "sparse":
        x *= rng.random(x.shape) < 0.4
        assert (ones(turn(scipy.sparse.csr_array(x), rule)) == oracle(x, rule)).all()
        return
    if layout == "missing":
        x[rng.random(x.shape) < 0.2] = np.nan
    if layout == "integer":
        x = rng.poisson(1.5, x.shape)
    assert (ones(turn(x, rule)) == oracle(x.astype(float), rule)).all()


@pytest.mark.parametrize(
    ("rule", "low", "stays"),
    [
        ("0", 0, True),
        ("0.5", -3, True),
        ("-1", 0, False),
        ("at-least:0", 0, False),
        ("at-least:1", 0, True),
        ("row-mean", 0, True),
        ("row-mean", -3, False),
        ("row-mean*-1", 0, False),
        ("column-mean", 0, True),
        ("column-mean", -3, False),
    ],
)
def test_binarise__sparse_stays_sparse_where_zeros_stay_zeros(
    rule: str, low: int, stays: bool
) -> None:
    rng = np.random.default_rng(0)
    x = rng.integers(low, 4, (60, 5)) * (rng.random((60, 5)) < 0.3)
    x[0] = [low, 0, 0, 0, 0]
    x[:, 1] = np.minimum(x[:, 1], -low and x[:, 1].min())
    prepared = turn(scipy.sparse.csr_array(x), rule)
    assert prepared.rows.is_sparse == stays
    np.testing.assert_array_equal(ones(prepared), oracle(x.astype(float), rule))


def test_binarise__zeros_below_a_percentile_are_ones() -> None:
    x = np.full((40, 2), 5.0)
    x[::10, 0], x[::9, 1] = 0, 4  # skewed to the left, with the threshold above zero
    prepared = turn(scipy.sparse.csr_array(x), "skewness")
    assert not prepared.rows.is_sparse
    np.testing.assert_array_equal(ones(prepared), oracle(x, "skewness"))
    assert ones(prepared)[:, 0].tolist() == [1, *[0] * 9] * 4


def test_binarise__a_column_or_row_of_equal_values_has_no_ones() -> None:
    x = np.full((3, 3), 0.3950917083579676)  # a third of three times that is less
    assert 3 * x[0, 0] / 3 < x[0, 0]
    for rule in ("row-mean", "column-mean", "skewness"):
        for values in (x, x.T, scipy.sparse.csr_array(x)):
            assert ones(turn(values, rule)).sum() == 0


def test_binarise__missing_values_become_zeros_and_empty_columns_too() -> None:
    x = np.array([[np.nan, 5.0, np.nan], [1.0, np.nan, np.nan], [3.0, 6.0, np.nan]])
    for rule in ("column-mean", "row-mean", "skewness", "-10"):
        found = ones(turn(x, rule))
        assert found[np.isnan(x)].sum() == 0
    assert ones(turn(x, "column-mean"))[2].tolist() == [1, 1, 0]


@pytest.mark.parametrize("rule", RULES)
def test_binarise__new_rows_are_turned_by_what_was_learned(rule: str) -> None:
    rng = np.random.default_rng(1)
    x = np.exp(rng.normal(size=(50, 4)) * [1, 1, 0.2, 1]) * [1, -1, 1, 1]
    first = turn(x, rule)
    known = json.loads(json.dumps(first.facts))["binarise"]
    assert known["rule"] == rule
    again = turn(x[:5], rule, known=known)
    np.testing.assert_array_equal(ones(again), ones(first)[:5])
    assert again.facts == first.facts
    with pytest.raises(InputError, match="expected the rule"):
        turn(x, "0.25", known=known)


def test_binarise__columns_become_truth_and_the_user_is_told() -> None:
    prepared = turn(np.ones((2, 3)), "0.5")
    assert {column.number for column in prepared.columns} == {"bool"}
    assert prepared.notes == ("Values are turned into zeros and ones by the rule '0.5'.",)
    rows = ArrayRows(np.ones((2, 1)))
    categories = Prepared(rows, (Column("k", "category", ("a", "b")),))
    with pytest.raises(InputError, match=r"got column 'k' of categories\. .*--drop k"):
        binarise.binarise(categories, parse_rule("0.5"), None, serial_map)


@pytest.mark.parametrize(
    "text", ["", "mean", "above", "above:", "row-mean:2", "row-mean*", "skewness*2", "nan", "0.5*2",
             "above*1", "inf", "at-least:x"]
)  # fmt: skip
def test_parse_rule__anything_else_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="binarise: expected a number, above:NUMBER"):
        parse_rule(text)


@pytest.mark.parametrize(
    ("text", "kind", "amount"),
    [
        ("0.5", "above", 0.5),
        (" -1e-3 ", "above", -1e-3),
        ("above:.5", "above", 0.5),
        ("at-least:3", "above", math.nextafter(3, 0)),
        ("row-mean", "row-mean", 1),
        ("column-mean*2.5", "column-mean", 2.5),
        ("skewness", "skewness", 1),
    ],
)
def test_parse_rule__takes_rules_apart(text: str, kind: str, amount: float) -> None:
    rule = parse_rule(text)
    assert (rule.kind, rule.amount) == (kind, amount)


def test_open_source__turns_what_any_format_gives(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("who,x,y\na,1,4\nb,2,\nc,6,5\n")
    place = f"memory://{secrets.token_hex(8)}"
    found = read_source(path, place, binarise="column-mean")
    np.testing.assert_array_equal(found.values, [[0, 0], [0, 0], [1, 1]])
    assert found.ids.tolist() == ["a", "b", "c"]
    facts = found.prepared.facts
    assert facts == {"binarise": {"rule": "column-mean", "values": [3.0, 4.5], "below": []}}
    path.write_text("who,x,y\nd,4,1\n")
    expected = Expected(found.prepared.columns, {}, "text", facts)
    later = read_source(path, place + "2", binarise="column-mean", expected=expected)
    np.testing.assert_array_equal(later.values, [[1, 0]])


# ---- what rules are made of -----------------------------------------------------------------

_floats = st.floats(-1e6, 1e6) | st.sampled_from([0.0, -0.0, 1.0, math.nan, 5e-324, 1e300, -1e300])
_tables = hnp.arrays(
    np.float64, hnp.array_shapes(min_dims=2, max_dims=2, max_side=12), elements=_floats
)


@pytest.fixture(params=[2**23, 10, 0], ids=["gathered", "narrowed", "bit by bit"])
def memory(request: pytest.FixtureRequest) -> Iterator[int]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(quantiles, "_GATHERED", request.param)
        patch.setattr(quantiles, "_COUNTERS", 2**14)
        patch.setattr(entries, "block_rows_for", lambda n_features, is_sparse: 5)
        patch.setattr(entries, "_TASK_VALUES", 50)
        yield request.param


@hypothesis.settings(suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture])
@pytest.mark.usefixtures("memory")
@hypothesis.given(x=_tables, percent=st.floats(0, 100) | st.sampled_from([0.0, 20.0, 80.0, 100.0]))
def test_column_percentiles__equal_numpy(x: Any, percent: float) -> None:
    percents = np.full(x.shape[1], percent)
    for values in (x, scipy.sparse.csr_array(np.nan_to_num(x))):
        rows = ArrayRows(values)
        found = column_percentiles(rows, percents, column_moments(rows, serial_map), serial_map)
        dense = values.toarray() if rows.is_sparse else values
        for column, one in zip(dense.T, found, strict=True):
            present = column[~np.isnan(column)]
            assert one == (np.percentile(present, percent) if len(present) else 0.0)


@hypothesis.given(_tables)
def test_column_moments__are_exact_but_for_the_last_bit(x: Any) -> None:
    for values in (x, scipy.sparse.csr_array(np.nan_to_num(x))):
        moments = column_moments(ArrayRows(values), serial_map)
        dense = values.toarray() if scipy.sparse.issparse(values) else values
        for j, column in enumerate(dense.T):
            present = column[~np.isnan(column)]
            assert moments.n_values[j] == len(present)
            if len(present):
                exact = float(sum(map(Fraction, present)) / len(present))
                largest = np.abs(present).max()
                assert abs(moments.mean[j] - exact) <= 2 * math.ulp(exact) + 1e-30 * largest
                assert (moments.low[j], moments.high[j]) == (present.min(), present.max())


@hypothesis.given(_tables)
def test_row_means__are_exact_but_for_the_last_bit(x: Any) -> None:
    for values in (x, scipy.sparse.csr_array(np.nan_to_num(x))):
        dense = values.toarray() if scipy.sparse.issparse(values) else values
        for row, mean in zip(dense, row_means(values), strict=True):
            present = row[~np.isnan(row)]
            exact = float(sum(map(Fraction, present)) / len(present)) if len(present) else 0.0
            largest = np.abs(present).max(initial=0.0)
            assert abs(mean - exact) <= 2 * math.ulp(exact) + 1e-30 * largest


@pytest.mark.usefixtures("blocks")
def test_column_skewness__equals_scipy(rng: np.random.Generator) -> None:
    x = np.exp(rng.normal(size=(400, 5)) * [0.1, 0.5, 1, 2, 1]) * [1, -1, 1, -1, 1e120]
    x[rng.random(x.shape) < 0.1] = np.nan
    rows = ArrayRows(x)
    found = column_skewness(rows, column_moments(rows, serial_map), serial_map)
    scaled = x / [1, 1, 1, 1, 1e120]  # its cubes overflow in scipy
    np.testing.assert_allclose(found, scipy.stats.skew(scaled, nan_policy="omit"), rtol=1e-9)
    sparse = scipy.sparse.csr_array(np.nan_to_num(scaled))
    rows = ArrayRows(sparse)
    found = column_skewness(rows, column_moments(rows, serial_map), serial_map)
    np.testing.assert_allclose(found, scipy.stats.skew(sparse.toarray()), rtol=1e-9)


def test_column_skewness__of_symmetric_columns_counts_as_none() -> None:
    half = np.random.default_rng(3).normal(size=(501, 40))
    x = np.concatenate([half, -half]) + 7.3
    thresholds = binarise.learn(parse_rule("skewness"), ArrayRows(x), serial_map)
    assert thresholds is not None
    assert thresholds.is_above.all()


def test_learn__in_parallel_equals_serial(monkeypatch: Any) -> None:
    monkeypatch.setattr(entries, "block_rows_for", lambda n_features, is_sparse: 16)
    monkeypatch.setattr(entries, "_TASK_VALUES", 500)
    monkeypatch.setattr(quantiles, "_GATHERED", 1000)
    x = np.random.default_rng(5).gamma(2, size=(900, 7))
    for rule in ("skewness", "column-mean"):
        serial, parallel = turn(x, rule), turn(x, rule, map_ordered)
        assert serial.facts == parallel.facts
