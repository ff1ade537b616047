from __future__ import annotations

import errno
import mmap
import os
import pickle
import resource
import signal
import stat
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import xxhash
from hypothesis import given

from distclust.errors import InputError, StoreError
from distclust.store import files
from distclust.store.objects import (
    LocalObjects,
    MissingObject,
    Objects,
    check_key,
    checksum,
    open_objects,
)
from distclust.store.remote import RemoteObjects
from tests.faults import every_fault, fork, leftovers

CONTENT = bytes(range(256)) * 300  # more than a buffer of Python's


@pytest.fixture
def local(tmp_path: Path) -> LocalObjects:
    return LocalObjects(tmp_path / "store")


def test_write__is_read_back_in_every_way(objects):
    objects.write("a/b.c/d-e_f", CONTENT[:10], memoryview(CONTENT)[10:20], CONTENT[20:])
    key = "a/b.c/d-e_f"
    assert objects.read(key) == CONTENT
    assert objects.size(key) == len(CONTENT)
    assert objects.exists(key)
    assert objects.read_array(key).tobytes() == CONTENT
    assert objects.read_array(key, 1000).tobytes() == CONTENT[:1000]
    assert objects.read_array(key, 10**15).tobytes() == CONTENT
    assert objects.read_array(key, 0).tobytes() == b""
    assert objects.map_array(key).tobytes() == CONTENT
    for start, stop in [(0, 0), (5, 9), (7, 7), (9, 5), (len(CONTENT) - 1, 10**9), (10**6, 10**7)]:
        assert objects.read_range(key, start, stop) == CONTENT[start:stop]


def test_jot__replaces_the_whole_object(objects):
    for content in (CONTENT, b"", CONTENT[7:]):
        objects.jot("a/note", content[:5], content[5:])
        assert objects.read("a/note") == content
        assert objects.list() == ["a/note"]


def test_jot__waits_for_no_disk(local, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: pytest.fail("a note is synced"))
    local.path.mkdir()
    local.jot("note", CONTENT)
    assert local.read("note") == CONTENT


def test_write__takes_arrays_and_nothing(objects):
    rows = np.arange(12.0).reshape(3, 4)
    objects.write("rows", rows, np.empty((0, 3)), rows[1])
    assert objects.read("rows") == rows.tobytes() + rows[1].tobytes()
    objects.write("nothing")
    assert objects.read("nothing") == b""
    assert objects.size("nothing") == 0
    assert objects.read_array("nothing").shape == (0,)
    assert objects.read_range("nothing", 0, 5) == b""


def test_write__replaces(objects):
    objects.write("a", b"old and long")
    objects.write("a", b"new")
    assert objects.read("a") == b"new"
    assert objects.list() == ["a"]


def test_map_array__is_the_file_which_may_be_replaced_or_removed(local):
    local.write("a", CONTENT)
    local.write("nothing")
    mapped = local.map_array("a")
    assert mapped.dtype == np.uint8
    assert not mapped.flags.writeable
    assert mapped.ctypes.data % 8 == 0
    assert local.map_array("nothing").shape == (0,)
    origin = mapped
    while isinstance(origin, np.ndarray):
        origin = origin.base
    assert isinstance(origin, mmap.mmap)
    local.write("a", b"other")  # a new file: what was mapped stays
    assert mapped.tobytes() == CONTENT
    other = local.map_array("a")
    local.delete("a")
    assert other.tobytes() == b"other"


def test_read_array__is_fresh_and_aligned(objects):
    objects.write("a", CONTENT)
    first, second = objects.read_array("a"), objects.read_array("a", 999)
    first[:] = 0
    assert second.tobytes() == CONTENT[:999]
    assert objects.read("a") == CONTENT
    for array in (first, second):
        assert array.dtype == np.uint8
        assert array.ctypes.data % 64 == 0


def test_create__only_the_first_succeeds(objects):
    assert objects.create("a/b", b"first", b" one")
    assert not objects.create("a/b", b"second")
    assert objects.read("a/b") == b"first one"
    objects.delete("a/b")
    assert objects.create("a/b", b"third")


def test_create__one_of_many_threads_succeeds(objects):
    start = threading.Barrier(8)

    def attempt(i: int) -> bool:
        start.wait()
        return objects.create("prize", b"%d" % i * 1000)

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(attempt, range(8)))
    assert sum(won) == 1
    assert objects.read("prize") == b"%d" % won.index(True) * 1000


def test_create__one_of_many_processes_succeeds(any_url, tmp_path):
    if any_url.startswith("memory"):
        pytest.skip("processes share no memory")

    def attempt(i: int) -> int:
        return int(open_objects(any_url).create("a/prize", b"%d" % i * 1000))

    children = [fork(lambda i=i: attempt(i)) for i in range(4)]
    won = [wait() for wait in children]
    assert sorted(won) == [0, 0, 0, 1]
    assert open_objects(any_url).read("a/prize") == b"%d" % won.index(1) * 1000


def test_copy__gives_second_names_and_replaces(objects):
    objects.write("a/b", b"one")
    objects.write("a/c", b"another")
    objects.write("to/x", b"old")
    for _ in range(2):  # who was killed does it again
        objects.copy([("a/b", "to/x"), ("a/c", "to/deep/y")])
    objects.copy([])
    assert objects.sizes("to") == {"to/x": 3, "to/deep/y": 7}
    assert objects.sizes("t") == {}
    objects.write("a/b", b"new")
    objects.delete("a/c")
    assert (objects.read("to/x"), objects.read("to/deep/y")) == (b"one", b"another")
    with pytest.raises((MissingObject, FileNotFoundError)):
        objects.copy([("a/b", "to/z"), ("nowhere", "to/n")])
    assert not objects.exists("to/n")
    for pair in [("../a", "to/x"), ("a/b", "../x")]:
        with pytest.raises(StoreError, match="store key"):
            objects.copy([pair])


@pytest.mark.parametrize("number", [None, errno.EPERM, errno.EMLINK])
def test_copy__links_files_where_there_are_links(local, monkeypatch, number):
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number or 0))

    local.write("a", CONTENT)
    if number is not None:
        monkeypatch.setattr(os, "link", refuse)
    local.copy([("a", "below/b")])
    assert local.read("below/b") == CONTENT
    assert os.path.samefile(local.path / "a", local.path / "below/b") == (number is None)
    monkeypatch.undo()
    monkeypatch.setattr(os, "link", lambda *_: (_ for _ in ()).throw(OSError(28, "No space")))
    with pytest.raises(OSError, match="below/c"):
        local.copy([("a", "below/c")])


def test_list__is_sorted_and_below_the_prefix_only(objects):
    assert objects.list() == []
    assert objects.list("a") == []
    for key in ["a/z", "a/b/c", "ab/c", "b", "a.b"]:
        objects.write(key, b"")
    assert objects.list() == ["a.b", "a/b/c", "a/z", "ab/c", "b"]
    assert objects.list("a") == ["a/b/c", "a/z"]
    assert objects.list("a/b") == ["a/b/c"]
    assert objects.list("b") == []


def test_delete__absent_is_no_error(objects):
    objects.write("a/b", b"x")
    objects.delete("a/b")
    objects.delete("a/b")
    objects.delete("nowhere/at/all")
    assert objects.list() == []
    assert not objects.exists("a/b")


def test_delete_tree__removes_what_is_below_and_nothing_else(objects):
    for key in ["a/b/c", "a/b/d/e", "a/bc", "a/b.d"]:
        objects.write(key, b"x")
    objects.delete_tree("a/b")
    objects.delete_tree("a/b")
    assert objects.list() == ["a/b.d", "a/bc"]


def test_missing_object__is_a_sentence_of_the_store(objects):
    objects.write("folder/file", b"x")
    for key in ["nowhere", "folder", "folder/file/below"]:
        with pytest.raises(MissingObject, match=f"{key}: expected an object.*nothing there"):
            objects.read(key)
        with pytest.raises(MissingObject):
            objects.read_array(key)
        with pytest.raises(MissingObject):
            objects.read_array(key, 3)
        with pytest.raises(MissingObject):
            objects.map_array(key)
        with pytest.raises(MissingObject):
            objects.read_range(key, 0, 0)
        assert objects.size(key) is None
        assert not objects.exists(key)
    assert issubclass(MissingObject, StoreError)


HOSTILE = ["", "/", "/a", "a/", "a//b", ".", "..", "../a", "a/../b", "a/./b", "a\\b", "a\0b", "a\n"]
HOSTILE += ["C:/a", "é", "a b", "~", "a*", "a?", "a[b]", "x.partial", "a/.b.partial/c", "a" * 201]
HOSTILE += ["a/" * 500 + "b", "s3://bucket/a"]


@pytest.mark.parametrize("key", HOSTILE)
def test_check_key__refuses_whatever_could_lead_out(key):
    with pytest.raises(StoreError, match="store key"):
        check_key(key)


@given(st.text(max_size=20))
def test_check_key__what_passes_stays_inside(key):
    try:
        check_key(key)
    except StoreError:
        return
    assert os.path.normpath(f"/top/{key}") == f"/top/{key}"


@pytest.mark.parametrize(
    "method", ["read", "read_array", "map_array", "size", "exists", "write", "create"]
)
def test_objects__every_method_checks_its_key(objects, tmp_path, method):
    (tmp_path / "outside").write_bytes(b"secret")
    for key in ["../outside", ""]:
        with pytest.raises(StoreError, match="store key"):
            getattr(objects, method)(key)


def test_objects__deletion_ranges_and_listing_check_their_key(objects):
    for call in (objects.delete, objects.delete_tree, lambda key: objects.read_range(key, 0, 1)):
        for key in ["../outside", ""]:
            with pytest.raises(StoreError, match="store key"):
                call(key)
    with pytest.raises(StoreError, match="store key"):
        objects.list("..")


def test_objects__handles_pickle_and_print(objects):
    objects.write("a", b"x")
    copy = pickle.loads(pickle.dumps(objects))
    assert copy.read("a") == b"x"
    assert (copy.url, copy.is_local, copy.path) == (objects.url, objects.is_local, objects.path)
    assert objects.url in repr(objects)


def test_objects__a_used_handle_works_in_a_fork(any_url):
    objects = open_objects(any_url)
    objects.write("a", b"before")

    def read_and_write() -> int:
        assert objects.read("a") == b"before"
        objects.write("b", b"child")
        return 0

    assert fork(read_and_write)() == 0
    if not any_url.startswith("memory"):
        assert objects.read("b") == b"child"
    assert objects.read("a") == b"before"


def test_objects__sees_what_others_change(objects):
    other = pickle.loads(pickle.dumps(objects))
    assert not objects.exists("a")
    assert objects.list() == []
    other.write("a", b"x")
    assert objects.exists("a")
    assert objects.list() == ["a"]
    other.delete("a")
    assert objects.size("a") is None
    assert objects.list() == []


def test_objects__sees_what_other_processes_change(s3_url):
    # A driver of the same process would be told; one that remembers listings is not.
    objects = open_objects(s3_url)
    objects.write("a", b"x")
    assert objects.list() == ["a"]
    assert objects.exists("a")

    def change() -> int:
        objects.delete("a")
        objects.write("b", b"y")
        return 0

    assert fork(change)() == 0
    assert not objects.exists("a")
    assert objects.exists("b")
    assert objects.list() == ["b"]


def test_create__threads_that_share_memory_take_turns(memory_objects, monkeypatch):
    from fsspec.implementations.memory import MemoryFile

    commit = MemoryFile.commit

    def commit_late(self: MemoryFile) -> None:
        time.sleep(0.02)  # time enough for all to look before the first is done
        commit(self)

    monkeypatch.setattr(MemoryFile, "commit", commit_late)
    with ThreadPoolExecutor(4) as pool:
        won = list(pool.map(lambda i: memory_objects.create("prize", b"%d" % i), range(4)))
    assert sum(won) == 1
    assert memory_objects.read("prize") == b"%d" % won.index(True)


@pytest.mark.cluster
def test_objects__workers_of_a_cluster_reach_s3(s3_url, s3_client):
    objects = open_objects(s3_url)
    wrote = s3_client.submit(objects.create, "from/worker", b"x").result()
    assert wrote
    assert objects.read("from/worker") == b"x"


def test_open_objects__makes_nothing(any_url, tmp_path):
    open_objects(any_url)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("form", ["{}", "file://{}", "local://{}", "{}/"])
def test_open_objects__local_paths_are_absolute(tmp_path, form):
    objects = open_objects(form.format(tmp_path))
    assert objects.path == tmp_path
    assert objects.url == str(tmp_path)
    assert objects.is_local


def test_open_objects__relative_paths_survive_a_change_of_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    objects = open_objects(Path("here"))
    monkeypatch.chdir("/")
    objects.write("a", b"x")
    assert (tmp_path / "here" / "a").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("gs://bucket/x", "Install the package gcsfs"),
        ("nonsense://x", "Give a local path"),
        ("", "Name a folder"),
    ],
)
def test_open_objects__refuses_in_a_sentence(url, hint, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gcsfs", None)
    with pytest.raises(InputError, match=hint):
        open_objects(url)


def test_remote__storages_without_exclusive_creation_are_not_written(tmp_path):
    objects = open_objects("http://127.0.0.1:9/x")
    for call in (objects.write, objects.create, objects.delete):
        with pytest.raises(InputError, match="cannot create a name exclusively"):
            call("a")


def test_remote__an_unreachable_server_is_an_oserror_with_a_place(s3_url, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    objects = RemoteObjects(s3_url)
    import s3fs

    driver = s3fs.S3FileSystem(skip_instance_cache=True, endpoint_url="http://127.0.0.1:9")
    driver.retries = 1
    objects._opened = os.getpid(), driver, s3_url.removeprefix("s3://")
    with pytest.raises(OSError, match=r"127\.0\.0\.1:9") as caught:
        objects.read("a")
    assert caught.value.filename == f"{s3_url}/a"
    driver.close_session(driver.loop, driver._s3)


def test_remote__a_missing_bucket_is_an_oserror_with_a_place(s3_url):
    objects = open_objects("s3://no-such-bucket-anywhere/x")
    assert objects.list() == []
    assert not objects.exists("a")
    with pytest.raises(FileNotFoundError, match="no-such-bucket-anywhere/x/a"):
        objects.write("a", b"x")


def test_remote__an_unclear_answer_is_settled_by_looking(s3_url, monkeypatch):
    objects = open_objects(s3_url)
    driver, _ = objects._driver()
    put = driver.pipe_file

    def put_and_lose_the_answer(*arguments: object, **options: object) -> None:
        put(*arguments, **options)
        raise OSError(errno.EBUSY, "conflict")

    monkeypatch.setattr(driver, "pipe_file", put_and_lose_the_answer)
    assert not objects.create("a", b"x")  # whose it is, a token inside must say
    monkeypatch.setattr(driver, "pipe_file", lambda *_, **__: put("nowhere/x", b""))
    with pytest.raises(OSError, match="bucket"):
        objects.create("b", b"x")


def test_checksum__is_xxh3_of_the_joined_buffers():
    parts = [b"ab", np.arange(5.0), memoryview(b""), np.empty((0, 2)), bytearray(b"c")]
    joined = b"".join(bytes(part) for part in parts)
    assert checksum(*parts) == checksum(joined) == xxhash.xxh3_128(joined).digest()
    assert len(checksum()) == 16
    assert checksum(b"ab") != checksum(b"ba")


# Local files: what a crash, a full disk and other programs leave.


def test_local__leftovers_are_not_objects_and_are_swept(local):
    local.write("a/b", b"x")
    for name in [".b.0123.partial", "c.partial"]:
        (local.path / "a" / name).write_bytes(b"half")
    assert local.list() == ["a/b"]
    local.delete_tree("a")
    assert list(local.path.iterdir()) == []


@pytest.mark.parametrize("verb", ["write", "create"])
@pytest.mark.parametrize("fault", ["kill", "disk full", "no permission"])
def test_local__faults_leave_the_old_or_the_new(tmp_path, verb, fault):
    key = "folder/below/a"

    def prepare(place: str) -> None:
        LocalObjects(place).write("other", b"kept")
        if verb == "write":
            LocalObjects(place).write(key, b"old")

    def action(place: str) -> None:
        getattr(LocalObjects(place), verb)(key, b"new", b" one")

    def check(place: str, is_done: bool) -> None:
        objects = LocalObjects(place)
        found = objects.read(key) if objects.exists(key) else b""
        before = b"old" if verb == "write" else b""
        assert found == b"new one" if is_done else found in {before, b"new one"}
        assert set(objects.list()) == {"other", key} - (set() if found else {key})

    n_points = every_fault(tmp_path, prepare=prepare, action=action, check=check, fault=fault)
    assert n_points >= (1 if verb == "write" else 4)


def test_local__a_killed_writer_leaves_a_leftover(tmp_path):
    # Or the test above would not have seen the worst.
    seen = set()

    def check(place: str, is_done: bool) -> None:
        seen.add((is_done, len(leftovers(place))))

    every_fault(
        tmp_path,
        prepare=lambda place: None,
        action=lambda place: LocalObjects(place).write("a", b"x"),
        check=check,
    )
    assert (False, 1) in seen


def test_local__a_write_cut_off_by_the_system_gives_the_space_back(local):
    # A real refusal in the middle of the content: the file may not grow over 1 MB.
    local.write("small", b"x")

    def write_too_much() -> int:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
        with pytest.raises(OSError, match="too large") as caught:
            local.write("folder/large", bytes(2**20), bytes(2**20))
        assert caught.value.errno == errno.EFBIG
        assert caught.value.filename == local.where("folder/large")
        return 0

    assert fork(write_too_much)() == 0
    assert [path for path in local.path.rglob("*") if path.is_file()] == [local.path / "small"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_local__a_folder_without_permission_is_an_oserror_about_the_object(local):
    local.write("folder/a", b"x")
    (local.path / "folder").chmod(0o500)
    with pytest.raises(PermissionError, match=r"folder/b'"):
        local.write("folder/b", b"x")
    (local.path / "folder").chmod(0o700)


def test_local__a_file_where_a_folder_should_be_is_an_oserror(local):
    local.write("a", b"x")
    for call in (local.write, local.create):
        with pytest.raises(OSError, match="a") as caught:
            call("a/b", b"y")
        assert caught.value.filename
    local.delete("a/b")
    local.delete_tree("a/b")
    assert local.read("a") == b"x"


@pytest.mark.parametrize("number", [errno.EPERM, errno.EOPNOTSUPP])
def test_create__is_exclusive_without_hard_links(local, monkeypatch, number):
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    replace = os.replace

    def replace_late(*arguments: object) -> None:
        time.sleep(0.02)  # time enough for all to look before the first is done
        replace(*arguments)

    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(os, "replace", replace_late)
    start = threading.Barrier(6)

    def attempt(i: int) -> bool:
        start.wait()
        return files.create_file(local.path / "folder" / "prize", [b"%d" % i])

    with ThreadPoolExecutor(6) as pool:
        won = list(pool.map(attempt, range(6)))
    assert sum(won) == 1
    assert local.read("folder/prize") == b"%d" % won.index(True)
    assert leftovers(local.url) == []


def test_create__a_link_whose_answer_was_lost_counts(local, monkeypatch):
    link = os.link

    def lose_the_answer(*arguments: object) -> None:
        link(*arguments)
        raise FileExistsError(errno.EEXIST, "exists")

    monkeypatch.setattr(os, "link", lose_the_answer)
    assert local.create("a", b"x")
    assert local.read("a") == b"x"


def test_create__other_failures_of_links_come_out(local, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(errno.EIO, "broken")

    monkeypatch.setattr(os, "link", refuse)
    with pytest.raises(OSError, match="broken") as caught:
        local.create("a", b"x")
    assert caught.value.filename == local.where("a")
    assert leftovers(local.url) == []


def test_write__syncs_the_file_before_its_name_and_the_folder_after(local, monkeypatch):
    local.write("folder/a", b"old")
    calls = []
    for name in ("replace", "link", "fsync"):
        original = getattr(os, name)

        def noted(*arguments, name=name, original=original):
            is_folder = name == "fsync" and stat.S_ISDIR(os.fstat(arguments[0]).st_mode)
            calls.append("fsync folder" if is_folder else name)
            return original(*arguments)

        monkeypatch.setattr(os, name, noted)
    local.write("folder/a", b"new")
    assert calls == ["fsync", "replace", "fsync folder"]
    calls.clear()
    assert local.create("folder/b", b"new")
    assert calls == ["fsync", "link", "fsync folder"]


def test_local__folders_that_cannot_be_synced_are_written(local, monkeypatch):
    fsync = os.fsync

    def refuse_folders(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EINVAL, "invalid")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", refuse_folders)
    local.write("a/b", b"x")
    assert local.read("a/b") == b"x"


def test_delete_tree__does_not_follow_links(local, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"kept")
    local.write("a/b", b"x")
    (local.path / "a" / "link").symlink_to(outside)
    (local.path / "a" / "file").symlink_to(outside / "file")
    assert local.list() == ["a/b", "a/file"]
    local.delete_tree("a")
    assert (outside / "file").read_bytes() == b"kept"
    assert local.list() == []


def test_delete_tree__two_at_once(local):
    for i in range(200):
        local.write(f"a/{i % 7}/{i}", b"")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(local.delete_tree, ["a", "a"]))
    assert local.list() == []


def test_delete_tree__a_folder_still_written_to_stays(local, monkeypatch):
    local.write("a/b", b"x")
    rmdir = os.rmdir

    def write_first(folder: str) -> None:
        (Path(folder) / "late").write_bytes(b"y")
        rmdir(folder)

    monkeypatch.setattr(os, "rmdir", write_first)
    local.delete_tree("a")
    assert local.list() == ["a/late"]


def test_objects__is_abstract():
    with pytest.raises(TypeError):
        Objects()  # type: ignore[abstract]
