from __future__ import annotations

import errno
import json
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import hypothesis.strategies as st
import pytest
from hypothesis import given

from distclust import __version__
from distclust.errors import ConflictError, StoreError
from distclust.store.ledger import Ledger
from distclust.store.objects import LocalObjects, MissingObject, open_objects
from distclust.store.sealed import FORMAT_VERSION, digest_of, plain, seal, unseal
from tests.faults import every_fault

PREFIX = ".distclust/generations"


@pytest.fixture
def ledger(memory_objects):
    return Ledger(memory_objects, PREFIX)


def key_of(number: int) -> str:
    return f"{PREFIX}/{number:08d}.json"


def test_ledger__an_empty_one_has_no_head(objects):
    ledger = Ledger(objects, PREFIX)
    assert ledger.numbers() == []
    assert ledger.head() is None
    with pytest.raises(MissingObject):
        ledger.read(1)


def test_append__numbers_go_up_and_the_highest_is_the_head(objects):
    ledger = Ledger(objects, PREFIX)
    for number in range(12):
        record = ledger.append({"n": number, "tuple": (1, 2), 7: None}, after=number)
        assert record.number == number + 1
        assert ledger.head() == record == ledger.read(number + 1)
    assert ledger.numbers() == list(range(1, 13))
    assert ledger.read(3).content == {"n": 2, "tuple": [1, 2], "7": None}


def test_append__who_comes_second_gets_a_conflict(objects):
    ledger = Ledger(objects, PREFIX)
    ledger.append({"who": "first"}, 0)
    for after in (0, 1):
        kept = ledger.append({"who": "kept"}, 1) if after else ledger.head()
        with pytest.raises(ConflictError, match=f"after {after}, got a change by another"):
            ledger.append({"who": "late"}, after)
        assert ledger.head() == kept


def test_append__cannot_leave_a_gap(ledger):
    with pytest.raises(ConflictError):
        ledger.append({}, 3)
    assert ledger.numbers() == []


def test_append__one_of_many_threads_succeeds(objects):
    ledger = Ledger(objects, PREFIX)
    ledger.append({}, 0)
    start = threading.Barrier(6)

    def attempt(i: int) -> bool:
        start.wait()
        try:
            ledger.append({"who": i}, 1)
        except ConflictError:
            return False
        return True

    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(attempt, range(6)))
    assert sum(won) == 1
    assert ledger.head().content == {"who": won.index(True)}


def test_append__equal_contents_are_told_apart(ledger):
    ledger.append({"same": 1}, 0)
    with pytest.raises(ConflictError):
        ledger.append({"same": 1}, 0)


def test_append__a_put_whose_answer_was_lost_is_recognised(s3_url, monkeypatch):
    objects = open_objects(s3_url)
    driver, _ = objects._driver()
    put = driver.pipe_file

    def lose_the_answer(*arguments: object, **options: object) -> None:
        put(*arguments, **options)
        raise OSError(errno.EIO, "connection reset")

    monkeypatch.setattr(driver, "pipe_file", lose_the_answer)
    record = Ledger(objects, PREFIX).append({"a": 1}, 0)
    assert Ledger(objects, PREFIX).head() == record


def test_append__a_writer_that_slept_cannot_reuse_a_dropped_number(ledger, monkeypatch):
    ledger.append({"who": "ground"}, 0)
    create = ledger.objects.create

    def sleep_then_create(*arguments: object) -> bool:
        monkeypatch.setattr(ledger.objects, "create", create)
        for number in range(1, 5):  # meanwhile others publish and drop
            ledger.append({"who": "others"}, number)
        ledger.drop([1, 2])
        return create(*arguments)

    monkeypatch.setattr(ledger.objects, "create", sleep_then_create)
    with pytest.raises(ConflictError):
        ledger.append({"who": "sleeper"}, 1)
    assert ledger.numbers() == [3, 4, 5]
    assert ledger.head().content == {"who": "others"}


def test_append__being_built_upon_at_once_is_no_conflict(ledger, monkeypatch):
    create = ledger.objects.create

    def create_and_be_followed(*arguments: object) -> bool:
        monkeypatch.setattr(ledger.objects, "create", create)
        created = create(*arguments)
        ledger.append({"who": "follower"}, 1)
        return created

    monkeypatch.setattr(ledger.objects, "create", create_and_be_followed)
    assert ledger.append({"who": "quick"}, 0).number == 1
    assert ledger.numbers() == [1, 2]


def test_append__after_a_dropped_number_is_a_conflict(ledger):
    for number in range(4):
        ledger.append({}, number)
    ledger.drop([1, 2, 3])
    for after in (0, 1, 2, 3):
        with pytest.raises(ConflictError):
            ledger.append({}, after)
    assert ledger.numbers() == [4]
    assert ledger.append({}, 4).number == 5


def test_drop__never_takes_the_head(objects):
    ledger = Ledger(objects, PREFIX)
    for number in range(3):
        ledger.append({}, number)
    ledger.drop([1, 3, 99])
    assert ledger.numbers() == [2, 3]
    ledger.drop(range(10))
    assert ledger.numbers() == [3]


def test_is_head__tells_the_present_from_past_and_future(ledger):
    assert not ledger.is_head(1)
    ledger.append({}, 0)
    assert ledger.is_head(1)
    ledger.append({}, 1)
    assert [ledger.is_head(number) for number in (1, 2, 3)] == [False, True, False]


def test_head__dropped_between_listing_and_reading(ledger, monkeypatch):
    for number in range(2):
        ledger.append({"n": number}, number)
    shown = [[1], [1, 2]]
    monkeypatch.setattr(ledger, "numbers", lambda: shown.pop(0) if len(shown) > 1 else shown[0])
    ledger.objects.delete(key_of(1))
    assert ledger.head().number == 2


def test_head__a_listing_that_lies_is_an_error_not_a_loop(ledger, monkeypatch):
    monkeypatch.setattr(ledger, "numbers", lambda: [7])
    with pytest.raises(MissingObject):
        ledger.head()


def test_ledger__other_files_are_not_records(ledger):
    ledger.append({}, 0)
    for name in ["1.json", "000000002.json", "00000003.txt", "folder/00000004.json"]:
        ledger.objects.write(f"{PREFIX}/{name}", b"x")
    assert ledger.numbers() == [1]


def test_ledger__pickles(memory_objects):
    ledger = pickle.loads(pickle.dumps(Ledger(memory_objects, PREFIX)))
    assert ledger.append({}, 0).number == 1


def test_read__refuses_every_truncation_and_every_flipped_byte(ledger):
    ledger.append({"a": 1}, 0)
    whole = ledger.objects.read(key_of(1))
    record = ledger.read(1)
    for length in range(len(whole)):
        ledger.objects.write(key_of(1), whole[:length])
        with pytest.raises(StoreError, match=r"00000001\.json"):
            ledger.read(1)
    for position in range(len(whole)):
        altered = bytearray(whole)
        altered[position] ^= 0x41
        ledger.objects.write(key_of(1), altered)
        try:
            found = ledger.read(1)
        except StoreError:
            continue
        assert found == record  # white space between values


def test_read__refuses_a_record_of_another_number(ledger):
    ledger.append({"a": 1}, 0)
    ledger.append({"a": 2}, 1)
    ledger.objects.write(key_of(2), ledger.objects.read(key_of(1)))
    with pytest.raises(StoreError, match="expected record 2, got record 1, which belongs"):
        ledger.head()


def test_read__refuses_a_record_without_content(ledger):
    forged = seal("distclust-ledger", {"number": 1, "previous": "", "content": [1]})
    ledger.objects.write(key_of(1), forged)
    with pytest.raises(StoreError):
        ledger.read(1)


@pytest.mark.parametrize("fault", ["kill", "disk full", "no permission"])
def test_append__faults_leave_the_old_or_the_new(tmp_path, fault):
    def prepare(place: str) -> None:
        Ledger(LocalObjects(place), PREFIX).append({"n": 1}, 0)

    def action(place: str) -> None:
        ledger = Ledger(LocalObjects(place), PREFIX)
        if ledger.head().number == 1:
            ledger.append({"n": 2}, 1)

    def check(place: str, is_done: bool) -> None:
        head = Ledger(LocalObjects(place), PREFIX).head()
        assert head.content == {"n": head.number}
        assert head.number in ({2} if is_done else {1, 2})

    assert every_fault(tmp_path, prepare=prepare, action=action, check=check, fault=fault) >= 2


# Sealed documents.

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text() | st.integers(), JSON))
def test_seal__content_comes_back(content):
    read = unseal(seal("form", content), "form", "here")
    assert digest_of(read) == digest_of(plain(content))


def forge(**changes: object) -> bytes:
    values = json.loads(seal("form", {"a": 1}))
    values |= changes
    values["digest"] = digest_of({name: values[name] for name in values if name != "digest"})
    return json.dumps(values).encode()


def test_unseal__refuses_a_newer_format_and_names_the_writer():
    assert unseal(forge(), "form", "here") == {"a": 1}  # so the refusals are for their reasons
    newer = forge(format_version=FORMAT_VERSION + 1, writer="9.9")
    with pytest.raises(StoreError, match=r"here: .*written by distclust 9\.9. Upgrade distclust"):
        unseal(newer, "form", "here")


@pytest.mark.parametrize(
    "document",
    [
        forge(format="other"),
        forge(format_version="1"),
        forge(format_version=0),
        forge(content=[1]),
        forge(more=1),
        seal("form", {"a": 1}).replace(b'"a": 1', b'"a": 2'),
        b"",
        b"[]",
        b"7",
        b"null",
        b"{}",
        b"\xff",
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
)
def test_unseal__refuses_other_content(document):
    with pytest.raises(StoreError, match="here: expected a complete form file"):
        unseal(document, "form", "here")


def test_seal__says_who_wrote_it():
    assert json.loads(seal("form", {}))["writer"] == __version__
