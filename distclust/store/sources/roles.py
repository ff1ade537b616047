"""What the columns of a table are for, as far as it is known before a cell is read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from distclust.errors import InputError
from distclust.store.sources.base import Expected, SourceOptions


@dataclass(frozen=True)
class Roles:
    """What is known about the columns of a table before a cell is read.

    Attributes
    ----------
    names
        Columns that are read, in order; everything else counts places in this list.
    places
        Place of each in the file.
    ids
        The column that names the rows for certain.
    candidate
        The column that does if its values allow.
    obs
        Columns kept as annotations.
    categories
        Columns that are categories whatever they look like.
    as_text
        Columns to be read as text whatever they look like; all of the above among them
        where that matters.
    """

    names: tuple[str, ...]
    places: tuple[int, ...]
    ids: int | None = None
    candidate: int | None = None
    obs: frozenset[int] = frozenset()
    categories: frozenset[int] = frozenset()
    as_text: frozenset[int] = frozenset()

    def is_feature(self, j: int) -> bool:
        """Whether a column's numbers are features."""
        return j != self.ids and j not in self.obs

    def reading_as_text(self, columns: frozenset[int]) -> Roles:
        """Return the roles with more columns read as text."""
        return replace(self, as_text=self.as_text | columns)


def assign_roles(
    names: Sequence[str], options: SourceOptions, where: str, index: int | None = None
) -> Roles:
    """Return the roles of columns.

    Parameters
    ----------
    names
        Names of all columns, as they are in the file.
    options
        Which of them to drop, and so on.
    where
        Place to name in errors.
    index
        A column that is there to name the rows, such as one without a name.

    Raises
    ------
    InputError
        If a name occurs twice, or an option names a column that is not there or that
        another option names too.
    """
    _check_names(names, options, where)
    expected = options.expected
    drop = {*options.drop}
    if options.ids is not None and index is not None and options.ids != names[index]:
        drop |= {names[index]} if options.ids else set()
    places = [i for i, name in enumerate(names) if name not in drop]
    kept = [names[i] for i in places]
    if not kept:
        raise InputError(where, "at least one column", "none that is left", "Drop fewer of them.")
    chosen = names[index] if options.ids is None and index is not None else options.ids
    ids = kept.index(chosen) if chosen else None
    obs = {*options.obs, *(expected.obs_kinds if expected else ())}
    categories = {*options.categories, *_expected_categories(expected)}
    candidate = _candidate(kept, ids, obs | categories, options)
    if candidate is not None and expected is not None and expected.ids_kind == "text":
        ids, candidate = candidate, None  # it names the rows even if all names are numbers
    roles = Roles(
        tuple(kept),
        tuple(places),
        ids,
        candidate,
        frozenset(j for j, name in enumerate(kept) if name in obs and j != ids),
        frozenset(j for j, name in enumerate(kept) if name in categories and j != ids),
    )
    return roles.reading_as_text(roles.categories | _expected_texts(kept, expected))


def _check_names(names: Sequence[str], options: SourceOptions, where: str) -> None:
    counts = Counter(names)
    if len(counts) < len(names):
        got = f"{counts.most_common(1)[0][0]!r} twice"
        raise InputError(where, "columns with different names", got, "Rename one of them.")
    chosen = [options.ids] if options.ids else []
    wanted = [*chosen, *options.drop, *options.categories, *options.obs]
    for name in wanted:
        if name not in counts:
            shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            raise InputError(where, f"a column {name!r}", shown, "Check the name.")
        if wanted.count(name) > 1:
            hint = "Name a column for ids, drop, category or obs, but only once."
            raise InputError(where, "one role for each column", f"{name!r} twice", hint)


def _expected_categories(expected: Expected | None) -> list[str]:
    columns = expected.columns if expected else ()
    return [column.name for column in columns if column.kind == "category"]


def _expected_texts(names: list[str], expected: Expected | None) -> frozenset[int]:
    kinds = expected.obs_kinds if expected else {}
    return frozenset(j for j, name in enumerate(names) if kinds.get(name) == "text")


def _candidate(
    names: list[str], ids: int | None, taken: set[str], options: SourceOptions
) -> int | None:
    is_free = ids is None and options.ids is None and len(names) > 1 and names[0] not in taken
    expected = options.expected
    if not is_free or (expected and names[0] in {column.name for column in expected.columns}):
        return None
    return 0


def check_same_names(names: Sequence[str], first: Sequence[str], url: str, first_url: str) -> None:
    """Refuse a file whose columns are not those of the first one."""
    if list(names) == list(first):
        return
    pairs = enumerate(zip(names, first, strict=False))
    differing = next((i for i, (a, b) in pairs if a != b), None)
    if differing is None:
        expected, got = f"{len(first)} columns as in {first_url}", f"{len(names)}"
    else:
        expected = f"column {differing + 1} named {first[differing]!r} as in {first_url}"
        got = repr(names[differing])
    raise InputError(url, expected, got, "Give all files the same header.")
