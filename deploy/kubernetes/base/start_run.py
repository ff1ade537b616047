"""Start a copy of a DaskJob and wait for its end; the schedule runs this in a pod.

python start_run.py NAME

NAME is a DaskJob to copy, with every mention of its own name replaced by that of the Job this pod
belongs to. The copy is owned by that Job and goes with it, so the history of the CronJob is that
of the runs. A pod that takes the place of a lost one finds the copy and waits on.

Exit codes: 0 the run succeeded, 1 it failed, 3 stopped (the run is stopped, too), 4 the Kubernetes
API did not answer for long. Nothing but Python's own library is needed.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import ssl
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ACCOUNT = Path(os.environ.get("ACCOUNT", "/var/run/secrets/kubernetes.io/serviceaccount"))
SECONDS_BETWEEN = float(os.environ.get("SECONDS_BETWEEN", "10"))
PATIENCE_SECONDS = float(os.environ.get("PATIENCE_SECONDS", "600"))

Json = dict[str, Any]


stopping = threading.Event()  # Kubernetes wants this pod to end


def ask(verb: str, path: str = "", body: Json | None = None) -> tuple[int, Json]:
    """Ask the Kubernetes API about DaskJobs of this namespace; return status and answer."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    host = f"[{host}]" if ":" in host else host
    namespace = (ACCOUNT / "namespace").read_text().strip()
    request = urllib.request.Request(
        f"https://{host}:{port}/apis/kubernetes.dask.org/v1/namespaces/{namespace}/daskjobs{path}",
        method=verb,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {(ACCOUNT / 'token').read_text().strip()}",  # it is renewed
            "Content-Type": "application/json",
        },
    )
    trusted = ssl.create_default_context(cafile=str(ACCOUNT / "ca.crt"))
    try:
        with urllib.request.urlopen(request, timeout=10, context=trusted) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, {"message": error.read().decode(errors="replace")}


def ask_patiently(verb: str, path: str = "", body: Json | None = None) -> tuple[int, Json]:
    """Ask again while the API is away or busy, which is not the fault of a run."""
    end = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            status, answer = ask(verb, path, body)
            trouble = f"{status} {answer.get('message', '')[:200]}"
        except (OSError, http.client.HTTPException, ValueError) as error:
            status, answer, trouble = 503, {}, repr(error)
        if status < 500 and status != 429:
            return status, answer
        if time.monotonic() > end:
            say(f"the Kubernetes API does not answer: {trouble}")
            raise SystemExit(4)
        pause()


def pause() -> None:
    """Wait a little; when it is time to stop, less."""
    if stopping.is_set():
        time.sleep(min(1.0, SECONDS_BETWEEN))
    else:
        stopping.wait(SECONDS_BETWEEN)


def copied(template: Json, name: str, job: str, job_uid: str) -> Json:
    """Return a DaskJob like another one, under a name of its own and owned by a Job."""
    old = template["metadata"]["name"]
    return {
        "apiVersion": template["apiVersion"],
        "kind": template["kind"],
        "metadata": {
            "name": name,
            "labels": template["metadata"].get("labels", {}),
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": job_uid}
            ],
        },
        "spec": renamed(template["spec"], old, name),
    }


def renamed(value: Any, old: str, new: str) -> Any:
    """Return a value with one name replaced by another in all texts."""
    if isinstance(value, dict):
        return {key: renamed(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [renamed(item, old, new) for item in value]
    return value.replace(old, new) if isinstance(value, str) else value


def run(template_name: str, job: str, job_uid: str) -> int:
    """Start the copy, or find it started, and wait for its end."""
    status, template = ask_patiently("GET", f"/{template_name}")
    if status != 200:
        say(f"no DaskJob {template_name} to copy: {status} {template.get('message', '')[:300]}")
        return 1
    status, answer = ask_patiently("POST", body=copied(template, job, job, job_uid))
    if status not in (200, 201, 202, 409):
        say(f"{job} could not be started: {status} {answer.get('message', '')[:300]}")
        return 1
    say(f"{job} {'goes on' if status == 409 else 'started'}")
    return wait_for(job)


def wait_for(name: str) -> int:
    """Wait for the end of a DaskJob; return the exit code."""
    known = ""
    while not stopping.is_set():
        status, found = ask_patiently("GET", f"/{name}")
        if status != 200:
            say(f"{name} is gone: {status} {found.get('message', '')[:300]}")
            return 1
        state = (found.get("status") or {}).get("jobStatus", "")
        if state != known:
            say(f"{name}: {state}")
            known = state
        if state == "Successful":
            return 0
        if state == "Failed":
            say(f"why is in the log of the pod {name}-runner, and in the report of the run")
            return 1
        pause()
    # A deadline, or an administrator; a run that nobody waits for would go on unseen.
    status, _ = ask_patiently("DELETE", f"/{name}")
    say(f"stopped; {name} deleted: {status}")
    return 3


def say(text: str) -> None:
    """Print a line for the log of the pod."""
    print(text, flush=True)


def stop(signal_number: int, frame: object) -> None:
    """Note the request to end."""
    stopping.set()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, stop)
    sys.exit(run(sys.argv[1], os.environ["JOB_NAME"], os.environ["JOB_UID"]))
