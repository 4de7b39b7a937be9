"""Runs Python in a process of its own, with other devices or settings than this one has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.waiting import DEADLINE_S

ROOT = Path(__file__).parents[3]


def python(*arguments: str, without: tuple[str, ...] = (), **environ: str) -> subprocess.CompletedProcess[str]:
    """Run `python ARGUMENTS` in this environment, without the variables that begin with `without`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(without)}
    return subprocess.run(
        [sys.executable, *arguments],
        env=kept | {"PYTHONPATH": str(ROOT)} | environ,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def program(name: str, *arguments: str, devices: int) -> str:
    """Run a program of this folder on so many CPU devices, and return its last line."""
    done = python(
        str(Path(__file__).parent / name),
        *arguments,
        XLA_FLAGS=f"--xla_force_host_platform_device_count={devices}",
        JAX_PLATFORMS="cpu",
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]
