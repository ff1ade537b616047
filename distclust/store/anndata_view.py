"""The rows of any store as an AnnData object in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from distclust.errors import InputError
from distclust.store.generation import Generation
from distclust.store.stored_matrix import StoredMatrix

if TYPE_CHECKING:
    import anndata


def to_anndata(generation: Generation) -> anndata.AnnData:
    """Return the live rows with their ids, annotations and names of features.

    Raises
    ------
    InputError
        If the package anndata is not installed.
    """
    try:
        import anndata
    except ImportError as error:
        hint = "Install anndata, for instance with pip install distclust[anndata]."
        raise InputError("to_anndata", "the package anndata", "none", hint) from error
    import pandas as pd

    matrix = StoredMatrix(generation)
    blocks = range(matrix.n_blocks)
    obs: dict[str, Any] = {
        name: np.concatenate([matrix.block_obs(name, i) for i in blocks]) if blocks else []
        for name, _ in generation.manifest.obs
    }
    index = pd.Index([str(row_id) for row_id in matrix.row_ids], dtype=object)
    names = pd.Index([column.name for column in matrix.columns], dtype=object)
    return anndata.AnnData(
        matrix.read_all(), obs=pd.DataFrame(obs, index=index), var=pd.DataFrame(index=names)
    )
