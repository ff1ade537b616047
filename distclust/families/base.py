r"""The family protocol: a prior, additive statistics, a marginal and a predictive.

A *family* is a conjugate model of the rows of one group. Everything a group of rows says
about it is one flat array of `p` numbers, its *statistics*; statistics of a union are the
sum of the statistics, and number 0 is always the number of rows.

A family passes through three states, all frozen values of the same class:

1. a *template*, as the user writes it: ``Bernoulli()`` or ``Bernoulli(alpha=1, beta=1)``;
2. *prepared*: ``template.prepare(profile, columns)`` knows the number of features, whether
   entries are missing and which levels there are;
3. *resolved*: ``prepared.resolve(summary, origin, profile, columns)`` has every
   hyperparameter; where they were left out, the empirical prior fills them in.

Adding a family in one file
---------------------------
Write a frozen dataclass with two methods and register it; all else has a default::

    @register_family
    @dataclass(frozen=True, eq=False, repr=False)
    class Geometric(Family):
        name = "geometric"                # unique; model files refer to it
        positive = ("alpha", "beta")      # hyperparameters above zero

        alpha: Hyperparameter = 1.0       # a number, or one a feature; an array of shape
        beta: Hyperparameter = 1.0        # (n_features,) once the family is resolved

        def statistics(self, block):      # (n, n_features) -> (n, p), column 0 all ones
            rows = dense_rows(block)
            return np.column_stack([np.ones(len(rows)), rows])

        def log_marginal(self, stats):    # (B, p) -> (B,)
            n, total = stats[:, :1], stats[:, 1:]
            return np.sum(
                betaln(self.alpha + n, self.beta + total) - betaln(self.alpha, self.beta),
                axis=1,
            )

The defaults follow from these two: predictive densities as ratios of marginals, gradients
by central differences of the logarithms of the `positive` fields, a row face in plain
Python. Override a method when its default is too slow, `check` to refuse data that do not
fit, `summarise` and `resolve` for an empirical prior. A family whose `statistics` leave
out NaN entries says ``supports_missing = True``.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError
from distclust.families._blocks import Block, FloatArray, IntArray, n_rows_of, row_slice
from distclust.families._checks import check_labels, check_positive, refuse
from distclust.families._numerics import scatter_rows
from distclust.families.columns import Column, Profile

_STATISTICS_CELLS = 1 << 20  # temporaries of the defaults stay near 8 MB
_WEIGHT_CELLS = 1 << 20


class RowFunctions(NamedTuple):
    """The row face: one row at a time on one row of the statistics array.

    ``add(stats_row, x, *parameters)`` and ``remove`` change `stats_row` (p,) in place;
    ``log_predictive(x, stats_row, *parameters)`` returns a float. `x` is a dense float64
    row; the parameters are those of :meth:`Family.row_parameters`. The functions of the
    built-in families are compiled and may be called from compiled code.
    """

    add: Callable[..., None]
    remove: Callable[..., None]
    log_predictive: Callable[..., float]


@dataclass(frozen=True, eq=False, repr=False)
class Family(ABC):
    """A conjugate model of the rows of one group; see the module's text.

    Methods that take `stats` need a resolved family. `block` is a dense array (n, d) or
    a CSR matrix, which is never made dense as a whole.
    """

    name: ClassVar[str] = ""
    supports_missing: ClassVar[bool] = False
    takes_categories: ClassVar[bool] = False
    positive: ClassVar[tuple[str, ...]] = ()

    n_features: int = field(default=0, kw_only=True)
    has_missing: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        for parameter in self.positive:
            where = f"{type(self).__name__}({parameter})"
            self._assign(parameter, check_positive(getattr(self, parameter), where))
        self._broadcast(self.positive)

    # ---- what a family must say -------------------------------------------------------

    @abstractmethod
    def statistics(self, block: Block) -> FloatArray:
        """Return the statistics of every row, shape (n, p), column 0 all ones."""

    @abstractmethod
    def log_marginal(self, stats: FloatArray) -> FloatArray:
        """Return log f(D_k) of groups with statistics (B, p), shape (B,)."""

    # ---- from a template to a resolved family -----------------------------------------

    @property
    def is_resolved(self) -> bool:
        """Whether every hyperparameter has its value."""
        return self.n_features > 0 and all(
            isinstance(getattr(self, parameter), np.ndarray) for parameter in self.positive
        )

    @property
    def n_statistics(self) -> int:
        """Length p of the statistics of a group."""
        return int(self.statistics(np.zeros((1, self.n_features))).shape[1])

    def check(self, profile: Profile, columns: Sequence[Column], where: str) -> None:
        """Raise InputError, naming the first column that does not fit this family."""
        if self.n_features and len(columns) != self.n_features:
            raise InputError(
                where,
                f"{self.n_features} columns for {self!r}",
                f"{len(columns)} columns",
                "Pass the same columns the family was made for.",
            )
        if not self.takes_categories:
            is_category = np.array([column.kind == "category" for column in columns])
            expected = f"numbers for the {type(self).__name__} family"
            hint = "Drop that column, or leave the choice of the family to 'auto'."
            refuse(is_category, columns, where, expected, "categories", hint)
        refuse(profile.any_infinite, columns, where, "finite numbers", "an infinite value")
        size = np.maximum(np.abs(profile.minimum), np.abs(profile.maximum))
        huge = (size > LARGEST_NUMBER) & np.isfinite(size)
        hint = "Rescale that column: its squares would overflow."
        refuse(huge, columns, where, f"numbers below {LARGEST_NUMBER:g} in size", size, hint)
        if not self.supports_missing:
            title = type(self).__name__
            refuse(
                profile.n_missing > 0,
                columns,
                where,
                f"no missing values (NaN) for the {title} family",
                "NaN",
                f"Fill or drop them, or use a family that takes them: {_MISSING_REMEDY}.",
            )

    def prepare(self, profile: Profile, columns: Sequence[Column]) -> Self:
        """Return the family with what the profile alone tells."""
        missing = self.supports_missing and bool(np.any(profile.n_missing > 0))
        return dataclasses.replace(self, n_features=len(columns), has_missing=missing)

    def summarise(
        self, block: Block, origin: FloatArray, weights: FloatArray | None = None
    ) -> FloatArray:
        """Return the additive summary of a block that `resolve` needs, one-dimensional.

        Called on a prepared family. `origin` (d,) is a shift near the data, so that sums
        of squares keep their digits; a row counts `weights` (n,) times.
        """
        return np.array([float(n_rows_of(block) if weights is None else np.sum(weights))])

    def summary_of(self, profile: Profile) -> FloatArray | None:
        """Return what `summarise` adds up to over all rows, each counted once.

        None unless the profile of the rows tells it, which saves reading them again.
        """
        return None

    def resolve(
        self,
        summary: FloatArray,
        origin: FloatArray,
        profile: Profile,
        columns: Sequence[Column],
    ) -> Self:
        """Return the family with every hyperparameter, given the summed summaries."""
        return self.prepare(profile, columns)

    # ---- batch face ----------------------------------------------------------------------

    def accumulate(
        self,
        block: Block,
        labels: npt.ArrayLike,
        n_groups: int,
        weights: npt.ArrayLike | None = None,
    ) -> FloatArray:
        """Return the statistics of each group of rows, shape (n_groups, p).

        `labels` (n,) are group numbers, -1 to leave a row out; a row counts `weights`
        (n,) times. Rows are added in their order.
        """
        labels, weights = check_labels(labels, n_groups, weights, n_rows_of(block))
        stats = np.zeros((n_groups, self.n_statistics))
        step = max(1, _STATISTICS_CELLS // self.n_statistics)
        for start in range(0, len(labels), step):
            part = slice(start, start + step)
            rows = self.statistics(row_slice(block, start, start + step))
            scatter_rows(stats, np.ascontiguousarray(rows), labels[part], weights[part])
        return stats

    def log_marginal_pairs(
        self, stats: FloatArray, lefts: npt.ArrayLike, rights: npt.ArrayLike
    ) -> FloatArray:
        """Return log f of groups `lefts` (one, or m of them) joined with m `rights`.

        Bit-identical to ``log_marginal(stats[lefts] + stats[rights])``, whatever else is
        asked in the same call.
        """
        partners = np.asarray(rights, dtype=np.int64)
        return self.log_marginal(stats[np.asarray(lefts, dtype=np.int64)] + stats[partners])

    def log_predictive(self, block: Block, stats: FloatArray) -> FloatArray:
        """Return log p(x | D_k) for rows (n, d) and groups (B, p), shape (n, B).

        NaN entries are marginalised where the family allows them. Zero statistics give
        the prior predictive.
        """
        n_rows, n_groups = n_rows_of(block), len(stats)
        out = np.empty((n_rows, n_groups))
        step = max(1, _STATISTICS_CELLS // self.n_statistics)
        for start in range(0, n_groups, step):
            groups = stats[start : start + step]
            without = self.log_marginal(groups)
            for i in range(n_rows):
                row = self.statistics(row_slice(block, i, i + 1))
                out[i, start : start + step] = self.log_marginal(groups + row) - without
        return out

    def log_coefficient(self, block: Block) -> FloatArray:
        """Return the log constants of rows (n,) that ratios leave out."""
        return np.zeros(n_rows_of(block))

    def entry_log_predictive(self, column: int, value: float, stats: FloatArray) -> FloatArray:
        """Return log p(x_column = value | D_k), shape (B,)."""
        if not self.supports_missing:
            raise InputError(
                f"{type(self).__name__}.entry_log_predictive",
                "a family with independent columns",
                repr(self),
                f"Single entries can be predicted under {_MISSING_REMEDY}.",
            )
        row = np.full((1, self.n_features), np.nan)
        row[0, column] = value
        return np.asarray(self.log_predictive(row, stats)[0])

    def feature_means(self, stats: FloatArray) -> FloatArray:
        """Return the mean of the observed entries, shape (B, n_features).

        NaN where it is unknown or means nothing, as for categories.
        """
        return np.full((len(stats), self.n_features), np.nan)

    def feature_information(self, stats_a: FloatArray, stats_b: FloatArray) -> FloatArray:
        """Return what each feature says about being in a rather than b, in nats.

        The mutual information, under the posterior predictives of the two groups (p,)
        and with probabilities proportional to their sizes, between the feature and
        membership; shape (n_features,). NaN where a family does not know.
        """
        return np.full(self.n_features, np.nan)

    def feature_informations(self, stats_a: FloatArray, stats_b: FloatArray) -> FloatArray:
        """Return `feature_information` of many pairs of groups, each (B, p); (B, n_features)."""
        pairs = zip(stats_a, stats_b, strict=True)
        return np.stack([self.feature_information(a, b) for a, b in pairs])

    # ---- hyperparameters -----------------------------------------------------------------

    @property
    def parameters(self) -> FloatArray:
        """Hyperparameters as one unconstrained vector (h,): logs of positive ones."""
        logs = [np.log(np.atleast_1d(getattr(self, name))) for name in self.positive]
        return np.concatenate(logs) if logs else np.zeros(0)

    @property
    def parameter_reach(self) -> FloatArray:
        """How far learning may move each of `parameters` from its start, shape (h,).

        Pseudo-counts a hundred thousand times larger or smaller change nothing any more but
        the rounding errors of log f, which an optimiser would climb.
        """
        return np.full(len(self.parameters), LOG_REACH)

    def with_parameters(self, vector: FloatArray) -> Self:
        """Return the family with hyperparameters from an unconstrained vector (h,)."""
        changes: dict[str, Any] = {}
        start = 0
        for name in self.positive:
            size = np.size(getattr(self, name))
            changes[name] = np.exp(vector[start : start + size])
            start += size
        return dataclasses.replace(self, **changes)

    def gradient(self, stats: FloatArray) -> FloatArray:
        """Return d log f(D_k) / d parameters, shape (B, h)."""
        vector = self.parameters
        out = np.empty((len(stats), len(vector)))
        for i, value in enumerate(vector):
            step = 6e-6 * max(1.0, abs(value))
            up, down = vector.copy(), vector.copy()
            up[i] += step
            down[i] -= step
            rise = self.with_parameters(up).log_marginal(stats)
            rise -= self.with_parameters(down).log_marginal(stats)
            out[:, i] = rise / (up[i] - down[i])
        return out

    @property
    def scale_grid(self) -> tuple[float, ...]:
        """Scales among which a search should choose; empty when there is nothing to do."""
        return ()

    def with_scale(self, scale: float) -> Self:
        """Return the family with another prior scale; the same one if it has none."""
        return self

    # ---- row face ------------------------------------------------------------------------

    def row_functions(self) -> RowFunctions:
        """Return add, remove and log_predictive of one row."""

        def add(stats_row: FloatArray, x: FloatArray) -> None:
            stats_row += self.statistics(x[None])[0]

        def remove(stats_row: FloatArray, x: FloatArray) -> None:
            stats_row -= self.statistics(x[None])[0]

        def log_predictive(x: FloatArray, stats_row: FloatArray) -> float:
            return float(self.log_predictive(x[None], stats_row[None])[0, 0])

        return RowFunctions(add, remove, log_predictive)

    def row_parameters(self) -> tuple[Any, ...]:
        """Return the last arguments of the row functions."""
        return ()

    # ---- saving --------------------------------------------------------------------------

    def to_dict(self) -> tuple[dict[str, Any], dict[str, FloatArray]]:
        """Return the family as a JSON-able dictionary and named arrays."""
        meta: dict[str, Any] = {"family": self.name}
        arrays: dict[str, FloatArray] = {}
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if isinstance(value, np.ndarray):
                arrays[item.name] = value
            else:
                meta[item.name] = value
        return meta, arrays

    @classmethod
    def from_dict(cls, meta: Mapping[str, Any], arrays: Mapping[str, FloatArray]) -> Self:
        """Return the family that `to_dict` described."""
        values = {**meta, **arrays}
        names = [item.name for item in dataclasses.fields(cls)]
        return cls(**{name: values[name] for name in names if name in values})

    # ---- as a value ----------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return all(
            _same(getattr(self, item.name), getattr(other, item.name))
            for item in dataclasses.fields(self)
        )

    def __hash__(self) -> int:
        return hash((type(self), self.n_features, self.has_missing))

    def __repr__(self) -> str:
        shown = []
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            if not _same(value, item.default):
                shown.append(f"{item.name}={_brief(value)}")
        return f"{type(self).__name__}({', '.join(shown)})"

    def _assign(self, name: str, value: object) -> None:
        """Set a field while the frozen value is being made."""
        object.__setattr__(self, name, value)

    def _broadcast(self, names: Sequence[str]) -> None:
        """Make scalars arrays (n_features,) as soon as the number of features is known."""
        for name in names:
            value = getattr(self, name)
            if isinstance(value, np.ndarray):
                if not self.n_features:
                    self._assign("n_features", len(value))
                if len(value) != self.n_features:
                    raise InputError(
                        f"{type(self).__name__}({name})",
                        f"one number or {self.n_features} of them, one a feature",
                        f"{len(value)} numbers",
                        "Pass a scalar to use it for every feature.",
                    )
        for name in names:
            value = getattr(self, name)
            if isinstance(value, float) and self.n_features:
                self._assign(name, np.full(self.n_features, value))


LOG_REACH = 12.0
LARGEST_NUMBER = 1e100
_MISSING_REMEDY = "Bernoulli, Categorical, DiagonalGaussian or Poisson"


class CompiledFamily(Family):
    """A family with a compiled `accumulate` and a compiled marginal of pairs of groups."""

    @abstractmethod
    def _pairs(
        self, stats: FloatArray, lefts: IntArray, other: FloatArray, rights: IntArray
    ) -> FloatArray:
        """Return log f(stats[lefts] + other[rights]) of C-contiguous statistics."""

    def statistics(self, block: Block) -> FloatArray:
        """Return the statistics of every row, shape (n, p)."""
        n_rows = n_rows_of(block)
        return self.accumulate(block, np.arange(n_rows), n_rows)

    def log_marginal(self, stats: FloatArray) -> FloatArray:
        """Return log f(D_k), shape (B,)."""
        # A group is a pair with nothing: one code path, hence the same bits.
        nothing = np.zeros((1, stats.shape[1]))
        every, at_zero = np.arange(len(stats)), np.zeros(len(stats), dtype=np.int64)
        return self._pairs(np.ascontiguousarray(stats), every, nothing, at_zero)

    def log_marginal_pairs(
        self, stats: FloatArray, lefts: npt.ArrayLike, rights: npt.ArrayLike
    ) -> FloatArray:
        """Return log f of groups `lefts` (one, or m of them) joined with m `rights`."""
        partners = np.ascontiguousarray(rights, dtype=np.int64)
        sources = np.empty(len(partners), dtype=np.int64)
        sources[:] = lefts
        stats = np.ascontiguousarray(stats)
        return self._pairs(stats, sources, stats, partners)


def summarise_block(
    block: Block,
    start: int,
    family: Family,
    origin: FloatArray,
    row_weights: FloatArray | None = None,
) -> FloatArray:
    """Return ``family.summarise(block, origin, weights)``, in the form a block map calls."""
    if row_weights is None:
        return family.summarise(block, origin)
    return family.summarise(block, origin, row_weights[start : start + n_rows_of(block)])


def group_chunks(n_groups: int, n_features: int) -> Iterator[slice]:
    """Yield slices of groups whose weights (n_features, groups) stay near 8 MB."""
    step = max(1, _WEIGHT_CELLS // n_features)
    for start in range(0, n_groups, step):
        yield slice(start, min(start + step, n_groups))


def _same(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return type(a) is type(b) and np.array_equal(a, b)  # type: ignore[arg-type]
    return a is b or bool(a == b)


def _brief(value: object) -> str:
    if not isinstance(value, np.ndarray):
        return repr(value)
    if value.size and np.all(value == value.flat[0]):
        return f"{value.flat[0]:g}"
    return f"<{' x '.join(str(size) for size in value.shape)} array>"
