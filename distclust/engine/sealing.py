"""What travels between processes, as one string of bytes.

Dask would send the memory of arrays as it is and let it land anywhere; numpy sums an array
that starts at an odd byte in another order, and the answer would differ in its last bits.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any, SupportsIndex

_OUT_OF_BAND = 5  # the protocol of pickle since which memory may be sent beside it


@dataclass(frozen=True)
class Sealed:
    """What a task carries or returns, as bytes; Dask does not look inside either.

    Opened, arrays lie in memory of their own, wherever the bytes landed.
    """

    content: bytes | memoryview

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        if int(protocol) < _OUT_OF_BAND:
            return Sealed, (bytes(self.content),)
        return Sealed, (pickle.PickleBuffer(self.content),)  # sent as it lies, not copied

    def open(self) -> Any:
        """Return what was sealed, as a tuple."""
        from distributed.protocol.pickle import loads

        return loads(self.content)


def seal(*content: Any) -> Sealed:
    """Return values as bytes."""
    from distributed.protocol.pickle import dumps

    return Sealed(dumps(content))
