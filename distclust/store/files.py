"""Files that appear whole or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from distclust.store.archive import replacing

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["replacing", "write_csv", "write_text"]


def write_text(path: str | Path, text: str) -> None:
    """Write text as UTF-8 so that `path` holds all of it or what it held before."""
    with replacing(Path(path)) as file:
        file.write(text.encode("utf-8"))


def write_csv(path: str | Path, frame: pd.DataFrame) -> None:
    """Write a frame, without its index, as CSV."""
    write_text(path, frame.to_csv(index=False))
