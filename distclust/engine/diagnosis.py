"""What a person needs to know when something does not work."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
from typing import Any

from distclust._version import __version__
from distclust.engine.sessions import current_client, local_threads, version_mismatches
from distclust.engine.threads import allowed_cores
from distclust.engine.workers import worker_facts

_PACKAGES = (
    "dask",
    "distributed",
    "numba",
    "numpy",
    "pandas",
    "scikit-learn",
    "scipy",
    "sparse",
    "zarr",
)
_OPTIONAL = {"bokeh": "the Dask dashboard (python -m pip install bokeh)"}


def doctor() -> dict[str, Any]:
    """Return the state of this installation and of the current cluster, as JSON values.

    Keys: ``distclust``, ``python``, ``platform``, ``packages`` (name to version),
    ``threads``, ``memory`` and ``disk`` (bytes), ``compiled`` (cache of compiled
    functions), ``missing`` (optional package to what it is for), ``cluster`` (None in
    process) and ``problems`` (sentences; empty when all is well).
    """
    packages = {name: _version_of(name) for name in _PACKAGES}
    report: dict[str, Any] = {
        "distclust": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": packages,
        "threads": {"cores": os.cpu_count(), "allowed": allowed_cores(), "used": local_threads()},
        "memory": _memory(),
        "disk": {"folder": os.getcwd(), "free": shutil.disk_usage(os.getcwd()).free},
        "compiled": _compiled(),
        "missing": {n: use for n, use in _OPTIONAL.items() if not importlib.util.find_spec(n)},
        "cluster": _cluster(),
    }
    report["problems"] = _problems(report)
    return report


def _version_of(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _memory() -> dict[str, int]:
    import psutil
    from distributed.system import MEMORY_LIMIT  # knows a container's limit too

    available = psutil.virtual_memory().available
    return {"total": int(MEMORY_LIMIT), "available": min(int(MEMORY_LIMIT), available)}


def _compiled() -> dict[str, Any]:
    from distclust.compiled import cache_folder

    folder = cache_folder()
    files = sum(1 for path in folder.rglob("*.nbi")) if folder else 0
    return {"folder": str(folder) if folder else None, "functions": files}


def _cluster() -> dict[str, Any] | None:
    client = current_client()
    if client is None:
        return None
    workers = worker_facts(client)
    return {
        "scheduler": client.scheduler.address,
        "workers": len(workers),
        "threads": sum(worker["nthreads"] for worker in workers.values()),
        "memory": sum(worker["memory_limit"] or 0 for worker in workers.values()),
        "mismatches": version_mismatches(client),
    }


def _problems(report: dict[str, Any]) -> list[str]:
    problems = [f"Package {n} is missing." for n, v in report["packages"].items() if v is None]
    if report["compiled"]["folder"] is None:
        problems.append(
            "Compiled functions cannot be kept: set DISTCLUST_CACHE_DIR to a writable folder."
        )
    cluster = report["cluster"]
    if cluster is not None:
        problems += [f"Versions differ: {phrase}." for phrase in cluster["mismatches"]]
        if cluster["workers"] == 0:
            problems.append("The cluster has no workers.")
    return problems
