"""Zarr arrays as stores write and read them: chunk by chunk, every chunk verified.

Zarr reads an absent chunk as zeros and believes whatever bytes it finds. Here a table of
sizes and checksums, one entry a chunk, is kept with every array, and every read is checked
against it before a value is looked at. Every chunk is written, also one of zeros.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.errors import StoreError
from distclust.store.codecs import DECODING_ERRORS, TEXT, AbsentChunk, Bytes, Chain
from distclust.store.objects import MissingObject, Objects, checksum

Array: TypeAlias = npt.NDArray[Any]
Entry: TypeAlias = tuple[int, bytes]  # size and checksum of a chunk

METADATA = "zarr.json"

_CHAIN = Chain()

ABSENT_HINT = (
    'If zeros were left out, say so by missing_chunks="zeros"; else copy the store again, or '
    "write it with all of its chunks (write_empty_chunks of Zarr)."
)

_HINT = "Restore the object from a copy, or make the store again from its source."


@dataclass(frozen=True)
class ArraySpec:
    """Shape, type and coding of an array.

    Attributes
    ----------
    shape, chunks
        Shape of the array, and shape of every chunk.
    dtype
        Type of the values; `TEXT` for strings.
    chain
        How a chunk becomes bytes.
    attributes
        JSON values beside the array.
    fill_value
        What an absent chunk would mean.
    prefix, separator
        Chunk (2, 0) is named ``c/2/0``, or ``2.0`` in Zarr v2.
    """

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: np.dtype[Any]
    chain: Chain = _CHAIN
    attributes: Mapping[str, Any] = field(default_factory=dict)
    fill_value: Any = 0
    prefix: str = "c/"
    separator: str = "/"

    @functools.cached_property
    def grid(self) -> tuple[int, ...]:
        """Numbers of chunks along every axis."""
        return tuple(-(-n // m) for n, m in zip(self.shape, self.chunks, strict=True))

    @property
    def n_chunks(self) -> int:
        """Number of chunks."""
        return math.prod(self.grid)

    def place(self, number: int) -> tuple[int, ...]:
        """Place of a chunk in the grid; chunks are counted in C order."""
        place = []
        for n in reversed(self.grid):
            number, rest = divmod(number, n)
            place.append(rest)
        return tuple(reversed(place))

    def extent(self, number: int) -> tuple[int, ...]:
        """How far along every axis a chunk holds values of the array."""
        sides = zip(self.place(number), self.chunks, self.shape, strict=True)
        return tuple(min(n, end - i * n) for i, n, end in sides)

    def key(self, number: int) -> str:
        """Name of a chunk below the array."""
        return self.prefix + self.separator.join(map(str, self.place(number)))

    def encode(self, values: Array) -> list[Any]:
        """Return the buffers of a chunk that begins with `values`."""
        assert values.dtype == self.dtype
        return self.chain.encode(values, self.chunks)

    def metadata(self) -> dict[str, Any]:
        """Describe the array as Zarr v3 does."""
        is_text = self.dtype == TEXT
        grid = {"name": "regular", "configuration": {"chunk_shape": list(self.chunks)}}
        return {
            "zarr_format": 3,
            "node_type": "array",
            "shape": list(self.shape),
            "data_type": "string" if is_text else self.dtype.name,
            "chunk_grid": grid,
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "fill_value": "" if is_text else self.dtype.type(0).item(),
            "codecs": self.chain.to_json(self.dtype),
            "attributes": dict(self.attributes),
            "storage_transformers": [],
        }


@dataclass(frozen=True, eq=False)
class ChunkTable:
    """What every chunk of an array must be.

    Attributes
    ----------
    sizes
        Bytes, shape (n_chunks,).
    checksums
        Shape (n_chunks, 16).
    """

    sizes: npt.NDArray[np.uint64]
    checksums: Bytes

    def __post_init__(self) -> None:
        is_sane = self.sizes.dtype == np.uint64 and self.checksums.dtype == np.uint8
        if not is_sane or self.checksums.shape != (*self.sizes.shape, 16):
            raise ValueError("a table of sizes and checksums of another shape or type")

    @classmethod
    def of(cls, entries: Sequence[Entry]) -> ChunkTable:
        """Return the table of chunks in order."""
        sizes = np.array([size for size, _ in entries], np.uint64)
        checksums = np.frombuffer(b"".join(digest for _, digest in entries), np.uint8)
        return cls(sizes, checksums.reshape(-1, 16))

    def __len__(self) -> int:
        return len(self.sizes)

    def entry(self, number: int) -> Entry:
        """Size and checksum of a chunk."""
        return int(self.sizes[number]), self.checksums[number].tobytes()


def write_chunk(objects: Objects, path: str, spec: ArraySpec, number: int, values: Array) -> Entry:
    """Write a chunk that begins with `values`; return its entry for the table."""
    buffers = spec.encode(values)
    objects.write(f"{path}/{spec.key(number)}", *buffers)
    return sum(memoryview(buffer).nbytes for buffer in buffers), checksum(*buffers)


def problem_of(objects: Objects, key: str, entry: Entry) -> str | None:
    """Say what is wrong with a stored object: missing, truncated or altered."""
    try:
        _read_verified(objects, key, entry)
    except StoreError as error:
        return str(error.got)
    return None


def _read_verified(objects: Objects, key: str, entry: Entry) -> Bytes:
    """Return the bytes of an object that is what its entry says."""
    size, digest = entry
    problem = ""
    try:
        # One byte more than there should be shows that there are too many. Far away, the
        # limit would cost a request.
        content = objects.read_array(key, size + 1 if objects.is_local else None)
    except MissingObject:
        problem = "missing"
    else:
        if len(content) < size:
            problem = "truncated"
        elif checksum(content) != digest:
            problem = "altered"
    if problem:
        raise StoreError(objects.where(key), "the object that was written", problem, _HINT)
    return content


def join(path: str, name: str) -> str:
    """Return the key of a name below a path, which may be the root."""
    return f"{path}/{name}" if path else name


class StoredArray:
    """An array whose chunks are read one by one; thread-safe.

    Parameters
    ----------
    objects, path
        Where it lies.
    spec
        What it is.
    table
        What its chunks must be; None believes what is there as far as it can be decoded.

    Attributes
    ----------
    absent_are_zeros
        Whether inner chunks that a shard lacks were left out on purpose, as a table vouches.
    """

    def __init__(
        self, objects: Objects, path: str, spec: ArraySpec, table: ChunkTable | None = None
    ) -> None:
        self.objects = objects
        self.path = path
        self.spec = spec
        self.table = table
        self.absent_are_zeros = table is not None

    def content(self, number: int) -> Bytes:
        """Bytes of a chunk: present, whole and unaltered."""
        key = join(self.path, self.spec.key(number))
        if self.table is None:
            return self.objects.read_array(key)
        return _read_verified(self.objects, key, self.table.entry(number))

    def chunk(self, number: int) -> Array:
        """Values of a chunk, of the shape of all chunks; not to be written into."""
        content = self.content(number)
        spec, is_trusted = self.spec, self.table is not None
        required = (0,) * len(spec.shape) if self.absent_are_zeros else spec.extent(number)
        try:
            return spec.chain.decode(content, spec.chunks, spec.dtype, is_trusted, required)
        except AbsentChunk as error:
            raise self._unreadable(number, "all chunks", str(error), ABSENT_HINT) from error
        except DECODING_ERRORS as error:
            raise self._unreadable(number, "a readable chunk", str(error)) from error

    def beginning(self, number: int, n_values: int) -> Array:
        """First `n_values` of a chunk, flat; read without decoding where that is possible."""
        if self.spec.chain.is_plain and n_values <= math.prod(self.spec.chunks):
            n_bytes = n_values * self.spec.dtype.itemsize
            values: Array = self.content(number)[:n_bytes].view(self.spec.dtype)
        else:
            values = self.chunk(number).reshape(-1)[:n_values]
        if len(values) != n_values:
            raise self._unreadable(number, f"{n_values} values", f"{len(values)}")
        return values

    def _unreadable(self, number: int, expected: str, got: str, hint: str = _HINT) -> StoreError:
        where = self.objects.where(join(self.path, self.spec.key(number)))
        return StoreError(where, expected, got, hint)

    def read(self, start: int, stop: int) -> Array:
        """Values of rows ``[start, stop)``, all columns."""
        spec = self.spec
        values = np.empty((stop - start, *spec.shape[1:]), spec.dtype)
        rows = spec.chunks[0]
        across = spec.n_chunks // spec.grid[0] if spec.n_chunks else 0  # chunks side by side
        for number in range(start // rows * across, -(-stop // rows) * across):
            top, side = number // across * rows, number % across
            first, last = max(start, top), min(stop, top + rows)
            part = self.chunk(number)[first - top : last - top]
            target = values[first - start : last - start]
            if values.ndim == 2:
                target = target[:, side * spec.chunks[1] :][:, : spec.chunks[1]]
                part = part[:, : target.shape[1]]
            target[...] = part
        return values
