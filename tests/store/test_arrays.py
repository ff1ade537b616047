"""Chunks of Zarr arrays: coded as Zarr codes them, verified on every read, never believed."""

from __future__ import annotations

import copy
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
import zarr.codecs
from hypothesis import given
from hypothesis import strategies as st

from distclust.errors import StoreError
from distclust.store.arrays import (
    METADATA,
    ArraySpec,
    ChunkTable,
    StoredArray,
    problem_of,
    write_chunk,
)
from distclust.store.codecs import (
    DECODING_ERRORS,
    TEXT,
    Blosc,
    Chain,
    Crc32c,
    Gzip,
    Zstd,
    decode_text,
    encode_text,
)
from distclust.store.objects import LocalObjects, Objects
from distclust.store.zarr_metadata import decode_json, encode_json, parse_array, parse_array_v2

HOT = Chain((Crc32c(),))
RAGGED = Chain((), inner=(1, 16))


def packed(dtype: Any, *inner: int) -> Chain:
    return Chain((Blosc(item_bytes=np.dtype(dtype).itemsize), Crc32c()), inner=inner)


def chunks_of(values: np.ndarray, spec: ArraySpec) -> list[np.ndarray]:
    """Cut values into what chunks begin with; chunks hold whole rows."""
    rows = spec.chunks[0]
    return [values[i : i + rows] for i in range(0, len(values), rows)]


def store(objects: Objects, values: np.ndarray, spec: ArraySpec, path: str = "a") -> StoredArray:
    entries = [
        write_chunk(objects, path, spec, number, part)
        for number, part in enumerate(chunks_of(values, spec))
    ]
    objects.write(f"{path}/{METADATA}", encode_json(spec.metadata()))
    return StoredArray(objects, path, spec, ChunkTable.of(entries))


@pytest.fixture
def local(tmp_path: Path) -> LocalObjects:
    return LocalObjects(tmp_path)


NUMBERS = ["bool", "int8", "int64", "uint8", "uint16", "uint32", "uint64"]
NUMBERS += ["float16", "float32", "float64"]
CODINGS = {
    "hot 1d": ((100,), (32,), lambda dtype: HOT),
    "hot 2d": ((100, 7), (32, 7), lambda dtype: HOT),
    "packed 1d": ((100,), (32,), lambda dtype: packed(dtype, 8)),
    "packed 2d": ((100, 7), (32, 7), lambda dtype: packed(dtype, 8, 7)),
    "ragged": ((10, 64), (1, 64), lambda dtype: RAGGED),
}


@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("coding", CODINGS)
def test_chunks__are_what_zarr_reads_and_come_back(
    local: LocalObjects, coding: str, dtype: str, rng: np.random.Generator
) -> None:
    shape, chunks, chain = CODINGS[coding]
    values = (rng.integers(-40, 40, shape) * rng.integers(0, 2, shape)).astype(dtype)
    spec = ArraySpec(shape, chunks, np.dtype(dtype), chain(dtype), {"encoding-type": "array"})
    array = store(local, values, spec)
    seen = zarr.open_array(local.path / "a", mode="r")
    assert seen.dtype == dtype
    assert seen.attrs["encoding-type"] == "array"
    np.testing.assert_array_equal(seen[:], values)
    np.testing.assert_array_equal(array.read(0, shape[0]), values)
    np.testing.assert_array_equal(array.read(3, 9), values[3:9])
    whole = array.chunk(1)
    assert whole.shape == chunks
    np.testing.assert_array_equal(whole, values[chunks[0] : 2 * chunks[0]])
    assert parse_array(spec.metadata(), "a").shape == shape


@pytest.mark.parametrize("chain", [HOT, Chain((Zstd(), Crc32c()))])
def test_chunks__hold_strings(local: LocalObjects, chain: Chain) -> None:
    values = np.array(["", "a", "Ä 漢字 🙂", "x" * 5000, "a\0b"] * 5, TEXT)
    array = store(local, values, ArraySpec((25,), (10,), TEXT, chain))
    assert array.read(0, 25).tolist() == values.tolist()
    assert array.chunk(2).tolist() == [*values[20:], *[""] * 5]
    assert zarr.open_array(local.path / "a", mode="r")[:].tolist() == values.tolist()


def test_ragged_shard__leaves_out_what_has_no_values(local: LocalObjects) -> None:
    spec = ArraySpec((2, 1600), (1, 1600), np.dtype(np.uint16), RAGGED)
    short, full = np.arange(1, 21, dtype=np.uint16), np.arange(1600, dtype=np.uint16)
    entries = [write_chunk(local, "a", spec, i, part) for i, part in enumerate((short, full))]
    local.write(f"a/{METADATA}", encode_json(spec.metadata()))
    index = 16 * 100 + 4
    assert [size for size, _ in entries] == [2 * 16 * 2 + index, 2 * 1600 + index]
    array = StoredArray(local, "a", spec, ChunkTable.of(entries))
    np.testing.assert_array_equal(array.beginning(0, 20), short)
    np.testing.assert_array_equal(array.chunk(0)[0], np.pad(short, (0, 1580)))
    seen = zarr.open_array(local.path / "a", mode="r")
    np.testing.assert_array_equal(seen[0], np.pad(short, (0, 1580)))
    np.testing.assert_array_equal(seen[1], full)


@pytest.mark.parametrize("chain", [HOT, packed("uint16", 8), Chain((), inner=(8,))])
def test_beginning__is_the_same_for_every_coding(local: LocalObjects, chain: Chain) -> None:
    values = np.arange(40, dtype=np.uint16)
    array = store(local, values, ArraySpec((40,), (40,), values.dtype, chain))
    np.testing.assert_array_equal(array.beginning(0, 13), values[:13])
    with pytest.raises(StoreError, match="41 values"):
        array.beginning(0, 41)


def test_read__covers_a_grid_in_both_directions(local: LocalObjects) -> None:
    values = np.arange(70.0).reshape(10, 7)
    written = zarr.create_array(local.path / "a", data=values, chunks=(4, 3))
    spec = parse_array(decode_json(local.read(f"a/{METADATA}"), "a"), "a")
    array = StoredArray(local, "a", spec)
    assert spec.grid == (3, 3)
    np.testing.assert_array_equal(array.read(0, 10), written[:])
    np.testing.assert_array_equal(array.read(3, 9), values[3:9])
    assert array.read(5, 5).shape == (0, 7)


@pytest.mark.parametrize("where", ["start", "end"])
def test_decode__reads_shards_of_others(local: LocalObjects, where: str) -> None:
    values = np.arange(24 * 6, dtype=np.int32).reshape(24, 6)
    values[8:16] = 0  # an inner chunk that zarr leaves out
    codec = zarr.codecs.ShardingCodec(chunk_shape=(4, 3), index_location=where)
    zarr.create_array(
        local.path / "a",
        shape=values.shape,
        dtype=values.dtype,
        chunks=(12, 6),
        serializer=codec,
        compressors=None,
        filters=None,
    )[:] = values
    spec = parse_array(decode_json(local.read(f"a/{METADATA}"), "a"), "a")
    array = StoredArray(local, "a", spec)
    with pytest.raises(StoreError, match=r"a/c/0/0.*inner chunk \(2, 0\).*missing_chunks"):
        array.read(0, 24)
    array.absent_are_zeros = True
    np.testing.assert_array_equal(array.read(0, 24), values)


@pytest.mark.parametrize(
    "compressors",
    [
        None,
        zarr.codecs.GzipCodec(),
        zarr.codecs.ZstdCodec(level=3, checksum=True),
        zarr.codecs.BloscCodec(cname="lz4", shuffle="shuffle"),
        [zarr.codecs.BloscCodec(cname="zlib"), zarr.codecs.Crc32cCodec()],
        [zarr.codecs.Crc32cCodec(), zarr.codecs.ZstdCodec()],
    ],
)
@pytest.mark.parametrize("endian", ["little", "big"])
def test_decode__reads_what_zarr_compresses(
    local: LocalObjects, compressors: Any, endian: str
) -> None:
    values = np.arange(1000, dtype=np.int16).reshape(100, 10)
    zarr.create_array(
        local.path / "a",
        shape=values.shape,
        dtype=values.dtype,
        chunks=(30, 10),
        compressors=compressors,
        serializer=zarr.codecs.BytesCodec(endian=endian),
    )[:] = values
    spec = parse_array(decode_json(local.read(f"a/{METADATA}"), "a"), "a")
    np.testing.assert_array_equal(StoredArray(local, "a", spec).read(0, 100), values)


# ---- damage ------------------------------------------------------------------------------------


@pytest.fixture(params=["hot", "packed"])
def damaged(request: pytest.FixtureRequest, objects: Objects) -> StoredArray:
    """Return an array of three chunks, on any kind of place."""
    chain = HOT if request.param == "hot" else packed(np.int64, 50)
    return store(objects, np.arange(300), ArraySpec((300,), (100,), np.dtype(np.int64), chain))


def test_read__notices_a_flipped_bit_anywhere(damaged: StoredArray) -> None:
    objects, content = damaged.objects, bytearray(damaged.objects.read("a/c/1"))
    for position in (0, len(content) // 2, len(content) - 1):
        flipped = bytearray(content)
        flipped[position] ^= 4
        objects.write("a/c/1", flipped)
        with pytest.raises(StoreError, match=r"a/c/1.*altered"):
            damaged.read(0, 300)
    np.testing.assert_array_equal(damaged.read(0, 100), np.arange(100))
    np.testing.assert_array_equal(damaged.read(200, 300), np.arange(200, 300))


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda objects, content: objects.delete("a/c/1"), "missing"),
        (lambda objects, content: objects.write("a/c/1", content[:-1]), "truncated"),
        (lambda objects, content: objects.write("a/c/1", b""), "truncated"),
        (lambda objects, content: objects.write("a/c/1", content + b"x"), "altered"),
        (lambda objects, content: objects.write("a/c/1", objects.read("a/c/2")), "t|altered"),
    ],
    ids=["missing", "truncated", "empty", "longer", "swapped"],
)
def test_read__notices_damage(damaged: StoredArray, damage: Any, problem: str) -> None:
    objects = damaged.objects
    damage(objects, objects.read("a/c/1"))
    with pytest.raises(StoreError, match=rf"a/c/1.*({problem})") as error:
        damaged.chunk(1)
    assert error.value.exit_code == 2
    assert damaged.table is not None
    assert problem_of(objects, "a/c/1", damaged.table.entry(1)) in (
        "missing",
        "truncated",
        "altered",
    )
    assert problem_of(objects, "a/c/0", damaged.table.entry(0)) is None


@given(st.data())
def test_decode__random_bytes_are_refused_not_trusted(data: st.DataObject) -> None:
    """Without a table, whatever is stored decodes to a chunk or is refused."""
    chains = [HOT, packed(np.int64, 4), Chain((Zstd(),)), Chain((Gzip(),)), Chain((Blosc(),))]
    chain = data.draw(st.sampled_from(chains))
    good = b"".join(bytes(part) for part in chain.encode(np.arange(8), (8,)))
    content = bytearray(good)
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    try:
        given = np.frombuffer(content, np.uint8)
        values = chain.decode(given, (8,), np.dtype(np.int64), False, (8,))
    except DECODING_ERRORS:
        return
    assert values.shape == (8,)


def bomb(codec: Any, n_bytes: int) -> np.ndarray:
    return np.frombuffer(bytes(codec.encode(bytes(n_bytes))), np.uint8)


@pytest.mark.parametrize("codec", [Zstd(), Gzip(), Blosc()])
@pytest.mark.parametrize("n_bytes", [0, 8, 1_000_000])
def test_decode__another_length_is_refused(codec: Any, n_bytes: int) -> None:
    with pytest.raises(DECODING_ERRORS, match="compressed data"):
        codec.decode(bomb(codec, n_bytes), 64)
    assert len(codec.decode(bomb(codec, n_bytes), n_bytes)) == n_bytes


def test_decode__a_length_of_many_terabytes_takes_no_memory() -> None:
    frame = b"\x28\xb5\x2f\xfd" + bytes([0b1110_0000]) + (10**15).to_bytes(8, "little") + bytes(9)
    with pytest.raises(ValueError, match="1000000000000000"):
        Zstd().decode(np.frombuffer(frame, np.uint8), None)


def test_decode__zstd_must_say_its_length() -> None:
    frame = b"\x28\xb5\x2f\xfd" + bytes([0]) + bytes(12)
    with pytest.raises(ValueError, match="do not say"):
        Zstd().decode(np.frombuffer(frame, np.uint8), 8)


@pytest.mark.parametrize("n", [0, 1, 255, 256, 257, 65_791, 65_792, 70_000])
@pytest.mark.parametrize("checksum", [False, True])
def test_zstd__length_is_read_from_every_form_of_header(n: int, checksum: bool) -> None:
    content = np.frombuffer(bytes(Zstd(1, checksum).encode(bytes(n))), np.uint8)
    assert len(Zstd().decode(content, n)) == n


def test_gzip__reads_zlib_too() -> None:
    content = np.frombuffer(zlib.compress(b"abcdefgh"), np.uint8)
    assert Gzip().decode(content, 8).tobytes() == b"abcdefgh"
    with pytest.raises(ValueError, match="length"):
        Gzip().decode(content[:-1], 8)


@pytest.mark.parametrize(
    "content",
    [b"", b"\x02\0\0\0", b"\xff\xff\xff\xff", encode_text(np.array(["a"], TEXT), 3)[:-1]],
)
def test_decode_text__refuses_other_numbers_and_cut_strings(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"strings|corrupt"):
        decode_text(np.frombuffer(content, np.uint8), (3,))


def test_shard__index_pointing_outside_is_refused() -> None:
    index = np.array([[0, 64], [2**63, 64]], "<u8").tobytes()
    from distclust.store.codecs import crc32c

    content = np.frombuffer(bytes(64) + index + crc32c(index), np.uint8)
    with pytest.raises(ValueError, match="outside"):
        Chain((), inner=(8,)).decode(content, (16,), np.dtype(np.int64), False, (0,))
    with pytest.raises(ValueError, match="index"):
        Chain((), inner=(8,)).decode(content[:20], (16,), np.dtype(np.int64), False, (0,))


# ---- metadata ----------------------------------------------------------------------------------

GOOD = ArraySpec((100, 7), (32, 7), np.dtype(np.float64), packed("float64", 8, 7)).metadata()


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return good metadata with one thing replaced; the path is dotted."""
    metadata: Any = copy.deepcopy(GOOD)
    *way, last = path.split(".")
    inner = metadata
    for step in way:
        inner = inner[int(step) if step.isdigit() else step]
    inner[int(last) if last.isdigit() else last] = value
    return metadata


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("shape", [10**16, 7]),
        ("shape", [-1, 7]),
        ("shape", [1.5, 7]),
        ("shape", [True, 7]),
        ("shape", "ab"),
        ("shape", [1, 2, 3]),
        ("shape", None),
        ("zarr_format", 4),
        ("node_type", "group"),
        ("data_type", "object"),
        ("data_type", "complex128"),
        ("data_type", {"name": "fixed_length_utf32"}),
        ("data_type", "variable_length_bytes"),
        ("chunk_grid.name", "rectilinear"),
        ("chunk_grid.configuration.chunk_shape", [0, 7]),
        ("chunk_grid.configuration.chunk_shape", [32]),
        ("chunk_grid.configuration.chunk_shape", [10**12, 10**12]),
        ("chunk_grid.configuration", None),
        ("chunk_key_encoding.name", "../../etc"),
        ("chunk_key_encoding.configuration.separator", "/../"),
        ("codecs", []),
        ("codecs", [{"name": "numcodecs.pickle"}]),
        ("codecs", [{"name": "transpose", "configuration": {"order": [1, 0]}}, {"name": "bytes"}]),
        ("codecs", [{"name": "bytes"}, {"name": "numcodecs.pickle"}]),
        ("codecs", [{"name": "bytes", "configuration": {"endian": "middle"}}]),
        ("codecs", [{"name": "vlen-utf8"}]),
        ("codecs", [{"id": "bytes"}]),
        ("codecs", 3),
        ("codecs.0.configuration.chunk_shape", [5, 7]),
        ("codecs.0.configuration.chunk_shape", [64, 7]),
        ("codecs.0.configuration.index_codecs", [{"name": "bytes"}]),
        ("codecs.0.configuration.index_location", "middle"),
        ("codecs.0.configuration.codecs", [GOOD["codecs"][0]]),
        ("storage_transformers", [{"name": "x"}]),
        ("attributes", 3),
    ],
)
def test_parse_array__refuses_what_it_does_not_know(path: str, value: Any) -> None:
    parse_array(GOOD, "X")
    with pytest.raises(StoreError, match=r"^X: expected"):
        parse_array(changed(path, value), "X")


@pytest.mark.parametrize(
    "missing", [key for key in GOOD if key not in ("attributes", "storage_transformers")]
)
def test_parse_array__refuses_what_is_incomplete(missing: str) -> None:
    with pytest.raises(StoreError, match=r"^X: expected"):
        parse_array({key: value for key, value in GOOD.items() if key != missing}, "X")


@pytest.mark.parametrize(
    "content", [b"", b"[1]", b"{", b"[" * 100_000, b"\xff\xfe", b'"' + b"a" * 10, b"null"]
)
def test_decode_json__refuses_what_is_no_object(content: bytes) -> None:
    with pytest.raises(StoreError, match="JSON"):
        decode_json(content, "X")


V2 = {
    "zarr_format": 2,
    "shape": [10, 3],
    "chunks": [4, 3],
    "dtype": "<f4",
    "order": "C",
    "fill_value": 0.0,
    "filters": None,
    "compressor": {"id": "blosc"},
    "dimension_separator": ".",
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("order", "F"),
        ("dtype", "|O"),
        ("dtype", "<U5"),
        ("dtype", "<M8[ns]"),
        ("dtype", [["a", "<f4"]]),
        ("dtype", "<f3"),
        ("dtype", "f4"),
        ("filters", [{"id": "pickle"}]),
        ("filters", [{"id": "delta"}]),
        ("compressor", {"id": "pickle"}),
        ("compressor", "blosc"),
        ("shape", [10**16, 3]),
        ("chunks", [4]),
        ("dimension_separator", "/../"),
        ("zarr_format", 3),
    ],
)
def test_parse_array_v2__refuses_what_it_does_not_know(key: str, value: Any) -> None:
    parse_array_v2(V2, {}, "X")
    with pytest.raises(StoreError, match=r"^X: expected"):
        parse_array_v2({**V2, key: value}, {}, "X")


def test_parse_array_v2__pickled_strings_are_refused_and_plain_ones_read() -> None:
    text = {**V2, "dtype": "|O", "shape": [10], "chunks": [4]}
    assert parse_array_v2({**text, "filters": [{"id": "vlen-utf8"}]}, {}, "X").dtype == TEXT
    with pytest.raises(StoreError, match="pickle"):
        parse_array_v2({**text, "filters": [{"id": "pickle"}]}, {}, "X")


def test_metadata__is_json_that_parses_to_the_same_array() -> None:
    for coding, (shape, chunks, chain) in CODINGS.items():
        spec = ArraySpec(shape, chunks, np.dtype("int32"), chain("int32"))
        read = parse_array(json.loads(encode_json(spec.metadata())), coding)
        assert (read.shape, read.chunks, read.dtype) == (spec.shape, spec.chunks, spec.dtype)
        assert read.chain.inner == spec.chain.inner
        assert [spec.key(i) for i in range(3)] == [read.key(i) for i in range(3)]


def test_chunk_table__refuses_other_shapes() -> None:
    with pytest.raises(ValueError, match="table"):
        ChunkTable(np.zeros(3, np.uint64), np.zeros((2, 16), np.uint8))
    with pytest.raises(ValueError, match="table"):
        ChunkTable(np.zeros(3, np.float64), np.zeros((3, 16), np.uint8))
