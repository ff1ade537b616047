"""Text tables as pandas reads them, and the rules for their columns written out plainly."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd


@dataclass
class Table:
    """Features as float64 with codes of levels, names of rows, and annotations."""

    names: list[str]
    values: Any
    levels: list[tuple[str, ...]]
    numbers: list[str]
    ids: list[str] | None
    obs: dict[str, list[Any]]


def read_by_pandas(path: Path, separator: str = ",", ids: str | None = None) -> Table:
    """Read all of a table at once; whole columns decide what they are."""
    frame = pd.read_csv(
        path, sep=separator, low_memory=False, skipinitialspace=True, float_precision="round_trip"
    )
    names: list[str] | None = None
    first = frame.iloc[:, 0]
    if ids:
        names = frame[ids].astype(str).tolist()
        frame = frame.drop(columns=ids)
    elif ids is None and _names_rows(first):
        names = first.tolist()
        frame = frame.iloc[:, 1:]
    table = Table([], None, [], [], names, {})
    columns = []
    for name in frame.columns:
        _add_column(table, columns, str(name), frame[name])
    table.values = np.column_stack(columns)
    return table


def _names_rows(first: pd.Series[Any]) -> bool:
    is_text = first.dtype == object and bool(first.notna().all()) and first.is_unique
    return is_text and pd.to_numeric(first, errors="coerce").isna().mean() >= 0.5


def _add_column(table: Table, columns: list[Any], name: str, values: pd.Series[Any]) -> None:
    present = values.dropna()
    kinds = {type(value) for value in present}
    if kinds == {str} and all(map(_is_date, present)):
        table.obs[name] = [None if pd.isna(value) else value for value in values]
        return
    table.names.append(name)
    if kinds <= {bool, int, float}:
        kind = "bool" if kinds == {bool} else "integer" if kinds == {int} else "real"
        table.numbers.append(kind)
        table.levels.append(())
        columns.append(values.astype(float).to_numpy())
        return
    levels = tuple(sorted({str(value) for value in present}))
    code_of = {level: code for code, level in enumerate(levels)}
    table.numbers.append("real")
    table.levels.append(levels)
    columns.append([np.nan if pd.isna(v) else float(code_of[str(v)]) for v in values])


def _is_date(text: str) -> bool:
    try:
        datetime.datetime.fromisoformat(text)
    except ValueError:
        return False
    return "-" in text
