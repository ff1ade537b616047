"""The HTTP service of Bayesian Sets, and its page."""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

from distclust.errors import InputError
from distclust.service.settings import Settings

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from distclust.retrieval import BayesianSets

__all__ = ["Settings", "check_packages", "make_app"]

_PACKAGES = ("starlette", "uvicorn")


def make_app(sets: BayesianSets, settings: Settings | None = None) -> Starlette:
    """Return the ASGI application that answers queries of a fitted index.

    It prepares the index when it is started (ASGI's lifespan), and is ready then.
    """
    check_packages()
    from distclust.service.app import Service

    return Service(sets, settings or Settings()).app


def check_packages() -> None:
    """Refuse to go on without the packages of the extra."""
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        hint = "Install them: `pip install 'distclust[service]'`."
        expected = f"the packages {' and '.join(_PACKAGES)}"
        raise InputError("distclust.service", expected, f"no {' and no '.join(missing)}", hint)
