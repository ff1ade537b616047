"""What a segment is made of, and what every layout has to say about it.

Rows are cut into the logical blocks of `distclust.store.matrix`. What belongs to a block
(ids, keys, annotations, and the values where the layout allows) is written as chunks of its
own, by one task, so that nobody ever writes into another's chunk.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt
import scipy.sparse

from distclust.errors import InputError
from distclust.store.arrays import ArraySpec, StoredArray
from distclust.store.codecs import TEXT, Blosc, Chain, Crc32c, Zstd
from distclust.store.matrix import Block, block_dtype, block_rows_for
from distclust.store.rows import Rows, RowSource
from distclust.store.surveys import LayoutName, Survey, canonical_values, pieces_of

Array: TypeAlias = npt.NDArray[Any]
CodecName: TypeAlias = Literal["hot", "packed"]
IdsKind: TypeAlias = Literal["integer", "text"]
ObsKind: TypeAlias = Literal["integer", "real", "bool", "text"]
Piece: TypeAlias = tuple[str, int, Array]  # array, chunk, what the chunk begins with
OpenArray: TypeAlias = Callable[[str], StoredArray]

_INNER_BYTES = 2**20  # of the inner chunks of compressed shards
_MOST_ROWS = 2**53
_MOST_FEATURES = 2**31 - 1


@dataclass(frozen=True)
class SegmentSpec:
    """What a segment holds and how.

    Attributes
    ----------
    layout
        How values lie on disk.
    codec
        "hot": as they are in memory, for local disks and the page cache; "packed":
        compressed shards, for object stores.
    n_rows, n_features
        The shape.
    dtype
        Name of the type of the values of dense and CSR layouts, such as "float32".
    ids_kind
        Whether row ids are int64 or text.
    obs
        Names and kinds of annotations; text may be missing.
    """

    layout: LayoutName
    codec: CodecName
    n_rows: int
    n_features: int
    dtype: str
    ids_kind: IdsKind = "integer"
    obs: tuple[tuple[str, ObsKind], ...] = ()

    @functools.cached_property
    def block_rows(self) -> int:
        """Rows in every block but the last."""
        return block_rows_for(self.n_features, self.layout != "dense")

    @property
    def n_blocks(self) -> int:
        """How many blocks hold all rows."""
        return -(-self.n_rows // self.block_rows)

    @property
    def chunk_rows(self) -> int:
        """Rows in the chunks of arrays with a value or more a row."""
        return min(self.block_rows, self.n_rows)

    def block_bounds(self, index: int) -> tuple[int, int]:
        """First row of block `index` and the row after its last."""
        start = index * self.block_rows
        if not 0 <= start < self.n_rows:
            raise IndexError(f"block {index} of a segment with {self.n_blocks} blocks")
        return start, min(start + self.block_rows, self.n_rows)

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> SegmentSpec:
        """Return what `to_json` described, or raise ValueError, KeyError or TypeError."""
        obs = tuple((name, kind) for name, kind in values["obs"])
        spec = cls(**{**values, "obs": obs})
        is_sane = (
            spec.layout in get_args(LayoutName)
            and spec.codec in get_args(CodecName)
            and type(spec.n_rows) is int
            and 0 < spec.n_rows <= _MOST_ROWS
            and type(spec.n_features) is int
            and 0 < spec.n_features <= _MOST_FEATURES
            and np.dtype(spec.dtype).kind in "biuf"
            and spec.ids_kind in get_args(IdsKind)
            and all(type(name) is str and kind in get_args(ObsKind) for name, kind in obs)
        )
        if not is_sane:
            raise ValueError(f"a segment of {values}")
        return spec

    def array(
        self, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: Any, encoding: str = ""
    ) -> ArraySpec:
        """Return an array of this segment, coded as its codec says.

        `encoding` is what AnnData calls such an array.
        """
        dtype = np.dtype(dtype)
        attributes = encoded(encoding) if encoding else {}
        return ArraySpec(shape, chunks, dtype, _chain(self.codec, chunks, dtype), attributes)


def encoded(name: str, version: str = "0.2.0", **others: Any) -> dict[str, Any]:
    """Return attributes by which AnnData knows an array or a group."""
    return {"encoding-type": name, "encoding-version": version, **others}


def _chain(codec: CodecName, chunks: tuple[int, ...], dtype: np.dtype[Any]) -> Chain:
    if codec == "hot":
        return Chain((Crc32c(),))
    if dtype == TEXT:
        return Chain((Zstd(), Crc32c()))
    # Measured on a million values each, bits shuffled: on indices, counts and binary values
    # LZ4 is within a sixth of zstd's size at two to three times its speed, 2 to 3 GB/s; on
    # numbers of two decimals zstd takes 0.50 of their size and LZ4 0.91.
    name = "zstd" if dtype.kind == "f" else "lz4"
    level = 1 if name == "zstd" else 5
    compressor = Blosc(name, level, "bitshuffle", dtype.itemsize)
    rows, *others = chunks
    row_bytes = dtype.itemsize * int(np.prod(others, dtype=np.int64))
    while rows % 2 == 0 and rows * row_bytes > _INNER_BYTES:
        rows //= 2
    return Chain((compressor, Crc32c()), inner=(rows, *others))


class Layout(ABC):
    """How values lie in arrays, when they are written.

    A layout follows from the spec and the survey alone, so that the tasks that write it,
    one a block, need nothing from each other.
    """

    def __init__(self, spec: SegmentSpec, survey: Survey) -> None:
        self.spec = spec
        self.survey = survey

    @functools.cached_property
    @abstractmethod
    def arrays(self) -> dict[str, ArraySpec]:
        """Arrays that hold the values, by path."""

    @abstractmethod
    def pieces(self, index: int, rows: Rows, source: RowSource) -> Iterator[Piece]:
        """Chunks that belong to block `index`, from its rows and where they came from."""

    def group(self) -> dict[str, Any] | None:
        """Attributes of ``X`` if it is a group."""
        return None

    def common_pieces(self) -> Iterator[Piece]:
        """Chunks that belong to no block."""
        return iter(())

    @functools.cached_property
    def offsets(self) -> npt.NDArray[np.int64]:
        """Nonzeros before each block and in all, shape (n_blocks + 1,)."""
        return self.survey.offsets(self.spec.block_rows)

    def csr(self, index: int, rows: Rows) -> Any:
        """Rows of a block as canonical CSR, as many values as the survey found."""
        values = scipy.sparse.csr_array(canonical_values(rows))
        before, after = self.offsets[index : index + 2]
        start, stop = self.spec.block_bounds(index)
        if values.shape != (stop - start, self.spec.n_features) or values.nnz != after - before:
            raise changed(start, stop)
        return values


def read_sparse(source: RowSource, start: int, stop: int) -> Rows:
    """Rows ``[start, stop)`` with sparse values; dense ones are never in memory all at once."""
    if source.is_sparse:
        return source.read(start, stop)
    parts: list[Rows] = []
    blocks: list[Any] = []
    for first, last in pieces_of(source, start, stop):
        part = source.read(first, last)
        block = scipy.sparse.csr_array(canonical_values(part))
        if block.shape != (last - first, source.n_features):
            raise changed(first, last)
        blocks.append(block)
        parts.append(replace(part, values=block))  # lets go of the dense values
    return Rows(
        scipy.sparse.vstack(blocks, format="csr"),
        np.concatenate([part.ids for part in parts]),
        {name: np.concatenate([part.obs[name] for part in parts]) for name in parts[0].obs},
    )


def changed(start: int, stop: int) -> InputError:
    """Say that a source does not give the same rows every time."""
    return InputError(
        f"rows {start} to {stop}",
        "the same values every time they are read",
        "others",
        "Leave the source alone until it is stored, then run again from the start.",
    )


class ValuesReader(ABC):
    """How values come back, block by block; thread-safe. Arrays are opened when needed.

    Attributes
    ----------
    dtype
        Type of the values of all blocks.
    """

    dtype: np.dtype[Any]

    def __init__(self, spec: SegmentSpec, survey: Survey, open_array: OpenArray) -> None:
        self._spec = spec
        self._open = open_array
        self.dtype = block_dtype(np.dtype(spec.dtype))

    @abstractmethod
    def block(self, index: int) -> Block:
        """Rows of block `index`, as `distclust.store.matrix` wants them."""
