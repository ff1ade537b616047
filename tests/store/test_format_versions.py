"""Older formats are read for good; a newer one is refused with a sentence."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from distclust import __version__
from distclust.errors import StoreError
from distclust.store import manifest
from distclust.store.ledger import Ledger
from distclust.store.manifest import FORMAT_VERSION, GENERATIONS
from distclust.store.matrix import Column
from distclust.store.matrix_store import MatrixStore, create_store, open_store
from distclust.store.objects import open_objects
from distclust.store.sealed import digest_of
from tests.corpora import content_of, prepared

DATA = Path(__file__).with_name("data")
FROZEN = sorted(DATA.glob("stores_v*.tar.xz"))
LAYOUTS = ("dense", "csr", "compact")


def test_frozen__every_version_is_there():
    versions = range(1, FORMAT_VERSION + 1)
    assert [path.name for path in FROZEN] == [f"stores_v{n}.tar.xz" for n in versions]
    assert sorted(manifest._READERS) == list(versions)


@pytest.fixture(
    params=[(path, layout) for path in FROZEN for layout in LAYOUTS],
    ids=lambda found: f"{found[0].name}-{found[1]}",
)
def frozen(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[MatrixStore, dict[str, Any]]:
    """A store that an older release wrote, and what it must show."""
    path, layout = request.param
    with tarfile.open(path) as archive:
        archive.extractall(tmp_path, filter="data")
    expected = json.loads((tmp_path / "expected.json").read_text())
    return open_store(tmp_path / layout), next(e for e in expected if e["layout"] == layout)


def check(store: MatrixStore, expected: dict[str, Any]) -> None:
    matrix: Any = store.matrix()
    found = matrix.read_all()
    wanted = np.array(expected["values"], np.float64)  # None becomes NaN
    np.testing.assert_array_equal(found if matrix.is_sparse is False else found.toarray(), wanted)
    assert matrix.row_ids.tolist() == expected["ids"]
    blocks = range(matrix.n_blocks)
    assert [note for i in blocks for note in matrix.block_obs("note", i)] == expected["notes"]
    assert [w for i in blocks for w in matrix.block_obs("weight", i)] == expected["weights"]


def test_frozen__stores_are_read_verified_and_grown(frozen):
    store, expected = frozen
    check(store, expected)
    assert store.layout == expected["layout"]
    assert store.fingerprint == expected["fingerprint"]
    assert [column.kind for column in store.columns] == expected["kinds"]
    if "category" in expected["kinds"]:
        assert store.columns[2] == Column("c", "category", ("no", "perhaps", "yes", "ж"))
    assert store.facts == {"thresholds": [0.5, None]}
    assert [info.action for info in store.generations()] == expected["generations"]
    assert open_store(store.url, 1).shape == (5, 4)
    assert store.verify() == []
    compacted = store.compact()
    check(compacted, expected)
    check(compacted.rollback(4), expected)
    assert compacted.gc(older_than=0, grace=0).generations == (1, 2, 3, 4, 5)
    assert open_store(store.url).verify() == []


def test_newer__manifests_are_refused_with_what_to_do(tmp_path):
    store = create_store(tmp_path / "store", prepared(["a", "b"]))
    ledger = Ledger(open_objects(tmp_path / "store"), GENERATIONS)
    content = {**ledger.read(1).content, "format_version": FORMAT_VERSION + 1, "writer": "9.9"}
    ledger.append(content, 1)
    wanted = f"expected format version {FORMAT_VERSION} or older, got version "
    for ask in (
        lambda: open_store(tmp_path / "store"),
        store.generations,
        lambda: store.gc(grace=0),
    ):
        with pytest.raises(StoreError, match=wanted + r"\d, written by distclust 9.9. Upgrade"):
            ask()
    assert len(content_of(open_store(tmp_path / "store", 1))) == 2
    assert {finding.key for finding in store.verify()} == {f"{GENERATIONS}/00000002.json"}


def test_newer__ledgers_are_refused_with_what_to_do(tmp_path):
    create_store(tmp_path / "store", prepared(["a", "b"]))
    path = tmp_path / "store" / GENERATIONS / "00000001.json"
    document = json.loads(path.read_text())
    del document["digest"]
    document |= {"format_version": 99, "writer": "9.9"}
    path.write_text(json.dumps({**document, "digest": digest_of(document)}))
    with pytest.raises(StoreError, match=r"got version 99, written by distclust 9.9. Upgrade"):
        open_store(tmp_path / "store")


def test_manifest__says_who_wrote_it(tmp_path):
    create_store(tmp_path / "store", prepared(["a", "b"]))
    content = Ledger(open_objects(tmp_path / "store"), GENERATIONS).read(1).content
    assert (content["format_version"], content["writer"]) == (FORMAT_VERSION, __version__)
