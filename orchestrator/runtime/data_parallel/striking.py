"""Strikes the ranks of a data-parallel run with the faults of a plan, from outside, as chaos strikes learners."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import psutil

from orchestrator.runtime.data_parallel.history import FAULTS_FILE, PROGRESS_FILE, RANKS, LineLog, history, lines
from orchestrator.store.readers import object_of
from orchestrator.store.run_store import RunStore
from outer.background import thread

POLL_S = 0.1
STRIKING = ("kill", "freeze")  # what can be done to any process; other kinds need a learner of ours


class PlannedStrike(Protocol):
    """A fault as chaos plans it."""

    kind: str
    learner: str
    duration_s: float

    def is_due(self, now_s: float, step: int, /) -> bool:
        """`now_s`: seconds since the first step."""
        ...


Plan = tuple[Sequence[Any], Iterator[Any]]  # planned faults, and endless random ones in order


class Striker:
    """Strikes while the `with` block runs. What cannot be done to a rank is written as not injected.

    Leaving the block raises RuntimeError if it could not go on.
    """

    def __init__(self, store: RunStore, learners: Sequence[str], plan: Plan) -> None:
        self._store, self._ranks = store, {name: rank for rank, name in enumerate(learners)}
        self._planned, self._random = plan
        self._over = threading.Event()
        self._frozen: dict[int, float] = {}  # pid -> when it goes on
        self._error: BaseException | None = None

    def __enter__(self) -> Striker:
        self._log = LineLog(self._store.path(FAULTS_FILE))
        self._thread = thread("faults", self._strike_all, self._fail)
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        self._thread.join()
        self._thaw(float("inf"))
        if self._error is not None:
            raise RuntimeError(f"the plan's faults could not go on: {self._error}") from self._error

    def _fail(self, error: BaseException) -> None:
        self._error = error

    def _strike_all(self) -> None:
        done = {line.get("number") for line in lines(self._store.path(FAULTS_FILE))}  # before this process: not again
        random = (
            (number, fault) for number, fault in enumerate(self._random, len(self._planned)) if number not in done
        )
        waiting = [(number, fault) for number, fault in enumerate(self._planned) if number not in done]
        following = next(random, None)
        began: float | None = None
        while not self._over.wait(POLL_S):
            self._thaw(time.monotonic())
            progress = object_of(self._store, PROGRESS_FILE) or {}
            began = began or self._began()
            if began is None:
                continue
            running_s, step = time.time() - began, int(progress.get("step") or 0)
            due = [each for each in waiting if each[1].is_due(running_s, step)]
            waiting = [each for each in waiting if each not in due]
            while following is not None and following[1].is_due(running_s, step):
                due.append(following)
                following = next(random, None)
            for number, fault in due:
                self._strike(number, fault, running_s)

    def _began(self) -> float | None:
        """When the first step began, later by the time in which no command ran."""
        found = history(self._store)
        return None if found.started_at is None else found.started_at + found.away_s

    def _strike(self, number: int, fault: PlannedStrike, running_s: float) -> None:
        told: dict[str, Any] = {"number": number, "kind": fault.kind, "target": fault.learner, "at_s": running_s}
        pid = self._pid(fault.learner)
        if fault.kind not in STRIKING or pid is None:
            reason = "it is not running" if fault.kind in STRIKING else f"ranks know {' and '.join(STRIKING)} alone"
            self._log.write(**told, injected=False, reason=reason)
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL if fault.kind == "kill" else signal.SIGSTOP)
        if fault.kind == "freeze":
            self._frozen[pid] = time.monotonic() + fault.duration_s
        self._log.write(**told, injected=True, pid=pid)

    def _pid(self, learner: str) -> int | None:
        """Its rank's process, if that still runs and no other process has its number."""
        told = object_of(self._store, f"{RANKS}/{self._ranks.get(learner)}.json") or {}
        try:
            pid = int(told["pid"])
            return pid if psutil.Process(pid).create_time() <= float(told["at"]) else None
        except (KeyError, psutil.NoSuchProcess):
            return None

    def _thaw(self, now: float) -> None:
        for pid in [pid for pid, until in self._frozen.items() if until <= now]:
            del self._frozen[pid]
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
