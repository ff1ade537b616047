"""Figures for operators, in the text format of Prometheus (version 0.0.4)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Sample: TypeAlias = tuple[Mapping[str, str], float]


def family(
    name: str, kind: Literal["counter", "gauge"], about: str, samples: Iterable[Sample]
) -> list[str]:
    """Return the lines of a metric: its help, its type, and a line for each sample."""
    return [*heading(name, kind, about), *(line(name, *sample) for sample in samples)]


def heading(name: str, kind: str, about: str) -> list[str]:
    """Return the two lines that come before the samples of a metric."""
    text = about.replace("\\", r"\\").replace("\n", r"\n")
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def line(name: str, labels: Mapping[str, str], value: float) -> str:
    """Return one sample; any text may be the value of a label."""
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    return f"{name}{{{inside}}} {_number(value)}" if inside else f"{name} {_number(value)}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(int(value)) if isinstance(value, int) else repr(float(value))
