"""Runs pods as a node would: what the manifests say, by processes of this machine.

Every pod has its own network, processes, name and root file system, which is read-only but for
what is mounted; it runs as the user that it names, without capabilities. ConfigMaps and Secrets
lie there as a kubelet lays them: behind links that are replaced when they change. In place of
the image there are the Python and the sources of these tests. It needs root.

What is not tried: images, probes, limits of memory and processors, network policies.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from distclust.compiled import cache_folder
from tests.deploy.manifests import ROOT, Json, Pod, of_kind, rendered
from tests.hosts import Hosts, why_impossible

USER = 10001
SECONDS = 120  # only where something hangs
BYTES = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30}

_NUMBERS = itertools.count()


def why_no_pods() -> str | None:
    """Return why no pods can run here, or None if they can."""
    if reason := why_impossible():
        return reason
    if missing := [name for name in ("unshare", "setpriv", "openssl") if not shutil.which(name)]:
        return f"there is no {missing[0]} command"
    return None


class Node:
    """Runs the pods of an overlay, each on a host of its own.

    Parameters
    ----------
    overlay
        Whose ConfigMaps are mounted.
    hosts
        Where pods run.
    folder
        For everything that is mounted.
    """

    def __init__(self, overlay: str, hosts: Hosts, folder: Path) -> None:
        self.hosts = hosts
        self.folder = folder
        self.data = folder / "data"  # what the volume claim stands for
        self.data.mkdir(mode=0o700)
        os.chown(self.data, USER, USER)
        self.names: dict[str, str] = {}  # addresses of services
        self.secrets: dict[str, dict[str, str]] = {}
        self.config_maps: dict[str, dict[str, str]] = {
            document["metadata"]["name"]: dict(document["data"])
            for document in of_kind(rendered(overlay), "ConfigMap")
        }

    def start(self, pod: Pod, host: int) -> subprocess.Popen[str]:
        """Start a pod; the process stands for it and ends with its exit code."""
        for container in pod.spec.get("initContainers", []):
            first = self._start(pod, container, host)
            assert first.wait(SECONDS) == 0, container["name"]
        return self._start(pod, pod.container, host)

    def _start(self, pod: Pod, container: Json, host: int) -> subprocess.Popen[str]:
        environment = {**image_environment(), **self._environment(container)}
        command = container.get("command", []) + container["args"]
        command = [_filled(word, environment) for word in command]
        root = self.folder / f"root-{next(_NUMBERS)}"
        root.mkdir()
        security = pod.spec["securityContext"]
        user, group = security["runAsUser"], security["runAsGroup"]
        lines = [
            *_root(root),
            *self._mounts(pod.spec["volumes"], container, f"{root}/root"),
            *self._names_file(f"{root}/root", pod.name, host),
            f"mount -o remount,ro {root}/root",
            f"hostname {pod.name}",
            f"exec env -i {_assignments(environment)} chroot {root}/root setpriv --reuid={user}"
            f" --regid={group} --groups={security['fsGroup']} --no-new-privs --bounding-set=-all"
            f" --inh-caps=-all --pdeathsig=KILL {shlex.join(command)}",  # else it outlives us
        ]
        script = "\n".join(["set -e", *lines])
        options = ["--mount", "--pid", "--uts", "--fork", "--kill-child"]
        return self.hosts.start(host, ["unshare", *options, "bash", "-c", script])

    def mounted(self, name: str) -> Path:
        """Return the folder of a ConfigMap or Secret as a node lays it out, made anew."""
        content = {**self.config_maps, **self.secrets}[name]
        place = self.folder / f"mounted-{next(_NUMBERS)}"
        real = place / f"..{time.time_ns()}"
        real.mkdir(parents=True)
        (place / "..data").symlink_to(real.name)
        for file, text in content.items():
            (real / file).write_text(text)
            (real / file).chmod(0o440 if name in self.secrets else 0o644)
            os.chown(real / file, 0, USER)
            (place / file).symlink_to(f"..data/{file}")
        return place

    def _environment(self, container: Json) -> dict[str, str]:
        found: dict[str, str] = {}
        for source in container.get("envFrom", []):
            if "configMapRef" in source:
                found |= self.config_maps[source["configMapRef"]["name"]]
            else:
                reference = source["secretRef"]
                assert reference["optional"] or reference["name"] in self.secrets
                found |= self.secrets.get(reference["name"], {})
        for entry in container.get("env", []):
            match entry:
                case {"name": name, "value": value}:
                    found[name] = value
                case {"name": name, "valueFrom": {"resourceFieldRef": {"resource": resource}}}:
                    found[name] = str(_limit(container["resources"], resource))
                case _:
                    raise AssertionError(entry)
        return found

    def _mounts(self, known: list[Json], container: Json, root: str) -> list[str]:
        volumes = {volume["name"]: volume for volume in known}
        lines = []
        for mount in container["volumeMounts"]:
            place = f"{root}{mount['mountPath']}"
            options = "bind,ro" if mount.get("readOnly") else "bind"
            match volumes[mount["name"]]:
                case {"emptyDir": _}:
                    assert mount["mountPath"] == "/tmp"  # as _root has made it
                    continue
                case {"configMap": {"name": name}} | {"secret": {"secretName": name}}:
                    source = self.mounted(name)
                case {"persistentVolumeClaim": _}:
                    source = self.data
                case other:
                    raise AssertionError(other)
            lines.append(f"mkdir -p {place} && mount -o {options} {source} {place}")
        return lines

    def _names_file(self, root: str, name: str, host: int) -> list[str]:
        known = {"localhost": "127.0.0.1", name: self.hosts.address(host), **self.names}
        text = "".join(f"{address} {each}\n" for each, address in known.items())
        return [f"printf %s {shlex.quote(text)} > {root}/etc/hosts"]


def main_process(pod: subprocess.Popen[str]) -> psutil.Process:
    """Return the process that a container's runtime would send signals to."""
    end = time.monotonic() + SECONDS
    while time.monotonic() < end and pod.poll() is None:
        children = psutil.Process(pod.pid).children()
        if children and children[0].name() != "bash":
            return children[0]
        time.sleep(0.02)
    raise AssertionError("the pod did not start")


def image_environment() -> dict[str, str]:
    """Return the environment of the image, with the Python and the cache of these tests."""
    text = (ROOT / "deploy" / "image" / "Dockerfile").read_text()
    (found,) = re.findall(r"^ENV ((?:.*\\\n)*.*)$", text, re.MULTILINE)
    pairs = (word.partition("=") for word in shlex.split(found.replace("\\\n", " ")))
    environment = {name: value for name, _, value in pairs if not name.startswith("NUMBA")}
    return {
        **environment,
        "PATH": f"{Path(sys.executable).parent}:/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONPATH": str(ROOT),
        "DISTCLUST_CACHE_DIR": str(compiled()),
    }


def compiled() -> Path:
    """Return the folder of compiled functions that these tests fill."""
    folder = cache_folder()
    assert folder is not None
    return folder.parent


def _root(place: Path) -> list[str]:
    """Return commands that make a root file system on which nothing stays."""
    root = f"{place}/root"
    sources = [sys.prefix, sys.base_prefix, str(ROOT), str(compiled())]
    layers = f"lowerdir=/,upperdir={place}/upper,workdir={place}/work"
    lines = [
        f"mount -t tmpfs tmpfs {place}",
        f"mkdir {place}/upper {place}/work {root}",
        f"mount -t overlay overlay -o {layers} {root}",
        f"mount -t proc proc {root}/proc",
        f"mount --rbind /dev {root}/dev",
        f"mount -t tmpfs -o mode=1777 tmpfs {root}/tmp",
    ]
    for source in dict.fromkeys(sources):
        parents = [parent for parent in Path(source).parents[:-1] if parent != Path("/tmp")]
        lines += [  # some of them are for root only
            f"mkdir -p {root}{parent} && chmod a+rx {root}{parent}" for parent in reversed(parents)
        ]
        lines.append(f"mkdir -p {root}{source} && mount -o bind,ro {source} {root}{source}")
    return lines


def _assignments(environment: dict[str, str]) -> str:
    return shlex.join(f"{name}={value}" for name, value in environment.items())


def _filled(word: str, environment: dict[str, str]) -> str:
    return re.sub(r"\$\((\w+)\)", lambda found: environment[found[1]], word)


def _limit(resources: Any, name: str) -> int:
    """Return a limit as the environment gets it: whole processors, bytes."""
    text = resources["limits"][name.removeprefix("limits.")]
    if name == "limits.cpu":
        return -(-int(text[:-1]) // 1000) if text.endswith("m") else int(text)
    return int(text[:-2]) * BYTES[text[-2:]]
