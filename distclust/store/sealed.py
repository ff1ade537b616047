"""Small JSON documents that say who wrote them and whether they are still what was written.

A sealed document is one JSON object: ``format`` (which kind of document), ``format_version``,
``writer`` (the release), ``content`` and ``digest``, a BLAKE2 digest of the others in a fixed
spelling. Damage is found before the content is looked at; a newer format is refused in a
sentence that names the release to upgrade to.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from distclust._version import __version__
from distclust.errors import StoreError

FORMAT_VERSION = 1

_PARTS = {"format", "format_version", "writer", "content", "digest"}


def seal(form: str, content: Mapping[str, Any]) -> bytes:
    """Return the document of kind `form` that holds `content` (JSON values) as bytes."""
    document = {
        "format": form,
        "format_version": FORMAT_VERSION,
        "writer": __version__,
        "content": plain(content),
    }
    document["digest"] = digest_of(document)
    return json.dumps(document, indent=1, sort_keys=True).encode()


def unseal(document: bytes, form: str, where: str) -> dict[str, Any]:
    """Return the content of a document of kind `form`; `where` is its place in messages.

    Raises
    ------
    StoreError
        If it is truncated, altered, of another kind or of a newer format.
    """
    try:
        values = json.loads(document)
        actual = digest_of({name: values[name] for name in values if name != "digest"})
    except (ValueError, TypeError, RecursionError):
        raise _refused(where, form, "a truncated or foreign file") from None
    if not isinstance(values, dict) or values.get("format") != form:
        raise _refused(where, form, "a foreign file")
    version = values.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        got = f"version {version}, written by distclust {values.get('writer')}"
        expected = f"format version {FORMAT_VERSION} or older"
        raise StoreError(where, expected, got, "Upgrade distclust to read it.")
    is_whole = values.keys() == _PARTS and isinstance(values["content"], dict)
    if not is_whole or version != FORMAT_VERSION or values["digest"] != actual:
        raise _refused(where, form, "a file whose content was altered")
    content: dict[str, Any] = values["content"]
    return content


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON values as they will be read back: lists for tuples, text for names."""
    read_back: dict[str, Any] = json.loads(json.dumps(values))
    return read_back


def digest_of(values: Mapping[str, Any]) -> str:
    """Return a digest of JSON values that does not depend on the order of names."""
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _refused(where: str, form: str, got: str) -> StoreError:
    hint = "Restore it from a copy, or check that this is a store of distclust."
    return StoreError(where, f"a complete {form} file written by distclust", got, hint)
