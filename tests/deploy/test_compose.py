"""The Compose files are what Compose knows, and fit each other."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.deploy.manifests import package_folder

FOLDER = Path(__file__).parents[2] / "deploy" / "compose"
FILES = ("compose.yaml", "tls.yaml")

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="deploy is not part of an installed package"
)


def load(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((FOLDER / name).read_text()))


def faults(document: dict[str, Any]) -> list[str]:
    folder = package_folder("check_jsonschema") / "builtin_schemas" / "vendor"
    schema = json.loads((folder / "compose-spec.json").read_text())
    validator = jsonschema.validators.validator_for(schema)(schema)
    return [error.message for error in validator.iter_errors(document)]


@pytest.mark.parametrize("name", FILES)
def test_schema__is_kept(name):
    assert faults(load(name)) == []


@pytest.mark.parametrize("name", FILES)
def test_schema__every_field_of_a_service(name):
    document = load(name)
    for service in document["services"].values():
        for field in list(service):
            service[f"{field}x"] = service.pop(field)
            assert faults(document), field
            service[field] = service.pop(f"{field}x")
    assert faults(document) == []


def test_services__wait_for_each_other_and_are_healthy():
    services = load("compose.yaml")["services"]
    assert sorted(services) == ["client", "prepare", "rows", "scheduler", "worker-0", "worker-1"]
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            has_check = "test" in services[other].get("healthcheck", {})
            assert has_check or how["condition"] != "service_healthy", (name, other)
    assert set(services["client"]["depends_on"]) == {"rows", "worker-0", "worker-1"}


def test_services__are_confined():
    for name, service in load("compose.yaml")["services"].items():
        assert service["cap_drop"] == ["ALL"]
        if name != "prepare":
            assert service["read_only"] is True
            assert service["user"] == "10001:10001"
            assert service["tmpfs"]
    assert all(
        port.startswith("127.0.0.1:")
        for service in load("compose.yaml")["services"].values()
        for port in service.get("ports", [])
    )


@pytest.mark.parametrize("name", FILES)
def test_commands__dask_understands_them(name):
    from distributed.cli.dask_scheduler import main as scheduler
    from distributed.cli.dask_worker import main as worker

    protocol = "tls" if name == "tls.yaml" else "tcp"
    for service, spec in load(name)["services"].items():
        if service.startswith(("scheduler", "worker")):
            dask, verb, *arguments = spec["command"]
            assert dask == "dask"
            command = {"worker": worker, "scheduler": scheduler}[verb]
            command.make_context(verb, list(arguments))
            if verb == "worker":
                assert arguments[0] == f"{protocol}://scheduler:8786"
                assert f":{health_port(service)}" in " ".join(arguments)
    client = load(name)["services"]["client"]["environment"]
    assert client["DASK_SCHEDULER_ADDRESS"] == f"{protocol}://scheduler:8786"


def health_port(service: str) -> str:
    """Return the port that the health check of a service asks."""
    check = load("compose.yaml")["services"][service]["healthcheck"]["test"][-1]
    return str(check.split("localhost:")[1].split("/")[0])


def test_tls__covers_all_that_talk_and_names_files_that_are_made():
    plain, secure = load("compose.yaml")["services"], load("tls.yaml")
    assert set(secure["services"]) == set(plain) - {"prepare", "rows"}
    targets = {
        part["target"]
        for service in secure["services"].values()
        for part in service["configs"] + service["secrets"]
    }
    for service in secure["services"].values():
        settings = service["environment"]
        files = {value for key, value in settings.items() if "__TLS__" in key}
        assert files == targets
    sources = {Path(p["file"]).name for k in ("configs", "secrets") for p in secure[k].values()}
    assert sources == {"ca.crt", "tls.crt", "tls.key"}
