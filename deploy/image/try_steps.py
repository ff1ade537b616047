"""Try the image recipe without a container engine, and what it made as a pod would run it.

python deploy/image/try_steps.py [--keep FOLDER]

The steps of the Dockerfile run in order in a folder that stands for the root, with this Python in
place of the base image. Then, where this machine allows it, the result runs as user 10001 on a
read-only root file system: the health command has to pass, examples/everywhere.py and two nights of
a job have to find every function compiled, and the example has to print what it prints outside.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import shutil
import string
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2]
DOCKERFILE = Path(__file__).with_name("Dockerfile")
PLACES = ("/opt/distclust", "/source")  # folders of the image that the steps name


def instructions(text: str) -> list[tuple[str, str]]:
    """Return pairs of word and rest for every instruction of a Dockerfile."""
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.split("\n"))]


class Trial:
    """A folder in which the steps run, with the environment they set."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root
        self.environment = {
            name: os.environ[name]
            for name in ("PATH", "LANG", "PIP_CONFIG_FILE", "PIP_INDEX_URL", "PIP_FIND_LINKS")
            if name in os.environ
        }
        self.environment["HOME"] = str(Path.home())  # pip's own settings, until the recipe sets it
        self.arguments: dict[str, str] = {}

    def here(self, text: str) -> str:
        """Return a text with the folders of the image replaced by those of the trial."""
        for place in PLACES:
            text = re.sub(rf"(?<![\w/.-]){place}(?![\w-])", f"{self.root}{place}", text)
        return text

    def do(self, word: str, rest: str) -> None:
        """Do one instruction."""
        match word:
            case "FROM":
                self.folder = self.root
            case "WORKDIR":
                self.folder = Path(self.here(rest))
                self.folder.mkdir(parents=True, exist_ok=True)
            case "ARG":
                name, _, value = rest.partition("=")
                self.arguments[name] = value
            case "ENV":
                for pair in shlex.split(rest):
                    name, _, value = pair.partition("=")
                    known = {**self.environment, **self.arguments}
                    self.environment[name] = self.here(string.Template(value).substitute(known))
            case "COPY":
                self.copy(rest)
            case "RUN":
                self.run(rest)
            case "SHELL" | "LABEL" | "USER" | "HEALTHCHECK" | "CMD":
                pass
            case _:
                raise SystemExit(f"Dockerfile: this trial does not know {word}")

    def copy(self, rest: str) -> None:
        """Copy from the source; what an earlier stage made is in place already."""
        *sources, target = shlex.split(rest)
        if sources[0].startswith("--from="):
            return
        place = Path(self.here(target)) if target.startswith("/") else self.folder / target
        for source in sources:
            origin = SOURCE / source
            if origin.is_dir():
                ignored = shutil.ignore_patterns("__pycache__")
                shutil.copytree(origin, place, dirs_exist_ok=True, ignore=ignored)
            else:
                file = place if place.suffix else place / origin.name
                file.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(origin, file)

    def run(self, command: str) -> None:
        """Run a step; `python` of the base image is this Python until the image has its own."""
        if "PYTHONUNBUFFERED" not in self.environment:
            command = re.sub(r"^python ", f"{shlex.quote(sys.executable)} ", command)
        start = time.monotonic()
        subprocess.run(
            ["bash", "-o", "pipefail", "-c", self.here(command)],
            cwd=self.folder,
            env=self.environment,
            check=True,
        )
        print(f"{time.monotonic() - start:6.1f} s  RUN {command[:90]}", flush=True)

    def travel(self) -> None:
        """Pack and unpack the result as a layer does, with times in whole seconds."""
        place = self.root / "opt"
        layer = self.root / "layer.tar"
        with tarfile.open(layer, "w", format=tarfile.USTAR_FORMAT) as archive:
            archive.add(place, "opt")
        shutil.rmtree(place)
        with tarfile.open(layer) as archive:
            archive.extractall(self.root, filter="tar")
        layer.unlink()

    def run_confined(self, command: list[str]) -> subprocess.CompletedProcess[str]:
        """Run a command as user 10001 on a read-only root file system with an empty /tmp."""
        home = Path(sys.base_prefix)
        hidden = f"/{home.parts[1]}"  # the Python here may lie in a folder that only root reads
        reveal = f"""
            mkdir -p /tmp/python && mount --bind {home} /tmp/python
            mount -t tmpfs -o mode=755 tmpfs {hidden}
            mkdir -p {home} && mount --bind /tmp/python {home}
        """
        script = f"""
            set -e
            mount -t tmpfs tmpfs /tmp
            {reveal if hidden == "/root" else ""}
            mount -t tmpfs -o mode=1777 tmpfs /tmp
            mount -o remount,bind,ro /
            cd /tmp
            exec setpriv --reuid=10001 --regid=10001 --clear-groups --no-new-privs "$@"
        """
        return subprocess.run(
            ["unshare", "--mount", "bash", "-c", script, "confined", *command],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )


def why_not_confined() -> str | None:
    """Return why nothing can be confined here, or None if it can."""
    if not shutil.which("unshare") or not shutil.which("setpriv"):
        return "there is no unshare or setpriv command"
    tried = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return tried.stderr.decode().strip() if tried.returncode else None


NIGHTS = """
mkdir /tmp/incoming
head -n 40 "$1/animals.csv" > /tmp/incoming/first.csv
distclust run "$1/job.toml"
(head -n 1 "$1/animals.csv"; tail -n +41 "$1/animals.csv") > /tmp/incoming/second.csv
distclust run "$1/job.toml"
"""


def check_compiled(done: subprocess.CompletedProcess[str], what: str) -> None:
    """Refuse a command that failed, or that had to compile something."""
    assert done.returncode == 0, done.stdout + done.stderr
    missed = re.findall(r"\[cache\] data saved to .*", done.stdout)
    assert not missed, "\n".join([f"{what}, not warmed:", *missed])


def check_job(trial: Trial) -> None:
    """Run two nights of the Kubernetes trial, confined."""
    place = trial.root / "job"
    place.mkdir()
    overlay = SOURCE / "deploy" / "kubernetes" / "overlays" / "trial"
    shutil.copy(overlay / "animals.csv", place)
    job = (overlay / "job.toml").read_text().replace("/data/", "/tmp/")
    (place / "job.toml").write_text(job)
    start = time.monotonic()
    done = trial.run_confined(["bash", "-e", "-c", NIGHTS, "nights", str(place)])
    check_compiled(done, "the job")
    assert done.stdout.count("Published") == 2, done.stdout
    print(f"{time.monotonic() - start:6.1f} s  two nights of a job, confined")


def check_confined(trial: Trial) -> None:
    """Run what the recipe made as a pod would, and compare with a run outside."""
    program = f"{trial.root}/opt/distclust"
    writable = trial.run_confined(["touch", f"{program}/compiled/x"])
    assert writable.returncode != 0, "the root file system is not read-only"
    healthy = trial.run_confined([f"{program}/bin/distclust", "doctor", "--quiet"])
    assert healthy.returncode == 0, healthy.stdout + healthy.stderr
    script = f"{program}/examples/everywhere.py"
    trial.environment["NUMBA_DEBUG_CACHE"] = "1"
    start = time.monotonic()
    inside = trial.run_confined([f"{program}/bin/python", script])
    check_compiled(inside, "the example")
    print(f"{time.monotonic() - start:6.1f} s  examples/everywhere.py, confined")
    check_job(trial)
    outside = subprocess.run(
        [f"{program}/bin/python", script],
        env={name: os.environ[name] for name in ("PATH", "HOME")},  # compiled for this processor
        capture_output=True,
        text=True,
        check=True,
    )
    wanted = outside.stdout.splitlines()
    assert [line for line in inside.stdout.splitlines() if "[cache]" not in line] == wanted
    print(f"healthy, nothing compiled, {wanted[-1]} as outside")


def main() -> None:
    """Try all steps."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--keep", type=Path, help="an empty folder, outside of /tmp")
    keep = parser.parse_args().keep
    root = (keep or Path(tempfile.mkdtemp(prefix="distclust-image-", dir="/var/tmp"))).resolve()
    root.mkdir(parents=True, exist_ok=True)
    root.chmod(0o755)
    try:
        trial = Trial(root)
        for word, rest in instructions(DOCKERFILE.read_text()):
            trial.do(word, rest)
        trial.travel()
        size = sum(path.lstat().st_size for path in (root / "opt").rglob("*"))
        print(f"{size / 1e6:,.0f} MB on top of the base image")
        if reason := why_not_confined():
            print(f"not confined: {reason}")
        else:
            check_confined(trial)
    finally:
        if keep is None:
            shutil.rmtree(root, ignore_errors=True)


if __name__ == "__main__":
    main()
