"""The package as a whole: quick to import, complete, typed, its errors portable."""

from __future__ import annotations

import importlib.resources
import inspect
import json
import pickle
import subprocess
import sys

import pytest

import distclust
from distclust import errors

ERRORS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.DistclustError)
]
WARNINGS = [
    kind
    for _, kind in inspect.getmembers(errors, inspect.isclass)
    if issubclass(kind, errors.DistclustWarning)
]


def in_fresh_python(code: str) -> str:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def test_import__takes_under_half_a_second() -> None:
    code = (
        "import time; start = time.perf_counter(); import distclust; "
        "print(time.perf_counter() - start)"
    )
    # The best of three: another process may have had the core.
    assert min(float(in_fresh_python(code)) for _ in range(3)) < 0.5


def test_import__loads_nothing_heavy() -> None:
    loaded = json.loads(
        in_fresh_python("import sys, json, distclust; print(json.dumps(sorted(sys.modules)))")
    )
    heavy = {"dask", "distributed", "matplotlib", "numba", "numpy", "pandas", "scipy", "sklearn"}
    assert heavy.isdisjoint(loaded)


@pytest.mark.parametrize("name", distclust.__all__)
def test_all__every_name_is_importable(name: str) -> None:
    assert getattr(distclust, name) is not None
    assert name in dir(distclust)


def test_all__holds_every_public_name() -> None:
    for name in distclust.__all__:
        getattr(distclust, name)
    public = {
        name
        for name, value in vars(distclust).items()
        if not name.startswith("_") and (name in distclust.__all__ or not inspect.ismodule(value))
    }
    public -= {"annotations", "Any", "TYPE_CHECKING"}
    assert public | {"__version__"} == set(distclust.__all__)
    assert list(distclust.__all__) == sorted(distclust.__all__)


def test_getattr__unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        distclust.no_such_name  # noqa: B018


def test_package__is_typed() -> None:
    assert (importlib.resources.files(distclust) / "py.typed").is_file()


@pytest.mark.parametrize("kind", ERRORS)
def test_errors__survive_pickling_whole(kind: type[errors.DistclustError]) -> None:
    error = kind("Place.method", "a thing", "another (3, 4)", "Do this.")
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == "Place.method: expected a thing, got another (3, 4). Do this."
    assert (copy.where, copy.expected) == ("Place.method", "a thing")
    assert (copy.got, copy.hint) == ("another (3, 4)", "Do this.")
    assert copy.exit_code in {1, 2, 3}


@pytest.mark.parametrize("kind", WARNINGS)
def test_warnings__survive_pickling_whole(kind: type[Warning]) -> None:
    copy = pickle.loads(pickle.dumps(kind("columns 1 and 2 are constant")))
    assert type(copy) is kind
    assert str(copy) == "columns 1 and 2 are constant"


def test_errors__each_is_also_the_builtin_a_caller_expects() -> None:
    expected = {
        errors.InputError: ValueError,
        errors.MissingFileError: FileNotFoundError,
        errors.ModelFormatError: ValueError,
        errors.CapacityError: MemoryError,
        errors.ClusterError: RuntimeError,
    }
    for kind, builtin in expected.items():
        assert issubclass(kind, builtin)


def test_errors__are_all_drawn_in_the_tree_of_the_module() -> None:
    for kind in (*ERRORS, *WARNINGS):
        assert kind.__name__ in str(errors.__doc__)
