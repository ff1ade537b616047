"""Rules that turn numbers into zeros and ones.

===================  ==========================================================
``0.5``              1 where the value is greater than 0.5
``above:0.5``        the same
``at-least:3``       1 where the value is 3 or greater
``row-mean``         1 where the value is greater than the mean of its row
``row-mean*2``       ... than twice that mean
``column-mean``      1 where the value is greater than the mean of its column
``column-mean*2``    ... than twice that mean
``skewness``         columns skewed to the right (or not at all): 1 where the value is
                     greater than the column's 80th percentile; columns skewed to the
                     left: 1 where it is smaller than the 20th
===================  ==========================================================

Means and percentiles are those of the values that are not missing; a missing value becomes
0. Percentiles are exact, and interpolated as numpy does. What is learned from the columns
goes with the store, so that rows that join it later are turned by the same thresholds.

Sparse rows stay sparse as long as zeros stay zeros.

References
----------
K. Heller, Efficient Bayesian Methods for Clustering, chapter 5 (the rule of skewness).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import scipy.sparse

from distclust.errors import InputError
from distclust.store.rows import Rows, RowSource
from distclust.store.sources.base import Prepared, Scratch, Source, SourceOptions
from distclust.store.sources.entries import entries_of, read_blocks, row_ranges
from distclust.store.sources.moments import (
    column_moments,
    column_percentiles,
    column_skewness,
)

if TYPE_CHECKING:
    from distclust.store.mapping import Mapper

Array: TypeAlias = npt.NDArray[Any]
Kind: TypeAlias = Literal["above", "row-mean", "column-mean", "skewness"]

FACT = "binarise"

_NO_SKEWNESS = 1e-12  # smaller ones are rounding
_NUMBER = r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)"
_THRESHOLD = re.compile(rf"(?:(above|at-least):)?{_NUMBER}")
_MEAN = re.compile(rf"(row-mean|column-mean)(?:\*{_NUMBER})?")
_RULES = "a number, above:NUMBER, at-least:NUMBER, row-mean, column-mean (or with *2), skewness"


@dataclass(frozen=True)
class Rule:
    """A rule as the user wrote it, taken apart.

    Attributes
    ----------
    text
        As it was written.
    kind
        What values are compared with.
    amount
        The threshold, or the factor of a mean.
    """

    text: str
    kind: Kind
    amount: float = 1.0


@dataclass(frozen=True, eq=False)
class Thresholds:
    """What the values of every column are compared with.

    Attributes
    ----------
    values
        Shape (n_features,).
    is_above
        Whether ones are above rather than below, shape (n_features,).
    """

    values: npt.NDArray[np.float64]
    is_above: npt.NDArray[np.bool_]

    def as_json(self) -> dict[str, Any]:
        """Return the thresholds as JSON; those below which ones lie are listed by place."""
        return {"values": self.values.tolist(), "below": np.flatnonzero(~self.is_above).tolist()}

    @classmethod
    def from_json(cls, described: Mapping[str, Any]) -> Thresholds:
        """Return the thresholds that `as_json` described."""
        values = np.array(described["values"], np.float64)
        is_above = np.ones(len(values), np.bool_)
        is_above[described["below"]] = False
        return cls(values, is_above)


def parse_rule(text: str) -> Rule:
    """Return the rule that a text stands for; `InputError` if there is none."""
    word = text.strip()
    threshold, mean = _THRESHOLD.fullmatch(word), _MEAN.fullmatch(word)
    if threshold:
        amount = float(threshold[2])
        # x >= t and x > the number before t are the same.
        is_least = threshold[1] == "at-least"
        return Rule(text, "above", math.nextafter(amount, -math.inf) if is_least else amount)
    if mean:
        return Rule(text, cast("Kind", mean[1]), float(mean[2] or 1.0))
    if word == "skewness":
        return Rule(text, "skewness")
    raise InputError("binarise", _RULES, repr(text), "Choose one of these rules.")


class BinarisedSource(Source):
    """A source whose values are turned into zeros and ones once they are settled."""

    def __init__(self, source: Source, options: SourceOptions) -> None:
        assert options.binarise is not None
        self.name = source.name
        self.tells_rows = source.tells_rows
        self._source = source
        self._rule = parse_rule(options.binarise)
        self._known = options.expected.facts.get(FACT) if options.expected else None

    def identity(self) -> dict[str, Any]:
        """Return the identity of the source, which tells the rule among its options."""
        return self._source.identity()

    def prepare(self, scratch: Scratch, mapper: Mapper) -> Prepared:
        """Prepare the source, and learn the thresholds unless they are known."""
        return binarise(self._source.prepare(scratch, mapper), self._rule, self._known, mapper)


def binarise(
    prepared: Prepared, rule: Rule, known: Mapping[str, Any] | None, mapper: Mapper
) -> Prepared:
    """Return rows of zeros and ones.

    Parameters
    ----------
    prepared
        Rows of numbers.
    rule
        What makes a one.
    known
        What was learned from other rows by the same rule, or None.
    mapper
        Where passes over the rows run.

    Raises
    ------
    InputError
        If there are categories, if what is known was learned by another rule, or if the
        rows come from a store that was binarised in another way.
    """
    done = prepared.facts.get(FACT)
    if done is not None:  # another store, whose values are zeros and ones already
        if done == known:
            return prepared
        hint = "Ingest the rows that it was made from."
        raise InputError("binarise", "numbers", f"a store made by {done['rule']!r}", hint)
    for column in prepared.columns:
        if column.kind == "category":
            got = f"column {column.name!r} of categories"
            raise InputError("binarise", "numbers", got, f"Leave it out with --drop {column.name}.")
    if known is not None and known["rule"] != rule.text:
        hint = "Use the rule of the store."
        raise InputError("binarise", f"the rule {known['rule']!r}", repr(rule.text), hint)
    rows, is_learned = prepared.rows, rule.kind in ("column-mean", "skewness")
    thresholds = Thresholds.from_json(known) if known and is_learned else learn(rule, rows, mapper)
    is_sparse = rows.is_sparse and _keeps_zeros(rule, thresholds, rows, mapper)
    facts = thresholds.as_json() if thresholds and is_learned else {}
    note = f"Values are turned into zeros and ones by the rule {rule.text!r}."
    return replace(
        prepared,
        rows=BinarisedRows(rows, rule, thresholds, is_sparse),
        columns=tuple(replace(column, number="bool") for column in prepared.columns),
        notes=(*prepared.notes, note),
        facts={**prepared.facts, FACT: {"rule": rule.text, **facts}},
    )


class BinarisedRows:
    """Rows of another source as zeros and ones, uint8.

    Parameters
    ----------
    rows
        Where the numbers come from.
    rule
        What makes a one.
    thresholds
        Of the columns; None where a row's own mean is the threshold.
    is_sparse
        Whether rows are sparse, as zeros stay zeros.
    """

    def __init__(
        self, rows: RowSource, rule: Rule, thresholds: Thresholds | None, is_sparse: bool
    ) -> None:
        self.n_rows = rows.n_rows
        self.n_features = rows.n_features
        self.is_sparse = is_sparse
        self.dtype = np.dtype(np.uint8)
        self._rows = rows
        self._rule = rule
        self._thresholds = thresholds

    def read(self, start: int, stop: int) -> Rows:
        """Return rows ``[start, stop)``."""
        rows = self._rows.read(start, stop)
        values: Any = rows.values
        means = None if self._thresholds else row_means(values) * self._rule.amount
        if self.is_sparse:
            return Rows(_sparse_ones(values, means, self._thresholds), rows.ids, rows.obs)
        dense = values.toarray() if self._rows.is_sparse else values
        return Rows(_dense_ones(dense, means, self._thresholds), rows.ids, rows.obs)


def _dense_ones(values: Array, means: Array | None, thresholds: Thresholds | None) -> Array:
    if thresholds is None:
        return (values > cast("Array", means)[:, None]).view(np.uint8)
    ones = values > thresholds.values
    if not thresholds.is_above.all():
        ones = np.where(thresholds.is_above, ones, values < thresholds.values)
    return ones.view(np.uint8)


def _sparse_ones(csr: Any, means: Array | None, thresholds: Thresholds | None) -> Any:
    """Return the pattern of the entries that are ones."""
    if thresholds is None:
        is_one = csr.data > np.repeat(cast("Array", means), np.diff(csr.indptr))
    else:
        limits, is_above = thresholds.values[csr.indices], thresholds.is_above[csr.indices]
        is_one = np.where(is_above, csr.data > limits, csr.data < limits)
    before = np.concatenate([[0], np.cumsum(is_one)]).astype(csr.indptr.dtype)
    parts = (np.ones(before[-1], np.uint8), csr.indices[is_one], before[csr.indptr])
    return scipy.sparse.csr_array(parts, shape=csr.shape)


def row_means(values: Any) -> npt.NDArray[np.float64]:
    """Return the mean of every row, shape (n,); 0 where all values are missing."""
    from distclust.store.sources import _binarise_numerics as numerics

    n_rows, n_features = values.shape
    is_sparse = scipy.sparse.issparse(values)
    indptr = values.indptr if is_sparse else np.arange(n_rows + 1) * n_features
    means = np.empty(n_rows)
    numerics.row_means(entries_of(values)[0], indptr, n_features, is_sparse, means)
    return means


def _keeps_zeros(
    rule: Rule, thresholds: Thresholds | None, rows: RowSource, mapper: Mapper
) -> bool:
    """Whether a zero is turned into a zero everywhere."""
    if thresholds is not None:
        limits = thresholds.values
        return bool(np.where(thresholds.is_above, limits >= 0.0, limits <= 0.0).all())
    lowest = mapper(_lowest_limit, row_ranges(rows), rows, rule.amount)
    return all(limit >= 0.0 for limit in lowest)


def _lowest_limit(bounds: tuple[int, int], rows: RowSource, amount: float) -> float:
    limits = (row_means(values) * amount for values in read_blocks(rows, bounds))
    return float(min(map(np.min, limits)))


def learn(rule: Rule, rows: RowSource, mapper: Mapper) -> Thresholds | None:
    """Return the thresholds of all columns; None if they are those of rows."""
    if rule.kind == "row-mean":
        return None
    is_above = np.ones(rows.n_features, np.bool_)
    if rule.kind == "above":
        return Thresholds(np.full(rows.n_features, rule.amount), is_above)
    moments = column_moments(rows, mapper)
    if rule.kind == "column-mean":
        return Thresholds(moments.mean * rule.amount, is_above)
    is_above = column_skewness(rows, moments, mapper) >= -_NO_SKEWNESS
    percents = np.where(is_above, 80.0, 20.0)
    return Thresholds(column_percentiles(rows, percents, moments, mapper), is_above)
