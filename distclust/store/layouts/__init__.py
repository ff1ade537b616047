"""How the rows of a segment lie in Zarr arrays."""

from distclust.store.layouts.base import (
    CodecName,
    IdsKind,
    Layout,
    ObsKind,
    OpenArray,
    SegmentSpec,
    ValuesReader,
)
from distclust.store.layouts.compact import CompactBlock, CompactLayout, CompactReader
from distclust.store.layouts.csr import CsrLayout, CsrReader
from distclust.store.layouts.dense import DenseLayout, DenseReader
from distclust.store.surveys import LayoutName, Survey

LAYOUTS: dict[LayoutName, type[Layout]] = {
    "dense": DenseLayout,
    "csr": CsrLayout,
    "compact": CompactLayout,
}
READERS: dict[LayoutName, type[DenseReader] | type[CsrReader] | type[CompactReader]] = {
    "dense": DenseReader,
    "csr": CsrReader,
    "compact": CompactReader,
}

__all__ = [
    "LAYOUTS",
    "READERS",
    "CodecName",
    "CompactBlock",
    "CompactReader",
    "IdsKind",
    "Layout",
    "LayoutName",
    "ObsKind",
    "OpenArray",
    "SegmentSpec",
    "Survey",
    "ValuesReader",
]
