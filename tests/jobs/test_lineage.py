"""What became of clusters, against counting row by row."""

from __future__ import annotations

import json
import secrets
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distclust import ingest
from distclust.errors import InputError
from distclust.jobs import lineage, overlaps
from distclust.jobs.lineage import KINDS, Lineage, trace, trace_clusters
from distclust.jobs.overlaps import ABSENT, Labelled, Overlaps, count_overlaps
from distclust.store import row_labels
from distclust.store.matrix_store import MatrixStore, open_store
from distclust.store.results import ResultsStore
from distclust.store.row_labels import LabelsSpec, StoredLabels, adopt_labels, write_values_chunk
from tests import small_blocks

Labels = dict[int, int]  # by row id


@pytest.fixture(autouse=True)
def small_parts(monkeypatch):
    monkeypatch.setattr(row_labels, "LABEL_CHUNK", 10)
    monkeypatch.setattr(overlaps, "RANGE", 7)
    monkeypatch.setattr(overlaps, "PART_ROWS", 64)
    small_blocks.shrink(monkeypatch)


class Place:
    """A store of rows with numbers for ids, and labels of them."""

    def __init__(self, folder) -> None:
        self.rows, self.labels = str(folder / "rows.zarr"), str(folder / "labels")

    def bring(self, ids: Iterable[int], how: Any = "append") -> MatrixStore:
        numbers = np.array(list(ids), np.int64)
        return ingest(iter([(numbers, np.outer(numbers, [1.0, 0.5]))]), self.rows, how=how)

    def ids(self) -> list[int]:
        return open_store(self.rows).matrix().row_ids.tolist()

    def label(self, label_of: Labels, n_labels: int, *, told: bool = True) -> Labelled:
        """Publish labels of the live rows, with their counts if `told`."""
        matrix = open_store(self.rows).matrix()
        values = np.array([label_of[i] for i in matrix.row_ids.tolist()], np.int64)
        store = ResultsStore(self.labels)
        with store.begin("labels", {"token": secrets.token_hex(4)}, 0, "rows") as draft:
            spec, target = LabelsSpec(len(values), n_labels), draft.place()
            parts = [values[slice(*spec.chunk_bounds(i))] for i in range(spec.n_chunks)]
            entries = [write_values_chunk(i, target, spec, part) for i, part in enumerate(parts)]
            adopt_labels(draft, spec, enumerate(entries))
            counts = np.bincount(values, minlength=n_labels).tolist()
            version = draft.publish({"counts": counts} if told else {})
        return Labelled(StoredLabels(self.labels, version.id), matrix)


@pytest.fixture
def place(tmp_path) -> Place:
    return Place(tmp_path)


def drawn(rng, ids: Iterable[int], n_labels: int) -> Labels:
    return {i: int(rng.integers(n_labels)) for i in ids}


def table(before: Labels, after: Labels) -> dict[tuple[int, int], int]:
    """Count pairs row by row."""
    ids = before.keys() | after.keys()
    return dict(Counter((before.get(i, ABSENT), after.get(i, ABSENT)) for i in ids))


def as_table(found: Overlaps) -> dict[tuple[int, int], int]:
    pairs = zip(found.before.tolist(), found.after.tolist(), strict=True)
    return dict(zip(pairs, found.rows.tolist(), strict=True))


def of_table(pairs: dict[tuple[int, int], int]) -> Overlaps:
    ordered = sorted(pairs.items())
    before, after = (np.array([pair[side] for pair, _ in ordered], np.int64) for side in (0, 1))
    return Overlaps(before, after, np.array([rows for _, rows in ordered], np.int64))


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize("n_deleted", [0, 1, 40])
def test_count_overlaps__rows_that_came_and_left(place, rng, told, n_deleted):
    place.bring(range(155), "create").delete([3, 4, 80])
    first = drawn(rng, place.ids(), 4)
    before = place.label(first, 5, told=told)
    place.bring(range(155, 180))
    gone = rng.choice(sorted(first), n_deleted, replace=False).tolist()
    open_store(place.rows).delete(gone)
    # Most labels stay as they are, in whole chunks.
    second = drawn(rng, place.ids(), 6) | {i: first[i] for i in place.ids() if i < 100}
    after = place.label(second, 6, told=told)
    found = count_overlaps(before, after)
    assert found.matching == "positions"
    assert as_table(found) == table(first, second)
    assert as_table(count_overlaps(after, before)) == table(second, first)


@pytest.mark.parametrize("deleted", [[9], [10], [0, 5, 9], [8, 9, 10, 11, 21]])
def test_count_overlaps__rows_at_the_border_of_a_shared_chunk_count_once(place, deleted):
    place.bring(range(45), "create").delete(deleted)
    first = {i: i % 3 for i in place.ids()}
    before = place.label(first, 3, told=False)
    chunk = set(place.ids()[10:20])
    second = {i: (label + (i in chunk)) % 3 for i, label in first.items()}
    after = place.label(second, 3, told=False)
    assert before.labels.shares_chunk(after.labels, 0)
    assert not before.labels.shares_chunk(after.labels, 1)
    assert as_table(count_overlaps(before, after)) == table(first, second)


def test_count_overlaps__many_labels(place, rng, monkeypatch):
    monkeypatch.setattr(overlaps, "_FEW_CODES", 10)
    place.bring(range(90), "create")
    first, second = drawn(rng, range(90), 70), drawn(rng, range(90), 300)
    found = count_overlaps(place.label(first, 70), place.label(second, 300))
    assert as_table(found) == table(first, second)


@pytest.mark.parametrize("told", [True, False])
def test_count_overlaps__shared_chunks_are_read_once_or_not_at_all(place, monkeypatch, told):
    place.bring(range(95), "create")
    labels = {i: i % 3 for i in range(130)}
    before = place.label(labels, 3, told=told)
    place.bring(range(95, 120))
    after = place.label(labels, 3, told=told)
    read: list[tuple[bool, int]] = []
    ranges: list[tuple[int, int]] = []

    class Counting(StoredLabels):
        def read_chunk(self, index):
            read.append((self.version_id == before.labels.version_id, index))
            return super().read_chunk(index)

        def read(self, start, stop):
            ranges.append((start, stop))
            return super().read(start, stop)

    sides = [
        Labelled(Counting(place.labels, each.labels.version_id), each.matrix)
        for each in (before, after)
    ]
    shared = {i: labels[i] for i in range(95)}, {i: labels[i] for i in range(120)}
    assert as_table(count_overlaps(*sides)) == table(*shared)
    assert sorted(read) == ([] if told else [(True, i) for i in range(9)])
    assert min(start for start, _ in ranges) == 90


def test_count_overlaps__after_a_compaction_by_keys(place, rng):
    place.bring(range(150), "create").delete(range(20, 50))
    first = drawn(rng, place.ids(), 4)
    before = place.label(first, 4)
    place.bring(range(150, 300))
    open_store(place.rows).delete(range(60, 75))
    open_store(place.rows).compact()
    second = drawn(rng, place.ids(), 5)
    after = place.label(second, 5)
    found = count_overlaps(before, after)
    assert found.matching == "keys"
    assert as_table(found) == table(first, second)


def test_count_overlaps__replaced_rows_left_and_came(place):
    place.bring(range(20), "create")
    before = place.label(dict.fromkeys(range(20), 0), 1)
    place.bring(range(5), "replace")
    after = place.label(dict.fromkeys(range(20), 0), 1)
    assert as_table(count_overlaps(before, after)) == {(0, 0): 15, (0, ABSENT): 5, (ABSENT, 0): 5}


def test_count_overlaps__after_a_rollback(place, rng):
    place.bring(range(60), "create")
    place.bring(range(60, 90))
    first = drawn(rng, range(90), 3)
    before = place.label(first, 3)
    open_store(place.rows).rollback(1)
    second = {i: first[i] for i in range(60)}
    found = count_overlaps(before, place.label(second, 3))
    assert found.matching == "positions"
    assert as_table(found) == table(first, second)


def test_count_overlaps__all_rows_left(place, rng):
    place.bring(range(30), "create")
    first = drawn(rng, range(30), 3)
    before = place.label(first, 3)
    open_store(place.rows).delete(range(30))
    after = place.label({}, 0)
    found = trace_clusters(before, after)
    assert (found.n_after, found.stayed, found.left) == (0, 0, 30)
    assert {change.kind for change in found.changes} == {"gone"}
    assert trace_clusters(after, after).changes == ()


@pytest.mark.cluster
def test_count_overlaps__on_a_cluster(place, rng, on_client):
    place.bring(range(95), "create")
    first = drawn(rng, range(95), 4)
    before = place.label(first, 4)
    place.bring(range(95, 140))
    second = first | drawn(rng, range(80, 140), 4)
    after = place.label(second, 4)
    assert as_table(count_overlaps(before, after)) == table(first, second)


def test_labelled__labels_of_other_rows_are_refused(place):
    place.bring(range(30), "create")
    side = place.label(dict.fromkeys(range(30), 0), 1)
    place.bring(range(30, 40))
    with pytest.raises(InputError, match=r"expected 40, one a row of .*, got 30"):
        Labelled(side.labels, open_store(place.rows).matrix())


# The rule


def by_hand(pairs: dict[tuple[int, int], int]) -> set[tuple[str, frozenset[int], frozenset[int]]]:
    """Group clusters by the rule as it is written, pair by pair."""
    shared = {pair: n for pair, n in pairs.items() if ABSENT not in pair and n}
    old, new, old_stayed, new_stayed = Counter(), Counter(), Counter(), Counter()
    for (i, j), n in pairs.items():
        old[i] += n
        new[j] += n
        if (i, j) in shared:
            old_stayed[i] += n
            new_stayed[j] += n
    groups = [{("old", i)} for i in old if i != ABSENT and old[i]]
    groups += [{("new", j)} for j in new if j != ABSENT and new[j]]
    for (i, j), n in shared.items():
        stays = n > old_stayed[i] / 2 and n > new_stayed[j] / 2
        if n > old[i] / 2 or n > new[j] / 2 or stays:
            (a,) = (group for group in groups if ("old", i) in group)
            (b,) = (group for group in groups if ("new", j) in group)
            if a is not b:
                groups.remove(b)
                a |= b
    found = set()
    for group in groups:
        sides = [frozenset(k for side, k in group if side == name) for name in ("old", "new")]
        sizes = tuple(min(len(side), 2) for side in sides)
        kind = {
            (0, 1): "born",
            (1, 0): "gone",
            (1, 1): "continued",
            (1, 2): "split",
            (2, 1): "merged",
            (2, 2): "regrouped",
        }[sizes]
        found.add((kind, *sides))
    return found


def as_groups(found: Lineage) -> set[tuple[str, frozenset[int], frozenset[int]]]:
    return {
        (c.kind, frozenset(x.label for x in c.before), frozenset(x.label for x in c.after))
        for c in found.changes
    }


cells = st.tuples(st.integers(-1, 4), st.integers(-1, 4)).filter(lambda pair: pair != (-1, -1))


@given(st.dictionaries(cells, st.integers(1, 9), max_size=16))
def test_trace__every_cluster_once_by_the_rule(pairs):
    found = trace(of_table(pairs))
    assert as_groups(found) == by_hand(pairs)
    for side in ("before", "after"):
        labels = [each.label for change in found.changes for each in getattr(change, side)]
        assert len(labels) == len(set(labels)) == getattr(found, f"n_{side}")
    assert found.stayed + found.left + found.came == sum(pairs.values())
    for change in found.changes:
        for flow in change.flows:
            assert pairs[flow.before, flow.after] == flow.rows
    told = found.to_json()
    assert json.loads(json.dumps(told)) == told
    assert told["continued"] + sum(len(told[kind]) for kind in KINDS[1:]) == len(found.changes)


def planted() -> Iterator[Any]:
    yield pytest.param("continued", {(0, 0): 90, (0, ABSENT): 5, (ABSENT, 0): 20}, id="grown")
    yield pytest.param("continued", {(0, 3): 40, (0, ABSENT): 60, (ABSENT, 3): 60}, id="renewed")
    yield pytest.param("born", {(ABSENT, 1): 30, (0, 1): 1, (0, 0): 99}, id="of new rows")
    yield pytest.param(
        "born", {(0, 0): 90, (1, 1): 90, (2, 2): 90, (0, 3): 10, (1, 3): 10, (2, 3): 10}, id="chips"
    )
    yield pytest.param("gone", {(0, ABSENT): 30, (1, 1): 9}, id="deleted")
    yield pytest.param(
        "gone",
        {(0, 0): 90, (1, 1): 90, (2, 2): 90, (3, 0): 10, (3, 1): 10, (3, 2): 10},
        id="spread",
    )
    yield pytest.param("split", {(0, 0): 40, (0, 1): 30, (0, 2): 30}, id="in three")
    yield pytest.param("split", {(0, 0): 97, (0, 1): 3}, id="off")
    yield pytest.param("merged", {(0, 0): 40, (1, 0): 30, (2, 0): 30}, id="three")
    yield pytest.param("merged", {(0, 0): 97, (1, 0): 3}, id="into a large one")
    yield pytest.param("regrouped", {(0, 0): 60, (0, 1): 40, (1, 1): 25}, id="a part to another")


@pytest.mark.parametrize(("kind", "pairs"), list(planted()))
def test_trace__planted_changes(kind, pairs):
    found = trace(of_table(pairs))
    others = {change.kind for change in found.changes} - {"continued", kind}
    assert len(found.of(kind)) == 1
    assert not others


def test_trace__the_largest_come_first_and_records_are_bounded(monkeypatch):
    monkeypatch.setattr(lineage, "MOST_CHANGES", 2)
    monkeypatch.setattr(lineage, "MOST_CLUSTERS", 3)
    born = {(ABSENT, j): 10 + j for j in range(5)}
    told = trace(of_table(born | {(9, 10 + j): 5 + j for j in range(6)})).to_json()
    assert told["counts"]["born"] == 5
    assert [change["after"][0]["cluster"] for change in told["born"]] == [4, 3]
    (split,) = told["split"]
    assert split["n_after"] == 6
    assert [each["rows"] for each in split["after"]] == [10, 9, 8]
    assert [flow["after"] for flow in split["flows"]] == [15, 14, 13]
