"""Sparse rows and texts as plain arrays, the way they lie in a spool."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import scipy.sparse

from distclust.store.matrix import canonical_csr
from distclust.store.sources.schema import smallest_integer

Array: TypeAlias = npt.NDArray[Any]


def flatten_csr(csr: Any) -> dict[str, Array]:
    """Return the arrays of sparse rows; patterns need no values."""
    arrays = {"indices": csr.indices, "indptr": csr.indptr}
    return arrays if csr.dtype == np.bool_ else {**arrays, "data": csr.data}


def sum_repeated(matrix: Any) -> scipy.sparse.csr_array:
    """Return any sparse matrix as canonical rows; values at one place add up.

    Whole numbers keep their type if it holds the sums, and else get the smallest that does.
    """
    dtype = matrix.dtype.newbyteorder("=")
    if dtype.kind not in "iu" or (matrix.format == "csr" and matrix.has_canonical_format):
        return canonical_csr(matrix)
    csr = canonical_csr(matrix.astype(np.uint64 if dtype.kind == "u" else np.int64))
    low, high = (int(csr.data.min()), int(csr.data.max())) if csr.nnz else (0, 0)
    is_held = np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max
    return canonical_csr(csr.astype(dtype if is_held else smallest_integer(low, high)))


def rebuild_csr(arrays: Mapping[str, Array], n_features: int) -> scipy.sparse.csr_array:
    """Return the canonical sparse rows that `flatten_csr` took apart, shape (n, n_features)."""
    indices, indptr = arrays["indices"], arrays["indptr"]
    data = arrays["data"] if "data" in arrays else np.ones(len(indices), np.bool_)
    csr = scipy.sparse.csr_array((data, indices, indptr), shape=(len(indptr) - 1, n_features))
    return canonical_csr(csr)


def flatten_texts(texts: Sequence[str | None], name: str) -> dict[str, Array]:
    """Return texts, None for missing ones, as bytes and the ends of all of them."""
    encoded = [b"" if text is None else text.encode() for text in texts]
    ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    is_missing = np.array([text is None for text in texts], np.bool_)
    content = np.frombuffer(b"".join(encoded), np.uint8)
    return {f"{name}.bytes": content, f"{name}.ends": ends, f"{name}.missing": is_missing}


def rebuild_texts(arrays: Mapping[str, Array], name: str) -> Array:
    """Return the texts that `flatten_texts` took, shape (n,), objects."""
    content, ends = arrays[f"{name}.bytes"].tobytes(), arrays[f"{name}.ends"].tolist()
    texts = np.empty(len(ends) - 1, object)
    texts[:] = [content[a:b].decode() for a, b in itertools.pairwise(ends)]
    texts[arrays[f"{name}.missing"]] = None
    return texts
