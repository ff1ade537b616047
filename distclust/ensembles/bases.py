"""Base clusterings of rows: made in parallel, each from its own seed; they label all rows.

Few rows are given to all bases as they are. Of many rows each base is fitted to a sample, the
rows with the smallest hashes of its seed, which are the same wherever rows lie. All rows are
then labelled block by block.
"""

from __future__ import annotations

import contextlib
import dataclasses
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from distclust.engine import Rows as BlockRows
from distclust.engine import Span, map_ordered, map_spans
from distclust.ensembles.base_fitting import (
    KINDS,
    Base,
    BaseRecipe,
    BaseRecord,
    Fitted,
    Rows,
    check_complete,
    check_numbers,
    fit_base,
)
from distclust.ensembles.labels import MISSING, Codes, LabelMatrix, smallest_signed
from distclust.errors import InputError
from distclust.families import is_sparse
from distclust.seeding import Keys, generator, row_hashes
from distclust.store import Column, Matrix
from distclust.validation import check_choice, check_integer

Array = npt.NDArray[Any]

NAMED = ("kmeans", "dp", "subspace")
SUBSPACE_SHARE = 0.5  # of the columns

_SAMPLE_CELLS = 1 << 22  # values that k-means is fitted to, about
_SAMPLE_ROWS = (1 << 12, 1 << 16)  # at least and at most
_CHAIN_ROWS = 1 << 14  # a chain visits each of them in each sweep
_MOST_CLUSTERS = 32
_ALL = 2**64 - 1


@dataclass(frozen=True, eq=False)
class Ensemble:
    """Bases and what they say of the rows.

    Attributes
    ----------
    bases
        Fitted bases.
    records
        How each was made.
    labels
        Labels of the rows.
    """

    bases: tuple[Base, ...]
    records: tuple[BaseRecord, ...]
    labels: LabelMatrix


def plan_bases(
    bases: Any,
    n_bases: int,
    base_clusters: Any,
    n_clusters: int | None,
    n_rows: int,
    where: str,
) -> tuple[BaseRecipe, ...]:
    """Return the recipes of an ensemble.

    Parameters
    ----------
    bases
        A name for all, or a list of names and recipes, one a base.
    n_bases
        How many there are, if `bases` is a name.
    base_clusters
        Clusters of k-means: a number, a list of numbers taken in turn, or None: spread.
    n_clusters
        Clusters of the consensus, or None. They are the least of the bases if known.
    n_rows
        Rows to be clustered.
    where
        Place to name in errors.
    """
    named = [bases] * n_bases if isinstance(bases, str) else list(bases)
    if not named:
        raise InputError(f"{where}: bases", "at least one base", "none", "Name some.")
    recipes = [_recipe(base, f"{where}: bases") for base in named]
    numbers = _numbers_of_clusters(base_clusters, n_clusters, len(recipes), n_rows, where)
    return tuple(
        dataclasses.replace(recipe, n_clusters=number)
        if recipe.kind == "kmeans" and recipe.n_clusters is None
        else recipe
        for recipe, number in zip(recipes, numbers, strict=True)
    )


def make_bases(matrix: Matrix, recipes: Sequence[BaseRecipe], seed: int, where: str) -> Ensemble:
    """Fit bases and label all rows.

    Parameters
    ----------
    matrix
        Read block by block.
    recipes
        One a base; see `plan_bases`.
    seed
        Of the ensemble. Labels of a base follow from it and the number of the base.
    where
        Place to name in errors.
    """
    if any(recipe.kind == "kmeans" for recipe in recipes):
        check_numbers(matrix.columns, where)
    seeds = [base_seed(recipe, seed, m) for m, recipe in enumerate(recipes)]
    plans = tuple(
        _Plan(recipe, m, own, _n_sampled(recipe, matrix.shape[1]))
        for m, (recipe, own) in enumerate(zip(recipes, seeds, strict=True))
    )
    is_small = matrix.shape[0] <= min(plan.n_sampled for plan in plans)
    fit = _fit_whole if is_small else _fit_samples
    with _without_warnings():
        fits, places = fit(matrix, plans, where)
    codes = _label_all(matrix, fits, plans, where)
    for m, (fitted, rows) in enumerate(zip(fits, places, strict=True)):
        if len(fitted.own_labels):
            codes[rows, m] = fitted.own_labels
    n_labels = [fitted.base.n_labels for fitted in fits]
    records = tuple(fitted.record for fitted in fits)
    labels = LabelMatrix.of_codes(codes, n_labels)
    return Ensemble(tuple(fitted.base for fitted in fits), records, labels)


def label_rows(matrix: Matrix, bases: Sequence[Base], where: str) -> LabelMatrix:
    """Return the labels that fitted bases give to new rows, all of them."""
    codes = _empty_codes(matrix.shape[0], bases)
    parts = map_spans(_label_span, matrix, tuple(bases), (), where, stage="labelling the rows")
    start = 0
    for part in parts:
        codes[start : start + len(part)] = part
        start += len(part)
    return LabelMatrix.of_codes(codes, [base.n_labels for base in bases])


def label_block(block: Rows, start: int, bases: tuple[Base, ...], where: str) -> Codes:
    """Return the labels that fitted bases give to the rows of a block, shape (n, n_bases)."""
    codes = _empty_codes(block.shape[0], bases)
    for m, labels in _labels_of(block, start, bases, where):
        codes[:, m] = labels
    return codes


def base_seed(recipe: BaseRecipe, seed: int, number: int) -> int:
    """Return the seed of a base."""
    if recipe.seed is not None:
        return recipe.seed
    return int(generator(seed, "base", number).integers(2**32))


# ---- recipes -----------------------------------------------------------------------------------


def _recipe(base: Any, where: str) -> BaseRecipe:
    if isinstance(base, BaseRecipe):
        return base
    name = check_choice(base, where, NAMED)
    return BaseRecipe(column_share=SUBSPACE_SHARE) if name == "subspace" else BaseRecipe(name)


def _numbers_of_clusters(
    given: Any, n_clusters: int | None, n_bases: int, n_rows: int, where: str
) -> list[int]:
    if given is None:
        return spread_clusters(n_clusters, n_bases, n_rows)
    place = f"{where}: base_clusters"
    numbers = list(given) if np.iterable(given) and not isinstance(given, str) else [given]
    if not numbers:
        raise InputError(place, "numbers of clusters", "none", "Leave it out, or pass some.")
    checked = [check_integer(number, place, at_least=2) for number in numbers]
    return [checked[m % len(checked)] for m in range(n_bases)]


def spread_clusters(n_clusters: int | None, n_bases: int, n_rows: int) -> list[int]:
    """Return numbers of clusters for bases, evenly spread in ratio.

    From the number of the consensus to three times as many; where that is unknown, from a
    quarter of the square root of the number of rows to the root itself, 32 at most.
    """
    most = max(n_rows // 2, 2)
    if n_clusters is None:
        top = int(np.clip(n_rows**0.5, 2, _MOST_CLUSTERS))
        low = max(2, top // 4)
    else:
        low, top = max(2, n_clusters), max(2, 3 * n_clusters)
    numbers = np.geomspace(low, top, n_bases).round().astype(int)
    return [min(int(number), most) for number in numbers]


@dataclass(frozen=True)
class _Plan:
    """One base to be made: its recipe, number and seed, and the most rows it is fitted to."""

    recipe: BaseRecipe
    number: int
    seed: int
    n_sampled: int

    def hashes(self, keys: Keys) -> Keys:
        """Return one hash a row: small ones are sampled, large ones left out."""
        return row_hashes(self.seed, keys, "rows")

    @property
    def share_limit(self) -> np.uint64:
        """Largest hash of a row that the base sees."""
        share = self.recipe.row_share
        return np.uint64(_ALL if share >= 1.0 else int(share * 2.0**64))


def _n_sampled(recipe: BaseRecipe, n_features: int) -> int:
    if recipe.kind == "dp":
        return _CHAIN_ROWS
    low, high = _SAMPLE_ROWS
    return int(np.clip(_SAMPLE_CELLS // n_features, low, high))


# ---- fitting -----------------------------------------------------------------------------------


@contextlib.contextmanager
def _without_warnings() -> Iterator[None]:
    """Let k-means find fewer clusters than asked for, without a word: the record tells.

    Around all tasks, since filters are those of the whole process.
    """
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        yield


def _fit_whole(
    matrix: Matrix, plans: tuple[_Plan, ...], where: str
) -> tuple[list[Fitted], list[Any]]:
    """Fit bases to all rows, or to the share that a base sees."""
    rows = matrix.read_all()
    if any(plan.recipe.kind == "kmeans" for plan in plans):
        check_complete(rows, 0, where)
    keys = np.concatenate([matrix.block_keys(i) for i in range(matrix.n_blocks)])
    places = [np.flatnonzero(plan.hashes(keys) <= plan.share_limit) for plan in plans]
    for plan, chosen in zip(plans, places, strict=True):
        _check_some(len(chosen), plan, where)
    fits = map_ordered(
        _fit_part,
        list(zip(plans, places, strict=True)),
        rows,
        matrix.columns,
        where,
        stage="base clusterings",
    )
    return list(fits), places


def _fit_part(
    item: tuple[_Plan, Array], rows: Rows, columns: tuple[Column, ...], where: str
) -> Fitted:
    plan, chosen = item
    part = rows if len(chosen) == rows.shape[0] else rows[chosen]
    return fit_base(part, plan.recipe, plan.number, plan.seed, columns, where)


def _fit_samples(
    matrix: Matrix, plans: tuple[_Plan, ...], where: str
) -> tuple[list[Fitted], list[Any]]:
    """Fit each base to its own sample of the rows."""
    samples = [
        # One that has all rows is like the rows themselves, whatever other bases need.
        sample.in_row_order() if plan.n_sampled >= matrix.shape[0] else sample
        for plan, sample in zip(plans, _draw_samples(matrix, plans, where), strict=True)
    ]
    items = [(plan, sample.rows) for plan, sample in zip(plans, samples, strict=True)]
    fits = map_ordered(_fit_sample, items, matrix.columns, where, stage="base clusterings")
    return list(fits), [sample.positions for sample in samples]


def _fit_sample(item: tuple[_Plan, Rows], columns: tuple[Column, ...], where: str) -> Fitted:
    plan, rows = item
    return fit_base(rows, plan.recipe, plan.number, plan.seed, columns, where)


@dataclass(frozen=True, eq=False)
class _Sample:
    """Rows of a sample with their hashes, keys and positions."""

    hashes: Keys
    keys: Keys
    positions: Array
    rows: Rows

    def __len__(self) -> int:
        return len(self.hashes)

    def trimmed(self, want: int) -> _Sample:
        """Return those with the smallest hashes, in the order of these."""
        return self._take(np.lexsort((self.positions, self.keys, self.hashes))[:want])

    def in_row_order(self) -> _Sample:
        """Return all by their position."""
        return self._take(np.argsort(self.positions, kind="stable"))

    def _take(self, chosen: Array) -> _Sample:
        return _Sample(
            self.hashes[chosen], self.keys[chosen], self.positions[chosen], self.rows[chosen]
        )


def _draw_samples(matrix: Matrix, plans: tuple[_Plan, ...], where: str) -> list[_Sample]:
    """Return the rows with the smallest hashes of each base."""
    n_rows = matrix.shape[0]
    wanted = [min(plan.n_sampled, n_rows) for plan in plans]
    # Six standard deviations above what is wanted, so that one pass is enough all but surely.
    shares = [min(1.0, (want + 6.0 * want**0.5 + 8.0) / n_rows) for want in wanted]
    limits = tuple(np.uint64(_ALL if s > 0.5 else int(s * 2.0**64)) for s in shares)
    samples = _read_samples(matrix, plans, limits, wanted, where)
    short = any(
        len(sample) < want and int(limit) < int(plan.share_limit)
        for sample, want, limit, plan in zip(samples, wanted, limits, plans, strict=True)
    )
    if short:
        everything = tuple(np.uint64(_ALL) for _ in plans)
        samples = _read_samples(matrix, plans, everything, wanted, where)
    for plan, sample in zip(plans, samples, strict=True):
        _check_some(len(sample), plan, where)
    return samples


def _read_samples(
    matrix: Matrix,
    plans: tuple[_Plan, ...],
    limits: tuple[np.uint64, ...],
    wanted: list[int],
    where: str,
) -> list[_Sample]:
    held: list[list[_Sample]] = [[] for _ in plans]
    for parts in map_spans(_pick, matrix, plans, limits, where, stage="sampling rows for bases"):
        for m, part in enumerate(parts):
            held[m].append(part)
            if sum(map(len, held[m])) > 4 * wanted[m]:
                held[m] = [_joined(held[m]).trimmed(wanted[m])]
    return [_joined(parts).trimmed(want) for parts, want in zip(held, wanted, strict=True)]


def _pick(
    span: Span, plans: tuple[_Plan, ...], limits: tuple[np.uint64, ...], where: str
) -> list[_Sample]:
    """Return the rows of a span that may belong to samples."""
    blocks = [span.once(rows, _pick_in_block, plans, limits, where) for rows in span]
    by_plan = zip(plans, *blocks, strict=True)
    return [_joined(list(parts)).trimmed(plan.n_sampled) for plan, *parts in by_plan]


def _pick_in_block(
    rows: BlockRows, plans: tuple[_Plan, ...], limits: tuple[np.uint64, ...], where: str
) -> list[_Sample]:
    if any(plan.recipe.kind == "kmeans" for plan in plans):
        check_complete(rows.block, rows.start, where)
    samples = []
    for plan, limit in zip(plans, limits, strict=True):
        hashes = plan.hashes(rows.keys)
        chosen = np.flatnonzero(hashes <= min(limit, plan.share_limit))
        picked = hashes[chosen], rows.keys[chosen], rows.start + chosen, rows.block[chosen]
        samples.append(_Sample(*picked).trimmed(plan.n_sampled))
    return samples


def _joined(parts: list[_Sample]) -> _Sample:
    if len(parts) == 1:
        return parts[0]
    stack = sp.vstack if is_sparse(parts[0].rows) else np.concatenate
    rows: Any = stack([part.rows for part in parts])
    return _Sample(
        np.concatenate([part.hashes for part in parts]),
        np.concatenate([part.keys for part in parts]),
        np.concatenate([part.positions for part in parts]),
        sp.csr_array(rows) if is_sparse(rows) else rows,
    )


def _check_some(n_rows: int, plan: _Plan, where: str) -> None:
    if n_rows < 2:
        got = f"{n_rows} in the share {plan.recipe.row_share:g} of base {plan.number}"
        raise InputError(where, "at least 2 rows for each base", got, "Let bases see more rows.")


# ---- labelling ---------------------------------------------------------------------------------


def _label_all(matrix: Matrix, fits: list[Fitted], plans: tuple[_Plan, ...], where: str) -> Codes:
    bases = tuple(fitted.base for fitted in fits)
    codes = _empty_codes(matrix.shape[0], bases)
    start = 0
    for part in map_spans(_label_span, matrix, bases, plans, where, stage="labelling the rows"):
        codes[start : start + len(part)] = part
        start += len(part)
    return codes


def _label_span(span: Span, bases: tuple[Base, ...], plans: tuple[_Plan, ...], where: str) -> Codes:
    """Return the labels of the rows of a span; rows that a base is not to see have none."""
    parts = [span.once(rows, _label_seen, bases, plans, where) for rows in span]
    return np.concatenate(parts)


def _label_seen(
    rows: BlockRows, bases: tuple[Base, ...], plans: tuple[_Plan, ...], where: str
) -> Codes:
    codes = label_block(rows.block, rows.start, bases, where)
    for m, plan in enumerate(plans):
        if plan.recipe.row_share < 1.0:
            codes[plan.hashes(rows.keys) > plan.share_limit, m] = MISSING
    return codes


def _labels_of(
    block: Rows, start: int, bases: tuple[Base, ...], where: str
) -> Iterator[tuple[int, Codes]]:
    if not all(base.takes_missing for base in bases):
        check_complete(block, start, where)
    for m, base in enumerate(bases):
        yield m, base.label(block)


def _empty_codes(n_rows: int, bases: Sequence[Base]) -> Codes:
    top = max(base.n_labels for base in bases) - 1
    return np.empty((n_rows, len(bases)), smallest_signed(top))


__all__ = [
    "KINDS",
    "Base",
    "BaseRecipe",
    "BaseRecord",
    "Ensemble",
    "base_seed",
    "label_rows",
    "make_bases",
    "plan_bases",
    "spread_clusters",
]
