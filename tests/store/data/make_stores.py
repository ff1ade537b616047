"""Freeze small stores of the present format version as bytes: ``python make_stores.py``.

Writes ``stores_v<version>.tar.xz`` beside this file: a store in each layout that was made, grown,
changed and deleted from, and what must be read from it. Done once for every format version,
with the release that wrote it; later releases read the file and never write it again.
"""

from __future__ import annotations

import json
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from distclust.store.manifest import FORMAT_VERSION
from distclust.store.matrix import Column
from distclust.store.matrix_store import create_store
from distclust.store.rows import ArrayRows
from distclust.store.sources.base import Prepared

IDS = [f"row {i}" for i in range(8)] + ["ряд", "行"]
COLUMNS = (
    Column("a", number="integer"),
    Column("b"),
    Column("c", "category", ("no", "perhaps", "yes", "ж")),
    Column("d", number="bool"),
)


def columns_of(layout: str) -> tuple[Column, ...]:
    """Categories are stored dense: code 0 is a level, not the absence of one."""
    number = Column("c", number="integer")
    return COLUMNS if layout == "dense" else (*COLUMNS[:2], number, COLUMNS[3])


def values_of(layout: str) -> Any:
    """Counts; the dense ones with fractions and gaps."""
    values = (np.arange(40).reshape(10, 4) % 7 % 3).astype(np.float64)
    if layout == "dense":
        values[:, 1] /= 3
        values[2, 2] = np.nan
    return values


def rows_of(layout: str, values: Any, which: list[int]) -> Prepared:
    """Some of the rows, as they come into a store."""
    given = values[which] if layout == "dense" else scipy.sparse.csr_array(values[which])
    notes = np.array([None if i % 4 == 0 else f"note {i}" for i in which], object)
    obs = {"note": notes, "weight": np.array(which, np.float64) / 4}
    kinds = {"note": "text", "weight": "real"}
    rows = ArrayRows(given, np.array([IDS[i] for i in which], object), obs)
    return Prepared(rows, columns_of(layout), kinds, "text", facts={"thresholds": [0.5, None]})


def make(folder: Path, layout: str) -> dict[str, Any]:
    """Make a store; return what must be read from it."""
    values = values_of(layout)
    first = rows_of(layout, values, [0, 1, 2, 3, 4])
    codec: Any = "packed" if layout == "csr" else "hot"
    store = create_store(folder, first, layout=layout, codec=codec)
    store = store.append(rows_of(layout, values, [5, 6, 7]))
    store = store.replace(rows_of(layout, values + (values > 0), [1, 8]))
    store = store.delete([IDS[3]])
    left = [0, 2, 4, 5, 6, 7, 1, 8]
    last = values[left]
    last[-2:] += last[-2:] > 0
    return {
        "layout": layout,
        "kinds": [column.kind for column in columns_of(layout)],
        "ids": [IDS[i] for i in left],
        "values": [[None if np.isnan(value) else value for value in row] for row in last.tolist()],
        "notes": [None if i % 4 == 0 else f"note {i}" for i in left],
        "weights": [i / 4 for i in left],
        "generations": ["create", "append", "replace", "delete"],
        "fingerprint": store.fingerprint,
    }


def main() -> None:
    """Write the file, unless it is there."""
    target = Path(__file__).with_name(f"stores_v{FORMAT_VERSION}.tar.xz")
    if target.exists():
        sys.exit(f"{target} is frozen")
    with tempfile.TemporaryDirectory() as folder:
        expected = [make(Path(folder, layout), layout) for layout in ("dense", "csr", "compact")]
        Path(folder, "expected.json").write_text(json.dumps(expected, indent=1))
        with tarfile.open(target, "w:xz") as archive:
            for path in sorted(Path(folder).rglob("*")):
                if path.is_file():
                    archive.add(path, path.relative_to(folder))


if __name__ == "__main__":
    main()
