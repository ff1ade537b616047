"""What travels between processes, as one string of bytes.

Dask would send the memory of arrays as it is and let it land anywhere; numpy sums an array
that starts at an odd byte in another order, and the answer would differ in its last bits.
"""

from __future__ import annotations

import itertools
import pickle
from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np

_OUT_OF_BAND = 5  # the protocol of pickle since which memory may be sent beside it
_SIZE = np.dtype("<i8")


@dataclass(frozen=True)
class Sealed:
    """What a task carries or returns, as bytes; Dask does not look inside either.

    The number of parts, the size of each, then the parts: a pickle, and the memory of the arrays
    in it, which is copied once on either side. Opened, arrays lie in memory of their own,
    wherever the bytes landed.
    """

    content: bytes | memoryview

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        if int(protocol) < _OUT_OF_BAND:
            return Sealed, (bytes(self.content),)
        return Sealed, (pickle.PickleBuffer(self.content),)  # sent as it lies, not copied

    def open(self) -> Any:
        """Return what was sealed, as a tuple."""
        from distributed.protocol.pickle import loads

        content = memoryview(self.content).cast("B")
        (n_parts,) = np.frombuffer(content, _SIZE, 1)
        sizes = np.frombuffer(content, _SIZE, n_parts, _SIZE.itemsize)
        ends = np.cumsum([_SIZE.itemsize * (1 + n_parts), *sizes]).tolist()
        head, *buffers = (content[a:b] for a, b in itertools.pairwise(ends))
        return loads(head, buffers=[np.array(buffer) for buffer in buffers])


def seal(*content: Any) -> Sealed:
    """Return values as bytes."""
    from distributed.protocol.pickle import dumps

    buffers: list[pickle.PickleBuffer] = []
    head = dumps(content, buffer_callback=buffers.append)
    parts = [head, *(buffer.raw() for buffer in buffers)]
    sizes = np.array([len(parts), *map(len, parts)], _SIZE)
    return Sealed(b"".join([sizes.tobytes(), *parts]))
