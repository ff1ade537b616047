"""Mixed data: independent groups of columns, each with its own family."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError
from distclust.families._blocks import Block, FloatArray, IntArray, n_rows_of
from distclust.families.base import Family, RowFunctions
from distclust.families.columns import Column, Profile, select_profile
from distclust.families.registry import family_from_dict, register_family


@register_family
@dataclass(frozen=True, eq=False, repr=False)
class Product(Family):
    """Groups of columns that are independent given the cluster.

    Parameters
    ----------
    parts
        Pairs of a family and the columns it models, by number or by name. Every column
        of the data belongs to exactly one part.

    Notes
    -----
    Statistics of a group: ``[n, the parts' statistics without their own n, one after
    another]``. Marginals and predictives are products of the parts'.

    Examples
    --------
    >>> from distclust.families import Bernoulli, Gaussian
    >>> Product([(Bernoulli(), ["smoker"]), (Gaussian(), ["height", "weight"])])
    Product([(Bernoulli(), ['smoker']), (Gaussian(), ['height', 'weight'])])
    """

    name = "product"
    supports_missing = True  # each part answers for its own columns
    takes_categories = True

    parts: Any = ()

    def __post_init__(self) -> None:
        try:
            pairs = tuple((family, tuple(columns)) for family, columns in self.parts)
        except (TypeError, ValueError):
            pairs = ()
        if not pairs or not all(isinstance(family, Family) for family, _ in pairs):
            raise InputError(
                "Product(parts)",
                "pairs of a family and its columns",
                repr(self.parts),
                "For example Product([(Bernoulli(), [0, 1]), (Gaussian(), [2, 3])]).",
            )
        self._assign("parts", pairs)
        self._assign("has_missing", any(family.has_missing for family, _ in pairs))

    @property
    def is_resolved(self) -> bool:
        """Whether every part is resolved."""
        return self.n_features > 0 and all(family.is_resolved for family, _ in self.parts)

    @property
    def n_statistics(self) -> int:
        """Length of the statistics of a group."""
        return int(self._bounds[-1])

    def check(self, profile: Profile, columns: Sequence[Column], where: str) -> None:
        """Let every part check its own columns."""
        super().check(profile, columns, where)
        for family, chosen in self._placed(columns).parts:
            part = [columns[d] for d in chosen]
            family.check(select_profile(profile, np.array(chosen)), part, where)

    def prepare(self, profile: Profile, columns: Sequence[Column]) -> Self:
        """Prepare every part on its own columns."""
        parts = []
        for family, chosen in self._placed(columns).parts:
            part = [columns[d] for d in chosen]
            facts = select_profile(profile, np.array(chosen))
            parts.append((family.prepare(facts, part), chosen))
        return dataclasses.replace(self, parts=tuple(parts), n_features=len(columns))

    def summarise(
        self, block: Block, origin: FloatArray, weights: FloatArray | None = None
    ) -> FloatArray:
        """Return the parts' summaries, one after another."""
        return np.concatenate(
            [
                family.summarise(block[:, chosen], origin[chosen], weights)
                for (family, _), chosen in zip(self.parts, self._columns, strict=True)
            ]
        )

    def resolve(
        self,
        summary: FloatArray,
        origin: FloatArray,
        profile: Profile,
        columns: Sequence[Column],
    ) -> Self:
        """Resolve every part with its own share of the summary."""
        prepared = self.prepare(profile, columns)
        parts, start = [], 0
        for (family, names), chosen in zip(prepared.parts, prepared._columns, strict=True):
            nothing = np.zeros((0, len(chosen)))
            size = len(family.summarise(nothing, origin[chosen]))
            share = summary[start : start + size]
            part = [columns[d] for d in chosen]
            facts = select_profile(profile, chosen)
            parts.append((family.resolve(share, origin[chosen], facts, part), names))
            start += size
        return dataclasses.replace(prepared, parts=tuple(parts))

    def statistics(self, block: Block) -> FloatArray:
        """Return the statistics of every row, shape (n, p)."""
        n_rows = n_rows_of(block)
        return self.accumulate(block, np.arange(n_rows), n_rows)

    def accumulate(
        self,
        block: Block,
        labels: npt.ArrayLike,
        n_groups: int,
        weights: npt.ArrayLike | None = None,
    ) -> FloatArray:
        """Return the statistics of each group of rows, shape (n_groups, p)."""
        stats = np.empty((n_groups, self.n_statistics))
        for k, (family, _) in enumerate(self.parts):
            part = family.accumulate(block[:, self._columns[k]], labels, n_groups, weights)
            stats[:, 0] = part[:, 0]
            stats[:, self._bounds[k] : self._bounds[k + 1]] = part[:, 1:]
        return stats

    def log_marginal(self, stats: FloatArray) -> FloatArray:
        """Return log f(D_k), shape (B,)."""
        total = np.zeros(len(stats))
        for k, (family, _) in enumerate(self.parts):
            total += family.log_marginal(self._share(stats, k))
        return total

    def log_marginal_pairs(
        self, stats: FloatArray, lefts: npt.ArrayLike, rights: npt.ArrayLike
    ) -> FloatArray:
        """Return log f of groups `lefts` (one, or m of them) joined with m `rights`."""
        partners = np.asarray(rights, dtype=np.int64)
        # Only the rows asked for are copied: those of the left first, then their partners.
        sources = np.atleast_1d(np.asarray(lefts, dtype=np.int64))
        rows = stats[np.concatenate([sources, partners])]
        where = np.arange(len(sources)) if len(sources) > 1 else 0
        following = np.arange(len(sources), len(rows))
        total = np.zeros(len(partners))
        for k, (family, _) in enumerate(self.parts):
            total += family.log_marginal_pairs(self._share(rows, k), where, following)
        return total

    def log_predictive(self, block: Block, stats: FloatArray) -> FloatArray:
        """Return log p(x | D_k), shape (n, B)."""
        total = np.zeros((n_rows_of(block), len(stats)))
        for k, (family, _) in enumerate(self.parts):
            total += family.log_predictive(block[:, self._columns[k]], self._share(stats, k))
        return total

    def log_coefficient(self, block: Block) -> FloatArray:
        """Return the log constants of rows that ratios leave out, shape (n,)."""
        total = np.zeros(n_rows_of(block))
        for k, (family, _) in enumerate(self.parts):
            total += family.log_coefficient(block[:, self._columns[k]])
        return total

    def entry_log_predictive(self, column: int, value: float, stats: FloatArray) -> FloatArray:
        """Return log p(x_column = value | D_k), shape (B,)."""
        for k, (family, _) in enumerate(self.parts):
            inside = np.flatnonzero(self._columns[k] == column)
            if inside.size:
                share = self._share(stats, k)
                return np.asarray(family.entry_log_predictive(int(inside[0]), value, share))
        raise InputError(
            "Product.entry_log_predictive",
            f"a column below {self.n_features}",
            str(column),
            "Count columns from 0.",
        )

    def feature_means(self, stats: FloatArray) -> FloatArray:
        """Return the parts' means in the order of the columns, shape (B, D)."""
        means = np.empty((len(stats), self.n_features))
        for k, (family, _) in enumerate(self.parts):
            means[:, self._columns[k]] = family.feature_means(self._share(stats, k))
        return means

    def feature_information(self, stats_a: FloatArray, stats_b: FloatArray) -> FloatArray:
        """Return the parts' information in the order of the columns, shape (D,)."""
        information = np.empty(self.n_features)
        for k, (family, _) in enumerate(self.parts):
            a, b = self._share(np.stack([stats_a, stats_b]), k)
            information[self._columns[k]] = family.feature_information(a, b)
        return information

    @property
    def parameters(self) -> FloatArray:
        """The parts' parameters, one after another."""
        return np.concatenate([family.parameters for family, _ in self.parts])

    @property
    def parameter_reach(self) -> FloatArray:
        """The parts' reaches, one after another."""
        return np.concatenate([family.parameter_reach for family, _ in self.parts])

    def with_parameters(self, vector: FloatArray) -> Self:
        """Return the product with the parts' parameters from one vector."""
        parts, start = [], 0
        for family, chosen in self.parts:
            size = len(family.parameters)
            parts.append((family.with_parameters(vector[start : start + size]), chosen))
            start += size
        return dataclasses.replace(self, parts=tuple(parts))

    def gradient(self, stats: FloatArray) -> FloatArray:
        """Return d log f / d parameters, shape (B, h)."""
        shares = [
            family.gradient(self._share(stats, k)) for k, (family, _) in enumerate(self.parts)
        ]
        return np.concatenate(shares, axis=1)

    @property
    def scale_grid(self) -> tuple[float, ...]:
        """Scales of the parts that have them."""
        return next((family.scale_grid for family, _ in self.parts if family.scale_grid), ())

    def with_scale(self, scale: float) -> Self:
        """Return the product with another scale in every part that searches for one."""
        parts = [
            (family.with_scale(scale) if family.scale_grid else family, chosen)
            for family, chosen in self.parts
        ]
        return dataclasses.replace(self, parts=tuple(parts))

    def row_functions(self) -> RowFunctions:
        """Return add, remove and log_predictive of one row, through the parts' own."""
        faces = [family.row_functions() for family, _ in self.parts]
        last = [family.row_parameters() for family, _ in self.parts]

        def change(stats_row: FloatArray, x: FloatArray, which: int) -> None:
            for k, face in enumerate(faces):
                share = self._share(stats_row[None], k)[0]
                face[which](share, np.ascontiguousarray(x[self._columns[k]]), *last[k])
                stats_row[self._bounds[k] : self._bounds[k + 1]] = share[1:]
            stats_row[0] += 1.0 if which == 0 else -1.0

        def add(stats_row: FloatArray, x: FloatArray) -> None:
            change(stats_row, x, 0)

        def remove(stats_row: FloatArray, x: FloatArray) -> None:
            change(stats_row, x, 1)

        def log_predictive(x: FloatArray, stats_row: FloatArray) -> float:
            total = 0.0
            for k, face in enumerate(faces):
                own = np.ascontiguousarray(x[self._columns[k]])
                total += face.log_predictive(own, self._share(stats_row[None], k)[0], *last[k])
            return total

        return RowFunctions(add, remove, log_predictive)

    def to_dict(self) -> tuple[dict[str, Any], dict[str, FloatArray]]:
        """Return the parts as JSON-able dictionaries and arrays with prefixed names."""
        meta: dict[str, Any] = {"family": self.name, "n_features": self.n_features, "parts": []}
        arrays: dict[str, FloatArray] = {}
        for k, (family, chosen) in enumerate(self.parts):
            inner, values = family.to_dict()
            meta["parts"].append({"columns": list(chosen), "family": inner})
            arrays.update({f"part{k}.{key}": value for key, value in values.items()})
        return meta, arrays

    @classmethod
    def from_dict(cls, meta: Mapping[str, Any], arrays: Mapping[str, FloatArray]) -> Self:
        """Return the product that `to_dict` described."""
        parts = []
        for k, part in enumerate(meta["parts"]):
            prefix = f"part{k}."
            own = {
                key.removeprefix(prefix): value
                for key, value in arrays.items()
                if key.startswith(prefix)
            }
            parts.append((family_from_dict(part["family"], own), tuple(part["columns"])))
        return cls(tuple(parts), n_features=meta["n_features"])

    def __repr__(self) -> str:
        inside = ", ".join(f"({family!r}, {list(chosen)!r})" for family, chosen in self.parts)
        return f"Product([{inside}])"

    @cached_property
    def _columns(self) -> tuple[IntArray, ...]:
        return tuple(np.array(chosen, dtype=np.int64) for _, chosen in self.parts)

    @cached_property
    def _bounds(self) -> IntArray:
        """Where the parts' statistics start, and where the last one ends."""
        sizes = [family.n_statistics - 1 for family, _ in self.parts]
        return np.cumsum([1, *sizes])

    def _share(self, stats: FloatArray, k: int) -> FloatArray:
        """Return the statistics of part `k`, with its number of rows, C-contiguous."""
        start, stop = self._bounds[k], self._bounds[k + 1]
        share = np.empty((len(stats), 1 + stop - start))
        share[:, 0] = stats[:, 0]
        share[:, 1:] = stats[:, start:stop]
        return share

    def _placed(self, columns: Sequence[Column]) -> Self:
        """Return the product with column numbers, each column in exactly one part."""
        numbers = {column.name: d for d, column in enumerate(columns)}
        parts = []
        for family, chosen in self.parts:
            found = tuple(numbers.get(d, -1) if isinstance(d, str) else int(d) for d in chosen)
            parts.append((family, found))
        used = sorted(d for _, found in parts for d in found)
        if used != list(range(len(columns))):
            raise InputError(
                "Product(parts)",
                f"each of the {len(columns)} columns in exactly one part",
                repr([list(chosen) for _, chosen in self.parts]),
                "Name or number every column once.",
            )
        return dataclasses.replace(self, parts=tuple(parts))
