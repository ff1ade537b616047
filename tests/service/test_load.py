"""Many clients at once, as the benchmark has them: nobody is lost, and who is too many is told."""

from __future__ import annotations

import asyncio
from typing import Any

import pandas as pd
import pytest

from benchmarks import sets_load
from distclust.retrieval import BayesianSets
from distclust.service import Settings
from tests.service.conftest import planted, served


@pytest.fixture(scope="module")
def numbered() -> BayesianSets:
    """The corpus with names as the clients know them."""
    rows = planted()
    names = [sets_load.name_of(i) for i in range(len(rows))]
    return BayesianSets().fit(pd.DataFrame(rows.to_numpy(), names, rows.columns)).build_index()


def ask(url: str, n_clients: int, numbered: BayesianSets) -> sets_load.Seen:
    return asyncio.run(sets_load._ask(url, n_clients, 0.5, numbered.n_items_))


def test_load__as_many_as_the_limit_are_all_answered(numbered: BayesianSets) -> None:
    with served(numbered, Settings(limit=32)) as (url, service):
        seen = ask(url, 32, numbered)
    assert seen.failures == []
    assert set(seen.statuses) == {200}
    assert seen.statuses[200] == sum(map(len, seen.seconds.values())) >= 64
    assert service.desk.n_inside == service.metrics.n_in_flight == 0


def test_load__beyond_the_limit_refusals_are_clean(numbered: BayesianSets) -> None:
    with served(numbered, Settings(limit=2)) as (url, service):
        seen = ask(url, 40, numbered)
    assert seen.failures == []
    assert set(seen.statuses) == {200, 503}
    assert seen.unclean == 0
    assert service.desk.n_inside == service.metrics.n_in_flight == 0


def test_load__clients_notice_failures(numbered: BayesianSets) -> None:
    with served(numbered, Settings(limit=8)) as (url, service):

        def broken(asked: Any) -> bytes:
            raise ZeroDivisionError

        service._rank = broken  # type: ignore[method-assign]
        seen = ask(url, 2, numbered)
    assert seen.statuses[500] > 0
    assert len(seen.failures) == seen.statuses[500]
    assert not seen.seconds[sets_load.QUERY]


def test_load__clients_that_leave_free_their_places(numbered: BayesianSets) -> None:
    async def leave(url: str) -> None:
        for _ in range(3):
            waiting = [
                asyncio.create_task(sets_load._ask(url, 1, 60, numbered.n_items_))
                for _ in range(20)
            ]
            await asyncio.sleep(0.2)
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)

    with served(numbered, Settings(limit=20)) as (url, service):
        asyncio.run(leave(url))
        seen = ask(url, 20, numbered)
        assert set(seen.statuses) <= {200, 503}  # the last of those who left may still be inside
        assert ask(url, 20, numbered).failures == []
    assert service.desk.n_inside == service.metrics.n_in_flight == 0
