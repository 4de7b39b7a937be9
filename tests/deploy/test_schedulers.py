"""The scripts of deploy/ run here, with the commands of their platforms replaced by records of how they were called."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from orchestrator.cli.app import build
from tests.waiting import DEADLINE_S

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
RECORD = """#!/usr/bin/env bash
{ echo -n "$(basename "$0")"; printf ' %q' "$@"; echo; } >>"$CALLS"
case "$(basename "$0") $*" in
scontrol*hostnames*) printf 'n1\\nn2\\nn3\\n' ;;
srun*) exec sleep 600 ;;
python3\\ -c*) echo token ;;
*orchestrator\\ run*) until [ -e "$CALLS.stop" ]; do sleep 0.05; done; exit "${CODE:-0}" ;;
*orchestrator\\ stop*) touch "$CALLS.stop" ;;
id\\ diloco*) exit 1 ;;
esac
"""


def records(folder: Path, *names: str) -> dict[str, str]:
    """Put records of these commands first on the PATH; returns the environment."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text(RECORD)
        (folder / name).chmod(0o755)
    path = os.pathsep.join([str(folder), str(Path(sys.executable).parent), os.environ["PATH"]])
    return os.environ | {"PATH": path, "CALLS": str(folder / "calls"), "PYTHONPATH": str(ROOT)}


def called(folder: Path, words: str = "") -> list[str]:
    calls = folder / "calls"
    return [line for line in calls.read_text().splitlines() if words in line] if calls.exists() else []


class Slurm:
    """A batch job of the script, on three hosts that are not there; `ours`: which of our own commands are records."""

    def __init__(self, folder: Path, code: int = 0, nodes: int = 3, ours: tuple[str, ...] = ("python3",)) -> None:
        self.folder = folder
        job = {"SLURM_JOB_ID": "12345", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_NUM_NODES": str(nodes)}
        self.process = subprocess.Popen(
            [DEPLOY / "slurm" / "diloco.sh", DEPLOY / "recipes" / "local.toml", folder / "runs" / "one"],
            env=records(folder, "scontrol", "srun", "ray", *ours) | job | {"CODE": str(code)},
            cwd=folder,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_for(self, words: str) -> str:
        deadline = time.monotonic() + DEADLINE_S
        while not (found := called(self.folder, words)):
            assert time.monotonic() < deadline and self.process.poll() is None, called(self.folder)
            time.sleep(0.02)
        return found[0]


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[Any]:
    started: list[Slurm] = []

    def start(**options: Any) -> Slurm:
        started.append(Slurm(tmp_path, **options))
        return started[-1]

    yield start
    for each in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(each.process.pid, signal.SIGKILL)  # what it started, too
        each.process.communicate()


def accepted(line: str) -> None:
    """Our own command line takes it."""
    words = shlex.split(line.partition("orchestrator ")[2])
    command = typer.main.get_command(build())
    with command.make_context("diloco", words[:1], resilient_parsing=True) as context:
        command.imported()[words[0]]().make_context(words[0], words[1:], parent=context)  # type: ignore[attr-defined]


def ray_start(line: str) -> dict[str, Any]:
    """The options of a call of `ray start`, as Ray's own parser reads them."""
    from ray.scripts.scripts import start

    words = shlex.split(line)
    return dict(start.make_context("start", words[words.index("start") + 1 :]).params)


def test_a_slurm_job_starts_a_head_and_nodes_and_runs_on_them(slurm: Any) -> None:
    job = slurm()
    run = job.wait_for("orchestrator run")
    head, others = job.wait_for("--head"), job.wait_for("--exclude")
    assert "--nodelist n1 ray start --head --node-ip-address n1 --port 22345 --block" in head
    assert "--nodes 2 --ntasks 2 --exclude n1 ray start --address n1:22345 --block" in others
    assert run.endswith(f"local.toml --set run.folder={job.folder}/runs/one --address n1:22345")
    accepted(run)
    (job.folder / "calls.stop").touch()
    assert job.process.wait(DEADLINE_S) == 0
    assert not called(job.folder, "requeue")


def test_a_first_run_and_a_second_one_are_begun_in_the_folder_of_a_slurm_job(slurm: Any, tmp_path: Path) -> None:
    """Our own command runs: it takes the folder, and then finds no cluster on a host that is not there."""
    tokens = set()
    for _ in range(2):
        job = slurm(ours=())
        _, said = job.process.communicate(timeout=DEADLINE_S)
        assert (job.process.returncode, "no Ray cluster answers at 'n1:22345'" in said) == (3, True), said
        [token] = (tmp_path / "runs").glob("*token")
        assert token.stat().st_mode & 0o077 == 0
        tokens.add(token.read_text())
    assert len(tokens) == 1 and len(tokens.pop()) > 32


def test_before_its_time_is_over_the_run_stops_and_the_job_is_queued_again(slurm: Any) -> None:
    job = slurm()
    job.wait_for("orchestrator run")
    job.process.send_signal(signal.SIGUSR1)
    assert job.process.wait(DEADLINE_S) == 0
    accepted(called(job.folder, "orchestrator stop")[0])
    assert called(job.folder, "requeue") == ["scontrol requeue 12345"]


@pytest.mark.parametrize(("code", "nodes"), [(3, 3), (0, 1)])
def test_a_job_ends_as_its_run_and_on_one_host_has_a_head_alone(slurm: Any, code: int, nodes: int) -> None:
    job = slurm(code=code, nodes=nodes)
    job.wait_for("--exclude" if nodes > 1 else "orchestrator run")
    (job.folder / "calls.stop").touch()
    assert job.process.wait(DEADLINE_S) == code
    assert bool(called(job.folder, "--exclude")) == (nodes > 1)


@pytest.mark.parametrize(("name", "rank", "head"), [("head", "0", True), ("head", "1", False), ("region", "0", False)])
def test_a_node_of_skypilot_installs_the_project_and_joins_with_its_token(
    tmp_path: Path, name: str, rank: str, head: bool
) -> None:
    task = yaml.safe_load((DEPLOY / "skypilot" / f"{name}.yaml").read_text())
    assert task["secrets"] == {"RAY_TOKEN": None}, "given at the launch, never written down"
    here = records(tmp_path / "bin", "python3") | {"HOME": str(tmp_path), "RAY_TOKEN": "secret"}
    here |= task.get("envs", {}) | {"RAY_HEAD": "10.0.0.1:6379"}
    here |= {"SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2", "SKYPILOT_NODE_RANK": rank}
    records(tmp_path / "diloco" / "bin", "ray", "pip")
    for script in (task["setup"], task["run"]):
        subprocess.run(["bash", "-euo", "pipefail", "-c", script], env=here, check=True)
    installed = [f"python3 -m venv {tmp_path}/diloco", r"pip install --quiet .\[cuda\]"]
    assert called(tmp_path / "bin")[:-1] == installed
    [start] = called(tmp_path / "bin", "ray start")
    options = ray_start(start)
    assert (options["head"], options["block"]) == (head, True)
    assert head or options["address"] == "10.0.0.1:6379"
    token = tmp_path / "diloco" / "token"
    assert (token.read_text(), stat.S_IMODE(token.stat().st_mode)) == ("secret", 0o600)


def test_a_pod_that_joins_another_clusters_head_starts_a_ray_node(tmp_path: Path) -> None:
    documents = list(yaml.safe_load_all((DEPLOY / "kuberay" / "region.yaml").read_text()))
    [container] = documents[1]["spec"]["template"]["spec"]["containers"]
    here = records(tmp_path, "ray") | {"RAY_HEAD": "head.example.com:6379", "POD_IP": "10.0.0.7"}
    subprocess.run([*container["command"], *container["args"]], env=here, check=True)
    options = ray_start(called(tmp_path)[0])
    assert (options["address"], options["node_ip_address"]) == ("head.example.com:6379", "10.0.0.7")


def test_the_launchers_commands_start_a_head_and_workers(tmp_path: Path) -> None:
    config = yaml.safe_load((DEPLOY / "clusters" / "gcp-us-east.yaml").read_text())
    here = records(tmp_path / "bin", "python3.11") | {"HOME": str(tmp_path), "RAY_HEAD_IP": "10.0.0.2"}
    records(tmp_path / "venv" / "bin", "ray", "pip")
    (tmp_path / ".decoupled-diloco").mkdir()
    (tmp_path / ".decoupled-diloco" / "token").touch()
    kinds = ("setup_commands", "worker_setup_commands", "head_start_ray_commands", "worker_start_ray_commands")
    for command in (command for kind in kinds for command in config[kind]):
        subprocess.run(["bash", "-euo", "pipefail", "-c", command], env=here, check=True)
    head, worker = map(ray_start, called(tmp_path / "bin", "ray start"))
    assert (head["head"], head["port"], worker["address"]) == (True, 6379, "10.0.0.2:6379")
    assert called(tmp_path / "bin", "pip install")[0].endswith("decoupled-diloco")


@pytest.mark.parametrize("role", ["head", "node"])
def test_a_machine_that_joins_has_a_user_an_environment_and_an_enabled_unit(tmp_path: Path, role: str) -> None:
    """As root of a namespace whose /etc and /opt are its own."""
    here = records(tmp_path / "bin", "id", "useradd", "chown", "systemctl")
    (tmp_path / "bin" / "id").write_text('#!/bin/sh\n[ "$1" = -u ] && echo 0\n')
    records(tmp_path / "opt" / "bin", "pip", "python")
    etc = tmp_path / "etc"
    etc.mkdir()
    for name in ("ray.env", "token"):
        (etc / name).write_text("set")
    (tmp_path / "units").mkdir()
    folders = {etc: "/etc/decoupled-diloco", tmp_path / "opt": "/opt/decoupled-diloco"}
    binds = "".join(f"mkdir -p {place} && mount --bind {own} {place} && " for own, place in folders.items())
    base = "mount -t tmpfs tmpfs /opt && mount -t tmpfs tmpfs /etc && mkdir -p /etc/systemd && "
    units = f"mkdir -p /etc/systemd/system && mount --bind {tmp_path}/units /etc/systemd/system && "
    script = f"{base}{binds}{units}exec {DEPLOY}/clusters/join.sh {role} . cuda"
    done = subprocess.run(
        ["unshare", "--mount", "--map-root-user", "bash", "-c", script], env=here, capture_output=True, text=True
    )
    if "unshare" in done.stderr:
        pytest.skip(f"no namespaces here: {done.stderr}")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "units" / f"ray-{role}.service").read_text() == (
        DEPLOY / "clusters" / f"ray-{role}.service"
    ).read_text()
    calls = called(tmp_path / "bin")
    assert [call for call in calls if "systemctl" in call][-1] == f"systemctl restart ray-{role}.service"
    assert any(r"decoupled-diloco\[cuda\]" in call for call in calls if call.startswith("pip install"))
    assert stat.S_IMODE((etc / "token").stat().st_mode) == 0o600


def test_what_the_image_copies_is_there_and_is_the_whole_project(tmp_path: Path) -> None:
    """Its steps, without a builder of images: each is one that we know, and what is copied becomes a wheel."""
    text = re.sub(r"^#.*$", "", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    steps = [line.split(None, 1) for line in text.splitlines() if line.strip()]
    assert {word for word, _ in steps} == {"FROM", "RUN", "ARG", "COPY", "USER", "WORKDIR", "ENV"}
    assert steps[0] == ["FROM", "python:3.11-slim"]
    allowed = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    for word, rest in steps:
        if word == "RUN":
            subprocess.run(["sh", "-n"], input=rest, text=True, check=True)
        if word == "COPY":
            *sources, target = rest.split()
            for source in sources:
                assert any(f"!{each}" in allowed for each in (source, *map(str, Path(source).parents))), source
                place = tmp_path / target.lstrip("/")
                if (ROOT / source).is_dir():
                    shutil.copytree(ROOT / source, place, ignore=shutil.ignore_patterns("__pycache__"))
                else:
                    place.mkdir(exist_ok=True)
                    shutil.copy(ROOT / source, place)
    code = "import orchestrator, chaos.cli; from orchestrator.cli.app import build; print(orchestrator.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "src", env={"PYTHONPATH": "."}, capture_output=True, text=True
    )
    assert done.stdout.startswith(str(tmp_path)), done.stderr
    assert (tmp_path / "recipes" / "local.toml").exists()
