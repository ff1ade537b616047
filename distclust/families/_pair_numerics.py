"""Compiled loops behind :mod:`distclust.families.pairs`."""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.compiled import compiled
from distclust.families._numerics import bernoulli_base

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Counts: TypeAlias = npt.NDArray[np.int32]
Bytes: TypeAlias = npt.NDArray[np.uint8]

_FEW = 32  # below so many partners a table of 256 entries a byte does not pay
_WORD = 8  # bytes of a row that are looked up at once


class BernoulliGroups(NamedTuple):
    """Groups of complete binary rows and what their log marginals need."""

    # Of each group, changed as groups are combined:
    stats: Floats
    n_rows: Ints
    counts: Counts
    packed: Bytes  # bits of a single row, eight columns a byte, the first in the lowest bit
    log_f: Floats
    # Of each column:
    alpha: Floats
    beta: Floats
    # Row c is log Γ(α + c) of all columns: small groups need few rows, which stay in the cache.
    ones: Floats  # a table may end before the largest count
    zeros: Floats  # log Γ(β + c)
    log_gamma_alpha: Floats
    log_gamma_beta: Floats
    log_gamma_total: Floats
    # Of a number of rows:
    by_rows: Floats  # see rows_part, whose arguments follow
    prior: float
    totals: Floats
    multiplicity: Floats
    bases: Floats  # log f of rows of zeros, NaN until it is needed


@compiled
def log_gamma_tables(offsets: Floats, width: int) -> Floats:
    """Table of log Γ(offset + c), a row for each c = 0, 1, ..., width − 1."""
    table = np.empty((width, offsets.shape[0]))
    for c in range(width):
        for d in range(offsets.shape[0]):
            table[c, d] = math.lgamma(offsets[d] + c)
    return table


@compiled
def rows_part(n: int, prior: float, totals: Floats, multiplicity: Floats) -> float:
    """Part of a Bernoulli log f that depends on the number of rows only."""
    value = prior
    for q in range(totals.shape[0]):
        value -= multiplicity[q] * math.lgamma(totals[q] + n)
    return value


@compiled
def rows_part_table(size: int, prior: float, totals: Floats, multiplicity: Floats) -> Floats:
    """:func:`rows_part` for n = 0, 1, ..., size − 1."""
    table = np.empty(size)
    for n in range(size):
        table[n] = rows_part(n, prior, totals, multiplicity)
    return table


@compiled
def fill_byte_tables(weights: Floats, tables: Floats) -> None:
    """tables[b, v] = sum of the weights of the bits set in byte value v of byte b."""
    n_columns = weights.shape[0]
    for b in range(tables.shape[0]):
        table = tables[b]
        table[0] = 0.0
        size = 1
        for bit in range(8):
            d = 8 * b + bit
            weight = weights[d] if d < n_columns else 0.0
            for v in range(size):
                table[size + v] = table[v] + weight
            size *= 2


@compiled
def word_sum(packed: Bytes, s: int, b: int, tables: Floats) -> float:
    """Sum of the table entries of eight bytes of row s, the first being b.

    As a tree: no addition waits for more than two others.
    """
    t0 = tables[b, packed[s, b]] + tables[b + 1, packed[s, b + 1]]
    t1 = tables[b + 2, packed[s, b + 2]] + tables[b + 3, packed[s, b + 3]]
    t2 = tables[b + 4, packed[s, b + 4]] + tables[b + 5, packed[s, b + 5]]
    t3 = tables[b + 6, packed[s, b + 6]] + tables[b + 7, packed[s, b + 7]]
    return (t0 + t1) + (t2 + t3)


@compiled
def bernoulli_leaf_weights(
    counts: Counts, n: int, alpha: Floats, beta: Floats, weights: Floats
) -> float:
    """Predictive log odds of each column given a group; returns the sum of log p(x_d = 0)."""
    constant = 0.0
    for d in range(weights.shape[0]):
        log_one = math.log(alpha[d] + counts[d])
        log_zero = math.log(beta[d] + (n - counts[d]))
        weights[d] = log_one - log_zero
        constant += log_zero - math.log(alpha[d] + beta[d] + n)
    return constant


@compiled
def bernoulli_row(groups: BernoulliGroups, k: int, others: Ints, out: Floats) -> None:
    """log f(k ∪ s) for each s of `others`.

    A single row s has an affine predictive, log f(k ∪ x) = log f(k) + Σ log p0 + x·w, read
    eight columns at a time; a group s needs two table entries a column.
    """
    by_bytes = others.shape[0] > _FEW
    if by_bytes:
        score_rows(groups, k, others, out)
    score_groups(groups, k, others, by_bytes, out)


@compiled
def score_rows(groups: BernoulliGroups, k: int, others: Ints, out: Floats) -> None:
    """log f(k ∪ s) for each single row s of `others`; what is written for groups is no answer."""
    packed = groups.packed
    # Scratch belongs to the call: several threads ask for rows at once.
    weights, tables = np.empty(groups.counts.shape[1]), np.empty((packed.shape[1], 256))
    base = groups.log_f[k] + bernoulli_leaf_weights(
        groups.counts[k], groups.n_rows[k], groups.alpha, groups.beta, weights
    )
    fill_byte_tables(weights, tables)
    n_bytes = packed.shape[1]
    n_in_words = n_bytes - n_bytes % _WORD
    for position in range(others.shape[0]):
        s = others[position]
        total = base
        for b in range(0, n_in_words, _WORD):
            total += word_sum(packed, s, b, tables)
        for b in range(n_in_words, n_bytes):
            total += tables[b, packed[s, b]]
        out[position] = total


@compiled
def score_groups(
    groups: BernoulliGroups, k: int, others: Ints, but_rows: bool, out: Floats
) -> None:
    """log f(k ∪ s) for each s of `others`, or only for those that are no single rows.

    The sum over columns of log Γ(α + c) + log Γ(β + n − c) stands here and is no function: a
    call takes as long as half of it. Indices are without a sign, so that none from the end is to
    be reckoned with, and the two sums do not wait for each other.
    """
    n_rows, counts, by_rows = groups.n_rows, groups.counts, groups.by_rows
    ones, zeros = groups.ones, groups.zeros
    n_columns = counts.shape[1]
    a = counts[k]
    for position in range(others.shape[0]):
        s = np.uint64(others[position])
        if but_rows and n_rows[s] == 1:
            continue
        n = n_rows[k] + n_rows[s]
        if n >= by_rows.shape[0]:  # all tables end there
            out[position] = untabled_union(groups, k, others[position])
            continue
        rows = np.uint64(n)
        even, odd = by_rows[rows], 0.0
        for pair in range(n_columns // 2):
            d, e = np.uint64(2 * pair), np.uint64(2 * pair + 1)
            count, beside = np.uint64(a[d] + counts[s, d]), np.uint64(a[e] + counts[s, e])
            even += ones[count, d] + zeros[rows - count, d]
            odd += ones[beside, e] + zeros[rows - beside, e]
        if n_columns % 2 == 1:
            d = np.uint64(n_columns - 1)
            count = np.uint64(a[d] + counts[s, d])
            even += ones[count, d] + zeros[rows - count, d]
        out[position] = even + odd


@compiled
def untabled_union(groups: BernoulliGroups, i: int, j: int) -> float:
    """log f of the union of two groups with more rows than the tables reach to."""
    ones, zeros, width = groups.ones, groups.zeros, groups.ones.shape[0]
    n = groups.n_rows[i] + groups.n_rows[j]
    total = rows_part(n, groups.prior, groups.totals, groups.multiplicity)
    for d in range(groups.counts.shape[1]):
        c = groups.counts[i, d] + groups.counts[j, d]
        total += ones[c, d] if c < width else math.lgamma(groups.alpha[d] + c)
        total += zeros[n - c, d] if n - c < width else math.lgamma(groups.beta[d] + (n - c))
    return total


@compiled
def bernoulli_own(groups: BernoulliGroups) -> None:
    """Fill in the log f of each group."""
    everyone = np.arange(groups.log_f.shape[0])
    nothing = np.zeros((1, groups.counts.shape[1]), np.int32)
    exact_unions(groups, everyone, nothing, np.zeros(1, np.int64), 0 * everyone, groups.log_f)


@compiled
def bernoulli_exact(groups: BernoulliGroups, lefts: Ints, rights: Ints, out: Floats) -> None:
    """log f of pairs by the formula that decides."""
    exact_unions(groups, lefts, groups.counts, groups.n_rows, rights, out)


@compiled
def exact_unions(
    groups: BernoulliGroups,
    lefts: Ints,
    others: Counts,
    other_rows: Ints,
    rights: Ints,
    out: Floats,
) -> None:
    """log f of groups joined with others, the very sums of the family's own formula.

    log Γ comes from the tables, which must reach to all rows.
    """
    n_rows, counts, bases = groups.n_rows, groups.counts, groups.bases
    ones, zeros, own = groups.ones, groups.zeros, groups.log_gamma_alpha
    for pair in range(out.shape[0]):
        i, j = np.uint64(lefts[pair]), np.uint64(rights[pair])
        n = n_rows[i] + other_rows[j]
        if math.isnan(bases[n]):
            fill_base(groups, n)
        rows, total = np.uint64(n), bases[n]
        for column in range(counts.shape[1]):
            d = np.uint64(column)
            c = np.uint64(counts[i, d] + others[j, d])
            more = (ones[c, d] - own[d]) + (zeros[rows - c, d] - zeros[rows, d])
            # A choice between numbers, as a processor guesses wrong whether there are ones.
            total += more if c > np.uint64(0) else 0.0
        out[pair] = total


@compiled
def fill_base(groups: BernoulliGroups, n: int) -> None:
    """Compute the log f of n rows of zeros."""
    scratch = np.empty(groups.alpha.shape[0])
    groups.bases[n] = bernoulli_base(
        float(n),
        groups.alpha,
        groups.beta,
        groups.log_gamma_beta,
        groups.log_gamma_total,
        scratch,
    )


@compiled
def bernoulli_combine(groups: BernoulliGroups, i: int, j: int, log_f: float) -> None:
    """Add group j to group i; `log_f` is the log marginal of the union."""
    for d in range(groups.stats.shape[1]):
        groups.stats[i, d] += groups.stats[j, d]
    for d in range(groups.counts.shape[1]):
        groups.counts[i, d] += groups.counts[j, d]
    groups.n_rows[i] += groups.n_rows[j]
    groups.log_f[i] = log_f


@compiled
def gaussian_leaf_pairs(
    gram: Floats,
    own_left: Floats,
    own_right: Floats,
    prior_rows: float,
    half_dof: float,
    constant: float,
) -> None:
    """Turn Gram entries of whitened rows into log marginals of pairs, in place (spec 8.3).

    |S'_ij| / |S| = 1 + (1 − t)(a + b) − 2 t c + (1 − 2t)(ab − c²) with t = 1/(r + 2).
    """
    t = 1.0 / (prior_rows + 2.0)
    for i in range(gram.shape[0]):
        a = own_left[i]
        for j in range(gram.shape[1]):
            b, c = own_right[j], gram[i, j]
            ratio = 1.0 + (1.0 - t) * (a + b) - 2.0 * t * c + (1.0 - 2.0 * t) * (a * b - c * c)
            gram[i, j] = constant - half_dof * math.log(max(ratio, 1.0e-300))


@compiled
def posterior_scatter(
    stats: Floats, scatter: Floats, offset: Floats, strength: float, out: Floats
) -> float:
    """Posterior scale matrix S' of one group, lower triangle; returns its growth.

    S' = S + r oᵀo + Q − p pᵀ/(r + n) with p = s + r o and o the prior mean minus the shift.
    The growth max_d (terms added / S'_dd) says how many digits the subtraction lost.
    """
    size = scatter.shape[0]
    total = strength + stats[0]
    growth = 1.0
    place = 1 + size
    for i in range(size):
        p_i = stats[1 + i] + strength * offset[i]
        for j in range(i, size):
            p_j = stats[1 + j] + strength * offset[j]
            added = scatter[i, j] + strength * offset[i] * offset[j] + stats[place]
            out[j, i] = added - p_i * p_j / total
            if i == j:
                growth = max(growth, added / out[i, i])
            place += 1
    return growth


@compiled
def invert_cholesky(matrix: Floats, inverse: Floats) -> float:
    """Overwrite the lower triangle by its Cholesky factor L, fill `inverse` with L⁻¹.

    Returns log |matrix|, or NaN if it is not positive definite.
    """
    size = matrix.shape[0]
    log_det = 0.0
    for j in range(size):
        for i in range(j, size):
            total = matrix[i, j]
            for c in range(j):
                total -= matrix[i, c] * matrix[j, c]
            if i == j:
                if not total > 0.0:
                    return math.nan
                matrix[j, j] = math.sqrt(total)
                log_det += math.log(total)
            else:
                matrix[i, j] = total / matrix[j, j]
    for j in range(size):
        inverse[j, j] = 1.0 / matrix[j, j]
        for i in range(j + 1, size):
            total = 0.0
            for c in range(j, i):
                total -= matrix[i, c] * inverse[c, j]
            inverse[i, j] = total / matrix[i, i]
    return log_det


@compiled
def scaled_condition(variances: Floats, inverse: Floats) -> float:
    """Bound on the condition number of a matrix scaled to unit diagonal, from L⁻¹."""
    size = variances.shape[0]
    total = 0.0
    for i in range(size):
        for j in range(i + 1):
            total += inverse[i, j] * inverse[i, j] * variances[j]
    return size * total


@compiled
def gaussian_leaf_row(
    k: int,
    others: Ints,
    stats: Floats,
    log_f: Floats,
    scatter: Floats,
    offset: Floats,
    strength: float,
    degrees: float,
    largest: Floats,
    out: Floats,
) -> float:
    """log f(k ∪ x) for the single rows x among `others`; NaN for larger groups.

    |S'_new| = |S'| (1 + r'/(r' + 1) eᵀ S'⁻¹ e) with e = x − m' (spec 8.3). Returns a bound on
    the error, NaN if there is none.
    """
    size = scatter.shape[0]
    scratch, inverse = np.empty((size, size)), np.empty((size, size))
    variances = np.empty(size)
    n = stats[k, 0]
    growth = posterior_scatter(stats[k], scatter, offset, strength, scratch)
    for d in range(size):
        variances[d] = scratch[d, d]
        growth = max(growth, 1.0 + largest[d] / variances[d])
    log_det = invert_cholesky(scratch, inverse)
    if not math.isfinite(log_det):
        return math.nan
    total, freedom = strength + n, degrees + n
    shrink = total / (total + 1.0)
    constant = log_f[k] - 0.5 * log_det + 0.5 * size * math.log(shrink / math.pi)
    constant += math.lgamma(0.5 * (freedom + 1.0)) - math.lgamma(0.5 * (freedom + 1.0 - size))
    centre, solved = np.empty(size), np.empty(size)
    for d in range(size):
        centre[d] = (stats[k, 1 + d] + strength * offset[d]) / total
    for position in range(others.shape[0]):
        s = others[position]
        if stats[s, 0] != 1.0:
            out[position] = math.nan
            continue
        for d in range(size):
            solved[d] = stats[s, 1 + d] - centre[d]
        quadratic = 0.0
        for i in range(size):
            entry = 0.0
            for j in range(i + 1):
                entry += inverse[i, j] * solved[j]
            quadratic += entry * entry
        out[position] = constant - 0.5 * (freedom + 1.0) * math.log(1.0 + shrink * quadratic)
    condition = scaled_condition(variances, inverse)
    return 32.0 * size * condition * growth * (freedom + 1.0) * 2.3e-16


@compiled
def rising_tables(alpha: Floats, largest: Ints, starts: Ints, tables: Floats) -> None:
    """log Γ(α_d + c) − log Γ(α_d) for c = 0 .. largest[d], column after column."""
    for d in range(alpha.shape[0]):
        own = math.lgamma(alpha[d])
        for c in range(largest[d] + 1):
            tables[starts[d] + c] = math.lgamma(alpha[d] + c) - own


@compiled
def count_row(
    k: int,
    others: Ints,
    counts: Counts,
    is_leaf: npt.NDArray[np.bool_],
    leaf_start: Ints,
    leaf_columns: Counts,
    starts: Ints,
    tables: Floats,
    out: Floats,
) -> None:
    """Σ_d [log Γ(α_d + c_d) − log Γ(α_d)] for the counts of k joined with each other group.

    A leaf costs its nonzero columns only: the rest of the sum is that of k alone.
    """
    n_columns = counts.shape[1]
    base = 0.0
    for d in range(n_columns):
        base += tables[starts[d] + counts[k, d]]
    for position in range(others.shape[0]):
        s = others[position]
        if is_leaf[s]:
            total = base
            for place in range(leaf_start[s], leaf_start[s + 1]):
                d = leaf_columns[place]
                here = starts[d] + counts[k, d]
                total += tables[here + counts[s, d]] - tables[here]
        else:
            total = 0.0
            for d in range(n_columns):
                total += tables[starts[d] + counts[k, d] + counts[s, d]]
        out[position] = total


@compiled
def add_poisson_rates(
    k: int,
    others: Ints,
    n_rows: Ints,
    counts: Counts,
    is_leaf: npt.NDArray[np.bool_],
    leaf_start: Ints,
    leaf_columns: Counts,
    shape: Floats,
    rate: Floats,
    out: Floats,
) -> None:
    """Add Σ_d [a_d log b_d − (a_d + t_d) log(b_d + n)], n and t of k joined with each other."""
    n_columns = counts.shape[1]
    log_rates = np.empty(n_columns)
    last_n, base = -1, 0.0
    for position in range(others.shape[0]):
        s = others[position]
        n = n_rows[k] + n_rows[s]
        if n != last_n:
            base = 0.0
            for d in range(n_columns):
                log_rates[d] = math.log(rate[d] + n)
                base += shape[d] * math.log(rate[d]) - (shape[d] + counts[k, d]) * log_rates[d]
            last_n = n
        total = base
        if is_leaf[s]:
            for place in range(leaf_start[s], leaf_start[s + 1]):
                d = leaf_columns[place]
                total -= counts[s, d] * log_rates[d]
        else:
            for d in range(n_columns):
                total -= counts[s, d] * log_rates[d]
        out[position] += total


@compiled
def add_bernoulli_zeros(
    k: int,
    others: Ints,
    n_rows: Ints,
    counts: Counts,
    is_leaf: npt.NDArray[np.bool_],
    leaf_start: Ints,
    leaf_columns: Counts,
    beta: Floats,
    out: Floats,
) -> None:
    """Add Σ [log Γ(β + n − c) − log Γ(β + n)] over the columns with ones of k or of the other."""
    n_columns = counts.shape[1]
    last_n, base = -1, 0.0
    for position in range(others.shape[0]):
        s = others[position]
        n = n_rows[k] + n_rows[s]
        total = 0.0
        if is_leaf[s]:
            if n != last_n:
                base = 0.0
                for d in range(n_columns):
                    if counts[k, d] > 0:
                        full = math.lgamma(beta[d] + n)
                        base += math.lgamma(beta[d] + (n - counts[k, d])) - full
                last_n = n
            total = base
            for place in range(leaf_start[s], leaf_start[s + 1]):
                d = leaf_columns[place]
                rest = beta[d] + (n - counts[k, d])
                if counts[s, d] == 1:
                    total -= math.log(rest - 1.0)
                else:
                    total += math.lgamma(rest - counts[s, d]) - math.lgamma(rest)
        else:
            for d in range(n_columns):
                c = counts[k, d] + counts[s, d]
                if c > 0:
                    total += math.lgamma(beta[d] + (n - c)) - math.lgamma(beta[d] + n)
        out[position] += total
