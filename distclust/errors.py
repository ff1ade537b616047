"""Every exception and warning that distclust raises on purpose.

::

    DistclustError                       where: expected X, got Y. What to do.
    ├── InputError (ValueError)          data or parameters refused before work starts
    │   ├── OtherRowsError               not the rows that unfinished work began with
    │   └── UnknownItemError             a query names an item that the corpus does not have
    ├── MissingFileError (FileNotFoundError)
    ├── ModelFormatError (ValueError)    a model file that cannot be trusted
    ├── StoreError (ValueError)          a store that cannot be trusted
    ├── ConflictError (RuntimeError)     another writer changed the store first
    ├── CapacityError (MemoryError)      work that would not fit, refused before it starts
    ├── InterruptedFit (RuntimeError)    stopped on request; running again resumes or restarts
    └── ClusterError (RuntimeError)      the Dask cluster is unreachable, mixed or lost

    DistclustWarning (UserWarning)
    ├── CheckpointWarning                a checkpoint was damaged or could not be written
    ├── ConstantColumnsWarning           columns that carry no information
    ├── ConvergenceWarning               an optimiser stopped before its tolerance
    ├── IndefiniteKernelWarning          a kernel with negative eigenvalues
    ├── ThreadsWarning                   threads or processes fight over cores
    └── UnknownFeaturesWarning           features of a query that no item of the corpus has

All arguments are positional and kept: only such exceptions come back whole from a Dask
worker.
"""

from __future__ import annotations

from typing import Any


class DistclustError(Exception):
    """Base of all errors: a place, an expectation, a finding and a remedy."""

    exit_code = 1

    def __init__(self, where: str, expected: str, got: object, hint: str) -> None:
        super().__init__(where, expected, got, hint)
        self.where = where
        self.expected = expected
        self.got = got
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.where}: expected {self.expected}, got {self.got}. {self.hint}"

    def __reduce__(self) -> tuple[Any, ...]:
        # OSError and MemoryError have their own ideas of their arguments.
        return type(self), (self.where, self.expected, self.got, self.hint)


class InputError(DistclustError, ValueError):
    """Data or parameters that cannot be used, found before any work was done."""

    exit_code = 2


class OtherRowsError(InputError):
    """Rows that differ from those with which unfinished work began; the work is kept."""


class UnknownItemError(InputError):
    """A query names an item that the corpus does not have; some names are near to it."""

    def __init__(
        self,
        where: str,
        expected: str,
        got: object,
        hint: str,
        item: str = "",
        suggestions: tuple[str, ...] = (),
    ) -> None:
        super().__init__(where, expected, got, hint)
        self.item = item
        self.suggestions = suggestions

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (*self.args, self.item, self.suggestions)


class MissingFileError(DistclustError, FileNotFoundError):
    """A file that was named does not exist or cannot be opened."""

    exit_code = 2

    # OSError pickles and prints by errno; ours is a sentence.
    __str__ = DistclustError.__str__


class ModelFormatError(DistclustError, ValueError):
    """A model file is truncated, altered, foreign or of a newer format."""

    exit_code = 2


class StoreError(DistclustError, ValueError):
    """A store is missing, unfinished, altered, hostile, or of a newer format."""

    exit_code = 2


class ConflictError(DistclustError, RuntimeError):
    """Another writer published a change first, or is still at work."""


class CapacityError(DistclustError, MemoryError):
    """The work would not fit; the message carries the figure and the remedy."""

    exit_code = 2


class InterruptedFit(DistclustError, RuntimeError):
    """The work was stopped on request; nothing half-written was left."""

    exit_code = 3


class ClusterError(DistclustError, RuntimeError):
    """The Dask cluster is unreachable, runs other versions, or lost its workers."""


class DistclustWarning(UserWarning):
    """Base of all warnings."""


class CheckpointWarning(DistclustWarning):
    """A checkpoint was damaged or could not be written; the work goes on without it."""


class ConstantColumnsWarning(DistclustWarning):
    """Some columns never vary; they are valid but say nothing about clusters."""


class ConvergenceWarning(DistclustWarning):
    """An iteration ended before reaching its tolerance."""


class IndefiniteKernelWarning(DistclustWarning):
    """A kernel has negative eigenvalues: it is no product of features."""


class ThreadsWarning(DistclustWarning):
    """Compiled loops, BLAS and Dask would fight over the same cores."""


class UnknownFeaturesWarning(DistclustWarning):
    """A query has features that no item of the corpus has; they were ignored."""
