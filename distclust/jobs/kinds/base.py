"""What a kind of model is asked for, and what it answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from distclust.errors import InputError
from distclust.families import family_named
from distclust.store.stored_matrix import StoredMatrix
from distclust.store.versions import Version
from distclust.trees.drift import DriftRules

Action = Literal["kept", "updated", "refit below", "fitted"]

FIRST = "It is fitted for the first time."
NOTHING_NEW = "The rows are the same."
KEEP = f"keep: {NOTHING_NEW}"


@dataclass(frozen=True)
class Before:
    """The published version of a model.

    Attributes
    ----------
    version, labels_version
        Ids in the model's results store and in that of its labels; the latter None for models
        whose own version holds labels, or that have none.
    matrix
        The rows that it was made for.
    refit_at
        When it was last fitted in full, ISO format.
    """

    version: str
    labels_version: str | None
    matrix: StoredMatrix
    refit_at: str


@dataclass(frozen=True)
class Request:
    """What is wanted.

    Attributes
    ----------
    name, kind, parameters, seed
        As the job file names the model; parameters were checked.
    place
        Path or URL of its results store.
    matrix
        The rows as they are now.
    before
        What is published; None for the first time.
    drift
        When to fit again.
    refit_reason
        Why it is to be fitted in full whatever the rows say, a sentence; None: nothing.
    """

    name: str
    kind: str
    parameters: Mapping[str, Any]
    seed: int
    place: str
    matrix: StoredMatrix
    before: Before | None = None
    drift: DriftRules = field(default_factory=DriftRules)
    refit_reason: str | None = None

    @property
    def has_news(self) -> bool:
        """Whether the rows differ from those of the published version."""
        return self.before is None or self.before.matrix.fingerprint != self.matrix.fingerprint


@dataclass(frozen=True)
class Asked:
    """What is known of a request before rows are brought in.

    Attributes
    ----------
    parameters, drift, refit_reason
        As in `Request`.
    is_first
        Whether nothing is published.
    """

    parameters: Mapping[str, Any]
    is_first: bool
    drift: DriftRules = field(default_factory=DriftRules)
    refit_reason: str | None = None


@dataclass(frozen=True)
class Made:
    """What was made.

    Attributes
    ----------
    version, labels_version
        As in `Before`.
    action, reason
        What was done, and why, a sentence.
    metrics
        Figures of the version by name.
    refit_at
        When the model was last fitted in full, ISO format.
    drift
        What the comparison of new rows with old ones found, JSON values; None if there was
        nothing to compare.
    """

    version: str
    labels_version: str | None
    action: Action
    reason: str
    metrics: dict[str, Any]
    refit_at: str
    drift: dict[str, Any] | None = field(default=None)


class Kind(ABC):
    """A kind of model: how it is checked, fitted and brought up to date.

    All work is resumed when the same request is made again, and what comes out depends on the
    request only.
    """

    name: ClassVar[str]

    @abstractmethod
    def estimator(self, parameters: Mapping[str, Any], seed: int) -> Any:
        """Return the estimator, not yet fitted."""

    @abstractmethod
    def check_values(self, model: Any, where: str) -> None:
        """Refuse parameters that the estimator would refuse."""

    @abstractmethod
    def make(self, request: Request) -> Made:
        """Fit the model, bring it up to date, or keep it."""

    @abstractmethod
    def plan_update(self, parameters: Mapping[str, Any], drift: DriftRules) -> str:
        """Return in words what `make` does about new rows, while nothing else calls for a fit."""

    def plan(self, asked: Asked, has_news: bool) -> str:
        """Return in words what `make` would do; rows that have news need not be here yet."""
        if asked.is_first:
            return f"fit: {FIRST}"
        if asked.refit_reason is not None:
            return f"fit: {asked.refit_reason}"
        return self.plan_update(asked.parameters, asked.drift) if has_news else KEEP

    def allowed(self) -> list[str]:
        """Return the names of the parameters that a job may set."""
        names = self.estimator({}, 0).get_params(deep=False)
        return sorted(set(names) - {"random_state"})

    def check(self, parameters: Mapping[str, Any], where: str) -> None:
        """Refuse unknown or impossible parameters before any work.

        Parameters
        ----------
        parameters
            As a job file has them.
        where
            Place to name in errors, such as ``[models.topics]``.
        """
        allowed = self.allowed()
        for name in parameters:
            if name not in allowed:
                expected = f"parameters among {', '.join(allowed)}" if allowed else "no parameters"
                raise InputError(where, expected, repr(name), "Check the spelling, or drop it.")
        try:
            self.check_values(self.estimator(parameters, 0), where)
        except InputError as error:
            raise _at(error, where) from None
        except (TypeError, ValueError) as error:
            expected = f"parameters of the kind {self.name!r}"
            raise InputError(where, expected, str(error), "Check the values.") from error


def _at(error: InputError, where: str) -> InputError:
    """Return the refusal of an estimator as one of the job file."""
    if error.where.startswith(where):
        return error
    _, _, parameter = error.where.rpartition(": ")
    return InputError(f"{where}: {parameter}", error.expected, error.got, error.hint)


def check_family(family: Any, where: str) -> None:
    """Refuse a family that nobody knows."""
    if not isinstance(family, str):
        expected = "'auto' or the name of a family"
        raise InputError(f"{where}: family", expected, repr(family), "Name it in quotes.")
    if family != "auto":
        family_named(family, f"{where}: family")


def kept(request: Request, metrics: Mapping[str, Any]) -> Made:
    """Answer that the published version is what is wanted."""
    before = request.before
    assert before is not None, "only what is published can be kept"
    return Made(
        before.version,
        before.labels_version,
        "kept",
        NOTHING_NEW,
        figures(metrics),
        before.refit_at,
    )


def fitted(version: Version, reason: str, drift: dict[str, Any] | None = None) -> Made:
    """Answer with a version that was fitted in full."""
    return Made(
        version.id, None, "fitted", reason, figures(version.metrics), version.created, drift
    )


def figures(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the plain figures among the metrics of a version."""
    return {name: value for name, value in metrics.items() if not isinstance(value, dict | list)}


def count(n: int, thing: str) -> str:
    """Return a number and what it counts, in words."""
    return f"{n:,} {thing}" if n == 1 else f"{n:,} {thing}s"
