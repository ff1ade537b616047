"""What the guide tells people to type exists, and is little."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest
import yaml

from distclust import cli
from tests.deploy.manifests import LOOK, of_kind, package_folder, rendered
from tests.jobs.corpus import JOB, Corpus

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "kubernetes.md"

pytestmark = pytest.mark.skipif(
    not GUIDE.is_file(), reason="the pages are not part of an installed package"
)


def blocks() -> list[list[str]]:
    found = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    return [block.strip().splitlines() for block in found]


def test_first_result__in_under_ten_commands():
    assert len(blocks()[0]) < 10


def test_commands__name_files_that_exist_or_are_made():
    made = "deploy/certificates"
    for command in (line for block in blocks() for line in block):
        for word in re.findall(r"(?:deploy|examples)/[\w./-]+", command):
            assert word.startswith(made) or (ROOT / word).exists(), command


def test_commands__name_what_the_trial_makes():
    documents = rendered("trial")
    text = "\n".join(blocks()[0])
    (run,) = of_kind(documents, "DaskJob")
    (schedule,) = of_kind(documents, "CronJob")
    assert f"daskjob/{run['metadata']['name']} " in text
    assert f"--from=cronjob/{schedule['metadata']['name']} " in text
    (namespace,) = of_kind(documents, "Namespace")
    assert f"kubectl create namespace {namespace['metadata']['name']}\n" in text
    images = {job["spec"]["job"]["spec"]["containers"][0]["image"] for job in [run]}
    assert re.findall(r"-t (\S+)", text) == list(images)


def test_commands__kubectl_makes_the_secret_that_pods_mount(tmp_path):
    if shutil.which("kubectl") is None or shutil.which("openssl") is None:
        pytest.skip("there is no kubectl or openssl command")
    (make,) = [line for line in blocks()[0] if "make-certificates" in line]
    (create,) = [line for line in blocks()[0] if "create secret" in line]
    program, folder = shlex.split(make)
    subprocess.run([str(ROOT / program), str(tmp_path)], check=True, capture_output=True)
    command = [word.replace(folder, str(tmp_path)) for word in shlex.split(create)]
    done = subprocess.run(
        [*command, "--dry-run=client", "--output=yaml"], check=True, capture_output=True, text=True
    )
    secret = yaml.safe_load(done.stdout)
    assert secret["metadata"]["name"] == "distclust-tls"
    assert set(secret["data"]) == {"ca.crt", "tls.crt", "tls.key"}  # the authority's key is not


def test_commands__in_the_pod_to_look_from():
    (look,) = rendered(LOOK)
    name, namespace = look["metadata"]["name"], look["metadata"]["namespace"]
    (trial,) = of_kind(rendered("trial"), "DaskJob")
    (runner,) = trial["spec"]["job"]["spec"]["containers"]
    (job,) = (
        document
        for document in of_kind(rendered("trial"), "ConfigMap")
        if document["metadata"]["name"] == "distclust-job"
    )
    inside = [line for block in blocks() for line in block if f" {name}" in line]
    assert len(inside) == 4
    for line in inside:
        assert line.startswith(f"kubectl -n {namespace} "), line
        if " exec " in line:
            program, *arguments = shlex.split(line.split(" -- ")[1])
            assert program == "distclust"
            assert runner["args"][-1] in arguments  # the job file
            cli.distclust.make_context(program, list(arguments)).close()
        if " cp " in line:
            (place,) = re.findall(rf"{name}:(\S+)/runs ", line)
            assert tomllib.loads(job["data"]["job.toml"])["out"] == place


class Gateway(BaseHTTPRequestHandler):
    """Keeps what is put, as a Pushgateway does."""

    kept: ClassVar[dict[str, bytes]] = {}

    def do_PUT(self) -> None:
        self.kept[self.path] = self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_hook__sends_the_figures(tmp_path):
    text = GUIDE.read_text(encoding="utf-8")
    (script,) = re.findall(r"```python\n# push.py\n(.*?)```", text, re.DOTALL)
    (hooks,) = (
        tomllib.loads(found)["hooks"]
        for found in re.findall(r"```toml\n(\[hooks\].*?)```", text, re.DOTALL)
    )
    push = tmp_path / "push.py"
    push.write_text(script)
    corpus = Corpus(tmp_path / "job", JOB.split("[models.tree]")[0])
    corpus.bring(0)
    with ThreadingHTTPServer(("127.0.0.1", 0), Gateway) as server:
        threading.Thread(target=server.serve_forever).start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        python, _, _ = hooks["success"]
        assert (python, hooks["failure"]) == ("python", hooks["success"])
        command = json.dumps([sys.executable, str(push), address])
        models = f'[models.similar]\nkind = "sets"\n[hooks]\nsuccess = {command}\n'
        corpus.path.write_text(corpus.path.read_text() + models)
        (hook,) = corpus.run().hooks
        server.shutdown()
    assert (hook.status, hook.output) == ("done", "")
    assert Gateway.kept == {"/metrics/job/corpus": (Path(corpus.out) / "metrics.prom").read_bytes()}


def test_operator__is_the_version_whose_schemas_are_used():
    (version,) = re.findall(r"--version (\S+)", blocks()[0][0])
    assert f"dask-kubernetes>={version.removesuffix('.0')}" in (ROOT / "pyproject.toml").read_text()
    chart = package_folder("dask_kubernetes") / "operator/deployment/helm/dask-kubernetes-operator"
    assert yaml.safe_load((chart / "Chart.yaml").read_text())["name"] in blocks()[0][0]


def test_certificates__are_renewed_under_the_same_authority(tmp_path):
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl command")
    make = [str(ROOT / "deploy" / "tls" / "make-certificates"), str(tmp_path)]
    subprocess.run(make, check=True, capture_output=True)
    before = {name: (tmp_path / name).read_bytes() for name in ("ca.crt", "ca.key", "tls.crt")}
    subprocess.run(make, check=True, capture_output=True)
    assert (tmp_path / "ca.crt").read_bytes() == before["ca.crt"]
    assert (tmp_path / "ca.key").read_bytes() == before["ca.key"]
    assert (tmp_path / "tls.crt").read_bytes() != before["tls.crt"]
    assert {path.name for path in tmp_path.iterdir()} == {"ca.crt", "ca.key", "tls.crt", "tls.key"}
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())
