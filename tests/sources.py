"""Reading all rows of a source in a test, the way a store is written from it."""

from __future__ import annotations

import pickle
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

from distclust.store.mapping import Mapper, serial_map
from distclust.store.objects import open_objects
from distclust.store.sources import Prepared, Scratch, SourceOptions, open_source

_STEP = 7


@dataclass
class Read:
    """All rows of a source: `values` dense, and what else was prepared."""

    values: Any
    ids: Any
    obs: dict[str, Any]
    prepared: Prepared

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.prepared.columns]


def scratch_in(place: str | Path) -> Scratch:
    return Scratch(open_objects(place), ".distclust/ingest/test/source")


def prepare_source(
    spec: Any, place: str | Path, mapper: Mapper = serial_map, **options: Any
) -> Prepared:
    return open_source(spec, SourceOptions(**options)).prepare(scratch_in(place), mapper)


def read_source(
    spec: Any,
    place: str | Path | None = None,
    mapper: Mapper = serial_map,
    step: int = _STEP,
    **options: Any,
) -> Read:
    """Prepare a source, send its rows through pickle, and read them a few at a time.

    The scratch is in `place`, or in memory and then removed.
    """
    if place is None:
        place = f"memory://{secrets.token_hex(6)}"
        try:
            return read_source(spec, place, mapper, step, **options)
        finally:
            open_objects(place).delete_tree(".distclust")
    prepared = prepare_source(spec, place, mapper, **options)
    rows = pickle.loads(pickle.dumps(prepared.rows))
    starts = range(0, rows.n_rows, step)
    parts = [rows.read(start, min(start + step, rows.n_rows)) for start in starts]
    for part in parts:
        assert scipy.sparse.issparse(part.values) == rows.is_sparse
        assert part.values.dtype == rows.dtype
        assert part.values.shape == (len(part.ids), rows.n_features)
        assert list(part.obs) == list(prepared.obs_kinds)
        assert (part.ids.dtype.kind in "iu") == (prepared.ids_kind == "integer")
    values = [part.values.toarray() if rows.is_sparse else part.values for part in parts]
    obs = {name: np.concatenate([part.obs[name] for part in parts]) for name in prepared.obs_kinds}
    ids = np.concatenate([part.ids for part in parts])
    return Read(np.concatenate(values), ids, obs, prepared)
