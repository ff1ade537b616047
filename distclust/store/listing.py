"""What a listing tells about the objects of a store: sizes, and when they were written."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass

_STAMPS = ("mtime", "ETag", "etag", "LastModified", "created")


@dataclass(frozen=True)
class Listing:
    """All objects below a path or URL at one time.

    Attributes
    ----------
    n_bytes
        Size of all of them.
    stamp
        Digest of their names, sizes, and times or tags: another one after any was replaced.
    """

    n_bytes: int
    stamp: str


def list_objects(url: str) -> Listing:
    """Return what there is below a path or URL, asking for no object by itself."""
    import fsspec

    system, root = fsspec.core.url_to_fs(url)
    system.invalidate_cache()  # a driver may remember what was there
    found = system.find(root, detail=True)
    facts = [
        [
            name.removeprefix(root),
            found[name]["size"],
            *(str(found[name][key]) for key in _STAMPS if key in found[name]),
        ]
        for name in sorted(found)
    ]
    stamp = hashlib.blake2b(json.dumps(facts).encode(), digest_size=16).hexdigest()
    return Listing(sum(size for _, size, *_ in facts), stamp)
