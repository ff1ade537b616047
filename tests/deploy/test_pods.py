"""The manifests' own pods run the manifests' own jobs, see tests.deploy.kubelet."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import yaml

from distclust.jobs.published import open_job
from tests.deploy.kubelet import SECONDS, Node, main_process, why_no_pods
from tests.deploy.manifests import KUBERNETES, LOOK, ROOT, Pod, pods
from tests.hosts import Hosts

pytestmark = [
    pytest.mark.skipif(
        not KUBERNETES.is_dir(), reason="deploy is not part of an installed package"
    ),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.netns,
    pytest.mark.cluster,
]

SCHEDULER, FIRST_WORKER, RUNNER, STORE = 0, 1, 3, 4  # hosts
N_WORKERS = 2


def certificates(folder: Path) -> dict[str, str]:
    """Return the Secret that the guide makes."""
    make = ROOT / "deploy" / "tls" / "make-certificates"
    subprocess.run([str(make), str(folder)], check=True, capture_output=True)
    return {name: (folder / name).read_text() for name in ("ca.crt", "tls.crt", "tls.key")}


def pod_of(overlay: str, role: str) -> Pod:
    (found,) = (
        pod
        for pod in pods(overlay)
        if pod.role == role and pod.labels["app.kubernetes.io/component"] == "run"
    )
    return found


def with_arguments(pod: Pod, words: list[str]) -> Pod:
    """Return a pod that does something else."""
    spec = {**pod.spec, "containers": [{**pod.container, "args": words}]}
    return Pod(pod.name, pod.labels, spec)


class Cluster:
    """Scheduler and workers of a DaskJob; runs its runner as often as it is asked to."""

    def __init__(self, overlay: str, hosts: Hosts, folder: Path) -> None:
        self.overlay = overlay
        self.hosts = hosts
        self.node = Node(overlay, hosts, folder)
        scheduler = pod_of(overlay, "scheduler")
        self.node.names = {scheduler.name: hosts.address(SCHEDULER)}  # the service's, too
        self.node.secrets["distclust-tls"] = certificates(folder / "certificates")

    def start(self) -> None:
        self.node.start(pod_of(self.overlay, "scheduler"), SCHEDULER)
        self.workers = [self.start_worker(FIRST_WORKER + i) for i in range(N_WORKERS)]

    def start_worker(self, host: int) -> subprocess.Popen[str]:
        worker = pod_of(self.overlay, "worker")
        # The operator gives every worker a name of its own; manifests.py made one.
        text = json.dumps(worker.spec).replace("0123456789", f"{host:010d}")
        name = worker.name.replace("0123456789", f"{host:010d}")
        process = self.node.start(Pod(name, worker.labels, json.loads(text)), host)
        self.wait_for("Registered to", process)
        return process

    def log(self, process: subprocess.Popen[str]) -> str:
        (path,) = self.hosts.logs.glob(f"host-*-{self.hosts.processes.index(process)}.log")
        return path.read_text()

    def wait_for(self, words: str, process: subprocess.Popen[str]) -> None:
        end = time.monotonic() + SECONDS
        while words not in self.log(process):
            assert process.poll() is None, self.log(process)
            assert time.monotonic() < end, self.log(process)
            time.sleep(0.02)

    def start_runner(self) -> subprocess.Popen[str]:
        return self.node.start(pod_of(self.overlay, "job-runner"), RUNNER)

    def run(self) -> tuple[int, str]:
        """Run the runner to its end; return its exit code and what it printed."""
        runner = self.start_runner()
        runner.wait(SECONDS)
        return runner.returncode, self.log(runner)

    def change_job(self, old: str, new: str) -> None:
        """Change the job file in its ConfigMap."""
        content = self.node.config_maps["distclust-job"]
        assert old in content["job.toml"]
        content["job.toml"] = content["job.toml"].replace(old, new)


@contextmanager
def cluster_of(overlay: str, folder: Path) -> Iterator[Cluster]:
    if reason := why_no_pods():
        pytest.skip(reason)
    with Hosts(5, folder) as hosts:
        yield Cluster(overlay, hosts, folder)


@pytest.fixture(scope="module")
def on_a_laptop(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return what the job of the trial publishes in process; it also compiles for the pods."""
    folder = tmp_path_factory.mktemp("laptop")
    text = (KUBERNETES / "overlays" / "trial" / "job.toml").read_text()
    (folder / "job.toml").write_text(text.replace("/data/", ""))
    (folder / "incoming").mkdir()
    shutil.copy(KUBERNETES / "overlays" / "trial" / "animals.csv", folder / "incoming")
    run_here(folder / "job.toml")
    return content(folder / "animals")


def run_here(job: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "distclust", "run", str(job)]
    subprocess.run(command, check=True, capture_output=True, env=environment)


@pytest.fixture(scope="module")
def started(
    on_a_laptop: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    with cluster_of("trial", tmp_path_factory.mktemp("trial")) as cluster:
        cluster.start()
        yield cluster


@pytest.fixture
def trial(started: Cluster) -> Iterator[Cluster]:
    """Give a cluster whose job has never run."""
    job = dict(started.node.config_maps["distclust-job"])
    secret = started.node.secrets["distclust-tls"]
    yield started
    started.node.config_maps["distclust-job"] = job
    started.node.secrets["distclust-tls"] = secret
    for path in started.node.data.iterdir():
        shutil.rmtree(path)


def outcomes(out: Path) -> list[str]:
    """Return how the runs of a job ended, by their records."""
    records = sorted((out / "runs").glob("*/record.json"))
    return [str(json.loads(path.read_text())["outcome"]) for path in records]


def content(out: Path) -> dict[str, Any]:
    """Return what a job has published."""
    job = open_job(out)
    similar = job.model("similar").query(["lion", "tiger"], k=5)
    return {
        "ids": job.store().matrix().row_ids.tolist(),
        "labels": np.asarray(job.labels("kinds")).tolist(),
        "similar": similar.ids.tolist(),
        "scores": similar.log_scores.tolist(),
    }


def test_trial__publishes_what_a_laptop_does_and_then_finds_nothing_new(trial, on_a_laptop):
    code, printed = trial.run()
    assert code == 0, printed
    assert "Published" in printed
    out = trial.node.data / "animals"
    assert content(out) == on_a_laptop
    record = json.loads(next((out / "runs").glob("*/record.json")).read_text())
    assert record["scheduler"] == "tls://distclust-run-scheduler:8786"
    assert (out / "metrics.prom").is_file()
    # The next night: other pods, the same files behind other links.
    code, printed = trial.run()
    assert (code, outcomes(out)) == (0, ["published", "nothing new"]), printed


def test_trial__the_health_command_passes(trial):
    image = (ROOT / "deploy" / "image" / "Dockerfile").read_text()
    (health,) = re.findall(r"^HEALTHCHECK .* CMD (\[.*\])$", image, re.MULTILINE)
    there = ["--scheduler", "tls://distclust-run-scheduler:8786"]
    for words in (json.loads(health), [*json.loads(health), *there]):
        pod = trial.node.start(with_arguments(pod_of("trial", "job-runner"), words), RUNNER)
        assert pod.wait(SECONDS) == 0, trial.log(pod)


def test_trial__gates_that_fail_are_exit_code_4(trial):
    assert trial.run()[0] == 0
    out = trial.node.data / "animals"
    before = content(out)
    files = trial.node.config_maps["distclust-job"]
    files["animals.csv"] = "".join(files["animals.csv"].splitlines(keepends=True)[:12])
    code, printed = trial.run()
    assert code == 4, printed
    assert "shrinking" in printed
    assert content(out) == before
    assert outcomes(out) == ["published", "gates failed"]


def test_trial__what_gates_kept_aside_can_be_accepted_by_hand(trial):
    trial.change_job("[gates]", "[gates]\nmodels.kinds.max_clusters = 1")
    assert trial.run()[0] == 4
    (look,) = pods(LOOK)
    *_, command = (line for line in guide().splitlines() if line.endswith("--accept"))
    words = shlex.split(command.split(" -- ")[1])
    assert command.split(" -- ")[0].endswith(f"exec {look.name}")
    accepting = trial.node.start(with_arguments(look, words), RUNNER)
    assert accepting.wait(SECONDS) == 0, trial.log(accepting)
    out = trial.node.data / "animals"
    assert outcomes(out) == ["gates failed", "published"]
    assert len(list((out / "models/kinds/versions").iterdir())) == 1  # not made again


def test_trial__a_runner_that_is_stopped_says_so_and_the_next_goes_on(trial):
    runner = trial.start_runner()
    out = trial.node.data / "animals"
    wait_until(lambda: (out / "rows.zarr").exists(), trial, runner)
    main_process(runner).send_signal(signal.SIGTERM)
    assert runner.wait(SECONDS) == 3, trial.log(runner)
    assert "what is done is kept" in trial.log(runner)
    assert outcomes(out) == ["interrupted"]
    code, printed = trial.run()
    assert code == 0, printed
    assert outcomes(out) == ["interrupted", "published"]


@pytest.mark.chaos
def test_trial__a_runner_and_a_worker_that_are_killed(trial):
    """The next runner is in another pod: it cannot see the process, but that it is silent."""
    runner = trial.start_runner()
    out = trial.node.data / "animals"
    wait_until(lambda: (out / "rows.zarr").exists(), trial, runner)
    main_process(runner).kill()
    assert runner.wait(SECONDS) != 0
    again = trial.start_runner()
    trial.wait_for("was cut off; going on", again)
    main_process(trial.workers[0]).kill()
    assert again.wait(SECONDS) == 0, trial.log(again)
    trial.workers[0] = trial.start_worker(FIRST_WORKER)  # as its Deployment does
    assert outcomes(out) == ["cut off", "published"]


def wait_until(condition: Any, cluster: Cluster, process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert process.poll() is None, cluster.log(process)
        assert time.monotonic() < end, cluster.log(process)
        time.sleep(0.002)


def guide() -> str:
    return (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")


def test_trial__a_client_of_another_authority_is_refused(trial, tmp_path):
    trial.change_job("[gates]", '[resources]\ntimeout = "5s"\n\n[gates]')
    trial.node.secrets["distclust-tls"] = certificates(tmp_path)
    code, printed = trial.run()
    assert code == 1, printed
    assert "tls://distclust-run-scheduler:8786" in printed
    assert outcomes(trial.node.data / "animals") == ["failed"]


# ---- an object store -----------------------------------------------------------------------------

SERVE = """
import sys, threading
from moto.server import ThreadedMotoServer
from tests.places import _one_at_a_time
server = ThreadedMotoServer(ip_address=sys.argv[1], port=9000, verbose=False)
server.start()
server._server.app = _one_at_a_time(server._server.app)
print("serving", flush=True)
threading.Event().wait()
"""
BRING = """
import sys, fsspec
system = fsspec.filesystem("s3")
if not system.exists("example-bucket"):
    system.mkdir("example-bucket")
system.put(sys.argv[1], "example-bucket/incoming/")
"""
READ = """
import json, sys, distclust, numpy
for place in sys.argv[1:]:
    job = distclust.open_job(place)
    ids, labels = job.store().matrix().row_ids, numpy.asarray(job.labels("hierarchy"))
    print(json.dumps([ids.tolist(), labels.tolist(), job.model("hierarchy").tree_.to_json()]))
"""


def python(hosts: Hosts, script: str, *arguments: str, keys: dict[str, str]) -> str:
    """Run a script on the host of the object store; return what it printed."""
    command = [sys.executable, "-W", "ignore", "-c", script, *arguments]
    process = hosts.start(STORE, command, environment=keys, is_read=True)
    printed, _ = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, printed
    return str(printed)


def write_night(path: Path, night: int) -> None:
    rng = np.random.default_rng(night)
    profiles = np.random.default_rng(7).beta(0.15, 0.15, (4, 20))
    rows = (rng.random((300, 20)) < profiles[rng.integers(0, 4, 300)]).astype(np.uint8)
    ids = [f"{night}-{i}" for i in range(300)]
    table = pd.DataFrame(rows, ids, [f"f{i}" for i in range(20)])
    table.reset_index(names="id").to_parquet(path)


def test_production__on_an_object_store(tmp_path):
    with cluster_of("production", tmp_path) as cluster:
        hosts = cluster.hosts
        address = hosts.address(STORE)
        keys = {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_ENDPOINT_URL": f"http://{address}:9000",
        }
        cluster.node.secrets["distclust-object-store"] = keys
        server = hosts.start(STORE, [sys.executable, "-W", "ignore", "-c", SERVE, address])
        cluster.wait_for("serving", server)
        cluster.start()
        text = cluster.node.config_maps["distclust-job"]["job.toml"]
        here = tmp_path / "here" / "job.toml"
        (here.parent / "incoming").mkdir(parents=True)
        here.write_text(text.replace("s3://example-bucket/", ""))
        for night in range(2):
            path = here.parent / "incoming" / f"night{night}.parquet"
            write_night(path, night)
            run_here(here)
            python(hosts, BRING, str(path), keys=keys)
            code, printed = cluster.run()
            assert code == 0, printed
            assert ("updated" if night else "fitted") in printed
            both = "s3://example-bucket/corpus", str(here.parent / "corpus")
            there, local = python(hosts, READ, *both, keys=keys).splitlines()
            assert json.loads(there) == json.loads(local)
        code, printed = cluster.run()
        assert (code, "Nothing new" in printed) == (0, True), printed


# ---- Compose -------------------------------------------------------------------------------------


def service_as_pod(name: str, service: dict[str, Any], configs: dict[str, Any]) -> Pod:
    """Return a service of Compose as the pod that it would be."""
    user, group = (int(part) for part in service["user"].split(":"))
    mounts = [{"name": "space", "mountPath": "/tmp"}, {"name": "data", "mountPath": "/data"}]
    volumes: list[Any] = [
        {"name": "space", "emptyDir": {}},
        {"name": "data", "persistentVolumeClaim": {"claimName": "data"}},
    ]
    if "configs" in service:
        folders = {str(Path(config["target"]).parent) for config in service["configs"]}
        mounts.append({"name": "configs", "mountPath": folders.pop(), "readOnly": True})
        volumes.append({"name": "configs", "configMap": {"name": "configs"}})
        assert not folders
        for config in service["configs"]:
            file = Path(configs[config["source"]]["file"])
            assert file.name == Path(config["target"]).name
    container = {
        "args": service["command"],
        "env": [{"name": k, "value": v} for k, v in service.get("environment", {}).items()],
        "volumeMounts": mounts,
    }
    security = {"runAsUser": user, "runAsGroup": group, "fsGroup": group}
    spec = {"containers": [container], "volumes": volumes, "securityContext": security}
    return Pod(name, {"app.kubernetes.io/component": name}, spec)


def test_compose__runs_the_job_on_two_workers(tmp_path):
    folder = ROOT / "deploy" / "compose"
    document = yaml.safe_load((folder / "compose.yaml").read_text())
    with cluster_of("trial", tmp_path) as cluster:
        node = cluster.node
        node.names = {"scheduler": cluster.hosts.address(SCHEDULER)}
        node.config_maps["configs"] = {
            Path(config["file"]).name: (folder / config["file"]).read_text()
            for config in document["configs"].values()
        }

        def start(name: str, host: int) -> subprocess.Popen[str]:
            service = document["services"][name]
            return node.start(service_as_pod(name, service, document["configs"]), host)

        rows = start("rows", RUNNER)
        assert rows.wait(SECONDS) == 0, cluster.log(rows)
        start("scheduler", SCHEDULER)
        for i in range(N_WORKERS):
            cluster.wait_for("Registered to", start(f"worker-{i}", FIRST_WORKER + i))
        client = start("client", RUNNER)
        assert client.wait(SECONDS) == 0, cluster.log(client)
        assert outcomes(node.data / "animals") == ["published"]
