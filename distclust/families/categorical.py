"""Columns of categories, each with a Dirichlet prior over its levels."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.special import digamma, gammaln

from distclust.errors import InputError
from distclust.families._blocks import (
    Block,
    FloatArray,
    IntArray,
    csr_parts,
    is_sparse,
    n_rows_of,
    numeric_rows,
)
from distclust.families._checks import Hyperparameter, check_labels, check_positive, refuse
from distclust.families._counts import count_summary, jensen_shannon, row_chunks
from distclust.families._counts_numerics import (
    accumulate_codes,
    accumulate_codes_csr,
    categorical_add,
    categorical_log_predictive_row,
    categorical_pairs,
    categorical_remove,
)
from distclust.families.base import CompiledFamily, RowFunctions, group_chunks
from distclust.families.columns import Column, Profile
from distclust.families.registry import register_family

_MAX_LEVELS = 1_000_000  # a larger code is an identifier, not a level


@register_family
@dataclass(frozen=True, eq=False, repr=False)
class Categorical(CompiledFamily):
    r"""Independent columns of categories, held as whole codes from 0.

    Parameters
    ----------
    alpha
        Pseudo-counts: a number for every level; or a vector, one a level, shared by all
        columns; or a list of vectors, one a column. Left out, they are ``kappa * m`` with
        the smoothed shares ``m = (count + 0.5) / (observed + K / 2)`` of the levels.
    n_levels
        Number of levels K of each column: a number or one a column. Left out, the levels
        of the table's categories, or the largest code + 1.
    kappa
        Total pseudo-count of a column in the empirical prior; left out, its K.

    Notes
    -----
    Statistics of a group: ``[n, counts of the levels of column 0, of column 1, ...]``.
    With :math:`A_d, C_d` the pseudo-counts and observed entries of a column,

    .. math::
        \log f = \sum_d \log \Gamma(A_d) - \log \Gamma(A_d + C_d)
                 + \sum_k \log \Gamma(\alpha_{dk} + c_{dk}) - \log \Gamma(\alpha_{dk})

    Missing entries are not counted, which marginalises them exactly. In a resolved family
    `alpha` is one flat array, columns one after another.
    """

    name = "categorical"
    supports_missing = True
    takes_categories = True

    alpha: Hyperparameter = None
    n_levels: Any = None
    kappa: float | None = None

    def __post_init__(self) -> None:
        self._assign("kappa", check_positive(self.kappa, "Categorical(kappa)"))
        alpha = self.alpha
        if isinstance(alpha, (list, tuple)) and any(np.ndim(part) for part in alpha):
            parts = [check_positive(part, "Categorical(alpha)") for part in alpha]
            self._assign("n_levels", tuple(np.size(part) for part in parts))
            alpha = np.concatenate([np.atleast_1d(part) for part in parts])
        self._assign("alpha", check_positive(alpha, "Categorical(alpha)"))
        if self.n_levels is not None:
            self._set_levels()

    def _set_levels(self) -> None:
        """Store the levels of every column, and lay `alpha` out flat, once they are known."""
        levels = np.atleast_1d(self.n_levels)
        if levels.dtype.kind not in "iu" or levels.ndim != 1 or levels.min() < 1:
            expected = "whole numbers from 1 on"
            hint = "Pass the number of levels of each column."
            raise InputError("Categorical(n_levels)", expected, repr(self.n_levels), hint)
        if np.ndim(self.n_levels) == 0:
            if not self.n_features:
                return
            levels = np.repeat(levels, self.n_features)
        self._assign("n_features", self.n_features or len(levels))
        if len(levels) != self.n_features:
            expected = f"a number of levels for each of {self.n_features} columns"
            hint = "Pass one a column."
            raise InputError("Categorical(n_levels)", expected, f"{len(levels)}", hint)
        self._assign("n_levels", tuple(int(k) for k in levels))
        self._lay_out()

    def _lay_out(self) -> None:
        if isinstance(self.alpha, float):
            self._assign("alpha", np.full(self._n_codes, self.alpha))
        if self.alpha is None or len(self.alpha) == self._n_codes:
            return
        if any(k != len(self.alpha) for k in self.n_levels):
            raise InputError(
                "Categorical(alpha)",
                f"one number a level, for columns of {self._levels_text()} levels",
                f"{len(self.alpha)} numbers",
                "Pass a scalar, or a list with one vector a column.",
            )
        self._assign("alpha", np.tile(self.alpha, self.n_features))

    def _levels_text(self) -> str:
        return ", ".join(str(k) for k in self.n_levels[:5]) + ", ..." * (self.n_features > 5)

    @property
    def is_resolved(self) -> bool:
        """Whether every hyperparameter has its value."""
        return isinstance(self.n_levels, tuple) and self.alpha is not None

    @property
    def n_statistics(self) -> int:
        """Length of the statistics of a group."""
        return 1 + self._n_codes

    def check(self, profile: Profile, columns: Sequence[Column], where: str) -> None:
        """Refuse anything but whole codes from 0, below the known number of levels."""
        super().check(profile, columns, where)
        expected = "whole codes from 0 on for the Categorical family"
        hint = "Number the levels 0, 1, 2, ... or pass a table with categories."
        refuse(profile.minimum < 0, columns, where, expected, profile.minimum, hint)
        fractional = ~np.asarray(profile.all_integer, dtype=bool)
        refuse(fractional, columns, where, expected, "a fraction", hint)
        refuse(profile.maximum >= _MAX_LEVELS, columns, where, expected, profile.maximum, hint)
        if self.n_levels is not None:
            levels = np.broadcast_to(self.n_levels, profile.maximum.shape)
            expected = "codes below the number of levels"
            hint = "Use the levels the family was made for."
            refuse(profile.maximum >= levels, columns, where, expected, profile.maximum, hint)

    def prepare(self, profile: Profile, columns: Sequence[Column]) -> Self:
        """Return the family with the levels of each column."""
        levels = self.n_levels
        if levels is None:
            highest = np.maximum(profile.maximum, 0.0)  # minus infinity: nothing observed
            found = zip(columns, highest, strict=True)
            levels = tuple(max(1, len(column.levels), int(high) + 1) for column, high in found)
        family = dataclasses.replace(self, n_features=len(columns), n_levels=levels)
        return super(Categorical, family).prepare(profile, columns)

    def summarise(
        self, block: Block, origin: FloatArray, weights: FloatArray | None = None
    ) -> FloatArray:
        """Return ``[n, counts]``."""
        return count_summary(self, block, weights)

    def resolve(
        self,
        summary: FloatArray,
        origin: FloatArray,
        profile: Profile,
        columns: Sequence[Column],
    ) -> Self:
        """Fill in the empirical prior if `alpha` was left out."""
        family = self.prepare(profile, columns)
        if family.alpha is not None:
            return family
        counts, sizes = summary[1:], np.array(family.n_levels, dtype=float)
        observed = np.add.reduceat(counts, family._starts[:-1])
        total = np.repeat(observed + 0.5 * sizes, family.n_levels)
        weight = sizes if family.kappa is None else np.full(len(sizes), family.kappa)
        alpha = np.repeat(weight, family.n_levels) * (counts + 0.5) / total
        return dataclasses.replace(family, alpha=alpha)

    def accumulate(
        self,
        block: Block,
        labels: npt.ArrayLike,
        n_groups: int,
        weights: npt.ArrayLike | None = None,
    ) -> FloatArray:
        """Return the statistics of each group of rows, shape (n_groups, p)."""
        groups, loads = check_labels(labels, n_groups, weights, n_rows_of(block))
        stats = np.zeros((n_groups, self.n_statistics))
        if is_sparse(block):
            bad = accumulate_codes_csr(stats, *csr_parts(block), groups, loads, self._starts)
        else:
            bad = accumulate_codes(stats, numeric_rows(block), groups, loads, self._starts)
        if bad >= 0:
            raise self._unknown_level(bad)
        return stats

    def _pairs(
        self, stats: FloatArray, lefts: IntArray, other: FloatArray, rights: IntArray
    ) -> FloatArray:
        out = np.empty(len(lefts))
        categorical_pairs(
            stats, lefts, other, rights, self.alpha, self._log_gammas[0], self._totals,
            self._log_gammas[1], self._starts, out,
        )  # fmt: skip
        return out

    def affine(self, stats: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return weights (levels, B) and constants (B,).

        ``log p(x | D_k) = indicators(x) @ weights + constants``.
        """
        observed = np.add.reduceat(stats[:, 1:], self._starts[:-1], axis=1)
        log_totals = np.repeat(np.log(self._totals + observed), self.n_levels, axis=1)
        weights = np.log(self.alpha + stats[:, 1:]) - log_totals
        return np.ascontiguousarray(weights.T), np.zeros(len(stats))

    def indicators(self, block: Block) -> Any:
        """Return the observed entries as a CSR array of zeros and ones, (n, levels)."""
        rows = np.asarray(block.toarray() if is_sparse(block) else block)
        observed = ~np.isnan(rows) if rows.dtype.kind == "f" else np.ones(rows.shape, bool)
        i, d = np.nonzero(observed)
        codes = rows[i, d].astype(np.int64)
        self._check_codes(d, codes)
        indptr = np.concatenate([[0], np.cumsum(observed.sum(axis=1))])
        shape = (len(rows), self._n_codes)
        return sparse.csr_array((np.ones(len(i)), self._starts[d] + codes, indptr), shape=shape)

    def log_predictive(self, block: Block, stats: FloatArray) -> FloatArray:
        """Return log p(x | D_k), shape (n, B), by sparse products with indicators."""
        out = np.empty((n_rows_of(block), len(stats)))
        for groups in group_chunks(len(stats), self._n_codes):
            weights, constants = self.affine(stats[groups])
            if is_sparse(block):
                out[:, groups] = self._sparse_product(block, weights) + constants
                continue
            for rows in row_chunks(block, self.n_features):
                out[rows, groups] = self.indicators(block[rows]) @ weights + constants
        return out

    def _sparse_product(self, block: Block, weights: FloatArray) -> FloatArray:
        """Return the indicators' product: level 0 everywhere, then the nonzero codes."""
        data, columns, indptr = csr_parts(block)
        codes = data.astype(np.int64)
        self._check_codes(columns, codes)
        first = weights[self._starts[:-1]]  # (D, B)
        beyond = weights - np.repeat(first, self.n_levels, axis=0)
        shape = (n_rows_of(block), self._n_codes)
        chosen = sparse.csr_array(
            (np.ones(len(codes)), self._starts[columns] + codes, indptr), shape
        )
        return np.asarray(np.asarray(chosen @ beyond) + first.sum(axis=0))

    def entry_log_predictive(self, column: int, value: float, stats: FloatArray) -> FloatArray:
        """Return log p(x_column = value | D_k), shape (B,)."""
        self._check_codes(np.array([column]), np.array([int(value)]))
        levels = slice(1 + self._starts[column], 1 + self._starts[column + 1])
        chosen = self._starts[column] + int(value)
        hits = self.alpha[chosen] + stats[:, 1 + chosen]
        out: FloatArray = np.log(hits / (self._totals[column] + stats[:, levels].sum(axis=1)))
        return out

    def feature_information(self, stats_a: FloatArray, stats_b: FloatArray) -> FloatArray:
        """Return the mutual information of each column with membership, in nats."""
        weights, _ = self.affine(np.stack([stats_a, stats_b]))
        tables = np.exp(weights)
        information = np.empty(self.n_features)
        for d in range(self.n_features):
            a, b = tables[self._starts[d] : self._starts[d + 1]].T
            information[d] = jensen_shannon(a, b, stats_a[0], stats_b[0])
        return information

    @property
    def parameters(self) -> FloatArray:
        """Logarithms of the pseudo-counts, columns one after another."""
        return np.asarray(np.log(self.alpha))

    def with_parameters(self, vector: FloatArray) -> Self:
        """Return the family with pseudo-counts from their logarithms."""
        return dataclasses.replace(self, alpha=np.exp(vector))

    def gradient(self, stats: FloatArray) -> FloatArray:
        """Return d log f / d log alpha, shape (B, levels)."""
        counts = stats[:, 1:]
        observed = np.add.reduceat(counts, self._starts[:-1], axis=1)
        shared = digamma(self._totals) - digamma(self._totals + observed)
        by_alpha = digamma(self.alpha + counts) - digamma(self.alpha)
        out: FloatArray = self.alpha * (by_alpha + np.repeat(shared, self.n_levels, axis=1))
        return out

    def row_functions(self) -> RowFunctions:
        """Return the compiled add, remove and log_predictive of one row."""
        return RowFunctions(categorical_add, categorical_remove, categorical_log_predictive_row)

    def row_parameters(self) -> tuple[Any, ...]:
        """Return ``(alpha, totals, starts)``."""
        return self.alpha, self._totals, self._starts

    @cached_property
    def _starts(self) -> IntArray:
        """Where the levels of each column start, shape (D + 1,)."""
        return np.concatenate([[0], np.cumsum(self.n_levels)]).astype(np.int64)

    @property
    def _n_codes(self) -> int:
        return int(sum(self.n_levels))

    @cached_property
    def _totals(self) -> FloatArray:
        return np.add.reduceat(self.alpha, self._starts[:-1])

    @cached_property
    def _log_gammas(self) -> tuple[FloatArray, FloatArray]:
        return np.asarray(gammaln(self.alpha)), np.asarray(gammaln(self._totals))

    def _check_codes(self, columns: npt.NDArray[Any], codes: IntArray) -> None:
        bad = (codes < 0) | (codes >= np.asarray(self.n_levels)[columns])
        if bad.any():
            raise self._unknown_level(int(columns[bad][0]))

    def _unknown_level(self, column: int) -> InputError:
        return InputError(
            "Categorical",
            f"codes from 0 to {self.n_levels[column] - 1} in column {column}",
            "a code outside",
            "Use the levels the family was made for.",
        )
