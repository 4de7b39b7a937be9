"""The files for Slurm and SkyPilot: what they start, in which order, with Slurm's commands replaced by records."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from orchestrator.cli.app import build
from tests.waiting import DEADLINE_S

DEPLOY = Path(__file__).parents[2] / "deploy"
SKY = sorted((DEPLOY / "skypilot").glob("*.yaml"))
FAKE = """#!/usr/bin/env bash
{ echo -n "$(basename "$0")"; printf ' %q' "$@"; echo; } >>"$CALLS"
case "$(basename "$0") $*" in
scontrol*hostnames*) printf 'n1\\nn2\\nn3\\n' ;;
srun*) exec sleep 600 ;;
python3\\ -c*) echo token ;;
*orchestrator\\ run*) until [ -e "$CALLS.stop" ]; do sleep 0.05; done; exit "${CODE:-0}" ;;
*orchestrator\\ stop*) touch "$CALLS.stop" ;;
esac
"""


class Slurm:
    """A batch job of the script, on three hosts that are not there."""

    def __init__(self, folder: Path, code: int = 0, nodes: int = 3) -> None:
        self.folder, self.calls = folder, folder / "calls"
        for name in ("scontrol", "srun", "ray", "python3"):
            (folder / name).write_text(FAKE)
            (folder / name).chmod(0o755)
        path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        job = {"SLURM_JOB_ID": "12345", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_NUM_NODES": str(nodes)}
        self.process = subprocess.Popen(
            [DEPLOY / "slurm" / "diloco.sh", "recipe.toml", folder / "run", "--set", "seed=1"],
            env=os.environ | job | {"PATH": path, "CALLS": str(self.calls), "CODE": str(code)},
            start_new_session=True,
        )

    def called(self, words: str) -> list[str]:
        lines = self.calls.read_text().splitlines() if self.calls.exists() else []
        return [line for line in lines if words in line]

    def wait_for(self, words: str) -> str:
        deadline = time.monotonic() + DEADLINE_S
        while not (found := self.called(words)):
            assert time.monotonic() < deadline and self.process.poll() is None, self.called("")
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
        each.process.wait()


def accepted(line: str) -> None:
    """Our own command line takes it."""
    words = shlex.split(line.partition("orchestrator ")[2])
    command = typer.main.get_command(build())
    with command.make_context("diloco", words[:1], resilient_parsing=True) as context:
        command.commands[words[0]].make_context(words[0], words[1:], parent=context)  # type: ignore[attr-defined]


def test_a_slurm_job_starts_a_head_and_nodes_and_runs_on_them(slurm: Any) -> None:
    job = slurm()
    run = job.wait_for("orchestrator run")
    head, others = job.wait_for("--head"), job.wait_for("--exclude")
    assert "--nodelist n1 ray start --head --node-ip-address n1 --port 22345 --block" in head
    assert "--nodes 2 --ntasks 2 --exclude n1 ray start --address n1:22345 --block" in others
    assert run.endswith(f"recipe.toml --run-dir {job.folder}/run --address n1:22345 --set seed=1")
    assert (job.folder / "run" / "token").stat().st_mode & 0o077 == 0
    accepted(run)
    Path(f"{job.calls}.stop").touch()
    assert job.process.wait(DEADLINE_S) == 0
    assert not job.called("requeue")


def test_a_job_on_one_host_has_a_head_alone_and_a_run_that_fails_fails_the_job(slurm: Any) -> None:
    job = slurm(nodes=1, code=3)
    job.wait_for("orchestrator run")
    assert not job.called("--exclude")
    Path(f"{job.calls}.stop").touch()
    assert job.process.wait(DEADLINE_S) == 3


def test_before_its_time_is_over_the_run_stops_and_the_job_is_queued_again(slurm: Any) -> None:
    job = slurm()
    job.wait_for("orchestrator run")
    job.process.send_signal(signal.SIGUSR1)
    assert job.process.wait(DEADLINE_S) == 0
    accepted(job.called("orchestrator stop")[0])
    assert job.called("requeue") == ["scontrol requeue 12345"]


@pytest.mark.parametrize("path", SKY, ids=lambda path: path.name)
def test_a_region_of_skypilot_asks_for_a_token_and_its_script_is_well_formed(path: Path) -> None:
    task = yaml.safe_load(path.read_text())
    assert {"name", "num_nodes", "resources", "secrets", "setup", "run"} <= task.keys()
    assert task["secrets"] == {"RAY_TOKEN": None}, "given at the launch, never written down"
    assert "RAY_AUTH_MODE=token" in task["run"] and "umask 077" in task["run"]
    for script in (task["setup"], task["run"]):
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0
