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
from distclust.families._pair_numerics import (
    BernoulliGroups,
    bernoulli_combine,
    bernoulli_exact,
    bernoulli_row,
)
from distclust.trees.structure import ABSORB_LEFT as ABSORB_OLDER
from distclust.trees.structure import ABSORB_RIGHT as ABSORB_YOUNGER
from distclust.trees.structure import COLLAPSE, JOIN

Records: TypeAlias = npt.NDArray[Any]
Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]
Keys: TypeAlias = npt.NDArray[np.float32]

SLOT = np.dtype(
    [
        ("best", "f8"),  # key of the best pair that contains T, or an upper bound of it
        ("odds", "f8"),  # its log odds, which decide between equal keys
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

_FLOAT32_ROUNDING = float(np.finfo(np.float32).eps)

MERGE = np.dtype([("older", "i8"), ("younger", "i8"), ("operation", "i8"), ("log_f", "f8")])


class Rule(NamedTuple):
    """The model as two arrays, which compiled functions take quickly."""

    settings: Floats  # is_dp, by_odds, many_children (absorb, collapse), log concentration
    tables: Floats  # Dirichlet process: log Γ(n) in row 0; else log π, log(1 − π) by children


IS_DP, BY_ODDS, MANY_CHILDREN, LOG_CONCENTRATION = 0, 1, 2, 3


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
    if n < rule.tables.shape[1]:
        return rule.settings[LOG_CONCENTRATION] + rule.tables[0, n]
    return rule.settings[LOG_CONCENTRATION] + math.lgamma(float(n))


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
def softplus(x: float) -> float:
    """log(1 + exp(x))."""
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


@compiled
def freed(older: Any, younger: Any, operation: int) -> tuple[float, float]:
    """What dissolving roots adds to the children's sums beyond those of a join."""
    value, log_d = 0.0, 0.0
    if operation == ABSORB_OLDER or operation == COLLAPSE:
        value += older["parts"] - older["value"]
        log_d += older["parts_d"] - older["log_d"]
    if operation == ABSORB_YOUNGER or operation == COLLAPSE:
        value += younger["parts"] - younger["value"]
        log_d += younger["parts_d"] - younger["log_d"]
    return value, log_d


@compiled
def operation_key(
    older: Any, younger: Any, operation: int, log_f: float, log_prior: float, rule: Rule
) -> tuple[float, float]:
    """Key and log odds of an operation.

    The key is the log odds, or the log likelihood ratio of BRT eq. 1.23. The ratio of a poor
    merge tends to log(1 − π) whatever the data; it is written as that floor plus
    softplus(odds), so that such merges tie exactly instead of in random last digits, and the
    odds can decide between them.
    """
    count, product, product_d = children_after(older, younger, operation)
    is_dp = rule.settings[IS_DP] == 1.0
    if is_dp:
        odds = log_prior + log_f - product
    else:
        log_pi, log_not = rule.tables[0, count], rule.tables[1, count]
        odds = log_pi + log_f - (log_not + product)
    if rule.settings[BY_ODDS] == 1.0:
        return odds, odds
    value, log_d = freed(older, younger, operation)
    if is_dp:
        return value - log_d - softplus(log_prior - product_d) + softplus(odds), odds
    return log_not + value + softplus(odds), odds


@compiled
def pair_key(slots: Records, i: int, j: int, log_f: float, rule: Rule) -> tuple[float, float, int]:
    """Best operation on two subtrees whose union has log marginal `log_f`.

    Returns (key, log odds, operation). Ties between operations go to the first of join,
    absorb into the older node, absorb into the younger one, collapse.
    """
    if slots[i]["id"] > slots[j]["id"]:
        i, j = j, i
    older, younger = slots[i], slots[j]
    log_prior = 0.0
    if rule.settings[IS_DP] == 1.0:
        log_prior = log_block_prior(older["n_rows"] + younger["n_rows"], rule)
    best, best_odds = operation_key(older, younger, JOIN, log_f, log_prior, rule)
    best_operation = JOIN
    if rule.settings[MANY_CHILDREN] == 1.0:
        for operation in range(ABSORB_OLDER, COLLAPSE + 1):
            if is_allowed(older, younger, operation):
                key, odds = operation_key(older, younger, operation, log_f, log_prior, rule)
                if key > best:
                    best, best_odds, best_operation = key, odds, operation
    return best, best_odds, best_operation


@compiled
def next_merge(slots: Records, active: Ints) -> tuple[int, int]:
    """Slots (older, younger) of the best pair, or (unsettled slot, −1) to be looked at first.

    The row with the largest (key, log odds) decides; an unsettled one comes first among
    equals. Among settled rows ties go to the pair with the smallest (older id, younger id).
    """
    highest, odds = -math.inf, -math.inf
    first, second, unsettled = -1, -1, -1
    for s in active:
        key = slots[s]["best"]
        if key < highest or (key == highest and slots[s]["odds"] < odds):
            continue
        if key > highest or slots[s]["odds"] > odds:
            highest, odds = key, slots[s]["odds"]
            first, second, unsettled = -1, -1, -1
        if slots[s]["settled"] == 0:
            if unsettled < 0:
                unsettled = s
            continue
        older, younger = s, slots[s]["partner"]
        if slots[older]["id"] > slots[younger]["id"]:
            older, younger = younger, older
        if first < 0 or is_before(slots, older, younger, first, second):
            first, second = older, younger
    return (unsettled, -1) if unsettled >= 0 else (first, second)


@compiled
def is_before(slots: Records, older: int, younger: int, first: int, second: int) -> bool:
    """Whether one pair of slots comes before another in the order of node ids."""
    a, b = slots[older]["id"], slots[first]["id"]
    return a < b or (a == b and slots[younger]["id"] < slots[second]["id"])


@compiled
def apply_merge(
    slots: Records,
    active: Ints,
    i: int,
    j: int,
    rule: Rule,
    others: Ints,
    history: Records,
    merge: int,
) -> tuple[int, float]:
    """Merge slot j into slot i by the operation that row i or j settled on.

    `active` loses slot j (its last entry moves there), `others` receives the active slots
    beside i, and rows whose partner was i or j keep their maximum as an upper bound only.
    Entry `merge` of the history is written. Returns (number of others, log marginal of the
    union).
    """
    chosen = slots[i] if slots[i]["partner"] == j and slots[i]["settled"] == 1 else slots[j]
    log_f, operation = chosen["best_log_f"], chosen["operation"]
    history[merge]["older"], history[merge]["younger"] = slots[i]["id"], slots[j]["id"]
    history[merge]["operation"], history[merge]["log_f"] = operation, log_f
    n_leaves = history.shape[0] + 1
    merge_slots(slots, i, j, log_f, operation, n_leaves + merge, rule)
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
    return count, log_f


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
    if rule.settings[IS_DP] == 1.0:
        log_prior = log_block_prior(older["n_rows"], rule)
        older["value"] = log_add(log_prior + log_f, product)
        older["log_d"] = log_add(log_prior, product_d)
    else:
        log_pi, log_not = rule.tables[0, count], rule.tables[1, count]
        older["value"] = log_add(log_pi + log_f, log_not + product)


@compiled
def row_keys(
    slots: Records, k: int, others: Ints, log_f: Floats, rule: Rule, keys: Floats
) -> float:
    """Fill `keys` with the key of slot k against each of `others`; return the largest."""
    highest = -math.inf
    settings = rule.settings
    if settings[IS_DP] == 1.0 and settings[BY_ODDS] == 1.0 and settings[MANY_CHILDREN] == 0.0:
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
        key, _, _ = pair_key(slots, k, others[position], log_f[position], rule)
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
    matrix: Keys,
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
    slots: Records, k: int, candidates: Ints, log_f: Floats, place: Ints, offer: bool, rule: Rule
) -> None:
    """Decide row maxima from exactly evaluated candidates.

    Slot k gets the largest (key, log odds), the smallest node id on ties; `log_f[place[p]]`
    belongs to candidate p. With `offer` every candidate's own row is offered the new partner
    k too: k has the largest id, so on a tie a row keeps the partner it has, and a row that
    holds only an upper bound stays unsettled, because another old partner may tie.
    """
    slots[k]["best"] = -math.inf
    slots[k]["odds"] = -math.inf
    slots[k]["partner"] = -1
    for position in range(candidates.shape[0]):
        s, value = candidates[position], log_f[place[position]]
        key, odds, operation = pair_key(slots, k, s, value, rule)
        improve(slots, k, s, key, odds, operation, value, True)
        if offer:
            improve(slots, s, k, key, odds, operation, value, False)
    slots[k]["settled"] = 1


@compiled
def improve(
    slots: Records,
    k: int,
    s: int,
    key: float,
    odds: float,
    operation: int,
    log_f: float,
    smaller_id_wins: bool,
) -> None:
    """Make s the best partner of row k if it is better than the present one."""
    row = slots[k]
    if key < row["best"] or (key == row["best"] and odds < row["odds"]):
        return
    if key == row["best"] and odds == row["odds"]:
        if not smaller_id_wins:
            return
        if row["partner"] >= 0 and slots[row["partner"]]["id"] < slots[s]["id"]:
            return
    row["best"], row["odds"], row["best_log_f"] = key, odds, log_f
    row["partner"], row["operation"], row["settled"] = s, operation, 1


@compiled
def count_first_candidates(
    slots: Records, start: int, tile: Floats, error: float, rule: Rule, lowest: Floats
) -> int:
    """First pair stage: turn a tile of log marginals into keys, in place.

    Row r of the tile is leaf start + r. `lowest[r]` receives the key above which a partner may
    be the best one. Returns how many there are.
    """
    everyone = np.arange(tile.shape[1])
    values = slots["value"].copy()  # side by side: every row of the tile goes through all
    are_rows = slots["n_rows"].max() == 1
    settings = rule.settings
    is_bhc = settings[IS_DP] == 1.0 and settings[BY_ODDS] == 1.0 and settings[MANY_CHILDREN] == 0.0
    count = 0
    for r in range(tile.shape[0]):
        keys, k = tile[r], start + r
        if is_bhc and are_rows:  # the common case: as row_keys, but for the prior
            log_prior, value = log_block_prior(2, rule), values[k]
            for j in range(keys.shape[0]):
                keys[j] = log_prior + keys[j] - (value + values[j])
        else:
            row_keys(slots, k, everyone, keys, rule, keys)
        keys[k] = -math.inf  # a leaf is not its own partner
        lowest[r] = keys.max() - 2.0 * error
        for j in range(keys.shape[0]):
            if keys[j] >= lowest[r]:
                count += 1
    return count


@compiled
def list_first_candidates(
    start: int, keys: Floats, lowest: Floats, stats: Floats, lefts: Ints, rights: Ints
) -> int:
    """List the candidate pairs of a tile, equal partners once; returns how many.

    Partners with equal statistics have equal keys and the one with the smallest id wins, so
    the later ones need no evaluation. A candidate is compared with the first and the previous
    one listed for its row, which makes a block of duplicates cheap.
    """
    count = 0
    for r in range(keys.shape[0]):
        first = count
        for j in range(keys.shape[1]):
            if keys[r, j] < lowest[r] or keys[r, j] == -math.inf:
                continue
            if count > first and (
                same_row(stats, j, rights[first]) or same_row(stats, j, rights[count - 1])
            ):
                continue
            lefts[count], rights[count] = start + r, j
            count += 1
    return count


@compiled
def settle_first(slots: Records, lefts: Ints, rights: Ints, log_f: Floats, rule: Rule) -> None:
    """Decide the row maxima of leaves from exactly evaluated candidate pairs."""
    for position in range(lefts.shape[0]):
        k, s, value = lefts[position], rights[position], log_f[position]
        key, odds, operation = pair_key(slots, k, s, value, rule)
        improve(slots, k, s, key, odds, operation, value, True)


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
    slots: Records, matrix: Keys, k: int, others: Ints, key_error: float, keys: Floats
) -> tuple[float, float]:
    """Read a row of the key matrix: a pair's key lies in the row of its younger node.

    Keys were off by up to `key_error` when they were kept. Returns the largest one and how
    wrong they may be now.
    """
    highest = -math.inf
    own_id = slots[k]["id"]
    for position in range(others.shape[0]):
        s = others[position]
        key = np.float64(matrix[s, k] if slots[s]["id"] > own_id else matrix[k, s])
        keys[position] = key
        highest = max(highest, key)
    return highest, key_error + _FLOAT32_ROUNDING * (1.0 + abs(highest))


@compiled
def same_row(stats: Floats, i: int, j: int) -> bool:
    """Whether two groups have the same statistics."""
    for d in range(stats.shape[1]):
        if stats[i, d] != stats[j, d]:
            return False
    return True


@compiled
def list_distinct(stats: Floats, slots: Ints, distinct: Ints, place: Ints) -> int:
    """List slots with different statistics; returns how many.

    `place[p]` says where in `distinct` the equal of `slots[p]` stands. Only the first and the
    previous distinct slot are compared: enough to make a block of duplicates cheap.
    """
    count = 0
    for position in range(slots.shape[0]):
        s = slots[position]
        if count > 0 and same_row(stats, s, distinct[count - 1]):
            place[position] = count - 1
        elif count > 0 and same_row(stats, s, distinct[0]):
            place[position] = 0
        else:
            distinct[count] = s
            place[position] = count
            count += 1
    return count


# ---- many merges in one call ----------------------------------------------------------------


class State(NamedTuple):
    """A search under way: what :class:`distclust.trees.search._Search` calls by these names."""

    slots: Records
    active: Ints
    rule: Rule
    keys: Keys
    history: Records


class Scratch(NamedTuple):
    """Room for one row of the search; it belongs to a call, for several threads search."""

    others: Ints
    keys: Floats
    log_f: Floats
    chosen: Ints
    candidates: Ints
    distinct: Ints
    place: Ints
    lefts: Ints
    exact: Floats


@compiled
def scratch_for(n: int) -> Scratch:
    """Scratch for rows of up to n entries."""
    return Scratch(
        np.empty(n, np.int64),
        np.empty(n),
        np.empty(n),
        np.empty(n, np.int64),
        np.empty(n, np.int64),
        np.empty(n, np.int64),
        np.empty(n, np.int64),
        np.empty(n, np.int64),
        np.empty(n),
    )


@compiled
def merge_groups(state: State, groups: BernoulliGroups, error: float, first: int, stop: int) -> int:
    """Do merges first..stop of a search, step by step as `_Search` does for other scorers.

    `error` is how wrong a fast row of the groups may be. Returns how often a row was looked
    at again.
    """
    n_active = state.history.shape[0] + 1 - first
    scratch = scratch_for(n_active)
    merge, n_rescans = first, 0
    while merge < stop:
        active = state.active[:n_active]
        i, j = next_merge(state.slots, active)
        is_merge = j >= 0
        if is_merge:
            n_others, log_f = apply_merge(
                state.slots, active, i, j, state.rule, scratch.others, state.history, merge
            )
            bernoulli_combine(groups, i, j, log_f)
            merge += 1
            n_active -= 1
            if n_others == 0:  # i is the root
                break
            n_chosen = introduce_group(state, groups, error, i, n_others, scratch)
        else:
            n_rescans += 1
            n_chosen = rescan_group(state, groups, error, active, i, scratch)
        # The only call, with a flag that is no constant: else it is compiled once a value.
        settle_group(state, groups, i, n_chosen, is_merge, scratch)
    return n_rescans


@compiled
def introduce_group(
    state: State, groups: BernoulliGroups, error: float, k: int, n_others: int, scratch: Scratch
) -> int:
    """Choose who may be the best partner of the new node k, or k theirs; returns how many."""
    others, log_f = scratch.others[:n_others], scratch.log_f[:n_others]
    bernoulli_row(groups, k, others, log_f)
    return introduce(
        state.slots, k, others, log_f, error, state.rule, state.keys, scratch.keys, scratch.chosen
    )


@compiled
def rescan_group(
    state: State, groups: BernoulliGroups, error: float, active: Ints, k: int, scratch: Scratch
) -> int:
    """Choose who may be the best partner of a row with an upper bound; returns how many."""
    count = others_of(active, k, scratch.others)
    others, keys = scratch.others[:count], scratch.keys[:count]
    if state.keys.shape[0] > 0:
        highest, doubt = cached_keys(state.slots, state.keys, k, others, error, keys)
    else:
        log_f, doubt = scratch.log_f[:count], error
        bernoulli_row(groups, k, others, log_f)
        highest = row_keys(state.slots, k, others, log_f, state.rule, keys)
    return near_row_maximum(keys, highest - 2.0 * doubt, scratch.chosen)


@compiled
def settle_group(
    state: State, groups: BernoulliGroups, k: int, n_chosen: int, offer: bool, scratch: Scratch
) -> None:
    """Let the exact log marginals of the positions chosen in `scratch` decide."""
    candidates, place = scratch.candidates[:n_chosen], scratch.place[:n_chosen]
    for position in range(n_chosen):
        candidates[position] = scratch.others[scratch.chosen[position]]
    count = list_distinct(groups.stats, candidates, scratch.distinct, place)
    lefts, log_f = scratch.lefts[:count], scratch.exact[:count]
    lefts[:] = k
    bernoulli_exact(groups, lefts, scratch.distinct[:count], log_f)
    settle(state.slots, k, candidates, log_f, place, offer, state.rule)
