"""Values as JSON and arrays: what goes in comes out, and nothing else can be put in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import scipy.sparse

from distclust.errors import InputError
from distclust.store import Profile, profile_block
from distclust.store.values import decode_value, encode_value, pack_value, unpack_value


def encoded(value: Any, key: str = "a/b") -> Any:
    return np.frombuffer(b"".join(map(bytes, encode_value(key, value))), np.uint8)


def through(value: Any) -> Any:
    return decode_value("a/b", encoded(value))


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


ARRAYS = {
    "none": np.empty((0, 3)),
    "a number": np.array(2.5),
    "bits": np.array([True, False]),
    "text": np.array(["a", "longer"]),
    "other order": np.arange(6.0).reshape(2, 3).T,
    "strided": np.arange(20, dtype=np.int16).reshape(4, 5)[::2, 1::2],
    "big-endian": np.arange(3, dtype=">u4"),
    "complex": np.array([1 + 2j]),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_value__arrays_keep_type_shape_and_order(name):
    array = ARRAYS[name]
    before, found, after = through((np.arange(3), array, np.arange(5)))
    np.testing.assert_array_equal(found, array)
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert found.flags.f_contiguous == array.flags.f_contiguous
    np.testing.assert_array_equal(before, np.arange(3))
    np.testing.assert_array_equal(after, np.arange(5))


@pytest.mark.parametrize("array", [np.array([None, 1]), np.zeros(2, [("a", "i4")])])
def test_value__arrays_of_other_things_are_refused(array):
    with pytest.raises(InputError, match="arrays of numbers or text"):
        list(encode_value("key", array))


def test_decode__every_altered_byte_is_noticed():
    content = encoded((np.arange(3), "text"))
    for i in range(len(content)):
        altered = content.copy()
        altered[i] ^= 1
        with pytest.raises(ValueError, match="altered"):
            decode_value("a/b", altered)
        with pytest.raises(ValueError, match="truncated"):
            decode_value("a/b", content[:i])
    with pytest.raises(ValueError, match="altered"):
        decode_value("a/c", content)


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
