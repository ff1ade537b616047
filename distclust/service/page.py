"""The page: one file with its style and script inside, and the policy that allows no other."""

from __future__ import annotations

import base64
import functools
import hashlib
import importlib.resources
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Page:
    """The page as it is sent.

    Attributes
    ----------
    content
        HTML in UTF-8.
    policy
        Content-Security-Policy: the page's own style and script, by hash, and requests to
        where it came from; nothing else, from nowhere else.
    tag
        Names this content for caches.
    """

    content: bytes
    policy: str
    tag: str


@functools.cache
def load_page() -> Page:
    """Return the page."""
    source = importlib.resources.files("distclust.service") / "page.html"
    text = source.read_text(encoding="utf-8")
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash_of('script', text)}",
            f"style-src {_hash_of('style', text)}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
            "require-trusted-types-for 'script'",
        )
    )
    content = text.encode()
    return Page(content, policy, f'"{hashlib.sha256(content).hexdigest()[:16]}"')


def _hash_of(element: str, text: str) -> str:
    """Return the hash of what the one element of that name holds."""
    (inside,) = re.findall(f"<{element}>(.*?)</{element}>", text, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
    return f"'sha256-{digest}'"
