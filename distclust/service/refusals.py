"""Answers to requests that cannot be served: a status, and a sentence as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from distclust.errors import (
    ClusterError,
    DistclustError,
    InputError,
    UnknownItemError,
)

_RETRY_AFTER = {"Retry-After": "5"}


class Refusal(Exception):
    """A request is answered with an error.

    Attributes
    ----------
    status
        Of the answer.
    error
        The sentence.
    headers
        Of the answer, beside the usual ones.
    facts
        What a program may want to know beside the sentence, JSON values.
    """

    def __init__(
        self,
        status: int,
        error: DistclustError,
        headers: Mapping[str, str] | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(status, error)
        self.status = status
        self.error = error
        self.headers = dict(headers or {})
        self.facts = dict(facts or {})

    def to_dict(self) -> dict[str, Any]:
        """Return the body of the answer."""
        error = self.error
        return {
            "error": {
                "status": self.status,
                "message": str(error),
                "where": error.where,
                "expected": error.expected,
                "got": str(error.got),
                "hint": error.hint,
                **self.facts,
            }
        }


def refusal(
    status: int,
    where: str,
    expected: str,
    got: str,
    hint: str,
    headers: Mapping[str, str] | None = None,
) -> Refusal:
    """Return a refusal from the parts of its sentence."""
    return Refusal(status, InputError(where, expected, got, hint), headers)


def refusal_of(error: DistclustError) -> Refusal:
    """Return how an error of the work itself is told."""
    if isinstance(error, UnknownItemError):
        facts = {"item": error.item, "suggestions": list(error.suggestions)}
        return Refusal(404, error, facts=facts)
    if isinstance(error, InputError):
        return Refusal(422, error)
    if isinstance(error, ClusterError):
        return Refusal(503, error, _RETRY_AFTER)
    return failure()


def failure() -> Refusal:
    """Return the answer to what should not have happened; the log has the reason."""
    return refusal(500, "distclust", "an answer", "a failure", "The service's log says more.")
