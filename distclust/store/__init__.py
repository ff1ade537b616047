"""Matrices in memory, cut into logical row blocks, and fitted models in a file."""

from distclust.store.archive import FORMAT_VERSION, Archive, read_archive, write_archive
from distclust.store.matrix import (
    ArrayMatrix,
    Block,
    Column,
    Matrix,
    Profile,
    SparseMatrix,
    block_rows_for,
    canonical_csr,
    default_columns,
    has_default_names,
    profile_block,
)

__all__ = [
    "FORMAT_VERSION",
    "Archive",
    "ArrayMatrix",
    "Block",
    "Column",
    "Matrix",
    "Profile",
    "SparseMatrix",
    "block_rows_for",
    "canonical_csr",
    "default_columns",
    "has_default_names",
    "profile_block",
    "read_archive",
    "write_archive",
]
