"""Families by name, for model files and for users who type one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from distclust.errors import InputError, ModelFormatError
from distclust.families._blocks import FloatArray
from distclust.families.base import Family

FamilyClass = TypeVar("FamilyClass", bound=type[Family])

_REGISTRY: dict[str, type[Family]] = {}


def register_family(cls: FamilyClass) -> FamilyClass:
    """Make a family known by its name, so that saved models find it; a decorator."""
    known = _REGISTRY.get(cls.name)
    if not cls.name or (known is not None and known.__qualname__ != cls.__qualname__):
        raise InputError(
            f"register_family({cls.__name__})",
            "a name of its own",
            repr(cls.name),
            f"Set the class attribute `name`; taken: {', '.join(sorted(_REGISTRY))}.",
        )
    _REGISTRY[cls.name] = cls
    return cls


def family_named(name: str, where: str = "family") -> Family:
    """Return the template of a registered family, with its default hyperparameters."""
    if name in _REGISTRY:
        return _REGISTRY[name]()
    raise InputError(
        where,
        f"one of {', '.join(repr(known) for known in sorted(_REGISTRY))}",
        repr(name),
        "Or pass a family such as distclust.families.Bernoulli(alpha=1, beta=1).",
    )


def family_from_dict(
    meta: Mapping[str, Any], arrays: Mapping[str, FloatArray], where: str = "family"
) -> Family:
    """Return the family that ``family.to_dict()`` described."""
    name = meta.get("family")
    if name not in _REGISTRY:
        raise ModelFormatError(
            where,
            f"one of the families {', '.join(sorted(_REGISTRY))}",
            repr(name),
            "Import the module that defines it, with register_family, before loading.",
        )
    return _REGISTRY[name].from_dict(meta, arrays)
