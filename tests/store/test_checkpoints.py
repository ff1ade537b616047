from __future__ import annotations

import logging

import numpy as np
import pytest

from distclust.errors import ConflictError, InputError, StoreError
from distclust.store.archive import encode_archive
from distclust.store.checkpoints import Checkpoints
from distclust.store.objects import LocalObjects, open_objects
from tests.faults import every_fault


def state(step: int) -> tuple[dict[str, object], dict[str, np.ndarray]]:
    return {"step": step, "bound": float("-inf")}, {"labels": np.arange(step + 3)}


def save(checkpoints: Checkpoints, step: int, incarnation: int = 1) -> None:
    checkpoints.save(step, incarnation, *state(step))


def latest(checkpoints: Checkpoints) -> tuple[int, int]:
    found = checkpoints.latest()
    assert found is not None
    meta, arrays = state(found.step)
    assert found.meta == meta
    np.testing.assert_array_equal(found.arrays["labels"], arrays["labels"])
    return found.incarnation, found.step


def test_checkpoints__nothing_saved(objects):
    assert Checkpoints(objects, "run").latest() is None


def test_save__the_newest_two_are_kept(objects):
    checkpoints = Checkpoints(objects, "run")
    for step in (0, 1, 5, 100):
        save(checkpoints, step)
        assert latest(checkpoints) == (1, step)
    assert len(objects.list()) == 2
    checkpoints.clear()
    assert checkpoints.latest() is None


def test_save__the_same_step_again_replaces(memory_objects):
    checkpoints = Checkpoints(memory_objects, "run")
    checkpoints.save(3, 1, {"first": True}, {})
    save(checkpoints, 3)
    assert latest(checkpoints) == (1, 3)


def test_save__refuses_a_zombie(memory_objects):
    checkpoints = Checkpoints(memory_objects, "run")
    save(checkpoints, 10)
    save(checkpoints, 4, incarnation=2)  # restarted from step 3
    assert latest(checkpoints) == (2, 4)
    with pytest.raises(ConflictError, match="step 4 of incarnation 2"):
        save(checkpoints, 11)
    assert latest(checkpoints) == (2, 4)


def test_save__refuses_to_go_back(memory_objects):
    checkpoints = Checkpoints(memory_objects, "run")
    save(checkpoints, 10)
    with pytest.raises(ConflictError, match="no checkpoint after step 9"):
        save(checkpoints, 9)


def test_save__a_zombie_that_slipped_through_is_not_read_and_is_removed(memory_objects):
    checkpoints, zombie = (Checkpoints(memory_objects, "run") for _ in range(2))
    save(checkpoints, 4, incarnation=2)
    zombie._saved = list  # it looked before its successor saved
    save(zombie, 11)
    assert latest(checkpoints) == (2, 4)
    save(checkpoints, 5, incarnation=2)
    assert [key.split("/")[-1][:8] for key in memory_objects.list()] == ["00000002"] * 2


@pytest.mark.parametrize(("step", "incarnation"), [(-1, 1), (1, -1), (10**12, 1), (1, 10**8)])
def test_save__refuses_numbers_that_would_not_sort(memory_objects, step, incarnation):
    with pytest.raises(InputError):
        Checkpoints(memory_objects, "run").save(step, incarnation, {}, {})


def test_checkpoints__parts_of_a_run_are_apart(memory_objects):
    whole = Checkpoints(memory_objects, "run")
    parts = [Checkpoints(memory_objects, f"run/chain-{i}") for i in range(2)]
    save(whole, 9)
    for step, part in enumerate(parts):
        save(part, step)
    assert [latest(part) for part in (whole, *parts)] == [(1, 9), (1, 0), (1, 1)]
    whole.clear()
    assert [part.latest() for part in parts] == [None, None]


@pytest.mark.parametrize("run", ["../run", "", "a//b", "é"])
def test_checkpoints__refuses_names_that_lead_elsewhere(memory_objects, run):
    with pytest.raises(StoreError):
        Checkpoints(memory_objects, run)


def damage_flip(content: bytes) -> bytes:
    return content[:200] + bytes([content[200] ^ 1]) + content[201:]


@pytest.mark.parametrize("damage", [damage_flip, lambda c: c[:-1], lambda c: b""])
def test_latest__falls_back_and_says_so(memory_objects, caplog, damage):
    checkpoints = Checkpoints(memory_objects, "run")
    save(checkpoints, 1)
    save(checkpoints, 2)
    older, newer = memory_objects.list()
    memory_objects.write(newer, damage(memory_objects.read(newer)))
    with caplog.at_level(logging.WARNING):
        assert latest(checkpoints) == (1, 1)
    assert newer in caplog.text
    save(checkpoints, 3)
    assert latest(checkpoints) == (1, 3)
    assert older not in memory_objects.list()


def test_latest__all_damaged_is_an_error(memory_objects):
    checkpoints = Checkpoints(memory_objects, "run")
    save(checkpoints, 1)
    save(checkpoints, 2)
    for key in memory_objects.list():
        memory_objects.write(key, b"PK")
    with pytest.raises(StoreError, match=r"000002\.checkpoint"):
        checkpoints.latest()


def test_latest__swapped_files_are_noticed(memory_objects):
    checkpoints, other = (Checkpoints(memory_objects, run) for run in ("run", "other"))
    save(checkpoints, 1)
    save(checkpoints, 2)
    save(other, 2)
    older, newer = memory_objects.list("checkpoints/run")
    (foreign,) = memory_objects.list("checkpoints/other")
    memory_objects.write(newer, memory_objects.read(older))
    assert latest(checkpoints) == (1, 1)
    memory_objects.write(newer, memory_objects.read(foreign))
    assert latest(checkpoints) == (1, 1)
    memory_objects.write(newer, encode_archive("model", {}, {}))
    assert latest(checkpoints) == (1, 1)


def test_latest__removed_between_listing_and_reading(memory_objects, monkeypatch):
    checkpoints = Checkpoints(memory_objects, "run")
    save(checkpoints, 7)
    saved = checkpoints._saved
    answers = [[(1, 3), (1, 4)]]
    monkeypatch.setattr(checkpoints, "_saved", lambda: answers.pop() if answers else saved())
    assert latest(checkpoints) == (1, 7)


@pytest.mark.parametrize("fault", ["kill", "disk full", "no permission"])
def test_save__faults_leave_the_old_or_the_new(tmp_path, fault):
    def prepare(place: str) -> None:
        for step in (1, 2):
            save(Checkpoints(LocalObjects(place), "run"), step)

    def check(place: str, is_done: bool) -> None:
        _, step = latest(Checkpoints(LocalObjects(place), "run"))
        assert step in ({3} if is_done else {2, 3})
        assert len(LocalObjects(place).list()) in ({2} if is_done else {2, 3})

    def action(place: str) -> None:
        save(Checkpoints(LocalObjects(place), "run"), 3)

    n_points = every_fault(tmp_path, prepare=prepare, action=action, check=check, fault=fault)
    assert n_points >= 2


def test_save__killed_on_s3(s3_url):
    def check(place: str, is_done: bool) -> None:
        found = Checkpoints(open_objects(place), "run").latest()
        assert (found is not None and found.step == 1) or not is_done

    def action(place: str) -> None:
        save(Checkpoints(open_objects(place), "run"), 1)

    assert every_fault(s3_url, prepare=lambda _: None, action=action, check=check) == 1


def places(checkpoints: Checkpoints) -> list[tuple[int, int]]:
    return checkpoints._saved()


def test_save__the_same_step_of_a_successor_leaves_the_one_before(memory_objects):
    checkpoints = Checkpoints(memory_objects, "run")
    save(checkpoints, 5)
    save(checkpoints, 10)
    save(checkpoints, 10, incarnation=2)
    assert places(checkpoints) == [(1, 5), (2, 10)]


def test_save__a_damaged_one_goes_before_a_whole_one(memory_objects):
    checkpoints = Checkpoints(memory_objects, "run")
    save(checkpoints, 5)
    save(checkpoints, 10)
    memory_objects.write(memory_objects.list()[-1], b"damaged")
    assert latest(checkpoints) == (1, 5)
    save(checkpoints, 10, incarnation=2)  # from 5 on once more
    memory_objects.write(memory_objects.list()[-1], b"damaged again")
    assert latest(checkpoints) == (1, 5)


def test_save__a_later_step_stays_if_there_is_nothing_else(memory_objects):
    checkpoints = Checkpoints(memory_objects, "run")
    save(checkpoints, 9)
    save(checkpoints, 10)
    save(checkpoints, 4, incarnation=2)
    assert places(checkpoints) == [(1, 10), (2, 4)]


def test_save__named_steps_are_kept(memory_objects):
    checkpoints = Checkpoints(memory_objects, "run")
    save(checkpoints, 5)
    for step in (10, 11, 12):
        checkpoints.save(step, 1, *state(step), keep=[5])
        assert places(checkpoints) == [(1, 5), (1, step)]
    checkpoints.save(12, 2, *state(12), keep=[5, 12])
    assert places(checkpoints) == [(1, 5), (2, 12)]
    checkpoints.save(13, 2, *state(13), keep=[77])  # not there: the one before
    assert places(checkpoints) == [(2, 12), (2, 13)]


def test_newest_first__what_is_damaged_is_named(memory_objects):
    checkpoints = Checkpoints(memory_objects, "run")
    save(checkpoints, 1)
    save(checkpoints, 2)
    newest = memory_objects.list()[-1]
    memory_objects.write(newest, b"damaged")
    problems: list[StoreError] = []
    (found,) = checkpoints.newest_first(problems)
    assert found.step == 1
    (problem,) = problems
    assert newest in str(problem)
