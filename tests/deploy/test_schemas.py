"""Every manifest is what Kubernetes and the operator know, field by field."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from tests.deploy import manifests
from tests.deploy.manifests import (
    KUBERNETES,
    LOOK,
    OVERLAYS,
    Json,
    faults,
    is_refused,
    made_by_operator,
    rendered,
)

pytestmark = pytest.mark.skipif(
    not KUBERNETES.is_dir(), reason="deploy is not part of an installed package"
)

# Keys that people choose: any name is right there.
FREE = {"labels", "annotations", "matchLabels", "data", "requests", "limits", "selector"}
CHOOSING = {("apiVersion",), ("kind",)}  # they choose the schema
KINDS = (
    "Certificate",
    "ConfigMap",
    "CronJob",
    "DaskAutoscaler",
    "DaskCluster",
    "DaskJob",
    "DaskWorkerGroup",
    "Issuer",
    "Namespace",
    "NetworkPolicy",
    "PersistentVolumeClaim",
    "Pod",
    "PodDisruptionBudget",
    "Role",
    "RoleBinding",
    "ServiceAccount",
)


def everything() -> list[Json]:
    return [document for overlay in (*OVERLAYS, LOOK) for document in rendered(overlay)]


@pytest.mark.parametrize("overlay", [*OVERLAYS, LOOK])
@pytest.mark.parametrize("version", manifests.versions())
def test_overlay__passes_strict_schemas(overlay, version):
    found = {
        f"{document['kind']} {document['metadata']['name']}": faults(document, version)
        for document in rendered(overlay)
    }
    assert {name: wrong for name, wrong in found.items() if wrong} == {}


def test_versions__are_several():
    assert len(set(manifests.versions())) >= 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("version", manifests.versions())
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_operator__makes_what_passes_strict_schemas(overlay, version):
    made = list(made_by_operator(rendered(overlay)))
    assert {document["kind"] for document in made} == {"Deployment", "Pod", "Service"}
    for document in made:
        assert faults(document, version) == [], document["metadata"]["name"]


def test_kinds__are_all_tried():
    assert {document["kind"] for document in everything()} == set(KINDS)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of every field whose name is not the author's choice."""
    if isinstance(value, dict):
        for key, item in value.items():
            is_selector_itself = key == "selector" and not is_map_of_texts(item)
            yield (*path, key)
            if key not in FREE or is_selector_itself:
                yield from places(item, (*path, key))
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from places(item, (*path, number))


def is_map_of_texts(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())


def changed(document: Json, path: tuple[Any, ...], how: str) -> Json:
    made = copy.deepcopy(document)
    inner: Any = made
    for step in path[:-1]:
        inner = inner[step]
    if how == "misspelt":
        name = path[-1]
        inner[name[:-1] + name[-1] * 2] = inner.pop(name)
    else:
        inner[path[-1]] = wrong_type(inner[path[-1]])
    return made


def wrong_type(value: Any) -> Any:
    if isinstance(value, (dict, list)):
        return "a text"
    return [value]  # also where a number and a text are both right


@pytest.mark.parametrize("how", ["misspelt", "wrong type"])
@pytest.mark.parametrize("kind", KINDS)
def test_faults__every_field(kind, how):
    tried: dict[tuple[Any, ...], bool] = {}
    for document in everything():
        if document["kind"] == kind:
            for path in places(document):
                field = tuple(step for step in path if isinstance(step, str))
                if field not in tried and field not in CHOOSING:
                    tried[field] = is_refused(changed(document, path, how))
    assert len(tried) >= 3
    assert [field for field, refused in tried.items() if not refused] == []


def test_faults__unknown_kind_or_version():
    (job,) = manifests.of_kind(rendered("trial"), "CronJob")
    with pytest.raises(FileNotFoundError):
        faults({**job, "apiVersion": "batch/v1beta1"})
