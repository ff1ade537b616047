"""One base clustering: fitted to some rows, it labels all rows.

A base follows from its own seed and the rows it is fitted to. Nothing in it depends on the
other bases, on threads or on the place where it was fitted.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import scipy.sparse as sp

from distclust.engine import one_blas_thread
from distclust.errors import InputError
from distclust.families import (
    DiagonalGaussian,
    Family,
    Gaussian,
    choose_family,
    column_origin,
    is_sparse,
)
from distclust.seeding import generator
from distclust.store import Column, profile_block
from distclust.store.matrix import aligned
from distclust.validation import check_choice, check_integer, check_real

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Codes = npt.NDArray[np.int32]
Rows = Any  # a dense block or a CSR matrix

KINDS = ("kmeans", "dp")
SWEEPS = 200

_TILE = 1024  # rows of a product: always as many, so that a row's label is the same anywhere
_MAX_ITERATIONS = 100


@dataclass(frozen=True)
class BaseRecipe:
    """How one base clustering is made.

    Attributes
    ----------
    kind
        "kmeans", or "dp": a chain of a Dirichlet-process mixture, which finds the number of
        its clusters.
    n_clusters
        Of k-means; None: spread over the bases of an ensemble.
    column_share, row_share
        Shares of the columns and rows that the base sees, drawn at random. Rows that it does
        not see get no label from it.
    seed
        None: from the seed of the ensemble and the number of the base.
    sweeps
        Sweeps of a chain; its partition after the last one is the base.
    """

    kind: str = "kmeans"
    n_clusters: int | None = None
    column_share: float = 1.0
    row_share: float = 1.0
    seed: int | None = None
    sweeps: int = SWEEPS

    def __post_init__(self) -> None:
        check_choice(self.kind, "BaseRecipe: kind", KINDS)
        check_real(self.column_share, "BaseRecipe: column_share", above=0.0, at_most=1.0)
        check_real(self.row_share, "BaseRecipe: row_share", above=0.0, at_most=1.0)
        check_integer(self.sweeps, "BaseRecipe: sweeps", at_least=1)
        if self.n_clusters is not None:
            check_integer(self.n_clusters, "BaseRecipe: n_clusters", at_least=2)
        if self.seed is not None:
            check_integer(self.seed, "BaseRecipe: seed")

    def as_dict(self) -> dict[str, Any]:
        """Return all as plain values."""
        return asdict(self)


@dataclass(frozen=True)
class BaseRecord:
    """How a base was made, and what came out.

    Attributes
    ----------
    number
        Of the base.
    algorithm
        In words.
    n_labels
        Clusters that it found.
    seed
        Of this base.
    seconds
        That its fit took.
    n_rows, n_columns
        That it was fitted to.
    """

    number: int
    algorithm: str
    n_labels: int
    seed: int
    seconds: float
    n_rows: int
    n_columns: int


@dataclass(frozen=True, eq=False)
class Base(ABC):
    """A fitted base.

    Attributes
    ----------
    columns
        Numbers of the columns that it looks at.
    """

    columns: Indices

    @property
    @abstractmethod
    def n_labels(self) -> int:
        """How many clusters there are."""

    @property
    def takes_missing(self) -> bool:
        """Whether rows may have gaps."""
        return False

    @abstractmethod
    def label(self, rows: Rows) -> Codes:
        """Return the cluster of each row, shape (n,)."""

    def _seen(self, rows: Rows) -> Rows:
        return rows if len(self.columns) == rows.shape[1] else rows[:, self.columns]


@dataclass(frozen=True, eq=False)
class KMeansBase(Base):
    """Rows go to the nearest centre, the first of equally near ones.

    Attributes
    ----------
    centres
        Shape (n_labels, n_columns).
    """

    centres: Floats

    @property
    def n_labels(self) -> int:
        """Number of centres."""
        return len(self.centres)

    def label(self, rows: Rows) -> Codes:
        """Return the number of the nearest centre."""
        seen = self._seen(rows)
        if is_sparse(seen):
            scores = seen @ self.centres.T - 0.5 * (self.centres**2).sum(axis=1)
            nearest: Codes = np.asarray(scores).argmax(axis=1).astype(np.int32)
            return nearest
        # Moved to where the centres are: squares of large numbers would cancel.
        shift = self.centres.mean(axis=0)
        weights = np.ascontiguousarray((self.centres - shift).T)
        half = 0.5 * (weights**2).sum(axis=0)
        labels = np.empty(len(seen), np.int32)
        tile = np.zeros((_TILE, len(self.columns)))
        for start in range(0, len(seen), _TILE):
            part = seen[start : start + _TILE]
            np.subtract(part, shift, out=tile[: len(part)])
            scores = tile @ weights
            scores -= half
            labels[start : start + _TILE] = scores[: len(part)].argmax(axis=1)
        return labels


@dataclass(frozen=True, eq=False)
class MixtureBase(Base):
    """Rows go to the cluster of a mixture that is most probable.

    Attributes
    ----------
    family
        Of the clusters.
    stats
        Statistics of each cluster, shape (n_labels, p).
    """

    family: Family
    stats: Floats

    @property
    def n_labels(self) -> int:
        """Number of clusters."""
        return len(self.stats)

    @property
    def takes_missing(self) -> bool:
        """As the family does."""
        return self.family.supports_missing

    def label(self, rows: Rows) -> Codes:
        """Return the cluster with the most members times the predictive density."""
        seen = self._seen(rows)
        log_sizes = np.log(self.stats[:, 0])
        labels = np.empty(seen.shape[0], np.int32)
        for start in range(0, seen.shape[0], _TILE):
            part = slice(start, start + _TILE)
            joint = self.family.log_predictive(seen[part], self.stats) + log_sizes
            labels[part] = joint.argmax(axis=1)
        return labels


@dataclass(frozen=True, eq=False)
class Fitted:
    """What the task of a base returns.

    Attributes
    ----------
    base
        The base.
    record
        How it was made.
    own_labels
        Labels of the rows of the fit that the base has given them itself, shape (n,), or
        empty: then they are labelled as all others are.
    """

    base: Base
    record: BaseRecord
    own_labels: Codes = field(default_factory=lambda: np.empty(0, np.int32))


def fit_base(
    rows: Rows,
    recipe: BaseRecipe,
    number: int,
    seed: int,
    columns: tuple[Column, ...],
    where: str,
) -> Fitted:
    """Fit one base.

    Parameters
    ----------
    rows
        The rows to fit, with all their columns.
    recipe
        What to make; `n_clusters` is known.
    number, seed
        Of the base.
    columns
        Of the rows.
    where
        Place to name in errors.
    """
    began = time.perf_counter()
    chosen = chosen_columns(rows.shape[1], recipe.column_share, seed)
    seen = rows if len(chosen) == rows.shape[1] else rows[:, chosen]
    with one_blas_thread:
        if recipe.kind == "kmeans":
            base: Base = _fit_kmeans(seen, chosen, recipe, seed)
            own: Codes = np.empty(0, np.int32)
            algorithm = f"k-means, k = {recipe.n_clusters}"
        else:
            own_columns = tuple(columns[i] for i in chosen.tolist())
            base, own = _fit_chain(seen, chosen, own_columns, recipe, seed, where)
            algorithm = f"DP mixture, sweep {recipe.sweeps}"
    seconds = time.perf_counter() - began
    n_rows, n_columns = seen.shape
    record = BaseRecord(number, algorithm, base.n_labels, seed, seconds, n_rows, n_columns)
    return Fitted(base, record, own)


def chosen_columns(n_columns: int, share: float, seed: int) -> Indices:
    """Return the columns that a base sees, in their order; at least one."""
    n_chosen = max(1, round(share * n_columns))
    if n_chosen == n_columns:
        return np.arange(n_columns)
    return np.sort(generator(seed, "columns").permutation(n_columns)[:n_chosen])


def check_complete(rows: Rows, start: int, where: str) -> None:
    """Refuse gaps, which k-means cannot take."""
    if is_sparse(rows) or rows.dtype.kind != "f":
        return
    bad = ~np.isfinite(rows).all(axis=1)
    if bad.any():
        raise InputError(
            f"{where}: row {start + int(bad.argmax())}",
            "finite numbers for k-means",
            "NaN or infinity",
            "Fill in what is missing, or take bases='dp', which leaves gaps out.",
        )


def check_numbers(columns: tuple[Column, ...], where: str) -> None:
    """Refuse categories, whose codes have no distances."""
    for column in columns:
        if column.kind != "number":
            raise InputError(
                f"{where} column {column.name!r}",
                "numbers for k-means",
                "categories",
                "Leave the column out, or take bases='dp', which understands categories.",
            )


# ---- k-means -----------------------------------------------------------------------------------


def _fit_kmeans(rows: Rows, columns: Indices, recipe: BaseRecipe, seed: int) -> KMeansBase:
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    assert recipe.n_clusters is not None, "the ensemble has spread the numbers of clusters"
    if is_sparse(rows):
        values: Any = sp.csr_matrix(rows, dtype=np.float64)
    else:
        values = aligned(rows, np.dtype(np.float64))
    model = KMeans(
        n_clusters=min(recipe.n_clusters, values.shape[0]),
        n_init=1,
        max_iter=_MAX_ITERATIONS,
        random_state=seed % 2**32,
        algorithm="lloyd",
    )
    # Its own threads would add up in another order each time.
    with threadpool_limits(limits=1, user_api="openmp"):
        model.fit(values)
    used = np.unique(model.labels_)
    return KMeansBase(columns, np.ascontiguousarray(model.cluster_centers_[used]))


# ---- chains ------------------------------------------------------------------------------------


def _fit_chain(
    rows: Rows,
    chosen: Indices,
    columns: tuple[Column, ...],
    recipe: BaseRecipe,
    seed: int,
    where: str,
) -> tuple[MixtureBase, Codes]:
    from distclust.mixtures.concentration import EscobarWest
    from distclust.mixtures.urn import UrnSampler  # k-means needs no samplers

    if not is_sparse(rows):
        rows = aligned(rows, np.dtype(np.float64))
    else:
        rows = sp.csr_array(rows, dtype=np.float64)
    family = _family_of(rows, columns, where)
    # From one cluster: starts with many may end in the mode of one cluster for almost each row.
    sampler = UrnSampler(rows, family, EscobarWest(), "single")
    place, state = sampler.open(), sampler.begin(0, generator(seed, "chain"))
    for _ in range(recipe.sweeps):
        state = sampler.sweep(place, state)
    labels = np.array(sampler.labels(state), np.int32)
    stats = family.accumulate(rows, labels, int(labels.max()) + 1)
    return MixtureBase(chosen, family, stats), labels


def _family_of(rows: Rows, columns: tuple[Column, ...], where: str) -> Family:
    """Return the family that fits rows, with its prior."""
    profile = profile_block(rows)
    template, _ = choose_family(profile, columns, is_sparse(rows))
    if is_sparse(rows) and isinstance(template, Gaussian | DiagonalGaussian):
        hint = "Take bases='kmeans', or pass dense rows."
        raise InputError(where, "counts or zeros and ones in a sparse matrix", "real numbers", hint)
    template.check(profile, columns, where)
    prepared = template.prepare(profile, columns)
    origin = column_origin(rows)
    return prepared.resolve(prepared.summarise(rows, origin), origin, profile, columns)
