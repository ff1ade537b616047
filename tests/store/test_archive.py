from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import zipfile
from pathlib import Path

import hypothesis.extra.numpy as hnp
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from distclust import __version__
from distclust.errors import InputError, MissingFileError, ModelFormatError
from distclust.store import FORMAT_VERSION, read_archive, write_archive

ARRAYS = {
    "floats": np.array([[0.1, np.nan], [np.inf, -0.0]]),
    "names": np.array(["é", "longer name", ""]),
    "empty": np.empty((0, 3), np.int32),
    "scalar": np.array(7, np.uint8),
    "columns_first": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "flags": np.array([True, False]),
}
META = {"family": {"name": "Bernoulli"}, "list": [1, 0.1, None, "ü"], "bound": float("-inf")}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "a.model"
    write_archive(path, "bhc", META, ARRAYS)
    return path


def sign(content: bytes) -> bytes:
    """Return an altered file with the digest that its writer would have given it."""
    body = content[:-64]
    return body + hashlib.blake2b(body, digest_size=32).hexdigest().encode()


def forge(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> None:
    """Write a correctly signed zip with any content."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        archive.comment = b"distclust blake2b " + b"0" * 64
        for name, content in members.items():
            archive.writestr(name, content)
    path.write_bytes(sign(buffer.getvalue()))


def header(**changes: object) -> bytes:
    values = {
        "format": "distclust-model",
        "format_version": FORMAT_VERSION,
        "kind": "bhc",
        "arrays": ["a"],
        "meta": {"distclust_version": "9.9"},
    }
    return json.dumps(values | changes).encode()


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def test_read_archive__returns_what_was_written(model):
    archive = read_archive(model)
    assert (archive.kind, archive.format_version) == ("bhc", 1)
    created = archive.meta.pop("created")
    assert created.endswith("+00:00")
    assert archive.meta.pop("distclust_version") == __version__
    assert archive.meta == META
    assert archive.arrays.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        read = archive.arrays[name]
        assert read.dtype == array.dtype
        assert read.shape == array.shape
        assert read.tobytes() == array.tobytes()
        assert read.flags.writeable


def test_write_archive__numpy_can_open_it(model):
    with np.load(model) as opened:
        np.testing.assert_array_equal(opened["names"], ARRAYS["names"])


@given(
    st.dictionaries(
        st.text("abc_/.é", min_size=1, max_size=5),
        hnp.arrays(
            hnp.integer_dtypes() | hnp.floating_dtypes() | hnp.unicode_string_dtypes(),
            hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
        ),
        max_size=3,
    )
)
def test_archive__any_arrays_round_trip(tmp_path_factory, arrays):
    path = tmp_path_factory.mktemp("archive") / "m"
    write_archive(path, "k", {}, arrays)
    read = read_archive(path).arrays
    assert read.keys() == arrays.keys()
    for name, array in arrays.items():
        assert (read[name].dtype, read[name].shape) == (array.dtype, array.shape)
        assert read[name].tobytes() == array.tobytes()


def test_read_archive__refuses_every_truncation(model):
    write_archive(model, "k", {}, {"a": np.arange(3)})  # small: every byte is tried
    content = model.read_bytes()
    for length in range(len(content)):
        model.write_bytes(content[:length])
        with pytest.raises(ModelFormatError, match=r"a\.model: expected a complete model"):
            read_archive(model)


def test_read_archive__refuses_every_flipped_byte(model):
    write_archive(model, "k", {}, {"a": np.arange(3)})
    content = model.read_bytes()
    for position in range(len(content)):
        altered = bytearray(content)
        altered[position] ^= 0x41
        model.write_bytes(altered)
        with pytest.raises(ModelFormatError):
            read_archive(model)


def test_read_archive__refuses_appended_bytes(model):
    model.write_bytes(model.read_bytes() + b"more")
    with pytest.raises(ModelFormatError):
        read_archive(model)


def test_read_archive__accepts_a_well_formed_forgery(model):
    # The refusals below are then due to what each of them changes.
    forge(model, {"model.json": header(), "a.npy": npy(np.arange(3))})
    assert read_archive(model).arrays["a"].tolist() == [0, 1, 2]


def test_read_archive__refuses_a_newer_format_and_names_the_writer(model):
    forge(model, {"model.json": header(format_version=2), "a.npy": npy(np.arange(3))})
    with pytest.raises(ModelFormatError, match=r"version 2, written by distclust 9\.9"):
        read_archive(model)


def test_read_archive__refuses_pickled_objects(model):
    forge(model, {"model.json": header(), "a.npy": npy(np.array([{}, []], dtype=object))})
    with pytest.raises(ModelFormatError, match="pickled objects"):
        read_archive(model)


def test_read_archive__takes_no_memory_for_a_size_that_is_not_there(model):
    honest = npy(np.arange(3))
    for shape in (
        b"(9,), }",
        b"(3000000000000,), }",
        b"(2**99,), }",
        b"((((((,), }",
        b"(-1,-3), }",
    ):
        old = b"(3,), }".ljust(len(shape))
        assert old in honest
        forge(model, {"model.json": header(), "a.npy": honest.replace(old, shape)})
        with pytest.raises(ModelFormatError):
            read_archive(model)


@pytest.mark.parametrize(
    "members",
    [
        {"model.json": header()},
        {"model.json": header(), "a.npy": npy(np.ones(2)), "b.npy": npy(np.ones(2))},
        {"model.json": header(), "a.npy": b"not an array"},
        {"model.json": header(), "a.npy": b""},
        {"model.json": header(format="other"), "a.npy": npy(np.ones(2))},
        {"model.json": header(format_version="1"), "a.npy": npy(np.ones(2))},
        {"model.json": header(arrays=7), "a.npy": npy(np.ones(2))},
        {"model.json": header(meta=7), "a.npy": npy(np.ones(2))},
        {"model.json": b"[1]", "a.npy": npy(np.ones(2))},
        {"model.json": b"[" * 100_000, "a.npy": npy(np.ones(2))},
        {"model.json": b"{", "a.npy": npy(np.ones(2))},
        {"model.json": b"\xff", "a.npy": npy(np.ones(2))},
        {"a.npy": npy(np.ones(2))},
    ],
)
def test_read_archive__refuses_other_content(model, members):
    forge(model, members)
    with pytest.raises(ModelFormatError):
        read_archive(model)


def test_read_archive__refuses_compressed_parts(model):
    members = {"model.json": header(), "a.npy": npy(np.zeros(10**6))}
    forge(model, members, zipfile.ZIP_DEFLATED)
    with pytest.raises(ModelFormatError, match="compressed"):
        read_archive(model)


def test_read_archive__refuses_other_files(tmp_path):
    np.savez(tmp_path / "other.npz", a=np.ones(3))
    (tmp_path / "empty").touch()
    for name in ("other.npz", "empty"):
        with pytest.raises(ModelFormatError, match="truncated or foreign"):
            read_archive(tmp_path / name)


def test_read_archive__missing_file_and_folder(tmp_path):
    with pytest.raises(MissingFileError, match=r"nowhere.*Check the path"):
        read_archive(tmp_path / "nowhere")
    with pytest.raises(MissingFileError):
        read_archive(tmp_path)


def test_write_archive__missing_folder(tmp_path):
    with pytest.raises(MissingFileError, match="Create the folder"):
        write_archive(tmp_path / "no" / "model", "k", {}, {})


@pytest.mark.parametrize(
    ("meta", "arrays", "error"),
    [
        ({"a": object()}, {}, TypeError),
        ({}, {"a": np.array([None])}, InputError),
    ],
)
def test_write_archive__refused_content_leaves_the_old_file(model, meta, arrays, error):
    before = model.read_bytes()
    with pytest.raises(error):
        write_archive(model, "k", meta, arrays)
    assert model.read_bytes() == before
    assert os.listdir(model.parent) == [model.name]


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_write_archive__failing_disk_leaves_the_old_file(model, monkeypatch, failing):
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    before = model.read_bytes()
    monkeypatch.setattr(os, failing, fail)
    with pytest.raises(OSError, match="No space left"):
        write_archive(model, "k", {}, {"a": np.ones(1000)})
    assert model.read_bytes() == before
    assert os.listdir(model.parent) == [model.name]


def test_write_archive__interruption_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(np.lib.format, "write_array", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_archive(tmp_path / "m", "k", {}, {"a": np.ones(3)})
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.name == "nt", reason="permissions are POSIX's")
def test_write_archive__file_has_usual_permissions_and_links_stay(model):
    plain = model.with_name("plain")
    plain.touch()
    assert stat.S_IMODE(model.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
    link = model.with_name("link")
    link.symlink_to(model)
    write_archive(link, "other", {}, {})
    assert link.is_symlink()
    assert read_archive(model).kind == "other"
