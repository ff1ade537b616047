"""Sampled partitions as they are compared: numbered, distinct, with weights.

The distance between partitions c and z is F(c) + F(z) - 2 F(c, z) up to a factor, where F sums
a function of the sizes of clusters, or of the cells of the contingency table; see
:mod:`distclust.mixtures.point_estimates`.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.engine import local_threads, thread_map
from distclust.errors import InputError
from distclust.mixtures import _partition_numerics as numerics

Labels: TypeAlias = npt.NDArray[Any]
Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Loss: TypeAlias = Literal["vi", "binder"]

_CANDIDATES_A_TASK = 8
_DRAWS_A_TASK = 64
_CANDIDATES_AT_A_TIME = 64
_TABLE_SIZE = 1 << 17
_WIDEST = 1 << 31  # whole weights that sum to less are counted as such


def canonical(labels: Labels) -> npt.NDArray[np.int32]:
    """Return labels 0.. in order of first appearance: equal for equal partitions.

    >>> canonical(np.array([7, 3, 7, -1]))
    array([0, 1, 0, 2], dtype=int32)
    """
    found = np.asarray(labels)
    _check_whole(found, "canonical: labels", n_dims=1)
    out = np.empty(found.size, np.int32)
    _number(found, out)
    return out


@dataclass(frozen=True, eq=False)
class Sample:
    """Distinct partitions with their weights, numbered by first appearance.

    Attributes
    ----------
    loss
        Which loss.
    labels
        Distinct draws, shape (n_distinct, n_rows).
    extra
        Other partitions, shape (n_extra, n_rows).
    shares
        Weights of distinct draws; they sum to 1.
    origin
        Which distinct draw each draw is.
    weights
        Of rows.
    row_of
        Which row here each row of the user is.
    """

    loss: Loss
    labels: Labels
    extra: Labels
    shares: Floats
    origin: Ints
    weights: npt.NDArray[Any]
    row_of: Ints

    @property
    def is_binder(self) -> bool:
        """Whether the loss is Binder's."""
        return self.loss == "binder"

    @cached_property
    def total(self) -> float:
        """Sum of the weights of rows."""
        return float(self.weights.sum(dtype=np.float64))

    @cached_property
    def table(self) -> Floats:
        """What the loss sums, of sizes 0, 1, 2, ..."""
        return _make_table(self.weights, self.total, self.is_binder)

    @cached_property
    def n_clusters(self) -> Ints:
        """How many clusters each distinct draw has."""
        return _count_clusters(self.labels)

    @cached_property
    def own(self) -> Floats:
        """F of the draws."""
        return self.cluster_sums(self.labels, self.n_clusters)

    @property
    def scale(self) -> float:
        """What turns F(c) + F(z) - 2 F(c, z) into the loss."""
        if not self.is_binder:
            return 1.0 / self.total
        pairs = self.total * (self.total - 1.0)
        return 1.0 / pairs if pairs > 0 else 0.0

    def index_of(self, draw: int) -> int:
        """Return which distinct draw a draw is."""
        return int(self.origin[draw])

    def cluster_sums(self, labels: Labels, n_clusters: Ints) -> Floats:
        """Return F of partitions."""
        return np.array(
            [
                numerics.cluster_sum(row, int(n), self.weights, self.table, self.is_binder)
                for row, n in zip(labels, n_clusters, strict=True)
            ]
        )

    def distances(self, candidates: Labels) -> Floats:
        """Return the distances of candidates to the distinct draws, (candidates, draws)."""
        n_clusters = _count_clusters(candidates)
        own = self.cluster_sums(candidates, n_clusters)
        starts = range(0, len(self.labels), _DRAWS_A_TASK)
        tasks = [(c, first) for c in range(len(candidates)) for first in starts]

        def compare(task: tuple[int, int]) -> Floats:
            c, first = task
            part = slice(first, first + _DRAWS_A_TASK)
            return self._gaps(candidates[c], int(n_clusters[c]), own[c], part)

        found = thread_map(compare, tasks, local_threads())
        return np.concatenate(found).reshape(len(candidates), -1)

    def expected(self, candidates: Labels) -> Floats:
        """Return expected losses of candidates, a few at a time."""
        parts = [
            (self.distances(candidates[first : first + _CANDIDATES_AT_A_TIME]) * self.shares).sum(
                axis=1
            )
            for first in range(0, len(candidates), _CANDIDATES_AT_A_TIME)
        ]
        return np.concatenate(parts)

    def expected_of_draws(self) -> Floats:
        """Return expected losses of the distinct draws; each pair is compared once."""
        n_draws = len(self.labels)

        def compare(first: int) -> Floats:
            sums = np.zeros(n_draws)
            for c in range(first, min(first + _CANDIDATES_A_TASK, n_draws)):
                later = slice(c + 1, n_draws)
                gaps = self._gaps(self.labels[c], int(self.n_clusters[c]), self.own[c], later)
                sums[c] += (gaps * self.shares[later]).sum()
                sums[later] += gaps * self.shares[c]
            return sums

        parts = thread_map(compare, range(0, n_draws, _CANDIDATES_A_TASK), local_threads())
        total: Floats = np.sum(parts, axis=0)  # in the order of the tasks
        return total

    def _gaps(self, candidate: Labels, n_clusters: int, own: float, part: slice) -> Floats:
        draws = self.labels[part]
        joint = np.empty(len(draws))
        numerics.joint_sums(
            candidate,
            n_clusters,
            draws,
            self.n_clusters[part],
            self.weights,
            self.table,
            self.is_binder,
            joint,
        )
        gaps = (own + self.own[part]) - 2.0 * joint
        return np.maximum(gaps, 0.0) * self.scale

    def collapsed(self) -> Sample:
        """Return the same with rows counted together that lie together in all partitions."""
        first, row_of = _equal_columns([*self.labels, *self.extra])
        if len(first) == self.weights.size:
            return self
        weights = np.bincount(row_of, self.weights, len(first))
        return Sample(
            self.loss,
            np.ascontiguousarray(self.labels[:, first]),
            np.ascontiguousarray(self.extra[:, first]),
            self.shares,
            self.origin,
            _as_counts(weights),
            row_of[self.row_of],
        )

    def screened(self, n_rows: int, n_draws: int) -> Sample:
        """Return some rows and draws: evenly spaced, rows by their cluster in the first draw."""
        order = np.argsort(self.labels[0], kind="stable")
        ends = np.cumsum(self.weights[order], dtype=np.float64)
        points = (np.arange(n_rows) + 0.5) * (ends[-1] / n_rows)
        hits = np.bincount(np.searchsorted(ends, points, side="right"), minlength=order.size)
        rows = order[hits[: order.size] > 0]
        counts = hits[: order.size][hits[: order.size] > 0]
        kept = np.arange(n_draws) * len(self.labels) // n_draws
        every = number_all(self.labels[:, rows], self.labels.dtype)
        shares = self.shares[kept]
        return Sample(
            self.loss,
            every[kept],
            every,
            shares / shares.sum(),
            self.origin,
            _as_counts(counts),
            self.row_of,
        )


def gather(
    draws: Labels,
    loss: Loss,
    row_weights: Any,
    draw_weights: Any,
    where: str,
    extra: Labels | None = None,
) -> Sample:
    """Return partitions as they are compared, from what a user gave."""
    if loss not in ("vi", "binder"):
        raise InputError(f"{where}: loss", "'vi' or 'binder'", repr(loss), "Choose one.")
    found = np.asarray(draws)
    _check_whole(found, f"{where}: draws", n_dims=2)
    n_draws, n_rows = found.shape
    others = np.empty((0, n_rows), np.int64) if extra is None else np.atleast_2d(extra)
    _check_whole(others, f"{where}: candidates", n_dims=2, n_rows=n_rows)
    weights = _check_weights(row_weights, n_rows, f"{where}: row_weights")
    shares = _check_weights(draw_weights, n_draws, f"{where}: draw_weights")
    kind = max(_kind_for(found), _kind_for(others))
    numbered = number_all(found, kind)
    first, origin = _equal_rows(numbered)
    if len(first) < n_draws:
        numbered = numbered[first]
    shares = np.bincount(origin, shares, len(first)).astype(np.float64)
    if loss == "binder" and n_rows > 1 and weights.sum() <= 1.0:
        hint = "Weights are multiplicities: pass how often each row occurs."
        raise InputError(f"{where}: row_weights", "a sum above 1", weights.sum(), hint)
    return Sample(
        loss,
        numbered,
        number_all(others, kind),
        shares / shares.sum(),
        origin,
        _as_counts(weights),
        np.arange(n_rows),
    )


# ---- helpers ------------------------------------------------------------------------------------


def number_all(draws: Labels, kind: np.dtype[Any]) -> Labels:
    """Return partitions with labels by first appearance."""
    out = np.empty(draws.shape, kind)
    thread_map(lambda s: _number(draws[s], out[s]), range(len(draws)), local_threads())
    return out


def _kind_for(draws: Labels) -> np.dtype[Any]:
    """Return the kind of number for labels by first appearance; two kinds are compiled for."""
    span = int(draws.max(initial=0)) - int(draws.min(initial=0)) + 1
    return np.dtype(np.uint16 if min(span, draws.shape[1]) <= 1 << 16 else np.uint32)


def _number(labels: Labels, out: Labels) -> int:
    low, high = int(labels.min(initial=0)), int(labels.max(initial=0))
    wide = labels.astype(np.int64) - low
    span = high - low + 1
    if span > 4 * labels.size + 1024:
        wide, span = np.unique(labels, return_inverse=True)[1].astype(np.int64), labels.size
    return int(numerics.number_by_appearance(wide, np.full(span, -1), out))


def _count_clusters(labels: Labels) -> Ints:
    tops: Ints = labels.max(axis=1, initial=0).astype(np.int64)
    return tops + 1


def _equal_rows(numbered: Labels) -> tuple[Ints, Ints]:
    """Return the first of each set of equal rows, and to which set each row belongs."""
    numbers: dict[bytes, int] = {}
    first: list[int] = []
    origin = np.empty(len(numbered), np.int64)
    for s, row in enumerate(numbered):
        key = hashlib.blake2b(row.data, digest_size=16).digest()
        if key not in numbers:
            numbers[key] = len(first)
            first.append(s)
        origin[s] = numbers[key]
    return np.array(first, np.int64), origin


def _equal_columns(rows: list[Labels]) -> tuple[Ints, Ints]:
    """Return the first of each set of equal columns, and to which set each one belongs.

    Columns are compared by a hash, and then in full. Should a hash ever lie, no columns are
    taken for equal: that is only slower.
    """
    n_columns = rows[0].size
    hashes = np.zeros(n_columns, np.uint64)
    for row in rows:
        hashes ^= row
        hashes *= np.uint64(0x9E3779B97F4A7C15)
        hashes ^= hashes >> np.uint64(29)
    first, set_of = _sets_by_appearance(hashes)
    if all(np.array_equal(row[first][set_of], row) for row in rows):
        return first, set_of
    return np.arange(n_columns), np.arange(n_columns)


def _sets_by_appearance(keys: npt.NDArray[Any]) -> tuple[Ints, Ints]:
    _, first, set_of = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(order.size)
    return first[order], rank[set_of]


def _make_table(weights: npt.NDArray[Any], total: float, is_binder: bool) -> Floats:
    """Return f of 0, 1, 2, ... as far as sizes are whole."""
    size = int(min(total + 1, _TABLE_SIZE)) if weights.dtype == np.int32 else 1
    x = np.arange(size, dtype=np.float64)
    return x * x if is_binder else x * np.log2(np.maximum(x, 1.0))


def _as_counts(weights: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return weights as whole numbers if they are."""
    if weights.sum(dtype=np.float64) < _WIDEST and np.all(weights == np.floor(weights)):
        return weights.astype(np.int32)
    return weights.astype(np.float64)


def _check_whole(labels: Labels, where: str, n_dims: int, n_rows: int | None = None) -> None:
    shape = "(n_rows,)" if n_dims == 1 else "(n_partitions, n_rows)"
    if labels.ndim != n_dims or labels.dtype.kind not in "iub":
        got = f"{labels.dtype} of shape {labels.shape}"
        raise InputError(where, f"whole numbers of shape {shape}", got, "Pass labels.")
    if n_rows is None and n_dims == 2 and labels.size == 0:
        raise InputError(where, "at least one partition of one row", labels.shape, "Pass some.")
    if n_rows is not None and labels.shape[1] != n_rows:
        hint = "Pass a label for each row of the draws."
        raise InputError(where, f"{n_rows} rows, as the draws have", labels.shape[1], hint)


def _check_weights(weights: Any, size: int, where: str) -> Floats:
    if weights is None:
        return np.ones(size)
    found = np.asarray(weights, np.float64)
    if found.shape != (size,):
        raise InputError(where, f"shape ({size},)", found.shape, "Pass one weight for each.")
    if not np.all(np.isfinite(found)) or np.any(found < 0) or found.sum() <= 0:
        hint = "Leave out what does not count."
        raise InputError(where, "finite weights of at least 0, not all 0", "others", hint)
    return found
