"""Manifests as they reach a cluster, strict schemas for them, and what the operator makes of them.

Schemas come from packages: those of Kubernetes from kubernetes-validate, those of Dask's kinds
from dask-kubernetes. Those of cert-manager are in no package; what is used of them is written
down here after its documentation.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from referencing import Registry, Resource

ROOT = Path(__file__).parents[2]
KUBERNETES = ROOT / "deploy" / "kubernetes"
OVERLAYS = ("trial", "production", "script")
LOOK = "look"  # a pod for people, beside the trial
N_VERSIONS = 4  # the newest of Kubernetes

Json = dict[str, Any]


@functools.cache
def rendered(overlay: str) -> tuple[Json, ...]:
    """Return the manifests of an overlay, as kubectl would send them."""
    if shutil.which("kubectl") is None:
        pytest.skip("there is no kubectl command")
    done = subprocess.run(
        ["kubectl", "kustomize", str(KUBERNETES / "overlays" / overlay)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return tuple(yaml.load_all(done.stdout, yaml.CSafeLoader))


def of_kind(documents: tuple[Json, ...], kind: str) -> list[Json]:
    return [document for document in documents if document["kind"] == kind]


# ---- schemas -------------------------------------------------------------------------------------


def package_folder(package: str) -> Path:
    """Return the folder of a package without importing it."""
    found = importlib.util.find_spec(package)
    assert found is not None, f"{package} is missing: python -m pip install -e .[test]"
    assert found.origin is not None
    return Path(found.origin).parent


@functools.cache
def versions() -> tuple[str, ...]:
    """Return the newest versions of Kubernetes whose schemas are at hand, oldest first."""
    folder = package_folder("kubernetes_validate") / "kubernetes-json-schema"
    found = (path.name.removeprefix("v").split("-")[0] for path in folder.glob("v*-local-strict"))
    newest = sorted(found, key=lambda version: tuple(map(int, version.split("."))))
    return tuple(newest[-N_VERSIONS:])


def faults(document: Json, version: str | None = None) -> list[str]:
    """Return what is wrong with a manifest, for one version of Kubernetes or the newest."""
    errors = _validator(document, version or versions()[-1]).iter_errors(document)
    return [f"{error.json_path}: {error.message[:300]}" for error in errors]


def is_refused(document: Json) -> bool:
    """Whether anything is wrong with a manifest; ends at the first fault."""
    return not _validator(document, versions()[-1]).is_valid(document)


def _validator(document: Json, version: str) -> Any:
    group = document["apiVersion"].partition("/")[0]
    if group == "kubernetes.dask.org":
        return _dask_validator(document["kind"])
    if group == "cert-manager.io":
        return jsonschema.Draft202012Validator(CERT_MANAGER[document["kind"]])
    return _kubernetes_validator(document["apiVersion"], document["kind"], version)


@functools.cache
def _kubernetes_validator(api_version: str, kind: str, version: str) -> Any:
    group, _, name = api_version.rpartition("/")
    prefix = f"{group.split('.')[0]}-{name}" if group else name
    folder = package_folder("kubernetes_validate") / "kubernetes-json-schema"
    folder /= f"v{version}-local-strict"
    schema = json.loads((folder / f"{kind.lower()}-{prefix}.json").read_text())
    return jsonschema.Draft202012Validator(schema, registry=_definitions(folder))


@functools.cache
def _definitions(folder: Path) -> Registry[Any]:
    contents = json.loads((folder / "_definitions.json").read_text())
    return Registry().with_resource("_definitions.json", Resource.from_contents(contents))


@functools.cache
def _dask_validator(kind: str) -> Any:
    folder = package_folder("dask_kubernetes") / "operator/deployment/helm/dask-kubernetes-operator"
    definition = yaml.load((folder / "crds" / f"{kind.lower()}.yaml").read_text(), yaml.CSafeLoader)
    (version,) = definition["spec"]["versions"]
    schema = _strict(version["schema"]["openAPIV3Schema"])
    names = schema["properties"]
    names["apiVersion"] = {"const": f"{definition['spec']['group']}/{version['name']}"}
    names["kind"] = {"const": definition["spec"]["names"]["kind"]}
    names["metadata"] = METADATA
    return jsonschema.Draft202012Validator(schema)


def _strict(schema: Any) -> Any:
    """Return a schema that refuses fields it does not know, as the API server does."""
    if isinstance(schema, list):
        return [_strict(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _strict(item) for key, item in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        made.pop("type", None)
        made["type"] = ["integer", "string"]
    is_open = schema.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(schema.get("properties"), dict) and "type" in schema and not is_open:
        made.setdefault("additionalProperties", False)
    return made


TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
TEXT = {"type": "string", "minLength": 1}


def _fields(required: tuple[str, ...], **known: Any) -> Json:
    return {
        "type": "object",
        "properties": known,
        "required": list(required),
        "additionalProperties": False,
    }


METADATA = _fields(("name",), name=TEXT, namespace=TEXT, labels=TEXTS, annotations=TEXTS)
METADATA["properties"]["ownerReferences"] = {"type": "array"}

_KEY = _fields(
    ("algorithm",),
    algorithm={"enum": ["RSA", "ECDSA", "Ed25519"]},
    size={"type": "integer"},
    rotationPolicy={"enum": ["Never", "Always"]},
)
CERT_MANAGER = {
    "Issuer": _fields(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": "cert-manager.io/v1"},
        kind={"const": "Issuer"},
        metadata=METADATA,
        spec={
            "oneOf": [
                _fields(("selfSigned",), selfSigned=_fields(())),
                _fields(("ca",), ca=_fields(("secretName",), secretName=TEXT)),
            ]
        },
    ),
    "Certificate": _fields(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": "cert-manager.io/v1"},
        kind={"const": "Certificate"},
        metadata=METADATA,
        spec=_fields(
            ("secretName", "issuerRef"),
            isCA={"type": "boolean"},
            commonName=TEXT,
            dnsNames={"type": "array", "items": TEXT},
            secretName=TEXT,
            duration={"type": "string", "pattern": "^[0-9]+h$"},
            renewBefore={"type": "string", "pattern": "^[0-9]+h$"},
            privateKey=_KEY,
            usages={
                "type": "array",
                "items": {"enum": ["digital signature", "server auth", "client auth"]},
            },
            issuerRef=_fields(("name",), kind={"enum": ["Issuer", "ClusterIssuer"]}, name=TEXT),
        ),
    ),
}


# ---- what becomes of them in a cluster -----------------------------------------------------------


@dataclass(frozen=True)
class Pod:
    """A pod that will run: its name, labels and specification."""

    name: str
    labels: dict[str, str]
    spec: Json

    @property
    def container(self) -> Json:
        (container,) = self.spec["containers"]
        return dict(container)

    @property
    def containers(self) -> list[Json]:
        """All of them, those that run before the others, too."""
        return [*self.spec.get("initContainers", []), *self.spec["containers"]]

    @property
    def role(self) -> str:
        return self.labels.get("dask.org/component", self.labels["app.kubernetes.io/component"])


def made_by_operator(documents: tuple[Json, ...]) -> Iterator[Json]:
    """Yield Deployments, Services and Pods that the operator makes, by its own functions."""
    from dask_kubernetes.operator.controller import controller

    for job in of_kind(documents, "DaskJob"):
        name, labels = job["metadata"]["name"], job["metadata"]["labels"]
        inner = job["spec"]["cluster"]["spec"]
        yield controller.build_job_pod_spec(
            name, name, "here", job["spec"]["job"]["spec"], {}, labels
        )
        cluster = controller.build_cluster_spec(
            name, inner["worker"], inner["scheduler"], {}, labels
        )
        yield from _cluster_parts(cluster)
    for cluster in of_kind(documents, "DaskCluster"):
        yield from _cluster_parts(cluster)
    for group in of_kind(documents, "DaskWorkerGroup"):
        yield _worker(group)


def _cluster_parts(cluster: Json) -> Iterator[Json]:
    from dask_kubernetes.operator.controller import controller

    name, labels = cluster["metadata"]["name"], cluster["metadata"]["labels"]
    scheduler, worker = cluster["spec"]["scheduler"], cluster["spec"]["worker"]
    yield controller.build_scheduler_deployment_spec(name, scheduler["spec"], {}, labels)
    yield controller.build_scheduler_service_spec(name, scheduler["service"], {}, labels)
    yield _worker(controller.build_default_worker_group_spec(name, worker, {}, labels))


def _worker(group: Json) -> Json:
    from dask_kubernetes.operator.controller import controller

    made: Json = controller.build_worker_deployment_spec(
        worker_group_name=group["metadata"]["name"],
        namespace="here",
        cluster_name=group["spec"]["cluster"],
        uuid="0123456789",
        pod_spec=group["spec"]["worker"]["spec"],
        annotations={},
        labels=group["metadata"]["labels"],
    )
    return made


@functools.cache
def pods(overlay: str) -> tuple[Pod, ...]:
    """Return one pod of every sort that will run."""
    found = []
    for made in made_by_operator(rendered(overlay)):
        if made["kind"] == "Service":
            continue
        pod = made if made["kind"] == "Pod" else made["spec"]["template"]
        found.append(Pod(made["metadata"]["name"], dict(pod["metadata"]["labels"]), pod["spec"]))
    found += [
        Pod(made["metadata"]["name"], made["metadata"]["labels"], made["spec"])
        for made in of_kind(rendered(overlay), "Pod")
    ]
    for job in of_kind(rendered(overlay), "CronJob"):
        pod = job["spec"]["jobTemplate"]["spec"]["template"]
        found.append(Pod(job["metadata"]["name"], pod["metadata"]["labels"], pod["spec"]))
    return tuple(found)


def selects(selector: Json, labels: dict[str, str]) -> bool:
    """Whether a selector of Kubernetes takes a pod with these labels."""
    wanted = selector.get("matchLabels", {})
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    for rule in selector.get("matchExpressions", []):
        assert rule["operator"] == "In", "this reader knows no other"
        if labels.get(rule["key"]) not in rule["values"]:
            return False
    return True
