"""Values as JSON and arrays: what goes in comes out, and nothing else can be put in."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from distclust.errors import InputError
from distclust.store import Profile, profile_block
from distclust.store.values import pack_value, unpack_value


def through(value: Any) -> Any:
    packed, arrays = pack_value(value)
    return unpack_value(json.loads(json.dumps(packed)), arrays)


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, 2**80, 0.1, float("inf"), "text", [1, [2.5]], (1, ("a", None)), (), [], {},
        {"a": (1,), "array": [2]}, {"fields": {"type": "x"}},
    ],
)  # fmt: skip
def test_value__comes_back(value):
    found = through(value)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    "number", [np.float32(0.1), np.int16(-3), np.bool_(True), np.uint64(2**63)]
)
def test_value__numbers_keep_their_bits(number):
    found = through(number)
    assert found == number
    assert found.dtype == number.dtype


def test_value__arrays_and_sparse_matrices(rng):
    dense = rng.normal(size=(4, 3)).astype(np.float32)
    for kind in (scipy.sparse.csr_array, scipy.sparse.csr_matrix):
        sparse = kind(np.round(dense))
        array, (found,) = through((dense, (sparse,)))
        assert array.dtype == dense.dtype
        np.testing.assert_array_equal(array, dense)
        assert type(found) is kind
        assert found.shape == sparse.shape
        np.testing.assert_array_equal(found.toarray(), sparse.toarray())


def test_value__dataclasses_of_the_package(rng):
    profile = profile_block(rng.integers(0, 3, (5, 2)))
    found = through([profile])[0]
    assert type(found) is Profile
    assert found.n_rows == 5
    np.testing.assert_array_equal(found.maximum, profile.maximum)


@dataclass
class Foreign:
    a: int = 1


@pytest.mark.parametrize("value", [Foreign(), {1: 2}, {2}, b"bytes", object()])
def test_value__what_could_not_come_back_is_refused(value):
    with pytest.raises(InputError, match=f"got {type(value).__name__}"):
        pack_value((1, value))


@pytest.mark.parametrize("name", ["os:stat_result", "subprocess:Popen", "distclust.store:Matrix"])
def test_unpack__makes_nothing_but_dataclasses_of_the_package(name):
    with pytest.raises(InputError, match="a dataclass of the package"):
        unpack_value({"dataclass": {"type": name, "fields": {}}}, {})
