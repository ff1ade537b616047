"""`distclust run` publishes the same wherever it runs, and whatever dies meanwhile.

Every process is one of its own and works on blocks of few rows, so that all workers have
something to do. What is right is what a run in process publishes, night by night.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from distclust.jobs.ledger import JobLedger
from distclust.store.objects import open_objects
from tests.hosts import Hosts, why_impossible
from tests.jobs.corpus import JOB, Corpus
from tests.processes import (
    MAKE_CERTIFICATES,
    SECONDS,
    make_certificates,
    small_blocks,
    tls_cluster,
    wait_until,
    with_certificates,
)

__all__ = ["small_blocks"]  # a fixture

needs_deploy = pytest.mark.skipif(
    not MAKE_CERTIFICATES.is_file(), reason="deploy is not part of an installed package"
)

Environment = dict[str, str]


def first_night(folder: Path) -> Corpus:
    corpus = Corpus(folder)
    for number in range(4):
        corpus.bring(number, 250)
    return corpus


def second_night(corpus: Corpus) -> None:
    corpus.bring(4, 120)
    (corpus.inbox / "night002.csv").unlink()


def command(corpus: Corpus, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "distclust", "run", str(corpus.path), "--json", *arguments]


def start(corpus: Corpus, environment: Environment, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(corpus, *arguments),
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> dict[str, Any]:
    """Wait for a run that publishes; return its record."""
    printed, said = process.communicate(timeout=SECONDS)
    assert process.returncode == 0, said
    record: dict[str, Any] = json.loads(printed)
    assert record["outcome"] == "published"
    return record


def outcomes(corpus: Corpus) -> list[str]:
    records = sorted((Path(corpus.out) / "runs").glob("*/record.json"))
    return [str(json.loads(path.read_text())["outcome"]) for path in records]


def is_begun(corpus: Corpus) -> bool:
    head = JobLedger(open_objects(corpus.out)).head()
    return head is not None and head.content["action"] == "begin"


def is_fitting(corpus: Corpus) -> bool:
    """Whether a run has brought its rows in and is at work on its first model."""
    return (Path(corpus.out) / "models").exists()


@pytest.fixture(scope="module")
def wanted(tmp_path_factory, small_blocks) -> list[dict[str, Any]]:
    """Return what runs in process publish on two nights."""
    corpus = first_night(tmp_path_factory.mktemp("wanted"))
    finish(start(corpus, small_blocks))
    first = corpus.content()
    second_night(corpus)
    record = finish(start(corpus, small_blocks))
    assert record["models"][0]["action"] == "updated"
    return [first, corpus.content()]


@pytest.mark.cluster
@pytest.mark.chaos
def test_local_cluster__also_if_a_worker_is_killed(wanted, small_blocks, tmp_path):
    corpus = first_night(tmp_path)
    corpus.path.write_text(f'{JOB}[resources]\nscheduler = "local"\nworkers = 2\n')
    process = start(corpus, small_blocks)
    wait_until(lambda: is_fitting(corpus), process)
    children = psutil.Process(process.pid).children(recursive=True)
    worker = next(child for child in children if "spawn_main" in " ".join(child.cmdline()))
    worker.send_signal(signal.SIGKILL)
    assert finish(process)["scheduler"] == "local"
    assert corpus.content() == wanted[0]  # second nights are the other tests'


@needs_deploy
@pytest.mark.cluster
@pytest.mark.chaos
def test_processes_with_tls__killed_workers_and_drivers_and_strangers(
    wanted, small_blocks, tmp_path
):
    right = with_certificates(small_blocks, make_certificates(tmp_path / "right"))
    wrong = with_certificates(small_blocks, make_certificates(tmp_path / "wrong"))
    corpus = first_night(tmp_path / "job")
    corpus.path.write_text(f'{JOB}[resources]\ntimeout = "20s"\n')
    with tls_cluster(right, tmp_path) as cluster:
        stranger = start(corpus, wrong, "--scheduler", cluster.address)
        _, said = stranger.communicate(timeout=SECONDS)
        assert stranger.returncode == 1
        assert cluster.address in said
        assert corpus.state() is None

        there = {**right, "DASK_SCHEDULER_ADDRESS": cluster.address}
        driver = start(corpus, there)
        wait_until(lambda: is_fitting(corpus), driver)
        driver.kill()
        driver.communicate()
        assert corpus.state() is None
        assert finish(start(corpus, there))["scheduler"] == cluster.address
        assert corpus.content() == wanted[0]
        assert outcomes(corpus) == ["failed", "cut off", "published"]

        second_night(corpus)
        driver = start(corpus, there)
        wait_until(lambda: is_begun(corpus), driver)
        cluster.workers[0].kill()
        finish(driver)
        assert corpus.content() == wanted[1]


@pytest.mark.netns
@pytest.mark.cluster
@pytest.mark.chaos
def test_three_hosts__one_of_which_is_lost(wanted, small_blocks, tmp_path):
    if reason := why_impossible():
        pytest.skip(reason)
    corpus = first_night(tmp_path / "job")
    with Hosts(3, tmp_path) as hosts:
        scheduler = hosts.start_scheduler(0)
        workers = [hosts.start_worker(host, scheduler, small_blocks) for host in (1, 2)]
        environment = {**small_blocks, "DASK_SCHEDULER_ADDRESS": scheduler}
        for night in range(2):
            if night:
                second_night(corpus)
            driver = hosts.start(0, command(corpus), environment=environment, is_read=True)
            if night == 0:
                wait_until(lambda: is_fitting(corpus), driver)
                workers[0].kill()
            printed, _ = driver.communicate(timeout=SECONDS)
            assert driver.returncode == 0, printed
            assert corpus.content() == wanted[night]
