"""What a test does to a run while it goes on: steps, each of which waits for a condition, and then a stop."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import ray

from orchestrator.eventlog.events import Event
from orchestrator.eventlog.reader import read_run
from orchestrator.store.run_store import RunStore
from tests.runtime.conftest import LEARNERS, namespace
from tests.runtime.results import STOPPED

Status = Mapping[str, Any]
FOREVER = {"syncer_steps": 1_000_000}  # the script ends the run
# There is a chaos actor where a recipe plans a fault; this one never falls due.
BY_HAND = {"faults": [{"kind": "kill", "learner": "learner-t-0", "at_step": FOREVER["syncer_steps"]}]}
STEP_S = 300.0  # for what a test waits for to come about, else it fails: many times what a busy machine needs


class Script:
    """Carries out (condition, action) pairs in order, one a second at most, and then stops the run. An `on_status`."""

    _looked_at = 0.0  # conditions read the whole log

    def __init__(self, folder: Path, *steps: tuple[Callable[[Status], Any], Callable[[Status], Any]]) -> None:
        self._store, self._left = RunStore(folder), list(steps)
        self._left.append((lambda status: True, self._stop))
        self._until = time.monotonic() + STEP_S

    def __call__(self, status: Status) -> None:
        if time.monotonic() < self._looked_at + 1.0:
            return
        self._looked_at = time.monotonic()
        if not self._left:
            return
        if self._left[0][0](status):
            self._left.pop(0)[1](status)
            self._until = self._looked_at + STEP_S
        elif self._looked_at > self._until:
            raise AssertionError(f"{len(self._left)} steps before the end, what it waits for does not come: {status}")

    def _stop(self, status: Status) -> None:
        self._store.write_json("stop", {"reason": STOPPED})


def nothing(status: Status) -> None:
    """An action: only wait."""


def stepping(status: Status) -> dict[str, int]:
    """Learners that train, and their incarnations."""
    return {row["name"]: row["incarnation"] for row in status["learners"] if row["state"] == "stepping"}


def all_step(*incarnations: int, syncer_step: int = 0) -> Callable[[Status], bool]:
    """These incarnations of learner-t-0, -1, ... step, all first ones by default, and that many versions exist."""
    wanted = {f"learner-t-{index}": number for index, number in enumerate(incarnations or (1,) * LEARNERS)}
    return lambda status: stepping(status) == wanted and status["run"]["syncer_step"] >= syncer_step


def said(folder: Path, holds: Callable[[Event], bool]) -> Callable[[Status], bool]:
    """An event of which this is true is in the run's log."""
    return lambda status: any(map(holds, read_run(folder)))


def more(syncer_steps: int) -> Callable[[Status], bool]:
    """So many more syncer steps than at the first look."""
    enough: list[int] = []

    def look(status: Status) -> bool:
        enough.append(status["run"]["syncer_step"] + syncer_steps)
        return bool(status["run"]["syncer_step"] >= enough[0])

    return look


def inject(
    run: str, kind: str, learner: str, duration_s: float = 0.0, delay_s: float = 0.0
) -> Callable[[Status], None]:
    """Ask the run's chaos actor for a fault now, as `diloco chaos` does. Give the recipe `chaos=BY_HAND`."""

    def act(status: Status) -> None:
        chaos = ray.get_actor("chaos", namespace(run))
        told = ray.get(chaos.inject.remote(kind, learner, duration_s, delay_s), timeout=STEP_S)
        assert told.startswith("injected"), told

    return act


def kill(*pids: int) -> None:
    """End processes at once."""
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
