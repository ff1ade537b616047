"""Parquet and Arrow files: what they hold, and their groups of rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from distclust.errors import InputError
from distclust.store.sources.files import SourceFile

if TYPE_CHECKING:
    import pyarrow as pa

Form: TypeAlias = Literal["parquet", "file", "stream"]


@dataclass(frozen=True)
class TypedFile:
    """One Parquet or Arrow file.

    Attributes
    ----------
    file
        Where it is.
    form
        Parquet, or one of Arrow's own formats.
    names
        Of its columns, in order.
    counts
        Rows of every group; none are known of a stream, which is one group.
    """

    file: SourceFile
    form: Form
    names: tuple[str, ...]
    counts: tuple[int, ...]

    @property
    def can_seek(self) -> bool:
        """Whether any group can be read without those before."""
        return self.form != "stream"

    @property
    def n_groups(self) -> int:
        """Number of groups."""
        return len(self.counts) if self.can_seek else 1

    def read(self, group: int, names: Sequence[str]) -> pa.Table:
        """Return some columns of one group, in the order of `names`."""
        import pyarrow as pa

        with _opened(self.file, self.form) as opened:
            if self.form == "parquet":
                table = opened.read_row_group(group, columns=list(names), use_threads=False)
            else:
                table = pa.Table.from_batches([opened.get_batch(group)])
            return table.select(list(names))

    def parts(self, group: int, names: Sequence[str], n_rows: int) -> Iterator[pa.Table]:
        """Yield some columns of one group, at most `n_rows` rows at a time."""
        import pyarrow as pa

        with _opened(self.file, self.form) as opened:
            if self.form == "parquet":
                batches = opened.iter_batches(
                    n_rows, row_groups=[group], columns=list(names), use_threads=False
                )
            else:
                batches = [opened.get_batch(group)] if self.can_seek else opened
            for batch in batches:
                table = pa.Table.from_batches([batch]).select(list(names))
                for start in range(0, max(len(table), 1), n_rows):
                    yield table.slice(start, n_rows)


def open_typed(file: SourceFile) -> tuple[TypedFile, pa.Schema]:
    """Return what a file says about itself.

    Raises
    ------
    InputError
        If it is neither Parquet nor Arrow, or not complete.
    """
    magic = file.read(0, 6)
    form: Form = "parquet" if magic[:4] == b"PAR1" else "file" if magic == b"ARROW1" else "stream"
    with _opened(file, form) as opened:
        schema = opened.schema_arrow if form == "parquet" else opened.schema
        groups = range(opened.num_row_groups if form == "parquet" else 0)
        counts = tuple(opened.metadata.row_group(group).num_rows for group in groups)
    if form == "file":
        with _opened(file, form, only_first=True) as opened:
            groups = range(opened.num_record_batches)
            counts = tuple(opened.get_batch(group).num_rows for group in groups)
    return TypedFile(file, form, tuple(schema.names), counts), schema


@contextmanager
def _opened(file: SourceFile, form: Form, only_first: bool = False) -> Iterator[Any]:
    """Open a file; `only_first` decodes no column of an Arrow file but the first."""
    import pyarrow as pa
    from pyarrow import parquet

    with file.open() as raw:
        handle = pa.memory_map(file.url) if file.is_local else pa.PythonFile(raw, "r")
        try:
            if form == "parquet":
                yield parquet.ParquetFile(handle)
            elif form == "file":
                fields = {"included_fields": [0]} if only_first else {}
                yield pa.ipc.open_file(handle, options=pa.ipc.IpcReadOptions(**fields))
            else:
                yield pa.ipc.open_stream(handle)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
            got = str(error).strip().split("\n")[0].removesuffix(".") or "an unreadable one"
            hint = "Copy the file again, or write it again."
            raise InputError(file.url, "a complete Parquet or Arrow file", got, hint) from error
