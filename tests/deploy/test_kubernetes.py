"""Manifests fit each other: names, labels, ports, permissions, commands."""

from __future__ import annotations

import ast
import runpy
import tomllib
from collections import Counter
from typing import Any

import pytest
import yaml

from distclust.jobs.jobfile import read_job
from distclust.jobs.runs import check_job
from tests.deploy import manifests
from tests.deploy.manifests import (
    KUBERNETES,
    LOOK,
    OVERLAYS,
    Json,
    Pod,
    made_by_operator,
    of_kind,
    package_folder,
    pods,
    rendered,
    selects,
)

pytestmark = [
    pytest.mark.skipif(
        not KUBERNETES.is_dir(), reason="deploy is not part of an installed package"
    ),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
overlays = pytest.mark.parametrize("overlay", OVERLAYS)

ROLES = ("scheduler", "worker", "client")
# Made by the guide's own commands, or by cert-manager.
SECRETS = {"distclust-tls", "distclust-object-store"}


def named_ports(pod: Pod) -> dict[str, int]:
    return {port["name"]: port["containerPort"] for port in pod.container.get("ports", [])}


def options(pod: Pod) -> dict[str, str]:
    """Return the options of a command line of the form --name=value."""
    given = (argument for argument in pod.container["args"] if argument.startswith("--"))
    return dict(argument.removeprefix("--").split("=", 1) for argument in given)


def settings(overlay: str) -> dict[str, str]:
    (found,) = (
        document
        for document in of_kind(rendered(overlay), "ConfigMap")
        if document["metadata"]["name"] == "distclust-environment"
    )
    return dict(found["data"])


# ---- names ---------------------------------------------------------------------------------------


@overlays
def test_names__what_pods_refer_to_exists(overlay):
    documents = rendered(overlay)
    known = {(document["kind"], document["metadata"]["name"]) for document in documents}
    for pod in pods(overlay):
        assert ("ServiceAccount", pod.spec["serviceAccountName"]) in known
        for kind, name in referred(pod.spec):
            assert name in SECRETS if kind == "Secret" else (kind, name) in known, (pod.name, name)


def referred(spec: Json) -> list[tuple[str, str]]:
    found = []
    for volume in spec.get("volumes", []):
        match volume:
            case {"secret": {"secretName": name}}:
                found.append(("Secret", name))
            case {"configMap": {"name": name}}:
                found.append(("ConfigMap", name))
            case {"persistentVolumeClaim": {"claimName": name}}:
                found.append(("PersistentVolumeClaim", name))
            case {"emptyDir": _}:
                pass
            case _:
                raise AssertionError(volume)
    for container in (*spec.get("initContainers", []), *spec["containers"]):
        for source in container.get("envFrom", []):
            kind = "Secret" if "secretRef" in source else "ConfigMap"
            found.append((kind, (source.get("secretRef") or source["configMapRef"])["name"]))
    return found


@overlays
def test_names__volumes_and_mounts_agree(overlay):
    for pod in pods(overlay):
        volumes = {volume["name"] for volume in pod.spec.get("volumes", [])}
        for container in pod.containers:
            mounts = container.get("volumeMounts", [])
            assert {mount["name"] for mount in mounts} <= volumes, pod.name
            paths = Counter(mount["mountPath"] for mount in mounts)
            assert max(paths.values()) == 1, pod.name
        assert {mount["name"] for mount in pod.container["volumeMounts"]} == volumes, pod.name


@overlays
def test_names__everything_is_in_one_namespace(overlay):
    places = {
        document["metadata"].get("namespace")
        for document in rendered(overlay)
        if document["kind"] != "Namespace"
    }
    (namespace,) = of_kind(rendered(overlay), "Namespace")
    assert places == {namespace["metadata"]["name"]}
    (binding,) = of_kind(rendered(overlay), "RoleBinding")
    assert binding["subjects"][0]["namespace"] == namespace["metadata"]["name"]


def test_names__groups_and_autoscalers_belong_to_a_cluster():
    documents = rendered("production")
    (cluster,) = of_kind(documents, "DaskCluster")
    (group,) = of_kind(documents, "DaskWorkerGroup")
    (scaler,) = of_kind(documents, "DaskAutoscaler")
    name = cluster["metadata"]["name"]
    assert group["spec"]["cluster"] == scaler["spec"]["cluster"] == name
    assert group["metadata"]["name"] != f"{name}-default"  # the one that the operator makes
    assert scaler["spec"]["minimum"] <= cluster["spec"]["worker"]["replicas"]
    assert cluster["spec"]["worker"]["replicas"] <= scaler["spec"]["maximum"]


@overlays
def test_names__are_short_enough_for_the_operator(overlay):
    from dask_kubernetes.operator.validation import validate_cluster_name

    for kind in ("DaskJob", "DaskCluster"):
        for document in of_kind(rendered(overlay), kind):
            validate_cluster_name(document["metadata"]["name"])
    for document in of_kind(rendered(overlay), "CronJob"):
        validate_cluster_name(f"{document['metadata']['name']}-12345678")  # minutes since 1970


# ---- ports and addresses -------------------------------------------------------------------------


@overlays
def test_ports__services_reach_schedulers(overlay):
    services = [made for made in made_by_operator(rendered(overlay)) if made["kind"] == "Service"]
    for service in services:
        selector = {"matchLabels": service["spec"]["selector"]}
        (scheduler,) = [pod for pod in pods(overlay) if selects(selector, pod.labels)]
        assert scheduler.role == "scheduler"
        ports = {port["name"]: port for port in service["spec"]["ports"]}
        assert set(ports) == {"tcp-comm", "http-dashboard"}  # the names the operator asks for
        for port in ports.values():
            assert named_ports(scheduler)[port["targetPort"]] == port["port"]
    assert len(services) == sum(pod.role == "scheduler" for pod in pods(overlay))


@overlays
def test_ports__addresses_name_services(overlay):
    services = {
        made["metadata"]["name"]: made
        for made in made_by_operator(rendered(overlay))
        if made["kind"] == "Service"
    }
    for pod in pods(overlay):
        if pod.role in ("worker", "job-runner"):
            (address,) = [
                entry["value"]
                for entry in pod.container["env"]
                if entry["name"] == "DASK_SCHEDULER_ADDRESS"
            ]
            protocol, rest = address.split("://")
            name, port = rest.split(":")
            assert protocol == "tls"
            selector = services[name]["spec"]["selector"]
            assert selector["dask.org/cluster-name"] == pod.labels["dask.org/cluster-name"]
            assert int(port) == services[name]["spec"]["ports"][0]["port"]


@overlays
def test_ports__commands_listen_where_containers_say(overlay):
    for pod in pods(overlay):
        ports = named_ports(pod)
        if pod.role == "worker":
            given = options(pod)
            assert ports == {
                "tcp-worker": int(given["worker-port"]),
                "tcp-nanny": int(given["nanny-port"]),
                "http-health": int(given["dashboard-address"].removeprefix(":")),
            }
        elif pod.role == "scheduler":
            given = options(pod)
            assert ports == {
                "tcp-comm": int(given["port"]),
                "http-dashboard": int(given["dashboard-address"].removeprefix(":")),
            }


@overlays
def test_ports__probes_ask_ports_that_exist(overlay):
    for pod in pods(overlay):
        for probe in ("readinessProbe", "livenessProbe"):
            if pod.role in ("worker", "scheduler"):
                assert pod.container[probe]["httpGet"]["port"] in named_ports(pod)


# ---- commands ------------------------------------------------------------------------------------


@overlays
def test_commands__dask_understands_them(overlay):
    from distributed.cli.dask_scheduler import main as scheduler
    from distributed.cli.dask_worker import main as worker

    seen = set()
    for pod in pods(overlay):
        if pod.role in ("worker", "scheduler"):
            dask, verb, *arguments = pod.container["args"]
            assert (dask, verb) == ("dask", pod.role)
            command = {"worker": worker, "scheduler": scheduler}[verb]
            known = {entry["name"] for entry in pod.container.get("env", [])}
            for argument in arguments:  # what Kubernetes puts in must be there to be put in
                if "$(" in argument:
                    assert argument.split("$(")[1].rstrip(")") in known
            filled = [as_here(argument) for argument in arguments]
            command.make_context(verb, filled)  # refuses what it does not know
            seen.add(verb)
    assert seen == {"worker", "scheduler"}


def as_here(argument: str) -> str:
    folder = KUBERNETES / "cluster"  # its files are mounted there
    return argument.replace("$(CPU_LIMIT)", "1").replace("/etc/distclust/cluster", str(folder))


@overlays
def test_commands__routes_and_certificates(overlay):
    import dask

    found = settings(overlay)
    made = dask.config.collect_env(found)
    routes = dask.config.get("distributed.scheduler.http.routes", config=made)
    # Its own file: what other tests do changes the settings of this process.
    defaults = yaml.safe_load((package_folder("distributed") / "distributed.yaml").read_text())
    usual = defaults["distributed"]["scheduler"]["http"]["routes"]
    assert set(routes) >= set(usual) - {"distributed.http.proxy"}  # which leads into workers
    assert "distributed.http.scheduler.api" in routes
    assert dask.config.get("distributed.comm.require-encryption", config=made) is True
    for part in ("ca-file", *(f"{r}.{f}" for r in ROLES for f in ("cert", "key"))):
        assert dask.config.get(f"distributed.comm.tls.{part}", config=made), part
    files = {value for name, value in found.items() if "__TLS__" in name}
    folder = "/etc/distclust/tls"
    assert files == {f"{folder}/{name}" for name in ("ca.crt", "tls.crt", "tls.key")}
    for pod in pods(overlay):
        if pod.role != "schedule":
            mounted = {m["mountPath"]: m["name"] for m in pod.container["volumeMounts"]}
            assert mounted[folder] == "tls"


def test_commands__actor_workers_differ_by_their_resource_alone():
    task, actor = (
        pod
        for pod in pods("production")
        if pod.role == "worker" and pod.labels["app.kubernetes.io/component"] == "cluster"
    )
    assert set(actor.container["args"]) - set(task.container["args"]) == {"--resources=actors=1"}


# ---- who may talk to whom ------------------------------------------------------------------------


def may_talk(documents: tuple[Json, ...], source: Pod, target: Pod, port: int) -> bool:
    """Whether the policies let a pod open a connection to another one of its namespace."""
    out, into = False, False
    for policy in of_kind(documents, "NetworkPolicy"):
        spec = policy["spec"]
        if selects(spec["podSelector"], source.labels):
            out |= any(allows(rule, "to", target, port) for rule in spec.get("egress", []))
        if selects(spec["podSelector"], target.labels):
            into |= any(allows(rule, "from", source, port) for rule in spec.get("ingress", []))
    return out and into


def allows(rule: Json, side: str, other: Pod, port: int) -> bool:
    is_port = any(p["port"] <= port <= p.get("endPort", p["port"]) for p in rule["ports"])
    peers = rule.get(side)
    is_peer = peers is None or any(
        "namespaceSelector" not in peer and selects(peer["podSelector"], other.labels)
        for peer in peers
    )
    return is_port and is_peer


NEEDED = {
    ("worker", "scheduler", 8786),
    ("job-runner", "scheduler", 8786),
    ("scheduler", "worker", 8788),
    ("scheduler", "worker", 8789),
    ("worker", "worker", 8788),
    ("worker", "worker", 8789),
    ("job-runner", "worker", 8788),
    ("job-runner", "worker", 8789),
}


@overlays
def test_network__what_is_needed_and_no_more(overlay):
    found = {
        (source.role, target.role, port)
        for source in pods(overlay)
        for target in pods(overlay)
        for port in (22, 80, 443, 8080, 8786, 8787, 8788, 8789, 8790)
        if may_talk(rendered(overlay), source, target, port)
    }
    assert found == NEEDED


@overlays
def test_network__nobody_is_left_out_of_the_default(overlay):
    (deny,) = [
        policy
        for policy in of_kind(rendered(overlay), "NetworkPolicy")
        if policy["spec"]["podSelector"] == {}
    ]
    assert deny["spec"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    stranger = Pod("stranger", {"dask.org/component": "worker"}, {})
    for pod in pods(overlay):
        assert not any(may_talk(rendered(overlay), stranger, pod, p) for p in (8786, 8787, 8788))


# ---- permissions, budgets, limits ----------------------------------------------------------------


@overlays
def test_permissions__the_schedule_alone_may_ask_for_runs(overlay):
    (role,) = of_kind(rendered(overlay), "Role")
    assert role["rules"] == [
        {
            "apiGroups": ["kubernetes.dask.org"],
            "resources": ["daskjobs"],
            "verbs": ["create", "get", "delete"],
        }
    ]
    assert of_kind(rendered(overlay), "ClusterRole") == []
    (binding,) = of_kind(rendered(overlay), "RoleBinding")
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert [subject["name"] for subject in binding["subjects"]] == ["distclust-schedule"]
    for pod in pods(overlay):
        assert pod.spec["automountServiceAccountToken"] is (pod.role == "schedule")
        assert (pod.spec["serviceAccountName"] == "distclust-schedule") is (pod.role == "schedule")
    for account in of_kind(rendered(overlay), "ServiceAccount"):
        assert account["automountServiceAccountToken"] is False


@overlays
def test_permissions__the_namespace_is_restricted(overlay):
    (namespace,) = of_kind(rendered(overlay), "Namespace")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize("overlay", [*OVERLAYS, LOOK])
def test_permissions__pods_are_restricted(overlay):
    for pod in pods(overlay):
        context = pod.spec["securityContext"]
        assert context["runAsNonRoot"] is True
        assert context["runAsUser"] == context["fsGroup"] == 10001
        assert context["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in pod.containers:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }


@pytest.mark.parametrize("overlay", [*OVERLAYS, LOOK])
def test_limits__are_set_and_images_are_pinned(overlay):
    for pod in pods(overlay):
        for container in pod.containers:
            resources = container["resources"]
            assert set(resources["requests"]) == set(resources["limits"]) == {"cpu", "memory"}
            tag = container["image"].rpartition(":")[2]
            assert tag not in ("", "latest", "distclust"), container["image"]
            if pod.role == "worker":  # Dask is told of all of it
                assert resources["requests"]["memory"] == resources["limits"]["memory"]


def test_look__finds_what_the_trial_made():
    (namespace,) = of_kind(rendered("trial"), "Namespace")
    (look,) = rendered(LOOK)
    assert look["metadata"]["namespace"] == namespace["metadata"]["name"]
    known = {(document["kind"], document["metadata"]["name"]) for document in rendered("trial")}
    (pod,) = pods(LOOK)
    assert ("ServiceAccount", pod.spec["serviceAccountName"]) in known
    assert set(referred(pod.spec)) <= known
    (runner,) = (pod for pod in pods("trial") if pod.role == "job-runner")
    places = {mount["name"]: mount["mountPath"] for mount in runner.container["volumeMounts"]}
    for mount in pod.container["volumeMounts"]:
        assert places[mount["name"]] == mount["mountPath"]


@overlays
def test_budgets__every_pod_has_at_most_one(overlay):
    budgets = of_kind(rendered(overlay), "PodDisruptionBudget")
    found: Counter[str] = Counter()
    for pod in pods(overlay):
        of_pod = [b for b in budgets if selects(b["spec"]["selector"], pod.labels)]
        assert len(of_pod) <= 1, pod.name  # an eviction fails where there are two
        found.update(budget["metadata"]["name"] for budget in of_pod)
        if pod.labels["app.kubernetes.io/component"] == "run":
            assert of_pod, pod.name
    assert set(found) == {budget["metadata"]["name"] for budget in budgets}


# ---- the schedule --------------------------------------------------------------------------------


@overlays
def test_schedule__runs_do_not_overlap_and_end(overlay):
    (job,) = of_kind(rendered(overlay), "CronJob")
    spec = job["spec"]
    assert spec["concurrencyPolicy"] == "Forbid"
    assert spec["timeZone"]
    (run,) = of_kind(rendered(overlay), "DaskJob")
    run_limit = run["spec"]["job"]["spec"]["activeDeadlineSeconds"]
    assert run_limit < spec["jobTemplate"]["spec"]["activeDeadlineSeconds"] < 24 * 3600
    assert 0 < spec["startingDeadlineSeconds"] < 24 * 3600
    container = spec["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]
    assert container["args"] == [run["metadata"]["name"]]
    (rule,) = spec["jobTemplate"]["spec"]["podFailurePolicy"]["rules"]
    assert rule["onExitCodes"]["containerName"] == container["name"]


@overlays
def test_schedule__a_copy_of_the_run_fits_together_as_well(overlay):
    copied = runpy.run_path(str(KUBERNETES / "base" / "start_run.py"))["copied"]
    (run,) = of_kind(rendered(overlay), "DaskJob")
    copy = copied(run, "distclust-nightly-29387400", "distclust-nightly-29387400", "uid")
    assert manifests.faults(copy) == []
    assert "distclust-run" not in str(copy)
    scheduler = copy["spec"]["cluster"]["spec"]["scheduler"]
    selector = scheduler["service"]["selector"]
    assert selector["dask.org/cluster-name"] == copy["metadata"]["name"]
    renamed = str(copy["spec"]).replace("distclust-nightly-29387400", "distclust-run")
    assert ast.literal_eval(renamed) == run["spec"]


@pytest.mark.parametrize("path", sorted(KUBERNETES.rglob("job.toml")), ids=lambda p: p.parent.name)
def test_jobs__are_sound(path):
    check_job(read_job(path))


@overlays
def test_jobs__the_runner_runs_the_job_of_the_overlay(overlay):
    (runner,) = (pod for pod in pods(overlay) if pod.role == "job-runner")
    if overlay == "script":
        return
    program, verb, path = runner.container["args"]
    assert (program, verb) == ("distclust", "run")
    mounts = {mount["mountPath"]: mount["name"] for mount in runner.container["volumeMounts"]}
    folder, _, name = path.rpartition("/")
    volumes = {volume["name"]: volume for volume in runner.spec["volumes"]}
    config_map = volumes[mounts[folder]]["configMap"]["name"]
    (found,) = (
        document
        for document in of_kind(rendered(overlay), "ConfigMap")
        if document["metadata"]["name"] == config_map
    )
    job = tomllib.loads(found["data"][name])
    # Places are URLs, or below what the runner and all workers mount.
    workers = (pod for pod in pods(overlay) if pod.role == "worker")
    shared = [
        {mount["mountPath"] for mount in pod.container["volumeMounts"] if mount["name"] == "data"}
        for pod in (runner, *workers)
    ]
    for place in (job["out"], job["input"]["source"]):
        assert "://" in place or all(
            any(place.startswith(f"{mount}/") for mount in mounts) for mounts in shared
        )


def test_script__runs_the_example_where_the_image_has_it():
    (run,) = of_kind(rendered("script"), "DaskJob")
    program, script, *_, folder = run["spec"]["job"]["spec"]["containers"][0]["args"]
    assert program == "python"
    image = (manifests.ROOT / "deploy" / "image" / "Dockerfile").read_text()
    assert f"COPY examples/everywhere.py {script.removesuffix('everywhere.py')}" in image
    (runner,) = [pod for pod in pods("script") if pod.role == "job-runner"]
    mounts: list[Any] = runner.container["volumeMounts"]
    assert any(folder.startswith(mount["mountPath"]) for mount in mounts if mount["name"] == "data")
