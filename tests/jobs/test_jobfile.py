from __future__ import annotations

import re
from pathlib import Path

import pytest

from distclust.errors import InputError, MissingFileError
from distclust.jobs.jobfile import read_job, seconds, starter

SMALL = """
name = "articles"
out = "results"
[input]
source = "incoming/*.csv"
[models.tree]
kind = "rbhc"
"""


@pytest.fixture
def read(tmp_path: Path):
    """Return a function that writes a job file and reads it."""

    def write_and_read(text: str):
        path = tmp_path / "job.toml"
        path.write_text(text, encoding="utf-8")
        return read_job(path)

    return write_and_read


def test_read_job__a_small_one_has_defaults(read, tmp_path):
    job = read(SMALL)
    assert job.name == "articles"
    assert job.out == str(tmp_path / "results")
    assert job.store == str(tmp_path / "results" / "rows.zarr")
    assert job.source == (str(tmp_path / "incoming" / "*.csv"),)
    assert job.models["tree"].kind == "rbhc"
    assert job.models["tree"].refit.drift == 4.0
    assert job.gates.min_rows == 1


def test_read_job__behind_a_link_paths_are_seen_from_the_link(tmp_path):
    """As Kubernetes lays files: the folder behind the link is another one in every pod."""
    behind = tmp_path / "..2026_07_01"
    behind.mkdir()
    (behind / "job.toml").write_text(SMALL)
    (tmp_path / "..data").symlink_to(behind.name)
    (tmp_path / "job.toml").symlink_to("..data/job.toml")
    job = read_job(tmp_path / "job.toml")
    assert job.out == str(tmp_path / "results")
    assert job.source == (str(tmp_path / "incoming" / "*.csv"),)


def test_starter__is_a_job_file_and_names_every_key(read):
    job = read(starter())
    assert set(job.models) == {"topics"}
    sections = (job.input, job.resources, job.gates, job.keep, job.hooks, *job.models.values())
    for section in sections:
        for key in section.__struct_fields__:
            assert re.search(rf"\b{key} = |[.\[]{key}[.\]]", starter()), key


def test_read_job__urls_and_absolute_paths_stay(read):
    job = read(SMALL.replace('"results"', '"s3://bucket/results/"').replace("incoming", "/data/in"))
    assert job.out == "s3://bucket/results"
    assert job.store == "s3://bucket/results/rows.zarr"
    assert job.source == ("/data/in/*.csv",)


def test_read_job__a_store_alone_is_only_read(read, tmp_path):
    job = read(SMALL.replace('source = "incoming/*.csv"', 'store = "rows.zarr"'))
    assert job.source == ()
    assert job.store == str(tmp_path / "rows.zarr")


@pytest.mark.parametrize(
    ("change", "place", "words"),
    [
        ("", "naame = 3", "'naame'. Did you mean 'name'?"),
        ("", "[keep]\nversion = 3", "keep: expected keys among versions, days, runs"),
        ("", "[models.tree.refit]\ndrft = 3", "models.tree.refit: expected keys among drift"),
        (
            "",
            "[models.tree.refit]\ndrift = 'x'",
            "refit.drift: expected float, got str",
        ),
        ("", "[models.tree.refit]\ndrift = -1.0", "models.tree.refit.drift: expected a finite"),
        ("", "[models.tree.refit]\nperiod = '3 months'", "a time such as 90s"),
        ("", "[models.'a b']\nkind = 'bhc'", "letters, digits"),
        ("", "[models.other]\nseed = 3", "models.other: expected a key 'kind'"),
        ("", "[resources]\nscheduler = 'here'", "threads, local, or an address"),
        ("", "[resources]\nworkers = 2", "workers that are started here"),
        ("", "[resources]\nscheduler = 'local'\nworkers = 4000", "at most"),
        ("", "[resources]\nscheduler = 'local'\nmemory = '9000 GB'", "at most"),
        ("", "[resources]\nscheduler = 'local'\nmemory = 'lots'", "a number of bytes"),
        ("", "[gates]\nmax_deleted = 2.0", "gates.max_deleted: expected a finite number"),
        ("", "[gates.models.shrub]\nmin_clusters = 2", "a model among tree"),
        ("", "[gates.models.tree]\nmin_cluster = 2", "Did you mean 'min_clusters'?"),
        ("", "[keep]\nversions = 0", "at least 1"),
        ("", "[hooks]\nsuccess = 'echo'", "hooks.success: expected array, got str"),
        ("", "[hooks]\ntimeout = '0s'", "a time such as"),
        ('source = "incoming/*.csv"', "", "a source or a store"),
        ('out = "results"', "", "a key 'out'"),
        ('name = "articles"', "", "a key 'name'"),
        ('"articles"', '"a/b"', "letters, digits"),
        ('"results"', '""', "a path or a URL"),
        ('"results"', "", "a job file in TOML"),
        ('"incoming/*.csv"', "3", "input.source: expected str | array, got int"),
    ],
)
def test_read_job__what_is_wrong_gets_a_sentence(read, tmp_path, change, place, words):
    text = SMALL.replace(change, place) if change else _with(place)
    with pytest.raises(InputError) as caught:
        read(text)
    said = str(caught.value)
    assert said.startswith(str(tmp_path / "job.toml"))
    assert words in said


def _with(lines: str) -> str:
    return SMALL + lines if lines.startswith("[") else lines + SMALL


def test_read_job__no_models(read):
    with pytest.raises(InputError, match="at least one model"):
        read(SMALL.split("[models")[0] + "[models]\n")


def test_read_job__no_file(tmp_path):
    with pytest.raises(MissingFileError, match="distclust job init"):
        read_job(tmp_path / "none.toml")


def test_read_job__not_text(tmp_path):
    path = tmp_path / "job.toml"
    path.write_bytes(b"name = '\xff'")
    with pytest.raises(InputError, match="UTF-8"):
        read_job(path)


@pytest.mark.parametrize(
    ("text", "value"), [("90s", 90), ("1.5m", 90), ("2 h", 7200), ("7d", 604800), ("4w", 2419200)]
)
def test_seconds(text, value):
    assert seconds(text, "here") == value
