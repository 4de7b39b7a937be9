"""A learner unit as a Ray actor: calls come in here, and go out to the syncer and to other learners.

Training and the answers are in learners/shell.py; the concurrency groups let peers be answered while it steps.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import ray

from learners.fault_effects import FaultEffects
from learners.fetcher import Version
from learners.island import RayOthers, check_code, free_address, granted_gpus, identity
from learners.protocol.fact_buffer import FactBuffer
from learners.shell import LearnerShell
from learners.spec import LearnerSpec
from outer.background import end_process, tell, thread
from outer.bulk import AtShard
from outer.numeric import codec as codecs
from outer.owner import Owner
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
from outer.relays import Elsewhere

REPORTS_MAX = 32  # on their way to the syncer; while as many are, none is added
REPORT_FACTS_MAX = 256  # that one report takes along: the training loop sends it
CALL_S = 10.0  # deadline for an answer from the syncer
LATE_S = 120.0  # for which a call waits while the link is down
FLUSH_S = 20.0  # for a loop's last facts to become durable; what is left is lost with the process
PAUSE_S = 0.2  # between two attempts to send facts
ATTACH_ATTEMPTS_MAX = 5
RELAY_S = 2.0  # for another learner to say whether it has a version, or will soon
RELAYS_MAX = 3  # learners that are asked for one version, before the syncer is asked again after a while

GROUPS = {
    "loop": 1,
    "inbox": 1,
    "read": 4,
    "give": 2,
    "relay": 4,
    "keep": 1,
    "probe": 1,
    "chaos": 1,
}  # concurrency groups: the loop never queues behind its inbox


class RayLink:
    """The link to the syncer and to other learners, as far as injected faults let it work."""

    def __init__(self, name: str, syncer: Any, faults: FaultEffects) -> None:
        self.name, self._syncer, self._faults = name, syncer, faults
        self._lock = threading.Lock()  # of what follows: the loop reports, and so do threads that bring messages
        self._reports: deque[Any] = deque()  # on their way
        self._delayed: deque[Report] = deque(maxlen=REPORTS_MAX // 2)  # held back while the link is down
        self._uploading = False  # a thread sends facts, so reports take none along

    def use(self, syncer: Any) -> None:
        """A new epoch of the syncer serves. Reports on their way to the old one are given up."""
        with self._lock:
            self._syncer = syncer
            self._reports = deque()

    @contextlib.contextmanager
    def up(self, deadline_s: float) -> Iterator[None]:
        """Let a peer's call in once the link is up, and its answer out once the link is up. Raises GetTimeoutError."""
        deadline = time.monotonic() + deadline_s
        self._await_link(deadline)
        yield
        self._await_link(deadline)

    def _await_link(self, deadline: float) -> None:
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
            facts.rewind()  # this epoch of the syncer may not have what the one before was sent
            try:
                answer: Welcome | str = self._call(
                    lambda: self._syncer.attach.remote(message, facts.pending(), facts.oldest, handle), CALL_S
                )
                return answer
            except (ray.exceptions.GetTimeoutError, ray.exceptions.ActorUnavailableError):
                if attempt == ATTACH_ATTEMPTS_MAX:
                    raise
                time.sleep(PAUSE_S)
            except ray.exceptions.RayActorError:
                return None
        raise AssertionError("unreachable")

    def report(self, message: Report, facts: FactBuffer) -> None:
        """The answers to earlier reports say which facts are durable."""
        if self._faults.link_down_s() > 0.0:
            if message.phase == STOPPED:  # no later report could take along what is held back
                with contextlib.suppress(ray.exceptions.GetTimeoutError):
                    self._await_link(time.monotonic() + LATE_S)
            else:
                with self._lock:
                    self._delayed.append(message)
                return
        if facts.behind:
            self.upload(message.learner, message.incarnation, facts)
        with self._lock:
            self._hear(facts)
            for each in (*self._delayed, message):
                if len(self._reports) < REPORTS_MAX or each.phase == STOPPED:
                    sending = [] if self._uploading else facts.pending(REPORT_FACTS_MAX)
                    self._reports.append(self._syncer.report.remote(each, sending, facts.oldest))
            self._delayed.clear()

    def _hear(self, facts: FactBuffer) -> None:
        """Take the answers that have come. Call it under the lock."""
        while self._reports:
            done, _ = ray.wait([self._reports[0]], timeout=0)
            if not done:
                return
            try:
                facts.acknowledge(ray.get(self._reports.popleft(), timeout=CALL_S))
            except ray.exceptions.RayError:
                continue  # it may be lost; its facts are sent again after a while

    def upload(self, learner: str, incarnation: int, facts: FactBuffer) -> None:
        """Send the facts that are too many for one message, in a thread of its own. Returns at once."""
        with self._lock:
            if self._uploading:
                return
            self._uploading = True
        thread("upload", partial(self._upload, learner, incarnation, facts), tell)  # the next report starts another

    def _upload(self, learner: str, incarnation: int, facts: FactBuffer) -> None:
        try:
            while facts.behind:
                self._send(learner, incarnation, facts, CALL_S)
        finally:
            with self._lock:
                self._uploading = False

    def flush(self, learner: str, incarnation: int, facts: FactBuffer, patient: bool) -> None:
        facts.rewind()
        deadline = time.monotonic() + FLUSH_S
        while facts.recorded is None and (left_s := deadline - time.monotonic()) > 0.0:
            if self._send(learner, incarnation, facts, min(CALL_S, left_s)) and patient:
                deadline = time.monotonic() + FLUSH_S  # it lives, and waits for its store

    def _send(self, learner: str, incarnation: int, facts: FactBuffer, deadline_s: float) -> bool:
        """Send the next facts and hear what is durable by then; returns whether the syncer answered.

        Pauses where nothing new is durable.
        """
        before, answered = facts.oldest, False
        with contextlib.suppress(ray.exceptions.RayError):  # sent again, perhaps to another epoch of the syncer
            facts.acknowledge(
                self._call(
                    lambda: self._syncer.record.remote(learner, incarnation, facts.pending(), facts.oldest), deadline_s
                )
            )
            answered = True
        if facts.oldest == before:
            facts.rewind()
            time.sleep(PAUSE_S)
        return answered

    def record(self, learner: str, incarnation: int, facts: list[Any], oldest: int) -> bool:
        durable: int = self._call(lambda: self._syncer.record.remote(learner, incarnation, facts, oldest), CALL_S)
        return not facts or durable >= facts[-1][0]

    def seek(self, message: SeekDonor) -> tuple[Donor, Any] | None:
        named: tuple[Donor, Any] | None = self._call(lambda: self._syncer.seek.remote(message), CALL_S)
        return named

    def donate(self, donor: Any, request: StateRequest) -> tuple[State, list[Any], int] | str:
        given: tuple[State, list[Any], int] | str = self._call(lambda: donor.donate.remote(request), request.deadline_s)
        return given

    def fetch(self, fragment: int, version: int, held: int, deadline_s: float) -> tuple[int, str, Any, int] | None:
        """From the syncer, or from a learner of the same region that the syncer names, if that one gives it."""
        failed = ""
        for _ in range(RELAYS_MAX):
            asked = fragment, version, held, self.name, failed
            answer = self._call(partial(self._syncer.fetch.remote, *asked), deadline_s)
            if isinstance(answer, AtShard):
                return self._from_shard(answer, fragment, version, held, deadline_s)
            if not isinstance(answer, Elsewhere):
                found: tuple[int, str, Any, int] | None = answer
                return found
            if (given := self._from_relay(answer, fragment, version, deadline_s)) is not None:
                return given
            failed = answer.learner
        return None

    def _from_shard(
        self, named: AtShard, fragment: int, version: int, held: int, deadline_s: float
    ) -> tuple[int, str, Any, int] | None:
        """A version from the shard that has it; None if that dies: then the syncer does, and another follows."""
        try:
            *found, snapshot = self._call(
                partial(named.handle.fetch.remote, fragment, version, held, self.name), deadline_s
            )
        except ray.exceptions.RayError:
            return None
        return (*found, max(snapshot, named.snapshot))

    def _from_relay(self, named: Elsewhere, fragment: int, version: int, deadline_s: float) -> Version | None:
        """A version from another learner, once that has it; None if it dies, is silent, or does not get it."""
        deadline, asked = time.monotonic() + deadline_s, (fragment, version)
        try:
            while not (there := self._call(partial(named.handle.holds.remote, *asked), RELAY_S)):
                if there is None or time.monotonic() >= deadline:
                    return None
                time.sleep(PAUSE_S)
            left_s = max(RELAY_S, deadline - time.monotonic())
            given: Version | None = self._call(partial(named.handle.received.remote, fragment), left_s)
        except ray.exceptions.RayError:
            return None
        if given is None or given.version < version or codecs.digest(given.theta) != given.digest:
            return None
        return given._replace(snapshot=max(given.snapshot, named.snapshot))


class LearnerActor:
    """One incarnation of one learner unit, or a standby, which becomes one: `syncer` is None until then."""

    def __init__(self, spec: LearnerSpec, syncer: Any) -> None:
        self._name = spec.name  # first: Ray asks for it when it tells of an error
        check_code(spec)
        os.environ.update(spec.environment)
        self._owner = Owner()
        self._promoted = threading.Event()
        self._faults = FaultEffects(time.monotonic)
        self._link = RayLink(spec.name, syncer, self._faults)
        self._shell = LearnerShell(spec, self._link, self._faults, granted_gpus(spec.environment))
        signal.signal(signal.SIGTERM, self._on_sigterm)  # Ray runs constructors in the main thread

    def __repr__(self) -> str:
        return self._name  # how the dashboard and log lines call this actor

    def _on_sigterm(self, number: int, frame: Any) -> None:
        """Leave in order. In a thread, for the signal may have come in the middle of anything."""
        thread("leave", self._shell.leave, end_process)

    # -------------------------------------------------------------- called by the orchestrator

    def identify(self) -> dict[str, Any]:
        """See `identity`, and the shell's `key`."""
        return identity() | {"key": self._shell.key}

    def lead(self, ranks: Sequence[Any]) -> str:
        """Lead an island, as its rank 0, by the handles of the others. Returns where they meet, as host:port."""
        address = free_address()
        self._shell.lead(address, RayOthers(ranks))
        return address

    @ray.method(concurrency_group="loop")
    def prepare(self) -> None:
        """Prepare a standby: see LearnerShell.prepare."""
        self._shell.prepare()

    @ray.method(concurrency_group="loop")
    def stand_by(self, seconds: float) -> bool:
        """Wait to be promoted, but no longer than this; returns whether it was."""
        return self._promoted.wait(seconds)

    def promote(self, number: int, name: str, incarnation: int, core: int | None, syncer: Any) -> dict[str, Any]:
        """Make a standby this incarnation of this learner; `run` follows. `number`: the orchestrator's.

        Raises Superseded.
        """
        self._owner.require(number)
        self._name = self._link.name = name
        self._link.use(syncer)
        self._shell.promote(name, incarnation, core)
        self._promoted.set()
        return self.identify()

    @ray.method(concurrency_group="probe", enable_task_events=False)
    def progress(self) -> tuple[bool, int | None]:
        """See LearnerShell.progress. It needs no link to the syncer."""
        return self._shell.progress()

    @ray.method(concurrency_group="loop")
    def run(self) -> str:
        """Train until the run ends; returns why it did. An exception is a fault of this incarnation."""
        return self._shell.run()

    @ray.method(concurrency_group="inbox")
    def reattach(self, number: int, syncer: Any) -> str:
        """A new epoch of the syncer serves. Returns why it refuses this learner; empty when it does not.

        `number`: the orchestrator's. Raises Superseded.
        """
        self._owner.require(number)
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

    @ray.method(concurrency_group="inbox", enable_task_events=False)
    def inbox(self, *messages: Notice | Grant | Drain | Stop) -> None:
        """Messages in the order in which they were sent."""
        with self._link.up(LATE_S):
            for message in messages:
                self._shell.deliver(message)

    @ray.method(concurrency_group="read", enable_task_events=False)
    def read(self, request: ReadRequest) -> tuple[Contribution, list[Any], int] | str:
        """See LearnerShell.read."""
        with self._link.up(LATE_S):
            return self._shell.read(request)

    @ray.method(concurrency_group="give")
    def held_versions(self) -> list[int]:
        """For a syncer that has lost its journal: see LearnerShell.held_versions."""
        return self._shell.held_versions

    @ray.method(concurrency_group="give")
    def held(self, fragment: int) -> tuple[int, Any]:
        """For a syncer that has lost its journal: see LearnerShell.held."""
        return self._shell.held(fragment)

    # -------------------------------------------------------------- called by learners of its region

    @ray.method(concurrency_group="relay", enable_task_events=False)
    def holds(self, fragment: int, version: int) -> bool | None:
        """See Fetcher.holds."""
        with self._link.up(LATE_S):
            return self._shell.fetcher.holds(fragment, version)

    @ray.method(concurrency_group="relay", enable_task_events=False)
    def received(self, fragment: int) -> Version | None:
        """The newest version that is here."""
        with self._link.up(LATE_S):
            return self._shell.fetcher.received.newest(fragment)

    # -------------------------------------------------------------- called by a joiner

    @ray.method(concurrency_group="give")
    def donate(self, request: StateRequest) -> tuple[State, list[Any], int] | str:
        """See LearnerShell.donate. The training loop is not held up."""
        with self._link.up(request.deadline_s):
            return self._shell.donate(request)

    # -------------------------------------------------------------- called by chaos

    @ray.method(concurrency_group="chaos")
    def disturb(self, kind: str, duration_s: float, delay_s: float, seed: str, expires_at: float) -> bool:
        """Suffer a fault from now on (see FaultEffects). False, and no fault, after `expires_at` in Unix seconds."""
        if time.time() >= expires_at:
            return False  # the caller has given up, and has reported that there was no fault
        self._faults.begin(kind, duration_s, delay_s, seed)
        return True
