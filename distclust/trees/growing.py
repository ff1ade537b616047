"""Randomised trees: a sample divides all rows, samples of the parts divide further.

The driver of Algorithms 3.4 and 3.5 of the thesis, as passes over all rows (spec 3). Nodes
of a level share a pass. After each pass the state of the fit is one value, `Growth`, which
is all that a checkpoint holds.

How the number of passes stays small. A pass goes down to the cut of a sample's tree at once,
so all outliers that a sample shows are split off together and not one by one; a node all of
whose rows were sampled is finished on the spot; and after `MAX_PASSES` passes leaves that
would split further stay as they are, with a warning. (With a fixed number of levels a pass,
as published, and on the way to single rows there is no such bound: sampled rows stay on their
sides, so every pass makes the nodes smaller.)
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from distclust.engine import map_ordered, run
from distclust.errors import ConvergenceWarning
from distclust.families import Family, family_from_dict
from distclust.seeding import path_salt
from distclust.store import Matrix
from distclust.store.archive import with_prefix
from distclust.store.codes import Codes
from distclust.trees.capacity import check_fitting
from distclust.trees.data import prepare_family
from distclust.trees.passes import (
    NOWHERE,
    Digests,
    Seen,
    Task,
    look_at_all,
    run_sweep,
    summarise_all,
)
from distclust.trees.routing import ROOT, Router
from distclust.trees.sampling import (
    ALL,
    Candidates,
    Wanted,
    hash_limit,
    join,
    size_at_least,
)
from distclust.trees.splitting import (
    Answer,
    Exact,
    Question,
    Settings,
    examine,
    examine_root,
)

Floats = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]

MAX_PASSES = 16
HELD_OUT = 256  # rows beside the first sample on which filters are compared

_UNKNOWN = -1
_FEW = 0.1  # of all rows; a pass that moves fewer mostly reads


@dataclass(frozen=True, eq=False)
class Growth:
    """The state of a fit after a pass; arrays by node of the router.

    Attributes
    ----------
    family, reason, router
        The resolved family, why it was chosen, and the splits made so far.
    step
        Passes done that moved rows.
    levels
        Depth in the tree, shape (n_nodes,).
    sizes
        Rows in a node, `_UNKNOWN` before the pass that brings them, shape (n_nodes,).
    first_rows
        Number of a node's first row, shape (n_nodes,).
    stats
        Statistics of the nodes, shape (n_nodes, p); zero for divided ones.
    want
        Rows of the sample that will decide about the node; 0: it is a leaf for good.
    expected
        What its size will most probably exceed, shape (n_nodes,).
    exact
        Trees of nodes that were resolved to the rows.
    digests
        What the blocks were when they were first seen.
    compared
        Rows on which filters were compared, and on how many they disagreed.
    n_unresolved
        Leaves that would split further.
    objective
        What sweeps reached before, where clusters came from them.
    """

    family: Family
    reason: str
    router: Router
    step: int
    levels: Indices
    sizes: Indices
    first_rows: Indices
    stats: Floats
    want: Indices
    expected: Floats
    exact: dict[int, Exact]
    digests: Digests
    compared: tuple[int, int] = (0, 0)
    n_unresolved: int = 0
    objective: tuple[float, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether every row is where it stays."""
        return not (self.sizes == _UNKNOWN).any()

    def codes_number(self, step: int) -> int:
        """Return the number of the codes after a pass.

        After sweeps it skips one, which the codes of a rejected last sweep have.
        """
        n_swept = len(self.objective)
        return step + 1 if 0 < n_swept < step else step

    @property
    def new_nodes(self) -> Indices:
        """Nodes that wait for their rows."""
        return np.flatnonzero(self.sizes == _UNKNOWN)


CodesFor = Callable[[int], Codes]


@dataclass(frozen=True, eq=False)
class Ground:
    """What is known before rows move.

    Attributes
    ----------
    family, reason
        Resolved, and why it was chosen.
    candidates
        The first sample and a few rows more, by hash.
    digests
        What each block is; empty where the store answers for that.
    """

    family: Family
    reason: str
    candidates: Candidates
    digests: Digests


def prepare_ground(matrix: Matrix, family: Family | str, settings: Settings, where: str) -> Ground:
    """Look at all rows, draw the first sample and learn the prior."""
    n_rows, n_features = matrix.shape
    # The least that a family needs, before anybody reads; then what it does need.
    check_fitting(matrix, 1 + n_features, settings, where)
    sample_size = settings.sample_size
    want = np.array([sample_size + HELD_OUT])
    limit = ALL if n_rows <= sample_size else hash_limit(int(want[0]), n_rows)
    wanted = Wanted(want, np.array([limit]), np.array([path_salt(settings.seed, "")]))
    seen = look_at_all(matrix, wanted)
    prepared, reason = prepare_family(family, matrix, seen.profile, where)
    check_fitting(matrix, prepared.n_statistics, settings, where)
    assert seen.origin is not None, "the first block tells it"
    summary = summarise_all(matrix, prepared, seen)
    resolved = prepared.resolve(summary, seen.origin, seen.profile, matrix.columns)
    candidates = seen.candidates
    if len(candidates) < min(sample_size, n_rows):  # six standard deviations off
        candidates = _all_candidates(matrix, wanted, resolved, seen)
    return Ground(resolved, reason, candidates, seen.digests)


def plant(matrix: Matrix, family: Family | str, settings: Settings, where: str) -> Growth:
    """Look at all rows, learn the prior, and divide the root by the first sample."""
    ground = prepare_ground(matrix, family, settings, where)
    n_rows, candidates = matrix.shape[0], ground.candidates
    first = np.arange(min(settings.sample_size, len(candidates)))
    question = make_question(ROOT, 0, n_rows, candidates.take(first))
    held_out = candidates.take(np.arange(len(first), len(candidates))).rows
    answered = run(examine_root, question, held_out, ground.family, settings)
    start = Growth(
        family=answered.family,
        reason=ground.reason,
        router=Router.start(settings.seed),
        step=0,
        levels=np.array([0]),
        sizes=np.array([n_rows]),
        first_rows=np.array([0]),
        stats=np.zeros((1, ground.family.n_statistics)),
        want=np.array([0]),
        expected=np.array([float(n_rows)]),
        exact={},
        digests=ground.digests,
        compared=(answered.n_compared, answered.n_disagreeing),
    )
    if answered.answer.share is None and answered.answer.exact is None:
        return _count_root(matrix, start)
    return divide(start, [answered.answer], settings)


def grow(matrix: Matrix, growth: Growth, settings: Settings, codes_for: CodesFor) -> Growth:
    """Do one pass: move rows to the new nodes, then ask samples what becomes of those."""
    step = growth.step + 1
    new = growth.new_nodes
    wanted = _wanted(growth, new, growth.expected)
    task = Task(
        family=growth.family,
        router=growth.router,
        before=codes_for(growth.codes_number(growth.step)) if growth.step else None,
        after=codes_for(growth.codes_number(step)),
        counted=int(new[0]),
        wanted=wanted,
        digests=growth.digests,
    )
    moving = [k for k, split in growth.router.splits.items() if split.children[0] >= new[0]]
    is_brief = int(growth.sizes[moving].sum()) < _FEW * matrix.shape[0]
    gleaned = run_sweep(matrix, task, f"filtering, pass {step}", is_brief=is_brief)
    sizes, first_rows, stats = growth.sizes.copy(), growth.first_rows.copy(), growth.stats.copy()
    sizes[new] = gleaned.stats[:, 0].astype(np.int64)
    first_rows[new], stats[new] = gleaned.first_rows, gleaned.stats
    growth = replace(growth, step=step, sizes=sizes, first_rows=first_rows, stats=stats)
    return ask(matrix, growth, new, gleaned.candidates, settings, codes_for)


def ask(
    matrix: Matrix,
    growth: Growth,
    nodes: Indices,
    candidates: Candidates | None,
    settings: Settings,
    codes_for: CodesFor,
) -> Growth:
    """Let samples say what becomes of nodes that have their rows, and divide them."""
    step, sizes = growth.step, growth.sizes
    asked = nodes[(growth.want[nodes] > 0) & (sizes[nodes] > 1)]
    if len(asked) == 0:
        return growth
    candidates = _completed(matrix, growth, asked, candidates, codes_for)
    questions = [
        make_question(k, int(growth.levels[k]), int(sizes[k]), candidates.of(k))
        for k in asked.tolist()
    ]
    answers = list(
        map_ordered(
            examine,
            questions,
            growth.family,
            settings,
            stage=f"testing leaves, pass {step}",
            is_brief=True,
        )
    )
    if step >= MAX_PASSES and settings.moves_sampled_rows:
        n_left = sum(answer.share is not None for answer in answers)
        answers = [answer for answer in answers if answer.share is None]
        growth = replace(growth, n_unresolved=n_left)
    return divide(growth, answers, settings)


def divide(growth: Growth, answers: list[Answer], settings: Settings) -> Growth:
    """Return the state with the nodes divided that are to be."""
    shares = {answer.node: answer.share for answer in answers if answer.share is not None}
    exact = {answer.node: answer.exact for answer in answers if answer.exact is not None}
    levels, want, expected = [growth.levels], [growth.want], [growth.expected]
    for answer in sorted(answers, key=lambda a: a.node):
        if answer.share is None:
            continue
        levels.append(answer.levels)
        want.append(_wants(answer, settings))
        n_rows, n_sample = int(growth.sizes[answer.node]), int(answer.n_sampled.sum())
        expected.append(
            np.array([size_at_least(n_rows, k, n_sample) for k in answer.n_sampled.tolist()])
        )
    router = growth.router.divided(shares)
    n_new = router.n_nodes - growth.router.n_nodes
    stats = np.concatenate([growth.stats, np.zeros((n_new, growth.stats.shape[1]))])
    stats[list(shares)] = 0.0
    return replace(
        growth,
        router=router,
        levels=np.concatenate(levels),
        sizes=np.concatenate([growth.sizes, np.full(n_new, _UNKNOWN)]),
        first_rows=np.concatenate([growth.first_rows, np.full(n_new, NOWHERE)]),
        stats=stats,
        want=np.concatenate(want),
        expected=np.concatenate(expected),
        exact={**growth.exact, **exact},
    )


def warn_unresolved(growth: Growth, where: str) -> None:
    """Say that the bound on passes left something to be found."""
    if growth.n_unresolved:
        warnings.warn(
            f"{where}: {growth.n_unresolved} leaves would split further after {MAX_PASSES} "
            "passes and stay as they are. Raise sample_size, or fit their rows separately.",
            ConvergenceWarning,
            stacklevel=4,
        )


def _wants(answer: Answer, settings: Settings) -> Indices:
    """Return how many rows the samples of an answer's children have."""
    if settings.resolve == "rows":
        want = np.full(len(answer.levels), settings.sample_size)
    else:
        tests = min(settings.sample_size, settings.check_size)
        want = np.where(answer.is_cluster, tests, settings.sample_size)
        if answer.is_finished:
            want[answer.is_cluster] = 0
    if settings.max_levels is not None:
        want[answer.levels >= settings.max_levels] = 0
    return want.astype(np.int64)


def make_question(node: int, level: int, n_rows: int, sample: Candidates) -> Question:
    """Return the question about a node."""
    # All rows are no sample: they keep their own order, as in an exact fit.
    ordered = sample.in_row_order() if len(sample) == n_rows else sample
    return Question(node, level, n_rows, ordered)


def _wanted(growth: Growth, nodes: Indices, sizes: Floats) -> Wanted:
    """Return what to sample from some of the nodes that are at least so large."""
    n_nodes = growth.router.n_nodes
    want = np.zeros(n_nodes, np.int64)
    want[nodes] = growth.want[nodes]
    limits = np.full(n_nodes, ALL)
    salts = np.zeros(n_nodes, np.uint64)
    for k in np.flatnonzero(want).tolist():
        limits[k] = hash_limit(int(want[k]), float(sizes[k]))
        salts[k] = path_salt(growth.router.seed, growth.router.paths[k])
    return Wanted(want, limits, salts)


def _completed(
    matrix: Matrix,
    growth: Growth,
    asked: Indices,
    candidates: Candidates | None,
    codes_for: CodesFor,
) -> Candidates:
    """Return the samples of nodes, reading again for those that got too few rows.

    Once is enough, now that the sizes are known, unless rows share their ids and thereby
    their hashes; then all hashes are let pass.
    """
    for at_least in (growth.sizes / 2.0, np.zeros(len(growth.sizes))):
        short = _short(growth, asked, candidates)
        if len(short) == 0:
            break
        task = Task(
            family=growth.family,
            router=growth.router,
            before=codes_for(growth.codes_number(growth.step)),
            after=None,
            counted=growth.router.n_nodes,
            wanted=_wanted(growth, short, at_least),
            digests=growth.digests,
        )
        again = run_sweep(matrix, task, "completing samples").candidates
        assert again is not None, "nodes with rows are looked at"
        if candidates is None:
            candidates = again
            continue
        rest = candidates.take(np.flatnonzero(~np.isin(candidates.nodes, short)))
        candidates = join([rest, again]).trimmed(growth.want)
    assert candidates is not None, "nodes with rows have candidates"
    return candidates


def _short(growth: Growth, asked: Indices, candidates: Candidates | None) -> Indices:
    """Return the nodes of which too few rows are known."""
    known = np.zeros(growth.router.n_nodes, np.int64)
    if candidates is not None:
        known += np.bincount(candidates.nodes, minlength=len(known))
    return asked[known[asked] < np.minimum(growth.want[asked], growth.sizes[asked])]


def _all_candidates(matrix: Matrix, wanted: Wanted, family: Family, seen: Seen) -> Candidates:
    router = Router.start(0)
    every = replace(wanted, limits=np.array([ALL]))
    task = Task(family, router, None, None, 1, every, seen.digests)
    found = run_sweep(matrix, task, "completing the sample").candidates
    assert found is not None, "a matrix has rows"
    return found


def _count_root(matrix: Matrix, growth: Growth) -> Growth:
    """Return the state of a fit whose first sample is one cluster: the root is a leaf."""
    nobody = Wanted(np.zeros(1, np.int64), np.array([ALL]), np.zeros(1, np.uint64))
    task = Task(growth.family, growth.router, None, None, ROOT, nobody, growth.digests)
    gleaned = run_sweep(matrix, task, "counting")
    return replace(growth, stats=gleaned.stats)


def leaf_nodes(growth: Growth) -> Indices:
    """Return the nodes where rows end, those without rows left out."""
    return np.flatnonzero(~growth.router.is_split & (growth.sizes > 0))


# ---- saving --------------------------------------------------------------------------------------

_BY_NODE = ("levels", "sizes", "first_rows", "stats", "want", "expected")
_OF_EXACT = ("merges", "positions", "stats")


def to_arrays(growth: Growth) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    """Return the state as JSON values and arrays, for a checkpoint."""
    router_facts, router_arrays = growth.router.to_arrays()
    family_facts, family_arrays = growth.family.to_dict()
    facts = {
        "family": family_facts,
        "router": router_facts,
        "reason": growth.reason,
        "step": growth.step,
        "exact": sorted(growth.exact),
        "compared": list(growth.compared),
        "n_unresolved": growth.n_unresolved,
        "objective": list(growth.objective),
    }
    arrays: dict[str, npt.NDArray[Any]] = {"digests": growth.digests}
    arrays |= {name: getattr(growth, name) for name in _BY_NODE}
    arrays |= {f"router.{name}": array for name, array in router_arrays.items()}
    arrays |= {f"family.{name}": array for name, array in family_arrays.items()}
    for node, tree in growth.exact.items():
        arrays |= {f"exact.{node}.{name}": getattr(tree, name) for name in _OF_EXACT}
    return facts, arrays


def from_arrays(
    facts: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]], where: str
) -> Growth:
    """Inverse of `to_arrays`."""
    family = family_from_dict(facts["family"], with_prefix(arrays, "family."), where)
    router = Router.from_arrays(facts["router"], with_prefix(arrays, "router."), family)
    exact = {
        node: Exact(*(arrays[f"exact.{node}.{name}"] for name in _OF_EXACT))
        for node in facts["exact"]
    }
    return Growth(
        family=family,
        reason=str(facts["reason"]),
        router=router,
        step=int(facts["step"]),
        exact=exact,
        digests=arrays["digests"],
        compared=(int(facts["compared"][0]), int(facts["compared"][1])),
        n_unresolved=int(facts["n_unresolved"]),
        objective=tuple(facts["objective"]),
        **{name: arrays[name] for name in _BY_NODE},
    )
