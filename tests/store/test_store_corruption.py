"""Damage and malice: found before a number is computed, and by verify."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distclust.errors import DistclustError, StoreError
from distclust.store import archive
from distclust.store.ledger import Ledger
from distclust.store.manifest import GENERATIONS, digest_bytes
from distclust.store.matrix_store import create_store, open_store
from distclust.store.objects import open_objects
from tests.corpora import LAYOUTS, blocks_of, content_of, prepared, rows_of, text_ids

IDS = text_ids(0, 10)
MORE = text_ids(10, 16)
ROWS = rows_of([*IDS[:2], *IDS[3:], *MORE])


@pytest.fixture(autouse=True)
def _small_blocks() -> Any:
    with blocks_of(4):
        yield


@pytest.fixture(scope="module", params=LAYOUTS)
def template(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of two segments with a deleted row, in each layout."""
    layout = request.param
    place = tmp_path_factory.mktemp(layout) / "corpus.zarr"
    with blocks_of(4):
        store = create_store(place, prepared(IDS, layout), layout=layout)
        store.append(prepared(MORE, layout)).delete([IDS[2]])
    return place


@pytest.fixture
def place(template: Path, tmp_path: Path) -> Path:
    copy = tmp_path / "corpus.zarr"
    shutil.copytree(template, copy)
    return copy


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(content)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def lengthen(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def remove(path: Path) -> None:
    path.unlink()


DAMAGES = [(layout, damage) for layout in LAYOUTS for damage in (flip_a_bit, remove)]
DAMAGES += [("csr", damage) for damage in (truncate, empty, lengthen)]
# Objects whose absence is no damage: collected generations, and a note of the latest.
MAY_LACK = ("00000001.json", "00000002.json", "latest.json")


def read_everything(place: Path) -> dict[Any, Any]:
    """Rows, ids, keys, annotations and columns of the present generation."""
    store = open_store(place)
    matrix = store.matrix()
    for i in range(matrix.n_blocks):
        matrix.block_keys(i)
    assert len(store.columns) == 6
    return content_of(store)


@pytest.mark.parametrize(
    ("template", "damage"),
    DAMAGES,
    indirect=["template"],
    ids=[f"{layout}-{damage.__name__}" for layout, damage in DAMAGES],
)
def test_damage__of_any_object_is_found_before_it_is_believed(place, damage):
    """Reading gives the right rows or StoreError, and verify names the object."""
    n_refused = 0
    for path in sorted(place.rglob("*")):
        if not path.is_file():
            continue
        key = path.relative_to(place).as_posix()
        content = path.read_bytes()
        damage(path)
        try:
            # Older generations, names for other tools and faces are not read here.
            assert read_everything(place) == ROWS, key
        except StoreError:
            n_refused += 1
        else:
            assert is_read_by_others(key), key
        if damage is not remove or not key.endswith(MAY_LACK):
            findings = {finding.key: finding.problem for finding in verified(place)}
            assert key in findings, f"{key}: {findings}"
            assert findings[key] in ("missing", "truncated", "altered")
        path.write_bytes(content)
    assert n_refused > 20
    assert verified(place) == []


def verified(place: Path) -> list[Any]:
    return open_any(place).verify()


def open_any(place: Path) -> Any:
    """Open the newest generation that can be opened: verify looks at all of them."""
    for number in range(3, 0, -1):
        try:
            return open_store(place, number)
        except StoreError:
            continue
    raise AssertionError("no generation left")


def is_read_by_others(key: str) -> bool:
    is_metadata = key.endswith("zarr.json")
    return is_metadata or "var/" in key or key.endswith(MAY_LACK)


def test_damage__a_lost_generation_is_not_replaced_by_an_older_one(place):
    Path(place, GENERATIONS, "00000003.json").unlink()
    with pytest.raises(StoreError, match="expected generation 3, which was published, got"):
        open_store(place)
    with pytest.raises(StoreError, match="expected generation 3, which was published, got"):
        create_store(place, prepared(IDS))
    findings = open_store(place, 2).verify()
    assert (f"{GENERATIONS}/00000003.json", "missing") in [
        (finding.key, finding.problem) for finding in findings
    ]


def test_damage__chunks_that_change_places_are_found(place):
    store = open_store(place)
    n_swaps = 0
    for paths in [group for group in grouped(place).values() if len(group) > 1]:
        one, other = paths[0], paths[1]
        swap(one, other)
        with pytest.raises(StoreError, match=r"altered|truncated"):
            read_everything(place)
        assert {finding.key for finding in store.verify()} >= {
            path.relative_to(place).as_posix() for path in (one, other)
        }
        swap(one, other)
        n_swaps += 1
    assert n_swaps >= 4


def grouped(place: Path) -> dict[str, list[Path]]:
    """Chunks with different content, by array."""
    arrays: dict[str, dict[bytes, Path]] = {}
    for path in sorted(place.rglob("*")):
        key = path.relative_to(place).as_posix()
        if path.is_file() and "/c/" in key and "var/" not in key:
            arrays.setdefault(key.split("/c/")[0], {})[path.read_bytes()] = path
    return {name: list(paths.values()) for name, paths in arrays.items()}


def swap(one: Path, other: Path) -> None:
    content = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(content)


def test_damage__objects_of_another_store_are_no_substitute(place, tmp_path):
    """Also where they are sound in themselves: tables, features, positions, records."""
    with blocks_of(4):
        layout = open_store(place).layout
        other = create_store(tmp_path / "other", prepared(IDS, layout, 1), layout=layout)
        other.append(prepared(MORE, layout, 1)).delete([IDS[3]])
    for folder in ("segments", "columns", "tombstones", "generations"):
        mine = sorted(Path(place, ".distclust", folder).iterdir())
        theirs = sorted(Path(tmp_path, "other", ".distclust", folder).iterdir())
        for one, foreign in zip(mine, theirs, strict=True):
            content = one.read_bytes()
            one.write_bytes(foreign.read_bytes())
            if one.read_bytes() != content:
                try:
                    assert read_everything(place) == ROWS
                    assert folder in ("generations", "columns")  # of older generations
                except StoreError:
                    pass
            one.write_bytes(content)
    assert read_everything(place) == ROWS


def test_foreign__files_are_told_and_left(place):
    names = ["notes.txt", "X/notes.txt", "X/c/99/0", "obs/_index/c/9", ".distclust/x", "segments/y"]
    names += [".distclust/segments/evil.table", "with space.txt", "ünïcode"]
    for name in names:
        Path(place, name).parent.mkdir(parents=True, exist_ok=True)
        Path(place, name).write_text("mine")
    findings = open_store(place).verify()
    assert {(finding.key, finding.problem) for finding in findings} == {
        (name, "foreign") for name in names
    }
    assert read_everything(place) == ROWS
    open_store(place).gc(older_than=0, grace=0)
    assert all(Path(place, name).read_text() == "mine" for name in names)


# ---- malice: everything is consistent, and still not believed ------------------------------------


def forge(place: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Publish a manifest with some lies, sealed as it should be."""
    ledger = Ledger(open_objects(place), GENERATIONS)
    head = ledger.head()
    assert head is not None
    content = json.loads(json.dumps(head.content))
    change(content)
    ledger.append(content, head.number)


def set_to(**values: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.update(values)


def set_segment(field: int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        content["segments"][0][field] = value

    return change


LIES: dict[str, Callable[[dict[str, Any]], None]] = {
    "rows": set_segment(2, 10**15),
    "negative rows": set_segment(2, -1),
    "rows as text": set_segment(2, "10"),
    "name with a path": set_segment(0, "../../../etc"),
    "absolute name": set_segment(0, "/etc/passwd"),
    "name of nothing": set_segment(0, "0" * 16),
    "root twice": lambda content: content["segments"].append(content["segments"][0]),
    "other digest": set_segment(3, "0" * 32),
    "features": set_to(n_features=10**15),
    "features of a path": set_to(features=["../x", "0" * 32]),
    "no features": lambda content: content.pop("features"),
    "deleted": set_to(n_deleted=10**15),
    "deleted without positions": set_to(tombstones=None),
    "fewer deleted": set_to(n_deleted=0),
    "layout": set_to(layout="pickle"),
    "dense as sparse": lambda content: content.update(
        layout="csr" if content["layout"] == "dense" else "dense"
    ),
    "ids": set_to(ids="object"),
    "other ids": set_to(ids="integer"),
    "annotations": set_to(obs=[["note", "object"]]),
    "other annotations": set_to(obs=[["note", "real"]]),
    "segments": set_to(segments=7),
    "format": set_to(format="results"),
    "version": set_to(format_version="1"),
}


@pytest.mark.parametrize("lie", LIES)
def test_hostile__manifests_are_refused(template, tmp_path, lie):
    place = tmp_path / "corpus.zarr"
    shutil.copytree(template, place)
    forge(place, LIES[lie])
    with pytest.raises(StoreError) as caught:
        read_everything(place)
    assert caught.value.exit_code == 2
    assert verified(place) != []


def test_hostile__impossible_numbers_are_refused_when_a_store_is_opened(place):
    forge(place, set_to(n_deleted=10**15))
    with pytest.raises(StoreError, match="impossible numbers of rows"):
        open_store(place)


@pytest.mark.parametrize("positions", [[5, 5], [9, 3], [-1], [16], [2**62]])
def test_hostile__deleted_positions_are_refused(place, positions):
    content = np.array(positions, "<i8").tobytes()
    Path(place, ".distclust", "tombstones", f"{'e' * 16}.int64").write_bytes(content)
    lie = set_to(tombstones=["e" * 16, digest_bytes(content)], n_deleted=len(positions))
    forge(place, lie)
    with pytest.raises(StoreError, match="what generation 4 says, got other positions"):
        read_everything(place)
    assert verified(place) != []


def forge_table(place: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """Rewrite the table of the first segment, and a manifest that vouches for it."""
    ledger = Ledger(open_objects(place), GENERATIONS)
    head = ledger.head()
    assert head is not None
    entry = head.content["segments"][0]
    path = Path(place, ".distclust", "segments", f"{entry[0]}.table")
    kept = archive.decode_archive(path.read_bytes(), "here")
    meta, arrays = json.loads(json.dumps(kept.meta)), dict(kept.arrays)
    change(meta, arrays)
    content = archive.encode_archive(kept.kind, meta, arrays)
    path.write_bytes(content)

    def vouch(manifest: dict[str, Any]) -> None:
        manifest["segments"][0][3] = digest_bytes(content)
        manifest["segments"][0][2] = meta["spec"]["n_rows"]

    forge(place, vouch)


def claim_rows(meta: dict[str, Any], arrays: dict[str, Any]) -> None:
    meta["spec"]["n_rows"] = 10**15


def claim_shape(meta: dict[str, Any], arrays: dict[str, Any]) -> None:
    for values in meta["metadata"].values():
        if values.get("node_type") == "array":
            values["shape"][0] = 10**15


def claim_objects(meta: dict[str, Any], arrays: dict[str, Any]) -> None:
    for values in meta["metadata"].values():
        if values.get("node_type") == "array":
            values["data_type"] = "object"


def claim_pickles(meta: dict[str, Any], arrays: dict[str, Any]) -> None:
    for values in meta["metadata"].values():
        if values.get("node_type") == "array":
            values["codecs"] = [{"name": "pickle"}]


def claim_chunks(meta: dict[str, Any], arrays: dict[str, Any]) -> None:
    arrays["sizes"] = arrays["sizes"][:-1]


def claim_paths(meta: dict[str, Any], arrays: dict[str, Any]) -> None:
    meta["metadata"] = {f"../../{path}": values for path, values in meta["metadata"].items()}


TABLES = [claim_rows, claim_shape, claim_objects, claim_pickles, claim_chunks, claim_paths]


@pytest.mark.parametrize("change", TABLES, ids=lambda change: change.__name__)
def test_hostile__tables_are_refused(place, change):
    forge_table(place, change)
    with pytest.raises(StoreError):
        read_everything(place)
    assert verified(place) != []


def test_hostile__pickles_in_a_table_are_refused(place):
    """An archive with an object array is not opened; nothing in it is run."""
    file = io.BytesIO()
    np.save(file, np.array([{"a": 1}], object), allow_pickle=True)
    table = next(Path(place, ".distclust", "segments").iterdir())
    with zipfile.ZipFile(table, "a") as target:
        target.writestr("evil.npy", file.getvalue())
    with pytest.raises(StoreError):
        read_everything(place)


def test_errors__are_one_sentence_with_exit_code_2(place):
    next(path for path in place.glob("X/**/0") if path.is_file()).unlink()
    with pytest.raises(DistclustError) as caught:
        read_everything(place)
    assert caught.value.exit_code == 2
    assert "expected the object that was written, got missing" in str(caught.value)
