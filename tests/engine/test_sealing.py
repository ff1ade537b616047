"""What travels between processes: whole, without copies on the way, and well laid out."""

from __future__ import annotations

import asyncio
import pickle

import numpy as np
import pytest
from distributed.comm.utils import from_frames, to_frames
from distributed.protocol import to_serialize

from distclust.engine.sealing import Sealed, seal

BLOCK = np.arange(60_000.0).reshape(20_000, 3)


async def sent(sealed: Sealed) -> Sealed:
    frames = await to_frames({"sealed": to_serialize(sealed)})
    found = await from_frames([bytearray(frame) for frame in frames], deserialize=True)
    assert isinstance(found["sealed"], Sealed)
    return found["sealed"]


@pytest.mark.parametrize("block", [BLOCK, BLOCK.T, BLOCK[::2]])
def test_sent__comes_out_as_it_went_in(block):
    """Also when it is sent on."""
    once = asyncio.run(sent(seal(block, {"k": 1})))
    for sealed in (once, asyncio.run(sent(once)), pickle.loads(pickle.dumps(once))):
        found, options = sealed.open()
        np.testing.assert_array_equal(found, block)
        assert options == {"k": 1}


def test_sent__is_not_copied_on_the_way():
    sealed = seal(BLOCK)
    frames = asyncio.run(to_frames({"sealed": to_serialize(sealed)}))
    assert any(getattr(frame, "obj", frame) is sealed.content for frame in frames)


def test_open__arrays_are_aligned_wherever_the_bytes_landed():
    content = seal(BLOCK).content
    for shift in range(8):
        landed = memoryview(bytes(shift) + bytes(content))[shift:]
        (found,) = Sealed(landed).open()
        assert found.ctypes.data % found.itemsize == 0
        np.testing.assert_array_equal(found, BLOCK)


def test_seal__holds_what_was_there_then():
    block = BLOCK.copy()
    sealed = seal(block)
    block[:] = 0.0
    np.testing.assert_array_equal(sealed.open()[0], BLOCK)


def test_open__gives_memory_of_its_own_that_may_be_written():
    sealed = seal(BLOCK, np.empty((0, 3)), np.array(["a", None], object), seal(BLOCK.T), b"bytes")
    for _ in range(2):
        block, empty, things, inner, text = sealed.open()
        np.testing.assert_array_equal(block, BLOCK)
        assert empty.shape == (0, 3)
        assert things.tolist() == ["a", None]
        np.testing.assert_array_equal(inner.open()[0], BLOCK.T)
        assert text == b"bytes"
        block[:] = 0.0
