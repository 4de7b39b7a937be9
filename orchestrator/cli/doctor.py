"""`diloco doctor`: whether a run can start on this machine.

Each finding is ok, a warning or a failure, with a fix. Imports no Ray, and starts nothing but, with --gpu, a process
that takes the accelerators for a moment.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import psutil
import typer

from learners.training.devices.accelerators import accelerators
from learners.training.devices.device import DeviceFinding
from orchestrator.cli.data import cores
from orchestrator.cli.errors import INPUT, reported
from orchestrator.cli.options import AsJson
from orchestrator.cli.recipes import ROOMS, foreign_packages
from orchestrator.store.compile_cache import compilation_cache

GIB = 2**30


GPU_S = 180.0  # for the checks of --gpu, two compilations included

Gpu = Annotated[bool, typer.Option("--gpu", help="Also use this machine's accelerators: platform, memory, bits.")]


def doctor(as_json: AsJson = False, gpu: Gpu = False) -> None:
    """Check this machine: authentication, memory, cores, packages; exit code 2 on a failure."""
    with reported(as_json):
        found = [*findings(Path.cwd()), *(device_findings() if gpu else ())]
        sound = all(finding.status != "failure" for finding in found)
        if as_json:
            typer.echo(json.dumps({"ok": sound, "findings": [asdict(finding) for finding in found]}))
        else:
            for finding in found:
                typer.echo(f"{finding.status:8}  {finding.name}: {finding.found}")
                if finding.fix:
                    typer.echo(f"          fix: {finding.fix}")
        if not sound:
            raise typer.Exit(INPUT)


def findings(folder: Path) -> Iterator[DeviceFinding]:
    """All findings, for a run started in this folder."""
    yield _authentication()
    yield _memory()
    yield _cores()
    yield _accelerators()
    yield _shared_memory()
    yield _packages(folder)


def device_findings(platform: str | None = None, deadline_s: float = GPU_S) -> Iterator[DeviceFinding]:
    """Yield the findings of a process that takes the devices (learners/training/devices/device_checks.py).

    `platform`: cpu, gpu or tpu; by default tpu on a machine with TPU chips and no GPU, else gpu.
    """
    if platform is None:
        seen = {each.platform for each in accelerators()}
        platform = "tpu" if seen == {"tpu"} else "gpu"
    with tempfile.TemporaryDirectory(prefix="diloco-doctor-") as folder:
        variables = compilation_cache(Path(folder)) | os.environ
        variables["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        command = [sys.executable, "-P", "-m", "learners.training.devices.device_checks", platform]
        late = ""
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=deadline_s, env=variables)
            output, errors, ended = done.stdout, done.stderr, done.returncode
        except subprocess.TimeoutExpired as error:
            parts = (part.decode() if isinstance(part, bytes) else part or "" for part in (error.stdout, error.stderr))
            output, errors, ended = *parts, 0
            late = f"no answer within {deadline_s:.0f} s"
    yield from (DeviceFinding(**json.loads(line)) for line in output.splitlines() if line.startswith('{"name"'))
    if late or ended:
        last = next((line for line in reversed(errors.splitlines()) if line.strip()), "")
        found = late or f"the process that takes the devices ended with code {ended}: {last[:300]}"
        yield DeviceFinding("devices", "failure", found, "run nvidia-smi; a driver that hangs is reset by rebooting")


# ------------------------------------------------------------------ packages


def _packages(folder: Path) -> DeviceFinding:
    problems = foreign_packages(folder)
    if problems:
        found = "; ".join(f"{problem.value} {problem.message}" for problem in problems)
        return DeviceFinding("packages", "failure", found, problems[0].fix)
    return DeviceFinding("packages", "ok", f"nothing in {folder} hides {', '.join(ROOMS)}")


# ------------------------------------------------------------------ authentication


def _authentication() -> DeviceFinding:
    """Unless RAY_AUTH_MODE is set, each host decides by itself whether peers need a token (ray 2.60)."""
    mode, path = os.environ.get("RAY_AUTH_MODE"), os.environ.get("RAY_AUTH_TOKEN_PATH")
    found = partial(DeviceFinding, "authentication")
    token = Path(path) if path else Path.home() / ".ray" / "auth_token"
    if mode not in (None, "token", "disabled"):
        return found("failure", f"RAY_AUTH_MODE = {mode!r}", "set RAY_AUTH_MODE=token")
    if mode == "token" and not token.exists() and not os.environ.get("RAY_AUTH_TOKEN"):
        fix = "write a token there with mode 0600, and name it in RAY_AUTH_TOKEN_PATH on every host"
        return found("failure", f"RAY_AUTH_MODE=token, but there is no token file {token}", fix)
    if token.exists() and (bits := stat.S_IMODE(token.stat().st_mode)) & 0o077:
        status: Literal["warning", "failure"] = "failure" if mode == "token" else "warning"
        return found(status, f"{token} has mode {bits:04o}: others can read it", f"chmod 600 {token}")
    if mode != "token":
        words = "disabled by RAY_AUTH_MODE" if mode else "RAY_AUTH_MODE is not set: each host decides by itself"
        fix = "for a cluster, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH (mode 0600) on every host"
        return found("warning", words, fix)
    return found("ok", "by token")


# ------------------------------------------------------------------ the machine


def _memory() -> DeviceFinding:
    available = psutil.virtual_memory().available / GIB
    fix = "four learner units on CPUs want about 3 GiB; use fewer learners" if available < 3 else ""
    return DeviceFinding("memory", "warning" if fix else "ok", f"{available:.1f} GiB available", fix)


def _cores() -> DeviceFinding:
    if (count := cores()) < 2:
        return DeviceFinding("cores", "warning", f"{count}", "learner units will take turns: expect long steps")
    return DeviceFinding("cores", "ok", f"{count}")


def _accelerators() -> DeviceFinding:
    found = accelerators()
    if not found:
        return DeviceFinding("accelerators", "ok", "none: learners use CPUs")
    words = ", ".join(f"{one.count} {one.kind}{'s' * (one.count > 1)}" for one in found)
    if lacking := [one for one in found if not one.usable]:
        extras = ",".join(one.extra for one in lacking)
        fix = f"in the checkout: pip install -e '.[{extras}]'"
        words = f"{words}, but JAX has no plugin: it would use CPUs"
        return DeviceFinding("accelerators", "warning", words, fix)
    return DeviceFinding("accelerators", "ok", words)


def _shared_memory() -> DeviceFinding:
    shared = Path("/dev/shm")
    if not shared.is_dir():
        return DeviceFinding("shared memory", "ok", "no /dev/shm on this platform; Ray keeps its objects in files")
    free = shutil.disk_usage(shared).free / GIB
    fix = "give it at least 1 GiB (docker run --shm-size=2g): Ray would keep its objects on disk" if free < 1 else ""
    return DeviceFinding("shared memory", "warning" if fix else "ok", f"{free:.1f} GiB free in /dev/shm", fix)
