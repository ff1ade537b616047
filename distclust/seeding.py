"""Random streams and row hashes that follow from logical names, never from timing.

A stream is named by a seed and ids such as a chain's number or a tree path; a row's hash
by a seed, a path and the 64-bit key of its id. Wherever and in whatever order the work is
done, the same names give the same numbers.
"""

from __future__ import annotations

import hashlib
import numbers
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from distclust.errors import InputError

LogicalId: TypeAlias = int | str
Keys: TypeAlias = npt.NDArray[np.uint64]

_MAX_SEED = 2**32


def check_seed(random_state: object, where: str = "random_state") -> int:
    """Return the seed of a run from what scikit-learn calls a random state.

    None draws a fresh seed; a numpy generator or ``RandomState`` is asked for one (and so
    moves on); a whole number of at least 0 is the seed itself.
    """
    if random_state is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(_MAX_SEED))
    if isinstance(random_state, np.random.RandomState):
        return int(random_state.randint(_MAX_SEED, dtype=np.int64))
    whole = isinstance(random_state, numbers.Integral) and not isinstance(random_state, bool)
    if whole and random_state >= 0:  # type: ignore[operator]
        return int(random_state)  # type: ignore[call-overload, no-any-return]
    raise InputError(
        where,
        "None, a whole number of at least 0 or a numpy generator",
        repr(random_state),
        "Pass for instance 0.",
    )


def generator(seed: int, *ids: LogicalId) -> np.random.Generator:
    """Return the random stream named by `seed` and `ids`, independent of all others."""
    return np.random.default_rng(_digest(seed, ids, 16))


def row_keys(row_ids: npt.NDArray[Any]) -> Keys:
    """Return the 64-bit key of every row id, shape (n_rows,).

    Whole numbers are mixed; anything else is hashed as text.
    """
    if row_ids.dtype.kind in "iu":
        return _mix(row_ids.astype(np.uint64))
    if row_ids.dtype.kind == "O":  # one long id would make all as long in an array of text
        texts = [_text(row_id) for row_id in row_ids]
    else:
        texts = row_ids.astype(str).tolist()
    return np.fromiter((_hash(text, 8) for text in texts), np.uint64, len(texts))


def row_hashes(seed: int, keys: Keys, *path: LogicalId) -> Keys:
    """Return one pseudo-random 64-bit number a row, shape (n_rows,).

    It depends on the seed, the path and the row's own key only, so that the rows with the
    smallest hashes are the same sample wherever they lie.
    """
    return salted_hashes(keys, path_salt(seed, *path))


def path_salt(seed: int, *path: LogicalId) -> np.uint64:
    """Return what tells the row hashes of one seed and path from those of others."""
    return np.uint64(_digest(seed, path, 8))


def salted_hashes(keys: Keys, salts: Keys | np.uint64) -> Keys:
    """Return the hash of each row for its own salt (n_rows,), or for one salt."""
    return _mix(keys ^ salts)


def _digest(seed: int, ids: tuple[LogicalId, ...], n_bytes: int) -> int:
    # repr keeps 1 and "1" apart, and int makes numpy's numbers print like Python's.
    names = [name if isinstance(name, str) else int(name) for name in ids]
    return _hash(repr((int(seed), names)), n_bytes)


def _hash(text: str, n_bytes: int) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=n_bytes).digest(), "little")


def _text(row_id: object) -> str:
    """Return an id as numpy turns it into text, so that arrays of either kind give equal keys."""
    text = row_id.decode("ascii") if isinstance(row_id, bytes) else str(row_id)
    return text.rstrip("\0")


def _mix(words: Keys) -> Keys:
    """Scramble 64-bit words one to one (the finaliser of splitmix64)."""
    with np.errstate(over="ignore"):
        z = words + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))
