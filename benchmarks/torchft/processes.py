"""Processes of a trial, started with their output in files, and all ended when the trial is over, however it ends."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from benchmarks.torchft.trial import Ended

POLL_S = 0.05
GRACE_S = 60.0  # from SIGTERM to SIGKILL


class Processes:
    """Start with `start`; left, it ends what still runs, by its PID."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Processes:
        self._folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for process in self._started:
            process.terminate()
        deadline = time.monotonic() + GRACE_S
        for process in self._started:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def start(self, name: str, command: Sequence[str], **environment: str) -> subprocess.Popen[bytes]:
        """One thread of computation; NAME.out and NAME.err hold what it says."""
        kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "RAY_ADDRESS")}
        with (self._folder / f"{name}.out").open("wb") as out, (self._folder / f"{name}.err").open("wb") as err:
            process = subprocess.Popen(
                command, stdout=out, stderr=err, env=kept | {"OMP_NUM_THREADS": "1"} | environment
            )
        self._started.append(process)
        return process

    def wait_for(self, what: str, met: Callable[[], bool], limit_s: float) -> None:
        """Raises RuntimeError when a process ends first, or the deadline passes."""
        deadline = time.monotonic() + limit_s
        while not met():
            if any(process.poll() is not None for process in self._started):
                raise RuntimeError(f"a process ended before {what}; its output is in {self._folder}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"no {what} within {limit_s:g} s; the output is in {self._folder}")
            time.sleep(POLL_S)


def ended(running: Mapping[str, subprocess.Popen[bytes]], at: float, limit_s: float) -> dict[str, Ended]:
    """Watches until all have ended or `limit_s` have passed since `at`, in Unix seconds; returns those that ended."""
    found: dict[str, Ended] = {}
    while len(found) < len(running) and time.time() < at + limit_s:
        for name, process in running.items():
            if name not in found and (code := process.poll()) is not None:
                found[name] = Ended(code, time.time() - at)
        time.sleep(POLL_S)
    return found
