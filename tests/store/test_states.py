from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from distclust.errors import InputError
from distclust.store.archive import decode_archive, encode_archive
from distclust.store.states import as_restored, pack_state, unpack_state, with_own_generators

GENERATORS = ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"]


@dataclass(frozen=True)
class Mixed:
    rows: npt.NDArray[Any]
    value: Any
    rng: np.random.Generator


@dataclass(frozen=True)
class Plain:
    n: int = 0


def travel(state: Any) -> Any:
    """Through the bytes of an archive and back."""
    values, arrays = pack_state(state)
    archive = decode_archive(encode_archive("test", {"values": values}, arrays), "here")
    return unpack_state(type(state), archive.meta["values"], archive.arrays)


def mixed(value: Any = None, kind: str = "PCG64", rows: Any = None) -> Mixed:
    rng = np.random.Generator(getattr(np.random, kind)(7))
    return Mixed(np.arange(6.0).reshape(2, 3) if rows is None else rows, value, rng)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda parts: st.lists(parts, max_size=3) | st.dictionaries(st.text(), parts, max_size=3),
    max_leaves=8,
)


@given(
    rows=hnp.arrays(np.int64, hnp.array_shapes(min_dims=1, max_dims=4, max_side=4)),
    order=st.permutations(range(4)),
)
def test_as_restored__arrays_in_one_piece_as_they_come_back(rows, order):
    axes = [axis for axis in order if axis < rows.ndim]
    scattered = np.repeat(rows.transpose(axes), 2, axis=0)[::2]
    restored = as_restored(mixed(rows=scattered)).rows
    assert restored.flags.c_contiguous or restored.flags.f_contiguous
    np.testing.assert_array_equal(restored, scattered)
    came_back = travel(mixed(rows=restored)).rows
    assert came_back.ravel("K").tolist() == restored.ravel("K").tolist()


@given(value=JSON)
def test_states__json_values_come_back(value):
    back = travel(mixed(value)).value
    assert repr(back) == repr(value)  # -0.0, and 1 against 1.0


@given(rows=hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, min_side=0)))
def test_states__arrays_come_back_with_type_and_bits(rows):
    back = travel(mixed(rows=rows)).rows
    assert (back.dtype, back.shape) == (rows.dtype, rows.shape)
    assert back.tobytes() == rows.tobytes()


@pytest.mark.parametrize("order", ["C", "F"])
def test_states__arrays_keep_their_order(order):
    # A product of the same numbers in another order may differ in its last bits.
    rows = np.asarray(np.random.default_rng(0).random((5, 3)), order=order)
    back = travel(mixed(rows=rows)).rows
    assert back.flags.c_contiguous == rows.flags.c_contiguous
    assert back.flags.aligned
    assert back.ctypes.data % back.itemsize == 0


@pytest.mark.parametrize(
    "number", [np.float32(0.1), np.float64(1 / 3), np.int8(-3), np.uint64(2**64 - 1), np.bool_(1)]
)
def test_states__numbers_keep_their_type(number):
    back = travel(mixed(number)).value
    assert type(back) is type(number)
    assert back == number


@pytest.mark.parametrize("kind", GENERATORS)
def test_states__the_stream_of_a_generator_goes_on(kind):
    state = mixed(kind=kind)
    state.rng.standard_normal(13)
    state.rng.integers(5, dtype=np.uint32)  # leaves half a number behind
    back = travel(state)
    for draw in ("random", "standard_normal", "standard_gamma"):
        wanted = getattr(state.rng, draw)(*([2.5] if "gamma" in draw else []), size=9)
        got = getattr(back.rng, draw)(*([2.5] if "gamma" in draw else []), size=9)
        assert got.tobytes() == wanted.tobytes()
    wanted, got = (rng.integers(5, size=9, dtype=np.uint32) for rng in (state.rng, back.rng))
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize("value", [(1, 2), [1, (2,)], {1: 2}, {"a": {2: 3}}, {1, 2}, 1j, b"x"])
def test_pack__what_would_come_back_as_something_else_is_refused(value):
    with pytest.raises(InputError, match=r"Mixed\.value"):
        pack_state(mixed(value))


@pytest.mark.parametrize("state", [{"a": 1}, Mixed, None])
def test_pack__only_dataclasses_are_states(state):
    with pytest.raises(InputError, match="dataclass"):
        pack_state(state)
    with pytest.raises(InputError, match="dataclass"):
        unpack_state(type(state), {}, {})


def test_own_generators__drawing_leaves_the_state_alone():
    state = mixed()
    before = state.rng.bit_generator.state
    own = with_own_generators(state)
    first = own.rng.random()
    assert own.rows is state.rows
    assert state.rng.bit_generator.state == before
    assert state.rng.random() == first
    plain = Plain()
    assert with_own_generators(plain) is plain
