"""How one chunk of a Zarr array becomes bytes and back.

A chain is what the ``codecs`` of a Zarr v3 array (or ``compressor`` and ``filters`` of a v2
array) say: an inner chunk shape if the chunk is a shard, text or numbers, then compressors
and checksums of bytes. Only the codecs here are known; whatever else metadata may name,
pickles above all, is refused. Every decoder is told how many bytes must come out and takes
no memory for more. Chunks are coded here rather than by ``zarr`` itself because its
machinery costs more than the work: see ``benchmarks/stores.py``.
"""

from __future__ import annotations

import math
import zlib
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[Any]
Bytes: TypeAlias = npt.NDArray[np.uint8]
ByteOrder: TypeAlias = Literal["<", ">"]

TEXT = np.dtype(object)  # arrays of str; on disk the type is called "string"

_LONGEST_TEXT = 2**30  # bytes in a chunk of strings
_ABSENT = np.uint64(2**64 - 1)  # in the index of a shard
# What decoders raise about content that is not what it should be.
DECODING_ERRORS = (ValueError, RuntimeError, zlib.error)


class AbsentChunk(ValueError):
    """A shard lacks an inner chunk that nobody said could be left out."""


class ByteCodec(Protocol):
    """Turns bytes into bytes."""

    def to_json(self) -> dict[str, Any]:
        """Describe the codec as Zarr v3 metadata do."""

    def encode(self, content: Any) -> Any:
        """Return encoded bytes."""

    def decode(self, content: Bytes, n_bytes: int | None) -> Bytes:
        """Return `n_bytes` decoded bytes (any bounded number for None) or raise ValueError."""


@dataclass(frozen=True)
class Crc32c:
    """Four bytes at the end that tell damage."""

    def to_json(self) -> dict[str, Any]:
        """Describe the codec."""
        return {"name": "crc32c"}

    def encode(self, content: Any) -> bytes:
        """Return the bytes and their checksum."""
        return bytes(content) + crc32c(content)

    def decode(self, content: Bytes, n_bytes: int | None) -> Bytes:
        """Return the bytes if the checksum is theirs."""
        if len(content) < 4 or crc32c(content[:-4]) != content[-4:].tobytes():
            raise ValueError("a wrong checksum")
        return content[:-4]


def crc32c(*buffers: Any) -> bytes:
    """Return the CRC-32C of the buffers, one after the other, little-endian."""
    import google_crc32c

    value = 0
    for buffer in buffers:
        value = google_crc32c.extend(value, buffer)
    return value.to_bytes(4, "little")


@dataclass(frozen=True)
class Blosc:
    """Blosc: shuffled bytes or bits, then a fast compressor."""

    compressor: str = "zstd"
    level: int = 1
    shuffle: str = "bitshuffle"
    item_bytes: int = 1

    _SHUFFLES = ("noshuffle", "shuffle", "bitshuffle")
    _HEADER = 16

    def to_json(self) -> dict[str, Any]:
        """Describe the codec."""
        configuration = {
            "cname": self.compressor,
            "clevel": self.level,
            "shuffle": self.shuffle,
            "typesize": self.item_bytes,
            "blocksize": 0,
        }
        return {"name": "blosc", "configuration": configuration}

    def encode(self, content: Any) -> Any:
        """Return compressed bytes; `content` is an array of items."""
        items = np.frombuffer(content, np.dtype(f"u{self.item_bytes}"))
        method = self._SHUFFLES.index(self.shuffle)
        return _blosc().Blosc(self.compressor, self.level, method).encode(items)

    def decode(self, content: Bytes, n_bytes: int | None) -> Bytes:
        """Return decompressed bytes."""
        # The library reads a header without asking how long the content is.
        header = content[: self._HEADER].tobytes()
        told, length = int.from_bytes(header[4:8], "little"), int.from_bytes(header[12:], "little")
        if len(header) < self._HEADER or length != len(content):
            raise ValueError("compressed data of the wrong length")
        out = _room(told, n_bytes)
        if told:
            _blosc().decompress(content, out)
        return out


def _blosc() -> Any:
    """Return Blosc without threads of its own, as Zarr has it: work is cut into blocks."""
    from numcodecs import blosc

    blosc.use_threads = False
    return blosc


@dataclass(frozen=True)
class Zstd:
    """Zstandard frames that say how long their content is."""

    level: int = 1
    has_checksum: bool = False

    def to_json(self) -> dict[str, Any]:
        """Describe the codec."""
        configuration = {"level": self.level, "checksum": self.has_checksum}
        return {"name": "zstd", "configuration": configuration}

    def encode(self, content: Any) -> Any:
        """Return compressed bytes."""
        from numcodecs import zstd

        return zstd.compress(content, self.level, self.has_checksum)

    def decode(self, content: Bytes, n_bytes: int | None) -> Bytes:
        """Return decompressed bytes."""
        from numcodecs import zstd

        out = _room(_zstd_length(content[:18].tobytes()), n_bytes)
        if len(out):
            zstd.decompress(content, out)
        return out


def _zstd_length(header: bytes) -> int:
    """Length of the content of a frame (RFC 8878, section 3.1.1.1)."""
    if header[:4] != b"\x28\xb5\x2f\xfd" or len(header) < 6:
        raise ValueError("data that zstd did not compress")
    flags = header[4]
    is_single = flags >> 5 & 1
    start = 6 - is_single + (0, 1, 2, 4)[flags & 3]
    size = (is_single, 2, 4, 8)[flags >> 6]
    if size == 0:
        raise ValueError("compressed data that do not say their length")
    return int.from_bytes(header[start : start + size], "little") + 256 * (size == 2)


@dataclass(frozen=True)
class Gzip:
    """Deflate, in gzip's or zlib's wrapping; read only."""

    level: int = 1

    def to_json(self) -> dict[str, Any]:
        """Describe the codec."""
        return {"name": "gzip", "configuration": {"level": self.level}}

    def encode(self, content: Any) -> bytes:
        """Return compressed bytes."""
        packer = zlib.compressobj(self.level, wbits=31)
        return packer.compress(content) + packer.flush()

    def decode(self, content: Bytes, n_bytes: int | None) -> Bytes:
        """Return decompressed bytes."""
        limit = _LONGEST_TEXT if n_bytes is None else n_bytes
        unpacker = zlib.decompressobj(wbits=47)  # either wrapping
        out = np.frombuffer(unpacker.decompress(content.tobytes(), limit + 1), np.uint8)
        if len(out) > limit or not unpacker.eof:
            raise ValueError("compressed data of the wrong length")
        _room(len(out), n_bytes)
        return out


def _room(told: int, n_bytes: int | None) -> Bytes:
    """Memory for what compressed data say they hold, if that is what must come out."""
    if told > _LONGEST_TEXT if n_bytes is None else told != n_bytes:
        raise ValueError(f"compressed data of {told} bytes")
    return np.empty(told, np.uint8)


@dataclass(frozen=True)
class Chain:
    """Everything between the values of a chunk and its bytes.

    Attributes
    ----------
    byte_codecs
        Applied in this order when encoding.
    inner
        Shape of the inner chunks if every chunk is a shard, else None. The codecs above
        are then those of inner chunks.
    index_first
        Whether the index of a shard comes before its inner chunks.
    byte_order
        "<" or ">".
    """

    byte_codecs: tuple[ByteCodec, ...] = (Crc32c(),)
    inner: tuple[int, ...] | None = None
    index_first: bool = False
    byte_order: ByteOrder = "<"

    @property
    def is_plain(self) -> bool:
        """Whether a chunk that `encode` made begins with its values as they are."""
        plain = () if self.inner else (Crc32c(),)
        return self.byte_codecs == plain and self.byte_order == "<" and not self.index_first

    def to_json(self, dtype: np.dtype[Any]) -> list[dict[str, Any]]:
        """Describe the chain as the ``codecs`` of a Zarr v3 array of `dtype`."""
        little = {"name": "bytes", "configuration": {"endian": "little"}}
        first = {"name": "vlen-utf8"} if dtype == TEXT else little
        codecs = [first, *(codec.to_json() for codec in self.byte_codecs)]
        if self.inner is None:
            return codecs
        settings = {
            "chunk_shape": list(self.inner),
            "codecs": codecs,
            "index_codecs": [little, Crc32c().to_json()],
            "index_location": "end",
        }
        return [{"name": "sharding_indexed", "configuration": settings}]

    def encode(self, values: Array, shape: tuple[int, ...]) -> list[Any]:
        """Return buffers that hold a chunk of `shape` beginning with `values`.

        What `values` do not fill is zeros, or empty strings. Inner chunks of a shard follow
        each other in C order; those without values are left out.
        """
        if self.inner is not None:
            return self._encode_shard(values, shape)
        if values.dtype == TEXT:
            return self._to_bytes([encode_text(values, shape[0])])
        payload = np.ascontiguousarray(values, values.dtype.newbyteorder(self.byte_order))
        padding = bytes((math.prod(shape) - values.size) * values.dtype.itemsize)
        return self._to_bytes([payload.reshape(-1).view(np.uint8), padding])

    def _to_bytes(self, buffers: list[Any]) -> list[Any]:
        for codec in self.byte_codecs:
            if isinstance(codec, Crc32c):  # without a copy of what may be large
                buffers = [*buffers, crc32c(*buffers)]
            else:
                buffers = [codec.encode(b"".join(buffers))]
        return buffers

    def _encode_shard(self, values: Array, shape: tuple[int, ...]) -> list[Any]:
        assert self.inner is not None
        flat = values.reshape(-1)
        step = math.prod(self.inner)
        index = np.full((math.prod(shape) // step, 2), _ABSENT, "<u8")
        inside = Chain(self.byte_codecs)
        buffers: list[Any] = []
        end = 0
        for k, start in enumerate(range(0, len(flat), step)):
            parts = inside.encode(flat[start : start + step], self.inner)
            size = sum(map(len, parts))
            index[k] = end, size
            end += size
            buffers += parts
        return [*buffers, index.tobytes(), crc32c(index.tobytes())]

    def decode(
        self,
        content: Bytes,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        is_trusted: bool,
        required: tuple[int, ...],
    ) -> Array:
        """Return the values of a chunk, or raise ValueError.

        Parameters
        ----------
        content
            Bytes of the chunk.
        shape, dtype
            What must come out.
        is_trusted
            Whether checksums inside need not be computed.
        required
            How far, along every axis, no inner chunk of a shard may be absent. Absent ones
            further out are zeros or empty strings; all may be absent where this is 0.
        """
        if self.inner is not None:
            return self._decode_shard(content, shape, dtype, is_trusted, required)
        is_text = dtype == TEXT
        n_bytes = None if is_text else math.prod(shape) * dtype.itemsize
        for codec, size in reversed(list(zip(self.byte_codecs, self._sizes(n_bytes), strict=True))):
            if is_trusted and isinstance(codec, Crc32c):
                content = content[:-4]
            else:
                content = codec.decode(content, size)
        if is_text:
            return decode_text(content, shape)
        if len(content) != n_bytes:
            raise ValueError(f"{len(content)} bytes for {n_bytes}")
        return content.view(dtype.newbyteorder(self.byte_order)).reshape(shape)

    def _sizes(self, n_bytes: int | None) -> list[int | None]:
        """Bytes that go into every codec, where that is known."""
        sizes = []
        for codec in self.byte_codecs:
            sizes.append(n_bytes)
            is_longer = n_bytes is not None and isinstance(codec, Crc32c)
            n_bytes = (n_bytes or 0) + 4 if is_longer else None
        return sizes

    def _decode_shard(
        self,
        content: Bytes,
        shape: tuple[int, ...],
        dtype: np.dtype[Any],
        is_trusted: bool,
        required: tuple[int, ...],
    ) -> Array:
        assert self.inner is not None
        grid = tuple(n // m for n, m in zip(shape, self.inner, strict=True))
        index = self._index(content, math.prod(grid))
        inside = Chain(self.byte_codecs, byte_order=self.byte_order)
        values = np.zeros(shape, dtype) if dtype != TEXT else np.full(shape, "", TEXT)
        for place, (start, size) in zip(np.ndindex(grid), index.tolist(), strict=True):
            at = tuple(i * n for i, n in zip(place, self.inner, strict=True))
            if start == _ABSENT and size == _ABSENT:
                if all(first < end for first, end in zip(at, required, strict=True)):
                    raise AbsentChunk(f"a shard without its inner chunk {place}")
                continue
            if start + size > len(content):
                raise ValueError("a shard whose index points outside")
            part = content[start : start + size]
            target = tuple(slice(i, i + n) for i, n in zip(at, self.inner, strict=True))
            values[target] = inside.decode(part, self.inner, dtype, is_trusted, required)
        return values

    def _index(self, content: Bytes, n_inner: int) -> Array:
        size = 16 * n_inner + 4
        if len(content) < size:
            raise ValueError("a shard without an index")
        index = content[:size] if self.index_first else content[-size:]
        return np.frombuffer(Crc32c().decode(index, None).tobytes(), "<u8").reshape(-1, 2)


def encode_text(values: Array, n_values: int) -> bytes:
    """Return strings as Zarr's ``vlen-utf8``, filled up with empty ones."""
    from numcodecs.vlen import VLenUTF8

    filled = np.full(n_values, "", TEXT)
    filled[: len(values)] = values
    return bytes(VLenUTF8().encode(filled))


def decode_text(content: Bytes, shape: tuple[int, ...]) -> Array:
    """Return strings from ``vlen-utf8``, or raise ValueError."""
    from numcodecs.vlen import VLenUTF8

    n_values = math.prod(shape)
    if int.from_bytes(content[:4].tobytes(), "little") != n_values:
        raise ValueError("another number of strings")
    values: Array = VLenUTF8().decode(content)
    return values.reshape(shape)
