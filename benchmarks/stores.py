"""Reading stores: the compact layout against raw files and AnnData, and its codecs.

Rows have ones in columns drawn by Zipf's law. Everything is read from the page cache, by one
thread here; Zarr, below AnnData, may use all cores. Contenders take turns, and the best of
several repeats counts.
"""

from __future__ import annotations

import functools
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp

from benchmarks.problem import Problem, Results, Size, table
from benchmarks.speed import best_of
from distclust.store import _layout_numerics as numerics
from distclust.store.mapping import serial_map
from distclust.store.objects import open_objects
from distclust.store.rows import ArrayRows
from distclust.store.segments import SegmentReader, SegmentSpec, write_segment

FEATURES = 20_000
ONES_A_ROW = 45  # drawn; about 44 remain
BLOCK_ROWS = 16_384

_GIGABYTE = 1e9
_MILLION = 1e6


def zipf_rows(n_rows: int) -> sp.csr_array:
    """Rows of ones; frequent columns lie anywhere."""
    random = np.random.default_rng(0)
    chances = np.cumsum(1 / np.arange(1.0, FEATURES + 1))
    places = random.permutation(FEATURES)
    lengths = random.lognormal(np.log(ONES_A_ROW), 0.6, n_rows).astype(np.int64) + 1
    drawn = np.searchsorted(chances, random.random(lengths.sum()) * chances[-1])
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    ones = np.ones(len(drawn), np.bool_)
    X = sp.csr_array((ones, places[drawn], indptr), shape=(n_rows, FEATURES))
    X.sum_duplicates()
    return X


# ---- scanning ----------------------------------------------------------------------------------


def make_scan_data(size: Size) -> sp.csr_array:
    """Sixteen million ones, or a few."""
    return zipf_rows(400_000 if size == "full" else 300)


def run_scan(X: sp.csr_array) -> Results:
    """Seconds to read all nonzeros in every form."""
    with tempfile.TemporaryDirectory() as folder:
        readers = {
            name: write(X, Path(folder) / name.replace(" ", "-"), *name.split())
            for name in ("compact hot", "compact packed", "csr hot", "csr packed")
        }
        words = Path(folder, "compact-hot", "X", "words", "c")
        files = [words / f"{i}" / "0" for i in range(readers["compact hot"].n_blocks)]
        calls: dict[str, Callable[[], object]] = {"fromfile": lambda: read_files(files)}
        for name, reader in readers.items():
            calls[name] = lambda reader=reader: read_blocks(reader.block, reader)
        for name in ("compact hot", "compact packed"):
            reader = readers[name]
            calls[f"{name}, not decoded"] = lambda reader=reader: read_blocks(
                reader.compact_block, reader
            )
        for version in (2, 3):
            group = write_anndata(X, Path(folder) / f"anndata-{version}", version)
            calls[f"anndata v{version}"] = lambda group=group: read_anndata(group)
        for call in calls.values():
            call()
        times = best_of(5, *calls.values())
        return {
            "rows": X.shape[0],
            "nonzeros": int(X.nnz),
            "bytes": sum(path.stat().st_size for path in files),
            "stored": {name: stored_bytes(reader) for name, reader in readers.items()},
            "seconds": {name: time["wall"] for name, time in zip(calls, times, strict=True)},
        }


def write(X: sp.csr_array, folder: Path, layout: str, codec: str) -> SegmentReader:
    """Write rows as a segment."""
    objects = open_objects(folder)
    dtype = "bool" if layout == "compact" else "float32"
    spec = SegmentSpec(layout, codec, *X.shape, dtype)  # type: ignore[arg-type]
    segment = write_segment(objects, "", ArrayRows(X), spec, mapper=serial_map, scratch="scratch")
    return SegmentReader(objects, "", segment)


def write_anndata(X: sp.csr_array, folder: Path, version: int) -> Any:
    """Write rows as AnnData does by default, in the type it prefers; return the group."""
    import anndata
    import zarr

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what AnnData will do some day
        with anndata.settings.override(zarr_write_format=version):
            anndata.AnnData(sp.csr_matrix(X.astype(np.float32))).write_zarr(folder)
    return zarr.open_group(folder, mode="r")


def read_anndata(group: Any) -> None:
    """Read the matrix, and nothing else."""
    from anndata.io import read_elem

    read_elem(group["X"])


def read_files(files: list[Path]) -> None:
    """Read bytes as fast as NumPy can."""
    for path in files:
        np.fromfile(path, np.uint16)


def read_blocks(read: Callable[[int], object], reader: SegmentReader) -> None:
    """Read all blocks in one way."""
    for index in range(reader.n_blocks):
        read(index)


def stored_bytes(reader: SegmentReader) -> int:
    """Bytes of the values of a segment."""
    tables = reader.segment.tables.items()
    return sum(int(table.sizes.sum()) for path, table in tables if path.startswith("X"))


def summarise_scan(results: Results) -> str:
    """Nonzeros a second, and the two promised ratios."""
    seconds, n = results["seconds"], results["nonzeros"]
    names = {
        "compact hot, not decoded": "compact, hot: as stored, verified",
        "compact hot": "compact, hot: as CSR",
        "compact packed, not decoded": "compact, packed: as ranks",
        "compact packed": "compact, packed: as CSR",
        "csr hot": "CSR, hot",
        "csr packed": "CSR, packed",
        "anndata v2": "AnnData, its default (Zarr v2)",
        "anndata v3": "AnnData, Zarr v3",
        "fromfile": "`numpy.fromfile` of the hot compact files",
    }
    lines = []
    for key, name in names.items():
        stored = results["stored"].get(key.removesuffix(", not decoded"))
        bits = "" if stored is None else f"{8 * stored / n:.1f}"
        slower = seconds["anndata v2"] / seconds[key]
        lines.append([name, f"{n / seconds[key] / _MILLION:,.0f}", f"{slower:.1f}", bits])
    speed = results["bytes"] / seconds["compact hot, not decoded"] / _GIGABYTE
    share = seconds["fromfile"] / seconds["compact hot, not decoded"]
    header = ["read", "million nonzeros a second", "times AnnData's default", "bits a nonzero"]
    return (
        f"{table(header, lines)}\n\n{results['rows']:,} rows, {n:,} nonzeros. The verified scan "
        f"runs at {speed:.1f} GB/s, {share:.0%} of `numpy.fromfile` on the same bytes."
    )


# ---- codecs --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Words:
    """A block as words, in one of the orders that were tried."""

    name: str
    words: np.ndarray


def make_codec_data(size: Size) -> sp.csr_array:
    """One block."""
    return zipf_rows(BLOCK_ROWS if size == "full" else 300)


def words_of(X: sp.csr_array) -> list[Words]:
    """Ranks, ranks sorted and differenced inside rows, columns differenced inside rows."""
    order = np.argsort(-np.bincount(X.indices, minlength=FEATURES), kind="stable")
    rank = np.empty(FEATURES, np.int32)
    rank[order] = np.arange(FEATURES, dtype=np.int32)
    ranked = sp.csr_array((X.data, rank[X.indices], X.indptr), shape=X.shape)
    ranked.sort_indices()
    none = X.data[:0]
    return [
        Words("ranks", numerics.pack_ranks(X.indptr, X.indices, none, rank, 1)[0]),
        Words("ranks, delta", numerics.pack_deltas(ranked.indptr, ranked.indices, none, 1)[0]),
        Words("columns, delta", numerics.pack_deltas(X.indptr, X.indices, none, 1)[0]),
    ]


def run_codecs(X: sp.csr_array) -> Results:
    """Bits a nonzero and seconds to decompress, for every codec and order."""
    from numcodecs import Blosc, Zstd

    codecs = {
        "zstd": Zstd(1),
        "blosc lz4, shuffle": Blosc("lz4", 5, Blosc.SHUFFLE),
        "blosc lz4, bitshuffle": Blosc("lz4", 5, Blosc.BITSHUFFLE),
        "blosc zstd, bitshuffle": Blosc("zstd", 1, Blosc.BITSHUFFLE),
    }
    tried = []
    for given in words_of(X):
        for name, codec in codecs.items():
            packed = codec.encode(given.words)
            decode = functools.partial(codec.decode, packed, np.empty_like(given.words))
            spent = best_of(7, decode)
            tried.append(
                {
                    "order": given.name,
                    "codec": name,
                    "bits": 8 * len(packed) / X.nnz,
                    "seconds": spent[0]["wall"],
                }
            )
    return {"nonzeros": int(X.nnz), "tried": tried}


def summarise_codecs(results: Results) -> str:
    """Bits a nonzero, and millions of nonzeros a second."""
    tried = results["tried"]
    orders = list(dict.fromkeys(each["order"] for each in tried))
    lines = []
    for codec in dict.fromkeys(each["codec"] for each in tried):
        found = {each["order"]: each for each in tried if each["codec"] == codec}
        speeds = {
            order: results["nonzeros"] / found[order]["seconds"] / _MILLION for order in orders
        }
        lines.append([codec, *(f"{found[o]['bits']:.1f} at {speeds[o]:,.0f}" for o in orders)])
    return table(["bits a nonzero at M nonzeros/s", *orders], lines)


def problems() -> list[Problem]:
    """Benchmarks of this file."""
    return [
        Problem(
            "store-scan",
            "reading stored sparse rows: compact and CSR layouts, AnnData, raw files",
            make_scan_data,
            run_scan,
            summarise_scan,
        ),
        Problem(
            "store-codecs",
            "codecs and orders of ids of the compact layout",
            make_codec_data,
            run_codecs,
            summarise_codecs,
        ),
    ]
