"""Pictures of trees, as files and as SVG text, without touching pyplot's global state."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distclust.errors import InputError
from distclust.store.files import replacing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from distclust.trees import Tree

SUFFIXES = (".png", ".svg", ".pdf")
MAX_LEAVES = 100  # more are collapsed into the clusters of the cut
# The same tree gives the same bytes: no date, no random ids; text stays text.
SETTINGS: dict[Any, Any] = {"svg.hashsalt": "distclust", "svg.fonttype": "none"}
METADATA: dict[str, dict[str, Any]] = {
    "svg": dict.fromkeys(("Creator", "Date", "Format", "Type")),
    "pdf": {"CreationDate": None},
}


def check_picture_path(path: Path) -> None:
    """Refuse a picture that could not be written, before any work is done."""
    if path.suffix.lower() not in SUFFIXES:
        expected = f"a name ending in {', '.join(SUFFIXES)}"
        raise InputError(f"picture {path}", expected, repr(path.name), "Choose such a name.")


def write_picture(path: Path, tree: Tree, *, threshold: float = 0.5) -> None:
    """Draw the tree into a file, in the form its suffix names."""
    check_picture_path(path)
    suffix = path.suffix.lower().removeprefix(".")
    with replacing(path) as file:
        file.write(_drawn(tree, suffix, threshold))


def svg(tree: Tree, *, threshold: float = 0.5) -> str:
    """Return the picture as an ``<svg>`` element to put into a page."""
    text = _drawn(tree, "svg", threshold).decode("utf-8")
    return text[text.index("<svg") :]


def _drawn(tree: Tree, kind: str, threshold: float) -> bytes:
    import matplotlib as mpl

    with mpl.rc_context(SETTINGS):
        buffer = io.BytesIO()
        figure = _figure(tree, threshold)
        figure.savefig(buffer, format=kind, dpi=150, metadata=METADATA.get(kind))
    return buffer.getvalue()


def _figure(tree: Tree, threshold: float) -> Figure:
    from matplotlib.figure import Figure

    shown = min(tree.n_leaves, MAX_LEAVES)
    figure = Figure(figsize=(9.0, max(3.2, 0.18 * shown + 1.7)), layout="constrained")
    tree.plot(figure.add_subplot(), MAX_LEAVES, threshold=threshold)
    return figure
