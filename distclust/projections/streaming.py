"""Coordinates of rows block by block: as many rows as a store has, never all in memory."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from distclust.engine import ingest, map_blocks
from distclust.errors import InputError, StoreError
from distclust.projections.kernel_pca import KernelPCA, _checked_projection
from distclust.projections.ppca import PPCA
from distclust.projections.ppca_blocks import project_block
from distclust.store.files import remove_tree, replacing, sync_folder

if TYPE_CHECKING:
    from distclust.store import Matrix

    Piece = tuple[npt.NDArray[Any], npt.NDArray[np.float64]]

STAGE = "projecting the rows"


def transform_blocks(model: KernelPCA | PPCA, X: Any) -> Iterator[Piece]:
    """Yield ids and coordinates of the rows of every block; together `model.transform(X)`."""
    matrix: Matrix = model._new_rows(X, "transform")
    if isinstance(model, PPCA):
        parts = map_blocks(project_block, matrix, model._model(), stage=STAGE)
    else:
        parts = map_blocks(_checked_projection, matrix, model._landmarks, stage=STAGE)
    with matrix.held():
        for index, part in enumerate(parts):
            yield matrix.block_ids(index), part


def component_names(n_components: int) -> list[str]:
    """Return the names of the columns of coordinates."""
    return [f"component_{k + 1}" for k in range(n_components)]


def csv_texts(pieces: Iterator[Piece], n_components: int) -> Iterator[str]:
    """Yield a header, and the lines of every block."""
    import pandas as pd

    names = component_names(n_components)
    yield ",".join(["row", *names]) + "\n"
    for ids, part in pieces:
        frame = pd.DataFrame(part, columns=names)
        frame.insert(0, "row", ids)
        yield frame.to_csv(index=False, header=False)


def write_csv(path: Path, pieces: Iterator[Piece], n_components: int) -> None:
    """Write coordinates to a CSV file, complete or not at all."""
    with replacing(path) as file:
        for text in csv_texts(pieces, n_components):
            file.write(text.encode())


def write_npy(path: Path, pieces: Iterator[Piece], shape: tuple[int, int]) -> None:
    """Write coordinates to a NumPy file, complete or not at all; it has no place for ids."""
    header = {"descr": "<f8", "fortran_order": False, "shape": shape}
    with replacing(path) as file:
        np.lib.format.write_array_header_1_0(file, header)
        for _, part in pieces:
            file.write(np.ascontiguousarray(part, "<f8").data)


def write_store(place: str, pieces: Iterator[Piece], n_components: int, *, overwrite: bool) -> None:
    """Write coordinates to a matrix store, complete or not at all.

    Its array ``X`` is a plain Zarr array of shape (n_rows, n_components); ``obs`` has the ids.
    """
    if not (overwrite and os.path.isdir(place)):
        ingest(_tables(pieces, n_components), place, layout="dense", fresh=True)
        return
    folder = Path(os.path.realpath(place))
    new = folder.with_name(f".{folder.name}.new")
    old = folder.with_name(f".{folder.name}.old")
    remove_tree(new)
    ingest(_tables(pieces, n_components), new, layout="dense", fresh=True)
    remove_tree(old)
    os.rename(folder, old)
    os.rename(new, folder)
    sync_folder(folder.parent)
    remove_tree(old)


def check_coordinates(place: str) -> None:
    """Refuse to replace a folder that is not a store of coordinates."""
    from distclust.store.matrix_store import open_store

    hint = "Choose another name with --out."
    try:
        columns = [column.name for column in open_store(place).matrix().columns]
    except StoreError:
        columns = []
    if not columns or columns != component_names(len(columns)):
        raise InputError(place, "coordinates of rows to replace", "something else", hint)


def _tables(pieces: Iterator[Piece], n_components: int) -> Iterator[Any]:
    import pandas as pd

    names = component_names(n_components)
    for ids, part in pieces:
        yield ids, pd.DataFrame(part, columns=names)
