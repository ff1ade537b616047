"""Compiled loops of the greedy tree search (:mod:`distclust.trees.search`).

A *slot* holds one active subtree; a merge reuses the slot of its older half. The record of a
subtree T is described by :data:`SLOT`. A `rule` holds what the model needs, see
:class:`Rule`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.compiled import compiled
from distclust.trees.structure import ABSORB_LEFT as ABSORB_OLDER
from distclust.trees.structure import ABSORB_RIGHT as ABSORB_YOUNGER
from distclust.trees.structure import COLLAPSE, JOIN

Records: TypeAlias = npt.NDArray[Any]
Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]

SLOT = np.dtype(
    [
        ("best", "f8"),  # key of the best pair that contains T, or an upper bound of it
        ("value", "f8"),  # log Z_T for Dirichlet process mixing, else log p(leaves(T) | T)
        ("parts", "f8"),  # sum of the children's values
        ("log_d", "f8"),  # log d_T, the normaliser of the Dirichlet process mixing
        ("parts_d", "f8"),  # sum of the children's log d
        ("best_log_f", "f8"),  # log marginal of the union with the best partner
        ("id", "i8"),  # node id: leaves first, then nodes in order of creation
        ("n_rows", "i8"),
        ("arity", "i8"),  # number of children, 0 for a leaf
        ("partner", "i8"),  # slot of the best partner
        ("operation", "i8"),  # what to do with the best partner
        ("settled", "i8"),  # 1: best and partner are exact; 0: best is an upper bound
    ]
)


class Rule(NamedTuple):
    """The model as plain values: which mixing, which ranking, which operations."""

    is_dp: int
    by_odds: int
    many_children: int  # absorb and collapse are allowed
    log_concentration: float
    log_gamma: Floats  # log Γ(0), log Γ(1), ... as far as it is worth it
    log_pi: Floats  # log π for c children
    log_not_pi: Floats  # log(1 − π) for c children


@compiled
def log_add(a: float, b: float) -> float:
    """log(exp(a) + exp(b)), symmetric to the last bit."""
    high = max(a, b)
    if high == -math.inf:
        return high
    return high + math.log1p(math.exp(min(a, b) - high))


@compiled
def log_block_prior(n: int, rule: Rule) -> float:
    """log(α Γ(n)): the prior weight of one block of n rows."""
    if n < rule.log_gamma.shape[0]:
        return rule.log_concentration + rule.log_gamma[n]
    return rule.log_concentration + math.lgamma(float(n))


@compiled
def add_leaf_priors(slots: Records, rule: Rule) -> None:
    """Leaves of a Dirichlet process: log d = log αΓ(n) and log Z = log d + log f."""
    for s in range(slots.shape[0]):
        log_d = log_block_prior(slots[s]["n_rows"], rule)
        slots[s]["log_d"] = log_d
        slots[s]["value"] += log_d


@compiled
def children_after(older: Any, younger: Any, operation: int) -> tuple[int, float, float]:
    """Number of children, sum of their values and of their log d after an operation."""
    if operation == JOIN:
        return (
            2,
            older["value"] + younger["value"],
            older["log_d"] + younger["log_d"],
        )
    if operation == ABSORB_OLDER:
        return (
            older["arity"] + 1,
            older["parts"] + younger["value"],
            older["parts_d"] + younger["log_d"],
        )
    if operation == ABSORB_YOUNGER:
        return (
            younger["arity"] + 1,
            older["value"] + younger["parts"],
            older["log_d"] + younger["parts_d"],
        )
    return (
        older["arity"] + younger["arity"],
        older["parts"] + younger["parts"],
        older["parts_d"] + younger["parts_d"],
    )


@compiled
def is_allowed(older: Any, younger: Any, operation: int) -> bool:
    """Only a node that has children can absorb or be dissolved (spec 5.2)."""
    if operation == ABSORB_OLDER:
        return older["arity"] > 0
    if operation == ABSORB_YOUNGER:
        return younger["arity"] > 0
    return operation == JOIN or (older["arity"] > 0 and younger["arity"] > 0)


@compiled
def operation_key(
    older: Any, younger: Any, operation: int, log_f: float, log_prior: float, rule: Rule
) -> float:
    """Log odds of the merge, or the log likelihood ratio of BRT eq. 1.23."""
    count, product, product_d = children_after(older, younger, operation)
    if rule.is_dp == 1:
        single, rest = log_prior + log_f, product
    else:
        single, rest = rule.log_pi[count] + log_f, rule.log_not_pi[count] + product
    if rule.by_odds == 1:
        return single - rest
    ratio = log_add(single, rest) - (older["value"] + younger["value"])
    if rule.is_dp == 1:
        ratio += (older["log_d"] + younger["log_d"]) - log_add(log_prior, product_d)
    return ratio


@compiled
def pair_key(slots: Records, i: int, j: int, log_f: float, rule: Rule) -> tuple[float, int]:
    """Best operation on two subtrees whose union has log marginal `log_f`.

    Returns (key, operation). Ties between operations go to the first of join, absorb into
    the older node, absorb into the younger one, collapse.
    """
    if slots[i]["id"] > slots[j]["id"]:
        i, j = j, i
    older, younger = slots[i], slots[j]
    log_prior = 0.0
    if rule.is_dp == 1:
        log_prior = log_block_prior(older["n_rows"] + younger["n_rows"], rule)
    best = operation_key(older, younger, JOIN, log_f, log_prior, rule)
    best_operation = JOIN
    if rule.many_children == 1:
        for operation in range(ABSORB_OLDER, COLLAPSE + 1):
            if is_allowed(older, younger, operation):
                key = operation_key(older, younger, operation, log_f, log_prior, rule)
                if key > best:
                    best, best_operation = key, operation
    return best, best_operation


@compiled
def next_merge(slots: Records, active: Ints) -> tuple[int, int]:
    """Slots (older, younger) of the best pair, or (unsettled slot, −1) to be looked at first.

    The row with the largest maximum decides; an unsettled one comes first among equals. Among
    settled rows ties go to the pair with the smallest (older id, younger id).
    """
    highest = -math.inf
    for s in active:
        highest = max(highest, slots[s]["best"])
    first, second = -1, -1
    for s in active:
        if slots[s]["best"] != highest:
            continue
        if slots[s]["settled"] == 0:
            return s, -1
        older, younger = s, slots[s]["partner"]
        if slots[older]["id"] > slots[younger]["id"]:
            older, younger = younger, older
        if first < 0 or is_before(slots, older, younger, first, second):
            first, second = older, younger
    return first, second


@compiled
def is_before(slots: Records, older: int, younger: int, first: int, second: int) -> bool:
    """Whether one pair of slots comes before another in the order of node ids."""
    a, b = slots[older]["id"], slots[first]["id"]
    return a < b or (a == b and slots[younger]["id"] < slots[second]["id"])


@compiled
def apply_merge(
    slots: Records, active: Ints, i: int, j: int, new_id: int, rule: Rule, others: Ints
) -> tuple[int, int, float]:
    """Merge slot j into slot i by the operation that row i or j settled on.

    `active` loses slot j (its last entry moves there), `others` receives the active slots
    beside i, and rows whose partner was i or j keep their maximum as an upper bound only.
    Returns (number of others, operation, log marginal of the union).
    """
    chosen = slots[i] if slots[i]["partner"] == j and slots[i]["settled"] == 1 else slots[j]
    log_f, operation = chosen["best_log_f"], chosen["operation"]
    merge_slots(slots, i, j, log_f, operation, new_id, rule)
    last = active.shape[0] - 1
    count = 0
    for position in range(last):
        if active[position] == j:
            active[position] = active[last]
        s = active[position]
        if s == i:
            continue
        others[count] = s
        count += 1
        if slots[s]["partner"] == i or slots[s]["partner"] == j:
            slots[s]["settled"] = 0
    return count, operation, log_f


@compiled
def merge_slots(
    slots: Records, i: int, j: int, log_f: float, operation: int, new_id: int, rule: Rule
) -> None:
    """Write the merged subtree into slot i, the older half."""
    older, younger = slots[i], slots[j]
    count, product, product_d = children_after(older, younger, operation)
    older["id"] = new_id
    older["n_rows"] += younger["n_rows"]
    older["arity"], older["parts"], older["parts_d"] = count, product, product_d
    if rule.is_dp == 1:
        log_prior = log_block_prior(older["n_rows"], rule)
        older["value"] = log_add(log_prior + log_f, product)
        older["log_d"] = log_add(log_prior, product_d)
    else:
        older["value"] = log_add(rule.log_pi[count] + log_f, rule.log_not_pi[count] + product)


@compiled
def row_keys(
    slots: Records, k: int, others: Ints, log_f: Floats, rule: Rule, keys: Floats
) -> float:
    """Fill `keys` with the key of slot k against each of `others`; return the largest."""
    highest = -math.inf
    if rule.is_dp == 1 and rule.by_odds == 1 and rule.many_children == 0:
        # BHC, the common case: o = log αΓ(n) + log f − log Z_i − log Z_j and nothing else.
        n_rows, value = slots[k]["n_rows"], slots[k]["value"]
        for position in range(others.shape[0]):
            other = slots[others[position]]
            log_prior = log_block_prior(n_rows + other["n_rows"], rule)
            key = log_prior + log_f[position] - (value + other["value"])
            keys[position] = key
            highest = max(highest, key)
        return highest
    for position in range(others.shape[0]):
        key, _ = pair_key(slots, k, others[position], log_f[position], rule)
        keys[position] = key
        highest = max(highest, key)
    return highest


@compiled
def near_row_maximum(keys: Floats, lowest: float, chosen: Ints) -> int:
    """Positions whose key is at least `lowest`; returns how many."""
    count = 0
    for position in range(keys.shape[0]):
        if keys[position] >= lowest:
            chosen[count] = position
            count += 1
    return count


@compiled
def introduce(
    slots: Records,
    k: int,
    others: Ints,
    log_f: Floats,
    error: float,
    rule: Rule,
    matrix: npt.NDArray[np.float32],
    keys: Floats,
    chosen: Ints,
) -> int:
    """Positions that may be the maximum of the new row k or of their own row.

    `log_f` may be wrong by `error`. Keys are remembered if `matrix` is not empty. Returns how
    many positions were written to `chosen`.
    """
    highest = row_keys(slots, k, others, log_f, rule, keys)
    keep = matrix.shape[0] > 0
    count = 0
    for position in range(others.shape[0]):
        key, s = keys[position], others[position]
        if keep:
            matrix[k, s] = np.float32(key)
        if key + 2.0 * error >= highest or key + error >= slots[s]["best"]:
            chosen[count] = position
            count += 1
    return count


@compiled
def settle(
    slots: Records, k: int, candidates: Ints, log_f: Floats, offer: bool, rule: Rule
) -> None:
    """Decide row maxima from exactly evaluated candidates.

    Slot k gets the largest key, the smallest node id on ties. With `offer` every candidate's
    own row is offered the new partner k too: k has the largest id, so on a tie a row keeps
    the partner it has, and a row that holds only an upper bound stays unsettled, because
    another old partner may tie.
    """
    row = slots[k]
    row["best"] = -math.inf
    partner_id = -1
    for position in range(candidates.shape[0]):
        s = candidates[position]
        other = slots[s]
        key, operation = pair_key(slots, k, s, log_f[position], rule)
        if key > row["best"] or (key == row["best"] and other["id"] < partner_id):
            row["best"], row["best_log_f"] = key, log_f[position]
            row["partner"], row["operation"] = s, operation
            partner_id = other["id"]
        if offer and key > other["best"]:
            other["best"], other["best_log_f"] = key, log_f[position]
            other["partner"], other["operation"], other["settled"] = k, operation, 1
    row["settled"] = 1


@compiled
def others_of(active: Ints, slot: int, out: Ints) -> int:
    """Copy `active` without `slot` into `out`; returns how many."""
    count = 0
    for s in active:
        if s != slot:
            out[count] = s
            count += 1
    return count


@compiled
def cached_keys(
    slots: Records, matrix: npt.NDArray[np.float32], k: int, others: Ints, keys: Floats
) -> float:
    """Read a row of the key matrix: a pair's key lies in the row of its younger node."""
    highest = -math.inf
    own_id = slots[k]["id"]
    for position in range(others.shape[0]):
        s = others[position]
        key = np.float64(matrix[s, k] if slots[s]["id"] > own_id else matrix[k, s])
        keys[position] = key
        highest = max(highest, key)
    return highest


@compiled
def equal_to_neighbour(stats: Floats, slots: Ints, same: Ints) -> None:
    """For each slot: the position of an earlier slot with the same statistics, or its own.

    Only the first slot and the one just before are compared: enough to make a block of
    duplicates cheap, and linear.
    """
    n_statistics = stats.shape[1]
    for position in range(slots.shape[0]):
        same[position] = position
        for earlier in (0, same[position - 1] if position > 0 else 0):
            a, b = slots[position], slots[earlier]
            equal = True
            for d in range(n_statistics):
                if stats[a, d] != stats[b, d]:
                    equal = False
                    break
            if equal:
                same[position] = same[earlier]
                break
