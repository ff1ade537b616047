"""One-file archives of fitted models: JSON and arrays, never pickle.

An archive is an uncompressed zip of ``model.json`` and one ``<name>.npy`` an array, so
``numpy.load`` and any zip tool can look inside. The zip's comment ends with a BLAKE2
digest of every byte before it: zip's own checksums leave headers and directory
unprotected, and a file cut short must never be half believed.

Files come from places the user named but are not trusted: sizes are checked against the
file before memory is taken, and object arrays (pickles) are refused.
"""

from __future__ import annotations

import datetime
import hashlib
import io
import json
import math
import os
import tokenize
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import numpy.typing as npt

from distclust._version import __version__
from distclust.errors import InputError, MissingFileError, ModelFormatError, StoreError
from distclust.store.files import replacing

FORMAT_VERSION = 1

_FORMAT = "distclust-model"
_HEADER = "model.json"
_MARK = b"distclust blake2b "
_DIGEST_LENGTH = 64  # characters of the digest in hexadecimal
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the bytes depend on the content only

# What zipfile, json and numpy raise about content that is not what it should be.
_READ_ERRORS = (
    zipfile.BadZipFile,
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    NotImplementedError,
    OverflowError,
    RecursionError,
    SyntaxError,
    tokenize.TokenError,
)


@dataclass(frozen=True, eq=False)
class Archive:
    """What a model file held.

    Attributes
    ----------
    kind
        Which model it is, as passed to `write_archive`.
    format_version
        Version of the layout it was written in.
    meta
        The model's JSON part, with ``distclust_version`` and ``created`` (UTC) added.
    arrays
        The model's arrays by name; writable copies.
    """

    kind: str
    format_version: int
    meta: dict[str, Any]
    arrays: dict[str, npt.NDArray[Any]]


def write_archive(
    path: str | os.PathLike[str],
    kind: str,
    meta: Mapping[str, Any],
    arrays: Mapping[str, npt.NDArray[Any]],
) -> None:
    """Write a model so that `path` holds all of it or what it held before.

    Parameters
    ----------
    path
        File to create or replace; its folder exists.
    kind, meta, arrays
        As for `encode_archive`.

    Raises
    ------
    InputError
        If an array holds Python objects.
    MissingFileError
        If the folder does not exist.
    """
    header = _header(kind, meta, arrays)  # fails before a file is touched
    with replacing(Path(path)) as file:
        _write_zip(file, header, arrays)
        _sign(file)


def encode_archive(
    kind: str, meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]
) -> bytes:
    """Return the archive as bytes, for one object of a store.

    Parameters
    ----------
    kind
        Which model it is; comes back when it is read.
    meta
        JSON values by name. Not-a-number and infinities are allowed, as Python's own
        ``json`` writes them.
    arrays
        Arrays by name, of any type but object.

    Raises
    ------
    InputError
        If an array holds Python objects.
    """
    header = _header(kind, meta, arrays)
    file = io.BytesIO()
    _write_zip(file, header, arrays)
    _sign(file)
    return file.getvalue()


def read_archive(path: str | os.PathLike[str]) -> Archive:
    """Read a model written by `write_archive`, complete and unaltered.

    Raises
    ------
    MissingFileError
        If the file cannot be opened.
    ModelFormatError
        If it is truncated, altered, not a distclust model, or of a newer format.
    """
    where = os.fspath(path)
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise MissingFileError(
            where,
            "a model file written by distclust",
            error.strerror or str(error),
            "Check the path.",
        ) from error
    try:
        return _decode(content)
    except _Unreadable as error:
        hint = error.hint or "Copy the file again or save the model again."
        expected = error.expected or "a complete model file written by distclust"
        raise ModelFormatError(where, expected, error.got, hint) from error


def decode_archive(content: bytes, where: str) -> Archive:
    """Return what `encode_archive` put in; `where` is its place in messages.

    Raises
    ------
    StoreError
        If it is truncated, altered, foreign or of a newer format.
    """
    try:
        return _decode(content)
    except _Unreadable as error:
        hint = error.hint or "Restore it from a copy or make it again."
        expected = error.expected or "a complete archive written by distclust"
        raise StoreError(where, expected, error.got, hint) from error


def with_prefix(arrays: Mapping[str, npt.NDArray[Any]], prefix: str) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays whose names begin with `prefix`, by the rest of their names."""
    return {
        name.removeprefix(prefix): array
        for name, array in arrays.items()
        if name.startswith(prefix)
    }


class _Unreadable(Exception):
    """Why bytes are not an archive; the public functions say where they lay."""

    def __init__(self, got: str, expected: str = "", hint: str = "") -> None:
        super().__init__(got, expected, hint)
        self.got, self.expected, self.hint = got, expected, hint


def _header(kind: str, meta: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    for name, array in arrays.items():
        if array.dtype.hasobject:
            raise InputError(
                f"write_archive({name!r})",
                "an array of numbers or strings",
                "an array of Python objects",
                "Convert it, for instance with .astype(str).",
            )
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    header = {
        "format": _FORMAT,
        "format_version": FORMAT_VERSION,
        "kind": kind,
        "arrays": sorted(arrays),
        "meta": {**meta, "distclust_version": __version__, "created": now},
    }
    return json.dumps(header, indent=1).encode()


def _write_zip(file: IO[bytes], header: bytes, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        archive.comment = _MARK + b"0" * _DIGEST_LENGTH
        archive.writestr(zipfile.ZipInfo(_HEADER, _EPOCH), header)
        for name, array in sorted(arrays.items()):
            member = zipfile.ZipInfo(f"{name}.npy", _EPOCH)
            with archive.open(member, "w", force_zip64=True) as target:
                np.lib.format.write_array(target, np.asarray(array), allow_pickle=False)


def _sign(file: IO[bytes]) -> None:
    file.seek(0, os.SEEK_END)
    signed = file.tell() - _DIGEST_LENGTH
    file.seek(0)
    digest = _new_digest()
    left = signed
    while left:
        piece = file.read(min(left, 1 << 20))
        digest.update(piece)
        left -= len(piece)
    file.seek(signed)
    file.write(digest.hexdigest().encode())


def _new_digest() -> Any:
    return hashlib.blake2b(digest_size=_DIGEST_LENGTH // 2)


def _decode(content: bytes) -> Archive:
    _check_signature(content)
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return _read_zip(archive)
    except _READ_ERRORS as error:
        raise _Unreadable(f"a file that cannot be read ({error})") from error


def _check_signature(content: bytes) -> None:
    signed = memoryview(content)[:-_DIGEST_LENGTH]
    if not content.startswith(b"PK") or bytes(signed[-len(_MARK) :]) != _MARK:
        raise _Unreadable("a truncated or foreign file")
    digest = _new_digest()
    digest.update(signed)
    if digest.hexdigest().encode() != content[-_DIGEST_LENGTH:]:
        raise _Unreadable("a file whose content was altered")


def _read_zip(archive: zipfile.ZipFile) -> Archive:
    header = json.loads(archive.read(_HEADER))
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise _Unreadable("a zip file without a model")
    version = header["format_version"]
    if not isinstance(version, int) or version > FORMAT_VERSION:
        raise _Unreadable(
            f"version {version}, written by distclust {_writer(header)}",
            f"format version {FORMAT_VERSION} or older",
            "Upgrade distclust to read it.",
        )
    names = header["arrays"]
    members = [member.filename for member in archive.infolist()]
    if sorted(members) != sorted([_HEADER, *(f"{name}.npy" for name in names)]):
        raise _Unreadable("a file with missing or unexpected parts")
    arrays = {name: _read_array(archive, f"{name}.npy") for name in names}
    return Archive(str(header["kind"]), version, dict(header["meta"]), arrays)


def _writer(header: dict[str, Any]) -> str:
    meta = header.get("meta")
    return str(meta.get("distclust_version", "?")) if isinstance(meta, dict) else "?"


def _read_array(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    member = archive.getinfo(name)
    if member.compress_type != zipfile.ZIP_STORED:
        raise _Unreadable(f"a compressed part ({name})")
    content = io.BytesIO(archive.read(member))  # zip's own checksum is verified here
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }[np.lib.format.read_magic(content)]
    shape, fortran_order, dtype = read_header(content)
    if dtype.hasobject:
        raise _Unreadable(f"pickled objects ({name})")
    if math.prod(shape) * dtype.itemsize != member.file_size - content.tell():
        raise _Unreadable(f"an array of the wrong size ({name})")
    order: Literal["C", "F"] = "F" if fortran_order else "C"
    view: npt.NDArray[Any] = np.ndarray(shape, dtype, content.read(), order=order)
    return view.copy(order="K")
