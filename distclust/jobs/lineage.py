"""What became of clusters: which continued, were born, split, merged, regrouped or are gone.

Two clusters, one before and one after, are *linked* if they have rows in common and

- most of the earlier one, as it was, went to the later one; or
- most of the later one, as it is, came from the earlier one; or
- both, among the rows that are there before and after: a cluster whose rows are renewed stays
  itself.

"Most" is more than half. So a cluster has at most one heir and one origin by each rule, links
form trees, and every cluster is in exactly one group of linked clusters, which is a change:

    before -> after
    0         1        born
    1         0        gone
    1         1        continued
    1         several  split
    several   1        merged
    several   several  regrouped: some split off parts that merged with others

A cluster whose rows all scattered among larger ones is gone; a cluster made of new rows, or of
chips of several clusters that go on without them, is born. Labels without rows are no clusters.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.jobs.overlaps import ABSENT, Labelled, Matching, Overlaps, count_overlaps

Indices: TypeAlias = npt.NDArray[np.int64]
Kind: TypeAlias = Literal["continued", "born", "split", "merged", "regrouped", "gone"]

KINDS: tuple[Kind, ...] = ("continued", "born", "split", "merged", "regrouped", "gone")
MOST_CHANGES = 50  # of a kind in a record, the largest
MOST_CLUSTERS = 20  # of a side of a change in a record, the largest


@dataclass(frozen=True)
class Cluster:
    """A cluster of one side: its label there, and its rows."""

    label: int
    rows: int


@dataclass(frozen=True)
class Flow:
    """Rows that a cluster before and a cluster after have in common."""

    before: int
    after: int
    rows: int


@dataclass(frozen=True)
class Change:
    """Linked clusters and the rows that went from one to another.

    Attributes
    ----------
    kind
        What happened.
    before, after
        The clusters of either side, the largest first.
    flows
        Rows between them, the most first; rows that came, left or went elsewhere are not here.
    """

    kind: Kind
    before: tuple[Cluster, ...]
    after: tuple[Cluster, ...]
    flows: tuple[Flow, ...]

    @property
    def rows(self) -> int:
        """Rows of the clusters after, or before if there are none: how much it matters."""
        return sum(cluster.rows for cluster in self.after or self.before)

    def to_json(self) -> dict[str, Any]:
        """Return the change as JSON values; of very many clusters the largest."""
        before, after = self.before[:MOST_CLUSTERS], self.after[:MOST_CLUSTERS]
        labels = {each.label for each in before}, {each.label for each in after}
        return {
            "n_before": len(self.before),
            "n_after": len(self.after),
            "before": [{"cluster": each.label, "rows": each.rows} for each in before],
            "after": [{"cluster": each.label, "rows": each.rows} for each in after],
            "flows": [
                {"before": flow.before, "after": flow.after, "rows": flow.rows}
                for flow in self.flows
                if flow.before in labels[0] and flow.after in labels[1]
            ],
        }


@dataclass(frozen=True)
class Lineage:
    """What became of all clusters.

    Attributes
    ----------
    changes
        By kind and then by rows, the most first; every cluster is in exactly one.
    n_before, n_after
        Numbers of clusters.
    stayed, left, came
        Rows that are on both sides, before only and after only.
    matching
        How rows were matched.
    """

    changes: tuple[Change, ...]
    n_before: int
    n_after: int
    stayed: int
    left: int
    came: int
    matching: Matching

    def of(self, kind: Kind) -> tuple[Change, ...]:
        """Return the changes of a kind."""
        return tuple(change for change in self.changes if change.kind == kind)

    def to_json(self) -> dict[str, Any]:
        """Return what a run's record says about the clusters of a model."""
        by_kind = {kind: self.of(kind) for kind in KINDS}
        return {
            "before": self.n_before,
            "after": self.n_after,
            "rows": {"stayed": self.stayed, "left": self.left, "came": self.came},
            "matching": self.matching,
            "counts": {kind: len(changes) for kind, changes in by_kind.items()},
            "continued": len(by_kind["continued"]),
            **{
                kind: [change.to_json() for change in changes[:MOST_CHANGES]]
                for kind, changes in by_kind.items()
                if kind != "continued"
            },
        }


def trace_clusters(before: Labelled, after: Labelled) -> Lineage:
    """Return what became of the clusters of one labelled generation in another."""
    return trace(count_overlaps(before, after))


def trace(overlaps: Overlaps) -> Lineage:
    """Return what became of clusters, from the rows that each two have in common."""
    old, new, rows = overlaps.before, overlaps.after, overlaps.rows
    is_shared = (old != ABSENT) & (new != ABSENT)
    names = np.unique(old[old != ABSENT]), np.unique(new[new != ABSENT])
    sizes = _sums(old, rows, names[0]), _sums(new, rows, names[1])
    i = np.searchsorted(names[0], old[is_shared])
    j = np.searchsorted(names[1], new[is_shared])
    shared = rows[is_shared]
    group_of_old, group_of_new = _groups(i, j, shared, sizes)
    members = _Members(names, sizes, (group_of_old, group_of_new))
    changes = members.changes(i, j, shared)
    return Lineage(
        tuple(sorted(changes, key=_order)),
        n_before=len(names[0]),
        n_after=len(names[1]),
        stayed=int(shared.sum()),
        left=int(rows[new == ABSENT].sum()),
        came=int(rows[old == ABSENT].sum()),
        matching=overlaps.matching,
    )


def _order(change: Change) -> tuple[int, int, int]:
    first = (change.after or change.before)[0]
    return KINDS.index(change.kind), -change.rows, first.label


def _sums(labels: Indices, rows: Indices, names: Indices) -> Indices:
    """Rows of every named label, shape (names,)."""
    is_named = labels != ABSENT
    totals = np.zeros(len(names), np.int64)
    np.add.at(totals, np.searchsorted(names, labels[is_named]), rows[is_named])
    return totals


def _groups(
    i: Indices, j: Indices, shared: Indices, sizes: tuple[Indices, Indices]
) -> tuple[Indices, Indices]:
    """Return the group of linked clusters that each cluster of either side is in."""
    import scipy.sparse
    import scipy.sparse.csgraph

    n_old, n_new = map(len, sizes)
    stayed_old = np.bincount(i, weights=shared, minlength=n_old)
    stayed_new = np.bincount(j, weights=shared, minlength=n_new)
    is_most = (2 * shared > stayed_old[i]) & (2 * shared > stayed_new[j])
    is_link = (2 * shared > sizes[0][i]) | (2 * shared > sizes[1][j]) | is_most
    edges = np.ones(int(is_link.sum()), np.int8), (i[is_link], n_old + j[is_link])
    graph = scipy.sparse.coo_array(edges, shape=(n_old + n_new,) * 2)
    _, groups = scipy.sparse.csgraph.connected_components(graph, directed=False)
    return groups[:n_old].astype(np.int64), groups[n_old:].astype(np.int64)


@dataclass(frozen=True, eq=False)
class _Members:
    """Clusters of both sides: labels, rows and groups."""

    names: tuple[Indices, Indices]
    sizes: tuple[Indices, Indices]
    groups: tuple[Indices, Indices]

    def changes(self, i: Indices, j: Indices, shared: Indices) -> list[Change]:
        """Return every group as a change; `shared` rows go from cluster i to cluster j."""
        n_groups = 1 + max(int(each.max(initial=-1)) for each in self.groups)
        sides: list[tuple[list[Cluster], list[Cluster]]] = [([], []) for _ in range(n_groups)]
        for side in (0, 1):
            rows = zip(self.names[side], self.sizes[side], self.groups[side], strict=True)
            for label, size, group in rows:
                sides[group][side].append(Cluster(int(label), int(size)))
        flows: list[list[Flow]] = [[] for _ in range(n_groups)]
        inside = np.flatnonzero(self.groups[0][i] == self.groups[1][j])
        for k in inside:
            flow = Flow(int(self.names[0][i[k]]), int(self.names[1][j[k]]), int(shared[k]))
            flows[self.groups[0][i[k]]].append(flow)
        return [
            Change(
                _kind(len(before), len(after)),
                tuple(sorted(before, key=_largest_first)),
                tuple(sorted(after, key=_largest_first)),
                tuple(sorted(between, key=operator.attrgetter("rows"), reverse=True)),
            )
            for (before, after), between in zip(sides, flows, strict=True)
        ]


def _largest_first(cluster: Cluster) -> tuple[int, int]:
    return -cluster.rows, cluster.label


def _kind(n_before: int, n_after: int) -> Kind:
    if n_before == 0:
        return "born"
    if n_after == 0:
        return "gone"
    if n_before == 1:
        return "continued" if n_after == 1 else "split"
    return "merged" if n_after == 1 else "regrouped"
