"""The record of a run: written whole, read back as it was, refused in a sentence."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys

import numpy as np
import pytest

from distclust.errors import StoreError
from distclust.jobs.record import (
    Figures,
    Model,
    Record,
    decode_record,
    encode_record,
    list_runs,
    new_run_id,
    read_history,
    read_record,
    record_key,
    write_record,
)
from distclust.jobs.runs import peak_memory
from distclust.store.objects import MissingObject, open_objects
from tests.jobs.records import full_record


@pytest.fixture(params=["local", "memory"])
def objects(request, tmp_path):
    url = tmp_path / "out" if request.param == "local" else f"memory://{tmp_path.name}"
    return open_objects(str(url))


def test_write_record__comes_back_as_it_was(objects):
    record = full_record()
    where = write_record(objects, record)
    assert where == objects.where(f"runs/{record.run}/record.json")
    assert read_record(objects, record.run) == record
    told = json.loads(objects.read(record_key(record.run)))
    assert told["format"] == 1
    assert told["input"]["rows"]["added"] == 473
    assert told["models"][0]["clusters"]["counts"]["split"] == 1
    with pytest.raises(MissingObject):
        read_record(objects, "00000001-20260101T000000Z")


def test_write_record__a_run_that_failed_at_once(objects):
    record = Record("j", "00000001-x", "2026-01-01T00:00:00+00:00", "2026-01-01T00:00:01+00:00", 1,
                    "failed", error="disk: expected room, got none.")  # fmt: skip
    write_record(objects, record)
    assert read_record(objects, record.run) == record
    assert not record.is_good


def test_encode_record__numbers_that_json_has_not():
    figures = Figures(
        {}, {"evidence": float("nan"), "n": np.int64(3), "by": np.array([1.5, np.inf])}
    )
    record = full_record(models=(Model("m", "bhc", "fitted", "New.", metrics=figures),))
    told = json.loads(encode_record(record), parse_constant=pytest.fail)
    assert told["models"][0]["metrics"]["after"] == {"evidence": None, "n": 3, "by": [1.5, None]}


def test_decode_record__unknown_names_are_ignored_and_missing_ones_have_defaults():
    told = json.loads(encode_record(full_record()))
    told["colour"] = told["cost"]["carbon"] = 1
    assert decode_record(json.dumps(told).encode(), "here") == full_record()
    del told["gates"], told["input"]["bytes_read"]
    found = decode_record(json.dumps(told).encode(), "here")
    assert found.gates == ()
    assert found.input.bytes_read == 0


@pytest.mark.parametrize(
    ("path", "value", "got"),
    [
        (["outcome"], "splendid", r".*splendid.*\$\.outcome"),
        (["seconds"], True, r".*\$\.seconds"),
        (["seconds"], None, r".*\$\.seconds"),
        (["input", "rows", "added"], 1.5, r".*\$\.input\.rows\.added"),
        (["input", "named", "new"], "a", r".*\$\.input\.named\.new"),
        (["models"], {}, r".*\$\.models"),
        (["models", 0, "version"], [], r".*\$\.models\[0\]\.version"),
        (["models", 0, "drift"], 3, r".*\$\.models\[0\]\.drift"),
        (["gates", 0, "passed"], 1, r".*\$\.gates\[0\]\.passed"),
        (["cost", "stages", "ingest"], "long", r".*\$\.cost\.stages"),
        (["format"], 2, "format 2, written by distclust"),
        (["format"], "one", "a foreign file"),
    ],
)
def test_decode_record__other_content_is_refused(path, value, got):
    told = json.loads(encode_record(full_record()))
    *inner, last = path
    place = told
    for name in inner:
        place = place[name]
    place[last] = value
    with pytest.raises(StoreError, match=f"^here: expected .*, got {got}"):
        decode_record(json.dumps(told).encode(), "here")


def test_decode_record__damage_is_refused():
    content = encode_record(full_record())
    for cut in (b"", content[: len(content) // 2], b"[1]", b"\xff"):
        with pytest.raises(StoreError, match=r"^here: expected the record of a run"):
            decode_record(cut, "here")
    told = json.loads(content)
    del told["job"]
    with pytest.raises(StoreError, match="missing required field `job`"):
        decode_record(json.dumps(told).encode(), "here")


def test_read_history__the_last_runs_in_order(objects):
    assert read_history(objects).records == ()
    for number in (3, 1, 2, 10):
        write_record(objects, full_record(number))
    objects.write(record_key("00000009-damaged"), b"{")
    objects.write("runs/00000011-killed/report.html", b"no record")
    history = read_history(objects, 4)
    assert [record.published for record in history.records] == [2, 3, 10]
    (finding,) = history.findings
    assert finding.key == "runs/00000009-damaged/record.json"
    assert "truncated" in finding.problem
    assert len(list_runs(objects)) == 5


def test_new_run_id__sorts_by_number_whatever_the_clock_says():
    late = datetime.datetime(2026, 5, 1, tzinfo=datetime.UTC)
    ids = [new_run_id(9, late), new_run_id(10, late - datetime.timedelta(days=900))]
    assert ids == sorted(ids)
    assert ids[0] == "00000009-20260501T000000Z"


FIRST_AT_ONCE = """
import sys, threading
from distclust.jobs.record import decode_record, encode_record
from tests.jobs.records import full_record
sys.setswitchinterval(1e-6)
content, gate = encode_record(full_record()), threading.Barrier(8)
def read():
    gate.wait()
    decode_record(content, "here")
threads = [threading.Thread(target=read) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_decode__by_several_threads_at_once_in_a_fresh_process():
    command = [sys.executable, "-c", FIRST_AT_ONCE]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(6)]
    said = [process.communicate()[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * 6, said


def test_peak_memory__is_of_this_program_alone():
    """A small program that a large one starts is small."""
    large = np.ones(2**26)  # half a gigabyte
    script = "from distclust.jobs.runs import peak_memory; print(peak_memory())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert 2**24 < int(done.stdout) < large.nbytes
    assert peak_memory() > large.nbytes
