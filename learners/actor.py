"""A learner unit as a Ray actor: calls come in here, and go out to the syncer and to other learners.

Training and the answers are in learners/shell.py; the concurrency groups let peers be answered while it steps.
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import ray

from learners.fault_effects import FaultEffects
from learners.protocol.fact_buffer import FactBuffer
from learners.shell import LearnerShell, LearnerSpec
from outer.protocol.manifest import code_digest
from outer.protocol.messages import (
    STOPPED,
    Attach,
    Contribution,
    Donor,
    Drain,
    Grant,
    Notice,
    ReadRequest,
    Report,
    SeekDonor,
    State,
    StateRequest,
    Stop,
    Welcome,
)

REPORTS_MAX = 32  # on their way to the syncer; while as many are, none is added
CALL_S = 10.0  # deadline for an answer from the syncer
ATTACH_ATTEMPTS_MAX = 5

GROUPS = {
    "loop": 1,
    "inbox": 1,
    "read": 4,
    "give": 2,
    "keep": 1,
    "chaos": 1,
}  # concurrency groups: the loop never queues behind its inbox


class RayLink:
    """The link to the syncer and to other learners, as far as injected faults let it work."""

    def __init__(self, syncer: Any, faults: FaultEffects) -> None:
        self._syncer, self._faults = syncer, faults
        self._reports: deque[Any] = deque()  # on their way
        self._delayed: deque[Report] = deque(maxlen=REPORTS_MAX // 2)  # held back while the link is down

    def use(self, syncer: Any) -> None:
        """A new epoch of the syncer serves. Reports on their way to the old one are given up."""
        self._syncer = syncer
        self._reports = deque()

    @contextlib.contextmanager
    def up(self) -> Iterator[None]:
        """Let a peer's call in once the link is up, and its answer out once the link is up."""
        self._await_link()
        yield
        self._await_link()

    def _await_link(self, deadline: float = math.inf) -> None:
        """Wait while a fault keeps the link down. Raises GetTimeoutError at the deadline (monotonic seconds)."""
        while (down_s := self._faults.link_down_s()) > 0.0:
            left_s = deadline - time.monotonic()
            if left_s <= 0.0:
                raise ray.exceptions.GetTimeoutError("the link is down")
            time.sleep(min(down_s, left_s))

    def _call(self, call: Callable[[], Any], deadline_s: float) -> Any:
        """A peer's answer. The time for which the link is down counts towards the deadline."""
        deadline = time.monotonic() + deadline_s
        self._await_link(deadline)
        answer = ray.get(call(), timeout=max(0.0, deadline - time.monotonic()))
        self._await_link(deadline)
        return answer

    # -------------------------------------------------------------- what the shell asks for

    def attach(self, message: Attach, facts: FactBuffer) -> Welcome | str | None:
        handle = ray.get_runtime_context().current_actor
        for attempt in range(1, ATTACH_ATTEMPTS_MAX + 1):
            try:
                answer: Welcome | str = self._call(
                    lambda: self._syncer.attach.remote(message, facts.pending(), handle), CALL_S
                )
                return answer
            except ray.exceptions.GetTimeoutError:
                if attempt == ATTACH_ATTEMPTS_MAX:
                    raise
            except ray.exceptions.RayActorError:
                return None
        raise AssertionError("unreachable")

    def report(self, message: Report, facts: FactBuffer) -> None:
        """The answers to earlier reports say which facts are recorded."""
        if self._faults.link_down_s() > 0.0 and message.phase != STOPPED:
            self._delayed.append(message)
            return
        if message.phase == STOPPED:  # no later report could take along what is held back
            self._await_link()
        reports = self._reports
        while reports:
            done, _ = ray.wait([reports[0]], timeout=0)
            if not done:
                break
            try:
                facts.acknowledge(ray.get(reports.popleft()))
            except ray.exceptions.RayError:
                continue  # it may be lost; its facts are sent again
        for each in (*self._delayed, message):
            if len(reports) < REPORTS_MAX or each.phase == STOPPED:
                reports.append(self._syncer.report.remote(each, facts.pending()))
        self._delayed.clear()

    def flush(self, learner: str, incarnation: int, facts: FactBuffer) -> None:
        with contextlib.suppress(ray.exceptions.RayError):  # the syncer is gone
            while pending := facts.pending():
                record = functools.partial(self._syncer.record.remote, learner, incarnation, pending)
                facts.acknowledge(self._call(record, CALL_S))

    def record(self, learner: str, incarnation: int, facts: list[Any]) -> None:
        self._call(lambda: self._syncer.record.remote(learner, incarnation, facts), CALL_S)

    def seek(self, message: SeekDonor) -> tuple[Donor, Any] | None:
        named: tuple[Donor, Any] | None = self._call(lambda: self._syncer.seek.remote(message), CALL_S)
        return named

    def donate(self, donor: Any, request: StateRequest) -> tuple[State, list[Any]] | str:
        given: tuple[State, list[Any]] | str = self._call(lambda: donor.donate.remote(request), request.deadline_s)
        return given

    def fetch(self, fragment: int, version: int, deadline_s: float) -> tuple[int, str, Any, int] | None:
        answer: tuple[int, str, Any, int] | None = self._call(
            lambda: self._syncer.fetch.remote(fragment, version), deadline_s
        )
        return answer


class LearnerActor:
    """One incarnation of one learner unit."""

    def __init__(self, spec: LearnerSpec, syncer: Any) -> None:
        if (code := code_digest()) != spec.code:
            raise RuntimeError(f"this node runs other sources ({code}) than the run was started with ({spec.code})")
        self._name = spec.name
        self._faults = FaultEffects(time.monotonic)
        self._link = RayLink(syncer, self._faults)
        self._shell = LearnerShell(spec, self._link, self._faults)
        signal.signal(signal.SIGTERM, self._on_sigterm)  # Ray runs constructors in the main thread

    def __repr__(self) -> str:
        return self._name  # how the dashboard and log lines call this actor

    def _on_sigterm(self, number: int, frame: Any) -> None:
        """Leave in order. In a thread, for the signal may have come in the middle of anything."""
        threading.Thread(target=self._shell.leave, name="leave").start()

    # -------------------------------------------------------------- called by the orchestrator

    def identify(self) -> dict[str, Any]:
        return {"pid": os.getpid(), "node": ray.get_runtime_context().get_node_id()}

    @ray.method(concurrency_group="loop")
    def run(self) -> str:
        """Train until the run ends; returns why it did. An exception is a fault of this incarnation."""
        return self._shell.run()

    @ray.method(concurrency_group="inbox")
    def reattach(self, syncer: Any) -> str:
        """A new epoch of the syncer serves. Returns why it refuses this learner; empty when it does not."""
        self._link.use(syncer)
        try:
            return self._shell.reattach()
        except ray.exceptions.RayError:
            return ""  # this epoch is gone, too: another follows

    @ray.method(concurrency_group="keep")
    def saved(self, snapshot: int, deadline_s: float) -> dict[str, Any] | None:
        """See LearnerShell.saved."""
        return self._shell.saved(snapshot, deadline_s)

    # -------------------------------------------------------------- called by the syncer

    @ray.method(concurrency_group="inbox")
    def inbox(self, message: Notice | Grant | Drain | Stop) -> None:
        with self._link.up():
            self._shell.deliver(message)

    @ray.method(concurrency_group="read")
    def read(self, request: ReadRequest) -> tuple[Contribution, list[Any]] | None:
        """See LearnerShell.read."""
        with self._link.up():
            return self._shell.read(request)

    @ray.method(concurrency_group="give")
    def held_versions(self) -> list[int]:
        """For a syncer that has lost its journal: see LearnerShell.held_versions."""
        return self._shell.held_versions

    @ray.method(concurrency_group="give")
    def held(self, fragment: int) -> tuple[int, Any]:
        """For a syncer that has lost its journal: see LearnerShell.held."""
        return self._shell.held(fragment)

    # -------------------------------------------------------------- called by a joiner

    @ray.method(concurrency_group="give")
    def donate(self, request: StateRequest) -> tuple[State, list[Any]] | str:
        """See LearnerShell.donate. The training loop is not held up."""
        with self._link.up():
            return self._shell.donate(request)

    # -------------------------------------------------------------- called by chaos

    @ray.method(concurrency_group="chaos")
    def disturb(self, kind: str, duration_s: float, delay_s: float, seed: str, expires_at: float) -> bool:
        """Suffer a fault from now on (see FaultEffects). False, and no fault, after `expires_at` in Unix seconds."""
        if time.time() >= expires_at:
            return False  # the caller has given up, and has reported that there was no fault
        self._faults.begin(kind, duration_s, delay_s, seed)
        return True
