"""A store against a dictionary: any sequence of changes shows what the dictionary has.

The model keeps, for every generation, the rows by id in the order in which a store has them.
"""

from __future__ import annotations

import secrets
from typing import Any

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from distclust.errors import ConflictError, InputError, StoreError
from distclust.store.matrix import profile_block
from distclust.store.matrix_store import MatrixStore, create_store, open_store
from tests.corpora import LAYOUTS, blocks_of, content_of, prepared, rows_of, values_of

names = st.integers(0, 14).map(lambda i: f"id {i}" if i % 2 else f"номер {i}")
some_names = st.lists(names, min_size=1, max_size=9)
distinct_names = st.lists(names, min_size=1, max_size=9, unique=True)
salts = st.integers(0, 3)

Rows = dict[Any, Any]


def first_of(ids: list[str], salt: int) -> Rows:
    """Rows of a list with repeated ids: equal ids have equal rows here, so order decides."""
    return rows_of(list(dict.fromkeys(ids)), salt)


def last_of(ids: list[str], salt: int) -> Rows:
    return rows_of(list(dict.fromkeys(ids[::-1]))[::-1], salt)


class Growing(RuleBasedStateMachine):
    """Changes of one store on one side, of a dictionary on the other."""

    @initialize(ids=distinct_names, salt=salts, layout=st.sampled_from(LAYOUTS))
    def create(self, ids: list[str], salt: int, layout: str) -> None:
        self.blocks = blocks_of(4)
        self.blocks.__enter__()
        self.url = f"memory://{secrets.token_hex(8)}"
        self.layout = layout
        self.store = create_store(self.url, prepared(ids, layout, salt), layout=layout)
        self.models: dict[int, Rows] = {1: rows_of(ids, salt)}
        self.handles: dict[int, MatrixStore] = {1: self.store}

    def teardown(self) -> None:
        if hasattr(self, "blocks"):
            self.blocks.__exit__(None, None, None)

    @property
    def model(self) -> Rows:
        """Rows of the present generation."""
        return self.models[self.store.generation]

    def becomes(self, store: MatrixStore, rows: Rows) -> None:
        """Note a change, or that there was none."""
        before = self.store.generation
        assert store.generation == before + (rows != self.model or store.generation > before)
        self.store = store
        self.models[store.generation] = rows
        self.handles[store.generation] = store

    @rule(ids=some_names, salt=salts)
    def append(self, ids: list[str], salt: int) -> None:
        rows = prepared(ids, self.layout, salt)
        if len(set(ids)) < len(ids) or set(ids) & self.model.keys():
            with pytest.raises(InputError, match="every row id once"):
                self.store.append(rows)
        else:
            self.becomes(self.store.append(rows), {**self.model, **rows_of(ids, salt)})

    @rule(ids=some_names, salt=salts)
    def append_what_is_new(self, ids: list[str], salt: int) -> None:
        new = {row: value for row, value in first_of(ids, salt).items() if row not in self.model}
        grown = self.store.append(prepared(ids, self.layout, salt), duplicates="first")
        self.becomes(grown, {**self.model, **new})

    @rule(ids=some_names, salt=salts, keep=st.sampled_from(["first", "last"]))
    def replace(self, ids: list[str], salt: int, keep: Any) -> None:
        new = (first_of if keep == "first" else last_of)(ids, salt)
        kept = {row: value for row, value in self.model.items() if row not in new}
        rows = prepared(ids, self.layout, salt)
        self.becomes(self.store.replace(rows, duplicates=keep), {**kept, **new})

    @rule(ids=some_names, salt=salts)
    def append_the_last(self, ids: list[str], salt: int) -> None:
        new = last_of(ids, salt)
        kept = {row: value for row, value in self.model.items() if row not in new}
        rows = prepared(ids, self.layout, salt)
        self.becomes(self.store.append(rows, duplicates="last"), {**kept, **new})

    @rule(ids=some_names)
    def delete(self, ids: list[str]) -> None:
        if set(ids) - self.model.keys():
            with pytest.raises(InputError, match="no row"):
                self.store.delete(ids)
        left = {row: value for row, value in self.model.items() if row not in ids}
        self.becomes(self.store.delete(ids, missing="ignore"), left)

    @rule()
    def compact(self) -> None:
        self.becomes(self.store.compact(), self.model)
        assert (self.store.info()["deleted"], self.store.info()["segments"] <= 1) == (0, True)

    @rule(data=st.data())
    def rollback(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.models)))
        rows = self.models[number]
        self.becomes(self.store.rollback(number), rows)

    @rule(keep=st.integers(1, 3))
    def gc(self, keep: int) -> None:
        swept = self.store.gc(keep=keep, older_than=0, grace=0)
        numbers = sorted(self.models)
        assert swept.generations == tuple(numbers[:-keep])
        for number in swept.generations:
            del self.models[number], self.handles[number]
            with pytest.raises(StoreError, match="expected generation"):
                open_store(self.url, number)

    @rule()
    def reopen(self) -> None:
        self.store = open_store(self.url)
        self.handles[self.store.generation] = self.store

    @precondition(lambda self: len(self.models) > 1)
    @rule(ids=distinct_names, data=st.data())
    def change_the_past(self, ids: list[str], data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.models)[:-1]))
        with pytest.raises(ConflictError):
            self.handles[number].replace(prepared(ids, self.layout))

    @rule()
    def verify(self) -> None:
        assert self.store.verify() == []

    @rule()
    def look_back(self) -> None:
        for number, rows in self.models.items():
            assert list(content_of(self.handles[number]).items()) == list(rows.items())
        assert [info.number for info in self.store.generations()] == sorted(self.models)

    @rule()
    def profile(self) -> None:
        if self.model:
            values = np.array([np.frombuffer(row) for row, _ in self.model.values()])
            wanted, found = profile_block(values), self.store.profile()
            np.testing.assert_array_equal(found.n_nonzero, wanted.n_nonzero)
            np.testing.assert_array_equal(found.maximum, wanted.maximum)

    @invariant()
    def the_store_shows_the_rows_of_the_model(self) -> None:
        if hasattr(self, "store"):
            assert list(content_of(self.store).items()) == list(self.model.items())
            assert self.store.shape[0] == len(self.model)


TestGrowing = Growing.TestCase
TestGrowing.settings = hypothesis.settings(
    max_examples=25,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=list(hypothesis.HealthCheck),
)


def test_model__rows_follow_from_ids_and_salt() -> None:
    """Otherwise the machine above could not fail."""
    assert rows_of(["a"], 0) != rows_of(["a"], 1)
    assert len({row.tobytes() for row in values_of([f"id {i}" for i in range(15)])}) > 10
