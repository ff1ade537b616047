"""How likely is the union of two groups? One group against many, fast.

A tree search asks this n² times. The answer that decides is always
:meth:`Family.log_marginal_pairs`, the family's own formula; a :class:`PairScorer` may answer
faster and a little less exactly, and states by how much it may be wrong. The search ranks
with the fast answer and settles what lies within that error with the exact one. Trees
therefore depend on neither the shortcut taken, nor the BLAS, nor the shape of a product.

Shortcuts here: the leaf-pair stage as one matrix product (Bernoulli: X diag(w) Xᵀ; Gaussian:
Gram matrix of whitened rows), binary rows eight columns a table look-up, and tables of
log Γ instead of calls.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.families._pair_numerics import BernoulliGroups
from distclust.families.base import Family

Floats: TypeAlias = npt.NDArray[np.float64]
Indices: TypeAlias = npt.NDArray[np.int64]

ROUNDING = float(np.finfo(np.float64).eps)


class PairScorer:
    """Log marginals of unions by the family's own formula: exact, for any family.

    Parameters
    ----------
    family
        A resolved family.
    stats
        Statistics of the starting groups, shape (slots, p). The scorer keeps a copy and
        updates it as groups are combined.
    """

    def __init__(self, family: Family, stats: Floats) -> None:
        self.family = family
        self.stats = stats.copy()

    def exact(self, lefts: int | Indices, rights: Indices) -> Floats:
        """Return log f of pairs of groups, by the formula that decides."""
        return self.family.log_marginal_pairs(self.stats, lefts, rights)

    def row(self, k: int, others: Indices) -> tuple[Floats, float]:
        """Return log f(k ∪ s) for each s of `others`, and how wrong they may be."""
        return self.exact(k, others), 0.0

    def combine(self, i: int, j: int, log_f: float) -> None:
        """Add group j to group i; `log_f` is the log marginal of the union."""
        self.stats[i] += self.stats[j]

    def own(self) -> Floats:
        """Return log f of each starting group; asked before groups are combined."""
        return self.family.log_marginal(self.stats)

    def compiled_groups(self) -> tuple[BernoulliGroups, float] | None:
        """Return the groups for a compiled search, and the error of their rows, or None.

        A search that takes them calls neither :meth:`row`, :meth:`exact` nor :meth:`combine`
        any more: it drives the merges itself.
        """
        return None

    def leaf_rows(self, start: int, stop: int) -> tuple[Floats, float]:
        """Rows start..stop of the first pair stage against all slots, and their error.

        Entries on the diagonal are meaningless.
        """
        tile = np.full((stop - start, len(self.stats)), -np.inf)
        error = 0.0
        for k in range(start, stop):
            others = np.delete(np.arange(len(self.stats)), k)
            tile[k - start, others], row_error = self.row(k, others)
            error = max(error, row_error)
        return tile, error
